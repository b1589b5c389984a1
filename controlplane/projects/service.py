"""ProjectService: unpack, call, convert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.access.current import require_user
from controlplane.core.paging import page_size
from controlplane.domain.names import check_project
from controlplane.domain.policy import ALLOW, SEE, may
from controlplane.domain.values import WHOLE_DEVICE
from controlplane.projects.convert import share_message
from controlplane.projects.projects import BudgetSettings, ProjectSettings
from controlplane.scheduler.entitlement import held_by
from controlplane.scheduler.fair_share import share_of
from controlplane.wire.chunking import parts_of
from controlplane.wire.errors import Context, answering
from controlplane.wire.resources import PRIORITIES, to_priority
from controlplane.wire.stored_bytes import item_message, usage_message
from controlplane.wire.times import seconds_of, timestamp
from nsml.v1 import projects_pb2 as pb
from nsml.v1 import projects_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controlplane.domain.values import Project, Quota, Session, Used
    from controlplane.limits.user_storage import KeptUse, ProjectUsages
    from controlplane.projects.projects import Projects
    from controlplane.state.live_state import LiveState
    from nsml.common.clock import Clock
    from nsml.v1 import sessions_pb2

MOST_NAMES: Final = 100
_MEASURES: Final = ("gpu_thousandths", "cpu_thousandths", "memory_bytes", "sessions")


class ProjectServicer(projects_pb2_grpc.ProjectServiceServicer):
    """Projects, and their use."""

    def __init__(
        self, projects: Projects, state: LiveState, *, usages: ProjectUsages, clock: Clock
    ) -> None:
        self._projects = projects
        self._usages = usages
        self._state = state
        self._clock = clock

    @answering
    async def CreateProject(  # noqa: N802 - named by the contract, as all below
        self, request: pb.CreateProjectRequest, _: Context
    ) -> pb.CreateProjectResponse:
        """Make a project."""
        settings = _asked_settings(request.settings)
        made = await self._projects.create(request.name, settings, request.members)
        return pb.CreateProjectResponse(project=self._shown(made))

    @answering
    async def GetProject(  # noqa: N802
        self, request: pb.GetProjectRequest, _: Context
    ) -> pb.GetProjectResponse:
        """Return a project and its use."""
        who = require_user()
        project = self._projects.visible(request.name, who)
        holding = self._state.accounts.holding(project.name)
        names = sorted(one.name for one in holding if may(who, SEE, one) is ALLOW)[:MOST_NAMES]
        return pb.GetProjectResponse(
            project=self._shown(project),
            holders=_holders(holding),
            sessions=names,
            hidden_sessions=len(holding) - len(names),
        )

    @answering
    async def ListProjects(  # noqa: N802
        self, request: pb.ListProjectsRequest, _: Context
    ) -> pb.ListProjectsResponse:
        """Return a page of the projects that the caller sees."""
        after = request.cursor and check_project(request.cursor)
        found = self._projects.every(require_user(), after=after)
        used = self._used()
        page = found[: page_size(request.page_size)]
        shown = next(parts_of(self._message(one, used.get(one.name)) for one in page))
        cursor = shown[-1].name if len(shown) < len(found) else ""
        return pb.ListProjectsResponse(projects=shown, next_cursor=cursor)

    @answering
    async def UpdateProject(  # noqa: N802
        self, request: pb.UpdateProjectRequest, _: Context
    ) -> pb.UpdateProjectResponse:
        """Change settings."""
        settings = _asked_settings(request.settings, without_budget=request.without_budget)
        changed = await self._projects.update(request.name, settings)
        return pb.UpdateProjectResponse(project=self._shown(changed))

    @answering
    async def DeleteProject(  # noqa: N802
        self, request: pb.DeleteProjectRequest, _: Context
    ) -> pb.DeleteProjectResponse:
        """Remove a project."""
        await self._projects.delete(request.name)
        return pb.DeleteProjectResponse()

    @answering
    async def ChangeMembers(  # noqa: N802
        self, request: pb.ChangeMembersRequest, _: Context
    ) -> pb.ChangeMembersResponse:
        """Add and remove members."""
        changed, unchanged = await self._projects.change_members(
            request.name, add=request.add, remove=request.remove, asked_by=require_user()
        )
        return pb.ChangeMembersResponse(project=self._shown(changed), unchanged=sorted(unchanged))

    @answering
    async def GetProjectStorage(  # noqa: N802
        self, request: pb.GetProjectStorageRequest, _: Context
    ) -> pb.GetProjectStorageResponse:
        """Return a project's storage."""
        who = require_user()
        project = self._projects.visible(request.name, who)
        use, users, largest = await self._usages.of(project, who.user)
        storage = _stored(use)
        storage.is_uncounted = self._state.project(project.name) is None
        storage.usage.largest.extend(map(item_message, largest))
        storage.users.extend(pb.StoredByUser(user=user, bytes=size) for user, size in users)
        return pb.GetProjectStorageResponse(storage=storage)

    @answering
    async def ListProjectStorage(  # noqa: N802
        self, _: pb.ListProjectStorageRequest, __: Context
    ) -> pb.ListProjectStorageResponse:
        """List the storage of each project that the caller sees."""
        names = {one.name for one in self._projects.every(require_user())}
        shown = [_stored(one) for one in await self._usages.all() if one.name in names]
        return pb.ListProjectStorageResponse(storage=shown)

    def _used(self) -> dict[str, Used]:
        return {one.project: one for one in self._state.accounts.used(self._clock.time())}

    def _shown(self, project: Project) -> pb.Project:
        """Return a project's message with its members."""
        message = self._message(project, self._used().get(project.name))
        message.members.extend(sorted(project.members))
        return message

    def _message(self, project: Project, used: Used | None) -> pb.Project:
        claims = [held_by(one) for one in self._state.accounts.holding(project.name)]
        usage = pb.ProjectUsage(
            gpu_thousandths=sum(one.gpu_thousandths for one in claims),
            cpu_thousandths=sum(one.cpu_thousandths for one in claims),
            memory_bytes=sum(one.memory_bytes for one in claims),
            sessions=len(claims),
        )
        usage.share.CopyFrom(self._share(project, usage.gpu_thousandths))
        if used is not None:
            usage.gpu_seconds = used.gpu_seconds
            usage.since.CopyFrom(timestamp(used.since) or usage.since)
            usage.until.CopyFrom(timestamp(used.until) or usage.until)
        return pb.Project(
            name=project.name,
            created_at=timestamp(project.created_at),
            settings=_settings_message(project),
            member_count=len(project.members),
            usage=usage,
        )

    def _share(self, project: Project, gpu_thousandths: int) -> sessions_pb2.FairShare:
        held, lately = gpu_thousandths / WHOLE_DEVICE, self._state.lately.get(project.name, 0.0)
        share = share_of(project.name, held=held, lately=lately, weight=project.weight)
        return share_message(share, self._state.accounts)


