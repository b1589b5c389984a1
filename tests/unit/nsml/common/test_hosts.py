"""Which hosts are this machine."""

from __future__ import annotations

import pytest

from nsml.common.connections import Connections, Limits, Phase
from nsml.common.hosts import client_of, is_loopback, is_same_place


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "::1"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "localhost.example.org",
        "127.0.0.1.example.org",
        "127.1",
        "2130706433",
    ],
)
def test_others_and_what_could_be_others(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("origin", "host", "is_same"),
    [
        ("https://gpu.lab:18555", "gpu.lab:18555", True),
        ("http://[::1]:18555", "[::1]:18555", True),
        ("http://gpu.lab:18555", "gpu.lab", False),
        ("http://gpu.lab", "gpu.lab:18555", False),
        ("http://gpu.lab.evil.example", "gpu.lab", False),
        ("http://evil.example/gpu.lab", "gpu.lab", False),
        ("file://gpu.lab", "gpu.lab", False),
        ("gpu.lab", "gpu.lab", False),
        ("null", "gpu.lab", False),
        ("", "", False),
        ("http://", "", False),
    ],
)
def test_a_page_and_what_it_asks_are_in_the_same_place(
    origin: str, host: str, is_same: bool
) -> None:
    assert is_same_place(origin, host) is is_same


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:0:7::1", "2001:db8:0:7::/64"),
        ("2001:DB8:0:7:ffff:ffff:ffff:ffff", "2001:db8:0:7::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unix", "unix"),
    ],
)
def test_limits_count_an_address_for_whoever_has_it(address: str, client: str) -> None:
    assert client_of(address) == client


def test_connections_of_one_network_are_those_of_one_client() -> None:
    """A client of IPv6 has as many addresses as it likes."""
    limits = Limits(connections=1_000, per_address=3)
    connections = Connections(limits, lambda address: address == "2001:db8::80")
    proxied = [connections.admit("2001:db8::80", 0.0) for _ in range(10)]
    for one in proxied:
        assert one is not None
        one.enter(Phase.ANSWER, 0.0)
    for number in range(3):
        taken = connections.admit(f"2001:db8::{number:x}", 0.0)
        assert taken is not None, "what a proxy has is not its"
        taken.enter(Phase.ANSWER, 0.0)
    assert connections.admit("2001:db8::ffff", 0.0) is None
    assert connections.admit("2001:db8:0:1::1", 0.0) is not None
