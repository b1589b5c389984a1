"""Changes to running programs: values of knobs, a pause, another checkpoint, for all processes at one step.

A two-phase commit: every process reports its step, receives a step ahead of all of them, and promises not to pass
it undecided; then the change is committed, and each process makes it at that step. A process that arrives early
waits. No process decides alone: after too long a wait it goes on unchanged, and the change counts as divided.
`decide` is one step of this, called whenever a process has reported or time has passed.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COUNTERS: Final = ("step", "steps", "report", "optimizer")
"""Step counters of programs; the first one that all processes have is used."""
LASTING_COUNTERS: Final = frozenset(COUNTERS) - {"optimizer"}
"""Counters that continue in another attempt; that of optimizers restarts in each."""

LEAD_S: Final = 0.3
"""First lead of the step before the foremost process, in seconds; doubled each time it was too near."""
MOST_TRIES: Final = 12

MOST_MEMBER_BYTES: Final = 16 << 10
"""Limit of kept reports on one change: they come from user code, and a session is one record."""
MOST_MEMBERS: Final = 256
_MOST_REASONS: Final = 4
MOST_STEP: Final = 1 << 62
"""The highest valid step; see nsml.spec.knobs."""
_NO_ROOM: Final = "no step was far enough ahead of all processes"


class ChangeKind(enum.StrEnum):
    """Kind of a change; see nsml.v1.ProgramChangeKind."""

    SET = "SET"
    PAUSE = "PAUSE"
    CONTINUE = "CONTINUE"
    LOAD = "LOAD"


class ChangePhase(enum.StrEnum):
    """Phase of a change; see nsml.v1.ProgramChangePhase."""

    ASK = "ASK"
    PREPARE = "PREPARE"
    COMMIT = "COMMIT"
    APPLIED = "APPLIED"
    DIVIDED = "DIVIDED"
    WITHDRAWN = "WITHDRAWN"

    @property
    def is_open(self) -> bool:
        """Whether reports of processes are still expected."""
        return self in {ChangePhase.ASK, ChangePhase.PREPARE, ChangePhase.COMMIT}


class MemberState(enum.StrEnum):
    """A process's state in a change; see nsml.v1.MemberState."""

    UNKNOWN = "UNKNOWN"
    ASKED = "ASKED"
    REFUSED = "REFUSED"
    PREPARED = "PREPARED"
    LATE = "LATE"
    WAITING = "WAITING"
    APPLIED = "APPLIED"
    DONE = "DONE"
    MISSED = "MISSED"
    FAILED = "FAILED"


