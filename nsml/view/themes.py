"""The names of the dashboard's themes, as in its settings."""

from __future__ import annotations

from typing import Final

THEMES: Final = ("dark", "light", "high-contrast", "colour-blind", "terminal")
"""The last one uses the terminal's own 16 colours."""
SETTING: Final = "theme"
"""In config.toml, under [settings]."""
