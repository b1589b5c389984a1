"""Whose end it is when a container and its engine end together: seen on the engine's socket alone."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.engine.wire import Container
from nodeagent.shim.presence import Presence

TAKEN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDED = b'15\r\n{"StatusCode":143}\r\n\r\n0\r\n\r\n'


class RawEngine:
    """Takes connections and says what a test wants, or nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        self.calls: list[socket.socket] = []

    def takes(self, *answer: bytes) -> socket.socket:
        """The next connection, and the request on it, answered."""
        call, _ = self.listening.accept()
        self.calls.append(call)
        assert call.recv(65536)
        for piece in answer:
            call.sendall(piece)
        return call

    def leave(self) -> None:
        """As one that ends: its listener and all its connections close."""
        self.listening.close()
        self.path.unlink()
        for call in self.calls:
            call.close()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RawEngine]:
    for name in ("_HELD_AFTER_S", "_AGAIN_S"):
        monkeypatch.setattr(f"nodeagent.shim.presence.{name}", 0.0)
    engine = RawEngine(tmp_path / "engine.sock")
    yield engine
    engine.listening.close()
    for call in engine.calls:
        call.close()


def held(engine: RawEngine) -> Presence:
    """Of an engine that has taken the call."""
    presence = Presence(Container(str(engine.path), "1.41", "c"))
    presence.look()
    engine.takes(TAKEN)
    seen(presence)
    return presence


def seen(presence: Presence) -> None:
    """It looks at what has come."""
    select.select([presence.descriptor], [], [], 60)
    presence.look()


def judged(presence: Presence, engine: RawEngine, answer: bytes) -> bool:
    """`has_ended` of an engine that answers the ping beforehand: it waits in the listener's queue."""
    ping = presence._container.ping  # type: ignore[union-attr]

    def answered() -> socket.socket:
        connection = ping()
        engine.takes(answer)
        return connection

    presence._container.ping = answered  # type: ignore[union-attr, method-assign]
    return presence.has_ended()


def test_an_engine_that_answers_ended_nothing(engine: RawEngine) -> None:
    presence = held(engine)
    engine.calls[0].sendall(ENDED)
    assert not judged(presence, engine, b"HTTP/1.1 200 OK\r\n\r\nOK")


def test_an_engine_that_takes_no_calls_has_ended_its_containers(engine: RawEngine) -> None:
    presence = held(engine)
    engine.listening.close()  # it stops containers while what is open stays so
    engine.path.unlink()
    assert presence.has_ended()


def test_an_engine_that_was_killed_has_ended_what_it_kills_when_it_is_back(
    engine: RawEngine,
) -> None:
    presence = held(engine)
    engine.leave()
    seen(presence)
    again = RawEngine(engine.path)
    presence.look()  # held, and not taken: it ends its containers before it takes calls
    again.takes()
    assert presence.has_ended()
    again.leave()


def test_what_outlived_the_engine_ends_by_itself(engine: RawEngine) -> None:
    presence = held(engine)
    engine.leave()
    seen(presence)
    again = RawEngine(engine.path)
    presence.look()
    again.takes(TAKEN)
    seen(presence)
    assert not judged(presence, again, b"HTTP/1.1 200 OK\r\n\r\nOK")
    again.leave()


def test_an_engine_behind_a_socket_of_the_machines_ends_by_its_process(engine: RawEngine) -> None:
    presence = held(engine)
    engine.calls[0].close()  # the listener is not its own, and takes connections for its successor
    assert presence.has_ended()


def test_an_engine_that_hangs_is_not_gone(
    engine: RawEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.shim.presence.JUDGED_WITHIN_S", 0.05)
    assert not held(engine).has_ended()


def test_of_an_engine_that_keeps_its_containers_nothing_is_asked() -> None:
    presence = Presence(None)
    assert (presence.look(), presence.descriptor, presence.has_ended()) == (None, -1, False)
