"""One build for all who wait, all of its output for each of them, and whose it is when one leaves."""

from __future__ import annotations

import fcntl
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.environments.builds import Builds, LastWords
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.environments.builds import Say

KEY = "abc"


def until(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@dataclass
class Site:
    """A thing that is built, and those who want it."""

    folder: Path
    pool: ThreadPoolExecutor
    built: int = 0
    failure: str = ""
    goes_on: threading.Event = field(default_factory=threading.Event)
    is_there: threading.Event = field(default_factory=threading.Event)

    def build(self, say: Say) -> None:
        self.built += 1
        say(b"begun\n")
        assert self.goes_on.wait(60)
        say(b"\xff\x00 half")
        say(b" done\n")
        if self.failure:
            raise EnvironmentFailed(self.failure)
        self.is_there.set()

    def ask(self, said: bytearray, cancelled: threading.Event | None = None) -> Future[None]:
        return self.pool.submit(
            Builds(self.folder).provide,
            KEY,
            is_there=self.is_there.is_set,
            build=self.build,
            say=said.extend,
            cancelled=cancelled,
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ThreadPoolExecutor(16) as pool:
        yield Site(tmp_path / "builds", pool)


def test_it_is_built_once_and_all_hear_all_of_it(site: Site) -> None:
    heard = [bytearray() for _ in range(12)]
    asked = [site.ask(said) for said in heard]
    until(lambda: all(said == b"begun\n" for said in heard))
    site.goes_on.set()
    for one in asked:
        one.result(60)
    assert site.built == 1
    assert {bytes(said) for said in heard} == {b"begun\n\xff\x00 half done\n"}
    assert [path.suffix for path in site.folder.iterdir()] == [".lock"]


def test_what_is_there_says_nothing(site: Site) -> None:
    site.is_there.set()
    said = bytearray()
    site.ask(said).result(60)
    assert (said, site.built) == (b"", 0)


def test_one_failure_is_everybodys(site: Site) -> None:
    site.failure = "no such package"
    heard = [bytearray() for _ in range(8)]
    asked = [site.ask(said) for said in heard]
    until(lambda: all(said == b"begun\n" for said in heard))
    site.goes_on.set()
    for one, said in zip(asked, heard, strict=True):
        with pytest.raises(EnvironmentFailed, match=r"^no such package$"):
            one.result(60)
        assert said.endswith(b"done\n")
    assert site.built == 1
    site.failure = ""
    site.ask(bytearray()).result(60)
    assert site.built == 2


def test_a_waiter_leaves_and_the_build_goes_on(site: Site) -> None:
    first = site.ask(bytearray())
    until(lambda: site.built)
    cancelled = threading.Event()
    waiter = site.ask(bytearray(), cancelled)
    cancelled.set()
    with pytest.raises(EnvironmentCancelled):
        waiter.result(60)
    site.goes_on.set()
    first.result(60)


def test_when_the_builder_leaves_another_builds(site: Site) -> None:
    cancelled = threading.Event()

    def leave(say: Say) -> None:
        say(b"mine\n")
        assert cancelled.wait(60)
        raise EnvironmentCancelled

    builder = site.pool.submit(
        Builds(site.folder).provide,
        KEY,
        is_there=lambda: False,
        build=leave,
        say=lambda _: None,
        cancelled=cancelled,
    )
    until((site.folder / f"{KEY}.log").exists)
    said = bytearray()
    waiter = site.ask(said)
    until(lambda: said == b"mine\n")
    cancelled.set()
    with pytest.raises(EnvironmentCancelled):
        builder.result(60)
    site.goes_on.set()
    waiter.result(60)
    assert bytes(said) == b"mine\nbegun\n\xff\x00 half done\n"


def test_who_still_waits_hears_the_next_builder_too(site: Site) -> None:
    cancelled = threading.Event()
    first = bytearray()

    def leave(say: Say) -> None:
        say(b"mine\n")
        assert cancelled.wait(60)
        raise EnvironmentCancelled

    builder = site.pool.submit(
        Builds(site.folder).provide, KEY, is_there=lambda: False, build=leave, say=first.extend
    )
    until(lambda: first == b"mine\n")
    heard = [bytearray(), bytearray()]
    waiters = [site.ask(said) for said in heard]
    until(lambda: all(said == b"mine\n" for said in heard))
    cancelled.set()
    with pytest.raises(EnvironmentCancelled):
        builder.result(60)
    until(lambda: all(said == b"mine\nbegun\n" for said in heard))
    site.goes_on.set()
    for waiter in waiters:
        waiter.result(60)
    assert site.built == 1
    assert {bytes(said) for said in heard} == {b"mine\nbegun\n\xff\x00 half done\n"}


def test_a_lock_that_was_removed_is_nobodys(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = Builds(site.folder)
    site.folder.mkdir()
    real = fcntl.flock

    def removed_before(descriptor: int, how: int) -> None:
        builds.forget(KEY)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with builds.unused(KEY) as is_free:
        assert not is_free
    monkeypatch.setattr(fcntl, "flock", real)
    with builds.unused(KEY) as is_free:
        assert is_free


def test_many_who_look_do_not_keep_each_other_from_building(tmp_path: Path) -> None:
    """What is to be had of a slow engine: the looks of all overlap, and somebody has to build."""
    builds, begun, stop = Builds(tmp_path), threading.Event(), threading.Event()
    rng = random.Random(3)

    def is_there() -> bool:
        time.sleep(rng.uniform(0.02, 0.06))
        return begun.is_set()

    def ask() -> None:
        time.sleep(rng.uniform(0, 0.2))
        with suppress(EnvironmentCancelled):
            builds.provide(
                KEY,
                is_there=is_there,
                build=lambda _: begun.set(),
                say=lambda _: None,
                cancelled=stop,
            )

    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(ask) for _ in range(50)]
        try:
            assert begun.wait(60)
        finally:
            stop.set()
        for one in asked:
            one.result()


def test_another_process_that_is_killed_hands_the_build_on(site: Site) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from nodeagent.environments.builds import Builds\n"
        "def build(say):\n"
        "    say(b'of the dead\\n'); print('ready', flush=True); time.sleep(600)\n"
        "Builds(pathlib.Path(sys.argv[1])).provide(\n"
        "    sys.argv[2], is_there=lambda: False, build=build, say=lambda piece: None)\n"
    )
    command = [sys.executable, "-c", program, str(site.folder), KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        said = bytearray()
        waiter = site.ask(said)
        until(lambda: said == b"of the dead\n")
        site.goes_on.set()
        assert not site.built
        process.kill()
        waiter.result(60)
    assert site.built == 1
    assert bytes(said) == b"of the dead\nbegun\n\xff\x00 half done\n"
    late = bytearray()
    site.ask(late).result(60)
    assert late == b""


def test_what_a_dead_builder_left_is_not_told_to_who_comes_later(site: Site) -> None:
    site.folder.mkdir()
    (site.folder / f"{KEY}.log").write_text('{"said": "old"}\n{"fai')
    site.goes_on.set()
    said = bytearray()
    site.ask(said).result(60)
    assert b"old" not in said


def test_it_is_not_free_while_it_is_built_or_taken(site: Site) -> None:
    builds = Builds(site.folder)
    asked = site.ask(bytearray())
    until(lambda: site.built)
    with builds.unused(KEY) as is_free:
        assert not is_free
    site.goes_on.set()
    asked.result(60)
    with builds.unused(KEY) as is_free:
        assert is_free
        waiter = site.ask(bytearray())
        time.sleep(0)  # it finds the lock held, or removed; both must lead to the new one
        # as the product has it: who finds no lock any more must not find the thing
        site.is_there.clear()
        builds.forget(KEY)
    waiter.result(60)
    assert site.built == 2


def test_a_build_cannot_fill_the_log(site: Site) -> None:
    said = bytearray()

    def shout(say: Say) -> None:
        for _ in range(100):
            say(b"x" * 1_000_000)
        site.is_there.set()

    Builds(site.folder).provide(KEY, is_there=site.is_there.is_set, build=shout, say=said.extend)
    assert 8 << 20 <= len(said) < 9 << 20
    assert said.endswith(b"the rest is left out\n")


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (b"a\nb\nERROR: first\nhint\nERROR: second\nbye\n", "first; second"),
        (b"E: Unable to locate package nope\n", "Unable to locate package nope"),
        (b"one\ntwo\n\nthree\nfour", "two; three; four"),
        (b"", "nothing said"),
        (b"ERROR: " + b"x" * 100_000, "x" * 293 + "..."),
        (b"\xff\n", "\ufffd"),
    ],
)
def test_the_last_words_say_what_is_wrong(output: bytes, reason: str) -> None:
    words = LastWords(lambda _: None)
    for start in range(0, len(output), 7):
        words(output[start : start + 7])
    assert words.reason("nothing said") == reason


def test_this_file_leaves_no_descriptors(site: Site) -> None:
    site.goes_on.set()
    site.ask(bytearray()).result(60)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        site.is_there.clear()
        site.ask(bytearray()).result(60)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
