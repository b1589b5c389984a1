"""Who gives way to whom, what is lost by it, and who of several goes: the one rule, over plain values.

An attempt gives way, once it ran its least:

- to a higher class, where it can be resumed or its owner allowed that it is ended without;
- within its class, only where it has a save to go on from: to an account that holds less for its weight and will
  hold no more than its own then does (fair share; 2022 paper), or, within its account, to a session whose
  expected service is a whole level smaller (`order.level_of`; Tiresias, NSDI'19, section 3.2).

Nothing goes in circles. What a class left it does not get back from a higher one. What an account left it gets
back only when the other holds more than itself. And who took the place of another within an account stays before
it until it has ended, or had so much service that it fell behind by a level, which takes as much again as it had;
or until the other has waited anew for all of its patience (`order.patience_s`). So a session gives way at most
once for each level of those that pass it, and what is lost stays bounded by the least run to what one costs.
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
"""How long a program has to reach a point at which it can save, unless the settings say otherwise."""
RESTART_S: Final = 60.0
"""What stopping and starting again takes of what an attempt holds, seconds."""
DUE: Final = -1
"""The level of one that waited for all of its patience: before all others."""


class InClass(enum.StrEnum):
    """To whom a session gives way within its class.

    LIMITS: to those of other accounts that hold less, and of its own to those whose time limit says that they need
    a level less. SERVICE: of its own also to those without a limit, by what each had so far: as if all of
    them were equally likely to end soon. Sessions that are alike, such as the trials of a study, take turns
    then, and most of them end later; so it is not done unless it is asked for.
    """

    NOBODY = "nobody"
    LIMITS = "limits"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the settings say of giving way; seconds.

    Attributes:
        least_run_s: for how long an attempt is left alone at least, whatever class waits; one of the class
            IDLE for `IDLE_LEAST_RUN_S` at most.
        least_run_in_class_s: for how long those of its own class leave it alone.
        in_class: to whom it gives way there.
        moves: whether what can be resumed moves so that free devices lie together (defragmentation.py).
        notice_s: how long a program has to save, before SIGTERM.
    """

    least_run_s: float = LEAST_RUN_S
    least_run_in_class_s: float = MIN_RUN_S
    in_class: InClass = InClass.LIMITS
    moves: bool = True
    notice_s: float = NOTICE_S

    def least_run_of(self, priority: int) -> float:
        """For how long an attempt of a class is left alone by higher ones."""
        if priority == Priority.IDLE:
            return min(self.least_run_s, IDLE_LEAST_RUN_S)
        return self.least_run_s


RULES: Final = Rules()


class PreemptionReason(enum.Enum):
    """Why one gives way to another, in words for people; most plausible first."""

    CLASS = "of a higher class"
    SHARE = "of an account that holds less"
    LEVEL = "expected to need far less"


class RunningAttempt(NamedTuple):
    """An attempt that runs.

    Attributes:
        name: what it is called, and what breaks ties.
        level: `order.level_of` what it had so far.
        ran_s: for how long this attempt has held its devices.
        loses: `loss`: unsaved work, and what stopping and starting again takes, GPU seconds.
        is_preemptible: whether it can be resumed, or its owner allowed that it ends.
        priority: its class.
        has_save: whether another attempt would find something to go on from.
        account: who it counts for.
        share: what that holds in all, GPUs for each of its weight.
        weighs: what of it this one holds.
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
    """A session that waits and fits nowhere.

    Attributes:
        level: `order.level_of` it; `DUE` once it waited for all of its patience since it last ran.
        priority: its class.
        has_limit: whether its level comes from a time limit.
        account: who it counts for.
        share: what that would hold with it, GPUs for each of its weight; infinity: it asks for none.
    """

    level: int
    priority: int = 0
    has_limit: bool = True
    account: str = ""
    share: float = math.inf


def may_give_way(session: Session) -> bool:
    """Whether a session can be resumed, or its owner allowed that it is ended without."""
    return session.progress.is_resumable or session.spec.may_be_preempted


def loss(*, unsaved_s: float, gpus: float) -> float:
    """What is lost when an attempt gives way without another save, GPU seconds."""
    return (unsaved_s + RESTART_S) * gpus


def ground(
    runner: RunningAttempt, taker: Preemptor, rules: Rules = RULES
) -> PreemptionReason | None:
    """Why it may give way to that one now; None when it may not."""
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
    """Whether no account of its class would hold less than the taker's if all of these went."""
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
    """Who of these goes: lower classes first, of each those that lose least, and nobody who need not.

    None when it is not enough that all of them go.
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
