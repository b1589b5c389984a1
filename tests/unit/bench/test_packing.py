"""The benchmark of packing: its readers refuse, its arrivals reach the bound, its policies keep to the cluster."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scheduler.ours import Ours
from bench.scheduler.packing import ARRIVED, arrivals, replay
from bench.scheduler.policies import POLICIES, BestFit, Fgd, Ranks, Target, WorstFit
from bench.scheduler.traces import (
    MEBIBYTE,
    WHOLE,
    BadTrace,
    Machine,
    Pod,
    read_machines,
    read_pods,
)
from controlplane.domain.free_resources import FreeResources
from controlplane.domain.lifecycle import SessionState
from controlplane.scheduler.fragmentation import FIRST_MIX, Free, Shape, takings
from tests.support.examples import examples
from tests.unit.controlplane.snapshot import whole_free_devices

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
ANY: frozenset[str] = frozenset()

machines = st.lists(
    st.builds(
        Machine,
        st.just(""),
        st.integers(0, 64_000),
        # nodes that take all the replicas of a case (controlplane.scheduler.fit.MEMORY_FOR_EACH)
        st.integers(4096 * MEBIBYTE, 4160 * MEBIBYTE),
        st.integers(0, 8),
        st.sampled_from(["T4", "A100"]),
    ),
    min_size=1,
    max_size=6,
).map(lambda some: [one._replace(name=f"n{number}") for number, one in enumerate(some)])
pods = st.one_of(
    st.builds(
        Pod,
        st.integers(0, 32_000),
        st.integers(0, 32 * MEBIBYTE),
        st.just(1),
        st.integers(1, WHOLE),
        st.sampled_from([ANY, frozenset({"T4"}), frozenset({"T4", "A100"})]),
    ),
    st.builds(
        Pod,
        st.integers(0, 32_000),
        st.just(0),
        st.integers(1, 8),
        st.just(WHOLE),
        st.just(ANY),
    ),
    st.builds(Pod, st.integers(0, 32_000), st.just(0), st.just(0), st.just(0), st.just(ANY)),
)


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_nodes_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    path = written(tmp_path, NODES + "b,2000,3,4,T4\na,1000,2,0,\n")
    assert read_machines(path) == [
        Machine("a", 1000, 2 * MEBIBYTE, 0, ""),
        Machine("b", 2000, 3 * MEBIBYTE, 4, "T4"),
    ]


def test_pods_are_read_with_models_and_without(tmp_path: Path) -> None:
    path = written(tmp_path, PODS + "b,1,1,1,460,V100M16|V100M32\na,1,1,2,1000,\nc,1,1,0,0,T4\n")
    assert read_pods(path) == [
        Pod(1, MEBIBYTE, 2, 1000, ANY),
        Pod(1, MEBIBYTE, 1, 460, frozenset({"V100M16", "V100M32"})),
        Pod(1, MEBIBYTE, 0, 0, ANY),
    ]


def test_a_column_of_models_may_be_missing(tmp_path: Path) -> None:
    path = written(tmp_path, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,1000\n")
    assert read_pods(path) == [Pod(1, MEBIBYTE, 1, 1000, ANY)]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("a,-1,1,1,1000,", "line 2: cpu_milli is '-1'"),
        ("a,1,x,1,1000,", "line 2: memory_mib is 'x'"),
        ("a,1,1,1,0,", "line 2: num_gpu 1 with gpu_milli 0"),
        ("a,1,1,1,1001,", "line 2: num_gpu 1 with gpu_milli 1001"),
        ("a,1,1,2,500,", "line 2: num_gpu 2 with gpu_milli 500"),
        ("a,1,1", "line 2: not as many values as columns"),
        ("a,1,1,1,1000,,,,", "line 2: not as many values as columns"),
        ("a,1,1,0,0,", "no pod that asks for a GPU"),
    ],
)
def test_a_damaged_list_of_pods_is_refused_by_line(tmp_path: Path, row: str, why: str) -> None:
    with pytest.raises(BadTrace, match=why):
        read_pods(written(tmp_path, f"{PODS}{row}\n"))


def test_damaged_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="lacks columns: gpu"):
        read_machines(written(tmp_path, "sn,cpu_milli,memory_mib,model\n"))
    with pytest.raises(BadTrace, match="no node with a GPU"):
        read_machines(written(tmp_path, NODES))
    with pytest.raises(BadTrace, match="names a node twice"):
        read_machines(written(tmp_path, NODES + "a,1,1,1,T4\na,1,1,2,T4\n"))


def test_an_absent_trace_is_named_and_none_is_invented(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"nodes\.csv is not there"):
        read_machines(tmp_path / "nodes.csv")


@settings(deadline=None)
@given(st.lists(pods, min_size=1, max_size=20), st.integers(1, 40), st.integers())
def test_arrivals_ask_for_nearly_the_bound_and_never_more(
    some: list[Pod], gpus: int, seed: int
) -> None:
    if not any(pod.gpus for pod in some):
        return
    order = arrivals(some, gpus * WHOLE, random.Random(seed))
    wanted = sum(pod.total_thousandths for pod in order)
    assert wanted <= ARRIVED * gpus * WHOLE
    assert set(order) <= set(some)
    assert order == arrivals(some, gpus * WHOLE, random.Random(seed))


@settings(max_examples=examples(60), deadline=None)
@given(machines, st.lists(pods, max_size=30), st.sampled_from(sorted(POLICIES)), st.integers())
def test_no_policy_gives_more_than_there_is(
    cluster: list[Machine], some: list[Pod], policy: str, seed: int
) -> None:
    chooser = POLICIES[policy](cluster, some, random.Random(seed))
    given_out = [pod for pod in some if chooser.place(pod)]
    assert sum(pod.total_thousandths for pod in given_out) <= WHOLE * sum(
        one.gpus for one in cluster
    )
    assert sum(pod.cpu_thousandths for pod in given_out) <= sum(
        one.cpu_thousandths for one in cluster
    )
    assert sum(pod.memory_bytes for pod in given_out) <= sum(one.memory_bytes for one in cluster)


@settings(max_examples=examples(60), deadline=None)
@given(machines, st.lists(pods, max_size=40))
def test_ours_drops_only_what_fits_nowhere(cluster: list[Machine], some: list[Pod]) -> None:
    ours = Ours(cluster, [], random.Random())
    for pod in some:
        cpu, memory = max(pod.cpu_thousandths, 1), max(pod.memory_bytes, 1)
        shape = Shape(pod.total_thousandths, cpu, memory, pod.models)
        free = [free_on(one) for one in ours.records.capacities()]
        assert ours.place(pod) == any(takings(one, shape) for one in free)
        for one in ours.records.capacities():
            assert min(one.free_cpu_thousandths, one.free_memory_bytes, *one.free.values(), 0) == 0


def free_on(capacity: FreeResources) -> Free:
    shares = sorted(one for one in capacity.free.values() if 0 < one < WHOLE)
    models = {device.model for device in capacity.node.devices}
    return Free(
        "".join(models),
        whole_free_devices(capacity),
        tuple(shares),
        capacity.free_cpu_thousandths,
        capacity.free_memory_bytes,
    )


def test_ours_is_what_the_index_of_the_control_plane_places() -> None:
    """What it drops is forgotten, what it places runs, and nothing is left to wait."""
    cluster = [Machine("few", 8_000, 1, 4, "T4"), Machine("many", 64_000, 1, 4, "T4")]
    ours = Ours(cluster, [], random.Random())
    assert not any(ours.place(Pod(65_000, 0, 1, WHOLE, ANY)) for _ in range(FIRST_MIX))
    assert ours.place(Pod(2_000, 0, 1, WHOLE, ANY))
    [session] = ours.records.sessions.values()
    assert session.state is SessionState.RUNNING
    assert not ours.records.index.cluster.queue


def test_best_fit_and_worst_fit_are_opposites() -> None:
    cluster = [Machine("a", 8000, 0, 2, "T4"), Machine("b", 8000, 0, 1, "T4")]
    share = Pod(0, 0, 1, 300, ANY)
    best, worst = (policy(cluster, [], random.Random()) for policy in (BestFit, WorstFit))
    assert best.place(share)
    assert worst.place(share)
    assert best._cluster.left == [[1000, 1000], [700]]
    assert worst._cluster.left == [[700, 1000], [1000]]
    assert best.place(share)
    assert worst.place(share)
    assert best._cluster.left == [[1000, 1000], [400]]
    assert worst._cluster.left == [[700, 700], [1000]]


def test_fgd_counts_what_the_typical_pods_leave() -> None:
    # 3 of 4 want 0.5 of a device and a core, 1 two whole devices and no core.
    target = Target([Pod(1000, 0, 1, 500, ANY)] * 3 + [Pod(0, 0, 2, 1000, ANY)])
    assert target.fragmentation("T4", (300, 1000), 1000) == pytest.approx(0.75 * 300 + 0.25 * 1300)
    assert target.fragmentation("T4", (300, 1000), 999) == pytest.approx(1300)
    assert target.fragmentation("T4", (1000, 1000), 0) == pytest.approx(0.75 * 2000)


def test_fgd_takes_the_device_that_leaves_the_least_of_no_use() -> None:
    half = Pod(0, 0, 1, 500, ANY)
    fgd = Fgd([Machine("a", 0, 0, 2, "T4")], [Pod(0, 0, 1, 1000, ANY)], random.Random())
    assert fgd.place(Pod(0, 0, 1, 400, ANY))
    assert fgd.place(half)
    assert fgd._cluster.left == [[100, 1000]]


def test_ranks_ask_again_for_what_changed_only() -> None:
    asked: list[int] = []

    def score(node: int, _pod: Pod) -> int:
        asked.append(node)
        return len(asked)

    ranks, shape = Ranks(3, score), Pod(0, 0, 1, 500, ANY)
    assert np.array_equal(ranks.row(shape), [1, 2, 3])
    ranks.changed(1)
    ranks.changed(1)
    assert np.array_equal(ranks.row(shape), [1, 4, 3])
    assert asked == [0, 1, 2, 1]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_replay_is_the_same_for_the_same_seed(policy: str) -> None:
    cluster = [Machine(f"n{number}", 16_000, 1, 4, "T4") for number in range(5)]
    some = [Pod(4000, 0, 1, 1000, ANY), Pod(1000, 0, 1, 300, ANY), Pod(8000, 0, 2, 1000, ANY)]
    once = replay(cluster, some, policy, 7)
    assert once == replay(cluster, some, policy, 7)
    assert 0 < once.at_100 <= once.at_130 <= 100
