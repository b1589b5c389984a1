"""From when on something of a node is worth a warning: the same in every program."""

from __future__ import annotations

from typing import Final

CERTIFICATE_WARNING_S: Final = 14 * 86_400.0
"""A node's certificate is renewed when 30 days are left: with fewer than these the renewals fail."""

WRONG_CLOCK_S: Final = 30.0
"""A clock that is further off than this has certificates, tokens and times of sessions judged wrong."""
