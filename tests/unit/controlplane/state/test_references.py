"""Which session a short reference means, over what lives and what has ended."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from controlplane.domain.errors import AmbiguousReference, NotFound
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import SessionStage
from controlplane.history.sqlite import open_history
from controlplane.sessions.export import row_of
from controlplane.state.live_state import LiveState
from controlplane.state.references import References
from controlplane.stored import etcd_codec
from nsml.common.clock import inline
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.workbench import HandClock

KIM = UserCaller(user=User(name="kim"))


@asynccontextmanager
async def references(*sessions):
    """Ended ones in the history, the others live; the third is still in both."""
    history = await open_history(":memory:", clock=HandClock(), run=inline)
    state = LiveState(None, HandClock())  # type: ignore[arg-type]
    for position, one in enumerate(sessions, start=1):
        if one.state.is_ended:
            await history.catalogue.put_session(row_of(one), term=1)
        if not one.state.is_ended or position == 3:
            state.put_session(one, position)
    yield References(state=state, history=history)
    await history.close()


def ended(name: str, at: float):
    return session(name=name, created_at=at, state=SessionState.FAILED, ended_at=99.0)


SESSIONS = (
    ended("kim/None/1", 1.0),
    ended("kim/None/2", 2.0),
    ended("kim/None/3", 3.0),
    session(name="kim/mnist/1", created_at=2.5),
    session(name="kim/mnist/4", created_at=4.0),
    session(name="lee/None/9", owner="lee", created_at=5.0),
)


async def test_counting_back_goes_over_both_and_counts_each_once() -> None:
    async with references(*SESSIONS) as found:
        names = [(await found.find(KIM, f"@{count}")).name for count in range(1, 6)]
        with pytest.raises(NotFound):
            await found.find(KIM, "@6")
    assert names == ["kim/mnist/4", "kim/None/3", "kim/mnist/1", "kim/None/2", "kim/None/1"]


@pytest.mark.parametrize(
    ("stage", "counts"),
    [
        (SessionStage.PREDICT, False),
        (SessionStage.PREDICT_TEST, False),
        (SessionStage.EVALUATE, False),
        (SessionStage.INFER, True),
        (None, True),
    ],
)
@pytest.mark.parametrize("has_ended", [True, False])
async def test_counting_back_leaves_out_the_steps_of_submissions(
    *, stage: SessionStage | None, counts: bool, has_ended: bool
) -> None:
    state = SessionState.FAILED if has_ended else SessionState.RUNNING
    step = session(
        name="kim/mnist/5",
        created_at=6.0,
        state=state,
        ended_at=99.0 if has_ended else 0.0,
        spec={"stage": stage, "submission_id": "" if counts else "sub1"},
    )
    async with references(*SESSIONS, step) as found:
        names = [(await found.find(KIM, f"@{count}")).name for count in (1, 2)]
    before = ["kim/mnist/4", "kim/None/3"]
    assert names == (["kim/mnist/5", "kim/mnist/4"] if counts else before)


async def test_counting_back_goes_on_behind_any_number_of_steps() -> None:
    steps = (
        session(
            name=f"kim/mnist/{number}",
            created_at=float(number),
            state=SessionState.FAILED,
            ended_at=99.0,
            spec={"stage": SessionStage.EVALUATE, "submission_id": "sub1"},
        )
        for number in range(10, 20)
    )
    async with references(*SESSIONS, *steps) as found:
        names = [(await found.find(KIM, f"@{count}")).name for count in range(1, 6)]
        with pytest.raises(NotFound):
            await found.find(KIM, "@6")
    assert names == ["kim/mnist/4", "kim/None/3", "kim/mnist/1", "kim/None/2", "kim/None/1"]


async def test_a_session_that_only_names_steps_counts() -> None:
    told = session(
        name="kim/mnist/5",
        created_at=6.0,
        state=SessionState.FAILED,
        ended_at=99.0,
        spec={"dockerfile": "# PREDICT, then EVALUATE"},
    )
    async with references(*SESSIONS, told) as found:
        assert (await found.find(KIM, "@last")).name == "kim/mnist/5"


async def test_a_number_means_the_only_one_that_has_it() -> None:
    async with references(*SESSIONS) as found:
        for number, name in (("2", "kim/None/2"), ("3", "kim/None/3"), ("4", "kim/mnist/4")):
            assert (await found.find(KIM, number)).name == name
        with pytest.raises(AmbiguousReference) as caught:
            await found.find(KIM, "1")
        with pytest.raises(NotFound):
            await found.find(KIM, "9")
    assert caught.value.candidates == ("kim/None/1", "kim/mnist/1")


async def test_only_the_record_that_is_meant_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    def decode(record: bytes, original=etcd_codec.decode_session):
        decoded.append(original(record).name)
        return original(record)

    monkeypatch.setattr(etcd_codec, "decode_session", decode)
    async with references(*SESSIONS) as found:
        await found.find(KIM, "@5")
        await found.find(KIM, "2")
        with pytest.raises(AmbiguousReference):
            await found.find(KIM, "1")
    assert decoded == ["kim/None/1", "kim/None/2"]
