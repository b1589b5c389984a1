"""Capabilities of a terminal, by its environment. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_POOR: Final = frozenset({"dumb", "linux", "vt100", "vt220", "ansi", "unknown"})
"""Terminals without braille and most other drawn letters."""
_NO_LOCALE: Final = frozenset({"C", "POSIX"})


def has_colours(environ: Mapping[str, str]) -> bool:
    """Whether it has more than 16."""
    if environ.get("COLORTERM", "").strip().lower() in {"truecolor", "24bit"}:
        return True
    term = environ.get("TERM", "").strip().lower()
    return term.endswith(("256color", "-direct", "kitty", "ghostty", "alacritty"))


def has_no_colours(environ: Mapping[str, str]) -> bool:
    """Whether its user disables them."""
    return bool(environ.get("NO_COLOR"))


def has_letters(environ: Mapping[str, str]) -> bool:
    """Whether it has letters beyond ASCII: whether its locale is UTF-8, or not set."""
    chosen = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG", "")
    # Python itself sets LC_CTYPE where the locale is C, and leaves LANG as it was.
    if not environ.get("LC_ALL") and environ.get("LANG") in _NO_LOCALE:
        chosen = environ["LANG"]
    if not chosen:
        return True
    return "utf-8" in chosen.lower() or "utf8" in chosen.lower()


def is_ascii(environ: Mapping[str, str]) -> bool:
    """Whether it lacks drawing characters."""
    return environ.get("TERM", "") in _POOR or not has_letters(environ)


def may_animate(environ: Mapping[str, str]) -> bool:
    """Whether animations are allowed: not over ssh, where each step is sent, unless requested."""
    return "TEXTUAL_ANIMATIONS" in environ or not environ.get("SSH_CONNECTION")
