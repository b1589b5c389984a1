"""From which checkpoint an attempt goes on, as its preparation asks."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nodeagent.replica.preparation_steps import Draft, PreparationFailed, ResumeHook
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions


def draft(attempt: int, *, has_initial: bool) -> Draft:
    assignment = pb.Assignment(replica=pb.ReplicaId(session_id="s" + "a" * 16, attempt=attempt))
    if has_initial:
        initial = sessions.InitialCheckpoint(name="best", session_name="kim/mnist/1")
        assignment.spec.initial_checkpoint.CopyFrom(initial)
    return Draft(assignment, cast("Any", None), cast("Any", None))


@pytest.mark.parametrize(
    ("attempt", "has_initial", "found"), [(1, False, ""), (1, True, "best"), (2, False, "best")]
)
async def test_what_is_safe_is_asked_for_where_there_can_be_something(
    attempt: int, has_initial: bool, found: str
) -> None:
    async def newest(_: object) -> str:
        return "best"

    made = draft(attempt, has_initial=has_initial)
    await ResumeHook(newest).prepare(made)
    assert made.resumes_from == found


async def test_a_session_never_begins_anew_that_was_to_begin_with_a_checkpoint() -> None:
    async def newest(_: object) -> str:
        return ""

    with pytest.raises(PreparationFailed, match="checkpoint best of kim/mnist/1 is not kept"):
        await ResumeHook(newest).prepare(draft(1, has_initial=True))
