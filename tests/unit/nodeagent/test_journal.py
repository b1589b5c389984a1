"""The agent's journal: what it keeps, for whom, and what it refuses."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from nodeagent import journal as journals
from nodeagent.collect.streams import Channel, Cursor, StreamId
from nodeagent.folders import ReplicaId
from nodeagent.journal import Journal, JournalError, JournalLocked

FIRST = ReplicaId(session_id="s" + "a" * 16, attempt=1, rank=0)
SECOND = ReplicaId(session_id="s" + "a" * 16, attempt=2, rank=0)


def stream(replica_id: ReplicaId, writer: int = 1) -> StreamId:
    return StreamId(replica_id=replica_id, channel=Channel.METRIC, writer=writer)


def test_a_new_journal_is_empty_and_private(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    assert journal.cluster_id() == ""
    assert journal.highest() == (0, 0)
    assert journal.control_planes() == []
    assert journal.cursors(FIRST) == {}
    assert path.stat().st_mode & 0o077 == 0
    journal.close()


def test_everything_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    journal.join("cluster")
    journal.obey(3, 40)
    journal.remember_control_planes(["a:1", "[::1]:2"])
    cursors = {stream(FIRST, n): Cursor(last=n, offset=n * 10) for n in (1, 2)}
    journal.acknowledge(cursors)
    journal.acknowledge({stream(FIRST, 2): Cursor(last=9, offset=99)})
    journal.acknowledge({stream(SECOND): Cursor(last=1, offset=8, lost=3, gap_credit=7)})
    journal.acknowledge({stream(FIRST, 3): Cursor(last=4, offset=4)})
    journal.acknowledge({stream(FIRST, 3): None})
    journal.close()
    again = Journal.open(path)
    assert again.cluster_id() == "cluster"
    assert again.highest() == (3, 40)
    assert again.control_planes() == ["a:1", "[::1]:2"]
    assert again.cursors(FIRST) == {
        stream(FIRST, 1): Cursor(last=1, offset=10),
        stream(FIRST, 2): Cursor(last=9, offset=99),
    }
    again.forget(FIRST)
    assert again.cursors(FIRST) == {}
    assert again.cursors(SECOND) == {stream(SECOND): Cursor(last=1, offset=8, lost=3, gap_credit=7)}
    again.close()


def test_a_journal_of_an_older_version_is_brought_forward(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as old:
        old.executescript(
            "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID, STRICT;"
            "CREATE TABLE cursors (replica TEXT NOT NULL, channel TEXT NOT NULL,"
            " writer INTEGER NOT NULL, last INTEGER NOT NULL, offset INTEGER NOT NULL,"
            " PRIMARY KEY (replica, channel, writer)) WITHOUT ROWID, STRICT;"
            "PRAGMA user_version = 1;"
        )
        old.execute("INSERT INTO cursors VALUES (?, 'metric', 1, 5, 50)", (str(FIRST),))
    old.close()
    for _ in range(2):
        journal = Journal.open(path)
        assert journal.cursors(FIRST) == {stream(FIRST): Cursor(last=5, offset=50)}
        journal.close()


def test_closing_waits_for_who_writes(tmp_path: Path) -> None:
    cursors = {stream(FIRST, n): Cursor(last=n, offset=n) for n in range(4000)}
    for number in range(20):  # each had a fair chance to end the process
        journal = Journal.open(tmp_path / f"{number}.db")
        begun = threading.Event()

        def write(journal: Journal = journal, begun: threading.Event = begun) -> None:
            begun.set()
            with suppress(sqlite3.ProgrammingError):
                while True:
                    journal.acknowledge(cursors)

        writing = threading.Thread(target=write)
        writing.start()
        begun.wait()
        journal.close()
        writing.join()


def test_what_fences_is_flushed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = []
    sound = journals._set

    def noting(connection: sqlite3.Connection, name: str, value: str) -> None:
        levels.append(connection.execute("PRAGMA synchronous").fetchone())
        sound(connection, name, value)

    monkeypatch.setattr(journals, "_set", noting)
    journal = Journal.open(tmp_path / "journal.db")
    journal.join("cluster")
    journal.obey(3, 40)
    journal.close()
    assert levels == [(2,), (2,)]


def test_orders_never_go_back(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db")
    for term, revision in [(2, 10), (2, 9), (1, 99), (2, 10)]:
        journal.obey(term, revision)
        assert journal.highest() == (2, 10)
    journal.obey(3, 1)
    assert journal.highest() == (3, 1)
    journal.close()


def test_one_agent_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal.open(path)
    with pytest.raises(JournalLocked, match=str(tmp_path)):
        Journal.open(path)
    journal.close()
    Journal.open(path).close()


WRITER = """
import sys
from pathlib import Path
from nodeagent.journal import Journal
journal = Journal.open(Path(sys.argv[1]))
n = 0
while True:
    n += 1
    journal.obey(1, n)
    print(n, flush=True)
"""


def test_orders_that_were_obeyed_survive_kill(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    root = Path(__file__).parents[3]
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        assert writer.stdout is not None
        for _ in range(20):
            line = writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait()
        journal = Journal.open(path)
        assert journal.highest() >= (1, int(rest[-1] if rest else line))
        journal.close()


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(JournalError, match="move it away"):
        Journal.open(path)


def test_a_newer_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal.open(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(JournalError, match="newer"):
        Journal.open(path)
