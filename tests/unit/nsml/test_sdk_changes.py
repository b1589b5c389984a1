"""Changes to a running program: knobs, pauses and checkpoints at a common step, with an agent over a real socket."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nsml import _live
from nsml._install import write_sdk
from nsml._session import Session
from tests.support.orders_agent import OrdersAgent, change
from tests.unit.nsml.test_sdk_install import every_python
from tests.unit.nsml.test_sdk_spool import ROOT, read


class Training:
    """A program in its main thread, which is that of the test; and its agent."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.run.mkdir()
        self.agent = OrdersAgent(self.run)
        self.session = Session(str(self.run), "kim/mnist/3")
        self.at = 0

    def step(self, number: int | None = None) -> None:
        self.at = self.at + 1 if number is None else number
        self.session.points.step(self.at)

    def step_until(self, holds: Any) -> Any:
        """Train until something holds."""
        until = time.monotonic() + 60
        while not (found := holds()):
            assert time.monotonic() < until, self.agent.reports[-3:]
            self.step()
        return found

    def states(self, number: int) -> list[str]:
        return self.agent.states(number)

    def known(self) -> dict[str, Any]:
        known = self.agent.reports[-1]["known"]
        assert known is not None
        return dict(known)

    def recorded_states(self) -> list[str]:
        records = [one for file in (self.run / "spool").glob("*.records") for one in read(file)]
        return [one["state"] for one in records if one["kind"] == "state"]


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "NSML_KNOBS", "RANK"):
        monkeypatch.delenv(name, raising=False)
    one = Training(tmp_path)
    with one.agent:
        yield one


def later(holds: Any, do: Any) -> threading.Thread:
    """Do something in another thread once something holds."""

    def run() -> None:
        until = time.monotonic() + 60
        while not holds() and time.monotonic() < until:
            time.sleep(0.005)
        do()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_knob_is_set_at_the_step_in_all_phases(training: Training) -> None:
    session, agent = training.session, training.agent
    assert session.knob("lr", 0.01, min=1e-5, max=1.0) == 0.01
    training.step(100)
    agent.say(change(7, "ask", values={"lr": 0.003}))
    training.step_until(lambda: agent.states(7) == ["asked"])
    report = agent.reports[-1]
    assert report["counters"]["step"] == training.at
    assert report["step_s"]["step"] > 0
    assert (report["local_rank"], report["local_world_size"], report["is_paused"]) == (0, 1, False)
    at = training.at + 5
    agent.say(change(7, "prepare", values={"lr": 0.003}, at=at))
    training.step()
    assert training.known()["is"] == "prepared"
    agent.say(change(7, "commit", values={"lr": 0.003}, at=at))
    while training.at < at - 1:
        training.step()
        assert session.knob("lr", 0.01, min=1e-5, max=1.0) == 0.01
    training.step()
    assert session.knob("lr", 0.01, min=1e-5, max=1.0) == 0.003
    assert training.states(7) == ["asked", "prepared", "applied", "done"]
    known = training.known()
    assert (known["at"], known["position"]) == (at, at)
    assert known["values"] == {"lr": [0.01, 0.003, 0.003]}
    assert known["reason"] == ""
    assert session.knob_table()["lr"]["step"] == at
    agent.say(None)
    training.step()
    calls = agent.connections
    for _ in range(100):
        training.step()
    assert agent.connections == calls, "where nothing is asked, nobody is"


def test_a_process_waits_at_the_step_until_it_is_decided(training: Training) -> None:
    session, agent = training.session, training.agent
    session.knob("lr", 0.01)
    training.step(10)
    agent.say(change(7, "prepare", values={"lr": 0.5}, at=12))
    training.step(11)
    decided = later(
        lambda: "waiting" in agent.states(7),
        lambda: agent.say(change(7, "commit", values={"lr": 0.5}, at=12)),
    )
    training.step(14)  # its counter goes on in threes
    decided.join()
    assert session.knob("lr", 0.01) == 0.5
    assert training.states(7)[:3] == ["prepared", "waiting", "applied"]
    assert training.known()["position"] == 14


