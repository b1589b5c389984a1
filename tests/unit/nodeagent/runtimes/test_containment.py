"""Whether an agent starts with containers: tried, waited for where it had them before, and remembered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from nodeagent.engine.client import Engine
from nodeagent.runtimes.containment import (
    COMES_WITHIN_S,
    EngineAway,
    NoContainers,
    NoDefaultImage,
    containers_at_start,
    probe_containers,
    tried_in_time,
)
from nodeagent.runtimes.docker import EnginePlace
from nsml.common.clock import inline
from tests.simulation.virtual_time import VirtualClock, run

if TYPE_CHECKING:
    from nodeagent.runtimes.launch import Machine

PLACE = cast("EnginePlace", object())
AWAY = EngineAway("no engine answers at /s")
NO_IMAGE = NoDefaultImage("there is no image nsml-base:latest")


@dataclass
class Start:
    """One start after another in a data folder; the last outcome of a probe repeats."""

    data: Path
    told: list[tuple[str, float]] = field(default_factory=list)
    tries: int = 0
    took_s: float = 0.0

    def __call__(self, *outcomes: EnginePlace | Exception) -> EnginePlace:
        self.told.clear()
        self.tries = 0

        async def start() -> EnginePlace:
            clock = VirtualClock(asyncio.get_running_loop())
            try:
                return await containers_at_start(
                    self._probe(outcomes),
                    self.data,
                    awaits=lambda *said: self.told.append(said),
                    clock=clock,
                    run_long=inline,
                )
            finally:
                self.took_s = clock.monotonic()

        return run(start())

    def _probe(self, outcomes: Sequence[EnginePlace | Exception]) -> Callable[[], EnginePlace]:
        def probe() -> EnginePlace:
            outcome = outcomes[min(self.tries, len(outcomes) - 1)]
            self.tries += 1
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return probe


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path)


def test_a_machine_that_never_had_containers_is_not_kept_waiting(start: Start) -> None:
    for _ in range(2):
        with pytest.raises(EngineAway):
            start(AWAY, PLACE)
        assert (start.tries, start.took_s, start.told) == (1, 0, [])


def test_an_engine_that_comes_up_after_its_agent_is_waited_for(start: Start) -> None:
    assert start(PLACE) is PLACE
    assert start(AWAY, AWAY, AWAY, PLACE) is PLACE
    assert 0 < start.took_s < COMES_WITHIN_S
    assert start.told == [(str(AWAY), COMES_WITHIN_S)], "once"
    assert start(AWAY, PLACE) is PLACE, "and the next time again"


def test_an_engine_that_does_not_come_is_waited_for_once(start: Start) -> None:
    start(PLACE)
    with pytest.raises(EngineAway):
        start(AWAY)
    assert COMES_WITHIN_S <= start.took_s < COMES_WITHIN_S + 30
    with pytest.raises(EngineAway):
        start(AWAY)
    assert start.took_s == 0


def test_what_waiting_does_not_mend_is_not_waited_for(start: Start) -> None:
    start(PLACE)
    with pytest.raises(NoContainers, match="nsml-base"):
        start(AWAY, NO_IMAGE, PLACE)
    assert start.tries == 2


def test_an_engine_that_accepts_and_does_not_answer_is_away() -> None:
    async def never(_work: Callable[[], Any]) -> Any:
        await asyncio.Event().wait()

    async def try_it() -> None:
        with pytest.raises(EngineAway, match="within 20 s"):
            await tried_in_time(lambda: PLACE, never)

    work: Coroutine[Any, Any, None] = try_it()
    run(work)


def test_an_image_that_is_missing_is_pulled_before_anything_is_decided() -> None:
    outcomes: list[EnginePlace | Exception] = [NO_IMAGE, PLACE]
    pulls: list[threading.Event] = []

    def probe() -> EnginePlace:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def try_it() -> None:
        assert await tried_in_time(probe, inline, pull=pulls.append) is PLACE
        assert [one.is_set() for one in pulls] == [True], "nobody waits for it any more"
        outcomes[:] = [AWAY]
        with pytest.raises(EngineAway):
            await tried_in_time(probe, inline, pull=pulls.append)
        assert len(pulls) == 1, "no image mends that"
        outcomes[:] = [NO_IMAGE, NO_IMAGE]
        with pytest.raises(NoDefaultImage):
            await tried_in_time(probe, inline, pull=pulls.append)

    run(try_it())


def test_a_pull_ends_when_nobody_waits_for_it_any_more() -> None:
    given: list[threading.Event] = []

    def missing() -> EnginePlace:
        raise NO_IMAGE

    async def try_it() -> None:
        pulls = asyncio.Event()

        async def own_thread(work: Callable[[], Any]) -> Any:
            done = work()
            pulls.set()
            await asyncio.Event().wait()
            return done

        waiting = asyncio.create_task(tried_in_time(missing, own_thread, pull=given.append))
        await pulls.wait()
        assert not given[0].is_set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert given[0].is_set()

    run(try_it())


@pytest.mark.parametrize(
    ("options", "filters"),
    [
        (["name=seccomp,profile=default"], True),
        (["name=apparmor", "name=seccomp,profile=builtin", "name=rootless"], True),
        (["name=seccomp,profile=/etc/docker/ours.json"], True),
        (["name=seccomp,profile=unconfined"], False),
        (["name=apparmor"], False),
        ([], False),
    ],
)
def test_an_engine_that_filters_no_calls_gets_no_sessions(
    tmp_path: Path, options: list[str], *, filters: bool
) -> None:
    class Sdk:
        class api:  # noqa: N801 - as Docker's client has it
            api_version = "1.41"

        class networks:  # noqa: N801
            @staticmethod
            def list() -> list[object]:
                return []

        @staticmethod
        def info() -> dict[str, object]:
            return {"SecurityOptions": options}

    engine = Engine(tmp_path / "s")
    engine._client = Sdk
    assert engine.facts().filters_calls is filters
    reason = "no docker-init" if filters else "without a seccomp profile"
    with pytest.raises(NoContainers, match=reason):
        probe_containers(
            engine,
            cast("Machine", SimpleNamespace(open_files=1)),
            tmp_path / "trial",
            node="n",
            mark="m",
            default_image="",
            most_open_files=1,
        )
