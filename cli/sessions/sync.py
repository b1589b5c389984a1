"""Syncs a session's folder with a local one while `nsml dev --sync` runs."""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cli.exits import CommandError
from cli.sessions.file_names import shortened
from cli.sessions.sync_decisions import Conflict, Kept, folders_above, plan
from cli.sessions.sync_folder import LocalFolder
from nsml._path_text import bytes_of, text_of
from nsml.client.errors import (
    AlreadyEnded,
    ClientError,
    NotEnough,
    NotFound,
    StateConflict,
    Unavailable,
)
from nsml.common.backoff import backoff_s
from nsml.common.shell import shell_word
from nsml.common.text import visible
from nsml.common.units import counted, size_text
from nsml.content.errors import TooLarge
from nsml.content.listing import CODE_LIMIT_BYTES
from nsml.copying.sync_messages import (
    DONE,
    FULL,
    KEPT,
    MOST_ORDERS,
    File,
    Put,
    Remove,
    RemoveFolder,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Sequence

    from cli.app import App
    from cli.sessions.sync_decisions import Here
    from cli.sessions.sync_folder import Look
    from cli.sessions.sync_record import Record
    from nsml.client.calls import Client
    from nsml.client.sync import SessionFolder
    from nsml.content.manifest import Entry
    from nsml.copying.sync_messages import Order, Result, State
    from nsml.v1.sessions_pb2 import Session

_FIRST_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 5.0
_FIRST_AGAIN_S: Final = 1.0
_LONGEST_AGAIN_S: Final = 60.0
_MOST_AGAIN: Final = 8
"""Retries of failed files before the next change: each is a connection, which keeps the session from being idle."""
_LOOKS_EVERY_S: Final = 2.0
"""Scan interval without notifications of changes, in seconds."""
_LOOKS_ANYHOW_S: Final = 30.0
"""Scan interval with notifications, in seconds: many changes may lose some, and those of other machines are missing."""
_MOST_NAMED: Final = 1_000
"""Most changed paths scanned individually: if there are more, notifications may be lost."""
_MOST_LOOKING: Final = 0.1
"""Largest share of time for scans."""
_LOCK_EVERY_S: Final = 1.0
_MOST_KEPT: Final = 20
"""Most files named at once."""
_MOST_CODE_BYTES: Final = 32 << 20
"""Limit of the session's code compared at once."""
_RETRIED: Final = (NotEnough, StateConflict, Unavailable)
_CHANGED: Final = ("it was changed while it was read", "it was changed while it was sent")


class Said:
    """Messages to the user. While a program of the session uses the terminal, only the important ones."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.is_raw = False

    def usual(self, text: str) -> None:
        """Report an action."""
        if not self.is_raw:
            self._app.say(text)

    def matters(self, *lines: str) -> None:
        """Report a failure."""
        if not self.is_raw:
            for line in lines:
                self._app.say(line)
        elif not self._app.is_quiet:
            text = "".join(f"nsml: {visible(line)}\r\n" for line in lines)
            self._app.stderr.write(f"\r\n{text}")
            self._app.stderr.flush()


class _Done(NamedTuple):
    """The actions of one round."""

    sent: list[Put]
    removed: list[bytes]
    kept: list[Kept]


class FolderSync:
    """Syncs the folder of `record` with a session; `is_new`: it has just been started with this folder."""

    def __init__(self, app: App, session: Session, record: Record, *, is_new: bool) -> None:
        """Raises PackRefused if the folder cannot be read."""
        self._session = session
        self._record = record
        self._root = Path(record.origin.folder)
        self._folder = LocalFolder(self._root, CODE_LIMIT_BYTES)
        self._is_new = is_new
        self._changed = asyncio.Event()
        self._named: set[str] | None = None
        """Changed absolute paths; None: any may be."""
        self._folders: frozenset[tuple[str, int]] | None = None
        self._folders_changed = asyncio.Event()
        self._look_s = 0.0
        self._last: dict[bytes, Here] = {}
        self._again: set[bytes] = set()
        self._tries = 0
        self._again_at = 0.0
        self._told: set[object] = set()
        self._code: dict[bytes, Entry] | None = None
        self._is_full = True
        self._failures = 0
        self.said = Said(app)

    @asynccontextmanager
    async def running(self, client: Client) -> AsyncIterator[None]:
        """Sync the folder first, and keep it in sync while the body runs.

        Raises ClientError, CommandError if the first sync fails.
        """
        has_it = self._record.try_lock()
        watching = asyncio.create_task(self._watch())
        following: asyncio.Task[None] | None = None
        try:
            await self._first_round(client)
            if not has_it:
                self.said.usual("another nsml dev --sync keeps it so")
            following = asyncio.create_task(self._follow(client, has_it=has_it))
            yield
        finally:
            self._record.save()
            self._record.close()
            for task in (watching, following):
                if task is not None:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task

    async def run(self, client: Client) -> None:
        """Keep the folder in sync until the session ends."""
        from cli.sessions.logs import end_words
        from nsml.client.streams import wait_until

        async with self.running(client):
            self.said.usual("Ctrl-C ends it")
            ended = await wait_until(client, self._session.id, lambda _: False)
            self.said.usual(end_words(ended))

    async def _first_round(self, client: Client) -> None:
        while True:
            try:
                await self._round(client)
            except TooLarge as error:
                raise CommandError(
                    str(error), advice="name what is not needed in .nsmlignore"
                ) from error
            except _RETRIED as error:
                if isinstance(error, AlreadyEnded):
                    raise
                await self._wait_after(error)
            else:
                return

    async def _follow(self, client: Client, *, has_it: bool) -> None:
        """Run rounds on changes."""
        while not has_it:
            await asyncio.sleep(_LOCK_EVERY_S)
            has_it = self._is_full = self._record.try_lock()
        waits = not self._is_full
        while True:
            try:
                if waits:
                    await self._something_to_do()
                waits = True
                self._changed.clear()
                await self._round(client)
            except TooLarge as error:
                self._tell_once(("size", str(error)), f"nothing is sent: {error}")
                self._again, self._is_full = set(), True
            except AlreadyEnded:
                return
            except _RETRIED as error:
                await self._wait_after(error)
                waits = False
            except (ClientError, CommandError, OSError) as error:
                self.said.matters(f"the folder is not kept in step any more: {error}")
                return

    async def _wait_after(self, error: ClientError) -> None:
        """Wait before the next try, which compares everything, as the state is unknown."""
        if not self._failures:
            why = f"{error.message}: {error.why}".rstrip(": ")
            self.said.matters(f"the folder is not in step, trying again ({why})")
        self._is_full = True
        await asyncio.sleep(backoff_s(_FIRST_RETRY_S, self._failures, _LONGEST_RETRY_S))
        self._failures += 1

    async def _something_to_do(self) -> None:
        """Wait for a change, or for the retry of failed files."""
        delay = None
        if self._again and self._tries < _MOST_AGAIN:
            delay = max(self._again_at - time.monotonic(), 0.0)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), delay)

    async def _watch(self) -> None:
        """Watch for changes; scan regularly if the system sends no notifications.

        Only folders with relevant files are watched: not targets of links, nor environments.
        """
        from watchfiles import Change, awatch

        def counts(_: Change, path: str) -> bool:
            return self._folder.is_watched(path)

        while True:
            await self._folders_changed.wait()
            self._folders_changed.clear()
            self._hear()  # nothing was watched meanwhile
            is_first = True
            try:
                async for changes in awatch(
                    self._root,
                    *(path for path, _ in self._folders or () if _is_utf8(path)),
                    watch_filter=counts,
                    step=50,
                    stop_event=self._folders_changed,
                    rust_timeout=int(1000 * self._at_least(_LOOKS_ANYHOW_S)),
                    yield_on_timeout=True,
                    ignore_permission_denied=True,
                    recursive=False,
                ):
                    # the start of the watch is unknown
                    self._hear(() if is_first else {path for _, path in changes})
                    is_first = False
            except (ExceptionGroup, FileNotFoundError):
                # a folder was removed, or a name is not UTF-8, which this library does not support
                await asyncio.sleep(self._at_least(_LOOKS_EVERY_S))
                self._folders_changed.set()
            except (OSError, RuntimeError) as error:
                self._tell_once("watch", f"changes are looked for every 2 s: {error}")
                break
        while True:
            await asyncio.sleep(self._at_least(_LOOKS_EVERY_S))
            self._hear()

    def _hear(self, paths: Collection[str] = ()) -> None:
        """Record changed paths; none: any may have changed."""
        if self._named is not None:
            self._named |= set(paths)
            if not paths or len(self._named) > _MOST_NAMED:
                self._named = None
        self._changed.set()

    def _at_least(self, pause_s: float) -> float:
        """Return the interval between scans, longer for slow scans."""
        return max(pause_s, self._look_s / _MOST_LOOKING)

    async def _round(self, client: Client) -> None:
        """Run one sync. Raises ClientError, CommandError, TooLarge."""
        named, self._named = self._named, set()
        look = await asyncio.to_thread(self._look, named)
        if look.folders != self._folders:
            self._folders = look.folders
            self._folders_changed.set()
        self._tell_left_out(look)
        self._again |= look.changing
        tries_again = self._is_full or time.monotonic() >= self._again_at
        if self._is_full or self._due(look, tries_again=tries_again):
            await self._compare(client, look, tries_again=tries_again)
        elif tries_again:
            self._again = set(look.changing)
        self._plan_again(tries_again=tries_again)

    def _look(self, named: Collection[str] | None) -> Look:
        """Scan the changed paths, or everything if needed. Raises CommandError, TooLarge."""
        if named is not None and not self._is_full and not self._again:
            look = self._folder.look_at(named)
            if look is not None:
                return look
        began = time.monotonic()
        look = self._folder.look()
        self._look_s = time.monotonic() - began
        return look

    async def _compare(self, client: Client, look: Look, *, tries_again: bool) -> None:
        """Compare due paths with the session and sync them. Raises ClientError."""
        session = await client.sessions.get(self._session.id)
        if session.attempt != self._record.origin.attempt:
            self._record.start_attempt(session.attempt)
            self._is_full = True
        if self._code is None:
            self._code = await _code_of(client, session)
        is_full, paths = self._is_full, self._due(look, tries_again=tries_again)
        async with client.sessions.open_folder(session.id) as remote:
            if tries_again:
                self._again = set(look.changing)
            await self._bring(client, session, remote, look, paths)
        if self._failures:
            self._failures = 0
            self.said.matters("the folder is in step again")
        if is_full and not self._last:
            self._tell_first(len(look.files))
        self._is_full = False
        self._last = look.files
        self._record.save()

    def _plan_again(self, *, tries_again: bool) -> None:
        """Schedule the retry of failed files."""
        if not self._again:
            self._tries = 0
            self._told.discard("full")
        elif tries_again:
            delay = backoff_s(_FIRST_AGAIN_S, self._tries, _LONGEST_AGAIN_S)
            self._again_at = time.monotonic() + delay
            self._tries += 1

    def _due(self, look: Look, *, tries_again: bool) -> list[bytes]:
        """Return the paths to compare: everything at first, then local changes."""
        record = self._record
        if self._is_full:
            paths = {*look.files, *record.files, *record.begun, *(self._code or ())}
        else:
            before = self._last
            paths = {path for path in look.files if look.files[path] != before.get(path)}
            paths |= before.keys() - look.files.keys()
            if tries_again:
                paths |= self._again
        due = []
        for path in sorted(paths):
            if path in look.files:
                due.append(path)
            elif look.is_unknown(path):
                continue
            elif self._folder.leaves_out(path):
                record.know(path, None)  # ignored from now on
            else:
                due.append(path)
        return due

    async def _bring(
        self,
        client: Client,
        session: Session,
        remote: SessionFolder,
        look: Look,
        paths: Sequence[bytes],
    ) -> None:
        states = dict(zip(paths, await remote.states(paths), strict=True))
        for path, state in states.items():
            if isinstance(state, File) and state == self._record.begun.get(path):
                self._record.know(path, state)
        known = dict(self._record.files)
        known.update(await self._known_of_code(client, session, look, states))
        code_folders = {above for path in self._code or () for above in folders_above(path)}
        made = plan(paths, look.files, known, states, self._record.folders | code_folders)
        for path in made.same:
            self._record.know(path, look.files[path].file)
        for path in made.forgotten:
            self._record.know(path, None)
        done = _Done([], [], list(made.kept))
        try:
            for start in range(0, len(made.orders), MOST_ORDERS):
                part = made.orders[start : start + MOST_ORDERS]
                self._begin(part)
                self._note(part, await remote.carry_out(part, self._folder.content), done)
        finally:
            self._tell_done(done.sent, done.removed)
            self._tell_kept(done.kept)

    def _begin(self, orders: Sequence[Order]) -> None:
        """Record pending uploads: their outcome is unknown if the connection breaks, or this process ends."""
        for order in orders:
            if isinstance(order, Put):
                self._record.begin(order.path, order.file)
        self._record.save()

    async def _known_of_code(
        self, client: Client, session: Session, look: Look, states: dict[bytes, State]
    ) -> dict[bytes, File]:
        """Return files that may still be as laid out at the start, if relevant."""
        code, files = self._code or {}, look.files
        wanted = [
            path
            for path, state in states.items()
            if path in code
            and path not in self._record.files
            and isinstance(state, File)
            and (path not in files or files[path].file != state)
        ]
        return await _digests(client, session, {path: code[path] for path in wanted})

    def _note(self, orders: Sequence[Order], results: Sequence[Result], done: _Done) -> None:
        """Record the results."""
        record = self._record
        for order, result in zip(orders, results, strict=True):
            if isinstance(order, RemoveFolder):
                if result.outcome == DONE:
                    record.know_folder(order.path, is_made=False)
                continue
            if result.outcome == DONE:
                record.know(order.path, order.file if isinstance(order, Put) else None)
                if isinstance(order, Put):
                    done.sent.append(order)
                    for above in folders_above(order.path)[: max(result.folders, 0)]:
                        record.know_folder(above, is_made=True)
                else:
                    done.removed.append(order.path)
                continue
            record.refused(order.path)
            if result.outcome == KEPT:
                done.kept.append(self._kept(order, result))
            else:
                self._fail(order, result)

    def _kept(self, order: Put | Remove, result: Result) -> Kept:
        if isinstance(order, Remove):
            self._record.know(order.path, None)
            return Kept(order.path, Conflict.REMOVED_HERE)
        conflict = Conflict.MADE_THERE if order.there is None else Conflict.CHANGED_TOO
        return Kept(order.path, conflict, result.why)

    def _fail(self, order: Order, result: Result) -> None:
        what = "sent" if isinstance(order, Put) else "removed there"
        self._again.add(order.path)
        if result.outcome == FULL:
            self._tell_once("full", f"no room in the session: {_shown(order.path)} is not {what}")
        elif result.why not in _CHANGED:
            self._tell_once(
                (order.path, result.why), f"not {what}: {_shown(order.path)}: {result.why}"
            )

    def _tell_first(self, count: int) -> None:
        self.said.usual(f"in step with {self._session.name}: {counted(count, 'file')}")

    def _tell_done(self, sent: Sequence[Put], removed: Sequence[bytes]) -> None:
        words = []
        if sent:
            size = size_text(sum(one.size for one in sent))
            words.append(f"sent {_listed([one.path for one in sent])} ({size})")
        if removed:
            words.append(f"removed {_listed(removed)}")
        if words:
            self.said.usual(", ".join(words))

    def _tell_kept(self, kept: Sequence[Kept]) -> None:
        lines = []
        for one in kept:
            key = (one, self._last.get(one.path))
            if not self._is_full or key not in self._told:
                what = f"is {one.why}" if one.why.startswith("a ") else one.conflict.value
                lines.append(f"kept in the session: {_shown(one.path)} {what}")
            self._told.add(key)
        if len(lines) > _MOST_KEPT:
            lines[_MOST_KEPT:] = [f"and {len(lines) - _MOST_KEPT:,} more are kept"]
        if lines and "advice" not in self._told:
            self._told.add("advice")
            there = f"{self._session.name}:{shell_word(_shown(kept[0].path))}"
            here = shell_word(_shown(kept[0].path))
            lines.append(f"  take theirs: nsml cp {there} {here}")
            lines.append(f"  send yours:  nsml cp {here} {there}")
        if lines:
            self.said.matters(*lines)

    def _tell_left_out(self, look: Look) -> None:
        for path, why in look.left_out.items():
            key = (path, why)
            if self._is_new and not self._last and self._is_full:
                self._told.add(key)  # already reported at the start
            self._tell_once(key, f"not sent: {_shown(path)}: {why}")

    def _tell_once(self, key: object, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self.said.matters(*text.splitlines())


def _is_utf8(path: str) -> bool:
    return path.isascii() or path == path.encode(errors="replace").decode()


def _shown(path: bytes) -> str:
    return text_of(path)


def _listed(paths: Iterable[bytes]) -> str:
    return shortened([_shown(path) for path in paths])


async def _code_of(client: Client, session: Session) -> dict[bytes, Entry]:
    """Return the files that the session started with."""
    from nsml.client.code import read_tree

    try:
        tree = await read_tree(client, session)
    except NotFound:
        return {}
    return {bytes_of(one.path): one for one in tree.entries} if tree is not None else {}


async def _digests(
    client: Client, session: Session, entries: dict[bytes, Entry]
) -> dict[bytes, File]:
    """Return the files of the session's code, without those no longer stored."""
    from nsml.client.code import read_files

    found: dict[bytes, File] = {}
    group: dict[bytes, Entry] = {}
    left = list(entries.items())
    while left:
        path, entry = left.pop()
        group[path] = entry
        if left and sum(one.size for one in group.values()) < _MOST_CODE_BYTES:
            continue
        try:
            contents = await read_files(client, session, list(group.values()))
        except NotFound:
            return found
        for (path, entry), data in zip(group.items(), contents, strict=True):
            digest = hashlib.sha256(data).hexdigest()
            found[path] = File(digest, bool(entry.mode & 0o100))
        group = {}
    return found
