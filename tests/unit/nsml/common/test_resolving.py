"""Names and connections: bounded waits, and what the user has set."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from nsml.common.resolving import CONNECTED_WITHIN_S, bound_resolvers, connect


def test_silence_is_waited_for_shortly_and_a_slow_answer_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    real = socket.create_connection

    def noted(address: Any, timeout: float) -> socket.socket:
        waits.append(timeout)
        return real(address, timeout)

    monkeypatch.setattr(socket, "create_connection", noted)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        connect("127.0.0.1", server.getsockname()[1], timeout_s=10) as made,
    ):
        assert made.gettimeout() == 10
    assert waits == [CONNECTED_WITHIN_S]


def test_a_users_own_choice_for_resolvers_stands() -> None:
    """Later words of RES_OPTIONS override earlier ones."""
    unset: dict[str, str] = {}
    bound_resolvers(unset)
    assert unset == {"RES_OPTIONS": "timeout:1"}
    own = {"RES_OPTIONS": "timeout:3 rotate"}
    bound_resolvers(own)
    assert own == {"RES_OPTIONS": "timeout:1 timeout:3 rotate"}
