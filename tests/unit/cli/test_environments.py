"""`nsml env ls` and `rm`: environments of nodes."""

import json

import pytest

from nsml.v1 import nodes_pb2, resources_pb2
from tests.unit.nsml.client.contract_server import EPOCH

KEY, OTHER = "3f9a0c51d2e4" + "0" * 20, "3f77" + "1" * 28


def made(key, **facts):
    one = resources_pb2.NodeEnvironment(key=key, package_count=7, bytes=3 << 30, **facts)
    one.built_at.seconds = one.used_at.seconds = EPOCH - 3600
    return one


@pytest.fixture
def on_nodes(state):
    for name in ("gpu-1", "gpu-2"):
        state.nodes.append(nodes_pb2.Node(name=name, state=nodes_pb2.NODE_STATE_READY))
        state.environments[name] = [made(KEY, owner="kim"), made(f"{KEY}.2", for_all=True)]
    state.environments["gpu-2"].append(made(OTHER, owner="kim", sessions=["kim/mnist/1"]))
    return state.environments


def test_they_are_listed_with_what_they_take_and_who_uses_them(nsml, on_nodes):
    lines = nsml("env", "ls", "gpu-2").stdout.splitlines()
    assert lines[0].split() == [
        *("Environment", "Node", "For", "Packages", "Size", "Shared", "Built", "Used", "by")
    ]
    assert [line.split()[:4] for line in lines[-3:]] == [
        ["3f9a0c51d2e4", "gpu-2", "kim", "7"],
        ["3f9a0c51d2e4.2", "gpu-2", "all", "7"],
        ["3f7711111111", "gpu-2", "kim", "7"],
    ]
    assert "kim/mnist/1" in lines[-1]
    items = json.loads(nsml("env", "ls", "-j").stdout)["items"]
    assert [(one["node"], one["key"]) for one in items[:2]] == [
        ("gpu-1", KEY),
        ("gpu-1", f"{KEY}.2"),
    ]
    assert items[0]["bytes"] == 3 << 30


def test_one_goes_from_all_nodes_or_from_those_that_are_named(nsml, on_nodes):
    nsml("env", "rm", "3f9a", "--node", "gpu-1", "-y")
    assert [one.key for one in on_nodes["gpu-1"]] == [f"{KEY}.2"]
    assert nsml("env", "rm", f"{KEY[:12]}.2", check=False).code == 2  # it asks first
    told = nsml("env", "rm", f"{KEY[:12]}.2", "-y").stdout.splitlines()
    assert [line.split()[:2] for line in told[-2:]] == [["gpu-1", "removed"], ["gpu-2", "removed"]]
    assert [one.key for one in on_nodes["gpu-2"]] == [KEY, OTHER]


def test_what_is_used_or_ambiguous_or_not_there_stays(nsml, on_nodes):
    used = nsml("env", "rm", OTHER, "-y", check=False)
    assert (used.code, len(on_nodes["gpu-2"])) == (1, 3)
    assert used.stdout.splitlines()[-1].split()[:2] == ["gpu-2", "kept"]
    assert nsml("env", "rm", "3f", "-y", check=False).code == 2
    for word in ("", "ffff", f"{KEY}.3", "*"):
        assert nsml("env", "rm", word, "-y", check=False).code == 5, word
