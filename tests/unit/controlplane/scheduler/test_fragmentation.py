"""The score of what stays unused: bounded, exact, the same for the same, and pointing the right way."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.values import WHOLE_DEVICE
from controlplane.scheduler import fragmentation
from controlplane.scheduler.fragmentation import (
    FIRST_MIX,
    MOST_SHAPES,
    WEIGHTS,
    WINDOW,
    Arrivals,
    Fragmentation,
    Free,
    Mix,
    Shape,
    mix_of,
    takings,
    tightness,
)

MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "T4")
WISHES = ("A100", "h100", "T4", "B200")

sizes = st.one_of(st.integers(1, 999), st.integers(1, 8).map(lambda n: n * WHOLE_DEVICE))
shapes = st.builds(
    Shape,
    st.one_of(st.just(0), sizes),
    st.integers(0, 128_000),
    st.integers(0, 1 << 40),
    st.frozensets(st.sampled_from(WISHES), max_size=2),
)
frees = st.builds(
    Free,
    st.sampled_from(MODELS),
    st.integers(0, 8),
    st.lists(st.integers(1, 999), max_size=8).map(lambda some: tuple(sorted(some))),
    st.integers(0, 128_000),
    st.integers(0, 1 << 40),
)
counts = st.dictionaries(shapes, st.integers(1, 1000), max_size=12)


@settings(deadline=None)
@given(counts, frees)
def test_no_more_is_unused_than_is_free(counts: dict[Shape, int], free: Free) -> None:
    unused = Fragmentation(mix_of(counts)).unused(free)
    assert 0 <= unused <= free.gpu_thousandths


@settings(deadline=None)
@given(frees, shapes)
def test_taking_takes_what_was_asked_for_and_nothing_else(free: Free, shape: Shape) -> None:
    for from_left, after in takings(free, shape):
        assert after.gpu_thousandths == free.gpu_thousandths - shape.gpu_thousandths
        assert after.cpu_thousandths == free.cpu_thousandths - shape.cpu_thousandths >= 0
        assert after.memory_bytes == free.memory_bytes - shape.memory_bytes >= 0
        assert after.model == free.model
        assert after.shares == tuple(sorted(after.shares))
        assert all(0 < left < WHOLE_DEVICE for left in after.shares)
        assert 0 <= after.whole <= free.whole
        if shape.gpu_thousandths >= WHOLE_DEVICE:
            assert after.shares == free.shares
        elif shape.gpu_thousandths:
            devices = Counter([*free.shares, *[WHOLE_DEVICE] * free.whole])
            changed = devices - Counter([*after.shares, *[WHOLE_DEVICE] * after.whole])
            assert changed == Counter([from_left])


@settings(deadline=None)
@given(frees, shapes)
def test_it_fits_exactly_where_everything_is_there(free: Free, shape: Shape) -> None:
    gpu = shape.gpu_thousandths
    largest = WHOLE_DEVICE if free.whole else max(free.shares, default=0)
    has_devices = free.whole * WHOLE_DEVICE >= gpu if gpu >= WHOLE_DEVICE else largest >= gpu
    has_model = not shape.models or any(
        wish.casefold() in free.model.casefold() for wish in shape.models
    )
    fits = (
        has_devices
        and (has_model or not gpu)
        and free.cpu_thousandths >= shape.cpu_thousandths
        and free.memory_bytes >= shape.memory_bytes
    )
    assert bool(takings(free, shape)) == fits
    assert (Fragmentation(Mix()).best_taking(free, shape) is not None) == fits


@settings(deadline=None)
@given(counts, st.lists(st.tuples(frees, shapes), min_size=1, max_size=8))
def test_same_in_same_out_whatever_was_asked_before(
    counts: dict[Shape, int], asked: list[tuple[Free, Shape]]
) -> None:
    backwards = dict(reversed(list(counts.items())))
    one, other = Fragmentation(mix_of(counts)), Fragmentation(mix_of(backwards))
    assert one.mix == other.mix
    forwards = [one.best_taking(*pair) for pair in asked]
    assert forwards == [other.best_taking(*pair) for pair in reversed(asked)][::-1]
    assert forwards == [Fragmentation(mix_of(counts)).best_taking(*pair) for pair in asked]


def test_what_is_forgotten_is_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragmentation, "REMEMBERED", 2)
    scores = Fragmentation(mix_of({Shape(500, 1000, 1): 1, Shape(4000, 9000, 2): 2}))
    states = [Free("T4", whole, (500,), 9000, 9) for whole in range(6)]
    assert [scores.unused(one) for one in states] == [scores.unused(one) for one in states]


@settings(deadline=None)
@given(counts, frees, shapes)
def test_of_equal_devices_the_tightest_is_taken(
    counts: dict[Shape, int], free: Free, shape: Shape
) -> None:
    scores = Fragmentation(mix_of(counts))
    best = scores.best_taking(free, shape)
    ways = takings(free, shape)
    if best is None:
        assert not ways
        return
    gains = {from_left: scores.gain(free, after) for from_left, after in ways}
    assert best.score == max(gains.values())
    assert best.from_left == min(left for left, gain in gains.items() if gain == best.score)
    assert (best.from_left, best.free) in ways


@settings(deadline=None)
@given(frees, shapes)
def test_without_a_mix_it_is_best_fit(free: Free, shape: Shape) -> None:
    best = Fragmentation(Mix()).best_taking(free, shape)
    if best is not None:
        assert best.score == 0
        assert best.from_left == min(from_left for from_left, _ in takings(free, shape))


def test_fragments_are_what_the_paper_says() -> None:
    # Half of the requests want 0.5 of a device, half two whole ones; none wants cores or memory.
    scores = Fragmentation(mix_of({Shape(500, 0, 0): 1, Shape(2000, 0, 0): 1}))
    # The share finds no use for 300, and the pair none for anything: (300 + 1900) / 2, counted half.
    assert scores.unused(Free("T4", 1, (300, 600), 0, 0)) == (300 + 1900) // 2 // 2
    # Two whole devices serve both; the pair has no use for what is shared.
    assert scores.unused(Free("T4", 2, (300, 600), 0, 0)) == (300 + 900) // 2 // 2


def test_gpus_without_cores_are_stranded_before_the_last_core_is_gone() -> None:
    scores = Fragmentation(mix_of({Shape(1000, 10_000, 0): 1}))
    assert scores.unused(Free("T4", 8, (), 80_000, 0)) == 0
    assert scores.unused(Free("T4", 8, (), 40_000, 0)) == 4000 // 2
    assert scores.unused(Free("T4", 8, (), 0, 0)) == 8000


def test_gpus_without_memory_are_stranded_too() -> None:
    scores = Fragmentation(mix_of({Shape(1000, 0, 10): 1}))
    assert scores.unused(Free("T4", 8, (), 0, 20)) == 6000 // 2


def test_many_cores_go_where_cores_are_left_over() -> None:
    scores = Fragmentation(mix_of({Shape(1000, 10_000, 0): 1}))
    greedy = Shape(1000, 30_000, 0)
    scarce = scores.best_taking(Free("A", 8, (), 80_000, 0), greedy)
    plenty = scores.best_taking(Free("B", 8, (), 200_000, 0), greedy)
    assert scarce is not None
    assert plenty is not None
    assert plenty.score > scarce.score


def test_gpus_of_a_model_that_nobody_asks_for_are_fragments() -> None:
    scores = Fragmentation(mix_of({Shape(1000, 0, 0, frozenset({"h100"})): 1}))
    assert scores.unused(Free("NVIDIA H100 80GB HBM3", 1, (), 0, 0)) == 0
    assert scores.unused(Free("T4", 1, (), 0, 0)) == 1000 // 2


@settings(deadline=None)
@given(counts)
def test_a_mix_is_small_and_weighs_no_more_than_all(counts: dict[Shape, int]) -> None:
    mix = mix_of(counts)
    weights = [weight for _, weight in mix.shapes]
    assert len(mix.shapes) <= MOST_SHAPES
    assert sum(weights) <= WEIGHTS
    assert weights == sorted(weights, reverse=True)
    assert all(weights)
    assert all(shape.gpu_thousandths for shape, _ in mix.shapes)


@settings(deadline=None)
@given(st.lists(st.tuples(shapes, st.integers(1, 3 * WINDOW)), max_size=40))
def test_arrivals_of_any_size_keep_a_mix(seen: list[tuple[Shape, int]]) -> None:
    arrivals = Arrivals()
    for shape, replicas in seen:
        arrivals.saw(shape, replicas)
        assert sum(weight for _, weight in arrivals.mix.shapes) <= WEIGHTS


def test_the_mix_changes_seldom_and_forgets() -> None:
    arrivals = Arrivals()
    old, new = Shape(1000, 1000, 1), Shape(500, 2000, 1)
    mixes = []
    for number in range(20 * WINDOW):
        arrivals.saw(old if number < WINDOW else new)
        if not mixes or arrivals.mix is not mixes[-1]:
            mixes.append(arrivals.mix)
        if number + 1 == FIRST_MIX:
            assert arrivals.mix == Mix(((old, WEIGHTS),))
    assert len(mixes) < 60
    assert arrivals.mix == Mix(((new, WEIGHTS),))


def test_requests_without_gpus_make_no_mix() -> None:
    arrivals = Arrivals()
    for _ in range(2 * FIRST_MIX):
        arrivals.saw(Shape(0, 64_000, 1))
    assert arrivals.mix == Mix()


def test_tightness_is_that_of_best_fit() -> None:
    loose, tight = Free("T4", 2, (), 1, 1), Free("T4", 1, (900, 900), 9, 9)
    assert tightness(tight) < tightness(loose)
