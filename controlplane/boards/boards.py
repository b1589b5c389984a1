"""Finds, makes, changes and removes boards: of sessions, and of datasets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from controlplane.boards.session_boards import checked_filter
from controlplane.core.paging import page_size
from controlplane.datasets.references import DatasetReference
from controlplane.domain.boards.board_names import check_board, parse_board
from controlplane.domain.boards.settings import check_settings
from controlplane.domain.boards.values import (
    DEFAULT_SETTINGS,
    BoardKind,
    BoardSettings,
)
from controlplane.domain.errors import (
    AlreadyExists,
    Denied,
    InvalidRequest,
    LimitReached,
    NotFound,
    NsmlError,
    StateConflict,
)
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.policy import ALLOW, CHANGE, SEE, check_visibility, may
from controlplane.domain.values import PartAccess, Visibility
from controlplane.history.board_values import BoardRow
from controlplane.history.sql.board_lists import BoardKey
from controlplane.state.lru import LruDict
from nsml.common.shell import shell_line
from nsml.spec.competition_datasets import EVALUATION, TEST, TEST_SUBMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from controlplane.content.content import Content
    from controlplane.datasets.lookup import DatasetLookup
    from controlplane.domain.boards.values import PublicScore
    from controlplane.history.sql.history import History
    from controlplane.history.values import DatasetListing
    from nsml.common.clock import Clock

MOST_BOARDS: Final = 100
"""Boards of sessions of a user."""
_TEST_FOLDERS: Final = frozenset({TEST, TEST_SUBMIT})
_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A board, as its owner made it or with the default settings.

    Attributes:
        team, visibility: of a dataset's board those of the dataset.
    """

    kind: BoardKind
    owner: str
    name: str
    settings: BoardSettings
    created_at: float
    team: str = ""
    visibility: Visibility

    @property
    def full_name(self) -> str:
        """OWNER/NAME."""
        return f"{self.owner}/{self.name}"


