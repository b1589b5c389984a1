"""A small platform that keeps the contract: real gRPC on loopback, everything in memory.

It places nothing: tests say what sessions do. Its servicers follow the comments of proto/nsml/v1.
"""

from __future__ import annotations

import fnmatch
import math
import re
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from cli.local.ports import Held
from controlplane.sessions.convert import shorten
from nsml.content.digests import digest_of
from nsml.content.tree_parts import part_of
from nsml.spec import agent_services
from nsml.spec.attempt_points import FirstSteps, place_of
from nsml.spec.frames import framed
from nsml.spec.ssh_keys import parse_public_key
from nsml.spec.submission_steps import is_step
from nsml.v1 import (
    accounts_pb2,
    accounts_pb2_grpc,
    artifacts_pb2,
    artifacts_pb2_grpc,
    audit_pb2,
    audit_pb2_grpc,
    backups_pb2,
    backups_pb2_grpc,
    boards_pb2_grpc,
    checkpoints_pb2,
    checkpoints_pb2_grpc,
    competitions_pb2_grpc,
    content_pb2,
    content_pb2_grpc,
    datasets_pb2,
    datasets_pb2_grpc,
    environments_pb2,
    environments_pb2_grpc,
    media_pb2,
    media_pb2_grpc,
    nodes_pb2,
    nodes_pb2_grpc,
    projects_pb2,
    projects_pb2_grpc,
    resources_pb2,
    secrets_pb2,
    secrets_pb2_grpc,
    session_backups_pb2,
    session_backups_pb2_grpc,
    sessions_pb2_grpc,
    ssh_keys_pb2,
    ssh_keys_pb2_grpc,
    telemetry_pb2,
    telemetry_pb2_grpc,
    views_pb2,
    views_pb2_grpc,
    webhooks_pb2,
    webhooks_pb2_grpc,
)
from nsml.v1 import sessions_pb2 as pb
from tests.support.trees import stored_tree
from tests.unit.nsml.client.contract_boards import Boards, Submissions, WithBoards
from tests.unit.nsml.client.contract_competitions import Competitions, WithCompetitions
from tests.unit.nsml.client.contract_files import Files
from tests.unit.nsml.client.contract_pages import page_of
from tests.unit.nsml.client.contract_programs import Scripted

TOKEN = "secret-of-kim"
LAPTOP = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ/bmCcnx5Bli/ZJ/B3VsUXnZqmqT7uPKDxcWpXHAtYM laptop"


def lines_of(text):
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


ENDED = {pb.SESSION_STATE_SUCCEEDED, pb.SESSION_STATE_FAILED, pb.SESSION_STATE_STOPPED}
EPOCH = 1_700_000_000
PART = 50
"""Sessions of one message of a watch."""
LISTED = 30
"""Values of a summary that lists carry."""


def refuse(context, code, message, reason="", retry_after_s=0, **metadata):
    """Abort as the control plane does: a status with ErrorInfo, and RetryInfo where it passes."""
    info = error_details_pb2.ErrorInfo(reason=reason, domain="nsml", metadata=metadata)
    status = status_pb2.Status(code=code.value[0], message=message)
    status.details.add().Pack(info)
    if retry_after_s:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(retry_after_s * 1000))
        status.details.add().Pack(retry)
    context.abort_with_status(rpc_status.to_status(status))


class State(WithCompetitions, WithBoards):
    """What the platform knows; a condition tells of every change."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()
        self.sessions: dict[str, pb.Session] = {}
        self.removed: dict[int, str] = {}
        self.requests: dict[str, str] = {}
        self.logs: dict[
            tuple[str, int, int], bytearray
        ] = {}  # a byte is received at EPOCH + offset
        self.lost: dict[tuple[str, int], int] = {}
        self.log_requests: list[pb.ReadLogsRequest] = []
        self.searches: list[pb.SearchLogsRequest] = []
        self.points: dict[str, list[pb.MetricPoint]] = {}
        self.leader = "cp-1"
        self.term = 3
        self.away: frozenset[str] = frozenset()
        """Methods that nobody answers for now."""
        self.last_reports: list[pb.SessionReport] = []
        self.breaks_off = 0
        self.blobs: dict[str, bytes] = {}
        self.room: int | None = None
        """Bytes that may be kept still; None: without a limit."""
        self.projects_asked: set[str] = set()
        """For which blobs were asked."""
        self.broken = []
        self.damaged_alone = 0
        self.holder = self.nodes_in_vain = 0
        self.datasets: list[datasets_pb2.Dataset] = []
        self.removed_datasets: list[datasets_pb2.Dataset] = []
        self.dataset_users = ["kim/mnist/1"]
        self.checkpoints: dict[str, list[checkpoints_pb2.Checkpoint]] = {}
        self.environments: dict[str, list[resources_pb2.NodeEnvironment]] = {}
        self.environment_files: dict[str, resources_pb2.EnvironmentFiles] = {}
        self.environment_builds: dict[str, resources_pb2.EnvironmentBuild] = {}
        """By the names of nodes."""
        self.locks: dict[str, str] = {}
        """Contents of locks by the ids of sessions."""
        self.removed_checkpoints = 0
        self.artifacts: dict[str, list[artifacts_pb2.Artifact]] = {}
        self.expired_artifacts = 0
        self.restored: dict[str, pb.Session] = {}
        self.restoring: list[session_backups_pb2.RestoreSessionRequest] = []
        self.removed_artifacts: dict[str, list[str]] = defaultdict(list)
        self.media: dict[str, list[media_pb2.Media]] = {}
        self.is_full_of_media = False
        self.no_processes = ""
        self.processes = pb.ReplicaProcesses(
            processes=[
                pb.ReplicaProcess(
                    pid=7,
                    node_pid=4321,
                    cpu_cores=1.5,
                    cpu_time={"seconds": 90},
                    memory_bytes=3 << 30,
                    age={"seconds": 3600},
                    command="python main.py --lr 0.1",
                )
            ]
        )
        self.asked_stacks: list[pb.StacksRequest] = []
        self.asked_code: list[pb.EvaluateRequest] = []
        self.evaluated = pb.Evaluated(value="0.1")
        self.change_phase = pb.PROGRAM_CHANGE_PHASE_APPLIED
        self.change_reason = ""
        self.change_members = [
            pb.ProgramChangeMember(
                state=pb.MEMBER_STATE_DONE,
                position=100,
                knobs=[pb.KnobChange(name="lr", before="0.1", after="0.5", in_force="0.5")],
            )
        ]
        self.not_evaluated: dict[int, str] = {}
        """By rank, why not."""
        self.began_to_evaluate: set[int] = set()
        """Of those that did not, who took it."""
        self.answers_code = threading.Event()
        """Until it is set, programs have reached no safe point."""
        self.answers_code.set()
        self.stacks: dict[int, pb.ReplicaStacks] = {
            0: pb.ReplicaStacks(
                processes=[
                    pb.ProcessStacks(
                        pid=7,
                        node_pid=4321,
                        command="python main.py --lr 0.1",
                        threads=[
                            pb.ThreadStack(
                                name="MainThread",
                                state=pb.THREAD_STATE_ACTIVE,
                                frames=[
                                    pb.StackFrame(
                                        function="train",
                                        file="/app/main.py",
                                        line=40,
                                        locals=[pb.LocalVariable(name="step", value="12")],
                                    )
                                ],
                            )
                        ],
                    )
                ]
            )
        }
        """By rank."""
        self.programs = Scripted()
        self.files = Files()
        self.ssh_answer = pb.SshAnswer(host_key="ssh-ed25519 AAAAC3Nz+/==")
        self.ssh_breaks = False
        self.no_node_shell = set()
        self.left_out_points = 0
        self.missing: list[int] = []
        self.let_go = Timestamp()
        """Reports that are missing before each of the next answers; of series in sum."""
        self.nodes: list[nodes_pb2.Node] = []
        self.on_nodes: list[str] = []
        self.images: dict[str, list[nodes_pb2.NodeImage]] = {}
        self.unpullable: dict[str, str] = {}
        self.images_in_use: list[str] = []
        self.hidden_on_nodes = 0
        self.stops_slowly = False
        self.fence_refusal: nodes_pb2.FenceRefusal | None = None
        self.now = self.known_at = 0
        self.conditions: list[nodes_pb2.Condition] = []
        self.users = {"kim": accounts_pb2.User(name="kim", role=accounts_pb2.ROLE_ADMIN)}
        self.kept_limits = {}
        self.further_usage = []
        self.tokens = {TOKEN: "kim"}
        self.secrets = {}
        self.logins = {"docker.io": ("kim", b"s3cret")}
        self.keys = {}
        key = LAPTOP.rpartition(" ")[0]
        self.jump_host = ssh_keys_pb2.GetJumpHostResponse(
            address="jump.lab:18557", host_key=key, authority=key
        )
        self.views = {}
        self.webhook = ""
        self.webhook_events: list[int] = []
        self.projects: dict[str, projects_pb2.Project] = {}
        self.revision = 1
        self.oldest_revision = 1
        """Watches that resume from an older one begin anew."""
        self.simulated = False
        self.join_address = self.login_address = ""
        self.calls: list[str] = []
        self.piece = 7
        self.largest_message = self.largest_first_message = 0
        self.is_away = 0
        self.refuses: dict[str, int] = {}
        """How often calls are refused with a word on when to come again."""
        self.works = 0
        """How often it is still busy with a manifest."""
        self.why_away = "the platform's history does not answer"
        self.has_leader = True
        self.lacks_ended = False
        self.why = {}
        self.rows = []
        self.supposed = []
        self.fail_next: dict[str, grpc.StatusCode] = {}
        self.waiting = ""
        self.free_gpus = 8
        self.knows_no_origin = False
        self.knows_no_project = False
        """In filters, as the version before."""
        self.forgets_what_was_sent = False
        """Once: as another control plane, that has not heard it."""

    def add(self, name, state=pb.SESSION_STATE_RUNNING, **fields):
        """A session, newer than all before."""
        number = len(self.sessions) + 1
        session = pb.Session(
            id=f"s{number:016d}",
            name=name,
            owner=name.split("/")[0],
            project=fields.pop("project", "") or name.split("/")[0],
            state=state,
            attempt=1,
            visibility=resources_pb2.VISIBILITY_PRIVATE,
            simulated=self.simulated,
            **fields,
        )
        session.created_at.seconds = EPOCH + number
        self.put(session)
        return session

    def add_key(self, line, name=""):
        """A public key of the user's."""
        key = parse_public_key(line)
        made = ssh_keys_pb2.SshKey(
            name=name or key.usual_name, public_key=key.text, fingerprint=key.fingerprint
        )
        made.added_at.seconds = EPOCH
        self.keys[made.name] = made
        return made

    def put(self, session):
        with self.changed:
            self.revision += 1
            session.revision = self.revision
            self.sessions[session.id] = session
            self.changed.notify_all()

    def change(self, session, **fields):
        """The session with other fields, told to watchers."""
        fresh = pb.Session()
        fresh.CopyFrom(self.sessions[session.id])
        for key, value in fields.items():
            if key == "end":
                fresh.end.CopyFrom(value)
            else:
                setattr(fresh, key, value)
        self.put(fresh)
        return fresh

    def log(self, session, data, attempt=1, rank=0):
        with self.changed:
            self.logs.setdefault((session.id, attempt, rank), bytearray()).extend(data)
            self.changed.notify_all()

    def report(
        self, session, name, number=None, *, step=None, json="", rank=0, attempt=1, origin=""
    ):
        point = pb.MetricPoint(
            name=name,
            number=number,
            step=step,
            json=json,
            attempt=attempt,
            rank=rank,
            origin=origin,
        )
        with self.changed:
            session.attempt = max(session.attempt, attempt)
            points = self.points.setdefault(session.id, [])
            point.time.seconds = EPOCH + len(points)
            points.append(point)
            self.changed.notify_all()

    def summarize(self, session, **values):
        """A report that is the session's summary: no change of it, and told to who asked for that."""
        with self.changed:
            known = self.sessions[session.id]
            known.summary.update(values)
            known.summary_names[:] = values
            self.last_reports.append(
                pb.SessionReport(
                    session_id=session.id,
                    summary=known.summary,
                    summary_names=values,
                    checkpoint_count=known.checkpoint_count,
                    lost_checkpoint_count=known.lost_checkpoint_count,
                    uses={one.rank: one.use for one in known.replicas if one.HasField("use")},
                )
            )
            self.changed.notify_all()

    def mine(self):
        return sorted(self.sessions.values(), key=lambda s: -s.created_at.seconds)

    def find(self, reference, context):
        """A session reference, resolved as the contract says."""
        newest = self.mine()
        if reference.startswith("@"):
            place = 1 if reference == "@last" else int(reference[1:])
            fitting = newest[place - 1 : place]
        else:
            fitting = [
                s for s in newest if reference in {s.id, s.name} or s.name.endswith(f"/{reference}")
            ]
        if len(fitting) > 1:
            names = ",".join(sorted(s.name for s in fitting))
            refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{reference!r} fits {len(fitting)} sessions",
                "AMBIGUOUS_REFERENCE",
                candidates=names,
            )
        if not fitting:
            refuse(context, grpc.StatusCode.NOT_FOUND, f"no session {reference!r}", "NOT_FOUND")
        return fitting[0]


