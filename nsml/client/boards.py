"""Watches of boards and submissions, and which entries are requested; the calls are in `board_calls`."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from nsml.client.board_calls import WHOLE, Selection
from nsml.client.errors import Unavailable
from nsml.spec.board_changes import InvalidChange, apply_change
from nsml.v1 import boards_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from nsml.client.calls import Client
    from nsml.client.streams import OnLink

__all__ = ["OVER", "WHOLE", "Selection", "WatchedBoard", "watch_board", "watch_submission"]

OVER = frozenset({pb.SUBMISSION_STATE_SCORED, pb.SUBMISSION_STATE_FAILED})
"""States of a submission that never change."""


class WatchedBoard(NamedTuple):
    """A board and its entries, best first. The answers of one watch share entries: they are not to be changed."""

    board: pb.Board
    entries: Sequence[pb.BoardEntry]


async def watch_board(
    client: Client,
    board: str,
    selection: Selection = WHOLE,
    *,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[WatchedBoard, None]:
    """Yield a board with all its entries, now and after each change, until closed; see `nsml.client.streams`.

    Only changes are transferred. If one does not fit the entries before it, the watch is started again without changes.
    """
    from nsml.client.streams import watch_changes

    request = pb.WatchBoardRequest(
        board=board,
        best_per=selection.best_per,
        own_only=selection.own_only,
        limit=selection.limit,
        changes=True,
    )

    def whole(before: WatchedBoard | None, answer: pb.WatchBoardResponse) -> WatchedBoard:
        if not answer.HasField("change"):
            return WatchedBoard(answer.board, list(answer.entries))
        try:
            known = before.entries if before is not None else ()
            return WatchedBoard(answer.board, apply_change(known, answer))
        except InvalidChange as error:
            request.changes = False
            raise Unavailable(
                f"the control plane sent an invalid change of {board}: {error}"
            ) from error

    watching = watch_changes(
        client,
        "BoardService/WatchBoard",
        request,
        pb.WatchBoardResponse,
        whole=whole,
        patience_s=patience_s,
        on_link=on_link,
    )
    async with aclosing(watching):
        async for answer in watching:
            yield answer


async def watch_submission(
    client: Client,
    submission_id: str,
    *,
    patience_s: float | None = None,
    on_link: OnLink | None = None,
) -> AsyncGenerator[pb.Submission, None]:
    """Yield a submission, now and after each change, until it is over; see `nsml.client.streams`."""
    from nsml.client.streams import watch_again

    watching = watch_again(
        client,
        "SubmissionService/WatchSubmission",
        pb.WatchSubmissionRequest(id=submission_id),
        pb.WatchSubmissionResponse,
        patience_s=patience_s,
        on_link=on_link,
    )
    async with aclosing(watching):
        async for answer in watching:
            yield answer.submission
            if answer.submission.state in OVER:
                return
