"""Boards and submissions of the contract server. Nothing is ranked or evaluated: tests say what happens."""

from __future__ import annotations

import grpc

from nsml.spec.board_changes import EncodedEntries, EncodedEntry, encoded_change
from nsml.v1 import boards_pb2 as pb
from nsml.v1 import boards_pb2_grpc, resources_pb2
from tests.unit.nsml.client.contract_pages import page_of

EPOCH = 1_700_000_000
OVER = {pb.SUBMISSION_STATE_SCORED, pb.SUBMISSION_STATE_FAILED}


class Boards(boards_pb2_grpc.BoardServiceServicer):
    """`state.boards` by OWNER/NAME, `state.entries` of each; `refuse` aborts a call.

    Watches add their requests and answers to `state.watch_requests` and `state.watched`; `state.bad_changes` are sent next in
    place of true ones.
    """

    def __init__(self, state, refuse):
        self.state = state
        self.refuse = refuse

    def find(self, name, context):
        known = self.state.boards
        if name in known:
            return known[name]
        if f"kim/{name}" in known:
            return known[f"kim/{name}"]
        return self.refuse(context, grpc.StatusCode.NOT_FOUND, f"no board {name}", "NOT_FOUND")

    def own(self, name, context):
        board = self.find(name, context)
        if not board.may_change:
            why = f"{board.owner}/{board.name} is not yours"
            self.refuse(context, grpc.StatusCode.PERMISSION_DENIED, why, "DENIED")
        return board

    def CreateBoard(self, request, context):
        name = f"kim/{request.name}"
        if name in self.state.boards:
            why = f"there is a board {request.name}"
            self.refuse(context, grpc.StatusCode.ALREADY_EXISTS, why, "ALREADY_EXISTS")
        settings = request.settings
        settings.direction = settings.direction or pb.SCORE_DIRECTION_MAX
        settings.best_per = settings.best_per or pb.BEST_PER_USER
        settings.value = settings.value or pb.METRIC_VALUE_BEST
        settings.visibility = settings.visibility or resources_pb2.VISIBILITY_PRIVATE
        board = self.state.add_board(name, settings=settings)
        return pb.CreateBoardResponse(board=board)

    def UpdateBoard(self, request, context):
        board = self.own(request.board, context)
        for field, _ in request.settings.ListFields():  # limits are replaced, not merged
            board.settings.ClearField(field.name)
        board.settings.MergeFrom(request.settings)
        return pb.UpdateBoardResponse(board=board)

    def DeleteBoard(self, request, context):
        board = self.own(request.board, context)
        if board.kind == pb.BOARD_KIND_DATASET:
            why = f"{request.board} is the board of a dataset"
            self.refuse(context, grpc.StatusCode.FAILED_PRECONDITION, why, "WRONG_STATE")
        del self.state.boards[f"{board.owner}/{board.name}"]
        return pb.DeleteBoardResponse()

    def GetBoard(self, request, context):
        return pb.GetBoardResponse(board=self.find(request.board, context))

    def ListBoards(self, request, context):
        found = [self.state.boards[name] for name in sorted(self.state.boards)]
        page, cursor = page_of(found, request)
        return pb.ListBoardsResponse(boards=page, next_cursor=cursor)

    def entries(self, request, board):
        found = self.state.entries.get(f"{board.owner}/{board.name}", [])
        found = [one for one in found if one.is_own or not request.own_only]
        return found[: request.limit or 1000]

    def ListEntries(self, request, context):
        board = self.find(request.board, context)
        self.state.entry_requests.append(request)
        return pb.ListEntriesResponse(board=board, entries=self.entries(request, board))

    def WatchBoard(self, request, context):
        state, sent = self.state, None
        self.state.watch_requests.append(request)
        while context.is_active():
            board = self.find(request.board, context)
            with state.changed:
                now = EncodedEntries(map(EncodedEntry.of, self.entries(request, board)))
                if sent is not None and now.is_same(sent):
                    state.changed.wait(0.05)
                    continue
            change = None
            if sent is not None and request.changes:
                change = encoded_change(sent, now)
                if state.bad_changes:
                    change = state.bad_changes.pop(0).SerializeToString()
            sent = now
            answer = pb.WatchBoardResponse.FromString(
                b"".join([one.encoded for one in now.entries]) if change is None else change
            )
            answer.board.CopyFrom(board)
            self.state.watched.append(answer)
            yield answer

    def ReevaluateBoard(self, request, context):
        board = self.own(request.board, context)
        if board.kind != pb.BOARD_KIND_DATASET:
            why = f"{request.board} is a board of sessions"
            self.refuse(context, grpc.StatusCode.FAILED_PRECONDITION, why, "WRONG_STATE")
        board.to_reevaluate = board.entry_count
        return pb.ReevaluateBoardResponse(board=board)