def _stored(use: KeptUse) -> pb.ProjectStorage:
    message = pb.ProjectStorage(project=use.name, usage=usage_message(use))
    message.usage.is_own_limit = False  # projects have no limit of their own
    return message


def _holders(holding: Iterable[Session]) -> list[pb.MemberUsage]:
    by_user: dict[str, pb.MemberUsage] = {}
    for session in holding:
        message = by_user.setdefault(session.owner, pb.MemberUsage(user=session.owner))
        message.gpu_thousandths += held_by(session).gpu_thousandths
        message.sessions += 1
    return sorted(by_user.values(), key=lambda one: (-one.gpu_thousandths, one.user))


def _settings_message(project: Project) -> pb.ProjectSettings:
    message = pb.ProjectSettings(
        owner=project.owner or None,
        quota=_quota(project.quota),
        member_quota=_quota(project.member_quota),
        weight=project.weight,
        most_priority=PRIORITIES[project.most_priority],
        keep_checkpoints=project.keep_checkpoints or None,
        kept_bytes=project.kept_bytes or None,
        keep_files=project.keep_files or None,
    )
    budget = project.budget
    if budget is not None:
        message.budget.gpu_seconds = budget.gpu_seconds
        message.budget.period_days = budget.period_days
        message.budget.anchor.CopyFrom(timestamp(budget.anchor) or message.budget.anchor)
    return message


def _quota(quota: Quota) -> pb.Quota:
    return pb.Quota(**{one: getattr(quota, one) or None for one in _MEASURES})


def _asked_settings(
    settings: pb.ProjectSettings, *, without_budget: bool = False
) -> ProjectSettings:
    """Return the requested settings.

    Raises:
        InvalidRequest: an unknown priority.
    """
    return ProjectSettings(
        owner=settings.owner if settings.HasField("owner") else None,
        quota=_to_quota(settings.quota),
        member_quota=_to_quota(settings.member_quota),
        budget=_to_budget(settings.budget) if settings.HasField("budget") else None,
        without_budget=without_budget,
        weight=settings.weight if settings.HasField("weight") else None,
        most_priority=to_priority(settings.most_priority) if settings.most_priority else None,
        keep_checkpoints=settings.keep_checkpoints
        if settings.HasField("keep_checkpoints")
        else None,
        kept_bytes=settings.kept_bytes if settings.HasField("kept_bytes") else None,
        keep_files=settings.keep_files if settings.HasField("keep_files") else None,
    )


def _to_quota(message: pb.Quota) -> dict[str, int]:
    return {one: getattr(message, one) for one in _MEASURES if message.HasField(one)}


def _to_budget(message: pb.Budget) -> BudgetSettings:
    return BudgetSettings(
        gpu_seconds=message.gpu_seconds if message.HasField("gpu_seconds") else None,
        period_days=message.period_days if message.HasField("period_days") else None,
        anchor=seconds_of(message.anchor) if message.HasField("anchor") else None,
    )
