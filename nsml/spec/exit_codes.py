"""Exit codes of the platform's programs."""

from __future__ import annotations

import os
from typing import Final

CANNOT_LISTEN: Final = os.EX_UNAVAILABLE
"""A listen address is in use, or not one of this machine (`EX_UNAVAILABLE` of sysexits.h, 69)."""
