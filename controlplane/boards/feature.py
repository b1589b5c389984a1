"""Boards: of sessions by a metric, and of submissions to datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.boards.board_views import BoardViews, SessionBoardViews, SubmissionBoardViews
from controlplane.boards.boards import Boards
from controlplane.boards.service import BoardServicer, add_board_service
from controlplane.boards.session_boards import SessionBoards
from controlplane.boards.submission_boards import SubmissionBoards
from controlplane.boards.watching import BoardFeeds
from controlplane.content.feature import content
from controlplane.core.feature import Feature
from controlplane.datasets.feature import datasets
from controlplane.sessions.feature import presenter
from controlplane.submissions.feature import scoreboards, step_waits, submissions
from controlplane.usage.feature import usages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute

    from controlplane.boards.board_views import AnyRanking
    from controlplane.core.core import Core


def boards(core: Core) -> Boards:
    """Finds and changes boards."""
    return Boards(
        history=core.history,
        lookup=core.shared(datasets).lookup,
        content=core.shared(content),
        clock=core.clock,
    )


def board_views(core: Core) -> BoardViews:
    """Boards as their viewers see them."""
    sessions = SessionBoards(
        state=core.state,
        history=core.history,
        presenter=core.shared(presenter),
        usages=core.shared(usages),
        clock=core.clock,
        run=core.offload,
    )
    return BoardViews(
        SessionBoardViews(sessions, core.clock),
        SubmissionBoardViews(
            SubmissionBoards(core.shared(scoreboards), core.shared(step_waits)), core.clock
        ),
        core.history,
    )


def wire(core: Core) -> Feature:
    """Offer BoardService, and pictures of boards below /boards/."""
    found, views = core.shared(boards), core.shared(board_views)
    feeds: BoardFeeds[AnyRanking] = BoardFeeds(
        history=core.history, find=lambda key: found.get(*key), rank=views.ranking, clock=core.clock
    )
    servicer = BoardServicer(found, views, feeds, core.shared(submissions), core.reading)
    return Feature(
        services=((add_board_service, servicer),),
        routes=lambda: _routes(core),
    )


def _routes(core: Core) -> Sequence[BaseRoute]:
    from controlplane.boards.pictures import picture_routes  # noqa: PLC0415 - see Feature.routes
    from controlplane.gateway.callers import Callers  # noqa: PLC0415

    callers = Callers(core.identities, core.limiter)
    return picture_routes(core.shared(boards), core.shared(board_views), callers, core.clock)
