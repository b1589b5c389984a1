"""Wiring of sessions: submission, scheduling, views, their end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from controlplane.checkpoints.feature import checkpoints, retention
from controlplane.content.feature import content
from controlplane.core.compare_and_swap import SessionWriter
from controlplane.core.core import WAIT_TO_READ
from controlplane.core.feature import Feature
from controlplane.core.ids import new_id
from controlplane.datasets.feature import datasets
from controlplane.environments.feature import environment_locks
from controlplane.leadership.feature import relay
from controlplane.limits.concurrency_limits import Turns
from controlplane.notices.feature import outbox
from controlplane.projects.feature import projects
from controlplane.records.feature import last_reports, logs
from controlplane.secrets.feature import user_secrets
from controlplane.sessions.after import AfterOthers
from controlplane.sessions.competition_teams import CompetitionTeams
from controlplane.sessions.export import Exporter
from controlplane.sessions.export_loop import Exporting
from controlplane.sessions.idle_limit import IdleLimits
from controlplane.sessions.log_search import Searches
from controlplane.sessions.preempt import Requeuer
from controlplane.sessions.program_changes import Changer, ProgramChanges
from controlplane.sessions.queue import QueueView
from controlplane.sessions.readers import Readers
from controlplane.sessions.remove import Remover
from controlplane.sessions.scheduling_loop import Scheduling
from controlplane.sessions.service import SessionOperations, SessionServicer
from controlplane.sessions.session_listing import Listings
from controlplane.sessions.session_views import Presenter
from controlplane.sessions.stop import Stopper
from controlplane.sessions.submit import Submitter
from controlplane.sessions.update import Updater
from controlplane.ssh_keys.feature import entrances
from controlplane.tunnels.shared import tunnels
from controlplane.usage.feature import usages
from nsml.v1 import sessions_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core

_READING_LOGS: Final = 8
"""Concurrent reads of log pages. Apart from other reads, since the object store may be slow."""
_READING_LOGS_EACH: Final = 4
"""Of these, per user."""


def scheduling(core: Core) -> Scheduling:
    """The scheduling loop; it also explains why sessions wait."""
    return Scheduling(
        state=core.state,
        committer=core.committer,
        renewal=core.shared(datasets).queued,
        clock=core.clock,
        rules=replace(core.config.rules, notice_s=core.config.notice_s),
    )


def program_changes(core: Core) -> ProgramChanges:
    """The loop that executes changes of running programs."""
    return ProgramChanges(
        state=core.state, committer=core.committer, contacts=core.contacts, clock=core.clock
    )


def presenter(core: Core) -> Presenter:
    """The builder of session messages."""
    return Presenter(
        state=core.state,
        history=core.history,
        reports=core.shared(last_reports),
        waiting=core.shared(scheduling).waiting,
        usages=core.shared(usages),
        kept=core.kept,
        project_kept=core.project_kept,
        clock=core.clock,
    )


def wire(core: Core) -> Feature:
    """Offer SessionService; the leader schedules, and moves ended sessions to the history."""
    exporter = Exporter(
        history=core.history,
        committer=core.committer,
        usages=core.shared(usages),
        outbox=core.shared(outbox),
        term=core.term,
        ended=core.shared(retention).changed,
    )
    exporting = Exporting(state=core.state, exporter=exporter, clock=core.clock)
    idle_limits = IdleLimits(
        state=core.state,
        history=core.history,
        tunnels=core.shared(tunnels),
        committer=core.committer,
        rule=core.config.waste,
        clock=core.clock,
    )
    after_others = AfterOthers(
        state=core.state, history=core.history, committer=core.committer, clock=core.clock
    )
    servicer = SessionServicer(core, _operations(core), core.shared(presenter))
    return Feature(
        services=((sessions_pb2_grpc.add_SessionServiceServicer_to_server, servicer),),
        leader_loops=(
            core.shared(scheduling).run,
            exporting.run,
            idle_limits.run,
            after_others.run,
            core.shared(program_changes).run,
        ),
        member_loops={"submit": core.shared(submitter).run},
    )


def submitter(core: Core) -> Submitter:
    """The writer of new sessions."""
    return Submitter(
        store=core.store,
        state=core.state,
        history=core.history,
        datasets=core.shared(datasets),
        content=core.shared(content),
        checkpoints=core.shared(checkpoints),
        locks=core.shared(environment_locks),
        secrets=core.shared(user_secrets),
        references=core.references,
        teams=CompetitionTeams(state=core.state, history=core.history),
        clock=core.clock,
        new_id=lambda: "s" + new_id(core.random_bytes),
        answers=core.shared(scheduling).known,
        time_limits=core.config.time_limits,
        keep_checkpoints=core.config.keep_checkpoints,
        keep_files=core.config.keep_files,
        admission=core.admission,
    )


def _operations(core: Core) -> SessionOperations:
    writer = SessionWriter(store=core.store, state=core.state, admission=core.admission)
    followers = Readers(
        state=core.state,
        history=core.history,
        logs=core.shared(logs),
        reading=core.reading,
        reading_logs=Turns(
            "to read logs",
            slots=_READING_LOGS,
            each=_READING_LOGS_EACH,
            most_waiting=WAIT_TO_READ,
        ),
    )
    return SessionOperations(
        submitter=core.shared(submitter),
        listings=Listings(state=core.state, history=core.history, run=core.offload),
        stopper=Stopper(writer=writer, clock=core.clock),
        changer=Changer(writer=writer, clock=core.clock),
        requeuer=Requeuer(writer, core.clock, notice_s=core.config.notice_s),
        remover=Remover(state=core.state, history=core.history),
        updater=Updater(writer=writer, references=core.references, history=core.history),
        followers=followers,
        reports=core.shared(last_reports),
        searches=Searches(followers=followers, run=core.offload),
        tunnels=core.shared(tunnels),
        relay=core.shared(relay),
        entrances=core.shared(entrances),
        queue=QueueView(
            state=core.state,
            clock=core.clock,
            answers=core.shared(scheduling).known,
            projects=core.shared(projects),
            users=core.accounts,
            time_limits=core.config.time_limits,
        ),
        content=core.shared(content),
    )
