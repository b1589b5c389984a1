"""What the programs of a platform end with, for whoever starts them."""

from __future__ import annotations

import os
from typing import Final

CANNOT_LISTEN: Final = os.EX_UNAVAILABLE
"""An address that it is to listen on is taken, or not one of this machine (`EX_UNAVAILABLE` of sysexits.h, 69)."""
