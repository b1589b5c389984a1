"""What one suite found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures by name; `peers` holds under the same names what others published for the same trace."""

    figures: dict[str, float]
    peers: dict[str, float] = field(default_factory=dict)
