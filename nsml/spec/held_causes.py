"""Texts for each cause of a held session, the same in every program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class HeldWords(NamedTuple):
    """The texts for one cause."""

    short: str
    """After its state: `Held (start failures)`."""
    why: str
    """After `it is held: `."""
    advice: tuple[str, ...]
    """Possible actions, a line each; `{name}` is the session's name."""


_END: Final = "nsml stop {name}       to end it"
_RELEASE: Final = "nsml requeue {name}    to try again once the cause is fixed"

HELD_WORDS: Final[Mapping[str, HeldWords]] = {
    "START_FAILURES": HeldWords(
        short="start failures",
        why="too many bad attempts in a row; the last could not start",
        advice=(_RELEASE, _END),
    ),
    "NODE_LOSSES": HeldWords(
        short="node losses",
        why="too many bad attempts in a row; the last lost its node soon after the start",
        advice=(_RELEASE, _END),
    ),
    "AFTER": HeldWords(
        short="after others",
        why="it starts after other sessions, and one of them has not ended",
        advice=("nsml requeue {name}    to queue it without waiting for them", _END),
    ),
}
"""By the contract's name of the cause, without HELD_CAUSE_."""

_UNKNOWN: Final = HeldWords(
    short="reason unknown", why="this version does not know why", advice=(_END,)
)


def held_words(cause: str) -> HeldWords:
    """Return the texts of a cause, also of one added by a newer control plane."""
    return HELD_WORDS.get(cause, _UNKNOWN)
