"""Which hosts are this machine."""

from __future__ import annotations

import pytest

from nsml.hosts import is_loopback


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
