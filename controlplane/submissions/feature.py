"""Wiring of submissions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from controlplane.checkpoints.feature import checkpoints
from controlplane.content.feature import content
from controlplane.core.compare_and_swap import SessionWriter
from controlplane.core.feature import Feature
from controlplane.core.ids import new_id
from controlplane.datasets.feature import datasets
from controlplane.domain.conditions import ConditionName
from controlplane.records.feature import logs
from controlplane.sessions.feature import scheduling, submitter
from controlplane.sessions.remove import Remover
from controlplane.sessions.stop import Stopper
from controlplane.submissions.participation import Participation
from controlplane.submissions.reevaluation_advance import ReevaluationAdvance
from controlplane.submissions.results import Results
from controlplane.submissions.scoreboards import Scoreboards
from controlplane.submissions.service import SubmissionServicer
from controlplane.submissions.session_cleanup import SessionCleanup
from controlplane.submissions.session_maker import SessionMaker
from controlplane.submissions.step_failures import StepFailures
from controlplane.submissions.step_sessions import StepSessions
from controlplane.submissions.submission_advance import SubmissionAdvance
from controlplane.submissions.submission_loop import SubmissionLoop
from controlplane.submissions.submissions import Submissions
from controlplane.submissions.views import SubmissionViews
from controlplane.submissions.wait_reasons import StepWaits
from nsml.v1 import boards_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def results(core: Core) -> Results:
    """The reader of what steps saved."""
    return Results(history=core.history, content=core.shared(content))


def session_maker(core: Core) -> SessionMaker:
    """The maker of steps' sessions."""
    return SessionMaker(
        history=core.history,
        references=core.references,
        content=core.shared(content),
        datasets=core.shared(datasets),
        results=core.shared(results),
        submitter=core.shared(submitter),
        user=core.accounts.get_user,
    )


def participation(core: Core) -> Participation:
    """What decides on submissions to datasets of competitions."""
    return Participation(history=core.history, clock=core.clock)


def step_sessions(core: Core) -> StepSessions:
    """The sessions of steps."""
    return StepSessions(
        submissions=core.history.submissions,
        state=core.state,
        references=core.references,
        results=core.shared(results),
        stopper=Stopper(writer=SessionWriter(store=core.store, state=core.state), clock=core.clock),
    )


def session_cleanup(core: Core) -> SessionCleanup:
    """What removes the sessions of steps."""
    return SessionCleanup(
        history=core.history,
        state=core.state,
        references=core.references,
        sessions=core.shared(step_sessions),
        remover=Remover(state=core.state, history=core.history),
        clock=core.clock,
        leads=core.leads,
    )


def submission_advance(core: Core) -> SubmissionAdvance:
    """What carries submissions out."""
    return SubmissionAdvance(
        submissions=core.history.submissions,
        sessions=core.shared(step_sessions),
        maker=core.shared(session_maker),
        results=core.shared(results),
        clock=core.clock,
        leads=core.leads,
    )


def reevaluation_advance(core: Core) -> ReevaluationAdvance:
    """What carries re-evaluations out."""
    return ReevaluationAdvance(
        submissions=core.history.submissions,
        sessions=core.shared(step_sessions),
        maker=core.shared(session_maker),
        results=core.shared(results),
        clock=core.clock,
        leads=core.leads,
    )


def submission_loop(core: Core) -> SubmissionLoop:
    """The leader's loop."""
    return SubmissionLoop(
        history=core.history,
        state=core.state,
        submissions=submission_advance(core),
        reevaluations=reevaluation_advance(core),
        cleanup=session_cleanup(core),
        failures=StepFailures(
            core.history.submissions,
            core.clock,
            partial(core.health.conditions.set_all, ConditionName.SUBMISSIONS_FAILING),
        ),
        clock=core.clock,
        leads=core.leads,
    )


def submissions(core: Core) -> Submissions:
    """The use cases."""
    return Submissions(
        history=core.history,
        references=core.references,
        datasets=core.shared(datasets),
        checkpoints=core.shared(checkpoints),
        content=core.shared(content),
        maker=core.shared(session_maker),
        participation=core.shared(participation),
        clock=core.clock,
        new_id=lambda: "u" + new_id(core.random_bytes),
        user=core.accounts.get_user,
    )


def scoreboards(core: Core) -> Scoreboards:
    """The submissions to datasets, ranked."""
    return Scoreboards(core.history, core.clock)


def step_waits(core: Core) -> StepWaits:
    """What says why steps wait."""
    return StepWaits(state=core.state, queued=core.shared(scheduling).waiting)


def wire(core: Core) -> Feature:
    """Offer SubmissionService; the leader carries submissions out."""
    views = SubmissionViews(
        history=core.history,
        scoreboards=core.shared(scoreboards),
        submissions=core.shared(submissions),
        maker=core.shared(session_maker),
        logs=core.shared(logs),
        step_waits=core.shared(step_waits),
    )
    servicer = SubmissionServicer(core.shared(submissions), views, core.history, core.reading)
    return Feature(
        services=((boards_pb2_grpc.add_SubmissionServiceServicer_to_server, servicer),),
        leader_loops=(core.shared(submission_loop).run,),
    )
