"""Limits of code for a running program (`nsml exec`): agents keep them, and clients say so first."""

from __future__ import annotations

from typing import Final

MOST_BYTES: Final = 64 << 10
"""Of the code, and of its value, output and error each, in UTF-8. `nsml._expressions` has it, too: the SDK stands alone."""
LEAST_LIMIT_S: Final = 0.1
USUAL_LIMIT_S: Final = 5.0
LONGEST_LIMIT_S: Final = 60.0
"""How long it may run."""
USUAL_WAIT_S: Final = 60.0
LONGEST_WAIT_S: Final = 3_600.0
"""How long the program may take to reach a safe point."""