class Boards:
    """The boards of the platform."""

    def __init__(
        self, *, history: History, lookup: DatasetLookup, content: Content, clock: Clock
    ) -> None:
        self._history = history
        self._lookup = lookup
        self._content = content
        self._clock = clock
        self._evaluations: LruDict[str, bool] = LruDict(_KEPT)

    async def find(self, caller: UserCaller, text: str) -> Board:
        """Find a board by NAME or OWNER/NAME: one of sessions, else the one of the dataset of that name.

        Raises:
            NotFound: there is none, or the caller does not see it.
            InvalidRequest: several users have one of this name.
        """
        owner, name = parse_board(text)
        found = await self._named(caller, owner, name)
        if found is None:
            raise NotFound(f"there is no board {text}", attempt=_lists(text))
        return found

    async def _named(self, caller: UserCaller, owner: str, name: str) -> Board | None:
        mine = caller.user.name
        for whose in [owner] if owner else [mine]:
            found = await self.get(whose, name, BoardKind.METRIC)
            found = found or await self.get(whose, name, BoardKind.DATASET)
            if found is not None:
                return found if may(caller, SEE, found) is ALLOW else None
        if owner:
            return None
        rows = await self._history.boards.named(name)
        seen = [
            one
            for one in map(_of_row, rows)
            if one.kind is BoardKind.METRIC and may(caller, SEE, one) is ALLOW
        ]
        if len(seen) > 1:
            raise _ambiguous(name, [one.owner for one in seen])
        if seen:
            return seen[0]
        return await self._of_visible_dataset(caller, name)

    async def _of_visible_dataset(self, caller: UserCaller, name: str) -> Board | None:
        try:
            listing = await self._lookup.find(caller, DatasetReference(name=name))
        except NotFound:
            return None
        return await self._of_listing(listing)

    async def get(self, owner: str, name: str, kind: BoardKind) -> Board | None:
        """Return a board by its whole name, whoever sees it."""
        if kind is BoardKind.METRIC:
            row = await self._history.boards.get(owner, name, kind)
            return None if row is None else _of_row(row)
        listing = await self._history.catalogue.dataset(owner, name)
        return None if listing is None else await self._of_listing(listing)

    async def _of_listing(self, listing: DatasetListing) -> Board | None:
        """Return the board of a dataset; None: it has none."""
        owner, name = listing.dataset.owner, listing.dataset.name
        row = await self._history.boards.get(owner, name, BoardKind.DATASET)
        if (
            row is None
            and not await self._is_evaluated(listing)
            and not await self._history.submissions.has_any(owner, name)
        ):
            return None
        return _of_dataset(listing, row)

    async def _is_evaluated(self, listing: DatasetListing) -> bool:
        """Whether the version has an evaluation, and hidden labels."""
        parts = listing.parts
        if parts is None or not any(
            access is not PartAccess.OPEN and root.path not in _TEST_FOLDERS and root.file_count
            for root, access in parts.parts()
        ):
            return False
        digest = listing.whole_digest
        if digest not in self._evaluations:
            owner = UserCaller(user=User(name=listing.dataset.owner))
            try:
                listed = await self._content.listing(owner, digest, is_with_sizes=True)
            except NsmlError:
                return False
            self._evaluations.keep(digest, EVALUATION in (listed.sizes or {}))
        return bool(self._evaluations.get(digest))

    async def page(self, caller: UserCaller, *, size: int, cursor: str) -> tuple[list[Board], str]:
        """Return boards that the caller sees, by owner and name, and the cursor of the next page.

        Raises:
            InvalidRequest: the cursor is invalid.
        """
        after, most = _key_in(cursor) if cursor else BoardKey(), page_size(size)
        found: list[Board] = []
        while True:
            listed = await self._history.board_lists.page(caller.user, after=after, limit=most + 1)
            for one in listed:
                if one.dataset is not None and not await self._is_evaluated(one.dataset):
                    continue
                if len(found) == most:
                    return found, cursor_behind(found[-1])
                found.append(_of_row(one.row, one.visibility))
            if len(listed) <= most:
                return found, ""
            after = listed[-1].key

    async def changeable(self, caller: UserCaller, text: str) -> Board:
        """Find a board that the caller may change; raises as `find`, and Denied."""
        board = await self.find(caller, text)
        if may(caller, CHANGE, board) is not ALLOW:
            raise Denied(
                f"board {board.full_name} is {board.owner}'s",
                why="only its owner and administrators change it",
            )
        return board

    async def create(
        self, caller: UserCaller, name: str, change: Callable[[BoardSettings], BoardSettings]
    ) -> Board:
        """Make a board of sessions.

        Raises:
            InvalidRequest: the name or a setting.
            AlreadyExists: the caller has a board or a dataset of this name.
            LimitReached: the caller has MOST_BOARDS.
        """
        check_board(name)
        user = caller.user
        settings = change(DEFAULT_SETTINGS[BoardKind.METRIC])
        check_settings(settings, BoardKind.METRIC)
        check_visibility(settings.visibility, user.team)
        checked_filter(settings.filter, user.name)
        if await self._history.catalogue.dataset(user.name, name) is not None:
            raise AlreadyExists(
                f"you have a dataset {name}",
                why="a dataset has a board of its own, under the same name",
                attempt="another name",
            )
        row = BoardRow(
            owner=user.name,
            name=name,
            kind=BoardKind.METRIC,
            settings=settings,
            created_at=self._clock.time(),
            team=user.team,
        )
        made = await self._history.boards.create(row, most=MOST_BOARDS)
        if made.is_full:
            raise LimitReached(
                f"you have {MOST_BOARDS} boards, which is the most", attempt="nsml board rm NAME"
            )
        if not made.is_made:
            raise AlreadyExists(
                f"you have a board {name}", attempt=f"nsml board set {name} ...    to change it"
            )
        return _of_row(row)

    async def update(
        self,
        caller: UserCaller,
        text: str,
        change: Callable[[BoardSettings, BoardKind], BoardSettings],
    ) -> Board:
        """Change settings.

        Raises as `changeable`, InvalidRequest for a setting, and StateConflict if it would show more of scores than an
        open competition with its dataset.
        """
        board = await self.changeable(caller, text)
        key = board.owner, board.name, board.kind
        is_own = board.owner == caller.user.name

        def changed(row: BoardRow) -> BoardRow:
            settings = check_settings(change(row.settings, row.kind), row.kind)
            if row.kind is BoardKind.DATASET:
                return replace(row, settings=settings)
            team = caller.user.team if is_own else row.team
            if settings.visibility != row.visibility:
                check_visibility(settings.visibility, team)
                row = replace(row, team=team)
            checked_filter(settings.filter, row.owner)
            return replace(row, settings=settings)

        default = None
        if board.kind is BoardKind.DATASET:
            default = BoardRow(
                owner=board.owner,
                name=board.name,
                kind=board.kind,
                settings=board.settings,
                created_at=board.created_at,
            )
        row = await self._history.boards.update(key, changed, default=default, check=_check_shown)
        if row is None:
            raise NotFound(f"there is no board {text}", attempt="nsml board ls")
        if board.kind is BoardKind.DATASET:
            return replace(board, settings=row.settings)
        return _of_row(row)

    async def remove(self, caller: UserCaller, text: str) -> Board:
        """Remove a board of sessions; raises as `changeable`, and StateConflict for one of a dataset."""
        board = await self.changeable(caller, text)
        if board.kind is BoardKind.DATASET:
            raise StateConflict(
                f"{board.full_name} is the board of a dataset",
                why="it goes with its dataset",
                attempt=f"nsml board set {board.full_name} --close    to take no submissions",
            )
        if not await self._history.boards.remove(board.owner, board.name):
            raise NotFound(f"there is no board {text}", attempt="nsml board ls")
        return board


