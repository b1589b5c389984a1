"""Files that programs show beside their numbers: how they are named, and how large they may be."""

from __future__ import annotations

import re
from typing import Final

FILE_NAME: Final = re.compile(r"(?P<sha256>[0-9a-f]{64})-[0-9a-z-]{1,64}")
"""SHA-256 of its bytes, and what makes the name one that was never used."""

MOST_BYTES: Final = 64 << 20
"""Of one file."""

MOST_OF_SESSION: Final = 100_000
"""Files that are kept of a session."""

MOST_AT_ONCE: Final = 512
"""Files of which one call says what became of them."""
