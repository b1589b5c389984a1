"""Names and limits of media files that programs log beside their metrics."""

from __future__ import annotations

import re
from typing import Final

FILE_NAME: Final = re.compile(r"(?P<sha256>[0-9a-f]{64})-[0-9a-z-]{1,64}")
"""SHA-256 of the bytes, and a suffix that makes the name unique."""

MOST_BYTES: Final = 64 << 20
"""Per file."""

MOST_OF_SESSION: Final = 100_000
"""Stored files per session."""

MOST_AT_ONCE: Final = 512
"""Files per call that reports their status."""