@pytest.mark.parametrize("then", [None, "withdrawn", "newer", "other step"])
def test_what_replaces_it_ends_the_wait(training: Training, then: str | None) -> None:
    session, agent = training.session, training.agent
    session.knob("lr", 0.01)
    training.step(10)
    agent.say(change(7, "prepare", values={"lr": 0.5}, at=12))
    training.step(11)
    others = {
        None: None,
        "withdrawn": change(7, "withdrawn", values={"lr": 0.5}, at=12),
        "newer": change(8, "ask", values={"lr": 0.25}),
        "other step": change(7, "prepare", values={"lr": 0.5}, at=20),
    }
    later(lambda: "waiting" in agent.states(7), lambda: agent.say(others[then]))
    training.step(12)
    assert session.knob("lr", 0.01) == 0.01
    if then == "other step":
        training.step(13)
        assert training.known()["is"] == "prepared"
        agent.say(change(7, "commit", values={"lr": 0.5}, at=20))
        training.step(20)
        assert session.knob("lr", 0.01) == 0.5


def test_an_undecided_change_is_given_up(
    training: Training, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_live, "UNDECIDED_S", 0.1)
    training.session.knob("lr", 0.01)
    training.step(10)
    training.agent.say(change(7, "prepare", values={"lr": 0.5}, at=12))
    training.step(11)
    training.step(12)
    assert training.states(7) == ["prepared", "waiting", "missed"]
    assert "nobody decided" in capsys.readouterr().err
    training.agent.say(change(7, "commit", values={"lr": 0.5}, at=12))
    training.step(13)
    assert training.session.knob("lr", 0.01) == 0.01
    assert training.states(7)[-1] == "missed"
    monkeypatch.setattr(_live, "UNDECIDED_S", 600.0)
    training.agent.say(change(7, "prepare", values={"lr": 0.5}, at=20))  # once more
    training.step(14)
    training.agent.say(change(7, "commit", values={"lr": 0.5}, at=20))
    training.step(20)
    assert training.session.knob("lr", 0.01) == 0.5


def test_late_and_missed(training: Training) -> None:
    training.session.knob("lr", 0.01)
    training.step(10)
    training.agent.say(change(7, "prepare", values={"lr": 0.5}, at=10))
    training.step(11)
    assert training.states(7) == ["late"]
    training.agent.say(change(7, "commit", values={"lr": 0.5}, at=10))
    training.step(12)
    assert training.states(7) == ["late", "missed"]
    assert training.session.knob("lr", 0.01) == 0.01


def test_who_never_heard_of_the_preparation_is_still_in_time(training: Training) -> None:
    training.session.knob("lr", 0.01)
    training.step(10)
    training.agent.say(change(7, "commit", values={"lr": 0.5}, at=12))
    training.step(12)  # it hears of it at the step itself, and has not gone on
    assert training.session.knob("lr", 0.01) == 0.5


def test_without_counters_at_once(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsml._IMPORTED_AT", time.monotonic() - 100)
    session, agent = training.session, training.agent
    session.knob("lr", 0.01)
    agent.say(change(7, "ask", values={"lr": 0.5}))
    session.points.look()
    assert training.states(7) == ["asked"]
    assert agent.reports[-1]["counters"] == {}
    agent.say(change(7, "commit", values={"lr": 0.5}))
    assert session.knob("lr", 0.01) == 0.5
    session.points.look()
    assert training.known()["is"] == "done"
    assert training.known()["reason"] == ""


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"lrr": 0.5}, "there is no knob lrr: the program has declared batch, lr, mode, shuffle"),
        ({"lr": 2.0}, "lr: 2.0 is more than its max 1.0"),
        ({"lr": -1}, "lr: -1 is less than its min 0"),
        ({"lr": math.nan}, "lr: nan is no finite number"),
        ({"lr": "0.5"}, "lr: '0.5' is not a number"),
        ({"lr": True}, "lr: true is not a number"),
        ({"lr": 10**400}, "lr: an integer of 1,329 bits is more than any number"),
        ({"lr": None}, "lr: null is not a number"),
        ({"lr": [0.5]}, "lr: [0.5] is not a number"),
        ({"batch": 2**63}, "batch: 9223372036854775808 has more than 64 bits"),
        ({"batch": 8.0}, "batch: 8.0 is not an integer"),
        ({"batch": False}, "batch: false is not an integer"),
        ({"mode": "slow"}, "mode: 'slow' is none of its choices 'fast', 'safe'"),
        ({"mode": "x" * 257}, "mode: a text has at most 256 characters, and this one 257"),
        ({"shuffle": 1}, "shuffle: 1 is not true or false"),
        ({"lr": 0.5, "batch": "8"}, "batch: '8' is not an integer"),
    ],
)
def test_values_that_are_refused(training: Training, values: dict[str, Any], why: str) -> None:
    session, agent = training.session, training.agent
    session.knob("lr", 0.01, min=0, max=1.0)
    session.knob("batch", 32)
    session.knob("mode", "fast", choices=["fast", "safe"])
    session.knob("shuffle", True)
    training.step(1)
    for phase in ("ask", "prepare", "commit"):
        number = 7 + ("ask", "prepare", "commit").index(phase)
        at = None if phase == "ask" else training.at + 1
        agent.say(change(number, phase, values=values, at=at))
        training.step()
        assert training.known()["is"] == ("failed" if phase == "commit" else "refused")
        assert why in training.known()["reason"]
    assert session.knob("lr", 0.01, min=0, max=1.0) == 0.01