def listed(session, request):
    """A session as lists carry it: the first values of its summary, and those that are asked for; short where it may be."""
    every = list(session.summary_names) or sorted(session.summary.fields)
    kept = {*every[:LISTED], *request.summary_names}
    left_out = [name for name in every if name not in kept]
    if not left_out and not request.short:
        return session
    short = pb.Session()
    short.CopyFrom(session)
    if request.short:
        shorten(short)
    for name in left_out:
        del short.summary.fields[name]
    if left_out:
        short.summary_names[:] = [name for name in every if name in kept]
    short.summary_left_out = len(left_out)
    return short


def fits(session, chosen):
    """Whether a session passes a SessionFilter."""
    owners = ["kim" if owner == "@me" else owner for owner in chosen.owners]
    text = " ".join([session.name, session.memo, *session.spec.args])
    return all(
        (
            not owners or session.owner in owners,
            not chosen.states or session.state in chosen.states,
            chosen.states or chosen.include_ended or session.state not in ENDED,
            not chosen.project or session.project == chosen.project,
            not chosen.without_submission_steps or not is_step(session.spec),
            not chosen.dataset or any(d.name == chosen.dataset for d in session.spec.datasets),
            not chosen.name_glob or fnmatch.fnmatchcase(session.name, chosen.name_glob),
            chosen.text in text,
        )
    )


def forget_newer_fields(chosen):
    """Read a filter as control planes of the version before do."""
    chosen.project = ""
    chosen.without_submission_steps = False


def still_working(state, context):
    if state.works:
        state.works -= 1
        words = "the manifest is being read"
        refuse(context, grpc.StatusCode.UNAVAILABLE, words, "STILL_WORKING", 5.0)


