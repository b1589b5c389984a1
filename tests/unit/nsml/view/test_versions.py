"""Versions of a platform's programs, and what differs."""

from nsml.v1 import nodes_pb2
from nsml.view import versions

A, B, OLD = "0.2.0+gaaaaaaaaaaaa", "0.2.0+gbbbbbbbbbbbb", "0.1.0"


def cluster(**members: str) -> nodes_pb2.GetClusterResponse:
    return nodes_pb2.GetClusterResponse(
        version=next(iter(members.values())),
        members=[nodes_pb2.Member(name=name, version=it) for name, it in members.items()],
    )


def nodes(**agents: str) -> list[nodes_pb2.Node]:
    return [nodes_pb2.Node(name=name, agent_version=version) for name, version in agents.items()]


def test_one_version_everywhere_is_no_note() -> None:
    assert versions.lines(A, cluster(cp1=A), nodes(n1=A, n2=A)) == [
        f"client   {A}",
        f"control  {A}  cp1",
        f"agents   {A}  n1, n2",
    ]
    assert versions.record(A, cluster(cp1=A), nodes(n1=A))["differ"] == []


def test_another_commit_is_another_version() -> None:
    many = nodes(**{f"n{number}": OLD for number in range(5)}, m=A)
    shown = versions.lines(B, cluster(cp1=A, cp2=B), many)
    assert shown == [
        f"client   {B}",
        f"control  {A}  cp1",
        f"         {B}  cp2",
        f"agents   {A}  m",
        f"         {OLD}  n0, n1, n2 and 2 more",
        "note     this program and the control plane are of different versions",
        "note     control planes of another version: cp2; stop, then start them",
        "note     5 agents of another version; restart after an upgrade",
    ]
    found = versions.record(B, cluster(cp1=A, cp2=B), many)
    assert found["control_planes"] == {"cp1": A, "cp2": B}
    assert found["agents"]["n4"] == OLD
    assert len(found["differ"]) == 3
