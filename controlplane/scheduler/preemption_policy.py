"""The preemption rule, over plain values: who is preempted for whom, the loss, and the choice among candidates.

An attempt is preempted, once it ran its minimum time:

- to a higher class, if it is resumable or its owner allowed preemption without a checkpoint;
- within its class, only if it has a checkpoint: to an account that holds less for its weight and will
  hold no more than its own then does (fair share; 2022 paper), or, within its account, to a session with
  an expected service at least one level smaller (`order.level_of`; Tiresias, NSDI'19, section 3.2).

There are no cycles. A class never preempts a higher one. An account gets devices back only while the other
holds more than itself. And a session that preempted another one of its account stays ahead until it has ended,
or fell behind by a level, which takes as much service again as it had; or until the other one has waited for
all of its patience again (`order.patience_s`). So a session is preempted at most once for each level of its
preemptors, and the loss is bounded by the minimum run time relative to the cost of one preemption.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from controlplane.domain.values import Priority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from controlplane.domain.values import Session

LEAST_RUN_S: Final = 300.0
IDLE_LEAST_RUN_S: Final = 60.0
MIN_RUN_S: Final = 1_800.0
NOTICE_S: Final = 60.0
"""Default time for a program to reach a point at which it can save, seconds."""
RESTART_S: Final = 60.0
"""Time lost by stopping and restarting an attempt, seconds."""
DUE: Final = -1
"""The level of a session that waited for all of its patience: before all others."""


class InClass(enum.StrEnum):
    """Preemption within a class.

    LIMITS: for accounts that hold less; within the account, for sessions with a time limit that puts them at
    least a level lower. SERVICE: within the account also for sessions without a limit, by their service so far: as
    if all of them were equally likely to end soon. Similar sessions, such as the trials of a study, then take
    turns, and most of them end later; so it is not the default.
    """

    NOBODY = "nobody"
    LIMITS = "limits"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Settings of preemption; seconds.

    Attributes:
        least_run_s: minimum run time of an attempt before any preemption; for the class IDLE
            `IDLE_LEAST_RUN_S` at most.
        least_run_in_class_s: the same before a preemption by its own class.
        in_class: preemption by its own class.
        moves: whether resumable sessions are moved to defragment free devices (defragmentation.py).
        notice_s: time for a program to save, before SIGTERM.
    """

    least_run_s: float = LEAST_RUN_S
    least_run_in_class_s: float = MIN_RUN_S
    in_class: InClass = InClass.LIMITS
    moves: bool = True
    notice_s: float = NOTICE_S

    def least_run_of(self, priority: int) -> float:
        """Return the minimum run time of an attempt of a class before higher ones preempt it."""
        if priority == Priority.IDLE:
            return min(self.least_run_s, IDLE_LEAST_RUN_S)
        return self.least_run_s


RULES: Final = Rules()


class PreemptionReason(enum.Enum):
    """Reasons of preemption, as text for people; most plausible first."""

    CLASS = "of a higher class"
    SHARE = "of an account that holds less"
    LEVEL = "expected to need far less"


class RunningAttempt(NamedTuple):
    """A running attempt.

    Attributes:
        name: identifies it, and breaks ties.
        level: `order.level_of` its service so far.
        ran_s: how long this attempt has held its devices.
        loses: `loss`: unsaved work and the restart, GPU seconds.
        is_preemptible: whether it is resumable, or its owner allowed to end it.
        priority: its class.
        has_save: whether another attempt could resume from a checkpoint.
        account: the account it is charged to.
        share: the account's GPUs per weight.
        weighs: this attempt's part of it.
    """

    name: str
    level: int
    ran_s: float
    loses: float
    is_preemptible: bool
    priority: int = 0
    has_save: bool = True
    account: str = ""
    share: float = 0.0
    weighs: float = 0.0


class Preemptor(NamedTuple):
    """A queued session that fits nowhere.

    Attributes:
        level: `order.level_of` it; `DUE` once it waited for all of its patience since it last ran.
        priority: its class.
        has_limit: whether its level is based on a time limit.
        account: the account it is charged to.
        share: the account's GPUs per weight, including it; infinity: it requests none.
    """

    level: int
    priority: int = 0
    has_limit: bool = True
    account: str = ""
    share: float = math.inf


def may_give_way(session: Session) -> bool:
    """Return whether a session is resumable, or its owner allowed to end it without a checkpoint."""
    return session.progress.is_resumable or session.spec.may_be_preempted


def loss(*, unsaved_s: float, gpus: float) -> float:
    """Return the loss if an attempt is preempted without another save, GPU seconds."""
    return (unsaved_s + RESTART_S) * gpus


def ground(
    runner: RunningAttempt, taker: Preemptor, rules: Rules = RULES
) -> PreemptionReason | None:
    """Return the reason why `taker` may preempt `runner` now; None if it may not."""
    if not runner.is_preemptible or runner.priority > taker.priority:
        return None
    ran_s = runner.ran_s + _ROUNDING_S
    if runner.priority < taker.priority:
        return PreemptionReason.CLASS if ran_s >= rules.least_run_of(runner.priority) else None
    if rules.in_class is InClass.NOBODY or not runner.has_save:
        return None
    if ran_s < rules.least_run_in_class_s:
        return None
    if runner.account != taker.account:
        return PreemptionReason.SHARE if runner.weighs and are_fair([runner], taker) else None
    is_known = taker.has_limit or taker.level == DUE or rules.in_class is InClass.SERVICE
    return PreemptionReason.LEVEL if is_known and runner.level > taker.level else None


def are_fair(victims: Iterable[RunningAttempt], taker: Preemptor) -> bool:
    """Return whether no account of the taker's class would hold less than the taker's without these victims."""
    shares: dict[str, float] = {}
    gone = Counter[str]()
    for one in victims:
        if one.priority == taker.priority and one.account != taker.account:
            shares[one.account] = one.share
            gone[one.account] += one.weighs  # type: ignore[assignment]
    return all(
        share - gone[account] >= taker.share - _ROUNDING for account, share in shares.items()
    )


def fewest(
    candidates: Iterable[RunningAttempt],
    taker: Preemptor,
    is_enough: Callable[[Sequence[RunningAttempt]], bool],
) -> list[RunningAttempt] | None:
    """Choose victims: lower classes first, in each the smallest loss first, none that are not needed.

    None if all candidates together are not enough.
    """
    left = sorted(
        candidates,
        key=lambda one: (one.priority == taker.priority, one.loses, -one.level, one.name),
    )
    going: list[RunningAttempt] = []
    while not is_enough(going):
        if not left:
            return None
        going.append(left.pop(0))
    # Some that lose little may be spared for the sake of one that had to go as well.
    for spared in going[:-1][::-1]:
        rest = [one for one in going if one is not spared]
        if is_enough(rest):
            going = rest
    return going


_ROUNDING_S: Final = 1e-6
_ROUNDING: Final = 1e-9