class Sessions(sessions_pb2_grpc.SessionServiceServicer):
    def __init__(self, state):
        self.state = state

    def CreateSession(self, request, context):
        state = self.state
        if state.is_away:
            state.is_away -= 1
            code, reason = grpc.StatusCode.UNAVAILABLE, "HISTORY_UNAVAILABLE"
            return refuse(context, code, state.why_away, reason, 0.1)
        if not request.validate_only:
            still_working(state, context)
        known = state.requests.get(request.request_id)
        if known:
            return pb.CreateSessionResponse(session=state.sessions[known])
        if request.spec.resources.gpu_thousandths > 8000:
            refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                "no node has 9 GPUs",
                "CANNOT_EVER_FIT",
                why="the largest has 8",
                **{"try": "nsml run -g 8"},
            )
        if request.spec.no_queue and not state.free_gpus:
            refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                "nothing is free now",
                "NO_CAPACITY",
                why="most free on one node: 0",
            )
        for wanted in request.spec.datasets:
            if wanted.name.removeprefix("kim/") not in {known.name for known in state.datasets}:
                refuse(context, grpc.StatusCode.NOT_FOUND, f"no dataset {wanted.name}", "NOT_FOUND")
        origin = None
        if request.HasField("origin") and not state.knows_no_origin:
            found = state.find(request.origin.session, context)
            origin = pb.Origin(kind=request.origin.kind, session=found.id, name=found.name)
        if request.spec.HasField("initial_checkpoint"):
            self.begin(request.spec.initial_checkpoint, context)
        if request.validate_only:
            return pb.CreateSessionResponse()
        digest = request.spec.bundle_digest
        if state.forgets_what_was_sent:
            state.forgets_what_was_sent = False
            state.blobs.clear()
        if digest and digest not in state.blobs:
            refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "missing", "MISSING_BLOBS")
        for wanted in request.spec.datasets:
            wanted.name = wanted.name.removeprefix("kim/")
        dataset = request.spec.datasets[0].name if request.spec.datasets else "None"
        prefix = f"kim/{dataset}/"
        number = 1 + sum(s.name.startswith(prefix) for s in state.sessions.values())
        session = state.add(
            f"{prefix}{number}",
            pb.SESSION_STATE_QUEUED if state.waiting else pb.SESSION_STATE_PREPARING,
            waiting=state.waiting,
            spec=request.spec,
            memo=request.memo,
            project=request.project,
            command=request.command,
            origin=origin,
            git=request.git if request.HasField("git") else None,
        )
        state.requests[request.request_id] = session.id
        failure = state.fail_next.pop("CreateSession", None)
        if failure:
            context.abort(failure, "lost after it was done")
        return pb.CreateSessionResponse(session=session)

    def begin(self, initial, context):
        """Fill in the checkpoint that a session is to begin with."""
        found = self.state.find(initial.session, context)
        every = self.state.checkpoints.get(found.id, [])
        named = [one for one in every if one.name == initial.name] if initial.name else every[-1:]
        if not named:
            why = f"{found.name} has no checkpoint that is safe"
            refuse(context, grpc.StatusCode.NOT_FOUND, why, "NOT_FOUND")
        initial.session, initial.session_name = found.id, found.name
        initial.name, initial.digest = named[-1].name, named[-1].digest

    def is_refused(self, method, context):
        state = self.state
        if state.refuses.get(method, 0):
            state.refuses[method] -= 1
            if not state.has_leader:
                why = "this control plane does not lead"
                refuse(context, grpc.StatusCode.UNAVAILABLE, why, "NOT_LEADER")
            code, reason = grpc.StatusCode.UNAVAILABLE, "HISTORY_UNAVAILABLE"
            refuse(context, code, state.why_away, reason, 0.1)

    def GetSession(self, request, context):
        self.is_refused("GetSession", context)
        return pb.GetSessionResponse(session=self.state.find(request.session, context))

    def ListSessions(self, request, context):
        self.is_refused("ListSessions", context)
        if self.state.knows_no_project:
            forget_newer_fields(request.filter)
        found = [s for s in self.state.mine() if fits(s, request.filter)]
        start = int(request.cursor or 0)
        size = min(request.page_size or 100, 2)
        page = found[start : start + size]
        more = str(start + size) if start + size < len(found) else ""
        return pb.ListSessionsResponse(
            sessions=[listed(one, request) for one in page],
            next_cursor=more,
            revision=self.state.revision,
            ended_missing=self.state.lacks_ended,
        )

    def ExplainSession(self, request, context):
        session = self.state.find(request.session, context)
        answer = pb.ExplainSessionResponse(session=session)
        if session.state == pb.SESSION_STATE_QUEUED:
            answer.waiting.CopyFrom(self.state.why.get(session.name, pb.Waiting()))
            answer.waiting.reason = answer.waiting.reason or session.waiting
        if request.HasField("what_if"):
            self.state.supposed.append(request.what_if)
            answer.what_if.CopyFrom(pb.WhatIfAnswer(starts=True, nodes=["gpu-1"]))
        return answer

    def ListQueue(self, request, context):
        waiting = [s for s in self.state.mine() if s.state == pb.SESSION_STATE_QUEUED]
        start = int(request.cursor or 0)
        rows = [
            pb.QueuedSession(
                place=place,
                session=s.name,
                owner=s.owner,
                resources=s.spec.resources,
                replica_count=max(s.spec.replica_count, 1),
                priority=pb.PRIORITY_NORMAL,
                created_at=s.created_at,
                reason=s.waiting,
            )
            for place, s in enumerate(reversed(waiting), 1)
        ]
        rows += self.state.rows
        page = rows[start : start + min(request.page_size or 100, 2)]
        more = start + len(page)
        return pb.ListQueueResponse(
            sessions=page,
            next_cursor=str(more) if more < len(rows) else "",
            queued=len(rows),
            chosen=len(rows),
            free_gpu_thousandths=3500,
            largest_hole=2,
            largest_hole_node="gpu-1",
        )

    def WatchSessions(self, request, context):
        state = self.state
        if state.knows_no_project:
            forget_newer_fields(request.filter)
        is_first = request.from_revision < state.oldest_revision
        seen = 0 if is_first else request.from_revision
        # Whoever comes back is told all of them again.
        told = len(state.last_reports) if is_first else 0
        while context.is_active():
            if request.with_reports and not is_first and told < len(state.last_reports):
                reports = state.last_reports[told:]
                told += len(reports)
                yield pb.WatchSessionsResponse(revision=seen, reports=reports)
            with state.changed:
                if not is_first and state.revision <= seen:
                    state.changed.wait(0.05)
                    continue
                news = [s for s in state.sessions.values() if s.revision > seen]
                gone = [name for at, name in state.removed.items() if at > seen]
                before = seen
                if is_first:
                    news, gone = [s for s in news if s.state not in ENDED], []
                seen = state.revision
            news = [listed(s, request) for s in news if fits(s, request.filter) or s.state in ENDED]
            while len(news) > PART:
                part, news = news[:PART], news[PART:]
                # Only behind the last part everything was sent.
                yield pb.WatchSessionsResponse(revision=before, changed=part, reset=is_first)
                is_first = False
            yield pb.WatchSessionsResponse(
                revision=seen, changed=news, removed=gone, reset=is_first
            )
            is_first = False

    def StopSession(self, request, context):
        self.is_refused("StopSession", context)
        session = self.state.find(request.session, context)
        if session.state in ENDED:
            refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{session.name} has ended",
                "ALREADY_ENDED",
            )
        end = pb.SessionEnd(cause=pb.CAUSE_STOP_REQUESTED, exit_code=143, message=request.reason)
        return pb.StopSessionResponse(
            session=(
                self.state.change(session, state=pb.SESSION_STATE_STOPPING)
                if self.state.stops_slowly
                else self.state.change(session, state=pb.SESSION_STATE_STOPPED, end=end)
            )
        )

    def RequeueSession(self, request, context):
        session = self.state.find(request.session, context)
        if session.state not in {pb.SESSION_STATE_RUNNING, pb.SESSION_STATE_PAUSED}:
            refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{session.name} does not run",
                "STATE_CONFLICT",
            )
        return pb.RequeueSessionResponse(
            session=self.state.change(session, state=pb.SESSION_STATE_STOPPING)
        )

    def ChangeProgram(self, request, context):
        session = self.state.find(request.session, context)
        if session.state not in {pb.SESSION_STATE_RUNNING, pb.SESSION_STATE_PAUSED}:
            refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{session.name} is not running",
                "STATE_CONFLICT",
            )
        fresh = pb.Session()
        fresh.CopyFrom(session)
        if request.withdraw:
            fresh.changes[-1].phase = pb.PROGRAM_CHANGE_PHASE_WITHDRAWN
            fresh.changes[-1].reason = "withdrawn by kim"
            self.state.put(fresh)
            return pb.ChangeProgramResponse(session=fresh)
        change = pb.ProgramChange(
            number=len(session.changes) + 1,
            kind=request.kind,
            phase=self.state.change_phase,
            values=request.values,
            checkpoint=request.checkpoint,
            asked_by="kim",
            counter="step",
            at=request.at or 100,
            reason=self.state.change_reason,
            members=self.state.change_members,
        )
        if request.kind == pb.PROGRAM_CHANGE_KIND_PAUSE:
            change.limit.seconds = 3600
        fresh.changes.append(change)
        self.state.put(fresh)
        return pb.ChangeProgramResponse(session=fresh)

    def RemoveSession(self, request, context):
        self.is_refused("RemoveSession", context)
        session = self.state.find(request.session, context)
        if session.state not in ENDED:
            refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{session.name} has not ended",
                "STILL_LIVE",
                **{"try": f"nsml stop {session.name}"},
            )
        with self.state.changed:
            del self.state.sessions[session.id]
            self.state.revision += 1
            self.state.removed[self.state.revision] = session.id
            self.state.changed.notify_all()
        return pb.RemoveSessionResponse(name=session.name)

    def UpdateSession(self, request, context):
        session = self.state.find(request.session, context)
        fields = {"memo": request.memo} if request.HasField("memo") else {}
        return pb.UpdateSessionResponse(session=self.state.change(session, **fields))

    def ReadLogs(self, request, context):
        state = self.state
        session = state.find(request.session, context)
        state.log_requests.append(request)
        attempt, offset = request.attempt or session.attempt, request.offset
        if request.HasField("tail_lines"):
            text = bytes(state.logs.get((session.id, attempt, request.rank), b""))
            lines = lines_of(text)
            offset = sum(map(len, lines[: max(len(lines) - request.tail_lines, 0)]))
        if request.HasField("since"):
            offset = max(offset, request.since.seconds - EPOCH)
        stop = request.until.seconds - EPOCH if request.HasField("until") else None
        while context.is_active():
            with state.changed:
                whole = bytes(state.logs.get((session.id, attempt, request.rank), b""))[:stop]
                data = whole[offset:][: state.piece]
                current = state.sessions[session.id]
                if not data:
                    goes_on = request.later_attempts or not request.attempt
                    if goes_on and current.attempt > attempt:
                        attempt, offset = attempt + 1, 0
                        continue
                    if not request.follow or current.state in ENDED:
                        return
                    state.changed.wait(0.05)
                    continue
                missing = state.lost.pop((session.id, attempt), 0)
            yield pb.ReadLogsResponse(
                offset=offset,
                data=data,
                attempt=attempt,
                missing_bytes=missing,
                times=[
                    pb.LogTime(offset=at, time={"seconds": EPOCH + at})
                    for at in range(offset, offset + len(data))
                    if request.times
                ],
            )
            offset += len(data)

    def SearchLogs(self, request, context):
        """Plain texts only, a line an answer."""
        state = self.state
        session = state.find(request.log.session, context)
        state.searches.append(request)
        attempt = request.log.attempt or session.attempt
        text = bytes(state.logs.get((session.id, attempt, request.log.rank), b""))
        at = 0
        for number, line in enumerate(lines_of(text), start=1):
            fits = request.pattern.encode() in line
            at += len(line)
            if at <= request.log.offset:
                continue
            found = pb.LogLine(offset=at - len(line), text=line.removesuffix(b"\n"), number=number)
            if fits:
                found.match_begin = line.rfind(request.pattern.encode())
                found.match_end = found.match_begin + len(request.pattern.encode())
            found.time.seconds = EPOCH + found.offset
            found.is_context = not fits and bool(request.context_lines)
            shown = [found] if fits or request.context_lines else []
            yield pb.SearchLogsResponse(lines=shown, attempt=attempt, next=at, next_line=number + 1)
            if state.breaks_off:
                state.breaks_off -= 1
                refuse(context, grpc.StatusCode.UNAVAILABLE, "it breaks off", "UNAVAILABLE")

    def ReadMetrics(self, request, context):
        state = self.state
        session = state.find(request.session, context)
        place = int(getattr(request, "from") or 0)
        if state.let_go.seconds:
            yield pb.ReadMetricsResponse(next=str(place), let_go=state.let_go)
        while context.is_active():
            with state.changed:
                points = state.points.get(session.id, [])[place : place + 3]
                if not points:
                    if not request.follow or state.sessions[session.id].state in ENDED:
                        return
                    state.changed.wait(0.05)
                    continue
            place += len(points)
            wanted = [
                p
                for p in points
                if not request.names
                or any(fnmatch.fnmatchcase(p.name, glob) for glob in request.names)
            ]
            for point in wanted[:-1]:
                yield pb.ReadMetricsResponse(points=[point])
            if state.breaks_off:
                state.breaks_off -= 1
                refuse(context, grpc.StatusCode.UNAVAILABLE, "it breaks off", "UNAVAILABLE")
            missing = state.missing.pop(0) if state.missing else 0
            yield pb.ReadMetricsResponse(
                points=wanted[-1:], next=str(place), missing_reports=missing
            )

    def ReadSeries(self, request, context):
        """Every point a column, with x as the view of points has it."""
        for session in [self.state.find(one, context) for one in request.sessions]:
            found = {}
            points, steps = self.state.points.get(session.id, []), FirstSteps()
            for point in () if request.attempts or request.all_attempts else points:
                steps.note(place_of(point))
            for point in points:
                fits = any(fnmatch.fnmatchcase(point.name, glob) for glob in request.names)
                if not steps.keeps(place_of(point)):
                    continue
                if not point.HasField("number") or (request.names and not fits):
                    continue
                if request.ranks and point.rank not in request.ranks:
                    continue
                if request.attempts and point.attempt not in request.attempts:
                    continue
                key = (point.name, point.rank, point.attempt)
                named = {"name": point.name, "rank": point.rank, "attempt": point.attempt}
                series = found.setdefault(key, pb.Series(session_id=session.id, grain=1, **named))
                time = point.time.seconds + point.time.nanos / 1e9
                series.start = series.start or time
                x = point.step if point.HasField("step") else len(series.x_low)
                if request.axis == pb.SERIES_AXIS_RELATIVE:
                    x = time - series.start
                elif request.axis == pb.SERIES_AXIS_WALL:
                    x = time
                low, high = (
                    getattr(request, end) if request.HasField(end) else other
                    for end, other in (("low", -math.inf), ("high", math.inf))
                )
                if not low <= x <= high:
                    continue
                is_finite = math.isfinite(point.number)
                value = point.number if is_finite else 0.0
                for values in (series.low, series.high, series.mean, series.last):
                    values.append(value)
                series.x_low.append(x)
                series.x_high.append(x)
                series.time.append(time)
                series.finite.append(int(is_finite))
                series.odd.append(int(not is_finite))
            yield pb.ReadSeriesResponse(
                session_id=session.id,
                series=[found[key] for key in sorted(found)],
                left_out_points=self.state.left_out_points,
                missing_reports=sum(self.state.missing),
                let_go=self.state.let_go if self.state.let_go.seconds else None,
            )
            self.state.missing = []

    def ListMetrics(self, request, context):
        session = self.state.find(request.session, context)
        points = self.state.points.get(session.id, [])
        counts = Counter(point.name for point in points)
        origins = {point.name: point.origin for point in reversed(points)}
        metrics = [
            pb.Metric(name=name, count=counts[name], origin=origins[name])
            for name in sorted(counts)
        ]
        let_go = self.state.let_go if self.state.let_go.seconds else None
        return pb.ListMetricsResponse(metrics=metrics, let_go=let_go)

    def OpenTunnel(self, requests, context):
        """To what the agent itself serves alone."""
        target = next(requests).target
        session = self.state.find(target.session, context)
        code, refusal = grpc.StatusCode.FAILED_PRECONDITION, self.state.no_processes
        if session.state in ENDED:
            advice = {"try": f"nsml logs {session.name}"}
            refuse(context, code, f"session {session.name} has ended", "ALREADY_ENDED", **advice)
        if refusal:
            refuse(context, code, "no answer", "NO_SUCH_SERVICE", why=refusal)
        yield pb.OpenTunnelResponse()
        if target.service == agent_services.PROGRAM:
            programs = self.state.programs
            yield from programs.serve(target, requests, is_there=context.is_active)
            return
        if target.service == agent_services.FILES:
            yield from self.state.files.serve(target, requests)
            return
        if target.service == agent_services.SSH:
            yield from self._ssh(requests)
            return
        if target.service == agent_services.EXEC:
            yield from self._evaluate(target, requests)
            return
        answers = {"agent.processes": self.state.processes, "agent.stacks": self.state.stacks}
        answer = answers[target.service]
        asked = list(iter(lambda: next(requests), pb.OpenTunnelRequest(end=True)))
        self.state.asked_stacks += [pb.StacksRequest.FromString(one.data) for one in asked]
        if isinstance(answer, dict):
            answer = answer.get(target.rank, pb.ReplicaStacks(unseen="it is gone"))
        yield pb.OpenTunnelResponse(data=answer.SerializeToString())
        yield pb.OpenTunnelResponse(end=True)
        assert list(requests) == []

    def _evaluate(self, target, requests):
        """As an agent, whose program is at a safe point at once."""
        asked = b"".join(
            one.data for one in iter(lambda: next(requests), pb.OpenTunnelRequest(end=True))
        )
        self.state.asked_code.append(pb.EvaluateRequest.FromString(asked))
        if why := self.state.not_evaluated.get(target.rank):
            said = [pb.EvaluateResponse(waits=True), pb.EvaluateResponse(refused=why)]
            if target.rank in self.state.began_to_evaluate:
                said.insert(1, pb.EvaluateResponse(runs=True))
        else:
            said = [pb.EvaluateResponse(waits=True), pb.EvaluateResponse(runs=True)]
            said.append(pb.EvaluateResponse(evaluated=self.state.evaluated))
        for one in said:
            yield pb.OpenTunnelResponse(data=framed(one.SerializeToString()))
            self.state.answers_code.wait(60)
        yield pb.OpenTunnelResponse(end=True)

    def _ssh(self, requests):
        """A server that says what it is told; its first bytes come with the answer, in pieces."""
        first = framed(self.state.ssh_answer.SerializeToString()) + b"SSH-2.0-test\r\n"
        for start in range(0, len(first), 7):
            yield pb.OpenTunnelResponse(data=first[start : start + 7])
        if self.state.ssh_breaks:
            return
        for request in requests:
            if request.end:
                break
            yield pb.OpenTunnelResponse(data=request.data)
        yield pb.OpenTunnelResponse(end=True)


