"""Wiring of competitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.access.secret import Secret, new_secret
from controlplane.competitions.competitions import Competitions
from controlplane.competitions.export import Export
from controlplane.competitions.page_visits import PageVisits
from controlplane.competitions.service import CompetitionServicer
from controlplane.competitions.tables import Tables
from controlplane.competitions.team_changes import TeamChanges
from controlplane.competitions.team_quotas import TeamQuotaRecords
from controlplane.competitions.views import CompetitionViews
from controlplane.content.feature import content
from controlplane.core.compare_and_swap import SessionWriter
from controlplane.core.feature import Feature
from controlplane.core.ids import new_id
from controlplane.datasets.feature import datasets
from controlplane.domain.identity import UserCaller
from controlplane.submissions.feature import participation, submissions
from nsml.v1 import competitions_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute

    from controlplane.core.core import Core


def team_quotas(core: Core) -> TeamQuotaRecords:
    """The quotas of teams, for the scheduler."""
    return TeamQuotaRecords(
        store=core.store,
        state=core.state,
        history=core.history,
        writer=SessionWriter(store=core.store, state=core.state),
        clock=core.clock,
    )


def competitions(core: Core) -> Competitions:
    """The use cases of organisers."""
    return Competitions(
        history=core.history,
        quotas=core.shared(team_quotas),
        datasets=core.shared(datasets),
        content=core.shared(content),
        participation=core.shared(participation),
        submissions=core.shared(submissions),
        clock=core.clock,
        new_id=lambda: "c" + new_id(core.random_bytes),
        user=core.accounts.get_user,
    )


def team_changes(core: Core) -> TeamChanges:
    """The use cases of participants."""
    return TeamChanges(
        history=core.history,
        quotas=core.shared(team_quotas),
        competitions=core.shared(competitions),
        participation=core.shared(participation),
        clock=core.clock,
        user=core.accounts.get_user,
    )


def tables(core: Core) -> Tables:
    """The maker of standings."""
    return Tables(
        history=core.history,
        state=core.state,
        competitions=core.shared(competitions),
        participation=core.shared(participation),
        clock=core.clock,
    )


def competition_views(core: Core) -> CompetitionViews:
    """The maker of messages."""
    return CompetitionViews(
        history=core.history,
        participation=core.shared(participation),
        tables=core.shared(tables),
        clock=core.clock,
    )


def page_visits(core: Core) -> PageVisits:
    """The visits of pages in browsers."""

    async def still(token: str) -> UserCaller | None:
        who = await core.identities.of_secret(Secret(token), thorough=True)
        return who if isinstance(who, UserCaller) else None

    return PageVisits(
        clock=core.clock,
        still=still,
        new_secret=lambda: new_secret(core.random_bytes).text,
        fingerprint=lambda text: Secret(text).fingerprint,
    )


def wire(core: Core) -> Feature:
    """Offer CompetitionService, and pages of competitions below /competitions/; the leader keeps teams' quotas."""
    servicer = CompetitionServicer(
        competitions=core.shared(competitions),
        teams=core.shared(team_changes),
        tables=core.shared(tables),
        views=core.shared(competition_views),
        visits=core.shared(page_visits),
        export=Export(
            history=core.history,
            participation=core.shared(participation),
            tables=core.shared(tables),
            clock=core.clock,
            sign=core.backends.authority.sign_digest,
            cluster_id=core.cluster_id,
        ),
        history=core.history,
        reading=core.reading,
        opens_http=core.config.opens_http,
    )
    return Feature(
        services=((competitions_pb2_grpc.add_CompetitionServiceServicer_to_server, servicer),),
        leader_loops=(core.shared(team_quotas).run,),
        routes=lambda: _routes(core),
    )


def _routes(core: Core) -> Sequence[BaseRoute]:
    from controlplane.competitions.pages import page_routes  # noqa: PLC0415 - see Feature.routes
    from controlplane.gateway.callers import Callers  # noqa: PLC0415

    return page_routes(
        competitions=core.shared(competitions),
        views=core.shared(competition_views),
        tables=core.shared(tables),
        callers=Callers(core.identities, core.limiter),
        visits=core.shared(page_visits),
        reading=core.reading,
        clock=core.clock,
    )
