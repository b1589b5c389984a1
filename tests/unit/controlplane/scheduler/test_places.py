from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.domain.changes import PastChanged
from controlplane.domain.values import Cause, EndedAttempt, Priority
from controlplane.scheduler import ClusterIndex, QueueQueries
from controlplane.scheduler.queue_classes import demand_of
from controlplane.scheduler.session_rank import (
    LEAST_PATIENCE_S,
    MOST_PATIENCE_S,
    Demand,
    expected_s,
    level_of,
    patience_s,
)
from tests.unit.controlplane.builders import cluster, session

if TYPE_CHECKING:
    from controlplane.domain.values import Session

NOW = 1_800_000_000.0
seconds = st.floats(0, 1e7)
demands = st.builds(
    Demand,
    gpus=st.sampled_from([0.0, 0.5, 1.0, 2.0, 8.0, 128.0]),
    limit_s=st.one_of(st.just(0.0), seconds),
    attained_s=seconds,
)


def served(*sessions: Session) -> list[str]:
    """Who is served before whom, where nothing is free."""
    return [
        one.session_id for one in QueueQueries(ClusterIndex.of(cluster(*sessions))).deferrals(NOW)
    ]


asked = st.fixed_dictionaries(
    {
        "gpu": st.sampled_from([0, 500, 1000, 2000, 8000]),
        "replicas": st.sampled_from([1, 2, 16]),
        "time_limit_s": st.sampled_from([0.0, 60.0, 3_600.0, 604_800.0]),
    }
)


def waiting(name: str, since: float, demand: dict[str, Any], **facts: object) -> Session:
    spec = {"time_limit_s": demand["time_limit_s"]} | cast("dict[str, Any]", facts.pop("spec", {}))
    return session(demand["gpu"], demand["replicas"], id=name, created_at=since, spec=spec, **facts)


@given(asked, asked, st.floats(0, 100), st.floats(0, 1e6))
def test_nobody_of_its_class_and_share_is_before_one_that_is_due(
    due: dict[str, Any], other: dict[str, Any], later: float, over: float
) -> None:
    since = NOW - MOST_PATIENCE_S - over
    # Who holds nothing is owed a small session before all.
    other = other | {"gpu": 2000}
    first, second = waiting("z", since, due), waiting("a", since + 1 + later, other)
    assert served(second, first) == ["z", "a"]


@given(asked, asked, seconds, seconds)
def test_a_higher_class_goes_first_however_long_the_other_waited(
    high: dict[str, Any], low: dict[str, Any], high_s: float, low_s: float
) -> None:
    first = waiting("z", NOW - high_s, high, spec={"priority": Priority.HIGH})
    # The same of a small one.
    second = waiting("a", NOW - low_s, low | {"gpu": 2000}, spec={"priority": Priority.LOW})
    assert served(second, first) == ["z", "a"]


def test_who_has_less_of_their_share_goes_first() -> None:
    long = waiting("z", NOW, {"gpu": 2000, "replicas": 4, "time_limit_s": 600_000.0}, owner="lee")
    short = waiting("a", NOW, {"gpu": 2000, "replicas": 1, "time_limit_s": 60.0}, owner="kim")
    index = ClusterIndex.of(cluster(long, short))
    assert [one.session_id for one in QueueQueries(index).deferrals(NOW)] == ["a", "z"]
    index.apply([PastChanged(lately={"kim": 3.0, "lee": 1.0})])
    assert [one.session_id for one in QueueQueries(index).deferrals(NOW)] == ["z", "a"]


def ended(cause: Cause, held_s: float, number: int = 1) -> EndedAttempt:
    return EndedAttempt(
        number=number,
        cause=cause,
        placed_at=NOW - held_s,
        ended_at=NOW,
        gpu_thousandths=2000,
        held_s=held_s,
    )


def test_who_gave_way_counts_with_what_is_left_and_who_reached_its_limit_with_all_of_it() -> None:
    limited = {"gpu": 2000, "replicas": 1, "time_limit_s": 3_600.0}
    half = waiting("b", NOW, limited | {"time_limit_s": 1_800.0})
    gave_way = waiting("c", NOW, limited, attempts=(ended(Cause.PREEMPTED, 3_000.0),))
    reached = waiting("a", NOW, limited, attempts=(ended(Cause.TIME_LIMIT, 3_590.0),))
    assert served(reached, half, gave_way) == ["c", "b", "a"]


@given(st.lists(st.tuples(st.sampled_from(list(Cause)), seconds)), seconds)
def test_who_waits_with_a_limit_never_counts_as_one_that_needs_nothing(
    attempts: list[tuple[Cause, float]], limit_s: float
) -> None:
    had = tuple(ended(cause, held_s, number) for number, (cause, held_s) in enumerate(attempts, 1))
    demand = demand_of(
        waiting("a", NOW, {"gpu": 0, "replicas": 1, "time_limit_s": limit_s}, attempts=had)
    )
    if limit_s:
        assert 0 < expected_s(demand) <= limit_s
    elif not any(cause is Cause.TIME_LIMIT for cause, _ in attempts):
        assert demand.attained_s == sum(held_s for _, held_s in attempts)


@given(demands, st.floats(0, 1e6))
@example(Demand(gpus=0.0, limit_s=5e-324), 0.0)
def test_service_takes_one_without_a_limit_back_and_one_with_a_limit_forward(
    demand: Demand, more: float
) -> None:
    served = demand._replace(attained_s=demand.attained_s + more)
    if demand.limit_s:
        assert level_of(served) <= level_of(demand)
    else:
        assert level_of(served) >= level_of(demand)


@given(seconds, seconds, st.integers(1, 10_000))
def test_patience_grows_with_the_backlog_and_is_bounded(
    backlog: float, more: float, gpus: int
) -> None:
    short = patience_s(backlog * gpus, gpus, has_limits=True)
    long = patience_s((backlog + more) * gpus, gpus, has_limits=True)
    assert LEAST_PATIENCE_S <= short <= long <= MOST_PATIENCE_S
    assert patience_s(backlog, gpus, has_limits=False) == MOST_PATIENCE_S
    assert patience_s(backlog, 0, has_limits=True) == MOST_PATIENCE_S
