"""`nsml dev --sync` against the session's side in this process, over a connection that breaks where a test says."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.sessions import sync as sync_module
from cli.sessions.sync import FolderSync
from cli.sessions.sync_folder import LocalFolder, Look
from cli.sessions.sync_record import Origin, record_of
from nsml.client.errors import Unavailable
from nsml.client.sync import SessionFolder
from nsml.copying.sync_receiver import SyncReceiver

PATIENCE_S = 60.0


class Connection:
    """A tunnel to the session's side; `breaks` once that many of its messages have come."""

    def __init__(self, session: Session, breaks: int | None) -> None:
        self._session = session
        self._steps = SyncReceiver(os.fsencode(session.there)).steps()
        self._came: list[bytes] = []
        self._left = breaks
        next(self._steps)

    async def write(self, data: bytes) -> None:
        self._session.sent_bytes += len(data)
        said = self._steps.send(data)
        while said:
            self._came.append(said)
            said = next(self._steps)

    async def read(self) -> bytes:
        if self._left is not None and self._left <= 0:
            self._steps.close()
            raise Unavailable("the connection broke")
        if self._left is not None:
            self._left -= 1
        return self._came.pop(0)


class Session:
    """A session with a folder, and a client that reaches it."""

    def __init__(self, there: Path) -> None:
        self.there = there
        self.breaks: int | None = None
        """After how many messages of the session's side the next connection breaks."""
        self.rounds = 0
        self.sent_bytes = 0
        self.sessions = self
        self.id, self.name, self.attempt = "s1", "me/None/1", 1

    async def get(self, _: str) -> Session:
        return self

    @asynccontextmanager
    async def open_folder(self, _: str) -> AsyncIterator[SessionFolder]:
        self.rounds += 1
        breaks, self.breaks = self.breaks, None
        connection: Any = Connection(self, breaks)
        folder = SessionFolder(connection, b"")
        await folder.greet()
        yield folder


class Work:
    """A folder here that is kept in step with one there, and what was said of that."""

    def __init__(self, place: Path) -> None:
        self.here, self.there = place / "here", place / "there"
        self.here.mkdir()
        self.there.mkdir()
        self.session = Session(self.there)
        self.said: list[str] = []
        self._app: Any = SimpleNamespace(
            say=self.said.append,
            environ={"NSML_CONFIG_DIR": str(place)},
            context=SimpleNamespace(name="lab"),
        )

    @asynccontextmanager
    async def in_step(self) -> AsyncIterator[None]:
        origin = Origin(folder=str(self.here), context="lab", session_id="s1", flags=[], attempt=1)
        session: Any = self.session
        sync = FolderSync(self._app, session, record_of(self._app, origin), is_new=False)
        async with sync.running(session):
            yield

    def has(self, path: str, content: str) -> Callable[[], bool]:
        return lambda: (self.there / path).exists() and (self.there / path).read_text() == content

    def heard(self, text: str) -> Callable[[], bool]:
        return lambda: any(text in line for line in self.said)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    async def nothing(*_: object) -> dict[bytes, object]:
        return {}

    monkeypatch.setattr(sync_module, "_code_of", nothing)
    return Work(tmp_path)


async def test_what_came_before_the_connection_broke_is_no_change_of_the_session(
    work: Work,
) -> None:
    (work.here / "a").write_text("one")
    (work.here / "gone").write_text("")
    async with work.in_step():
        assert work.has("a", "one")()
        work.session.breaks = 2  # it is greeted, says what is there, and not what it did
        (work.here / "a").write_text("two")
        (work.here / "new").write_text("new")
        await until(work.heard("trying again"))
        (work.here / "a").write_text("three")
        (work.here / "new").unlink()
        await until(work.heard("in step again"))
        await until(work.has("a", "three"))
        await until(lambda: not (work.there / "new").exists())
    assert not work.heard("kept")()


async def test_nor_is_what_came_before_it_was_ended(work: Work) -> None:
    (work.here / "a").write_text("one")
    async with work.in_step():
        work.session.breaks = 2
        (work.here / "a").write_text("two")
        await until(work.heard("trying again"))
    assert work.has("a", "two")()
    (work.here / "a").write_text("three")
    async with work.in_step():
        assert work.has("a", "three")()
    assert not work.heard("kept")()


async def test_changes_are_heard_of_after_a_name_that_is_no_text_and_in_new_folders(
    work: Work, tmp_path: Path
) -> None:
    for number in range(20):
        (tmp_path / "outside" / str(number)).mkdir(parents=True)
    (work.here / "link").symlink_to(tmp_path / "outside")
    async with work.in_step():
        odd = os.fsdecode(b"d/\xff\n")
        (work.here / "d").mkdir()
        (work.here / odd).write_text("odd")
        await until(work.has(odd, "odd"))
        (work.here / "d/e/f").mkdir(parents=True)
        (work.here / "d/e/f/new").write_text("new")
        await until(work.has("d/e/f/new", "new"))
        (work.here / "d/e/f/new").write_text("newer")
        await until(work.has("d/e/f/new", "newer"))
    assert work.heard("not sent: link: the link link leaves the folder")()


async def test_one_of_many_files_is_sent_without_a_look_at_all(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    real = LocalFolder.look

    def look(folder: LocalFolder) -> Look:
        nonlocal looks
        looks += 1
        return real(folder)

    monkeypatch.setattr(LocalFolder, "look", look)
    (work.here / "a").write_text("")
    async with work.in_step():
        number, before = 0, 0
        deadline = time.monotonic() + PATIENCE_S
        while looks > before:  # until it watches, and nothing else was changed meanwhile
            assert time.monotonic() < deadline
            number, before = number + 1, looks
            (work.here / "a").write_text(str(number))
            await until(work.has("a", str(number)))


async def test_what_cannot_be_put_is_tried_again_and_named_once(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    is_full = True

    def write(descriptor: int, data: bytes) -> int:
        if is_full and len(data) == len("too much"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(real(descriptor, data))

    monkeypatch.setattr("nsml.copying.receiver.os.write", write)
    async with work.in_step():
        (work.here / "d").mkdir()
        (work.here / "d/large").write_text("too much")
        (work.here / "small").write_text("small")
        await until(work.has("small", "small"))
        await until(lambda: work.session.rounds > 2)
        assert [one.name for one in work.there.iterdir()] == ["small"]
        is_full = False
        await until(work.has("d/large", "too much"))
    assert sum("no room in the session: d/large" in line for line in work.said) == 1


async def test_of_a_large_file_only_what_was_changed_is_sent(work: Work) -> None:
    large = random.Random(1).randbytes(12 << 20)
    (work.here / "large").write_bytes(large)
    async with work.in_step():
        changed = large[: 5 << 20] + b"inserted" + large[5 << 20 : 7 << 20] + large[8 << 20 :]
        work.session.sent_bytes = 0
        (work.here / "large").write_bytes(changed)
        await until(lambda: (work.there / "large").stat().st_size == len(changed))
        assert (work.there / "large").read_bytes() == changed
        assert 0 < work.session.sent_bytes < 8 << 20
        work.session.sent_bytes = 0
        (work.there / "large").write_bytes(large)  # it is not what an earlier round put there
        (work.here / "large").write_bytes(changed + b".")
        await until(work.heard("kept in the session: large"))
        assert (work.there / "large").read_bytes() == large