class Content(content_pb2_grpc.ContentServiceServicer):
    def __init__(self, state):
        self.state = state

    def FindMissingBlobs(self, request, context):
        room = self.state.room
        if room is not None and request.bytes > room:
            why = {"why": "kim may keep little", "try": "nsml storage"}
            refuse(
                context, grpc.StatusCode.RESOURCE_EXHAUSTED, "it is full", "LIMIT_REACHED", **why
            )
        missing = [digest for digest in request.digests if digest not in self.state.blobs]
        self.state.projects_asked.add(request.project)
        return content_pb2.FindMissingBlobsResponse(missing=missing, room=room)

    def PutBlobs(self, requests, context):
        stored, parts = 0, []
        for number, request in enumerate(requests):
            size = request.ByteSize()
            self.state.largest_message = max(self.state.largest_message, size)
            if not number:
                self.state.largest_first_message = max(self.state.largest_first_message, size)
            for blob in request.blobs:
                parts.append(blob.data)
                if not blob.last:
                    continue
                data, parts = b"".join(parts), []
                if digest_of(data) != blob.digest:
                    refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "wrong bytes")
                stored += blob.digest not in self.state.blobs
                self.state.blobs[blob.digest] = data
        return content_pb2.PutBlobsResponse(stored=stored)

    def GetBlobs(self, request, context):
        root = self.state.blobs.get(request.root)
        if root is None:
            refuse(context, grpc.StatusCode.NOT_FOUND, "no such content", "NOT_FOUND")
        _, members = stored_tree(self.state.blobs, request.root)
        known = {*members, request.root}
        for digest in request.digests or [request.root]:
            if digest not in known:
                refuse(context, grpc.StatusCode.NOT_FOUND, "not part of it", "NOT_FOUND")
            data = self.state.blobs[digest]
            for start in range(0, len(data), 1 << 20):
                part = data[start : start + (1 << 20)]
                last = start + len(part) == len(data)
                yield content_pb2.GetBlobsResponse(
                    blobs=[content_pb2.Blob(digest=digest, data=part, last=last)]
                )

    def VerifyStorage(self, request, context):
        damaged = len(self.state.broken)
        yield content_pb2.VerifyStorageResponse(blobs=3, bytes=3_000_000, damaged=damaged)
        for broken in self.state.broken:
            yield content_pb2.VerifyStorageResponse(broken=broken)

    def RepairStorage(self, request, context):
        for one in self.VerifyStorage(request, context):
            yield content_pb2.RepairStorageResponse.FromString(one.SerializeToString())
        damaged = self.state.damaged_alone
        yield content_pb2.RepairStorageResponse(blobs=3, bytes=3_000_000, damaged=damaged)

    def RepairContent(self, request, context):
        """A node has one blob more each time; the last one has `holder` alone, the other nodes are asked before it."""
        (broken,) = (one for one in self.state.broken if one.digest == request.digest)
        answer = content_pb2.RepairContentResponse()
        if request.is_from_start:
            self.state.nodes_in_vain = 0
        if broken.lost > 1 or self.state.nodes_in_vain + 1 == self.state.holder:
            answer.repaired.add(digest=f"{broken.lost:064x}", source="node n\x1b[31m1")
            broken.lost -= 1
        else:
            last = max(1, self.state.holder - 1)
            self.state.nodes_in_vain = min(last, self.state.nodes_in_vain + 1)
        answer.nodes_in_vain = self.state.nodes_in_vain
        answer.lost = broken.lost
        answer.lost_digests.append("ef" * 32)
        answer.reasons.append("n2: it has nothing of that")
        answer.is_partial = True
        return answer


