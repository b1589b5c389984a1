"""Appearance of the dashboard: themes, the meaning of colours, and ASCII for terminals with nothing more.

Drawn text has roles, not colours. `nsml.view` names roles by their colours on a plain terminal; each theme
defines them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from nsml.view.ascii_drawing import plain
from nsml.view.themes import THEMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from textual.app import App

GOOD: Final = "green"
WAITS: Final = "yellow"
MOVES: Final = "cyan"
BAD: Final = "red"
LINES: Final = tuple(f"line-{number}" for number in range(1, 8))
"""Of chart lines, in order."""
RULE: Final = "rule"
"""Lines between panes."""
OTHERS: Final = "others"
"""Text style of chart lines in the background."""
_PLAIN_TERMINAL: Final[Mapping[str, str]] = dict(
    zip(LINES, ("cyan", "yellow", "magenta", "green", "red", "blue", "white"), strict=True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appearance:
    """How the dashboard looks at the start.

    Attributes:
        theme: one of `nsml.view.themes.THEMES`.
        is_colourless: use no colours at all.
        is_ascii: draw with ASCII only.
        has_letters: letters of other scripts are available for user text.
        is_animated: whether animations are allowed.
    """

    theme: str = "dark"
    is_colourless: bool = False
    is_ascii: bool = False
    has_letters: bool = True
    is_animated: bool = True


def apply_appearance(app: App[Any], appearance: Appearance) -> None:
    """Apply an appearance, and keep only our themes: others lack colours for some roles."""
    for theme in ALL_THEMES:
        app.register_theme(theme)
    app.theme = appearance.theme
    for name in {*app.available_themes} - set(THEMES):
        app.unregister_theme(name)
    if not appearance.is_animated:
        app.animation_level = "none"


def filters(appearance: Appearance) -> list[LineFilter]:
    """Return the app's line filters."""
    return [Ascii(has_letters=appearance.has_letters)] if appearance.is_ascii else []


def style(app: App[Any], role: str) -> Style:
    """Return the style of a role; if the app lacks the role, the colour of that name."""
    colour = app.theme_variables.get(f"role-{role}")
    return _style(colour) if colour else _parsed(_PLAIN_TERMINAL.get(role, role))


def others(app: App[Any]) -> Style:
    """Return the style of other lines."""
    return _parsed(app.theme_variables.get(OTHERS, "dim"))


@lru_cache(maxsize=128)
def _style(colour: str) -> Style:
    return Style(color=Color.parse(colour).rich_color)


@lru_cache(maxsize=16)
def _parsed(words: str) -> Style:
    return Style.parse(words)


class Ascii(LineFilter):
    """Converts lines to ASCII, cell by cell, whatever drew them."""

    def __init__(self, *, has_letters: bool) -> None:
        super().__init__()
        self._has_letters = has_letters

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's
        """Convert segments to ASCII."""
        return [
            segment
            if segment.text.isascii()
            else Segment(
                plain(segment.text, has_letters=self._has_letters), segment.style, segment.control
            )
            for segment in segments
        ]


def _roles(
    *, good: str, waits: str, moves: str, bad: str, ended: str, lines: Sequence[str]
) -> dict[str, str]:
    named = {GOOD: good, WAITS: waits, MOVES: moves, BAD: bad, "white": ended}
    return {
        f"role-{role}": colour
        for role, colour in {**named, **dict(zip(LINES, lines, strict=True))}.items()
    }


def _cursor(
    background: str, foreground: str, *, blurred: str, style: str = "bold"
) -> dict[str, str]:
    return {
        "block-cursor-background": background,
        "block-cursor-foreground": foreground,
        "block-cursor-text-style": style,
        "block-cursor-blurred-background": blurred,
        "block-cursor-blurred-text-style": "none",
    }


