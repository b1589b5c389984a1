"""Refusals of what could never be placed: every command that they propose is one that could be."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import event, given, settings

from cli.sessions.run import run
from controlplane.core.infeasible import MOST_DEVICES, Alternatives, refusal_of
from controlplane.domain.errors import CannotEverFit, InvalidRequest
from controlplane.domain.values import Isolation, Network, Node
from controlplane.scheduler import MaxCapacity, Request, can_ever_fit
from nsml.spec.request_limits import MOST_REPLICAS
from tests.support.examples import examples
from tests.unit.controlplane.builders import GIB, node
from tests.unit.controlplane.scheduler.test_max_capacity import A100, asked, machines, requests


def applied(request: Request, command: str) -> Request:
    """The request that a proposed command makes of the one that was refused."""
    words, _, left_out = command.partition("    without ")
    nsml, name, *flags, rest = shlex.split(words)
    assert (nsml, name) == ("nsml", "run")
    if rest != "...":
        flags.append(rest)
    with run.make_context("run", list(flags), resilient_parsing=True) as context:
        given_flags = context.params
    fields = {
        "-g": ("gpus", "gpu_thousandths"),
        "--nodes": ("nodes", "replica_count"),
        "-c": ("cpus", "cpu_thousandths"),
        "--memory": ("memory", "memory_bytes"),
        "--gpu-model": ("gpu_model", "gpu_model"),
        "--pod": ("pod", "pod"),
    }
    for flag, (parameter, field) in fields.items():
        if flag in flags:
            request = request._replace(**{field: given_flags[parameter]})
    if "--image" in flags:
        request = request._replace(in_container=True, with_conda=False)
    for flag in filter(None, left_out.split(" and ")):
        match flag:
            case "--image":
                request = request._replace(in_container=False)
            case "--gpu-model":
                request = request._replace(gpu_model="")
            case "--pod":
                request = request._replace(pod="")
            case "--network":
                request = request._replace(network=None)
            case _:
                pytest.fail(f"{command!r} leaves out {flag}")
    return request


def commands(attempt: str) -> list[str]:
    return [line for line in attempt.splitlines() if line.startswith("nsml run ")]


@pytest.mark.parametrize(
    ("request_", "command"),
    [
        (asked(9), "nsml run -g 8 ..."),
        (asked(9, 9), "nsml run -g 8 --nodes 2 ..."),
        (asked(gpu_model="A100 40GB"), "nsml run --gpu-model A100-SXM4-80GB ..."),
        (asked(0.5, pod="p2"), "nsml run --pod 'p 1' ..."),
        (asked(memory_bytes=2**50), "nsml run --memory 64.4G ..."),
        (asked(cpu_thousandths=99_000), "nsml run -c 7.5 ..."),
        (asked(in_container=True), "nsml run ...    without --image"),
        (asked(9, in_container=True), "nsml run -g 8 ...    without --image"),
    ],
)
def test_what_is_proposed(request_: Request, command: str) -> None:
    nodes = [node(name, 8, model=A100, pod="p 1", cpu=7500, memory=60 * GIB) for name in "ab"]
    refused = refusal_of(Alternatives(MaxCapacity(nodes)), request_, image="torch")
    assert isinstance(refused, CannotEverFit)
    assert refused.message.startswith("this can never be placed: ")
    assert refused.why
    assert "".join(commands(refused.attempt)[:1]) == command
    assert refused.attempt.splitlines()[-1] == "nsml node ls"


def test_what_is_left_out_is_named() -> None:
    nodes = [node("a", 2, pod="x"), node("b", 2, pod="y")]
    refused = refusal_of(Alternatives(MaxCapacity(nodes)), asked(1, 4, pod="x"))
    assert refused is not None
    assert commands(refused.attempt) == ["nsml run --nodes 2 ...", "nsml run ...    without --pod"]


def test_the_bounds_of_every_session_hold_before_there_are_nodes() -> None:
    for request, words, command in (
        (asked(1, 65), "65 replicas: a gang has 1 to 64", "nsml run --nodes 64 ..."),
        (asked(1, 2**32 - 1), f"{2**32 - 1} replicas: a gang has", "nsml run --nodes 64 ..."),
        (asked(16, 63), "1008 GPUs: a session has at most 1000", "nsml run --nodes 62 ..."),
        (asked(4_000_000), "4000000 GPUs: a session has at", "nsml run -g 1000 ..."),
    ):
        refused = refusal_of(Alternatives(MaxCapacity([])), request)
        assert isinstance(refused, InvalidRequest)
        assert refused.message.startswith(words)
        assert refused.attempt == command
    assert refusal_of(Alternatives(MaxCapacity([])), asked(16, 62)) is None


def test_a_gang_beyond_the_bound_is_told_what_the_nodes_hold() -> None:
    refused = refusal_of(Alternatives(MaxCapacity([node("a", 8), node("b", 8)])), asked(4, 65))
    assert isinstance(refused, InvalidRequest)
    assert refused.attempt == "nsml run --nodes 4 ..."


def test_where_some_nodes_give_gangs_a_network_as_many_as_they_hold_are_proposed() -> None:
    nodes = [node("a", 8, gang_network="none"), node("b", 4)]
    refused = refusal_of(Alternatives(MaxCapacity(nodes)), asked(1, 8))
    assert refused is not None
    assert "too few nodes give gangs a network" in refused.message
    assert commands(refused.attempt)[0] == "nsml run --nodes 4 ..."


@pytest.mark.parametrize(
    ("nodes", "request_", "why", "setting"),
    [
        (
            [node("a", networks=(Network.OWN,)), node("b")],
            asked(network=Network.HOST),
            "node a: host_network is never; node b: the agent is of an older version",
            'host_network = "on-request" in agent.site.toml of a node',
        ),
        (
            [node("a", networks=(Network.HOST,)), node("b", networks=(Network.HOST,))],
            asked(network=Network.OWN),
            "nodes a, b: sessions share the node's network",
            "nsml doctor node    on the node",
        ),
        (
            [node("a", 4, gang_network="overlay:x")],
            asked(1, 2, network=Network.HOST),
            "node a: gang_network is an overlay",
            'gang_network = "host" in agent.site.toml of a node',
        ),
        (
            [node("a", 4)],
            asked(1, 2, network=Network.OWN),
            "node a: gang_network is host",
            'gang_network = "overlay:NAME" in agent.site.toml of a node',
        ),
        (
            [
                node("a", networks=(Network.HOST,), isolation=Isolation.USER),
                node("b", networks=(Network.OWN,), isolation=Isolation.NAMESPACE),
                node("c", isolation=Isolation.CONTAINER),
            ],
            asked(network=Network.NONE),
            (
                "node a: sessions see the machine's files and sockets; node b: nsml node show says why,"
                " or the agent is older; node c: the agent is of an older version"
            ),
            "nsml doctor node    on the node",
        ),
    ],
)
def test_a_network_that_no_node_gives_is_told_with_the_setting_that_would(
    nodes: list[Node], request_: Request, why: str, setting: str
) -> None:
    refused = refusal_of(Alternatives(MaxCapacity(nodes)), request_)
    assert isinstance(refused, CannotEverFit)
    assert refused.message.startswith("this can never be placed: no node ")
    assert refused.why == why
    first, administrators, look = refused.attempt.splitlines()
    assert first == "nsml run ...    without --network"
    assert administrators.startswith(setting)
    assert look == "nsml node ls"


def test_a_gang_without_a_network_is_refused() -> None:
    nodes = [node("a", 4, networks=tuple(Network), isolation=Isolation.NAMESPACE)]
    refused = refusal_of(Alternatives(MaxCapacity(nodes)), asked(1, 2, network=Network.NONE))
    assert isinstance(refused, CannotEverFit)
    assert refused.message.endswith("no node can run gangs without a network")
    assert refused.why == "node a: the replicas of a gang meet by the network"
    assert "nsml run --nodes 1 ..." in refused.attempt.splitlines()


def test_beside_what_is_too_large_the_network_may_be_left_out() -> None:
    nodes = [node("a", 8, networks=(Network.OWN,)), node("b", 2, networks=tuple(Network))]
    refused = refusal_of(Alternatives(MaxCapacity(nodes)), asked(4, network=Network.HOST))
    assert refused is not None
    assert refused.message.endswith("it needs 4 GPUs on one node with the host network")
    assert commands(refused.attempt) == [
        "nsml run -g 2 ...",
        "nsml run ...    without --network",
    ]
    own = asked(1, network=Network.HOST)
    told = Alternatives(MaxCapacity(nodes), session="kim/None/3", own=own).words(
        asked(4, network=Network.HOST)
    )
    assert told.splitlines() == [
        "nsml status --explain kim/None/3 --what-if gpus=2",
        "nsml status --explain kim/None/3 --what-if gpus=4,network=",
    ]


def test_on_nodes_of_others_nothing_is_proposed() -> None:
    kept = node("a", 8, isolation=Isolation.NONE, owner="lee")
    refused = refusal_of(Alternatives(MaxCapacity([kept])), asked(9))
    assert refused is not None
    assert commands(refused.attempt) == []


def test_the_headline_names_what_no_node_has() -> None:
    shares = node("a", 8, shared_roots=("/other",))
    refused = refusal_of(Alternatives(MaxCapacity([shares])), asked(paths=("/mnt/imagenet",)))
    assert refused is not None
    assert refused.message == "this can never be placed: no node has /mnt/imagenet"
    assert "shared_roots = [FOLDER] in agent.site.toml of a node" in refused.attempt
    contained = refusal_of(Alternatives(MaxCapacity([shares])), asked(in_container=True))
    assert contained is not None  # the image comes of a Dockerfile, and has no name yet
    assert contained.message.endswith(": its image needs a node that runs containers")


def test_what_is_proposed_is_within_the_quota_and_what_if_is_told_as_such() -> None:
    nodes = [node("a", 4, pod="x"), node("b", 8, pod="y")]
    quota = lambda one: one._replace(gpu_thousandths=min(one.gpu_thousandths, 3000))  # noqa: E731
    refused = refusal_of(Alternatives(MaxCapacity(nodes), quota), asked(9))
    assert refused is not None
    assert commands(refused.attempt) == ["nsml run -g 3 ..."]
    own = asked(4, pod="x")
    nearest = Alternatives(MaxCapacity(nodes), session="kim/None/3", own=own)
    refused = refusal_of(nearest, asked(9, pod="x"))
    assert refused is not None
    assert refused.attempt == "nsml node ls", "the nearest is what it asks for already"
    refused = refusal_of(nearest, asked(6, pod="x"))
    assert refused is not None
    assert refused.attempt.splitlines()[0] == (
        "nsml status --explain kim/None/3 --what-if gpus=6,pod=y"
    )
    assert nearest.flag("--priority", "low") == (
        "nsml status --explain kim/None/3 --what-if priority=low"
    )


@settings(max_examples=examples(500), deadline=None)
@given(nodes=machines(), request=requests)
def test_every_proposed_command_is_possible(nodes: list[Node], request: Request) -> None:
    refused = refusal_of(Alternatives(MaxCapacity(nodes)), request)
    is_beyond = request.replica_count > MOST_REPLICAS or (
        request.replica_count * -(-request.gpu_thousandths // 1000) > MOST_DEVICES
    )
    assert (refused is None) is (can_ever_fit(nodes, request) and not is_beyond)
    if refused is None:
        return
    proposed = commands(refused.attempt)
    event(f"proposed: {len(proposed)}")
    for command in proposed:
        instead = applied(request, command)
        assert instead != request, command
        assert can_ever_fit(nodes, instead), command
