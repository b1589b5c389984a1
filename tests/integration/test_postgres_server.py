"""The PostgreSQL that tests run: it comes back from what tests do to it, and leaves nothing."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


def test_what_was_committed_survives_every_end(server: PostgresServer) -> None:
    server.execute("CREATE TABLE kept (ending text)")
    for end in (server.stop, server.kill, server.restart):
        server.execute(f"INSERT INTO kept VALUES ('{end.__name__}')")
        end()
        if server.pid is None:
            server.start()
    assert server.execute("SELECT count(*) FROM kept") == [(3,)]


def test_each_test_has_a_database_of_its_own(server: PostgresServer) -> None:
    with server.database() as one, server.database() as other:
        assert one != other
        with psycopg.connect(one) as connection:
            connection.execute("CREATE TABLE mine ()")
        with psycopg.connect(other) as connection:
            tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
            assert connection.execute(tables).fetchall() == [(0,)]


def test_nobody_gets_in_without_the_password(server: PostgresServer) -> None:
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.url().replace(server.password, "guess"))


def test_nothing_is_left() -> None:
    with PostgresServer() as server:
        pid = server.pid
        assert pid is not None
        server.pause()
    assert not Path(f"/proc/{pid}").exists()
    assert not server.folder.exists()
