"""The scheduler's decisions: placements, preemptions for them, and reasons of the sessions that wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from controlplane.domain.values import DeviceShare, Resources, Session


class ReplicaPlacement(NamedTuple):
    """One replica on one node: `devices` sum up to the resources' gpu_thousandths.

    `is_near_data`: this node was preferred to an equal one, since less of the session's data must be fetched there.

    A tuple, as `Placement`: a plan creates thousands, and a frozen dataclass takes three times as long.
    """

    rank: int
    node: str
    devices: tuple[DeviceShare, ...]
    resources: Resources
    is_near_data: bool = False


class Placement(NamedTuple):
    """A proposal for a whole gang: all of it is committed, or nothing."""

    session_id: str
    replicas: tuple[ReplicaPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The number of nodes that were excluded by one shortage, the first on each."""

    what: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a session waits: the dominant reason for people, and the counts behind it.

    `can_ever_fit` is false if no node is large enough even when empty.
    """

    reason: str
    shortages: tuple[Shortage, ...] = ()
    can_ever_fit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A session that holds some of the resource that another one waits for.

    `held` is in units of that resource: thousandths of GPUs or cores, bytes of memory, 1 for
    sessions. `nodes`: its nodes that suit the other one; none if a quota is short. `until`: end of its
    time limit, Unix seconds; 0: it has none.
    """

    session: Session
    held: int
    nodes: tuple[str, ...] = ()
    until: float = 0.0


class FairShare(NamedTuple):
    """The fair share of an account: lowest `value` is served first.

    `held` (now) and `lately` are GPUs, `weight` is the project's, `value` is GPUs per weight.
    """

    account: str
    held: float
    lately: float
    weight: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """A session that stays queued, at `place` in the queue, from 1.

    `short`: the resource of `holders`, which are sorted by it, most first: "GPUs", "cores", "memory",
    "sessions"; "" without holders. `expected_start`: when enough is free if running sessions use up their
    time limits, and no session ahead takes it; Unix seconds, 0: unknown. `renews_at`: when the next period
    of a used-up budget begins; 0: none is. `is_held`: enough is free now, but reserved for others. `share`:
    its account's, if requested.
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
    """The outcome of a queued session if it requested something else: one of the two."""

    placement: Placement | None = None
    deferral: Deferral | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """A running session to be preempted: it is to save and end.

    `attempt`: the planned one; a later one is not preempted. `why` is for people, after "it":
    "gives way to kim/mnist/12 (high)". `for_session_id`: the session waiting for its resources; "":
    no particular one.
    """

    session_id: str
    attempt: int
    why: str
    for_session_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One decision of the scheduler, made at `revision` of the store."""

    revision: int
    placements: tuple[Placement, ...] = ()
    deferrals: tuple[Deferral, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
