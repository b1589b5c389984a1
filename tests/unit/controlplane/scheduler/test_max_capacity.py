"""What the nodes could hold if nothing ran: the same as can_ever_fit says, and what is nearest to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from controlplane.domain.values import Device, Drain, Isolation, Network, Node
from controlplane.scheduler import MaxCapacity, Request, can_ever_fit, keep_to_owners
from controlplane.scheduler.explain import never_words
from tests.support.examples import examples
from tests.unit.controlplane.builders import GIB, node

A100, V100, P40 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "Tesla P40"


def asked(gpus: float = 1, replicas: int = 1, **facts: object) -> Request:
    return Request("kim", int(gpus * 1000), 0, 0, replicas)._replace(**facts)


def nearest(nodes: list[Node], request: Request) -> tuple[Request, ...]:
    assert not can_ever_fit(nodes, request)
    return MaxCapacity(nodes).nearest(request)


ONE_MODEL = ", since all of a gang is on GPUs of one model"
CLUSTER = [
    node("a", 8, model=A100, pod="p1", cpu=64_000, memory=512 * GIB),
    node("b", 8, model=A100, pod="p1", cpu=64_000, memory=512 * GIB),
    node("c", 8, model=A100, pod="p2", cpu=64_000, memory=512 * GIB),
    node("d", 4, model=V100, pod="p3", cpu=32_000, memory=256 * GIB),
    node("e", 0, cpu=128_000, memory=2048 * GIB),
]


@pytest.mark.parametrize(
    ("request_", "possible", "why"),
    [
        (asked(9), [asked(8)], "no node has 9 GPUs; the largest has 8 (node a)"),
        (
            asked(8, gpu_model="V100"),
            [asked(4, gpu_model="V100"), asked(8, gpu_model=A100)],
            "no node has 8 V100 GPUs; the largest has 4 (node d)",
        ),
        (
            asked(gpu_model="H100"),
            [asked(gpu_model=A100)],
            f"no node has GPU model H100; there are: {A100} (3 nodes), {V100} (1 node)",
        ),
        (
            asked(pod="p4"),
            [asked(pod="p1")],
            "there is no pod p4; there are: p1 (2 nodes), p2 (1 node), p3 (1 node)",
        ),
        (
            asked(8, 3, pod="p1"),
            [asked(8, 2, pod="p1"), asked(8, 3)],
            "at most 2 replicas fit together in pod p1: 2 nodes with 8 GPUs each",
        ),
        (
            asked(8, 5),
            [asked(8, 3)],
            f"at most 3 replicas fit together: 3 nodes with 8 GPUs each{ONE_MODEL}",
        ),
        (
            asked(1, memory_bytes=1024 * GIB),
            [asked(1, memory_bytes=549 * 10**9)],
            "no node has all of that at once",
        ),
        (
            asked(0, memory_bytes=4096 * GIB),
            [asked(0, memory_bytes=2199 * 10**9)],
            "no node has 4,096 GiB of memory; the largest has 2,048 GiB (node e)",
        ),
        (
            asked(1, gpu_model="V100", cpu_thousandths=33_000),
            [
                asked(1, gpu_model="V100", cpu_thousandths=32_000),
                asked(1, gpu_model=A100, cpu_thousandths=33_000),
            ],
            "no node with such a GPU has 33 cores; the largest has 32 cores (node d)",
        ),
        (
            asked(16, gpu_model="P40", pod="p3"),
            [asked(4, gpu_model=V100, pod="p3")],
            f"no node in pod p3 has GPU model P40; there are: {V100} (1 node)",
        ),
        (asked(16, 16), [asked(8, 3)], "no node has 16 GPUs; the largest has 8 (node a)"),
    ],
)
def test_what_is_nearest_and_why(request_: Request, possible: list[Request], why: str) -> None:
    assert list(nearest(CLUSTER, request_)) == possible
    assert never_words(MaxCapacity(CLUSTER), request_) == why


def test_of_several_models_on_a_node_those_devices_count() -> None:
    several = node("a", 4)
    models = (A100, V100, A100, V100)
    devices = tuple(replace(d, model=m) for d, m in zip(several.devices, models, strict=True))
    several = replace(several, devices=devices)
    assert nearest([several], asked(3, gpu_model="A100"))[0] == asked(2, gpu_model="A100")
    words = never_words(MaxCapacity([several]), asked(3, gpu_model="A100"))
    assert words == "no node has 3 A100 GPUs; the largest has 2 (node a)"


def test_what_failed_it_before_is_named_as_what_could_hold_it() -> None:
    nodes = [node("a", 4), node("b", 4), node("c", 2)]
    request = asked(3, avoids=frozenset({"a", "b-1", "b-2"}))
    assert not can_ever_fit(nodes, request)
    extent = MaxCapacity(nodes, apart=request.avoids)
    assert not extent.fits(request)
    assert extent.fits(asked(2, 2, avoids=request.avoids))
    assert never_words(extent, request) == "what would do failed it before (a, b-1)"


def test_what_is_away_only_now_counts() -> None:
    [wide] = [replace(node("a", 8), drain=Drain(asked_by="root"))]
    withheld = tuple(replace(one, withheld="it failed") for one in wide.devices)
    wide = replace(wide, devices=withheld)
    assert MaxCapacity([wide]).fits(asked(8))
    assert nearest([wide], asked(9)) == (asked(8),)


def test_a_gang_that_cannot_be_one_is_a_single_replica() -> None:
    shut = [node("a", 8, gang_network="none"), node("b", 2)]
    assert nearest(shut, asked(4, 2)) == (asked(4),)
    assert nearest(shut, asked(1, 3)) == (asked(1, 2),)


def test_one_replica_of_a_gang_is_proposed_where_it_would_have_the_network() -> None:
    gang = asked(8, 2, network=Network.HOST)
    older = [node("a", 8)]  # gives the host network to gangs alone
    assert nearest(older, gang) == (asked(4, 2, network=Network.HOST),)
    allows = [node("a", 8, networks=(Network.OWN, Network.HOST))]
    assert nearest(allows, gang) == (asked(8, network=Network.HOST),)
    few = asked(2, 3, cpu_thousandths=5000, network=Network.HOST)
    assert nearest([node("a", 8)], few)[0].network is None


@pytest.mark.parametrize(
    ("request_", "possible"),
    [
        (asked(5, 2), asked(4, 2)),
        (asked(64, 4), asked(4, 3)),
        (asked(8, 2), asked(8)),
        (asked(4, 65), asked(4, 3)),
        (asked(16, 1), asked(8, 1)),
        (asked(0.5, 100), asked(0.5, 24)),
        (asked(4, 3, cpu_thousandths=8000), asked(4, 2, cpu_thousandths=8000)),
    ],
)
def test_of_a_gang_most_gpus_are_kept_and_of_equal_ones_the_largest(
    request_: Request, possible: Request
) -> None:
    assert nearest([node("a", 8), node("b", 4)], request_) == (possible,)


def test_last_comes_what_has_no_container_and_then_no_gpu() -> None:
    contained = node("a", 2, isolation=Isolation.CONTAINER, only_owner="", owner="root")
    kept = node("b", 4, isolation=Isolation.NONE, owner="lee")
    plain = node("c", 1)
    assert nearest([plain, kept], asked(1, in_container=True)) == (asked(1),)
    assert nearest([contained, plain], asked(4, in_container=True)) == (
        asked(2, in_container=True),
    )
    assert nearest([node("a", 0), kept], asked(4, gpu_model="A100")) == (asked(0),)
    assert nearest([kept], asked(1)) == ()
    assert MaxCapacity([]).nearest(asked(1)) == ()


def test_the_same_in_gives_the_same_out_whatever_the_order() -> None:
    request = asked(9, 3, pod="p9", gpu_model="A100 40GB")
    [one] = {MaxCapacity(nodes).nearest(request) for nodes in (CLUSTER, CLUSTER[::-1])}
    assert one
    assert never_words(MaxCapacity(CLUSTER), request) == never_words(
        MaxCapacity(CLUSTER[::-1]), request
    )


@st.composite
def machines(draw: st.DrawFn) -> list[Node]:
    found = []
    for number in range(draw(st.integers(1, 5))):
        models = draw(st.lists(st.sampled_from([A100, V100, P40, ""]), max_size=4))
        devices = tuple(
            Device(
                uuid=f"n{number}-{index}",
                index=index,
                model=model,
                parent_uuid=draw(st.sampled_from(["", "", "", "whole"])),
                withheld=draw(st.sampled_from(["", "", "it failed"])),
            )
            for index, model in enumerate(models)
        )
        plain = node(
            f"n{number}",
            len(devices),
            pod=draw(st.sampled_from(["", "x", "y"])),
            cpu=draw(st.sampled_from([0, 1500, 8000, 64_000])),
            memory=draw(st.sampled_from([0, 10**6, GIB, 64 * GIB + 12_345, 1024 * GIB])),
            isolation=draw(st.sampled_from([Isolation.NAMESPACE] * 3 + list(Isolation))),
            gang_network=draw(st.sampled_from(["host", "host", "none", "overlay:z"])),
            networks=draw(st.sampled_from([(), (Network.OWN,), tuple(Network)])),
            owner=draw(st.sampled_from(["kim", "lee"])),
        )
        found.append(replace(plain, devices=devices))
    return found


requests = st.builds(
    Request,
    owner=st.just("kim"),
    gpu_thousandths=st.sampled_from([0, 100, 500, 1000, 2000, 3000, 8000, 1_000_000]),
    cpu_thousandths=st.sampled_from([0, 1, 1000, 7777, 10**8]),
    memory_bytes=st.sampled_from([0, 6 << 20, GIB, 64 * GIB, 1 << 60]),
    replica_count=st.sampled_from([1, 1, 2, 3, 64]),
    in_container=st.booleans(),
    gpu_model=st.sampled_from(["", "A100", "V100", "tesla", "H100"]),
    pod=st.sampled_from(["", "x", "y", "z"]),
    network=st.sampled_from([None, None, None, *Network]),
)


@settings(max_examples=examples(600), deadline=None)
@given(nodes=machines(), request=requests)
def test_what_is_proposed_is_possible_and_less_than_what_was_asked(
    nodes: list[Node], request: Request
) -> None:
    extent = MaxCapacity(nodes)
    fits = can_ever_fit(nodes, request)
    assert extent.fits(request) is fits
    event(f"fits: {fits}")
    if fits:
        return
    assert never_words(extent, request)
    possible = extent.nearest(request)
    event(f"proposals: {len(possible)}")
    for one in possible:
        assert can_ever_fit(nodes, one), one
        assert one != request
        assert one.gpu_thousandths <= request.gpu_thousandths
        assert one.cpu_thousandths <= request.cpu_thousandths
        assert one.memory_bytes <= request.memory_bytes
        assert 1 <= one.replica_count <= request.replica_count
        assert one.in_container <= request.in_container
        # Nothing is asked for that was not: a size that was named is never left to the default.
        assert bool(one.cpu_thousandths) == bool(request.cpu_thousandths)
        assert bool(one.memory_bytes) == bool(request.memory_bytes)
    least = request._replace(
        gpu_thousandths=0,
        cpu_thousandths=min(request.cpu_thousandths, 1),
        memory_bytes=min(request.memory_bytes, 1),
        replica_count=1,
        in_container=False,
        gpu_model="",
        pod="",
        network=None,
    )
    if can_ever_fit(nodes, least) and not request.memory_bytes:
        assert possible
    if keep_to_owners(nodes, request):
        assert not possible


@settings(max_examples=examples(600), deadline=None)
@given(nodes=machines(), request=requests)
def test_no_gang_of_the_same_cores_and_memory_in_its_place_has_more_or_larger(
    nodes: list[Node], request: Request
) -> None:
    extent = MaxCapacity(nodes)
    if extent.fits(request) or not request.whole_devices:
        return
    possible = [
        (gpus * replicas, gpus)
        for gpus in range(1, min(request.whole_devices, 8) + 1)
        for replicas in range(1, request.replica_count + 1)
        if can_ever_fit(
            nodes, request._replace(gpu_thousandths=gpus * 1000, replica_count=replicas)
        )
    ]
    event(f"possible: {bool(possible)}")
    if not possible:
        return
    first, *_ = extent.nearest(request)
    most = max(possible)
    told = (first.whole_devices * first.replica_count, first.whole_devices)
    sizes = {"gpu_thousandths": first.gpu_thousandths, "replica_count": first.replica_count}
    if first == request._replace(**sizes):
        assert told == most
    else:
        # With fewer cores or less memory there are more GPUs: that is as near.
        assert told > most
