"""The most that a session may ask for: more the platform refuses, and the command line proposes this."""

from __future__ import annotations

from typing import Final

MOST_REPLICAS: Final = 64
MOST_RETRIES: Final = 100
MOST_PROCESSES: Final = 1 << 22
"""The most that Linux numbers."""

LONGEST_GRACE_S: Final = 3_600.0
LONGEST_S: Final = 10 * 365 * 86_400.0
"""Of time limits, and of what is waited for a lost node."""
