"""Why nothing is on record of the packages of a session."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import ImportedFrom
from controlplane.environments.locks import why_none
from tests.unit.controlplane.builders import session

FAILED, RUNNING = SessionState.FAILED, SessionState.RUNNING
CODE = {"bundle_digest": "a" * 64}
BACKUP = ImportedFrom(platform="c", session_id="s", name="lee/x/1", owner="lee", restored_at=1.0)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, "it waits, and is not prepared yet"),
        ({"state": SessionState.STOPPED}, "it ended before it was placed"),
        ({"state": SessionState.PREPARING, "attempt": 1}, "it is not prepared yet"),
        ({"state": FAILED, "attempt": 1}, "it ended before it was prepared"),
        (
            {"state": RUNNING, "spec": {"dockerfile": "D"}},
            "its packages are those of the image from D",
        ),
        ({"state": FAILED}, "it ran without code, which would list packages"),
        (
            {"state": FAILED, "spec": {**CODE, "image": "torch:2"}},
            "its code lists no packages beside those of image torch:2",
        ),
        (
            {"state": FAILED, "spec": CODE},
            "its code lists no packages, its log says why it has none, or its agent was of an earlier version",
        ),
        ({"imported": BACKUP}, "the backup that it comes from has none"),
        (
            {"spec": {"environment_lock": "b" * 64}},
            "that of the session that it comes from is not kept any more",
        ),
    ],
)
def test_the_reason_is_what_its_record_tells(facts: dict[str, Any], why: str) -> None:
    if facts.get("state") in {FAILED, RUNNING} and "attempt" not in facts:
        facts = {**facts, "attempt": 1, "started_at": 5.0}
    assert why_none(session(**facts)) == why
