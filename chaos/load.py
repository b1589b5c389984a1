"""Clients that use a platform while it is tormented, and write down each question and each answer.

Each of them is one client, with one connection at a time: when a control plane does not answer it asks
the next one. A question that may be repeated is, under its own request id, until it is answered or
patience is at its end; what came of it then is *unknown*.
"""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chaos.trainer import LEDGERS
from cli.exits import CommandError
from nsml.client.connect import connect
from nsml.client.errors import (
    AlreadyEnded,
    ClientError,
    NotFound,
    StateConflict,
    Unavailable,
)
from nsml.client.media import contents, pages
from nsml.client.streams import ENDED_STATES, read_logs, read_metrics, watch_sessions
from nsml.client.uploads import made_of
from nsml.common.concurrency import beside_each_other
from nsml.v1 import sessions_pb2 as pb
from nsml.v1.media_pb2 import ListMediaRequest
from nsml.view.checkpoints import is_lost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from chaos.recording import Recorder
    from nsml.client.calls import Client
    from nsml.client.contexts import Context
    from nsml.common.concurrency import TaskGroup
    from nsml.content.packing import Packed

T = TypeVar("T")

ANSWER_WITHIN_S: Final = 3.0
PATIENCE_S: Final = 60.0
_RETRY_S = 0.1
_LIVE_AT_ONCE = 14
_OVER_WITHIN_S = 180.0
_SUBMITTERS, _READERS, _WATCHERS, _FOLLOWERS = 2, 2, 2, 2
_STATE = "SESSION_STATE_"
_LINE = re.compile(rb"^line (\d+) x*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ExpectedSession:
    """A session that was asked for, and how it must end."""

    request: pb.CreateSessionRequest
    kind: str
    state: str

    @property
    def id(self) -> str:
        """Its request id."""
        return str(self.request.request_id)


def state_name(state: int) -> str:
    """RUNNING for SESSION_STATE_RUNNING."""
    return str(pb.SessionState.Name(pb.SessionState.ValueType(state)).removeprefix(_STATE))


class Talker:
    """One client: asks one control plane, and the next one when that does not answer."""

    def __init__(self, name: str, clients: Sequence[Client], recorder: Recorder) -> None:
        self.name = name
        self._clients = clients
        self._at = sum(name.encode()) % len(clients)
        self._recorder = recorder

    @property
    def client(self) -> Client:
        """Whom it asks now."""
        return self._clients[self._at]

    def move(self) -> None:
        """Ask another one from now on."""
        self._at = (self._at + 1) % len(self._clients)

    async def ask(
        self,
        what: str,
        ask: Callable[[Client], Awaitable[T]],
        *,
        told: Callable[[T], dict[str, Any]] = lambda _: {},
        **facts: Any,
    ) -> T | None:
        """Ask until somebody answers, and note it; None when it was refused or nobody did."""
        number = self._recorder.next_number()
        note = self._recorder.note
        note(do=what, op=number, client=self.name, **facts)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        answer = await ask(self.client)
                    except Unavailable:
                        self.move()
                        await asyncio.sleep(_RETRY_S)
                        continue
                    note(ok=number, **told(answer))
                    return answer
        except ClientError as error:
            note(fail=number, why=type(error).__name__, text=str(error)[:200])
        except TimeoutError:
            note(unknown=number)
        except asyncio.CancelledError:
            note(unknown=number)
            raise
        return None

    def saw(self, **facts: Any) -> None:
        """Note what a stream said."""
        self._recorder.note(client=self.name, **facts)


def _session_told(session: pb.Session) -> dict[str, Any]:
    return {
        "session": session.id,
        "name": session.name,
        "state": state_name(session.state),
        "attempt": session.attempt,
    }


def _listing_told(answer: pb.ListSessionsResponse) -> dict[str, Any]:
    states = {session.id: state_name(session.state) for session in answer.sessions}
    return {"revision": answer.revision, "states": states}


@dataclass
class Load:
    """Everybody who uses the platform; `over` ends what begins something new."""

    contexts: Sequence[Context]
    recorder: Recorder
    rng: random.Random
    ledgers: Path
    code: Packed
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _live: set[str] = field(default_factory=set)
    _known: set[str] = field(default_factory=set)
    _asked: list[ExpectedSession] = field(default_factory=list)
    _clients: list[Client] = field(default_factory=list)

    async def run(self, torment: Callable[[], Awaitable[None]]) -> list[dict[str, Any]]:
        """Use the platform while it is tormented, and until all that was submitted has ended.

        Returns:
            Each session as the platform tells it then.

        Raises:
            CommandError: the platform does not answer, though nothing is tormented any more.
        """
        async with AsyncExitStack() as stack:
            for context in self.contexts:
                client = await stack.enter_async_context(
                    connect(context, deadline_s=ANSWER_WITHIN_S)
                )
                self._clients.append(client)
            async with beside_each_other() as streams, beside_each_other() as group:
                watching = [streams.create_task(self._watch(n)) for n in range(_WATCHERS)]
                for number in range(_SUBMITTERS):
                    group.create_task(self._submit(number, group))
                for number in range(_READERS):
                    group.create_task(self._read(number))
                following = [group.create_task(self._follow(n)) for n in range(_FOLLOWERS)]
                try:
                    await torment()
                finally:
                    self.over.set()
                have_ended = await self._settle()
                # The log of a session that does not end does not end, either.
                for task in watching if have_ended else [*watching, *following]:
                    task.cancel()
            return await self._outcome()

    def _talker(self, name: str) -> Talker:
        return Talker(name, self._clients, self.recorder)

    async def _pause(self, least_s: float, most_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), self.rng.uniform(least_s, most_s))

    # Submissions

    async def _submit(self, number: int, group: TaskGroup) -> None:
        talker = self._talker(f"submitter{number}")
        while not self.over.is_set():
            if len(self._live) < _LIVE_AT_ONCE:
                wish = self._wish()
                self._asked.append(wish)
                await self._create(talker, wish, group)
            if self._asked and self.rng.random() < 0.2:
                # The same again, from somebody else: a client that never got its answer.
                again = self.rng.choice(self._asked[-20:])
                await self._create(self._talker("again"), again, group)
            await self._pause(0.1, 1.2)

    def _wish(self) -> ExpectedSession:
        rng = self.rng
        kind = rng.choice(["trains", "trains", "saves", "fails", "endless", "endless", "gang"])
        steps, pause = rng.randrange(5, 150), rng.choice([0.005, 0.02, 0.04])
        every = rng.randrange(10, 60) if kind == "saves" else 0
        shown = rng.choice([0, 5, 20])
        code = 3 if kind == "fails" else 0
        gpus = 1000 if kind == "gang" else rng.choice([1000, 1000, 500, 2000])
        spec = pb.SessionSpec(
            entry="main.py",
            args=[
                str(-1 if kind == "endless" else steps),
                str(pause),
                str(code),
                str(every),
                str(shown),
            ],
            bundle_digest=self.code.manifest.digest,
            replica_count=2 if kind == "gang" else 1,
            environment={LEDGERS: str(self.ledgers)},
        )
        spec.resources.gpu_thousandths = gpus
        spec.resources.cpu_thousandths = 100
        spec.resources.memory_bytes = 64 << 20
        spec.grace.seconds = 1
        request = pb.CreateSessionRequest(request_id=f"{rng.getrandbits(128):032x}", spec=spec)
        state = {"fails": "FAILED", "endless": "STOPPED"}.get(kind, "SUCCEEDED")
        return ExpectedSession(request, kind, state)

    async def _create(self, talker: Talker, wish: ExpectedSession, group: TaskGroup) -> None:
        async def create(client: Client) -> pb.Session:
            return await made_of(client, self.code, lambda: self._created(client, wish))

        shares = wish.request.spec.resources.gpu_thousandths
        facts = {"request": wish.id, "kind": wish.kind, "wish": wish.state, "share": shares}
        session = await talker.ask("create", create, told=_session_told, **facts)
        if session is not None and session.id not in self._known:
            self._known.add(session.id)
            self._live.add(session.id)
            group.create_task(self._accompany(session.id, wish))

    async def _created(self, client: Client, wish: ExpectedSession) -> pb.Session:
        answer = await client.rpc.unary(
            "SessionService/CreateSession", wish.request, pb.CreateSessionResponse
        )
        return answer.session

    async def _accompany(self, session_id: str, wish: ExpectedSession) -> None:
        """Stop what would never end, wait for the end, and remove some of what has ended."""
        talker = self._talker(f"owner-{wish.id[:6]}")
        if wish.kind == "endless":
            await self._pause(0.0, 6.0)
            await self._stop(talker, session_id)
        while True:
            told = await talker.ask(
                "get", lambda client: client.sessions.get(session_id), told=_session_told
            )
            if told is not None and told.state in ENDED_STATES:
                break
            if self.over.is_set():
                # `_settle` looks after the rest.
                return
            await asyncio.sleep(self.rng.uniform(0.3, 1.0))
        self._live.discard(session_id)
        if self.rng.random() < 0.1:
            await talker.ask(
                "remove", lambda client: client.sessions.remove(session_id), session=session_id
            )

    async def _stop(self, talker: Talker, session_id: str) -> None:
        async def stop(client: Client) -> None:
            with suppress(AlreadyEnded):
                await client.sessions.stop(session_id, grace_s=1.0)

        await talker.ask("stop", stop, session=session_id)

    # Readers

    async def _read(self, number: int) -> None:
        talker = self._talker(f"reader{number}")
        chosen = pb.SessionFilter(include_ended=number % 2 == 1)
        while not self.over.is_set():
            await talker.ask(
                "list",
                lambda client: client.sessions.page(
                    pb.ListSessionsRequest(filter=chosen, page_size=200)
                ),
                told=_listing_told,
            )
            await self._pause(0.1, 0.6)

    async def _watch(self, number: int) -> None:
        """Follow all sessions; when the stream breaks it goes on at another control plane."""
        talker = self._talker(f"watcher{number}")
        revision = 0
        while True:
            watching = watch_sessions(
                talker.client, pb.SessionFilter(), from_revision=revision, patience_s=0.0
            )
            with suppress(Unavailable):
                async with aclosing(watching):
                    async for answer in watching:
                        states = {one.id: state_name(one.state) for one in answer.changed}
                        revision = answer.revision
                        talker.saw(saw="watch", revision=revision, states=states)
            talker.move()
            await asyncio.sleep(_RETRY_S)

    async def _follow(self, number: int) -> None:
        """Read the log of one session after the other from its first byte to its end."""
        talker = self._talker(f"follower{number}")
        while not self.over.is_set():
            await self._pause(0.1, 1.0)
            if not self._live:
                continue
            session_id = self.rng.choice(sorted(self._live))
            with suppress(NotFound, StateConflict):
                lines, is_whole = await self._followed(talker, session_id)
                talker.saw(saw="log", session=session_id, lines=lines, whole=is_whole)

    async def _followed(self, talker: Talker, session_id: str) -> tuple[list[int], bool]:
        """The lines that a follower was given, and whether it came to the end."""
        data = b""
        while True:
            following = read_logs(
                talker.client, session_id, attempt=1, offset=len(data), follow=True, patience_s=0.0
            )
            try:
                async with aclosing(following):
                    async for piece in following:
                        data += piece.data
                        if self.over.is_set():
                            return _lines_of(data), False
                return _lines_of(data), True
            except Unavailable:
                if self.over.is_set():
                    return _lines_of(data), False
                talker.move()
                await asyncio.sleep(_RETRY_S)

    # The end

    async def _settle(self) -> bool:
        """Nothing is tormented any more: stop what nobody would stop, and wait for all ends; return whether all ended."""
        talker = self._talker("settler")
        asked: set[str] = set()
        ends_at = asyncio.get_running_loop().time() + _OVER_WITHIN_S
        while True:
            live = await self._every(talker, include_ended=False)
            left = [session for session in live if session.state not in ENDED_STATES]
            if not left:
                return True
            for session in left:
                # Whose attempts failed again and again, on full disks, is held until somebody decides.
                is_endless = session.spec.args[0] == "-1" or session.state == pb.SESSION_STATE_HELD
                if session.id not in asked and is_endless:
                    asked.add(session.id)
                    await self._stop(talker, session.id)
            if asyncio.get_running_loop().time() > ends_at:
                stuck = ", ".join(f"{one.name} {state_name(one.state)}" for one in left[:10])
                talker.saw(saw="stuck", sessions=[one.id for one in left], text=stuck)
                return False
            await asyncio.sleep(0.3)

    async def _every(self, talker: Talker, *, include_ended: bool) -> list[pb.Session]:
        chosen = pb.SessionFilter(include_ended=include_ended)

        async def every(client: Client) -> list[pb.Session]:
            return [session async for session in client.sessions.every(chosen)]

        found = await talker.ask("list all", every)
        if found is None:
            raise CommandError("the platform does not answer, though nothing is tormented any more")
        return found

    async def _outcome(self) -> list[dict[str, Any]]:
        """Each session with all that it reported, printed and saved, as the platform tells it."""
        talker = self._talker("judge")
        sessions = await self._every(talker, include_ended=True)
        gate = asyncio.Semaphore(8)

        async def told(session: pb.Session) -> dict[str, Any]:
            async with gate:
                return await self._told(session)

        async with beside_each_other() as group:
            tasks = [group.create_task(told(session)) for session in sessions]
        return [task.result() for task in tasks]

    async def _told(self, session: pb.Session) -> dict[str, Any]:
        client = self._clients[0]
        reports: dict[str, list[int]] = {}
        missing = missing_bytes = 0
        async for answer in read_metrics(client, session.id, names=["loss"], patience_s=PATIENCE_S):
            missing += answer.missing_reports
            for point in answer.points:
                reports.setdefault(f"{point.attempt}.{point.rank}", []).append(int(point.step))
        logs: dict[str, list[int]] = {}
        for attempt in range(1, session.attempt + 1):
            for rank in range(max(1, session.spec.replica_count)):
                data = b""
                pieces = read_logs(
                    client, session.id, attempt=attempt, rank=rank, patience_s=PATIENCE_S
                )
                async for piece in pieces:
                    missing_bytes += piece.missing_bytes
                    data += piece.data
                logs[f"{attempt}.{rank}"] = _lines_of(data)
        saved = await client.checkpoints.every(session.id)
        shown, lost = await self._shown(client, session.id)
        return _session_told(session) | {
            "exit_code": session.end.exit_code,
            "end": pb.Cause.Name(session.end.cause),
            "reports": reports,
            "lines": logs,
            "checkpoints": [one.name for one in saved if not is_lost(one)],
            "checkpoints_lost": [one.name for one in saved if is_lost(one)],
            "media": shown,
            "media_lost": lost,
            "missing": missing,
            "missing_bytes": missing_bytes,
        }

    async def _shown(self, client: Client, session_id: str) -> tuple[dict[str, list[int]], int]:
        """The steps that media tell in their own bytes, by replica, and how many have none."""
        shown: dict[str, list[int]] = {}
        lost = 0
        async for page in pages(client, ListMediaRequest(session=session_id)):
            told = contents(client, page.media, shown_by=page.shown_by)
            found = {(one.attempt, one.rank, one.file): data async for one, data in told}
            for one in page.media:
                data = found.get((one.attempt, one.rank, one.file))
                if data is None:
                    lost += 1
                else:
                    shown.setdefault(f"{one.attempt}.{one.rank}", []).append(int(data))
        return shown, lost


def _lines_of(data: bytes) -> list[int]:
    """Numbers of the program's lines; -1 for a line of another length than it was written with."""
    found = []
    for match in _LINE.finditer(data):
        step = int(match[1])
        is_whole = match[0] == b"line %d %s\n" % (step, b"x" * (step % 50))
        found.append(step if is_whole else -1)
    return found
