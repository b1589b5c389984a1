"""BoardService and SubmissionService: boards, their entries, and submissions.

Responses are the contract's own messages. Every method raises `nsml.client.errors.ClientError`. `board` is NAME or
OWNER/NAME; a session any form of a reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsml.client.errors import Unavailable
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nsml.client.rpc import Rpc
    from nsml.common.clock import Clock

_PAGE = 500
_CREATE_RETRIES_S = (0.2, 0.5, 1.0)


class Selection(NamedTuple):
    """Which entries of a board are requested."""

    best_per: pb.BestPer = pb.BEST_PER_UNSPECIFIED
    """Unspecified: the board's own setting."""
    own_only: bool = False
    limit: int = 0
    """0: as many as one response has."""
    evaluation: int = 0
    """Version of the scores; 0: the shown one. Not for a watch."""
    by_private: bool = False
    """Ranked by scores on private rows: the board's owner. Not for a watch."""


WHOLE = Selection()


class Boards:
    """BoardService."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def create(self, name: str, settings: pb.BoardSettings) -> pb.Board:
        """Create a board of sessions."""
        request = pb.CreateBoardRequest(name=name, settings=settings)
        answer = await self._rpc.unary("BoardService/CreateBoard", request, pb.CreateBoardResponse)
        return answer.board

    async def update(self, board: str, settings: pb.BoardSettings) -> pb.Board:
        """Change settings; unset ones stay. A repetition changes nothing more, so it is retried."""
        request = pb.UpdateBoardRequest(board=board, settings=settings)
        answer = await self._rpc.unary(
            "BoardService/UpdateBoard", request, pb.UpdateBoardResponse, is_retried=True
        )
        return answer.board

    async def remove(self, board: str) -> None:
        """Remove a board of sessions; StateConflict: that of a dataset."""
        request = pb.DeleteBoardRequest(board=board)
        await self._rpc.unary("BoardService/DeleteBoard", request, pb.DeleteBoardResponse)

    async def get(self, board: str) -> pb.Board:
        """Return one board."""
        request = pb.GetBoardRequest(board=board)
        return (await self._rpc.unary("BoardService/GetBoard", request, pb.GetBoardResponse)).board

    async def every(self) -> list[pb.Board]:
        """Return the visible boards by owner and name."""
        request = pb.ListBoardsRequest(page_size=_PAGE)
        found: list[pb.Board] = []
        while True:
            page = await self._rpc.unary("BoardService/ListBoards", request, pb.ListBoardsResponse)
            found += page.boards
            request.cursor = page.next_cursor
            if not request.cursor:
                return found

    async def entries(self, board: str, selection: Selection = WHOLE) -> pb.ListEntriesResponse:
        """Return a board with its entries, best first."""
        request = pb.ListEntriesRequest(board=board, **selection._asdict())
        return await self._rpc.unary("BoardService/ListEntries", request, pb.ListEntriesResponse)

    async def reevaluate(self, board: str) -> pb.Board:
        """Evaluate all kept predictions again; StateConflict: none are kept, or it is under way."""
        request = pb.ReevaluateBoardRequest(board=board)
        answer = await self._rpc.unary(
            "BoardService/ReevaluateBoard", request, pb.ReevaluateBoardResponse
        )
        return answer.board


class Submissions:
    """SubmissionService."""

    def __init__(self, rpc: Rpc, clock: Clock) -> None:
        self._rpc = rpc
        self._clock = clock

    async def create(
        self,
        session: str,
        checkpoint: str = "",
        *,
        request_id: str,
        is_test: bool = False,
        batch: int = 0,
    ) -> pb.Submission:
        """Submit a checkpoint, "": the newest. Retries if nobody answers: the request id makes that safe.

        Raises:
            LimitReached: too many in the window; with the instant of the next permitted one.
        """
        request = pb.CreateSubmissionRequest(
            session=session,
            checkpoint=checkpoint,
            is_test=is_test,
            request_id=request_id,
            batch=batch,
        )
        for delay_s in _CREATE_RETRIES_S:
            try:
                return await self._create(request)
            except Unavailable as error:
                if error.retry_after_s is not None:
                    raise  # the server answered with a time to retry, and was retried
                await self._clock.sleep(delay_s)
        return await self._create(request)

    async def _create(self, request: pb.CreateSubmissionRequest) -> pb.Submission:
        answer = await self._rpc.unary(
            "SubmissionService/CreateSubmission",
            request,
            pb.CreateSubmissionResponse,
            is_retried=True,
        )
        return answer.submission

    async def get(self, submission_id: str) -> pb.Submission:
        """Return one submission."""
        request = pb.GetSubmissionRequest(id=submission_id)
        answer = await self._rpc.unary(
            "SubmissionService/GetSubmission", request, pb.GetSubmissionResponse
        )
        return answer.submission

    async def every(
        self, board: str = "", *, limit: int | None = None
    ) -> AsyncGenerator[pb.Submission, None]:
        """Yield the caller's submissions, or all to a dataset of the caller, newest first."""
        request = pb.ListSubmissionsRequest(board=board)
        left = limit
        while left is None or left > 0:
            request.page_size = _PAGE if left is None else min(left, _PAGE)
            page = await self._rpc.unary(
                "SubmissionService/ListSubmissions", request, pb.ListSubmissionsResponse
            )
            for submission in page.submissions[:left]:
                yield submission
            request.cursor = page.next_cursor
            if not request.cursor:
                return
            left = None if left is None else left - len(page.submissions)