class Datasets(datasets_pb2_grpc.DatasetServiceServicer):
    def __init__(self, state):
        self.state = state

    def CreateDatasetVersion(self, request, context):
        if request.validate_only:
            return datasets_pb2.CreateDatasetVersionResponse()
        still_working(self.state, context)
        known = [d for d in self.state.datasets if d.name == request.name]
        parts = {one.path: one for one in (known[-1].parts if known else ()) if one.path}
        parts |= {one.path: one for one in request.parts}
        if known and known[-1].digest == request.digest and len(known[-1].parts) <= len(parts):
            return datasets_pb2.CreateDatasetVersionResponse(dataset=known[-1], created=False)
        manifest, _ = stored_tree(self.state.blobs, request.digest)
        made = datasets_pb2.Dataset(
            name=request.name,
            owner="kim",
            visibility=request.visibility or resources_pb2.VISIBILITY_PRIVATE,
            version=len(known) + 1,
            digest=request.digest,
            size_bytes=request.in_place_bytes or manifest.size,
            file_count=request.in_place_files or len(manifest.entries),
            message=request.message,
            in_place=request.in_place,
        )
        for path, part in sorted({"": datasets_pb2.DatasetPart(access=1), **parts}.items()):
            files = [one for one in manifest.entries if part_of(one.path, parts) == path]
            if parts and files:
                made.parts.add(
                    path=path,
                    access=part.access,
                    digest=digest_of(path.encode()),
                    size_bytes=sum(one.size for one in files),
                    file_count=len(files),
                )
        made.updated_at.seconds = EPOCH
        self.state.datasets.append(made)
        return datasets_pb2.CreateDatasetVersionResponse(dataset=made, created=True)

    def ListDatasets(self, request, context):
        glob = request.name_glob or "*"
        if request.removed:
            gone = [d for d in self.state.removed_datasets if fnmatch.fnmatchcase(d.name, glob)]
            return datasets_pb2.ListDatasetsResponse(datasets=gone)
        newest = {d.name: d for d in self.state.datasets}
        found = [
            d
            for name, d in sorted(newest.items())
            if fnmatch.fnmatchcase(name, glob)
            and all(word in f"{name} {d.description} {d.message}" for word in request.words)
        ]
        return datasets_pb2.ListDatasetsResponse(datasets=found)

    def ListDatasetVersions(self, request, context):
        self.GetDataset(datasets_pb2.GetDatasetRequest(name=request.name), context)
        found = [d for d in reversed(self.state.datasets) if d.name in request.name.split("/")]
        return datasets_pb2.ListDatasetVersionsResponse(versions=found[: request.page_size])

    def UpdateDataset(self, request, context):
        found = self.find(request, context)
        found.visibility = request.visibility or found.visibility
        if request.HasField("description"):
            found.description = request.description
        for one in request.parts:
            for known in found.parts:
                known.access = one.access if known.path == one.path else known.access
        return datasets_pb2.UpdateDatasetResponse(dataset=found)

    def TagDatasetVersion(self, request, context):
        found = self.find(request, context)
        before = [d for d in self.state.datasets if request.new_tag in d.tags]
        for one in before:
            one.tags.remove(request.new_tag)
        found.tags.append(request.new_tag)
        return datasets_pb2.TagDatasetVersionResponse(
            dataset=found, version_before=before[0].version if before else 0
        )

    def UntagDatasetVersion(self, request, context):
        found = self.find(datasets_pb2.GetDatasetRequest(name=request.name), context)
        if request.tag in found.tags:
            found.tags.remove(request.tag)
        return datasets_pb2.UntagDatasetVersionResponse(version=found.version)

    def RestoreDataset(self, request, context):
        back = [d for d in self.state.removed_datasets if request.version in {0, d.version}]
        for one in back:
            self.state.removed_datasets.remove(one)
            one.ClearField("removed_at")
            one.ClearField("restorable_until")
            self.state.datasets.append(one)
        return datasets_pb2.RestoreDatasetResponse(
            dataset=self.find(datasets_pb2.GetDatasetRequest(name=request.name), context),
            versions=[one.version for one in back],
        )

    def GetDataset(self, request, context):
        use = datasets_pb2.DatasetUse(
            live_sessions=2, queued_sessions=1, names=self.state.dataset_users, ended_sessions=3
        )
        return datasets_pb2.GetDatasetResponse(dataset=self.find(request, context), use=use)

    def find(self, request, context):
        version, tag = getattr(request, "version", 0), getattr(request, "tag", "")
        for dataset in reversed(self.state.datasets):
            if request.name in {dataset.name, f"{dataset.owner}/{dataset.name}"} and (
                tag in dataset.tags if tag else version in {0, dataset.version}
            ):
                return dataset
        return refuse(
            context, grpc.StatusCode.NOT_FOUND, f"no dataset {request.name!r}", "NOT_FOUND"
        )

    def RemoveDataset(self, request, context):
        self.GetDataset(request, context)
        names = {request.name, request.name.rpartition("/")[2]}
        gone = [
            one
            for one in self.state.datasets
            if one.name in names and request.version in {0, one.version}
        ]
        for one in gone:
            self.state.datasets.remove(one)
            one.removed_at.seconds = EPOCH
            one.restorable_until.seconds = EPOCH + 86_400
        self.state.removed_datasets += gone
        return datasets_pb2.RemoveDatasetResponse(
            removed=len(gone), live_sessions=1, restorable_until={"seconds": EPOCH}
        )


class Checkpoints(checkpoints_pb2_grpc.CheckpointServiceServicer):
    def __init__(self, state):
        self.state = state

    def ListCheckpoints(self, request, context):
        session = self.state.find(request.session, context)
        if session.spec.stage == pb.SESSION_STAGE_PREDICT:
            why = f"what session {session.name} writes is hidden: it predicts on hidden inputs"
            refuse(context, grpc.StatusCode.FAILED_PRECONDITION, why, "SEALED")
        every = self.state.checkpoints.get(session.id, [])
        start = int(request.cursor or 0)
        return checkpoints_pb2.ListCheckpointsResponse(
            checkpoints=every[start : start + 1],
            next_cursor=str(start + 1) if start + 1 < len(every) else "",
            keep="" if start else session.spec.keep_checkpoints,
            removed_count=0 if start else self.state.removed_checkpoints,
            removed_bytes=0 if start else self.state.removed_checkpoints << 20,
        )

    def TagCheckpoint(self, request, context):
        session = self.state.find(request.session, context)
        before = ""
        for one in self.state.checkpoints[session.id]:
            if request.tag in one.tags:
                one.tags.remove(request.tag)
                before = one.name
            if one.name == request.name:
                one.tags.append(request.tag)
                tagged = one
        return checkpoints_pb2.TagCheckpointResponse(checkpoint=tagged, moved_from=before)

    def UntagCheckpoint(self, request, context):
        session = self.state.find(request.session, context)
        for one in self.state.checkpoints[session.id]:
            if request.tag in one.tags:
                one.tags.remove(request.tag)
                return checkpoints_pb2.UntagCheckpointResponse(name=one.name)
        return refuse(context, grpc.StatusCode.NOT_FOUND, f"no tag {request.tag!r}", "NOT_FOUND")

    def GetCheckpoint(self, request, context):
        session = self.state.find(request.session, context)
        for found in self.state.checkpoints.get(session.id, []):
            if found.name == request.name or request.name in found.tags:
                return checkpoints_pb2.GetCheckpointResponse(checkpoint=found)
        return refuse(
            context, grpc.StatusCode.NOT_FOUND, f"no checkpoint {request.name!r}", "NOT_FOUND"
        )

    def RemoveCheckpoints(self, request, context):
        session = self.state.find(request.session, context)
        there = self.state.checkpoints.get(session.id, [])
        gone = [one for one in there if one.name in request.names]
        self.state.checkpoints[session.id] = [one for one in there if one not in gone]
        return checkpoints_pb2.RemoveCheckpointsResponse(removed=[one.name for one in gone])


class Environments(environments_pb2_grpc.EnvironmentServiceServicer):
    def __init__(self, state):
        self.state = state

    def GetEnvironmentLock(self, request, context):
        session = self.state.find(request.session, context)
        content = self.state.locks.get(session.id, "")
        if not content:
            refuse(context, grpc.StatusCode.NOT_FOUND, f"no lock of {session.name}", "NOT_FOUND")
        lock = pb.EnvironmentLock(
            digest=digest_of(content.encode()), package_count=content.count("\n"), content=content
        )
        return environments_pb2.GetEnvironmentLockResponse(lock=lock)

    def ListEnvironments(self, request, context):
        found = self.state.environments.get(request.node, [])
        return environments_pb2.ListEnvironmentsResponse(environments=found)

    def BuildEnvironment(self, request, context):
        self.state.environment_files[request.node] = request.files
        return environments_pb2.BuildEnvironmentResponse(
            build=resources_pb2.EnvironmentBuild(
                build_id=f"b-{request.node}",
                state=resources_pb2.ENVIRONMENT_BUILD_STATE_RUNNING,
                log=b"Installing 1 requi",
            )
        )

    def GetEnvironmentBuild(self, request, context):
        assert request.build_id == f"b-{request.node}"
        found = resources_pb2.EnvironmentBuild(
            build_id=request.build_id,
            state=resources_pb2.ENVIRONMENT_BUILD_STATE_DONE,
            log=b"Installing 1 requirement\n"[request.log_offset :],
            log_offset=request.log_offset,
            key="3f9a0c51d2e4" + "0" * 20,
            lock=f"six==1.16.0 --hash=sha256:{'a' * 64}\n",
        )
        found.MergeFrom(self.state.environment_builds.get(request.node, found))
        return environments_pb2.GetEnvironmentBuildResponse(build=found)

    def RemoveEnvironment(self, request, context):
        every = self.state.environments[request.node]
        [one] = [one for one in every if one.key == request.key]
        if one.sessions:
            text = f"environment {one.key} stays on node {request.node}"
            refuse(context, grpc.StatusCode.FAILED_PRECONDITION, text, "STATE_CONFLICT")
        every.remove(one)
        return environments_pb2.RemoveEnvironmentResponse()