def test_a_knob_that_may_be_declared_later_is_refused_with_that_word(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = []
    for number, age_s in ((7, 3.0), (8, 600.0)):
        monkeypatch.setattr("nsml._IMPORTED_AT", time.monotonic() - age_s)
        training.session = Session(str(training.run), "kim/mnist/3")
        training.agent.say(change(number, "ask", values={"lr": 0.5}))
        training.step()
        words.append(training.known()["reason"])
    assert "no knob lr" in words[0]
    assert words[0].startswith(words[1])
    assert "just begun" in words[0]
    assert "just begun" not in words[1]


class Pause:
    """A pause that a program is in, from the moment at which it says so."""

    def __init__(self, training: Training, **more: Any) -> None:
        self.training = training
        training.agent.say(change(7, "commit", "pause", at=training.at + 1, **more))

    def then(self, do: Any) -> threading.Thread:
        return later(lambda: any(one["is_paused"] for one in self.training.agent.reports), do)


def test_a_pause_serves_exec_and_changes_until_it_is_continued(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    session, agent = training.session, training.agent
    session.knob("lr", 0.01)
    training.step(10)
    pause = Pause(training)

    def visit() -> None:
        agent.order("1 + 1")
        agent.wait(lambda: agent.answers)
        agent.say(change(8, "prepare", values={"lr": 0.5}, at=11))
        agent.wait_is(8, "prepared")
        agent.say(change(8, "commit", values={"lr": 0.5}, at=11))
        agent.wait_is(8, "applied")
        agent.say(change(9, "commit", "continue"))

    visitor = pause.then(visit)
    training.step(11)
    visitor.join()
    assert agent.answers[0]["value"] == "2"
    assert session.knob("lr", 0.01) == 0.5
    assert training.states(7) == ["prepared", "applied"]
    assert training.states(8) == ["prepared", "applied"]
    assert training.states(9) == ["done"]
    assert agent.reports[-1]["is_paused"] is False
    assert training.recorded_states() == ["PAUSED", "RUNNING"]
    words = capsys.readouterr().err
    assert "paused by kim at step 11 for at most 1 h; to go on: nsml continue" in words


def test_a_forgotten_pause_ends_by_its_limit(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    training.step(10)
    Pause(training, limit_s=0.1)
    training.step(11)
    assert training.states(7) == ["prepared", "applied", "done"]
    assert "goes on: it was paused for 0.1 s, its limit" in capsys.readouterr().err
    assert training.recorded_states() == ["PAUSED", "RUNNING"]


def test_the_agent_goes_and_comes_back_amid_a_pause(training: Training) -> None:
    agent = training.agent
    training.step(10)
    pause = Pause(training)

    def restart() -> None:
        agent.close()
        (training.run / "socket").unlink(missing_ok=True)
        before = len(agent.reports)
        agent.open()
        agent.wait(lambda: len(agent.reports) > before)
        agent.say(change(9, "commit", "continue"))

    restarted = pause.then(restart)
    training.step(11)
    restarted.join()
    assert training.states(9) == ["done"]


def test_a_program_whose_agent_is_gone_gives_up_at_the_step(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_live, "UNDECIDED_S", 0.1)
    training.step(10)
    training.agent.say(change(7, "prepare", "pause", at=12))
    training.step(11)
    training.agent.close()
    training.step(12)
    training.step(13)
    assert training.recorded_states() == []


def notice_to_leave(training: Training, *, goes: bool) -> None:
    (training.run / "notice.json").write_text(json.dumps({"goes": goes, "reason": "a test"}))


def test_a_program_that_is_preempted_amid_a_pause_saves_and_leaves(training: Training) -> None:
    session = training.session
    session.bind(save=lambda folder: Path(folder, "w").write_text("1"), load=lambda _: None)
    training.step(10)
    pause = Pause(training)
    pause.then(lambda: notice_to_leave(training, goes=True))
    training.step(11)
    assert training.recorded_states() == ["PAUSED", "RUNNING"]

    def train_on() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            session.reporter.report(step=training.at, loss=1.0)

    with pytest.raises(SystemExit) as left:
        train_on()
    assert left.value.code == 75
    assert list((training.run / "checkpoints").glob("*-attempt-1"))


def test_a_pause_saves_before_the_time_limit(training: Training) -> None:
    session = training.session
    session.bind(save=lambda folder: Path(folder, "w").write_text("1"), load=lambda _: None)
    training.step(10)
    pause = Pause(training)

    def visit() -> None:
        notice_to_leave(training, goes=False)
        training.agent.wait(lambda: list((training.run / "checkpoints").glob("*-attempt-1")))
        training.agent.say(change(9, "commit", "continue"))

    visitor = pause.then(visit)
    training.step(11)
    visitor.join()
    assert training.states(9) == ["done"]


class StopError(Exception):
    pass


def test_a_signal_handler_that_raises_ends_a_pause(training: Training) -> None:
    training.step(10)
    pause = Pause(training)

    def handler(*_: Any) -> None:
        raise StopError

    before = signal.signal(signal.SIGTERM, handler)
    try:
        pause.then(lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(StopError):
            training.step(11)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert training.recorded_states() == ["PAUSED", "RUNNING"]
    training.step(12)
    assert training.states(7) == ["prepared", "applied", "done"]
    assert training.agent.reports[-1]["is_paused"] is False


def test_continue_cancels_a_pause_that_was_not_reached(training: Training) -> None:
    training.step(10)
    training.agent.say(change(7, "commit", "pause", at=20))
    training.step(11)
    training.agent.say(change(8, "commit", "continue"))
    training.step(12)
    assert training.states(8) == ["done"]
    training.step(20)
    assert training.recorded_states() == []


def test_another_checkpoint_is_loaded(training: Training) -> None:
    session, agent = training.session, training.agent
    agent.say(change(6, "ask", "load", checkpoint="best"))
    training.step(1)
    assert training.known()["is"] == "refused"
    held = {"weight": 1.0}
    session.bind(
        save=lambda folder: Path(folder, "w").write_text(str(held["weight"])),
        load=lambda folder: held.update(weight=float(Path(folder, "w").read_text())),
    )
    session.save("best")
    held["weight"] = 9.0
    agent.say(change(7, "commit", "load", checkpoint="best", at=3))
    training.step(2)
    assert held["weight"] == 9.0
    training.step(3)
    assert held["weight"] == 1.0
    assert training.known()["is"] == "done"
    agent.say(change(8, "commit", "load", checkpoint="best", at=5))
    session.bind(save=lambda _: None, load=lambda _: exit("not now"))
    training.step(5)
    assert training.known()["is"] == "failed"
    assert "not now" in training.known()["reason"]


def test_what_was_set_holds_when_an_earlier_checkpoint_is_loaded(training: Training) -> None:
    session, agent = training.session, training.agent
    optimizer = Optimizer()

    def load(folder: str) -> None:
        optimizer.param_groups = [{"lr": float(Path(folder, "lr").read_text())}]

    session.bind(
        save=lambda folder: Path(folder, "lr").write_text(str(optimizer.param_groups[0]["lr"])),
        load=load,
        optimizer=optimizer,
    )
    session.save("before")
    agent.say(change(7, "commit", values={"lr": 0.8}, at=2))
    training.step(2)
    session.save("after")
    optimizer.step()
    for number, (name, rate) in enumerate((("before", 0.8), ("after", 0.8)), start=8):
        agent.say(change(number, "commit", "load", checkpoint=name, at=number))
        training.step(number)
        assert training.known()["is"] == "done"
        assert optimizer.param_groups[0]["lr"] == rate
        optimizer.step()


def test_only_the_thread_that_trains_is_a_member(training: Training) -> None:
    session, agent = training.session, training.agent
    session.knob("lr", 0.01)
    training.step(10)
    agent.say(change(7, "prepare", values={"lr": 0.5}, at=12))
    other = threading.Thread(target=lambda: session.points.step(500))
    other.start()
    other.join()
    assert agent.reports == []
    training.step(11)
    assert training.states(7) == ["prepared"]
    agent.say(change(7, "commit", values={"lr": 0.5}, at=12))
    training.step(12)
    assert session.knob("lr", 0.01) == 0.5


def test_what_another_thread_evaluates_does_not_keep_a_change_from_the_step(
    training: Training,
) -> None:
    session, agent = training.session, training.agent
    session.knob("lr", 0.01)
    training.step(10)
    held = threading.Event()
    began = threading.Event()
    session.reporter.scope = {"held": held, "began": began}
    agent.change = change(7, "prepare", values={"lr": 0.5}, at=12)
    agent.order("began.set(), held.wait()", limit_s=30)
    other = threading.Thread(target=session.points.look)
    other.start()
    assert began.wait(60)
    training.step(11)
    assert training.states(7) == ["prepared"]
    later(
        lambda: "waiting" in agent.states(7),
        lambda: agent.say(change(7, "commit", values={"lr": 0.5}, at=12)),
    )
    training.step(12)
    held.set()
    other.join()
    assert session.knob("lr", 0.01) == 0.5


def test_another_process_is_the_member(training: Training) -> None:
    training.agent.is_member = False
    training.session.knob("lr", 0.01)
    training.step(10)
    training.agent.say(change(7, "prepare", values={"lr": 0.5}, at=12))
    for _ in range(5):
        training.step()
    assert training.session.knob("lr", 0.01) == 0.01


def test_an_agent_of_before(training: Training, capsys: pytest.CaptureFixture[str]) -> None:
    training.agent.knows_changes = False
    training.session.knob("lr", 0.01)
    training.step(10)
    training.agent.order("2 + 2")
    training.step(11)
    assert training.agent.answers[0]["value"] == "4"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "raw",
    [
        *({}, [], "x", 7, {"number": "7", "phase": "ask", "kind": "set"}),
        change(7, "ask", "dance"),
        {**change(7, "prepare"), "at": 1.5, "counter": "step"},
        {**change(7, "commit"), "values": [1]},
    ],
)
def test_what_is_no_change_is_none(training: Training, raw: Any) -> None:
    training.step(10)
    training.agent.say(raw)
    training.step(11)
    training.step(12)


def test_all_counters_are_said(training: Training) -> None:
    session, agent = training.session, training.agent
    for epoch in session.progress.steps(3):
        session.points.step(10 * epoch)
        session.reporter.report(step=epoch + 100, loss=1.0)
        if epoch == 1:
            agent.say(change(7, "ask", "pause"))
            session.points._live = None
    training.step_until(lambda: agent.states(7) == ["asked"])
    counters = agent.reports[-1]["counters"]
    assert counters["steps"] == 2
    assert counters["report"] == 102


@pytest.mark.parametrize("counter", ["steps", "report"])
def test_a_change_at_a_step_of_another_counter(training: Training, counter: str) -> None:
    session = training.session
    session.knob("lr", 0.01)
    training.agent.say(change(7, "commit", values={"lr": 0.5}, counter=counter, at=3))
    found = []
    for epoch in session.progress.steps(6):
        found.append(session.knob("lr", 0.01))
        session.reporter.report(step=epoch, loss=1.0)
    assert found == [0.01] * (3 if counter == "steps" else 4) + [0.5] * (
        3 if counter == "steps" else 2
    )
    assert training.known()["is"] == "done"


def test_a_knob_that_is_read_no_more(training: Training) -> None:
    training.session.knob("lr", 0.01)
    training.step(10)
    training.agent.say(change(7, "commit", values={"lr": 0.5}, at=11))
    training.step(11)
    training.step(12)
    assert training.known()["is"] == "done"
    assert training.known()["reason"] == "lr: the program has not read it since"


def kept(training: Training, *entries: tuple[int, float, int | None]) -> None:
    """What the agent has written down: number, rate and step of each change."""
    found = [
        {"name": "lr", "value": rate, "counter": "" if at is None else "step", "at": at}
        | {"number": number}
        for number, rate, at in entries
    ]
    (training.run / "knobs").write_text(json.dumps(found))


def test_who_is_started_anew_begins_with_what_is_in_force(training: Training) -> None:
    agent = training.agent
    kept(training, (3, 0.5, 90), (4, 0.25, 85), (5, 0.75, None))
    session = training.session = Session(str(training.run), "kim/mnist/3")
    assert session.knob("lr", 0.01) == 0.75
    found = {}
    for step in (81, 84, 85, 89, 90, 91):
        training.step(step)
        found[step] = session.knob("lr", 0.01)
    assert found == {81: 0.75, 84: 0.75, 85: 0.25, 89: 0.25, 90: 0.5, 91: 0.5}
    # what was decided between its beginning and its first word, at a step that is over and at one that is not
    kept(training, (3, 0.5, 90), (6, 0.125, 91), (7, 1.5, 95))
    agent.call()
    training.step(92)
    assert session.knob("lr", 0.01) == 0.125
    training.step(95)
    assert session.knob("lr", 0.01) == 1.5
    later_one = Session(
        str(training.run), "kim/mnist/3"
    )  # its checkpoint was saved after all of them
    later_one.points.step(100)
    assert later_one.knob("lr", 0.01) == 1.5


def test_what_was_decided_before_a_process_was_there_is_made_late(training: Training) -> None:
    session, agent = training.session, training.agent
    session.knob("lr", 0.01)
    training.step(95)
    agent.say(change(7, "commit", values={"lr": 0.5}, at=90))
    training.step(96)
    training.step(97)
    assert session.knob("lr", 0.01) == 0.5
    assert training.states(7) == ["applied", "done"]
    assert agent.reports[-1]["known"]["position"] == 96
    kept(training, (7, 0.5, 90))
    agent.say(change(8, "commit", values={"lr": 0.7}, at=97))
    training.step(98)
    assert session.knob("lr", 0.01) == 0.7
    agent.say(None)
    training.step(99)
    assert session.knob("lr", 0.01) == 0.7, "what it has made it does not make again"


def test_what_cannot_be_read_of_earlier_changes_is_said(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    (training.run / "knobs").write_text("[7]")
    session = Session(str(training.run), "kim/mnist/3")
    for step in range(3):
        training.agent.call()
        session.points.step(step)
    assert session.knob("lr", 0.01) == 0.01
    assert capsys.readouterr().err.count("cannot be read") == 2  # as it begins, and once after that


PRESETS = [
    {"name": "lr", "value": 0.5, "counter": "", "at": None},
    {"name": "lr", "value": 0.25, "counter": "step", "at": 5},
    {"name": "lr", "value": 0.125, "counter": "", "at": 8},
    {"name": "lr", "value": "x", "counter": "step", "at": 9},
]


def test_values_that_are_known_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NSML_KNOBS", json.dumps(PRESETS))
    session = Session(str(tmp_path), "kim/mnist/3")
    found = []
    for step in range(1, 12):
        found.append(session.knob("lr", 1.0))
        session.points.step(step)
    assert found == [0.5] * 5 + [0.25] * 3 + [0.125] * 3
    assert session.knob_table()["lr"]["step"] == 8
    assert "lr is not set to 'x': lr: 'x' is not a number" in capsys.readouterr().err
    assert session.points._seen is not None
    later_on = Session(str(tmp_path), "kim/mnist/3")  # goes on at step 7
    later_on.points.step(7)
    assert later_on.knob("lr", 1.0) == 0.25


@pytest.mark.parametrize(
    "text", ["{", "7", "[7]", "[{}]", '[{"name": "a b", "value": 1}]', '[{"name": "a"}]']
)
def test_values_from_the_start_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    monkeypatch.setenv("NSML_KNOBS", text)
    session = Session(str(tmp_path), "kim/mnist/3")
    session.points.step(1)
    assert session.knob("lr", 1.0) == 1.0
    assert "cannot be read" in capsys.readouterr().err


def raising_at(line: int) -> Any:
    """A trace function: KeyboardInterrupt before this line of what is executed in nsml."""
    left = [line]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if "/nsml/_" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
        return trace

    return trace


def test_after_an_exception_at_any_moment_the_next_change_is_made(training: Training) -> None:
    session, agent = training.session, training.agent
    session.knob("lr", 0.0)
    training.step(1)
    interrupted = 0
    for line in range(1, 700, 7):
        number, value = 2 * line, float(line)
        agent.say(change(number, "commit", values={"lr": value / 2}, at=training.at + 1))
        tracer = sys.gettrace()
        sys.settrace(raising_at(line))
        try:
            training.step()
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(tracer)
        agent.say(change(number + 1, "commit", values={"lr": value}, at=training.at + 1))
        training.step()
        assert session.knob("lr", 0.0) == value, line
        training.step()
        assert agent.reports[-1]["known"]["is"] == "done"
    assert interrupted > 10


def test_a_change_makes_no_call_too_deep(training: Training) -> None:
    session, agent = training.session, training.agent
    session.knob("lr", 0.0)

    def fits(rest: int, number: int) -> bool:
        def go(depth: int) -> Any:
            return session.points.step(number) if depth <= 0 else go(depth - 1)

        try:
            go(sys.getrecursionlimit() - rest)
        except RecursionError:
            return False
        return True

    rests = [rest for rest in range(1, 300) if fits(rest, 1)]
    assert rests
    for place, rest in enumerate(rests[:100]):
        at = 10 + place
        agent.say(change(10 + place, "commit", values={"lr": float(place)}, at=at))
        assert fits(rest, at)
    agent.say(change(1000, "commit", values={"lr": 0.5}, at=2000))
    training.step(2000)
    assert session.knob("lr", 0.0) == 0.5


PROGRAM = """
import os, sys, time, nsml

points = sys.modules["nsml._session"]._SESSION.points
assert "nsml._knobs" not in sys.modules and "nsml._live" not in sys.modules
has_forked = False
nsml.knob("lr", 0.01, min=0.0, max=1.0)
for step in range(1, 1 << 30):
    nsml.step(step)
    lr = nsml.knob("lr", 0.01, min=0.0, max=1.0)
    known = points._live.follower.known() if points._live is not None else None
    if known and known["is"] == "prepared" and not has_forked:
        has_forked = True
        child = os.fork()
        if child == 0:
            for other in range(step, step + 100000):
                nsml.step(other)
            os._exit(0 if nsml.knob("lr", 0.01, min=0.0, max=1.0) == 0.01 else 1)
        assert os.waitpid(child, 0)[1] == 0
    if known and known["is"] == "done":
        break
    time.sleep(0.001)
assert has_forked
print(lr, nsml.knobs()["lr"]["step"])
"""


@pytest.mark.parametrize("python", every_python())
def test_a_whole_change_in_a_program_that_forks_amid_it(tmp_path: Path, python: str) -> None:
    run, sdk = tmp_path / "run", tmp_path / "sdk"
    run.mkdir()
    write_sdk(sdk)
    (tmp_path / "main.py").write_text(PROGRAM)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NSML_", "LOCAL_"))}
    with OrdersAgent(run) as agent:
        agent.say(change(7, "ask", values={"lr": 0.5}))
        at = 0

        def decide(report: dict[str, Any]) -> None:
            nonlocal at
            known = report["known"]
            if known and known["is"] == "asked" and not at:
                at = report["counters"]["step"] + 20
                agent.say(change(7, "prepare", values={"lr": 0.5}, at=at))
            elif known and known["is"] == "waiting":
                agent.say(change(7, "commit", values={"lr": 0.5}, at=at))

        agent.on_report = decide
        done = subprocess.run(
            [python, "main.py"],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(sdk), "NSML_RUN_DIR": str(run)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"0.5 {at}\n"
    assert agent.states(7) == ["asked", "prepared", "waiting", "applied", "done"]
    assert len({report["process"] for report in agent.reports}) == 1


class Optimizer:
    """With a rate that a schedule makes smaller at each step."""

    def __init__(self) -> None:
        self.param_groups = [{"lr": 0.1}]

    def step(self) -> None:
        self.param_groups[0]["lr"] *= 0.5


@pytest.mark.parametrize("is_saved", [True, False], ids=["with its state", "without"])
@pytest.mark.parametrize("counter", ["step", "optimizer"])
def test_an_attempt_goes_on_with_the_rates_of_the_one_before(
    training: Training, monkeypatch: pytest.MonkeyPatch, is_saved: bool, counter: str
) -> None:
    def bound(session: Session) -> Optimizer:
        optimizer = Optimizer()

        def save(folder: str) -> None:
            Path(folder, "lr").write_text(repr(optimizer.param_groups[0]["lr"]))

        def load(folder: str) -> None:
            if is_saved:
                optimizer.param_groups = [{"lr": float(Path(folder, "lr").read_text())}]

        session.bind(save=save, load=load, optimizer=optimizer)
        return optimizer

    session, agent = training.session, training.agent
    optimizer = bound(session)
    agent.say(change(7, "commit", values={"lr": 0.8}, counter=counter, at=3))
    for step in range(1, 7):
        training.step(step)
        session.points.tick("optimizer", step)
        optimizer.step()
    session.save("best")
    at_end = optimizer.param_groups[0]["lr"]
    assert at_end == 0.05  # 0.8, halved at four steps
    agent.say(None)
    is_counted_anew = counter == "optimizer"
    preset = {"name": "lr", "value": 0.8}
    preset |= {"counter": "", "at": None} if is_counted_anew else {"counter": "step", "at": 3}
    later_one = {"name": "lr", "value": 0.25, "counter": "step", "at": 9}
    monkeypatch.setenv("NSML_KNOBS", json.dumps([preset, later_one]))
    monkeypatch.setenv("NSML_RESUME", "best")
    resumed = Session(str(training.run), "kim/mnist/3")
    optimizer = bound(resumed)
    found = []
    for step in range(7, 11):
        resumed.points.step(step)
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    began = at_end if is_saved else 0.8
    assert found == [began, began / 2, 0.25, 0.125]
    assert resumed.knobs().made()["lr"]["changes"][0][0] == 0.8


def test_a_name_that_no_knob_has_is_said_at_the_end(tmp_path: Path) -> None:
    program = "import nsml\nnsml.knob('lr', 1.0)\nnsml.step(1)\n"
    presets = [{"name": name, "value": 0.5, "at": None} for name in ("lr", "lrr")]
    here = {"NSML_RUN_DIR": str(tmp_path), "NSML_KNOBS": json.dumps(presets)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **here},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == (
        "nsml: no knob of the program was called lrr: what it was to be was not used\n"
    )


RANK = """
import json, sys, time, nsml

nsml.knob("lr", 0.0)
applied, changes = [], int(sys.argv[1])
for step in range(1, 1 << 30):
    before = nsml.knobs()["lr"]["value"]
    nsml.step(step)
    lr = nsml.knob("lr", 0.0)
    if lr != before:
        applied.append([step, lr])
    if lr == changes:
        break
    time.sleep(0.002 if nsml.knobs()["lr"]["value"] % 2 else 0.001)
nsml.step(step + 1)
print(json.dumps(applied))
"""


def test_processes_of_one_replica_make_each_change_at_one_step(tmp_path: Path) -> None:
    ranks, changes = 3, 8
    run = tmp_path / "run"
    run.mkdir()
    known: dict[int, dict[str, Any]] = {}
    steps: dict[int, int] = {}
    decided = threading.Lock()
    with OrdersAgent(run) as agent:

        def decide(report: dict[str, Any]) -> None:
            with decided:
                rank, said = report["local_rank"], agent.change
                steps[rank] = report["counters"].get("step", 0)
                known[rank] = report["known"] or {}
                assert said is not None
                number, value = said["number"], said["values"]["lr"]
                states = [
                    one["is"] for one in known.values()
                    if one.get("number") == number and one.get("at") == said["at"]
                ]  # fmt: skip
                if len(states) < ranks:
                    return
                if said["phase"] == "ask" and set(states) == {"asked"}:
                    at = max(steps.values()) + 15
                    agent.say(change(number, "prepare", values={"lr": value}, at=at))
                elif said["phase"] == "prepare" and "late" in states:
                    agent.say(change(number, "ask", values={"lr": value}))
                elif said["phase"] == "prepare" and set(states) <= {"prepared", "waiting"}:
                    agent.say(change(number, "commit", values={"lr": value}, at=said["at"]))
                elif said["phase"] == "commit" and set(states) <= {"done"} and value < changes:
                    agent.say(change(number + 1, "ask", values={"lr": value + 1.0}))

        agent.on_report = decide
        agent.say(change(1, "ask", values={"lr": 1.0}))
        here = {**os.environ, "NSML_RUN_DIR": str(run), "PYTHONPATH": str(ROOT)}
        programs = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(changes)],
                env={**here, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        found = [json.loads(one.communicate(timeout=120)[0]) for one in programs]
    assert [lr for _, lr in found[0]] == [float(number) for number in range(1, changes + 1)]
    assert all(one == found[0] for one in found)
