"""Limits of code for a running program (`nsml exec`): enforced by agents, and checked first by clients."""

from __future__ import annotations

from typing import Final

MOST_BYTES: Final = 64 << 10
"""Size limit in UTF-8 of the code, and of its value, output and error each. Repeated in `nsml._expressions`: the SDK stands alone."""
LEAST_LIMIT_S: Final = 0.1
USUAL_LIMIT_S: Final = 5.0
LONGEST_LIMIT_S: Final = 60.0
"""Limits of its run time, in seconds."""
USUAL_WAIT_S: Final = 60.0
LONGEST_WAIT_S: Final = 3_600.0
"""Limits of the wait for a safe point of the program, in seconds."""