class Artifacts(artifacts_pb2_grpc.ArtifactServiceServicer):
    def __init__(self, state):
        self.state = state

    def ListArtifacts(self, request, context):
        session = self.state.find(request.session, context)
        every = self.state.artifacts.get(session.id, [])
        every = [one for one in every if request.name in {"", one.name}]
        start = int(request.cursor or 0)
        return artifacts_pb2.ListArtifactsResponse(
            artifacts=every[start : start + 1],
            next_cursor=str(start + 1) if start + 1 < len(every) else "",
            removed=sum(
                request.name in {"", name} for name in self.state.removed_artifacts[session.id]
            ),
            expired=self.state.expired_artifacts,
        )

    def RemoveArtifacts(self, request, context):
        session = self.state.find(request.session, context)
        self.state.removed_artifacts[session.id] += [one.name for one in request.versions]
        gone = {(one.name, one.version) for one in request.versions}
        there = self.state.artifacts.get(session.id, [])
        self.state.artifacts[session.id] = [
            one for one in there if (one.name, one.version) not in gone
        ]
        return artifacts_pb2.RemoveArtifactsResponse()


class SessionBackups(session_backups_pb2_grpc.SessionBackupServiceServicer):
    """Sessions that print a line, and that were restored before, or end as those of the platform."""

    def __init__(self, state):
        self.state = state

    def ReadSessionStreams(self, request, context):
        session = self.state.find(request.session, context)
        if session.state == pb.SESSION_STATE_RUNNING:
            text = f"{session.name} has not ended"
            refuse(context, grpc.StatusCode.FAILED_PRECONDITION, text, "STATE_CONFLICT")
        part = session_backups_pb2.StreamPart(attempt=1, is_log=True, last=5, data=b"hello\n")
        yield session_backups_pb2.ReadSessionStreamsResponse(part=part)

    def RestoreSession(self, requests, context):
        first, *rest = requests
        session = first.session.session
        if first.session.validate_only:
            known = self.state.restored.get(session.id)
            return session_backups_pb2.RestoreSessionResponse(
                session=known, was_there=known is not None
            )
        self.state.restored[session.id] = session
        self.state.restoring += rest
        return session_backups_pb2.RestoreSessionResponse(session=session)


class Media(media_pb2_grpc.MediaServiceServicer):
    def __init__(self, state):
        self.state = state

    def ListMedia(self, request, context):
        session = self.state.find(request.session, context)
        fitting = [
            one
            for one in self.state.media.get(session.id, [])
            if (not request.names or any(fnmatch.fnmatchcase(one.name, n) for n in request.names))
            and (not request.HasField("first_step") or one.step >= request.first_step)
            and (not request.HasField("last_step") or one.step <= request.last_step)
        ]
        start = int(request.cursor or 0)
        more = start + 2 < len(fitting)
        return media_pb2.ListMediaResponse(
            media=fitting[start : start + 2],
            next_cursor=str(start + 2) if more else "",
            session=session.name,
            is_full=not more and self.state.is_full_of_media,
        )


class Nodes(nodes_pb2_grpc.NodeServiceServicer):
    def __init__(self, state):
        self.state = state

    def ListNodes(self, request, context):
        return nodes_pb2.ListNodesResponse(nodes=self.state.nodes)

    def _find(self, name, context):
        for node in self.state.nodes:
            if node.name == name:
                return node
        return refuse(context, grpc.StatusCode.NOT_FOUND, f"there is no node {name}", "NOT_FOUND")

    def GetNode(self, request, context):
        node = self._find(request.name, context)
        return nodes_pb2.GetNodeResponse(
            node=node,
            sessions=self.state.on_nodes,
            hidden_sessions=self.state.hidden_on_nodes,
            fence_refusal=self.state.fence_refusal,
            images=self.state.images.get(request.name, ()),
        )

    def PullImage(self, request, context):
        node = self._find(request.node, context)
        if node.owner_note:
            words = f"node {node.name} {node.owner_note}"
            refuse(context, grpc.StatusCode.FAILED_PRECONDITION, words, "STATE_CONFLICT")
        held = self.state.images.setdefault(request.node, [])
        if any(one.name == request.image for one in held):
            return nodes_pb2.PullImageResponse(status=self._present(request, fetched=False))
        if request.image in self.state.unpullable:
            status = resources_pb2.ImageStatus(
                image=request.image,
                state=resources_pb2.IMAGE_STATE_FAILED,
                words=self.state.unpullable[request.image],
            )
            return nodes_pb2.PullImageResponse(status=status)
        pulling = resources_pb2.ImageStatus(
            image=request.image,
            state=resources_pb2.IMAGE_STATE_PULLING,
            words="1 of 2 layers, 1 of 3 MB",
        )
        return nodes_pb2.PullImageResponse(status=pulling)

    def GetImagePull(self, request, context):
        self._find(request.node, context)
        held = self.state.images.setdefault(request.node, [])
        held.append(nodes_pb2.NodeImage(name=request.image, bytes=3 << 20))
        return nodes_pb2.GetImagePullResponse(status=self._present(request, fetched=True))

    def _present(self, request, *, fetched):
        return resources_pb2.ImageStatus(
            image=request.image,
            state=resources_pb2.IMAGE_STATE_PRESENT,
            bytes=3 << 20,
            fetched=fetched,
        )

    def RemoveImage(self, request, context):
        self._find(request.node, context)
        status = resources_pb2.ImageStatus(
            image=request.image, state=resources_pb2.IMAGE_STATE_REMOVED
        )
        held = self.state.images.get(request.node, [])
        if request.image in self.state.images_in_use:
            status.state = resources_pb2.IMAGE_STATE_KEPT
            status.words = "a session or container uses it, or it is being pulled"
        elif any(one.name == request.image for one in held):
            held[:] = [one for one in held if one.name != request.image]
        else:
            status.state = resources_pb2.IMAGE_STATE_ABSENT
        return nodes_pb2.RemoveImageResponse(status=status)

    def OpenNodeTunnel(self, requests, context):
        """To programs alone, which are those of sessions."""
        target = next(requests).target
        node = self._find(target.node, context)
        if node.name in self.state.no_node_shell:
            code, words = grpc.StatusCode.FAILED_PRECONDITION, f"node {node.name} refuses this"
            refuse(context, code, words, "NO_SUCH_SERVICE", why="node_shell is off")
        assert target.service == agent_services.NODE_PROGRAM
        yield nodes_pb2.OpenNodeTunnelResponse()
        served = self.state.programs.serve(target, requests, is_there=context.is_active)
        for one in served:
            yield nodes_pb2.OpenNodeTunnelResponse(data=one.data, end=one.end, gone=one.gone)

    def DrainNode(self, request, context):
        node = self._find(request.name, context)
        node.state = nodes_pb2.NODE_STATE_DRAINING
        node.drain.asked_by, node.drain.reason = "kim", request.reason
        if request.HasField("move_after"):
            seconds = int(EPOCH + 86_400) + request.move_after.seconds
            node.drain.move_at.FromSeconds(seconds)
        return nodes_pb2.DrainNodeResponse(node=node)

    def ResumeNode(self, request, context):
        node = self._find(request.name, context)
        node.state = nodes_pb2.NODE_STATE_READY
        node.ClearField("drain")
        node.ClearField("hold")
        return nodes_pb2.ResumeNodeResponse(node=node)

    def FenceNode(self, request, context):
        node = self._find(request.name, context)
        if node.state != nodes_pb2.NODE_STATE_SILENT and not request.force:
            words = f"node {request.name} is not silent"
            return refuse(context, grpc.StatusCode.FAILED_PRECONDITION, words, "STATE_CONFLICT")
        node.state = nodes_pb2.NODE_STATE_FENCED
        node.fence.asked_by, node.fence.reason = "kim", request.reason
        return nodes_pb2.FenceNodeResponse(node=node, sessions=self.state.on_nodes)

    def RemoveNode(self, request, context):
        self.state.nodes.remove(self._find(request.name, context))
        return nodes_pb2.RemoveNodeResponse()

    def GetCluster(self, request, context):
        return nodes_pb2.GetClusterResponse(
            version="0.1.0",
            leader=self.state.leader,
            term=self.state.term,
            coordination="embedded",
            capacity=resources_pb2.Resources(gpu_thousandths=2000, cpu_thousandths=4000),
            allocated=resources_pb2.Resources(gpu_thousandths=500, cpu_thousandths=1000),
            nodes_ready=1,
            nodes_total=2,
            sessions_running=1,
            sessions_held=sum(
                one.state == pb.SESSION_STATE_HELD for one in self.state.sessions.values()
            ),
            simulated=self.state.simulated,
            cluster_id="c1",
            now=Timestamp(seconds=self.state.now) if self.state.now else None,
            known_at=Timestamp(seconds=self.state.known_at) if self.state.known_at else None,
            conditions=self.state.conditions,
        )


