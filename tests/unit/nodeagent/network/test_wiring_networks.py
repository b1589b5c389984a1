"""What an agent makes of whether sessions can have networks of their own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from nodeagent.config import Settings, SettingsError
from nodeagent.engine.client import Engine, EngineUnreachable
from nodeagent.engine.networks import Ways
from nodeagent.network import container_networks, pasta, session_network
from nodeagent.network.container_networks import ContainerNetworks
from nodeagent.network.rules import NetworkRules
from nodeagent.network.session_network import NetworkFacts
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.isolation import IsolationFacts
from nodeagent.runtimes.launch import this_machine
from nodeagent.wiring import _gangs, _network_note, _networks

if TYPE_CHECKING:
    from nodeagent.network.session_network import Networks

NAMESPACE = frozenset({Isolation.NAMESPACE})
PARTED = IsolationFacts(
    level=Isolation.NAMESPACE,
    levels=NAMESPACE,
    with_accounts=NAMESPACE,
    machine=this_machine(with_pid=False),
    reason="",
)
OWNERS = replace(PARTED, with_accounts=frozenset())
SHARED = NetworkFacts(reason="there is no program nft", open_reason="there is no program nft")


def settings(**more: Any) -> Settings:
    return Settings(node="n", server="unix:/x", data=Path("/nowhere"), **more)


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent of a user, on a machine without pasta."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(pasta.shutil, "which", lambda *_, **__: None)


@pytest.mark.usefixtures("user")
def test_without_root_sessions_have_the_machines_network() -> None:
    found = _networks(settings(), OWNERS)
    reason = "the agent is not root, and there is no program pasta: install it (package passt)"
    assert found == NetworkFacts(reason=reason, open_reason=reason)
    # All of them are the owner's, and so is what metadata services say.
    assert _network_note(settings(), OWNERS, found) == (
        f"sessions share the machine's network: {reason}"
    )


@pytest.mark.usefixtures("user")
def test_without_root_a_node_says_which_network_its_sessions_have() -> None:
    chosen = settings(session_network="host")
    assert _network_note(chosen, OWNERS, _networks(chosen, OWNERS)) == (
        "sessions share the machine's network: session_network = host"
    )
    own = NetworkFacts(network=cast("Networks", object()))
    assert _network_note(settings(), OWNERS, own) == "sessions have networks of their own, by pasta"
    assert _network_note(settings(), replace(OWNERS, level=Isolation.USER), NetworkFacts()) == ""


@pytest.mark.usefixtures("user")
def test_an_agent_does_not_start_without_networks_that_are_a_condition() -> None:
    with pytest.raises(SettingsError, match=r"session_network own .* the agent is not root"):
        _networks(settings(session_network="own"), OWNERS)
    with pytest.raises(SettingsError, match="session_network own"):
        _networks(settings(session_network="own"), replace(OWNERS, level=Isolation.USER))
    in_containers = replace(OWNERS, level=Isolation.CONTAINER)
    assert _networks(settings(session_network="own"), in_containers).network is None


def test_a_node_says_why_its_sessions_cannot_be_kept_to_themselves() -> None:
    joined = replace(PARTED, joined_reason="unshare: not permitted")
    own = NetworkFacts(network=cast("Networks", object()))
    assert "--network none" not in _network_note(settings(), PARTED, own)
    note = _network_note(settings(), joined, own)
    assert "--network none is not offered: unshare: not permitted" in note


def test_a_node_says_what_its_sessions_share() -> None:
    note = _network_note(settings(), PARTED, SHARED)
    assert note.startswith("sessions share the machine's network: there is no program nft")
    assert "metadata services are open to them" in note
    chosen = settings(session_network="host", metadata_addresses=())
    assert _network_note(chosen, PARTED, NetworkFacts()) == (
        "sessions share the machine's network: session_network = host"
    )


def networks_of_containers(
    monkeypatch: pytest.MonkeyPatch, ways: Ways, **more: Any
) -> ContainerNetworks:
    def found(_engine: Engine, networks: Iterable[str]) -> Ways:
        asked.append(set(networks))
        return ways

    asked: list[set[str]] = []
    monkeypatch.setattr(container_networks, "ways_of", found)
    made = ContainerNetworks(Engine(Path("/nowhere")), settings(**more), "nsml")
    assert made.bridges() == ways.bridges
    networks = {more.get("container_network", "nsml"), more.get("gang_network", "none")}
    networks |= {"host"} if more.get("host_network") == "on-request" else set()
    assert asked == [
        networks | {more.get("build_network") or more.get("container_network", "nsml")}
    ]
    return made


@pytest.mark.parametrize(
    ("chosen", "others", "has_ids", "reason"),
    [
        ({}, (), False, ""),
        ({"gang_network": "host"}, (), True, ""),
        ({"gang_network": "host"}, (), False, "no ids of their own"),
        ({"host_network": "on-request"}, (), True, ""),
        ({"host_network": "on-request"}, (), False, "no ids of their own"),
        ({"container_network": "host"}, (), True, "builds of images have the machine's network"),
        ({"build_network": "host"}, (), True, "builds of images have the machine's network"),
        ({"container_network": "lan"}, ("lan",), True, "no bridge of this machine (network lan)"),
    ],
)
def test_a_node_says_which_containers_reach_metadata_services(
    monkeypatch: pytest.MonkeyPatch,
    chosen: dict[str, str],
    others: tuple[str, ...],
    has_ids: bool,
    reason: str,
) -> None:
    ways = Ways(bridges=("br-x",), others=others)
    found = networks_of_containers(monkeypatch, ways, **chosen).open_reason(has_ids=has_ids)
    assert (reason in found) if reason else (found == "")
    if reason:
        note = _network_note(
            settings(),
            replace(PARTED, level=Isolation.CONTAINER),
            NetworkFacts(open_reason=found),
        )
        assert note.startswith("metadata services are open to containers: ")


def test_networks_of_an_engine_that_is_away_are_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = networks_of_containers(monkeypatch, Ways(bridges=("br-x",)))

    def away(_engine: Engine, _networks: Iterable[str]) -> Ways:
        raise EngineUnreachable("it does not answer")

    monkeypatch.setattr(container_networks, "ways_of", away)
    assert made.bridges() == ("br-x",)


def test_a_site_may_refuse_gangs_the_machines_network() -> None:
    modes = [_gangs(settings(gang_network=mode), Isolation.NAMESPACE, "") for mode in ("", "none")]
    assert [gangs.mode for gangs in modes] == ["host", "none"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_subnet", "198.18.0.0/21"),
        ("session_subnet", "fd00::/8"),
        ("session_subnet", "198.18.0.1/15"),
        ("session_ports", (0,)),
        ("session_nameservers", ("::1",)),
        ("session_nameservers", ("10.0.0.0/8",)),
        ("metadata_addresses", ("metadata.google.internal",)),
    ],
)
def test_values_that_no_network_can_have(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        settings(**{name: value})


def test_a_machine_that_lets_nothing_be_changed_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "networks"
    gone.mkdir()
    (gone / "nsml000000").write_text("/not/there")

    def refused() -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(session_network, "_STATE", gone)
    monkeypatch.setattr(session_network, "Netlink", refused)
    found = session_network.probe_network(
        tmp_path, rules=NetworkRules(), subnet="198.18.0.0/15", nameservers=(), is_wanted=True
    )
    assert (found.network, found.firewall) == (None, None)
    assert "not permitted" in found.reason
