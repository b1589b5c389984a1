"""SubmissionService."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.access.current import note_target, require_user
from controlplane.submissions.submissions import Asked
from controlplane.wire.errors import Context, answering, streaming
from nsml.v1 import boards_pb2 as pb
from nsml.v1 import boards_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from controlplane.history.sql.history import History
    from controlplane.limits.concurrency_limits import Turns
    from controlplane.submissions.submissions import Submissions
    from controlplane.submissions.views import SubmissionViews

LOOK_EVERY_S: Final = 2.0
"""Interval of looks by watchers, in seconds: why a step waits, what its evaluation printed and when the next one is
permitted change without a change of the submission."""


class SubmissionServicer(boards_pb2_grpc.SubmissionServiceServicer):
    """Implements nsml.v1.SubmissionService."""

    def __init__(
        self,
        submissions: Submissions,
        views: SubmissionViews,
        history: History,
        reading: Turns,
    ) -> None:
        self._submissions = submissions
        self._views = views
        self._history = history
        self._reading = reading

    @answering
    async def CreateSubmission(  # noqa: N802 - named by the contract, as all below
        self, request: pb.CreateSubmissionRequest, _: Context
    ) -> pb.CreateSubmissionResponse:
        """Take a submission."""
        who = require_user()
        asked = Asked(
            session=request.session,
            checkpoint=request.checkpoint,
            is_test=request.is_test,
            request_id=request.request_id,
            batch=request.batch,
        )
        row = await self._submissions.create(who, asked)
        note_target(row.session)
        entry = await self._submissions.find(who, row.id)
        return pb.CreateSubmissionResponse(submission=await self._views.one(who, entry))

    @answering
    async def GetSubmission(  # noqa: N802
        self, request: pb.GetSubmissionRequest, _: Context
    ) -> pb.GetSubmissionResponse:
        """Return one."""
        who = require_user()
        entry = await self._submissions.find(who, request.id)
        async with self._reading.turn(who.user.name):
            message = await self._views.one(who, entry)
        return pb.GetSubmissionResponse(submission=message)

    @answering
    async def ListSubmissions(  # noqa: N802
        self, request: pb.ListSubmissionsRequest, _: Context
    ) -> pb.ListSubmissionsResponse:
        """Return a page."""
        who = require_user()
        async with self._reading.turn(who.user.name):
            page, cursor = await self._submissions.page(
                who, request.board, size=request.page_size, cursor=request.cursor
            )
            messages = await self._views.many(who, page)
        return pb.ListSubmissionsResponse(submissions=messages, next_cursor=cursor)

    @streaming
    async def WatchSubmission(  # noqa: N802
        self, request: pb.WatchSubmissionRequest, _: Context
    ) -> AsyncGenerator[pb.WatchSubmissionResponse, None]:
        """Stream what GetSubmission returns, until it is over."""
        who = require_user()
        sent: pb.Submission | None = None
        submission_id = (await self._submissions.find(who, request.id)).row.id
        with self._history.streams.changed(submission_id) as change:
            while True:
                entry = await self._submissions.find(who, submission_id)
                async with self._reading.turn(who.user.name):
                    message = await self._views.one(who, entry)
                if message != sent:
                    yield pb.WatchSubmissionResponse(submission=message)
                    sent = message
                if entry.row.state.is_over:
                    return
                await change.wait_for(LOOK_EVERY_S)