class Backups(backups_pb2_grpc.BackupServiceServicer):
    """A platform that keeps one blob."""

    def CreateBackup(self, request, context):
        header = backups_pb2.BackupHeader(
            cluster_id="c1", version="0.2.0", data_version=2, revision=7
        )
        header.taken_at.FromSeconds(int(EPOCH))
        yield backups_pb2.CreateBackupResponse(header=header)
        for part, data in (
            ("store", b"records"),
            ("history", b""),
            ("objects", f"{digest_of(b'blob')}\n".encode()),
        ):
            yield backups_pb2.CreateBackupResponse(
                part=backups_pb2.BackupPart(name=part, data=data)
            )
            yield backups_pb2.CreateBackupResponse(
                part=backups_pb2.BackupPart(name=part, digest=digest_of(data))
            )

    def GetBackupBlobs(self, request, context):
        for digest in request.digests:
            yield backups_pb2.GetBackupBlobsResponse(digest=digest, data=b"blob", last=True)


class Telemetry(telemetry_pb2_grpc.TelemetryServiceServicer):
    def ReadTelemetry(self, request, context):
        told = telemetry_pb2.ReadTelemetryResponse(since=request.since, until=request.until)
        if request.WhichOneof("of") == "session" and not request.HasField("until"):
            told.until.seconds = EPOCH
            told.since.seconds = EPOCH - 10
        names = ["utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius"]
        cells = [(EPOCH - 7, 8), (EPOCH - 2, 4)]
        if request.WhichOneof("of") == "session":
            cells = [one for one in cells if told.since.seconds <= one[0] < told.until.seconds]
        series = told.series.add(at=[at for at, _ in cells])
        if request.cluster:
            names = ["devices", "held", "running", "busy", "utilization_percent", "power_watts"]
        else:
            series.node, series.device_uuid, series.device_index = "gpu-1", "SIM-0", 0
            series.thousandths, series.attempt = 1000, 1
        for name in names:
            count = len(cells)
            means = [mean for _, mean in cells]
            series.figures.add(name=name, least=[1] * count, most=[8] * count, mean=means)
        return told


class Views(views_pb2_grpc.ViewServiceServicer):
    """The caller's views, which nobody serves."""

    def __init__(self, state):
        self.state = state

    def OpenView(self, request, context):
        found = [self.state.find(one, context).name for one in request.sessions]
        name = f"v{len(self.state.views)}"
        view = views_pb2.View(id=name, owner="kim", sessions=found, kind=request.kind)
        self.state.views[view.id] = view
        url = f"http://127.0.0.1:1/view/{view.id}/?ticket=t"
        return views_pb2.OpenViewResponse(view=view, url=url)

    def ListViews(self, request, context):
        return views_pb2.ListViewsResponse(views=self.state.views.values())

    def StopView(self, request, context):
        del self.state.views[request.id]
        return views_pb2.StopViewResponse()


class Audits(audit_pb2_grpc.AuditServiceServicer):
    """Three rows, each on a page of its own."""

    def __init__(self, state):
        self.state = state

    def ListAuditRows(self, request, context):
        rows = [
            audit_pb2.AuditRow(actor="kim", method="NodeService/DrainNode", outcome="NOT_FOUND"),
            audit_pb2.AuditRow(
                actor="kim", method="ContentService/PutBlobs", outcome="OK", calls=7
            ),
            audit_pb2.AuditRow(actor="root", method="AccountService/CreateUser", target="lee"),
        ]
        for row in rows:
            row.at.seconds = EPOCH
        found = [
            row
            for row in rows
            if request.actor in {"", row.actor}
            and request.method in {"", row.method}
            and (row.outcome != "OK" or row.method not in request.without)
        ]
        at = int(request.cursor or 0)
        more = str(at + 1) if at + 1 < len(found) else ""
        return audit_pb2.ListAuditRowsResponse(rows=found[at : at + 1], next_cursor=more)


class Secrets(secrets_pb2_grpc.SecretServiceServicer):
    def __init__(self, state):
        self.state = state

    def SetSecret(self, request, context):
        self.state.secrets[request.name] = request.value
        return secrets_pb2.SetSecretResponse(secret=self.told(request.name))

    def told(self, name):
        told = secrets_pb2.Secret(name=name, size_bytes=len(self.state.secrets[name]))
        told.created_at.seconds = told.updated_at.seconds = EPOCH
        return told

    def ListSecrets(self, request, context):
        if request.user:
            return secrets_pb2.ListSecretsResponse()
        names = sorted(self.state.secrets)
        return secrets_pb2.ListSecretsResponse(secrets=[self.told(name) for name in names])

    def RemoveSecret(self, request, context):
        if self.state.secrets.pop(request.name, None) is None:
            refuse(context, grpc.StatusCode.NOT_FOUND, "there is no such secret", "NOT_FOUND")
        return secrets_pb2.RemoveSecretResponse()

    def SetRegistryLogin(self, request, context):
        self.state.logins[request.registry] = (request.registry_user, request.password)
        return secrets_pb2.SetRegistryLoginResponse(login=self.access(request.registry))

    def access(self, registry):
        told = secrets_pb2.RegistryAccess(
            registry=registry, registry_user=self.state.logins[registry][0]
        )
        told.updated_at.seconds = EPOCH
        return told

    def ListRegistryLogins(self, request, context):
        logins = {} if request.user else self.state.logins
        return secrets_pb2.ListRegistryLoginsResponse(logins=map(self.access, sorted(logins)))

    def RemoveRegistryLogin(self, request, context):
        if self.state.logins.pop(request.registry, None) is None:
            refuse(context, grpc.StatusCode.NOT_FOUND, "there is no such login", "NOT_FOUND")
        return secrets_pb2.RemoveRegistryLoginResponse()


class SshKeys(ssh_keys_pb2_grpc.SshKeyServiceServicer):
    def __init__(self, state):
        self.state = state

    def AddSshKey(self, request, context):
        return ssh_keys_pb2.AddSshKeyResponse(
            key=self.state.add_key(request.public_key, request.name)
        )

    def ListSshKeys(self, request, context):
        keys = {} if request.user else self.state.keys
        return ssh_keys_pb2.ListSshKeysResponse(keys=[keys[name] for name in sorted(keys)])

    def RemoveSshKey(self, request, context):
        if self.state.keys.pop(request.name, None) is None:
            refuse(context, grpc.StatusCode.NOT_FOUND, "there is no such key", "NOT_FOUND")
        return ssh_keys_pb2.RemoveSshKeyResponse()

    def GetJumpHost(self, request, context):
        return self.state.jump_host


class Webhooks(webhooks_pb2_grpc.WebhookServiceServicer):
    def __init__(self, state):
        self.state = state

    def told(self):
        told = webhooks_pb2.Webhook(origin="/".join(self.state.webhook.split("/")[:3]))
        told.set_at.seconds = EPOCH
        told.events.extend(self.state.webhook_events)
        return told

    def SetWebhook(self, request, context):
        self.state.webhook = request.url
        both = [webhooks_pb2.WEBHOOK_EVENT_ENDED, webhooks_pb2.WEBHOOK_EVENT_IDLE]
        self.state.webhook_events = list(request.events) or both
        return webhooks_pb2.SetWebhookResponse(webhook=self.told())

    def GetWebhook(self, request, context):
        return webhooks_pb2.GetWebhookResponse(webhook=self.told() if self.state.webhook else None)

    def RemoveWebhook(self, request, context):
        self.state.webhook = ""
        return webhooks_pb2.RemoveWebhookResponse()

    def TestWebhook(self, request, context):
        if not self.state.webhook:
            refuse(context, grpc.StatusCode.NOT_FOUND, "no webhook is set", "NOT_FOUND")
        return webhooks_pb2.TestWebhookResponse(status=204)


class Projects(projects_pb2_grpc.ProjectServiceServicer):
    def __init__(self, state):
        self.state = state

    def known(self, request, context):
        if request.name not in self.state.projects:
            refuse(context, grpc.StatusCode.NOT_FOUND, "there is no such project", "NOT_FOUND")
        return self.state.projects[request.name]

    def CreateProject(self, request, context):
        if request.name in self.state.projects:
            refuse(context, grpc.StatusCode.ALREADY_EXISTS, "it exists", "ALREADY_EXISTS")
        made = projects_pb2.Project(name=request.name, settings=request.settings)
        made.settings.weight = made.settings.weight or 1.0
        made.settings.most_priority = made.settings.most_priority or pb.PRIORITY_HIGH
        made.members.extend(sorted({*request.members, request.settings.owner} - {""}))
        made.member_count = len(made.members)
        made.created_at.seconds = EPOCH
        self.state.projects[request.name] = made
        return projects_pb2.CreateProjectResponse(project=made)

    def GetProject(self, request, context):
        answer = projects_pb2.GetProjectResponse(project=self.known(request, context))
        answer.holders.add(user="kim", gpu_thousandths=8000, sessions=1)
        answer.sessions.append("kim/mnist/1")
        answer.hidden_sessions = 2
        return answer

    def GetProjectStorage(self, request, context):
        storage = projects_pb2.ProjectStorage(project=self.known(request, context).name)
        storage.usage.kept_bytes = 900
        storage.usage.kinds.add(kind=accounts_pb2.KEPT_KIND_CHECKPOINTS, bytes=800)
        storage.usage.largest.add(
            name="kim/mnist/1", kind=accounts_pb2.KEPT_KIND_CHECKPOINTS, bytes=700
        )
        storage.usage.limit_bytes = 1000
        storage.usage.counted_at.seconds = EPOCH + 86_100
        storage.users.add(user="kim", bytes=700)
        storage.users.add(user="lee", bytes=90)
        return projects_pb2.GetProjectStorageResponse(storage=storage)

    def ListProjectStorage(self, request, context):
        storage = projects_pb2.ProjectStorage(project="vision")
        storage.usage.kept_bytes = 900
        return projects_pb2.ListProjectStorageResponse(storage=[storage])

    def ListProjects(self, request, context):
        found = [self.state.projects[name] for name in sorted(self.state.projects)]
        page, cursor = page_of(found, request)
        return projects_pb2.ListProjectsResponse(projects=page, next_cursor=cursor)

    def UpdateProject(self, request, context):
        known = self.known(request, context)
        known.settings.MergeFrom(request.settings)
        if request.without_budget:
            known.settings.ClearField("budget")
        return projects_pb2.UpdateProjectResponse(project=known)

    def DeleteProject(self, request, context):
        del self.state.projects[self.known(request, context).name]
        return projects_pb2.DeleteProjectResponse()

    def ChangeMembers(self, request, context):
        known = self.known(request, context)
        members = sorted({*known.members, *request.add} - {*request.remove})
        unchanged = {*request.add, *request.remove} - ({*known.members} ^ {*members})
        del known.members[:]
        known.members.extend(members)
        known.member_count = len(members)
        return projects_pb2.ChangeMembersResponse(project=known, unchanged=sorted(unchanged))


