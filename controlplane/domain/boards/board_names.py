"""Names of boards, and references to them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.names import check_dataset, check_user

_BOARD: Final = re.compile(r"(?=.{1,64}\Z)[a-z0-9][a-z0-9_-]*(?:\.[a-z0-9_-]+)*")
_RULE: Final = (
    "1 to 64 of a-z 0-9 _ -, with single dots between them, beginning with a letter or a digit"
)


class BoardReference(NamedTuple):
    """A board by name; `owner` "": the caller's own, else the only visible one of that name."""

    owner: str
    name: str


def check_board(name: str) -> str:
    """Check and return the name of a new board."""
    if not _BOARD.fullmatch(name):
        raise InvalidRequest(f"{name[:80]!r} is not a name of a board", why=_RULE)
    return name


def parse_board(text: str) -> BoardReference:
    """Parse NAME or OWNER/NAME. A dataset's board has the dataset's name."""
    owner, slash, name = text.rpartition("/")
    try:
        return BoardReference(check_user(owner) if slash else "", check_dataset(name))
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{text[:80]!r} does not name a board", why=error.why, attempt="NAME or OWNER/NAME"
        ) from error
