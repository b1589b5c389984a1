"""Names of the dashboard's themes and of output styles, as in settings."""

from __future__ import annotations

from typing import Final

THEMES: Final = ("dark", "light", "high-contrast", "colour-blind", "terminal")
"""The last one uses the terminal's own 16 colours."""
SETTING: Final = "theme"
"""In config.toml, under [settings]."""
STYLES: Final = ("nsml",)
"""nsml: tables, messages and JSON of NAVER's NSML (`nsml.view.nsml_style`)."""
STYLE_SETTING: Final = "style"
"""In config.toml; NSML_STYLE overrides it."""
