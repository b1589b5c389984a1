"""structlog, imported without Rich.

structlog imports Rich if it is installed, to colour consoles. The programs here write JSON, and
that import would be a quarter of an agent's start-up time.
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