def _check_shown(before: BoardRow, after: BoardRow, shown: PublicScore, competition: str) -> None:
    """Raise StateConflict for a board that would show more of scores than before, and than an open competition."""
    if after.settings.public_score < min(before.settings.public_score, shown):
        raise StateConflict(
            f"the board cannot show more of scores than the open competition {competition}",
            why=f"its phases show {shown.name.lower().replace('_', '-')} alone",
        )


def _lists(text: str) -> str:
    """Return what to type for a name without a board: competitions have standings, and no board of their name."""
    standings = shell_line(["nsml", "competition", "standings", text])
    return f"nsml board ls\n{standings}    if it is a competition"


def _ambiguous(name: str, owners: Iterable[str]) -> InvalidRequest:
    full = [f"{owner}/{name}" for owner in sorted(owners)]
    return InvalidRequest(
        f"several users have a board {name}",
        why=", ".join(full[:5]),
        attempt=f"nsml board show {full[0]}",
    )


def cursor_behind(board: Board) -> str:
    """Return the cursor of the page behind a board."""
    return f"{board.owner}/{board.name} {int(board.kind)}"


def _key_in(cursor: str) -> BoardKey:
    """Return the key of the last board of the page before. Raises InvalidRequest."""
    text, _, kind = cursor.rpartition(" ")
    try:
        return BoardKey(*parse_board(text), int(BoardKind(int(kind))))
    except (InvalidRequest, ValueError):
        raise InvalidRequest("the cursor is not one of this platform's") from None


def _of_row(row: BoardRow, visibility: Visibility | None = None) -> Board:
    """Return the board of a row; `visibility`: of a dataset's board that of the dataset."""
    return Board(
        kind=row.kind,
        owner=row.owner,
        name=row.name,
        settings=row.settings,
        created_at=row.created_at,
        team=row.team,
        visibility=row.visibility if visibility is None else visibility,
    )


def _of_dataset(listing: DatasetListing, row: BoardRow | None) -> Board:
    found = listing.dataset
    return Board(
        kind=BoardKind.DATASET,
        owner=found.owner,
        name=found.name,
        settings=DEFAULT_SETTINGS[BoardKind.DATASET] if row is None else row.settings,
        created_at=found.created_at,
        team=found.team,
        visibility=found.visibility,
    )
