"""What a new session from the record of another may have otherwise."""

from __future__ import annotations

import pytest

from nsml.packages.requirements import Requirements
from nsml.v1.nodes_pb2 import NODE_STATE_READY, NODE_STATE_SILENT, DeviceUse, Node, NodeState
from nsml.v1.resources_pb2 import ISOLATION_CONTAINER, ISOLATION_NONE, Device, Resources
from nsml.v1.sessions_pb2 import DatasetReference, Replica, Session, SessionSpec
from nsml.view.reproduction import not_pinned


def session(owner: str, *datasets: tuple[str, int, str]) -> Session:
    references = [
        DatasetReference(name=name, version=version, digest=digest)
        for name, version, digest in datasets
    ]
    return Session(name=f"{owner}/x/1", owner=owner, spec=SessionSpec(datasets=references))


def test_a_dataset_of_which_the_next_user_reads_other_parts_is_named() -> None:
    source = session("kim", ("digits", 1, "all"), ("lee/own", 3, "same"), ("old", 1, "a"))
    made = session("lee", ("kim/digits", 1, "some"), ("own", 3, "same"), ("kim/old", 2, "b"))
    told = [one for one in not_pinned(source, made, None) if one.what == "dataset"]
    assert [one.why for one in told] == [
        "kim/digits@1: who reads its parts differs between kim/x/1 and this one"
    ]


def node(
    driver: str = "",
    *,
    python: str = "3.12.4",
    model: str = "NVIDIA A100",
    state: NodeState = NODE_STATE_READY,
    pod: str = "",
    withheld: str = "",
) -> Node:
    isolation = ISOLATION_NONE if python else ISOLATION_CONTAINER
    made = Node(state=state, pod=pod, python_version=python, isolation=isolation)
    version, _, cuda = driver.partition(" ")
    device = Device(model=model, driver_version=version, cuda_version=cuda, withheld=withheld)
    made.devices.append(DeviceUse(device=device))
    return made


def ran(driver: str, python: str, *, model: str = "", pod: str = "") -> tuple[Session, Session]:
    """A session that ran on an A100, and one that is made from it."""
    asked = SessionSpec(resources=Resources(gpu_thousandths=1000), gpu_model=model, pod=pod)
    version, _, cuda = driver.partition(" ")
    device = Device(model="NVIDIA A100", driver_version=version, cuda_version=cuda)
    replica = Replica(devices=[device], python_version=python)
    made = Session(owner="kim", spec=asked)
    return Session(name="kim/x/1", owner="kim", spec=asked, replicas=[replica], attempt=1), made


RAN = "kim/x/1 ran with 535.129.03 (CUDA 12.2)"
OLD, NEW = node("535.129.03 12.2"), node("550.54.14 12.4")


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([OLD, OLD], None),
        ([NEW], f"{RAN}, nodes now have 550.54.14 (CUDA 12.4)"),
        (
            [NEW, OLD],
            f"{RAN}, nodes now have 535.129.03 (CUDA 12.2) and 550.54.14 (CUDA 12.4)",
        ),
        ([OLD, node("550.54.14", model="NVIDIA H100")], None),
        ([OLD, node("550.54.14", state=NODE_STATE_SILENT)], None),
        ([OLD, node("550.54.14", pod="other")], None),
        ([OLD, node("550.54.14", withheld="it failed")], None),
        ([node()], f"{RAN}, nodes now have one that is not reported"),
        ([], f"{RAN}; no node that could run this one is in service"),
        (None, f"{RAN}; what nodes have now is not known"),
    ],
)
def test_a_driver_is_named_where_nodes_have_another(nodes: list[Node] | None, why: str) -> None:
    pod = "" if nodes is None else "main"
    for one in nodes or ():
        one.pod = one.pod or pod
    source, made = ran("535.129.03 12.2", "", model="a100", pod=pod)
    told = dict(not_pinned(source, made, None, nodes))
    assert told.get("GPU driver") == why


def test_of_simulated_gpus_and_of_none_no_driver_is_named() -> None:
    source, made = ran("", "3.12.4")
    assert dict(not_pinned(source, made, None, []))["GPU driver"] == "not recorded"
    source.simulated = True
    assert "GPU driver" not in dict(not_pinned(source, made, None, []))
    source.simulated = False
    del source.replicas[:]
    assert "GPU driver" not in dict(not_pinned(source, made, None, []))


@pytest.mark.parametrize(
    ("before", "nodes", "why"),
    [
        ("3.12.4", [OLD], None),
        ("3.11.9", [OLD], "kim/x/1 ran with 3.11.9, nodes now have 3.12.4"),
        (
            "3.12.4",
            [OLD, node(python="")],
            "kim/x/1 ran with 3.12.4, nodes now have 3.12.4 and that of their default image",
        ),
        ("", [OLD], "not recorded"),
    ],
)
def test_the_python_of_nodes_is_compared(before: str, nodes: list[Node], why: str) -> None:
    source, made = ran("", before)
    told = dict(not_pinned(source, made, None, nodes))
    assert told.get("Python") == why
    assert told["default packages"] == "those of the node, where it has some: not recorded"
    made.spec.environment_lock = "c" * 64
    assert "default packages" not in dict(not_pinned(source, made, None, nodes))
    made.spec.image = "lab/torch:2"
    assert "Python" not in dict(not_pinned(source, made, None, nodes)), "the image has one"


def test_python_is_compared_only_where_a_node_gives_one() -> None:
    source, made = ran("", "")
    for words in (["./train.sh"], ["torchrun", "main.py"]):
        source.spec.argv[:] = words
        told = dict(not_pinned(source, made, None, [OLD]))
        assert told["Python"] == "that of the node, if the program calls it: it is given none"
        assert "default packages" not in told
    source.spec.argv[:] = ["python3", "main.py"]
    assert dict(not_pinned(source, made, None, [OLD]))["Python"] == "not recorded"
    source.spec.argv[:] = ["torchrun", "main.py"]
    source.spec.bundle_digest = "a" * 64
    with_packages = Requirements(lines=("torch",))
    assert dict(not_pinned(source, made, with_packages, [OLD]))["Python"] == "not recorded"
    without = dict(not_pinned(source, made, Requirements(), [OLD]))
    assert "it is given none" in without["Python"]


def test_the_python_of_one_that_is_queued() -> None:
    source, made = ran("", "")
    del source.replicas[:]
    source.attempt = 0
    assert dict(not_pinned(source, made, None, [OLD]))["Python"] == "kim/x/1 has not run"
    source.attempt = 1
    source.attempts.add(number=1, python_versions=["3.11.9"])
    assert "kim/x/1 ran with 3.11.9" in dict(not_pinned(source, made, None, [OLD]))["Python"]
