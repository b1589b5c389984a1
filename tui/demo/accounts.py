"""Datasets and projects of the demo's sessions."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from nsml.v1 import datasets_pb2, projects_pb2
from nsml.v1 import sessions_pb2 as pb
from tui.demo.scenery import DATASETS, PROJECTS, resources_of
from tui.demo.scripted_session import active, project_of, stamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tui.demo.scripted_session import ScriptedSession


class Accounts:
    """All of them, with times in seconds from `origin` on (Unix seconds)."""

    def __init__(self, parts: Sequence[ScriptedSession], origin: float) -> None:
        self._parts = parts
        self._origin = origin

    def datasets(self) -> list[datasets_pb2.Dataset]:
        """All datasets, by name."""
        found = []
        for name, (owner, visibility, message, days, files) in sorted(DATASETS.items()):
            one = datasets_pb2.Dataset(
                name=name,
                owner=owner,
                visibility=visibility,
                version=1 + len(name) % 4,
                digest=_digest(name),
                size_bytes=sum(size for _, size in files),
                file_count=len(files),
                message=message,
            )
            stamp(one.updated_at, self._origin - 86_400.0 * days)
            found.append(one)
        return found

    def project(self, name: str, now: float) -> projects_pb2.Project:
        """A project with its usage."""
        members, gpus, hours = PROJECTS[name]
        one = projects_pb2.Project(name=name, member_count=len(members))
        stamp(one.created_at, self._origin - 86_400.0 * 40)
        settings, usage = one.settings, one.usage
        settings.owner, settings.weight, settings.most_priority = members[0], 1.0, pb.PRIORITY_HIGH
        settings.quota.gpu_thousandths = 1000 * gpus
        settings.member_quota.gpu_thousandths = 750 * gpus
        settings.budget.gpu_seconds, settings.budget.period_days = 3_600.0 * hours, 30
        stamp(settings.budget.anchor, self._origin - 86_400.0 * 12)
        stamp(usage.since, self._origin - 86_400.0 * 12)
        stamp(usage.until, self._origin + 86_400.0 * 18)
        own = [part for part in self._parts if project_of(part) == name]
        for part in active(own, now):
            held = resources_of(part.gpus * part.replicas)
            usage.gpu_thousandths += held.gpu_thousandths
            usage.cpu_thousandths += held.cpu_thousandths
            usage.memory_bytes += held.memory_bytes
            usage.sessions += 1
        used = sum(
            part.gpus * part.replicas * max(min(now, part.stopped) - part.placed, 0.0)
            for part in own
        )
        usage.gpu_seconds = 0.4 * settings.budget.gpu_seconds + used
        return one

    def project_shown(self, name: str, now: float) -> projects_pb2.GetProjectResponse:
        """The same with its members and usage by user."""
        answer = projects_pb2.GetProjectResponse(project=self.project(name, now))
        answer.project.members.extend(sorted(PROJECTS[name][0]))
        own = [one for one in active(self._parts, now) if project_of(one) == name]
        held = {user: [one for one in own if one.user == user] for user in PROJECTS[name][0]}
        for user, some in held.items():
            if some:
                gpus = sum(one.gpus * one.replicas for one in some)
                answer.holders.add(user=user, gpu_thousandths=1000 * gpus, sessions=len(some))
        answer.holders.sort(key=lambda one: -one.gpu_thousandths)
        answer.sessions.extend(one.name for one in own)
        return answer


def _digest(name: str) -> str:
    return f"{zlib.crc32(name.encode()):08x}" * 8


def files_of(digest: str) -> Sequence[tuple[str, int]]:
    """The files of the dataset with this digest, and their sizes."""
    return next(files for name, (*_, files) in DATASETS.items() if _digest(name) == digest)
