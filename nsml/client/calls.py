"""The calls of the contract, one class per service.

Responses are the contract's own messages. Every method raises `nsml.client.errors.ClientError`.
For streams that survive reconnects see `streams`, for content `content`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from nsml.client.errors import NotFound, Unavailable
from nsml.client.rpc import DEADLINE_S, Rpc
from nsml.common.clock import SystemClock
from nsml.spec.evaluation import USUAL_LIMIT_S, USUAL_WAIT_S

if TYPE_CHECKING:
    import os
    import random
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from google.protobuf.timestamp_pb2 import Timestamp

    from nsml.client.board_calls import Boards, Submissions
    from nsml.client.channel import Channel
    from nsml.client.competition_calls import Competitions
    from nsml.client.endpoints import Endpoints
    from nsml.client.programs import RemoteProgram
    from nsml.client.ssh import SshServer
    from nsml.client.sync import SessionFolder
    from nsml.client.tunnels import Tunnel
    from nsml.common.clock import Clock
    from nsml.copying.messages import Report
    from nsml.v1 import accounts_pb2 as accounts
    from nsml.v1 import artifacts_pb2 as artifacts
    from nsml.v1 import audit_pb2 as audit
    from nsml.v1 import backups_pb2 as backups
    from nsml.v1 import checkpoints_pb2 as checkpoints
    from nsml.v1 import content_pb2 as content
    from nsml.v1 import datasets_pb2 as datasets
    from nsml.v1 import media_pb2 as media
    from nsml.v1 import nodes_pb2 as nodes
    from nsml.v1 import projects_pb2 as projects
    from nsml.v1 import resources_pb2 as resources
    from nsml.v1 import secrets_pb2 as secrets
    from nsml.v1 import sessions_pb2 as sessions
    from nsml.v1 import ssh_keys_pb2 as ssh_keys
    from nsml.v1 import telemetry_pb2 as telemetry
    from nsml.v1 import views_pb2 as views
    from nsml.v1 import webhooks_pb2 as webhooks

    Listed = TypeVar(
        "Listed",
        sessions.ListMetricsResponse,
        datasets.ListDatasetsResponse,
        datasets.ListDatasetVersionsResponse,
        nodes.ListNodesResponse,
        checkpoints.ListCheckpointsResponse,
        artifacts.ListArtifactsResponse,
        accounts.ListUsersResponse,
        accounts.ListUsageResponse,
        projects.ListProjectsResponse,
    )

# The messages of a service are imported by its first call, so that commands start fast.

_CREATE_RETRIES_S = (0.2, 0.5, 1.0)
_PAGE = 1000


def fitting(
    found: Sequence[sessions.Session], chosen: sessions.SessionFilter
) -> Sequence[sessions.Session]:
    """Return the sessions that fit those fields of a filter that control planes of the version before ignore."""
    if project := chosen.project:
        found = [one for one in found if (one.project or one.owner) == project]
    if chosen.without_submission_steps:
        from nsml.spec.submission_steps import is_step

        found = [one for one in found if not is_step(one.spec)]
    return found


class Client:
    """One user's view of one platform, over any channels with gRPC's four kinds of call.

    `rng`: for the jitter of reconnecting streams.
    """

    def __init__(
        self,
        channel: Channel | Endpoints,
        *,
        token: str | None = None,
        deadline_s: float = DEADLINE_S,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.rng = rng
        self.rpc = Rpc(channel, token=token, deadline_s=deadline_s)
        self.sessions = Sessions(self.rpc, self.clock)
        self.datasets = Datasets(self.rpc)
        self.checkpoints = Checkpoints(self.rpc)
        self.environments = Environments(self.rpc)
        self.artifacts = Artifacts(self.rpc)
        self.media = Media(self.rpc)
        self.nodes = Nodes(self.rpc)
        self.accounts = Accounts(self.rpc)
        self.secrets = Secrets(self.rpc)
        self.ssh_keys = SshKeys(self.rpc)
        self.views = Views(self.rpc)
        self.webhooks = Webhooks(self.rpc)
        self.projects = Projects(self.rpc)
        self.backups = Backups(self.rpc)
        self.audit = Audit(self.rpc)
        self.telemetry = Telemetry(self.rpc, self.clock)

    @cached_property
    def boards(self) -> Boards:
        """BoardService."""
        from nsml.client.board_calls import Boards

        return Boards(self.rpc)

    @cached_property
    def submissions(self) -> Submissions:
        """SubmissionService."""
        from nsml.client.board_calls import Submissions

        return Submissions(self.rpc, self.clock)

    @cached_property
    def competitions(self) -> Competitions:
        """CompetitionService."""
        from nsml.client.competition_calls import Competitions

        return Competitions(self.rpc)

    def verify_storage(self) -> AsyncGenerator[content.VerifyStorageResponse, None]:
        """Administrators: verify all stored content; yields progress, then damaged content."""
        from nsml.v1 import content_pb2 as pb

        request = pb.VerifyStorageRequest()
        return self.rpc.stream("ContentService/VerifyStorage", request, pb.VerifyStorageResponse)

    def repair_storage(self) -> AsyncGenerator[content.RepairStorageResponse, None]:
        """As `verify_storage`, and repair damage from copies in other packs."""
        from nsml.v1 import content_pb2 as pb

        request = pb.RepairStorageRequest()
        return self.rpc.stream("ContentService/RepairStorage", request, pb.RepairStorageResponse)

    async def repair_content(
        self, digest: str, *, is_from_start: bool
    ) -> content.RepairContentResponse:
        """Repair some content from copies on nodes, for some seconds; `is_from_start`: the first of several calls."""
        from nsml.v1 import content_pb2 as pb

        request = pb.RepairContentRequest(digest=digest, is_from_start=is_from_start)
        return await self.rpc.unary(
            "ContentService/RepairContent", request, pb.RepairContentResponse, is_retried=True
        )


class Sessions:
    """SessionService. A `reference` is any form that the contract allows."""

    def __init__(self, rpc: Rpc, clock: Clock) -> None:
        self._rpc = rpc
        self._clock = clock

    async def check(self, request: sessions.CreateSessionRequest) -> None:
        """Raise what `create` would raise now, whether or not the code has been sent."""
        from nsml.v1 import sessions_pb2 as pb

        checked = pb.CreateSessionRequest()
        checked.CopyFrom(request)
        checked.validate_only = True
        await self._create(checked, pb.CreateSessionResponse)

    async def create(self, request: sessions.CreateSessionRequest) -> sessions.Session:
        """Submit. Retries if nobody answers: the request id makes that safe."""
        from nsml.v1 import sessions_pb2 as pb

        for delay_s in _CREATE_RETRIES_S:
            try:
                return (await self._create(request, pb.CreateSessionResponse)).session
            except Unavailable as error:
                if error.retry_after_s is not None:
                    raise  # the server answered with a time to retry
                await self._clock.sleep(delay_s)
        return (await self._create(request, pb.CreateSessionResponse)).session

    async def _create(
        self,
        request: sessions.CreateSessionRequest,
        response: type[sessions.CreateSessionResponse],
    ) -> sessions.CreateSessionResponse:
        return await self._rpc.unary("SessionService/CreateSession", request, response)

    async def get(self, reference: str) -> sessions.Session:
        """One session, live or ended."""
        from nsml.v1 import sessions_pb2 as pb

        request = pb.GetSessionRequest(session=reference)
        answer = await self._rpc.unary("SessionService/GetSession", request, pb.GetSessionResponse)
        return answer.session

    async def page(self, request: sessions.ListSessionsRequest) -> sessions.ListSessionsResponse:
        """One page of sessions, newest first."""
        from nsml.v1 import sessions_pb2 as pb

        return await self._rpc.unary(
            "SessionService/ListSessions", request, pb.ListSessionsResponse
        )

    async def every(
        self,
        chosen: sessions.SessionFilter,
        *,
        limit: int | None = None,
        summary_names: Sequence[str] = (),
        short: bool = False,
        on_missing: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[sessions.Session, None]:
        """Yield sessions newest first, page by page; at most `limit`.

        Their summaries have the first values, and those of `summary_names`. `short`: long commands and environments
        are truncated (`nsml.view.complete_sessions`). `on_missing` is called for each page without ended sessions, if the
        history is unavailable.
        """
        from nsml.v1 import sessions_pb2 as pb

        cursor = ""
        left = limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = await self.page(
                pb.ListSessionsRequest(
                    filter=chosen,
                    page_size=size,
                    cursor=cursor,
                    summary_names=summary_names,
                    short=short,
                )
            )
            if page.ended_missing:
                on_missing()
            found = fitting(page.sessions, chosen)[:left]
            for session in found:
                yield session
            cursor = page.next_cursor
            if not cursor:
                return
            left = None if left is None else left - len(found)

    async def explain(
        self, reference: str, what_if: sessions.WhatIf | None = None
    ) -> sessions.ExplainSessionResponse:
        """Explain why it waits; with `what_if` also the effect of a change: StateConflict if it does not wait."""
        from nsml.v1 import sessions_pb2 as pb

        request = pb.ExplainSessionRequest(session=reference, what_if=what_if)
        return await self._rpc.unary(
            "SessionService/ExplainSession", request, pb.ExplainSessionResponse
        )

    async def queue(
        self, *, owners: Sequence[str] = (), project: str = "", limit: int | None = None
    ) -> list[sessions.ListQueueResponse]:
        """Return the queue in order, as pages: at least one, with at most `limit` sessions in all."""
        from nsml.v1 import sessions_pb2 as pb

        request = pb.ListQueueRequest(owners=owners, project=project)
        pages: list[pb.ListQueueResponse] = []
        left = limit
        while not pages or request.cursor:
            request.page_size = _PAGE if left is None else min(left, _PAGE)
            page = await self._rpc.unary("SessionService/ListQueue", request, pb.ListQueueResponse)
            pages.append(page)
            request.cursor = page.next_cursor
            if left is not None and (left := left - len(page.sessions)) <= 0:
                break
        return pages

    async def stop(
        self, reference: str, *, grace_s: float | None = None, reason: str = ""
    ) -> sessions.Session:
        """Record a request to stop it; AlreadyEnded if it has ended."""
        from google.protobuf.duration_pb2 import Duration

        from nsml.v1 import sessions_pb2 as pb

        request = pb.StopSessionRequest(session=reference, reason=reason)
        if grace_s is not None:
            request.grace.CopyFrom(Duration(nanos=round(grace_s % 1 * 1e9), seconds=int(grace_s)))
        answer = await self._rpc.unary(
            "SessionService/StopSession", request, pb.StopSessionResponse, is_retried=True
        )
        return answer.session

    async def requeue(
        self, reference: str, *, reason: str = "", force: bool = False
    ) -> sessions.Session:
        """Checkpoint and requeue a running session, or release a held one; StateConflict if it is neither, or not resumable."""
        from nsml.v1 import sessions_pb2 as pb

        request = pb.RequeueSessionRequest(session=reference, reason=reason, force=force)
        answer = await self._rpc.unary(
            "SessionService/RequeueSession", request, pb.RequeueSessionResponse
        )
        return answer.session

    async def change_program(
        self,
        reference: str,
        kind: sessions.ProgramChangeKind,
        *,
        values: Mapping[str, str] | None = None,
        checkpoint: str = "",
        checkpoint_session: str = "",
        limit_s: float | None = None,
        at: int | None = None,
        wait_s: float | None = None,
    ) -> sessions.Session:
        """Request a change of its running programs: the last of the session's `changes`. `values`: JSON by knob.

        Raises:
            StateConflict: it does not run, or another change is pending.
        """
        from nsml.v1 import sessions_pb2 as pb

        request = pb.ChangeProgramRequest(
            session=reference,
            kind=kind,
            values=values,
            checkpoint=checkpoint,
            checkpoint_session=checkpoint_session,
            at=at,
        )
        if limit_s is not None:
            request.limit.FromNanoseconds(round(limit_s * 1e9))
        if wait_s is not None:
            request.wait.FromNanoseconds(round(wait_s * 1e9))
        return await self._changed(request)

    async def withdraw_change(self, reference: str) -> sessions.Session:
        """Withdraw the undecided change; StateConflict: there is none."""
        from nsml.v1 import sessions_pb2 as pb

        return await self._changed(pb.ChangeProgramRequest(session=reference, withdraw=True))

    async def _changed(self, request: sessions.ChangeProgramRequest) -> sessions.Session:
        from nsml.v1 import sessions_pb2 as pb

        answer = await self._rpc.unary(
            "SessionService/ChangeProgram", request, pb.ChangeProgramResponse
        )
        return answer.session

    async def remove(self, reference: str) -> str:
        """Remove an ended session and its data; return its full name. StillLive before its end."""
        from nsml.v1 import sessions_pb2 as pb

        request = pb.RemoveSessionRequest(session=reference)
        answer = await self._rpc.unary(
            "SessionService/RemoveSession", request, pb.RemoveSessionResponse
        )
        return answer.name

    async def update(
        self,
        reference: str,
        *,
        memo: str | None = None,
        visibility: resources.Visibility | None = None,
    ) -> sessions.Session:
        """Update a session; None: unchanged."""
        from nsml.v1 import sessions_pb2 as pb

        request = pb.UpdateSessionRequest(session=reference, memo=memo)
        if visibility is not None:
            request.visibility = visibility
        answer = await self._rpc.unary(
            "SessionService/UpdateSession", request, pb.UpdateSessionResponse
        )
        return answer.session

    async def metrics(self, reference: str) -> list[sessions.Metric]:
        """Return its metrics by name, with their numbers of points."""
        from nsml.v1 import sessions_pb2 as pb

        request = pb.ListMetricsRequest(session=reference)
        pages = _pages(self._rpc, "SessionService/ListMetrics", request, pb.ListMetricsResponse)
        return [metric async for page in pages for metric in page.metrics]

    async def let_go(self, reference: str) -> Timestamp:
        """Return when its points were last removed, leaving their columns; 0 if never."""
        from nsml.v1 import sessions_pb2 as pb

        request = pb.ListMetricsRequest(session=reference)
        answer = await self._rpc.unary(
            "SessionService/ListMetrics", request, pb.ListMetricsResponse
        )
        return answer.let_go

    def open_tunnel(
        self, reference: str, service: str, *, rank: int = 0
    ) -> AbstractAsyncContextManager[Tunnel]:
        """Open a byte stream to a service of a replica; see `nsml.client.tunnels`."""
        from nsml.client.tunnels import open_tunnel

        return open_tunnel(self._rpc, reference, service, rank=rank)

    async def check_service(self, reference: str, service: str, *, rank: int = 0) -> None:
        """Raise NoSuchService unless something listens there; makes no connection to a TCP port."""
        from nsml.client.tunnels import check_service

        await check_service(self._rpc, reference, service, rank=rank)

    async def processes(self, reference: str, *, rank: int = 0) -> sessions.ReplicaProcesses:
        """Return a replica's current processes; raises as `nsml.client.tunnels.processes`."""
        from nsml.client.tunnels import processes

        return await processes(self._rpc, reference, rank=rank)

    def open_program(
        self,
        reference: str,
        argv: Sequence[str],
        *,
        rank: int = 0,
        environment: Mapping[str, str] | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> AbstractAsyncContextManager[RemoteProgram]:
        """Start a program in a running replica; see `nsml.client.programs`."""
        from nsml.client.programs import open_program

        return open_program(
            self._rpc, reference, argv, rank=rank, environment=environment, terminal=terminal
        )

    async def copy_out(
        self,
        reference: str,
        path: str,
        target: str | os.PathLike[str],
        *,
        rank: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Copy files out of a running replica; see `nsml.client.files`."""
        from nsml.client.files import copy_out

        return await copy_out(self._rpc, reference, path, target, rank=rank, progress=progress)

    async def copy_in(
        self,
        reference: str,
        source: str | os.PathLike[str],
        path: str,
        *,
        rank: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> Report:
        """Copy files into a running replica; see `nsml.client.files`."""
        from nsml.client.files import copy_in

        return await copy_in(self._rpc, reference, source, path, rank=rank, progress=progress)

    def open_folder(
        self, reference: str, *, path: str = ".", rank: int = 0
    ) -> AbstractAsyncContextManager[SessionFolder]:
        """Open a folder in a running replica to synchronize with a local one; see `nsml.client.sync`."""
        from nsml.client.sync import open_folder

        return open_folder(self._rpc, reference, path, rank=rank)

    def open_ssh(self, reference: str, *, rank: int = 0) -> AbstractAsyncContextManager[SshServer]:
        """Start an ssh server in a running replica; see `nsml.client.ssh`."""
        from nsml.client.ssh import open_ssh

        return open_ssh(self._rpc, reference, rank=rank)

    async def evaluate(
        self,
        reference: str,
        expression: str,
        *,
        rank: int = 0,
        local_rank: int = 0,
        limit_s: float = USUAL_LIMIT_S,
        wait_s: float = USUAL_WAIT_S,
        told: Callable[[sessions.EvaluateResponse], None] | None = None,
    ) -> sessions.Evaluated:
        """Evaluate code in a replica's program; see `nsml.client.expressions`."""
        from nsml.client.expressions import evaluate

        return await evaluate(
            self._rpc,
            reference,
            expression,
            rank=rank,
            local_rank=local_rank,
            limit_s=limit_s,
            wait_s=wait_s,
            told=told,
        )

    async def stacks(
        self, reference: str, *, rank: int = 0, with_locals: bool = False
    ) -> sessions.ReplicaStacks:
        """Return the stacks of a replica's Python programs; raises as `nsml.client.tunnels.stacks`."""
        from nsml.client.tunnels import stacks

        return await stacks(self._rpc, reference, rank=rank, with_locals=with_locals)


class Datasets:
    """DatasetService."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def check(self, request: datasets.CreateDatasetVersionRequest) -> None:
        """Raise what `create_version` would raise now, whether or not the content has been sent."""
        from nsml.v1 import datasets_pb2 as pb

        checked = pb.CreateDatasetVersionRequest()
        checked.CopyFrom(request)
        checked.validate_only = True
        await self.create_version(checked)

    async def create_version(
        self, request: datasets.CreateDatasetVersionRequest
    ) -> datasets.CreateDatasetVersionResponse:
        """Create the newest version from uploaded content."""
        from nsml.v1 import datasets_pb2 as pb

        return await self._rpc.unary(
            "DatasetService/CreateDatasetVersion", request, pb.CreateDatasetVersionResponse
        )

    async def every(
        self, name_glob: str = "", *, words: Sequence[str] = ()
    ) -> list[datasets.Dataset]:
        """Return the datasets visible to the caller, by name; all `words` must match."""
        from nsml.v1 import datasets_pb2 as pb

        request = pb.ListDatasetsRequest(name_glob=name_glob, words=words, page_size=_PAGE)
        pages = _pages(self._rpc, "DatasetService/ListDatasets", request, pb.ListDatasetsResponse)
        return [dataset async for page in pages for dataset in page.datasets]

    async def removed(self, name_glob: str = "") -> list[datasets.Dataset]:
        """Removed versions that the caller may restore, by name."""
        from nsml.v1 import datasets_pb2 as pb

        request = pb.ListDatasetsRequest(name_glob=name_glob, removed=True, page_size=_PAGE)
        pages = _pages(self._rpc, "DatasetService/ListDatasets", request, pb.ListDatasetsResponse)
        # Control planes of the version before list existing datasets instead.
        return [one async for page in pages for one in page.datasets if one.HasField("removed_at")]

    async def get(self, name: str, version: int = 0, tag: str = "") -> datasets.Dataset:
        """Return a version of NAME or OWNER/NAME; 0 without a tag: the newest."""
        found = (await self.look(name, version, tag)).dataset
        if tag and tag not in found.tags:
            # Control planes of the version before ignore tags and return the newest version.
            raise NotFound(f"{name} has no tag {tag!r}", reason="NOT_FOUND")
        return found

    async def look(self, name: str, version: int = 0, tag: str = "") -> datasets.GetDatasetResponse:
        """As `get`, with the sessions that use it, if visible to the caller."""
        from nsml.v1 import datasets_pb2 as pb

        request = pb.GetDatasetRequest(name=name, version=version, tag=tag)
        return await self._rpc.unary("DatasetService/GetDataset", request, pb.GetDatasetResponse)

    async def versions(
        self, name: str, *, with_removed: bool = False, limit: int | None = None
    ) -> list[datasets.Dataset]:
        """Return the versions of a dataset, newest first; at most `limit`."""
        from nsml.v1 import datasets_pb2 as pb

        size = _PAGE if limit is None else min(limit, _PAGE)
        request = pb.ListDatasetVersionsRequest(
            name=name, with_removed=with_removed, page_size=size
        )
        method, response = "DatasetService/ListDatasetVersions", pb.ListDatasetVersionsResponse
        found: list[datasets.Dataset] = []
        async for page in _pages(self._rpc, method, request, response):
            found += page.versions
            if limit is not None and len(found) >= limit:
                break
        return found[:limit]

    async def update(
        self,
        name: str,
        *,
        visibility: resources.Visibility | None = None,
        description: str | None = None,
        parts: Sequence[datasets.DatasetPart] = (),
    ) -> datasets.Dataset:
        """Update a dataset's visibility, description or parts; None: unchanged."""
        from nsml.v1 import datasets_pb2 as pb

        request = pb.UpdateDatasetRequest(
            name=name, visibility=visibility, description=description, parts=parts
        )
        answer = await self._rpc.unary(
            "DatasetService/UpdateDataset", request, pb.UpdateDatasetResponse
        )
        return answer.dataset

    async def tag(
        self, name: str, new_tag: str, version: int = 0, tag: str = ""
    ) -> datasets.TagDatasetVersionResponse:
        """Set a tag on a version."""
        from nsml.v1 import datasets_pb2 as pb

        request = pb.TagDatasetVersionRequest(name=name, version=version, tag=tag, new_tag=new_tag)
        return await self._rpc.unary(
            "DatasetService/TagDatasetVersion", request, pb.TagDatasetVersionResponse
        )

    async def untag(self, name: str, tag: str) -> int:
        """Remove a tag; return its version."""
        from nsml.v1 import datasets_pb2 as pb

        request = pb.UntagDatasetVersionRequest(name=name, tag=tag)
        answer = await self._rpc.unary(
            "DatasetService/UntagDatasetVersion", request, pb.UntagDatasetVersionResponse
        )
        return answer.version

    async def remove(
        self, name: str, version: int = 0, tag: str = ""
    ) -> datasets.RemoveDatasetResponse:
        """Remove a version; 0 without a tag: the whole dataset."""
        from nsml.v1 import datasets_pb2 as pb

        request = pb.RemoveDatasetRequest(name=name, version=version, tag=tag)
        return await self._rpc.unary(
            "DatasetService/RemoveDataset", request, pb.RemoveDatasetResponse
        )

    async def restore(self, name: str, version: int = 0) -> datasets.RestoreDatasetResponse:
        """Restore a removed version; 0: all versions of the last removal."""
        from nsml.v1 import datasets_pb2 as pb

        request = pb.RestoreDatasetRequest(name=name, version=version)
        return await self._rpc.unary(
            "DatasetService/RestoreDataset", request, pb.RestoreDatasetResponse
        )


class Checkpoints:
    """CheckpointService: the calls for users."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def every(self, reference: str) -> list[checkpoints.Checkpoint]:
        """Return the checkpoints of a session, oldest first."""
        return list((await self.listing(reference)).checkpoints)

    async def listing(self, reference: str) -> checkpoints.ListCheckpointsResponse:
        """Return all as one page, with retention and removals."""
        from nsml.v1 import checkpoints_pb2 as pb

        request = pb.ListCheckpointsRequest(session=reference)
        pages = _pages(
            self._rpc, "CheckpointService/ListCheckpoints", request, pb.ListCheckpointsResponse
        )
        whole = pb.ListCheckpointsResponse()
        async for page in pages:
            whole.MergeFrom(page)
        return whole

    async def get(self, reference: str, name: str) -> checkpoints.Checkpoint:
        """Return one checkpoint."""
        from nsml.v1 import checkpoints_pb2 as pb

        request = pb.GetCheckpointRequest(session=reference, name=name)
        answer = await self._rpc.unary(
            "CheckpointService/GetCheckpoint", request, pb.GetCheckpointResponse
        )
        return answer.checkpoint

    async def tag(self, reference: str, name: str, tag: str) -> checkpoints.TagCheckpointResponse:
        """Tag a checkpoint."""
        from nsml.v1 import checkpoints_pb2 as pb

        request = pb.TagCheckpointRequest(session=reference, name=name, tag=tag)
        return await self._rpc.unary(
            "CheckpointService/TagCheckpoint", request, pb.TagCheckpointResponse
        )

    async def untag(self, reference: str, tag: str) -> str:
        """Remove a tag; return the name of its checkpoint."""
        from nsml.v1 import checkpoints_pb2 as pb

        request = pb.UntagCheckpointRequest(session=reference, tag=tag)
        answer = await self._rpc.unary(
            "CheckpointService/UntagCheckpoint", request, pb.UntagCheckpointResponse
        )
        return answer.name

    async def remove(
        self, reference: str, names: Sequence[str], *, including_tagged: bool = False
    ) -> list[str]:
        """Remove checkpoints; return the removed names. Each call removes _PAGE of them, all or none."""
        from nsml.v1 import checkpoints_pb2 as pb

        removed: list[str] = []
        for start in range(0, len(names), _PAGE):
            request = pb.RemoveCheckpointsRequest(
                session=reference,
                names=names[start : start + _PAGE],
                including_tagged=including_tagged,
            )
            answer = await self._rpc.unary(
                "CheckpointService/RemoveCheckpoints", request, pb.RemoveCheckpointsResponse
            )
            removed += answer.removed
        return removed


class Environments:
    """EnvironmentService: the calls for users."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def lock(self, reference: str) -> sessions.EnvironmentLock:
        """Return the locked packages of a session; NotFound if no lock is kept."""
        from nsml.v1 import environments_pb2 as pb

        request = pb.GetEnvironmentLockRequest(session=reference)
        answer = await self._rpc.unary(
            "EnvironmentService/GetEnvironmentLock", request, pb.GetEnvironmentLockResponse
        )
        return answer.lock

    async def on_node(self, node: str) -> Sequence[resources.NodeEnvironment]:
        """Return a node's environments visible to the caller, most recently used first."""
        from nsml.v1 import environments_pb2 as pb

        request = pb.ListEnvironmentsRequest(node=node)
        answer = await self._rpc.unary(
            "EnvironmentService/ListEnvironments", request, pb.ListEnvironmentsResponse
        )
        return answer.environments

    async def build(
        self, node: str, files: resources.EnvironmentFiles
    ) -> resources.EnvironmentBuild:
        """Start building one on a node."""
        from nsml.v1 import environments_pb2 as pb

        request = pb.BuildEnvironmentRequest(node=node, files=files)
        answer = await self._rpc.unary(
            "EnvironmentService/BuildEnvironment", request, pb.BuildEnvironmentResponse
        )
        return answer.build

    async def build_state(
        self, node: str, build_id: str, log_offset: int, *, cancel: bool = False
    ) -> resources.EnvironmentBuild:
        """Return the state of a build, with its log from `log_offset` on; `cancel`: end it."""
        from nsml.v1 import environments_pb2 as pb

        request = pb.GetEnvironmentBuildRequest(
            node=node, build_id=build_id, log_offset=log_offset, cancel=cancel
        )
        answer = await self._rpc.unary(
            "EnvironmentService/GetEnvironmentBuild", request, pb.GetEnvironmentBuildResponse
        )
        return answer.build

    async def remove(self, node: str, key: str) -> None:
        """Remove one from a node, unless it is in use."""
        from nsml.v1 import environments_pb2 as pb

        request = pb.RemoveEnvironmentRequest(node=node, key=key)
        await self._rpc.unary(
            "EnvironmentService/RemoveEnvironment", request, pb.RemoveEnvironmentResponse
        )


class Artifacts:
    """ArtifactService: the calls for users."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def every(self, reference: str, name: str = "") -> list[artifacts.Artifact]:
        """Return the artifacts of a session, oldest first, or the versions of `name`. The same control plane then serves their content."""
        from nsml.v1 import artifacts_pb2 as pb

        request = pb.ListArtifactsRequest(session=reference, name=name)
        pages = _pages(
            self._rpc, "ArtifactService/ListArtifacts", request, pb.ListArtifactsResponse
        )
        return [one async for page in pages for one in page.artifacts]

    async def count_removed(self, reference: str, name: str) -> tuple[int, int]:
        """Return how many versions of an artifact were removed, and how many of them on expiry."""
        from nsml.v1 import artifacts_pb2 as pb

        request = pb.ListArtifactsRequest(session=reference, name=name, page_size=1)
        answer = await self._rpc.unary(
            "ArtifactService/ListArtifacts", request, pb.ListArtifactsResponse
        )
        return answer.removed, answer.expired

    async def remove(self, reference: str, versions: Sequence[tuple[str, int]]) -> None:
        """Remove versions, by name and number. Each call removes _PAGE of them, all or none."""
        from nsml.v1 import artifacts_pb2 as pb

        for start in range(0, len(versions), _PAGE):
            request = pb.RemoveArtifactsRequest(session=reference)
            for name, version in versions[start : start + _PAGE]:
                request.versions.add(name=name, version=version)
            await self._rpc.unary(
                "ArtifactService/RemoveArtifacts", request, pb.RemoveArtifactsResponse
            )


class Media:
    """MediaService: the calls for users."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def page(self, request: media.ListMediaRequest) -> media.ListMediaResponse:
        """Return a page of a session's media. The same control plane then serves their content."""
        from nsml.v1 import media_pb2 as pb

        return await self._rpc.unary("MediaService/ListMedia", request, pb.ListMediaResponse)


class Nodes:
    """NodeService."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def every(self) -> list[nodes.Node]:
        """All nodes by name."""
        from nsml.v1 import nodes_pb2 as pb

        request = pb.ListNodesRequest(page_size=_PAGE)
        pages = _pages(self._rpc, "NodeService/ListNodes", request, pb.ListNodesResponse)
        return [node async for page in pages for node in page.nodes]

    async def get(self, name: str) -> nodes.GetNodeResponse:
        """Return one node, with its sessions."""
        from nsml.v1 import nodes_pb2 as pb

        request = pb.GetNodeRequest(name=name)
        return await self._rpc.unary("NodeService/GetNode", request, pb.GetNodeResponse)

    async def drain(
        self, name: str, *, move_after_s: float | None = None, reason: str = ""
    ) -> nodes.Node:
        """Administrators: drain a node; move its sessions after a time, or never (None)."""
        from nsml.v1 import nodes_pb2 as pb

        request = pb.DrainNodeRequest(name=name, reason=reason)
        if move_after_s is not None:
            request.move_after.FromMilliseconds(round(move_after_s * 1000))
        answer = await self._rpc.unary("NodeService/DrainNode", request, pb.DrainNodeResponse)
        return answer.node

    async def resume(self, name: str) -> nodes.Node:
        """Administrators: accept sessions again; StateConflict for a fenced node."""
        from nsml.v1 import nodes_pb2 as pb

        request = pb.ResumeNodeRequest(name=name)
        answer = await self._rpc.unary("NodeService/ResumeNode", request, pb.ResumeNodeResponse)
        return answer.node

    async def fence(
        self, name: str, *, reason: str = "", force: bool = False
    ) -> nodes.FenceNodeResponse:
        """Administrators: declare its sessions lost; StateConflict for a responsive node, unless `force`."""
        from nsml.v1 import nodes_pb2 as pb

        request = pb.FenceNodeRequest(name=name, reason=reason, force=force)
        return await self._rpc.unary("NodeService/FenceNode", request, pb.FenceNodeResponse)

    async def remove(self, name: str, *, revoke: bool = False) -> None:
        """Administrators: remove a node without sessions; `revoke`: disconnect it and revoke its key."""
        from nsml.v1 import nodes_pb2 as pb

        request = pb.RemoveNodeRequest(name=name, revoke=revoke)
        await self._rpc.unary("NodeService/RemoveNode", request, pb.RemoveNodeResponse)

    def open_program(
        self,
        name: str,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> AbstractAsyncContextManager[RemoteProgram]:
        """Administrators: start a program on a node; see `nsml.client.programs`."""
        from nsml.client.programs import open_node_program

        return open_node_program(self._rpc, name, argv, environment=environment, terminal=terminal)

    async def pull_image(self, name: str, image: str) -> resources.ImageStatus:
        """Pull an image to a node; `image_pull` returns the progress, and keeps the pull alive."""
        from nsml.v1 import nodes_pb2 as pb

        request = pb.PullImageRequest(node=name, image=image)
        answer = await self._rpc.unary("NodeService/PullImage", request, pb.PullImageResponse)
        return answer.status

    async def image_pull(self, name: str, image: str) -> resources.ImageStatus:
        """Return the state of the caller's pull."""
        from nsml.v1 import nodes_pb2 as pb

        request = pb.GetImagePullRequest(node=name, image=image)
        answer = await self._rpc.unary("NodeService/GetImagePull", request, pb.GetImagePullResponse)
        return answer.status

    async def remove_image(self, name: str, image: str) -> resources.ImageStatus:
        """Administrators: remove an image from a node, unless a session uses it."""
        from nsml.v1 import nodes_pb2 as pb

        request = pb.RemoveImageRequest(node=name, image=image)
        answer = await self._rpc.unary("NodeService/RemoveImage", request, pb.RemoveImageResponse)
        return answer.status

    async def cluster(self) -> nodes.GetClusterResponse:
        """Return the state of the platform."""
        from nsml.v1 import nodes_pb2 as pb

        return await self._rpc.unary(
            "NodeService/GetCluster", pb.GetClusterRequest(), pb.GetClusterResponse
        )


class Accounts:
    """AccountService."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def caller(self) -> accounts.GetCallerResponse:
        """Return the identity of the token."""
        from nsml.v1 import accounts_pb2 as pb

        return await self._rpc.unary(
            "AccountService/GetCaller", pb.GetCallerRequest(), pb.GetCallerResponse
        )

    async def create_user(
        self, name: str, *, is_admin: bool = False, team: str = "", restore: bool = False
    ) -> accounts.User:
        """Administrators: create a user, or `restore` a removed one."""
        from nsml.v1 import accounts_pb2 as pb

        role = pb.ROLE_ADMIN if is_admin else pb.ROLE_MEMBER
        request = pb.CreateUserRequest(name=name, role=role, team=team, restore=restore)
        answer = await self._rpc.unary("AccountService/CreateUser", request, pb.CreateUserResponse)
        return answer.user

    async def users(self) -> list[accounts.User]:
        """Administrators: all users, by name."""
        from nsml.v1 import accounts_pb2 as pb

        request = pb.ListUsersRequest(page_size=_PAGE)
        pages = _pages(self._rpc, "AccountService/ListUsers", request, pb.ListUsersResponse)
        return [user async for page in pages for user in page.users]

    async def limit_kept(self, name: str, kept_bytes: int | None) -> None:
        """Administrators: set a user's object store quota; 0: no limit, None: the default."""
        from nsml.v1 import accounts_pb2 as pb

        request = pb.UpdateUserRequest(name=name)
        if kept_bytes is None:
            request.default_kept = True
        else:
            request.kept_bytes = kept_bytes
        await self._rpc.unary("AccountService/UpdateUser", request, pb.UpdateUserResponse)

    async def usage(self, user: str = "") -> accounts.Usage:
        """Return the object store usage of a user, by default the caller."""
        from nsml.v1 import accounts_pb2 as pb

        request = pb.GetUsageRequest(user=user)
        return (
            await self._rpc.unary("AccountService/GetUsage", request, pb.GetUsageResponse)
        ).usage

    async def every_usage(self) -> list[accounts.Usage]:
        """Administrators: return the usage of all users, largest first."""
        from nsml.v1 import accounts_pb2 as pb

        request = pb.ListUsageRequest(page_size=_PAGE)
        pages = _pages(self._rpc, "AccountService/ListUsage", request, pb.ListUsageResponse)
        found = [usage async for page in pages for usage in page.usage]
        return sorted(found, key=lambda one: (-one.kept_bytes, one.user))

    async def delete_user(self, name: str) -> None:
        """Administrators: remove a user and all their tokens; StateConflict for the last admin."""
        from nsml.v1 import accounts_pb2 as pb

        request = pb.DeleteUserRequest(name=name)
        await self._rpc.unary("AccountService/DeleteUser", request, pb.DeleteUserResponse)

    async def create_token(
        self, user: str = "", *, valid_for_s: float | None = None
    ) -> accounts.CreateTokenResponse:
        """Create a token; by default the caller's own, for 30 days."""
        from google.protobuf.duration_pb2 import Duration

        from nsml.v1 import accounts_pb2 as pb

        request = pb.CreateTokenRequest(user=user)
        if valid_for_s is not None:
            request.valid_for.CopyFrom(Duration(seconds=int(valid_for_s)))
        return await self._rpc.unary("AccountService/CreateToken", request, pb.CreateTokenResponse)

    async def revoke_token(self, user: str = "") -> int:
        """Revoke this call's token, or all of a user's; return how many."""
        from nsml.v1 import accounts_pb2 as pb

        request = pb.RevokeTokenRequest(user=user)
        answer = await self._rpc.unary(
            "AccountService/RevokeToken", request, pb.RevokeTokenResponse
        )
        return answer.revoked

    async def create_join_token(
        self, *, valid_for_s: float | None = None
    ) -> accounts.CreateJoinTokenResponse:
        """Administrators: create a token for joining nodes; valid for an hour by default."""
        from google.protobuf.duration_pb2 import Duration

        from nsml.v1 import accounts_pb2 as pb

        request = pb.CreateJoinTokenRequest()
        if valid_for_s is not None:
            request.valid_for.CopyFrom(Duration(seconds=int(valid_for_s)))
        return await self._rpc.unary(
            "AccountService/CreateJoinToken", request, pb.CreateJoinTokenResponse
        )

    async def join_node(self, request: accounts.JoinNodeRequest) -> accounts.JoinNodeResponse:
        """Exchange a join token's secret and a signing request for a node's certificate."""
        from nsml.v1 import accounts_pb2 as pb

        return await self._rpc.unary("AccountService/JoinNode", request, pb.JoinNodeResponse)


class Views:
    """ViewService."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def open(self, references: Sequence[str], kind: views.ViewKind) -> views.OpenViewResponse:
        """Open a view of sessions; returns it and an address for one visit."""
        from nsml.v1 import views_pb2 as pb

        request = pb.OpenViewRequest(sessions=references, kind=kind)
        return await self._rpc.unary("ViewService/OpenView", request, pb.OpenViewResponse)

    async def every(self) -> list[views.View]:
        """Return the caller's views; administrators: all."""
        from nsml.v1 import views_pb2 as pb

        request = pb.ListViewsRequest()
        answer = await self._rpc.unary("ViewService/ListViews", request, pb.ListViewsResponse)
        return list(answer.views)

    async def stop(self, view_id: str) -> None:
        """Stop one of the caller's views; administrators: any."""
        from nsml.v1 import views_pb2 as pb

        request = pb.StopViewRequest(id=view_id)
        await self._rpc.unary("ViewService/StopView", request, pb.StopViewResponse)


class Audit:
    """AuditService."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def rows(
        self,
        limit: int,
        *,
        actor: str = "",
        method: str = "",
        target: str = "",
        since: float = 0.0,
        without: Iterable[str] = (),
    ) -> list[audit.AuditRow]:
        """Administrators: return changes and refusals, newest first.

        `without`: methods of which calls that ended with OK are left out.
        """
        from google.protobuf.timestamp_pb2 import Timestamp

        from nsml.v1 import audit_pb2 as pb

        found: list[audit.AuditRow] = []
        request = pb.ListAuditRowsRequest(
            actor=actor,
            method=method,
            target=target,
            since=Timestamp(seconds=int(since)),
            without=without,
        )
        while True:
            request.page_size = min(_PAGE, limit - len(found))
            answer = await self._rpc.unary(
                "AuditService/ListAuditRows", request, pb.ListAuditRowsResponse
            )
            found += answer.rows
            request.cursor = answer.next_cursor
            if not request.cursor or len(found) >= limit:
                return found


class Secrets:
    """SecretService."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def put(self, name: str, value: bytes) -> secrets.Secret:
        """Create or update one of the caller's secrets."""
        from nsml.v1 import secrets_pb2 as pb

        request = pb.SetSecretRequest(name=name, value=value)
        answer = await self._rpc.unary("SecretService/SetSecret", request, pb.SetSecretResponse)
        return answer.secret

    async def every(self, user: str = "") -> list[secrets.Secret]:
        """Return the caller's secrets by name; administrators: a user's."""
        from nsml.v1 import secrets_pb2 as pb

        request = pb.ListSecretsRequest(user=user)
        answer = await self._rpc.unary("SecretService/ListSecrets", request, pb.ListSecretsResponse)
        return list(answer.secrets)

    async def remove(self, name: str, user: str = "") -> None:
        """Remove one of the caller's secrets; administrators: a user's."""
        from nsml.v1 import secrets_pb2 as pb

        request = pb.RemoveSecretRequest(name=name, user=user)
        await self._rpc.unary("SecretService/RemoveSecret", request, pb.RemoveSecretResponse)

    async def put_login(
        self, registry: str, registry_user: str, password: bytes
    ) -> secrets.RegistryAccess:
        """Set the caller's login at an image registry."""
        from nsml.v1 import secrets_pb2 as pb

        request = pb.SetRegistryLoginRequest(
            registry=registry, registry_user=registry_user, password=password
        )
        answer = await self._rpc.unary(
            "SecretService/SetRegistryLogin", request, pb.SetRegistryLoginResponse
        )
        return answer.login

    async def logins(self, user: str = "") -> list[secrets.RegistryAccess]:
        """Return the caller's logins by registry; administrators: a user's."""
        from nsml.v1 import secrets_pb2 as pb

        request = pb.ListRegistryLoginsRequest(user=user)
        answer = await self._rpc.unary(
            "SecretService/ListRegistryLogins", request, pb.ListRegistryLoginsResponse
        )
        return list(answer.logins)

    async def remove_login(self, registry: str, user: str = "") -> None:
        """Remove one of the caller's logins; administrators: a user's."""
        from nsml.v1 import secrets_pb2 as pb

        request = pb.RemoveRegistryLoginRequest(registry=registry, user=user)
        await self._rpc.unary(
            "SecretService/RemoveRegistryLogin", request, pb.RemoveRegistryLoginResponse
        )


class SshKeys:
    """SshKeyService."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def add(self, public_key: str, name: str = "") -> ssh_keys.SshKey:
        """Add a public key to the caller's; "": named after the key."""
        from nsml.v1 import ssh_keys_pb2 as pb

        request = pb.AddSshKeyRequest(public_key=public_key, name=name)
        answer = await self._rpc.unary("SshKeyService/AddSshKey", request, pb.AddSshKeyResponse)
        return answer.key

    async def every(self, user: str = "") -> list[ssh_keys.SshKey]:
        """Return the caller's keys by name; administrators: a user's."""
        from nsml.v1 import ssh_keys_pb2 as pb

        request = pb.ListSshKeysRequest(user=user)
        answer = await self._rpc.unary("SshKeyService/ListSshKeys", request, pb.ListSshKeysResponse)
        return list(answer.keys)

    async def remove(self, name: str, user: str = "") -> None:
        """Remove a key by name or fingerprint; administrators: a user's."""
        from nsml.v1 import ssh_keys_pb2 as pb

        request = pb.RemoveSshKeyRequest(name=name, user=user)
        await self._rpc.unary("SshKeyService/RemoveSshKey", request, pb.RemoveSshKeyResponse)

    async def jump_host(self) -> ssh_keys.GetJumpHostResponse:
        """Return the ssh jump host for machines without nsml; StateConflict: there is none."""
        from nsml.v1 import ssh_keys_pb2 as pb

        return await self._rpc.unary(
            "SshKeyService/GetJumpHost", pb.GetJumpHostRequest(), pb.GetJumpHostResponse
        )


class Webhooks:
    """WebhookService: the caller's own."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def put(
        self, url: str, events: Sequence[webhooks.WebhookEvent | str] = ()
    ) -> webhooks.Webhook:
        """Set or replace the webhook; without events the platform chooses them."""
        from nsml.v1 import webhooks_pb2 as pb

        request = pb.SetWebhookRequest(url=url, events=events)
        answer = await self._rpc.unary("WebhookService/SetWebhook", request, pb.SetWebhookResponse)
        return answer.webhook

    async def get(self) -> webhooks.Webhook | None:
        """Return the webhook; None: none is set."""
        from nsml.v1 import webhooks_pb2 as pb

        request = pb.GetWebhookRequest()
        answer = await self._rpc.unary("WebhookService/GetWebhook", request, pb.GetWebhookResponse)
        return answer.webhook if answer.HasField("webhook") else None

    async def remove(self) -> None:
        """Remove it, if there is one."""
        from nsml.v1 import webhooks_pb2 as pb

        request = pb.RemoveWebhookRequest()
        await self._rpc.unary("WebhookService/RemoveWebhook", request, pb.RemoveWebhookResponse)

    async def test(self) -> int:
        """Send a test message; return the HTTP status."""
        from nsml.v1 import webhooks_pb2 as pb

        request = pb.TestWebhookRequest()
        answer = await self._rpc.unary(
            "WebhookService/TestWebhook", request, pb.TestWebhookResponse
        )
        return int(answer.status)


class Projects:
    """ProjectService."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    async def create(
        self, name: str, settings: projects.ProjectSettings, members: Sequence[str] = ()
    ) -> projects.Project:
        """Administrators: create a project."""
        from nsml.v1 import projects_pb2 as pb

        request = pb.CreateProjectRequest(name=name, settings=settings, members=members)
        answer = await self._rpc.unary(
            "ProjectService/CreateProject", request, pb.CreateProjectResponse
        )
        return answer.project

    async def get(self, name: str) -> projects.GetProjectResponse:
        """Return a project, with its use by user."""
        from nsml.v1 import projects_pb2 as pb

        request = pb.GetProjectRequest(name=name)
        return await self._rpc.unary("ProjectService/GetProject", request, pb.GetProjectResponse)

    async def every(self) -> list[projects.Project]:
        """Return the caller's projects by name, without members; administrators: all."""
        from nsml.v1 import projects_pb2 as pb

        request = pb.ListProjectsRequest(page_size=_PAGE)
        pages = _pages(self._rpc, "ProjectService/ListProjects", request, pb.ListProjectsResponse)
        return [project async for page in pages for project in page.projects]

    async def storage(self, name: str) -> projects.ProjectStorage:
        """Return the object store usage of a project, by user."""
        from nsml.v1 import projects_pb2 as pb

        request = pb.GetProjectStorageRequest(name=name)
        answer = await self._rpc.unary(
            "ProjectService/GetProjectStorage", request, pb.GetProjectStorageResponse
        )
        return answer.storage

    async def every_storage(self) -> list[projects.ProjectStorage]:
        """Return the usage of the caller's projects, largest first, without users; administrators: all."""
        from nsml.v1 import projects_pb2 as pb

        answer = await self._rpc.unary(
            "ProjectService/ListProjectStorage",
            pb.ListProjectStorageRequest(),
            pb.ListProjectStorageResponse,
        )
        return list(answer.storage)

    async def update(
        self, name: str, settings: projects.ProjectSettings, *, without_budget: bool = False
    ) -> projects.Project:
        """Administrators: update the settings; unset fields are unchanged."""
        from nsml.v1 import projects_pb2 as pb

        request = pb.UpdateProjectRequest(
            name=name, settings=settings, without_budget=without_budget
        )
        answer = await self._rpc.unary(
            "ProjectService/UpdateProject", request, pb.UpdateProjectResponse
        )
        return answer.project

    async def remove(self, name: str) -> None:
        """Administrators: remove a project without live sessions."""
        from nsml.v1 import projects_pb2 as pb

        request = pb.DeleteProjectRequest(name=name)
        await self._rpc.unary("ProjectService/DeleteProject", request, pb.DeleteProjectResponse)

    async def change_members(
        self, name: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> projects.ChangeMembersResponse:
        """Its owner and administrators: add and remove members."""
        from nsml.v1 import projects_pb2 as pb

        request = pb.ChangeMembersRequest(name=name, add=add, remove=remove)
        return await self._rpc.unary(
            "ProjectService/ChangeMembers", request, pb.ChangeMembersResponse
        )


class Telemetry:
    """TelemetryService."""

    def __init__(self, rpc: Rpc, clock: Clock) -> None:
        self._rpc = rpc
        self._clock = clock

    async def read(
        self,
        *,
        session: str = "",
        node: str = "",
        window_s: float | None = None,
        until: float | None = None,
        width: int = 0,
    ) -> telemetry.ReadTelemetryResponse:
        """Return the telemetry of a session's devices, a node, or by default the platform.

        The range is the `window_s` seconds before `until` (Unix seconds; None: now). `window_s` None: for a session since
        its first placement, else an hour. NotFound: no such session or node.
        """
        from nsml.v1 import telemetry_pb2 as pb

        request = pb.ReadTelemetryRequest(width=width)
        if session:
            request.session = session
        elif node:
            request.node = node
        else:
            request.cluster = True
        if window_s is not None:
            end = self._clock.time() if until is None else until
            request.since.FromMicroseconds(round((end - window_s) * 1e6))
            request.until.FromMicroseconds(round(end * 1e6))
        return await self._rpc.unary(
            "TelemetryService/ReadTelemetry", request, pb.ReadTelemetryResponse
        )


class Backups:
    """BackupService, for administrators; `nsml.client.backups` writes the backups."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc

    def create(
        self, *, without_objects: bool = False
    ) -> AsyncGenerator[backups.CreateBackupResponse, None]:
        """Back up all but the blobs: yields a header, then parts."""
        from nsml.v1 import backups_pb2 as pb

        request = pb.CreateBackupRequest(without_objects=without_objects)
        return self._rpc.stream("BackupService/CreateBackup", request, pb.CreateBackupResponse)

    def blobs(self, digests: Sequence[str]) -> AsyncGenerator[backups.GetBackupBlobsResponse, None]:
        """Yield blobs in pieces; at most 1,000 blobs."""
        from nsml.v1 import backups_pb2 as pb

        request = pb.GetBackupBlobsRequest(digests=digests)
        return self._rpc.stream("BackupService/GetBackupBlobs", request, pb.GetBackupBlobsResponse)


async def _pages(
    rpc: Rpc,
    method: str,
    request: sessions.ListMetricsRequest
    | datasets.ListDatasetsRequest
    | datasets.ListDatasetVersionsRequest
    | nodes.ListNodesRequest
    | checkpoints.ListCheckpointsRequest
    | artifacts.ListArtifactsRequest
    | accounts.ListUsersRequest
    | accounts.ListUsageRequest
    | projects.ListProjectsRequest,
    response: type[Listed],
) -> AsyncGenerator[Listed, None]:
    """Yield the pages of a list, starting at `request`."""
    while True:
        page = await rpc.unary(method, request, response)
        yield page
        request.cursor = page.next_cursor
        if not request.cursor:
            return
