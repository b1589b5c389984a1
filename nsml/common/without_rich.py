"""structlog, imported without Rich.

structlog imports Rich where it is installed, to colour consoles. The programs here write JSON, and
that import would be a quarter of the time that an agent takes to start.
"""

import sys

_is_absent = "rich" not in sys.modules
if _is_absent:
    sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    if _is_absent:
        del sys.modules["rich"]

__all__ = ["structlog"]
