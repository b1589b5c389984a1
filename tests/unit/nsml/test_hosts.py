"""Which hosts are this machine."""

from __future__ import annotations

import pytest

from nsml.hosts import is_loopback, is_same_place


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
