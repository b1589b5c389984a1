"""The agent and the control plane keep the same sessions apart."""

from __future__ import annotations

import pytest

from controlplane.domain.values import SessionSpec, SessionStage
from nodeagent.confinement import is_confined, is_sealed
from nsml.v1 import sessions_pb2 as sessions


@pytest.mark.parametrize("number", sessions.SessionStage.values())
def test_the_agent_decides_as_the_control_plane_does(number: sessions.SessionStage) -> None:
    word = sessions.SessionStage.Name(number).removeprefix("SESSION_STAGE_")
    order = sessions.SessionSpec(stage=number)
    kept = SessionSpec(stage=None if word == "UNSPECIFIED" else SessionStage(word))
    assert (is_confined(order), is_sealed(order)) == (kept.is_confined, kept.is_sealed)
    assert is_confined(order) or not is_sealed(order)


def test_steps_of_submissions_alone_are_kept_apart() -> None:
    orders = {
        sessions.SessionStage.Name(one): sessions.SessionSpec(stage=one)
        for one in sessions.SessionStage.values()
    }
    assert {name for name, order in orders.items() if is_confined(order)} == {
        "SESSION_STAGE_PREDICT",
        "SESSION_STAGE_PREDICT_TEST",
        "SESSION_STAGE_EVALUATE",
    }
    assert {name for name, order in orders.items() if is_sealed(order)} == {"SESSION_STAGE_PREDICT"}