class Accounts(accounts_pb2_grpc.AccountServiceServicer):
    def __init__(self, state):
        self.state = state

    def caller(self, context):
        metadata = dict(context.invocation_metadata())
        return metadata["authorization"].removeprefix("Bearer ")

    def GetCaller(self, request, context):
        name = self.state.tokens[self.caller(context)]
        return accounts_pb2.GetCallerResponse(user=self.state.users[name], cluster_id="c1")

    def CreateUser(self, request, context):
        if request.name in self.state.users:
            refuse(context, grpc.StatusCode.ALREADY_EXISTS, "the name is taken", "ALREADY_EXISTS")
        made = accounts_pb2.User(name=request.name, role=request.role, team=request.team)
        made.created_at.seconds = EPOCH
        self.state.users[request.name] = made
        return accounts_pb2.CreateUserResponse(user=made)

    def ListUsers(self, request, context):
        users = [self.state.users[name] for name in sorted(self.state.users)]
        page, cursor = page_of(users, request)
        return accounts_pb2.ListUsersResponse(users=page, next_cursor=cursor)

    def DeleteUser(self, request, context):
        if request.name == "kim":
            refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                "the last administrator",
                "LAST_ADMINISTRATOR",
            )
        del self.state.users[request.name]
        return accounts_pb2.DeleteUserResponse()

    def UpdateUser(self, request, context):
        if request.name not in self.state.users:
            refuse(context, grpc.StatusCode.NOT_FOUND, "no such user", "NOT_FOUND")
        self.state.kept_limits[request.name] = request
        return accounts_pb2.UpdateUserResponse()

    def GetUsage(self, request, context):
        usage = accounts_pb2.Usage(user=request.user or "kim", kept_bytes=900, sent_bytes=100)
        usage.kinds.add(kind=accounts_pb2.KEPT_KIND_CHECKPOINTS, bytes=800)
        usage.largest.add(name="kim/mnist/1", kind=accounts_pb2.KEPT_KIND_CHECKPOINTS, bytes=700)
        usage.largest.add(
            name="kim/mnist/2", kind=accounts_pb2.KEPT_KIND_CHECKPOINTS, bytes=100, is_live=True
        )
        usage.largest.add(name="mnist", kind=accounts_pb2.KEPT_KIND_DATASETS, bytes=60)
        usage.counted_at.seconds = EPOCH + 86_100
        usage.limit_bytes, usage.is_full, usage.is_being_counted = 1000, True, True
        return accounts_pb2.GetUsageResponse(usage=usage)

    def ListUsage(self, request, context):
        usage = accounts_pb2.Usage(user="kim", kept_bytes=900, is_own_limit=True)
        every = [usage, accounts_pb2.Usage(user="lee"), *self.state.further_usage]
        page, cursor = page_of(every, request)
        return accounts_pb2.ListUsageResponse(usage=page, next_cursor=cursor)

    def CreateToken(self, request, context):
        token = f"token-of-{request.user or 'kim'}"
        self.state.tokens[token] = request.user or "kim"
        answer = accounts_pb2.CreateTokenResponse(token=token, address=self.state.login_address)
        answer.expires_at.seconds = EPOCH + (request.valid_for.seconds or 30 * 86400)
        return answer

    def RevokeToken(self, request, context):
        user = request.user
        gone = [
            t
            for t, u in self.state.tokens.items()
            if (u == user if user else t == self.caller(context))
        ]
        for token in gone:
            del self.state.tokens[token]
        return accounts_pb2.RevokeTokenResponse(revoked=len(gone))

    def CreateJoinToken(self, request, context):
        answer = accounts_pb2.CreateJoinTokenResponse(
            token="SECRET.DIGEST", address=self.state.join_address
        )
        answer.expires_at.seconds = EPOCH + 3600
        return answer


class Gate(grpc.ServerInterceptor):
    """Notes calls; refuses those without a valid token."""

    def __init__(self, state):
        self.state = state

    def intercept_service(self, continuation, details):
        method = details.method.rpartition("/")[2]
        self.state.calls.append(method)
        token = dict(details.invocation_metadata).get("authorization", "").removeprefix("Bearer ")
        found = continuation(details)
        is_away = method in self.state.away
        if token in self.state.tokens and not is_away:
            return found

        def unary(_request, context):
            if is_away:
                refuse(context, grpc.StatusCode.UNAVAILABLE, "it is away for now", "UNAVAILABLE")
            refuse(context, grpc.StatusCode.UNAUTHENTICATED, "no valid token", "NOT_SIGNED_IN")

        if found.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                unary, found.request_deserializer, found.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            unary, found.request_deserializer, found.response_serializer
        )


class ContractServer:
    """The platform listening on a loopback port and a Unix socket.

    `cut` and `restore` break connections.
    """

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State()
        self.folder = tempfile.TemporaryDirectory(prefix="nsml-")
        self._ports = Held()
        self.port = self._ports.free()
        self.server: grpc.Server | None = None
        self.pool: ThreadPoolExecutor | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def socket(self) -> str:
        return f"{self.folder.name}/socket"

    def __enter__(self) -> Self:
        self.restore()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cut()
        self.folder.cleanup()
        self._ports.close()

    def restore(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=16)
        self.server = grpc.server(
            self.pool,
            interceptors=[Gate(self.state)],
            # Pings are taken as often as clients of several control planes send them.
            options=(
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 50),
            ),
        )
        sessions_pb2_grpc.add_SessionServiceServicer_to_server(Sessions(self.state), self.server)
        content_pb2_grpc.add_ContentServiceServicer_to_server(Content(self.state), self.server)
        datasets_pb2_grpc.add_DatasetServiceServicer_to_server(Datasets(self.state), self.server)
        checkpoints_pb2_grpc.add_CheckpointServiceServicer_to_server(
            Checkpoints(self.state), self.server
        )
        environments_pb2_grpc.add_EnvironmentServiceServicer_to_server(
            Environments(self.state), self.server
        )
        artifacts_pb2_grpc.add_ArtifactServiceServicer_to_server(Artifacts(self.state), self.server)
        session_backups_pb2_grpc.add_SessionBackupServiceServicer_to_server(
            SessionBackups(self.state), self.server
        )
        media_pb2_grpc.add_MediaServiceServicer_to_server(Media(self.state), self.server)
        nodes_pb2_grpc.add_NodeServiceServicer_to_server(Nodes(self.state), self.server)
        accounts_pb2_grpc.add_AccountServiceServicer_to_server(Accounts(self.state), self.server)
        backups_pb2_grpc.add_BackupServiceServicer_to_server(Backups(), self.server)
        telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server(Telemetry(), self.server)
        webhooks_pb2_grpc.add_WebhookServiceServicer_to_server(Webhooks(self.state), self.server)
        audit_pb2_grpc.add_AuditServiceServicer_to_server(Audits(self.state), self.server)
        secrets_pb2_grpc.add_SecretServiceServicer_to_server(Secrets(self.state), self.server)
        ssh_keys_pb2_grpc.add_SshKeyServiceServicer_to_server(SshKeys(self.state), self.server)
        views_pb2_grpc.add_ViewServiceServicer_to_server(Views(self.state), self.server)
        projects_pb2_grpc.add_ProjectServiceServicer_to_server(Projects(self.state), self.server)
        boards_pb2_grpc.add_BoardServiceServicer_to_server(Boards(self.state, refuse), self.server)
        boards_pb2_grpc.add_SubmissionServiceServicer_to_server(
            Submissions(self.state, refuse), self.server
        )
        competitions_pb2_grpc.add_CompetitionServiceServicer_to_server(
            Competitions(self.state, refuse), self.server
        )
        deadline = time.monotonic() + 60
        while True:  # the port of a server that was just cut may be held for a moment
            try:
                self.server.add_insecure_port(f"127.0.0.1:{self.port}")
                break
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self.server.add_insecure_port(f"unix:{self.socket}")
        self.server.start()

    def cut(self) -> None:
        if self.server is not None and self.pool is not None:
            self.server.stop(grace=None).wait(10)
            with self.state.changed:
                self.state.changed.notify_all()
            self.pool.shutdown(wait=True)
            self.server = None
