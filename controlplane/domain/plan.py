"""What the scheduler proposes: placements, who gives way for them, and why the others wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from controlplane.domain.values import DeviceShare, Resources, Session


class ReplicaPlacement(NamedTuple):
    """One replica on one node: `devices` sum up to the resources' gpu_thousandths.

    `is_near_data`: this node was taken, and not one as good, since less of the session's data must be fetched there.

    A tuple, as placements are: each plan makes thousands, and a frozen dataclass takes three times as long.
    """

    rank: int
    node: str
    devices: tuple[DeviceShare, ...]
    resources: Resources
    is_near_data: bool = False


class Placement(NamedTuple):
    """A proposal for one whole gang: all of it is committed, or nothing."""

    session_id: str
    replicas: tuple[ReplicaPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why so many nodes did not do, by the first thing that was short on each."""

    what: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a session waits: one dominant reason for people, and the counts behind it.

    `can_ever_fit` is false when no node is large enough even when empty.
    """

    reason: str
    shortages: tuple[Shortage, ...] = ()
    can_ever_fit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A session that holds some of what another one waits for.

    `held` is in the measure of what is short: thousandths of GPUs or cores, bytes of memory, 1 of
    sessions. `nodes` are those of its nodes that would do; none where a quota is short. `until`: the instant at which its time limit
    ends it, Unix seconds; 0: nothing bounds it.
    """

    session: Session
    held: int
    nodes: tuple[str, ...] = ()
    until: float = 0.0


class FairShare(NamedTuple):
    """What an account is ordered by, least `value` first, and what it comes from.

    `held` now and `lately` are GPUs, `weight` is what the project's record says, `value` GPUs for each of that.
    """

    account: str
    held: float
    lately: float
    weight: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """A session that stays queued, at `place` from 1 among those that do.

    `short` is what `holders`, those with most of it first, hold: "GPUs", "cores", "memory", "sessions";
    "" with none. `expected_start`: the instant at which enough is free if all that runs uses up its time
    limit, and nobody ahead takes it; Unix seconds, 0: unknown. `renews_at`: when the next period of a budget
    begins that is used up; 0: none is. `is_held`: enough is free now, and held for others. `share` is its
    account's, where one asked.
    """

    session_id: str
    place: int
    explanation: Explanation
    short: str = ""
    holders: tuple[Holder, ...] = ()
    expected_start: float = 0.0
    renews_at: float = 0.0
    is_held: bool = False
    share: FairShare | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Supposed:
    """What would come of a queued session if it asked for something else: one of the two."""

    placement: Placement | None = None
    deferral: Deferral | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """A running session that is to save and give way, for the sake of another.

    `attempt` is the one that the plan saw: a later one is left alone. `why` is for people, after "it":
    "gives way to kim/mnist/12 (high)". `for_session_id` is who waits for what it holds; "": nobody in
    particular.
    """

    session_id: str
    attempt: int
    why: str
    for_session_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One decision of the scheduler, made at `revision` of what is stored."""

    revision: int
    placements: tuple[Placement, ...] = ()
    deferrals: tuple[Deferral, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
