"""The names of the looks of the dashboard, as its settings know them."""

from __future__ import annotations

from typing import Final

THEMES: Final = ("dark", "light", "high-contrast", "colour-blind", "terminal")
"""The last one has the terminal's own colours, of which there are 16."""
SETTING: Final = "theme"
"""In config.toml, under [settings]."""
