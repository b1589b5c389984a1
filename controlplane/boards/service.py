"""BoardService: unpack, call, convert."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc

from controlplane.access.current import note_target, require_user
from controlplane.boards.board_views import Wanted
from controlplane.boards.boards import cursor_behind
from controlplane.boards.convert import to_settings
from controlplane.domain.boards.values import BoardKind
from controlplane.domain.errors import NotFound, StateConflict
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.wire.chunking import parts_of
from controlplane.wire.errors import Context, answering, streaming
from nsml.v1 import boards_pb2 as pb
from nsml.v1 import boards_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from controlplane.boards.board_views import AnyRanking, BoardViews
    from controlplane.boards.boards import Board, Boards
    from controlplane.boards.watching import BoardFeeds
    from controlplane.domain.identity import UserCaller
    from controlplane.limits.concurrency_limits import Turns
    from controlplane.submissions.submissions import Submissions

_SERVICE: Final = "nsml.v1.BoardService"


class BoardServicer(boards_pb2_grpc.BoardServiceServicer):
    """Users' calls on boards."""

    def __init__(
        self,
        boards: Boards,
        views: BoardViews,
        feeds: BoardFeeds[AnyRanking],
        submissions: Submissions,
        reading: Turns,
    ) -> None:
        self._submissions = submissions
        self._boards = boards
        self._views = views
        self._feeds = feeds
        self._reading = reading

    @answering
    async def CreateBoard(  # noqa: N802 - named by the contract, as all below
        self, request: pb.CreateBoardRequest, _: Context
    ) -> pb.CreateBoardResponse:
        """Make a board of sessions."""
        who = require_user()
        board = await self._boards.create(
            who,
            request.name,
            lambda known: to_settings(request.settings, known, BoardKind.METRIC),
        )
        return pb.CreateBoardResponse(board=await self._message(who, board))

    @answering
    async def UpdateBoard(  # noqa: N802
        self, request: pb.UpdateBoardRequest, _: Context
    ) -> pb.UpdateBoardResponse:
        """Change settings."""
        who = require_user()
        board = await self._boards.update(
            who,
            request.board,
            lambda known, kind: to_settings(request.settings, known, kind),
        )
        note_target(board.full_name)
        return pb.UpdateBoardResponse(board=await self._message(who, board))

    @answering
    async def DeleteBoard(  # noqa: N802
        self, request: pb.DeleteBoardRequest, _: Context
    ) -> pb.DeleteBoardResponse:
        """Remove a board of sessions."""
        board = await self._boards.remove(require_user(), request.board)
        note_target(board.full_name)
        return pb.DeleteBoardResponse()

    @answering
    async def GetBoard(  # noqa: N802
        self, request: pb.GetBoardRequest, _: Context
    ) -> pb.GetBoardResponse:
        """Return one board."""
        who = require_user()
        board = await self._boards.find(who, request.board)
        return pb.GetBoardResponse(board=await self._message(who, board))

    @answering
    async def ListBoards(  # noqa: N802
        self, request: pb.ListBoardsRequest, _: Context
    ) -> pb.ListBoardsResponse:
        """Return a page of the boards that the caller sees."""
        who = require_user()
        async with self._reading.turn(who.user.name):
            page, cursor = await self._boards.page(
                who, size=request.page_size, cursor=request.cursor
            )
            boards = next(parts_of(await self._views.listed(who, page)))
        if len(boards) < len(page):
            cursor = cursor_behind(page[len(boards) - 1])
        return pb.ListBoardsResponse(boards=boards, next_cursor=cursor)

    @answering
    async def ListEntries(  # noqa: N802
        self, request: pb.ListEntriesRequest, _: Context
    ) -> pb.ListEntriesResponse:
        """Return the entries of a board."""
        who = require_user()
        async with self._reading.turn(who.user.name):
            board = await self._boards.find(who, request.board)
            answer = await self._views.answer(
                who,
                board,
                Wanted(
                    best_per=request.best_per,
                    own_only=request.own_only,
                    limit=request.limit,
                    evaluation=request.evaluation,
                    by_private=request.by_private,
                ),
            )
        return answer.read()

    @streaming
    async def WatchBoard(  # noqa: N802
        self, request: pb.WatchBoardRequest, _: Context
    ) -> AsyncGenerator[bytes, None]:
        """Stream the entries of a board, as encoded responses: all, or changes."""
        who = require_user()
        board = await self._boards.find(who, request.board)
        wanted = Wanted(best_per=request.best_per, own_only=request.own_only, limit=request.limit)
        # At once, and with the errors of ListEntries.
        async with self._reading.turn(who.user.name):
            answer = await self._views.answer(who, board, wanted)
        yield answer.encoded
        sent = answer
        async with aclosing(self._feeds.follow((board.owner, board.name, board.kind))) as changes:
            async for now, ranking in changes:
                if now is None or ranking is None or may(who, SEE, now) is not ALLOW:
                    raise NotFound(f"there is no board {request.board}", attempt="nsml board ls")
                answer = await self._views.answer_of(who, now, ranking, wanted)
                if not answer.is_same(sent):
                    before, sent = sent, answer
                    yield answer.after(before) if request.changes else answer.encoded

    @answering
    async def ReevaluateBoard(  # noqa: N802
        self, request: pb.ReevaluateBoardRequest, _: Context
    ) -> pb.ReevaluateBoardResponse:
        """Evaluate the predictions of a dataset's board again."""
        who = require_user()
        board = await self._boards.changeable(who, request.board)
        note_target(board.full_name)
        if board.kind is BoardKind.METRIC:
            raise StateConflict(
                f"{board.full_name} is a board of sessions",
                why="it ranks what they report, and has no evaluation",
            )
        await self._submissions.reevaluate(board.owner, board.name)
        return pb.ReevaluateBoardResponse(board=await self._message(who, board))

    async def _message(self, who: UserCaller, board: Board) -> pb.Board:
        async with self._reading.turn(who.user.name):
            return (await self._views.answer(who, board, Wanted(limit=1))).read().board


class _Handlers:
    """Stands in for a server: collects the handlers that the generated function adds."""

    def add_generic_rpc_handlers(self, _: object) -> None:
        """Ignore: the same handlers in another form."""

    def add_registered_method_handlers(self, _: str, handlers: dict[str, Any]) -> None:
        """Keep the handlers by method name."""
        self.by_method = handlers


def add_board_service(servicer: BoardServicer, server: Any) -> None:
    """Register as the generated function does, but take watched boards as they are encoded.

    Most of an answer is the same for all who watch, and is encoded once.
    """
    generated = _Handlers()
    boards_pb2_grpc.add_BoardServiceServicer_to_server(servicer, generated)  # type: ignore[no-untyped-call]
    handlers = {
        **generated.by_method,
        "WatchBoard": grpc.unary_stream_rpc_method_handler(
            servicer.WatchBoard, pb.WatchBoardRequest.FromString, bytes
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    server.add_registered_method_handlers(_SERVICE, handlers)
