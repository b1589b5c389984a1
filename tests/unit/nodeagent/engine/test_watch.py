"""An engine that is away: whose fault that is, who waits for it, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodeagent.engine.client import Engine
from nodeagent.engine.images import ended_build, stored_image
from nodeagent.engine.watch import ENDS_WITH_ENGINE, EngineWatch
from nodeagent.folders import ReplicaFolder
from nodeagent.replica.preparation_log import PreparationLog
from nodeagent.replica.preparation_steps import Draft, ImageHook, PreparationFailed
from nsml.common.clock import SystemClock, in_own_thread, in_thread
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import sessions_pb2 as sessions
from tests.contract.test_runtime_contract import until
from tests.support.fake_engine import IMAGE, FakeEngine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with FakeEngine(tmp_path / "engine.sock") as engine:
        yield engine


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOKS_EVERY_S", 0.01), ("AGAIN_S", 0.01), ("CLOSED_AFTER_S", 0.0)):
        monkeypatch.setattr(f"nodeagent.engine.watch.{name}", seconds)


class Watched:
    """A watch at work; `changes` is what it offered, one after another."""

    def __init__(self, engine: FakeEngine) -> None:
        self.fake = engine
        self.client = Engine(engine.socket)
        self.watch = EngineWatch(self.client, clock=SystemClock(), run_long=in_own_thread)
        self.changes: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Watched]:
        def changed() -> None:
            self.changes.put_nowait((bool(self.watch.not_ready), self.watch.note))

        work = asyncio.ensure_future(self.watch.run(changed))
        yield self
        work.cancel()
        self.client.close()

    def leave(self) -> None:
        self.fake.socket.rename(self.fake.socket.with_name("away"))

    def return_(self) -> None:
        self.fake.socket.with_name("away").rename(self.fake.socket)


async def test_a_node_is_not_ready_while_its_engine_is_away_and_ready_by_itself(
    engine: FakeEngine,
) -> None:
    async with Watched(engine).running() as one:
        one.leave()
        assert await one.changes.get() == (True, "")
        assert "there is no such socket" in one.watch.not_ready
        one.return_()
        assert await one.changes.get() == (False, "")


async def test_an_engine_that_hangs_is_away_whether_or_not_it_answers_pings(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.engine.watch.ANSWERS_WITHIN_S", 0.05)
    async with Watched(engine).running() as one:
        engine.hold("list")  # pings are answered
        assert await one.changes.get() == (True, "")
        assert "does not answer within 0.05 s" in one.watch.not_ready
        monkeypatch.setattr("nodeagent.engine.watch.ANSWERS_WITHIN_S", 20.0)
        engine.let_go("list")
        assert await one.changes.get() == (False, "")


async def test_what_a_restart_ends_is_asked_anew_when_it_is_back(engine: FakeEngine) -> None:
    async with Watched(engine).running() as one:
        assert one.client.facts().keeps_containers
        one.leave()
        engine.keeps_containers = False
        assert await one.changes.get() == (True, "")
        one.return_()
        assert await one.changes.get() == (False, ENDS_WITH_ENGINE)


class OfEngine:
    """Images that are there, by the engine's word."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def resolve(self, _asked: str, _wanted: str | None) -> tuple[str, str]:
        return "i", ""

    def has_default_packages(self, *_: object) -> bool:
        return False

    def provide(self, reference: str, *_: object, **__: object) -> str:
        return stored_image(self._engine, reference).id


class Nameless:
    def of(self, _image_id: str, **_: object) -> dict[str, bytes]:
        return {}


def hook_of(one: Watched) -> ImageHook:
    return ImageHook(
        OfEngine(one.client),  # type: ignore[arg-type]
        Nameless(),  # type: ignore[arg-type]
        in_thread,
        lambda **_: lambda _: None,
        one.watch,
    )


def draft_of(folder: Path, waits: list[str]) -> Draft:
    replica = ReplicaFolder(folder / "s")
    replica.create()
    order = pb.Assignment(owner="kim")
    return Draft(order, replica, PreparationLog(replica, lambda: None), waits=waits.append)


async def test_a_preparation_waits_for_the_engine_and_goes_on(
    engine: FakeEngine, tmp_path: Path
) -> None:
    waits: list[str] = []
    draft = draft_of(tmp_path, waits)
    async with Watched(engine).running() as one:
        one.leave()
        preparing = asyncio.ensure_future(hook_of(one).prepare(draft))
        assert (await one.changes.get())[0]
        await until(lambda: waits != [])
        one.return_()
        await preparing
    assert draft.image == IMAGE
    assert waits[0].startswith("waits for the container engine of its node: no engine answers")
    assert waits[-1] == ""
    assert b"nsml: waits for the container engine" in draft.folder.output.read_bytes()


async def test_a_preparation_that_waits_in_vain_is_the_nodes_fault(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.engine.watch.COMES_WITHIN_S", 0.05)
    async with Watched(engine).running() as one:
        one.leave()
        with pytest.raises(PreparationFailed) as failed:
            await hook_of(one).prepare(draft_of(tmp_path, []))
        assert one.watch.not_ready, "nothing is placed here again at once"
    assert failed.value.cause == sessions.CAUSE_NODE_REFUSED
    assert "no engine answers" in str(failed.value)


class RestartedEngine:
    """Away at the first look at a build's container, and back at the next."""

    def __init__(self, socket: Path, *, was_away: bool) -> None:
        self.socket = socket
        self.sdk = SimpleNamespace(api=self)
        self._is_away = was_away

    def inspect_container(self, _name: str) -> dict[str, dict[str, object]]:
        if self._is_away:
            self._is_away = False
            raise ConnectionRefusedError
        return {"State": {"Running": False, "ExitCode": 143}}


@pytest.mark.parametrize("was_away", [False, True])
def test_a_build_that_its_engine_ended_is_told_from_one_that_failed(
    tmp_path: Path, *, was_away: bool
) -> None:
    engine = RestartedEngine(tmp_path / "s", was_away=was_away)
    state, restarted = ended_build(engine, "build", lambda: None)  # type: ignore[arg-type]
    assert (state["ExitCode"], restarted) == (143, was_away)