class Submissions(boards_pb2_grpc.SubmissionServiceServicer):
    """`state.submissions` by id. Each look of a watch takes the next of `state.submission_course`, merged into it."""

    def __init__(self, state, refuse):
        self.state = state
        self.refuse = refuse

    def find(self, submission_id, context):
        known = self.state.submissions.get(submission_id)
        if known is None:
            why = f"no submission {submission_id}"
            self.refuse(context, grpc.StatusCode.NOT_FOUND, why, "NOT_FOUND")
        return known

    def CreateSubmission(self, request, context):
        state = self.state
        if request.request_id in state.submission_requests:
            known = state.submission_requests[request.request_id]
            return pb.CreateSubmissionResponse(submission=state.submissions[known])
        if state.submission_limit_at and not request.is_test:
            self.refuse(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "3 submissions in 1d are permitted, and you made 3",
                "LIMIT_REACHED",
                next_at=state.submission_limit_at,
                **{"try": f"again at {state.submission_limit_at}"},
            )
        session = state.find(request.session, context)
        every = [one.name for one in state.checkpoints.get(session.id, [])]
        if not every or (request.checkpoint and request.checkpoint not in every):
            why = f"{session.name} has no checkpoint {request.checkpoint}".rstrip()
            self.refuse(context, grpc.StatusCode.NOT_FOUND, why, "NOT_FOUND")
        made = state.add_submission(
            session,
            request.checkpoint or every[-1],
            is_test=request.is_test,
        )
        state.submission_requests[request.request_id] = made.id
        state.batches.append(request.batch)
        failure = state.fail_next.pop("CreateSubmission", None)
        if failure:
            context.abort(failure, "lost after it was done")
        return pb.CreateSubmissionResponse(submission=made)

    def GetSubmission(self, request, context):
        return pb.GetSubmissionResponse(submission=self.find(request.id, context))

    def ListSubmissions(self, request, context):
        found = list(reversed(self.state.submissions.values()))
        start, size = int(request.cursor or 0), min(request.page_size or 100, 2)
        more = str(start + size) if start + size < len(found) else ""
        return pb.ListSubmissionsResponse(submissions=found[start : start + size], next_cursor=more)

    def WatchSubmission(self, request, context):
        state = self.state
        told = None
        while context.is_active():
            known = self.find(request.id, context)
            with state.changed:
                now = known.SerializeToString()
                if now == told and not state.submission_course:
                    state.changed.wait(0.05)
                    continue
            if now != told:
                told = now
                yield pb.WatchSubmissionResponse(submission=pb.Submission.FromString(now))
                if known.state in OVER:
                    return
                if state.breaks_watch:
                    state.breaks_watch -= 1
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
            with state.changed:
                if state.submission_course:
                    course = state.submission_course.pop(0)
                    if course.steps:
                        del known.steps[:]
                    known.MergeFrom(course)


class WithBoards:
    """The boards and submissions of a State."""

    def __init__(self):
        self.boards: dict[str, pb.Board] = {}
        self.entries: dict[str, list[pb.BoardEntry]] = {}
        self.entry_requests: list[pb.ListEntriesRequest] = []
        self.watch_requests: list[pb.WatchBoardRequest] = []
        self.watched: list[pb.WatchBoardResponse] = []
        self.bad_changes: list[pb.WatchBoardResponse] = []
        self.submissions: dict[str, pb.Submission] = {}
        self.submission_requests: dict[str, str] = {}
        self.submission_course: list[pb.Submission] = []
        self.submission_limit_at = ""
        self.batches: list[int] = []
        self.breaks_watch = 0

    def add_board(self, name, *, kind=pb.BOARD_KIND_METRIC, settings=None, **fields):
        owner, _, alone = name.partition("/")
        board = pb.Board(
            kind=kind,
            owner=owner,
            name=alone,
            settings=settings,
            may_change=fields.pop("may_change", owner == "kim"),
            **fields,
        )
        board.created_at.seconds = EPOCH
        self.boards[name] = board
        return board

    def add_entry(self, board, owner, score=None, **fields):
        entries = self.entries.setdefault(board, [])
        entry = pb.BoardEntry(
            rank=fields.pop("rank", len(entries) + 1 if score is not None else 0),
            owner=owner,
            score=score,
            is_own=owner == "kim",
            **fields,
        )
        entry.submitted_at.seconds = EPOCH + len(entries)
        with self.changed:
            entries.append(entry)
            if board in self.boards:
                self.boards[board].entry_count = len(entries)
            self.changed.notify_all()
        return entry

    def add_submission(self, session, checkpoint="best", **fields):
        number = len(self.submissions) + 1
        made = pb.Submission(
            id=f"sub{number}",
            dataset="lee/digits",
            dataset_version=1,
            owner="kim",
            session=session.name,
            session_id=session.id,
            checkpoint=checkpoint,
            state=fields.pop("state", pb.SUBMISSION_STATE_QUEUED),
            **fields,
        )
        made.submitted_at.seconds = EPOCH + 86_000
        self.submissions[made.id] = made
        return made
