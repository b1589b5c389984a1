"""One change at one step of all processes, whatever is late, lost or said twice: many followers in one test."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from nsml._changes import APPLY, READ_BACK, WAIT, Change, Follower
from tests.support.orders_agent import change


@dataclass
class Member:
    """A program that trains, and what is on its way to it."""

    follower: Follower = field(default_factory=lambda: Follower({}))
    at: int = 0
    page: dict[str, Any] | None = None
    set_at: dict[int, int] = field(default_factory=dict)
    waits: bool = False
    waited: int = 0

    def hear(self, now: float) -> None:
        said = Change(self.page) if self.page is not None else None
        self.follower.hear(said, now, lambda _: "")

    def move(self, now: float, undecided: int) -> None:
        """One safe point, or one look of a process that waits."""
        self.hear(now)
        if not self.waits:
            self.at += 1
            self.follower.tick("step", self.at, now)
        while self.follower.todo:
            self.waits = False
            change = self.follower.change
            assert change is not None
            match self.follower.todo:
                case todo if todo == APPLY:
                    self.set_at[change.number] = self.at
                    self.follower.applied({"lr": [1, 2]}, now)
                case todo if todo == READ_BACK:
                    self.follower.read_back({"lr": [1, 2, 2]}, "")
                case todo if todo == WAIT:
                    self.waited += 1
                    self.waits = self.waited <= undecided
                    if self.waits:
                        self.follower.waits()
                        return
                    self.follower.gave_up("undecided")
        self.waits = False
        self.waited = 0


class Leader:
    """Decides as the control plane does: what all have prepared, and nothing before what was before it is applied."""

    def __init__(
        self, members: list[Member], rng: random.Random, *, waits_for_applied: bool
    ) -> None:
        self.members = members
        self.rng = rng
        self.waits_for_applied = waits_for_applied
        self.said: dict[str, Any] | None = None
        self.number = 0
        self.decided: list[int] = []
        self.heard: list[dict[str, Any] | None] = [None] * len(members)

    def say(self, **said: Any) -> None:
        self.said = change(**said)

    def hear(self) -> None:
        for place, member in enumerate(self.members):
            if self.rng.random() < 0.4:
                self.heard[place] = member.follower.known()
            if self.rng.random() < 0.4:
                member.page = self.said

    def decide(self) -> None:
        said = self.said
        now = [one["is"] if one and said and self._is_it(one, said) else "" for one in self.heard]
        if said is None:
            self.number += 1
            self.say(number=self.number, phase="ask")
        elif said["phase"] == "ask":
            if all(state == "asked" for state in now):
                at = max(one.at for one in self.members) + self.rng.choice((1, 2, 5, 20))
                self.say(number=self.number, phase="prepare", at=at)
        elif said["phase"] == "prepare":
            if any(state in ("late", "missed") for state in now):
                self.say(number=self.number, phase="ask")
            elif all(state in ("prepared", "waiting") for state in now):
                self.decided.append(self.number)
                self.say(number=self.number, phase="commit", at=said["at"])
        elif all(state == "done" for state in now) or not self.waits_for_applied:
            self.number += 1
            self.say(number=self.number, phase="ask")

    @staticmethod
    def _is_it(known: dict[str, Any], said: dict[str, Any]) -> bool:
        if known["number"] != said["number"]:
            return False
        return said["phase"] == "ask" or (known["at"] == said["at"])


def divided(seed: int, *, waits_for_applied: bool = True) -> tuple[int, int]:
    """How many changes were decided, and how many of them were not made at one step by all."""
    rng = random.Random(seed)
    members = [Member(at=rng.choice((0, 0, 7))) for _ in range(4)]
    start = max(one.at for one in members)
    for one in members:
        one.at = start
    leader = Leader(members, rng, waits_for_applied=waits_for_applied)
    speeds = [rng.choice((0.3, 0.6, 0.9)) for _ in members]
    for turn in range(1500):
        slowest = min(one.at for one in members)
        for member, speed in zip(members, speeds, strict=True):
            if rng.random() < speed and (
                member.waits or member.at <= slowest + rng.choice((0, 0, 1))
            ):
                member.move(float(turn), undecided=10_000)
        leader.hear()
        leader.decide()
    whole = [number for number in leader.decided if leader.number - number > 1]
    steps = [{one.set_at.get(number) for one in members} for number in whole]
    return len(whole), sum(len(found) > 1 or None in found for found in steps)


def test_all_processes_make_a_change_at_the_same_step() -> None:
    total = 0
    for seed in range(60):
        decided, wrong = divided(seed)
        assert not wrong, seed
        total += decided
    assert total > 300


def test_a_leader_that_does_not_wait_until_all_have_made_it_divides_them() -> None:
    """The mutant: without that wait, what is newer takes the place of what some have not made yet."""
    assert sum(divided(seed, waits_for_applied=False)[1] for seed in range(20)) > 10


def no(_: Change) -> str:
    return ""


def test_what_was_made_is_not_made_again() -> None:
    follower = Follower({"step": 3})
    for _ in range(2):
        follower.hear(Change(change(7, "commit", at=5)), 0.0, no)
        follower.tick("step", 5, 0.0)
        assert follower.todo in (APPLY, READ_BACK, "")
        if follower.todo == APPLY:
            follower.applied({}, 0.0)
    follower.hear(None, 0.0, no)
    assert follower.known() is None
    for phase in ("commit", "prepare", "ask"):
        follower.hear(Change(change(7, phase, at=None if phase == "ask" else 5)), 0.0, no)
        assert follower.known()["is"] == "applied"  # type: ignore[index]
        assert follower.todo != APPLY
    follower.hear(Change(change(6, "commit", at=9)), 0.0, no)
    assert follower.known()["number"] == 7, "an older one changes nothing"  # type: ignore[index]


@pytest.mark.parametrize("at", [2**63, -5, 0])
def test_steps_beyond_all_others(at: int) -> None:
    follower = Follower({"step": 3})
    follower.hear(Change(change(7, "prepare", at=at)), 0.0, no)
    assert follower.known()["is"] == ("prepared" if at > 3 else "late")  # type: ignore[index]
    follower.tick("step", 2**62 - 1, 0.0)
    assert follower.todo == ""
    follower.tick("step", 2**64, 0.0)
    assert follower.positions["step"] == 2**62 - 1, "no step number"


def test_paused_at_the_step_it_is_in_time() -> None:
    follower = Follower({"step": 3})
    follower.is_paused = True
    follower.hear(Change(change(7, "prepare", at=3)), 0.0, no)
    assert (follower.known()["is"], follower.todo) == ("prepared", "")  # type: ignore[index]
    follower.is_paused = False
    assert follower.todo == WAIT, "the pause is over: it does not pass the step undecided"
    follower.hear(Change(change(7, "commit", at=3)), 0.0, no)
    assert follower.todo == APPLY


def test_paused_before_the_step_it_is_made_there() -> None:
    follower = Follower({"step": 3})
    follower.is_paused = True
    follower.hear(Change(change(7, "commit", at=5)), 0.0, no)
    assert follower.todo == ""
    follower.hear(Change({**change(8, "commit", at=2), "kind": "load"}), 0.0, no)
    assert follower.known()["is"] == "missed"  # type: ignore[index]


def test_what_was_set_before_a_process_was_there_it_sets_late() -> None:
    follower = Follower({"step": 3})
    follower.hear(Change(change(8, "commit", at=2)), 0.0, no)
    assert follower.begins_with_it
    assert follower.known()["is"] == "prepared"  # type: ignore[index]


def test_the_answer_waits_for_the_length_of_a_step_but_no_second() -> None:
    follower = Follower({"report": 1, "step": 10})
    follower.hear(Change(change(7, "ask")), 100.0, no)
    follower.tick("report", 2, 100.1)
    follower.tick("report", 3, 100.2)
    assert follower.known() is None, "people mean the other one"
    follower.tick("step", 11, 100.3)
    follower.tick("step", 13, 100.7)
    assert follower.known()["is"] == "asked"  # type: ignore[index]
    assert follower.report()["step_s"] == pytest.approx({"report": 0.1, "step": 0.2})
    slow = Follower({"step": 10})
    slow.hear(Change(change(7, "ask")), 100.0, no)
    slow.tick("", None, 101.0)
    assert slow.known()["is"] == "asked"  # type: ignore[index]


def test_a_program_that_has_just_begun_is_given_time_to_count() -> None:
    young = Follower({}, began_s=90.0)
    young.hear(Change(change(7, "ask")), 100.0, no)
    young.tick("", None, 100.0)
    assert young.known() is None
    young.tick("", None, 101.0)
    assert young.known()["is"] == "asked"  # type: ignore[index]
    old = Follower({}, began_s=10.0)
    old.hear(Change(change(7, "ask")), 100.0, no)
    old.tick("", None, 100.0)
    assert old.known()["is"] == "asked"  # type: ignore[index]
