"""Which ports a control plane listens on, by its settings alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from controlplane.startup.config import Settings


def settings(**given: str) -> Settings:
    return msgspec.convert({"data": Path("/data"), **given}, Settings)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({}, "127.0.0.1:18553"),
        ({"listen": "0.0.0.0:18553"}, ""),
        ({"listen": "[::]:18553"}, ""),
        ({"listen_agents": "0.0.0.0:18553"}, ""),
        ({"http": "127.0.0.1:18553"}, ""),
        ({"listen": "0.0.0.0:18554"}, "127.0.0.1:18553"),
        ({"listen": "10.0.0.1:18553"}, "127.0.0.1:18553"),
        ({"address": "127.0.0.1:7", "listen": "0.0.0.0:18553"}, "127.0.0.1:7"),
        ({"address": ""}, ""),
    ],
)
def test_the_default_address_leaves_a_port_to_another_listener(
    given: dict[str, str], plain: str
) -> None:
    assert settings(**given).plain_address == plain


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"address": "127.0.0.1:7000", "listen": "0.0.0.0:7000"}, "listen"),
        ({"listen": "0.0.0.0:7000", "listen_agents": "0.0.0.0:7000"}, "listen_agents"),
        ({"listen": "10.0.0.1:7000", "http": "0.0.0.0:7000"}, "http"),
        ({"listen_agents": "[::]:7000", "http": "127.0.0.1:7000"}, "http"),
        ({"listen": "0.0.0.0:7000", "listen_ssh": "127.0.0.1:7000"}, "listen_ssh"),
    ],
)
def test_two_listeners_on_one_port_are_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named}: .* has the port of"):
        settings(**given)


def test_a_jump_host_can_call_its_control_plane() -> None:
    apart = {"listen": "0.0.0.0:7000", "listen_ssh": "0.0.0.0:7001", "address": ""}
    assert settings(**apart).listen_ssh == "0.0.0.0:7001"
    with pytest.raises(ValueError, match=r"^listen_ssh: .* needs socket or address"):
        settings(**apart, socket="")


def test_any_free_port_is_no_port_in_common() -> None:
    settings(address="127.0.0.1:0", listen="0.0.0.0:0", listen_agents="0.0.0.0:0")
