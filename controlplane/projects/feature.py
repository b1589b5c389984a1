"""Projects: quotas and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.core.feature import Feature
from controlplane.limits.user_storage import ProjectUsages
from controlplane.projects.projects import Projects
from controlplane.projects.service import ProjectServicer
from nsml.v1 import projects_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def projects(core: Core) -> Projects:
    """All projects."""
    return Projects(store=core.store, state=core.state, users=core.accounts, clock=core.clock)


def wire(core: Core) -> Feature:
    """Offer ProjectService."""
    usages = ProjectUsages(kept=core.project_kept, history=core.history, state=core.state)
    servicer = ProjectServicer(core.shared(projects), core.state, usages=usages, clock=core.clock)
    return Feature(services=((projects_pb2_grpc.add_ProjectServiceServicer_to_server, servicer),))