_DECIDED: Final = frozenset({ChangePhase.COMMIT, ChangePhase.APPLIED, ChangePhase.DIVIDED})
_M = MemberState
_HOLDS_ON: Final = frozenset({_M.PREPARED, _M.WAITING})
_MADE: Final = frozenset({_M.APPLIED, _M.DONE})
_NOT_MADE: Final = frozenset({_M.MISSED, _M.FAILED, _M.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobValue:
    """A value of a knob from step `at` on; `value` is JSON, `at` None: from the beginning, `counter` "": any."""

    name: str
    value: str
    at: int | None = None
    counter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobChange:
    """A knob in one process, as JSON: before, after, and in force in the program one step later; "": unknown."""

    name: str
    before: str = ""
    after: str = ""
    in_force: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process's last report on a change; `position`: at which step."""

    rank: int
    local_rank: int
    state: MemberState = MemberState.UNKNOWN
    position: int | None = None
    knobs: tuple[KnobChange, ...] = ()
    reason: str = ""

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        texts = (
            text for one in self.knobs for text in (one.name, one.before, one.after, one.in_force)
        )
        return 16 + len(self.reason.encode()) + sum(2 + len(one.encode()) for one in texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramChange:
    """One change of the running programs of an attempt; `number` counts from 1 in a session.

    Attributes:
        values: of SET, JSON by the name of the knob.
        checkpoint, checkpoint_session: of LOAD; session "": its own.
        limit_s: of PAUSE, its maximum duration.
        asked_at_step: the requested step; None: as soon as possible.
        wait_s: how long processes may take to reach a safe point.
        counter, at: the step of the change; None before one is chosen, and if the program counts none.
        tries: how often a chosen step was too near.
        since: when the phase began, Unix seconds.
        reason: why it was withdrawn, or is divided, for people.
        members: final reports of the processes; only the first one if all are alike.
    """

    number: int
    kind: ChangeKind
    attempt: int
    asked_by: str
    asked_at: float
    phase: ChangePhase = ChangePhase.ASK
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    checkpoint: str = ""
    checkpoint_session: str = ""
    limit_s: float = 0.0
    asked_at_step: int | None = None
    wait_s: float = 60.0
    counter: str = ""
    at: int | None = None
    tries: int = 0
    since: float = 0.0
    reason: str = ""
    members: tuple[Member, ...] = ()
    ended_at: float = 0.0

    @property
    def point(self) -> tuple[str, int | None]:
        """Counter and step of the change."""
        return self.counter, self.at

    @property
    def size(self) -> int:
        """Its approximate part of its session's record, in bytes."""
        texts = (*self.values.keys(), *self.values.values(), self.reason, self.checkpoint)
        return 64 + sum(len(one.encode()) for one in texts) + sum(one.size for one in self.members)

    @property
    def is_set(self) -> bool:
        """Whether it set knobs, at least in some process."""
        return self.kind is ChangeKind.SET and self.phase in _DECIDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Last report of one process: its state in the change `number`, decided for `point`.

    Attributes:
        process: id of the process, for its lifetime.
        world: number of processes of its replica.
        counters: its last step, by counter.
        step_s: seconds per step, by counter.
    """

    rank: int
    local_rank: int
    process: str = ""
    world: int = 1
    number: int = 0
    state: MemberState = MemberState.UNKNOWN
    point: tuple[str, int | None] = ("", None)
    position: int | None = None
    counters: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    step_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    is_paused: bool = False
    knobs: tuple[KnobChange, ...] = ()
    reason: str = ""

    @property
    def who(self) -> str:
        """The process, for people."""
        return f"rank {self.rank}" + (f", local rank {self.local_rank}" if self.world > 1 else "")


def decide(
    change: ProgramChange, ranks: Iterable[int], said: Iterable[Said], now: float
) -> ProgramChange:
    """Advance a change by the reports of its processes; return it unchanged if they have no news.

    Args:
        change: an open change.
        ranks: of the attempt.
        said: the last report of each process.
        now: Unix seconds, by the clock of `since`.
    """
    ranks = sorted(ranks)
    known = sorted(said, key=lambda one: (one.rank, one.local_rank))
    silent = _silent_ranks(ranks, known)
    match change.phase:
        case ChangePhase.ASK:
            return _asked(change, known, silent, now)
        case ChangePhase.PREPARE:
            return _prepared(change, known, silent, now)
        case ChangePhase.COMMIT:
            return _committed(change, known, silent, now)
    return change


def _asked(change: ProgramChange, said: list[Said], silent: list[int], now: float) -> ProgramChange:
    heard = [one for one in said if one.number == change.number and one.state is not _M.UNKNOWN]
    refused = [one for one in heard if one.state is _M.REFUSED]
    if refused:
        return withdrawn(change, _told(refused), now)
    if silent or len(heard) < len(said):
        return _unheard(change, said, heard, silent, now)
    shared = [name for name in COUNTERS if all(name in one.counters for one in said)]
    if not shared:
        if len(said) == 1 and change.asked_at_step is None:
            return replace(change, phase=ChangePhase.COMMIT, since=now)
        return withdrawn(change, _no_counter(change, said), now)
    counter = shared[0]
    foremost = max(said, key=lambda one: one.counters[counter])
    last, at = foremost.counters[counter], change.asked_at_step
    if all(one.is_paused for one in said) and (at is None or at == last):
        at = last
    elif at is None:
        at = last + _lead(said, counter, change.tries)
    elif at <= last:
        return withdrawn(change, f"step {at:,} is over: {foremost.who} is at {last:,}", now)
    return _at_step(replace(change, counter=counter), at, now)


def _at_step(change: ProgramChange, at: int, now: float) -> ProgramChange:
    """Schedule the change at a step; withdraw it beyond MOST_STEP."""
    if at > MOST_STEP:
        return withdrawn(change, _NO_ROOM, now)
    return replace(change, phase=ChangePhase.PREPARE, at=at, since=now)


def _lead(said: list[Said], counter: str, tries: int) -> int:
    """Return the lead over the foremost process, in steps, so that it does not arrive before the decision.

    By the median: processes of a gang keep step, and each was measured by one step, which may be an outlier.
    The durations come from user code: however short they are, the lead is limited to MOST_STEP.
    """
    lead_s = LEAD_S * (1 << tries)
    steps = [one.step_s[counter] for one in said if one.step_s.get(counter, 0.0) > 0]
    if not steps:
        return 2 << tries
    return max(1, math.ceil(min(lead_s / median(steps), MOST_STEP)))


def _prepared(
    change: ProgramChange, said: list[Said], silent: list[int], now: float
) -> ProgramChange:
    heard = [one for one in said if one.number == change.number and one.point == change.point]
    if refused := [one for one in heard if one.state in _NOT_MADE]:
        return withdrawn(change, _told(refused), now)
    if late := [one for one in heard if one.state is _M.LATE]:
        return _too_near(change, said, late[0], now)
    holding = [one for one in heard if one.state in _HOLDS_ON]
    if silent or len(holding) < len(said):
        return _unheard(change, said, holding, silent, now)
    is_far = change.asked_at_step is not None and not all(one.is_paused for one in said)
    if is_far and not any(one.state is _M.WAITING for one in holding):
        return change  # it can be withdrawn until the first process arrives
    return replace(change, phase=ChangePhase.COMMIT, since=now)


def _too_near(change: ProgramChange, said: list[Said], late: Said, now: float) -> ProgramChange:
    """Choose a later step, since a process was beyond; withdraw a change with a requested step."""
    if change.asked_at_step is not None:
        return withdrawn(change, f"step {change.at:,} is over: {late.who} has passed it", now)
    if change.tries >= MOST_TRIES:
        return withdrawn(change, _NO_ROOM, now)
    last, tries = max(one.counters.get(change.counter, 0) for one in said), change.tries + 1
    at = max(last, change.at or 0) + _lead(said, change.counter, tries)
    return _at_step(replace(change, tries=tries), at, now)


def _committed(
    change: ProgramChange, said: list[Said], silent: list[int], now: float
) -> ProgramChange:
    ended = [one for one in said if one.number == change.number and _is_over(change, one)]
    if silent or len(ended) < len(said):
        return change
    return _closed(change, said, now)


def _is_over(change: ProgramChange, said: Said) -> bool:
    """Return whether the process is finished with the change: it made it and went on, or did not make it."""
    if said.state in _NOT_MADE or said.state is _M.DONE:
        return True
    is_here = change.kind in {ChangeKind.PAUSE, ChangeKind.CONTINUE} or said.is_paused
    return said.state is _M.APPLIED and is_here


def _closed(change: ProgramChange, said: list[Said], now: float, reason: str = "") -> ProgramChange:
    members = tuple(_member(change, one) for one in said)
    bad = [one for one in said if _member(change, one).state not in _MADE]
    if not bad and said:
        odd = [one.reason for one in said if one.reason]
        return replace(
            change,
            phase=ChangePhase.APPLIED,
            members=members[:1] if _are_alike(members) else _kept(members),
            reason=odd[0] if odd else "",
            ended_at=now,
        )
    if said and all(one.state in _NOT_MADE for one in members):
        return replace(withdrawn(change, _told(bad), now), members=_kept(members))
    why = reason or _told([one for one in bad if one.reason]) or "not every process made it"
    return replace(
        change, phase=ChangePhase.DIVIDED, members=_kept(members), reason=why, ended_at=now
    )


def _member(change: ProgramChange, said: Said) -> Member:
    is_of_it = said.number == change.number
    return Member(
        rank=said.rank,
        local_rank=said.local_rank,
        state=said.state if is_of_it else _M.UNKNOWN,
        position=said.position if is_of_it else None,
        knobs=said.knobs if is_of_it else (),
        reason=said.reason if is_of_it else "",
    )


def _kept(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Limit the members' size: drop values, then reasons, then members, first those that made the change."""
    for less in ({}, {"knobs": ()}, {"knobs": (), "reason": ""}):
        kept = tuple(replace(one, **less) for one in members)
        if len(kept) <= MOST_MEMBERS and sum(one.size for one in kept) <= MOST_MEMBER_BYTES:
            return kept
    return tuple(sorted(kept, key=lambda one: one.state in _MADE)[:MOST_MEMBERS])


def _are_alike(members: tuple[Member, ...]) -> bool:
    return len({(one.position, one.knobs) for one in members}) == 1


def attempt_over(change: ProgramChange, said: Iterable[Said], now: float) -> ProgramChange:
    """Close the change after its attempt has ended, by the last reports of its processes."""
    if not change.phase.is_open:
        return change
    if change.phase is not ChangePhase.COMMIT:
        return withdrawn(change, "the attempt ended before", now)
    known = sorted(said, key=lambda one: (one.rank, one.local_rank))
    return _closed(change, known, now, "the attempt ended before every process had said so")


def withdrawn(change: ProgramChange, reason: str, now: float) -> ProgramChange:
    """Withdraw the change."""
    return replace(change, phase=ChangePhase.WITHDRAWN, reason=reason, ended_at=now)


def _unheard(
    change: ProgramChange, said: list[Said], heard: list[Said], silent: list[int], now: float
) -> ProgramChange:
    """Wait for missing reports; withdraw the change after `wait_s`."""
    if now < change.since + change.wait_s:
        return change
    there = {(one.rank, one.local_rank) for one in heard}
    missing = sorted({*silent, *(s.rank for s in said if (s.rank, s.local_rank) not in there)})
    ranks = ", ".join(map(str, missing))
    which = f"rank {ranks}" if len(missing) == 1 else f"ranks {ranks}"
    return withdrawn(
        change,
        f"{which} reached no safe point within {change.wait_s:g} s (nsml stacks shows what it does instead),"
        " does not import nsml, or cannot be heard",
        now,
    )


def _silent_ranks(ranks: list[int], said: list[Said]) -> list[int]:
    """Return ranks with missing reports of processes."""
    heard = {rank: [one for one in said if one.rank == rank] for rank in ranks}
    return [
        rank for rank, there in heard.items() if len(there) < max([1, *(s.world for s in there)])
    ]


def _told(said: list[Said]) -> str:
    """List the reasons of processes, each once, for people."""
    reasons: dict[str, Said] = {}
    for one in said:
        reasons.setdefault(one.reason, one)
    if len(reasons) == 1:
        return next(iter(reasons))
    first = list(reasons.items())[:_MOST_REASONS]
    more = f"; and {len(reasons) - len(first)} more" if len(reasons) > len(first) else ""
    return "; ".join(f"{one.who}: {reason}" for reason, one in first) + more


def _no_counter(change: ProgramChange, said: list[Said]) -> str:
    how = "call nsml.step(number) in the loop of each process"
    if change.asked_at_step is not None and len(said) == 1:
        return f"its program counts no steps: {how}"
    without = [one.who for one in said if not one.counters]
    if without and len(without) < len(said):
        return f"{', '.join(without[:8])}: no step is counted there, or not yet: {how}"
    return f"its processes count no step that all of them have: {how}"


def knobs_of(changes: Iterable[ProgramChange]) -> list[KnobValue]:
    """Return the initial values of knobs for an attempt after these changes, in order."""
    return [
        KnobValue(name=name, value=value, at=at, counter=counter)
        for change in changes
        if change.is_set
        for counter, at in [_lasting(change)]
        for name, value in change.values.items()
    ]


def made_in(changes: Iterable[ProgramChange], attempt: int) -> list[ProgramChange]:
    """Return the closed SET changes of an attempt, for a process restarted within it, in order."""
    made = (one for one in changes if one.attempt == attempt and one.is_set)
    over = [one for one in made if not one.phase.is_open]
    return [
        replace(one, counter=counter, at=at, members=(), reason="")
        for one in over
        for counter, at in [_lasting(one)]
    ]


def _lasting(change: ProgramChange) -> tuple[str, int | None]:
    """Return its point in a restarted program: the beginning, if the counter restarts."""
    return change.point if change.counter in LASTING_COUNTERS else ("", None)