_DARK: Final[Mapping[str, str]] = {
    "foreground": "#d5dae3",
    "background": "#11151b",
    "surface": "#171c24",
    "panel": "#222a36",
}
ALL_THEMES: Final = (
    Theme(
        name="dark",
        primary="#4b9be8",
        secondary="#2f5f93",
        accent="#e8b45a",
        warning="#e5b567",
        error="#f07178",
        success="#86c77d",
        **_DARK,  # type: ignore[arg-type]  # its values are texts, all of them
        variables={
            RULE: "#3a4656",
            **_cursor("#2a5f99", "#ffffff", blurred="#2a3341"),
            "block-cursor-blurred-foreground": "#d5dae3",
            **_roles(
                good="#86c77d",
                waits="#e5b567",
                moves="#62c3d6",
                bad="#f07178",
                ended="#9aa6b6",
                lines=("#62c3d6", "#e5b567", "#cf8ce0", "#86c77d", "#f07178", "#6aa9f0", "#d5dae3"),
            ),
        },
    ),
    Theme(
        name="light",
        primary="#1f5fa8",
        secondary="#6b8fb8",
        accent="#8a5200",
        warning="#8a5200",
        error="#b3261e",
        success="#1a7236",
        foreground="#1d232c",
        background="#fafbfc",
        surface="#f0f2f5",
        panel="#e6eaef",
        dark=False,
        variables={
            RULE: "#aab4c0",
            **_cursor("#1f5fa8", "#ffffff", blurred="#d3dbe5"),
            "block-cursor-blurred-foreground": "#1d232c",
            "footer-key-foreground": "#1f5fa8",
            "text-muted": "#4c5766",
            **_roles(
                good="#1a6e34",
                waits="#7d4b00",
                moves="#00647d",
                bad="#b3261e",
                ended="#4c5766",
                lines=("#00728f", "#8a5200", "#8a35a8", "#1a7236", "#b3261e", "#1f5fa8", "#1d232c"),
            ),
        },
    ),
    Theme(
        name="high-contrast",
        primary="#8fc7ff",
        secondary="#8fc7ff",
        accent="#ffff55",
        warning="#ffff55",
        error="#ff9c9c",
        success="#6dff6d",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#141414",
        variables={
            RULE: "#ffffff",
            **_cursor("#ffff55", "#000000", blurred="#ffffff"),
            "block-cursor-blurred-foreground": "#000000",
            "text-muted": "#ffffff",
            "text-disabled": "#d0d0d0",
            "text-error": "#ff9c9c",
            "text-primary": "#8fc7ff",
            "foreground-muted": "#ffffff",
            "footer-key-foreground": "#ffff55",
            "border": "#ffffff",
            "border-blurred": "#ffffff",
            OTHERS: "none",
            **_roles(
                good="#6dff6d",
                waits="#ffff55",
                moves="#5fffff",
                bad="#ff9c9c",
                ended="#e0e0e0",
                lines=("#5fffff", "#ffff55", "#ffa6ff", "#6dff6d", "#ff9c9c", "#8fc7ff", "#ffffff"),
            ),
        },
    ),
    # The palette of Okabe and Ito, distinguishable without red, green or blue vision.
    Theme(
        name="colour-blind",
        primary="#56b4e9",
        secondary="#0072b2",
        accent="#e69f00",
        warning="#f0e442",
        error="#e8772e",
        success="#56b4e9",
        **_DARK,  # type: ignore[arg-type]
        variables={
            RULE: "#3a4656",
            **_cursor("#005b8e", "#ffffff", blurred="#2a3341"),
            "block-cursor-blurred-foreground": "#d5dae3",
            **_roles(
                good="#56b4e9",
                waits="#f0e442",
                moves="#cc79a7",
                bad="#e8772e",
                ended="#9aa6b6",
                lines=("#56b4e9", "#e69f00", "#cc79a7", "#009e73", "#d55e00", "#f0e442", "#d5dae3"),
            ),
        },
    ),
    Theme(
        name="terminal",
        ansi=True,
        primary="ansi_blue",
        secondary="ansi_cyan",
        accent="ansi_magenta",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        variables={
            RULE: "ansi_bright_black",
            "ansi-background": "ansi_default",
            "ansi-foreground": "ansi_default",
            # Reverse video is visible on any background, and without colours.
            **_cursor("ansi_default", "ansi_default", blurred="ansi_default", style="bold reverse"),
            "block-cursor-blurred-foreground": "ansi_default",
            "block-cursor-blurred-text-style": "underline",
            "border-blurred": "ansi_bright_black",
            "scrollbar-background": "ansi_default",
            **_roles(
                good="ansi_green",
                waits="ansi_yellow",
                moves="ansi_cyan",
                bad="ansi_red",
                ended="ansi_default",
                lines=(
                    "ansi_cyan",
                    "ansi_yellow",
                    "ansi_magenta",
                    "ansi_green",
                    "ansi_red",
                    "ansi_blue",
                    "ansi_default",
                ),
            ),
        },
    ),
)
