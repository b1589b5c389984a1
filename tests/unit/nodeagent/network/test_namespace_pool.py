"""Namespaces that are made ahead: each is given away once, and none is left."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress

import pytest

from nodeagent.network.namespace_pool import READY, NamespacePool
from tests.e2e.programs import wait_for


class Maker:
    """Makes descriptors of pipes in place of namespaces; `gate` keeps it waiting, `fails` has it fail."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []
        """Device and number of each file, which nobody else has while it is open."""
        self.open: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fails: BaseException | None = None
        self.threads: list[int] = []
        self.ended = 0

    def __call__(self) -> Generator[int]:
        self.threads.append(threading.get_ident())
        try:
            while True:
                self.gate.wait(60)
                if self.fails is not None:
                    raise self.fails
                descriptor = os.memfd_create("namespace")
                self.made.append(identity(descriptor))
                yield descriptor
        finally:
            self.ended += 1


def identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def pool(maker: Maker) -> Iterator[NamespacePool]:
    pool = NamespacePool(maker, after_s=0.0)
    yield pool
    maker.gate.set()
    pool.close()


def filled(pool: NamespacePool, maker: Maker) -> None:
    assert pool.take() is None, "nothing is made before somebody asks"
    wait_for(lambda: len(pool._ready) == READY and maker.ended == 1, what="as many are ready")


def test_each_is_given_away_once_and_whoever_takes_it_has_it_alone(
    pool: NamespacePool, maker: Maker
) -> None:
    filled(pool, maker)
    taken: list[int] = []
    turn = threading.Lock()

    def take_many() -> None:
        for _ in range(50):
            one = pool.take()
            if one is not None:
                with turn:
                    taken.append(one)

    threads = [threading.Thread(target=take_many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    identities = [identity(one) for one in taken]
    assert len(taken) >= READY
    assert len(set(identities)) == len(identities)
    assert set(identities) <= set(maker.made)
    for one in taken:
        os.close(one)


def test_more_are_made_once_half_are_gone_and_not_before(pool: NamespacePool, maker: Maker) -> None:
    filled(pool, maker)
    maker.gate.clear()
    for _ in range(READY // 2 - 1):
        os.close(some(pool.take()))
    assert len(maker.threads) == 1
    os.close(some(pool.take()))
    wait_for(lambda: len(maker.threads) == 2, what="more are being made")
    for _ in range(READY // 2):
        os.close(some(pool.take()))
    assert pool.take() is None
    assert len(maker.threads) == 2, "one thread makes them"
    maker.gate.set()
    wait_for(lambda: len(pool._ready) == READY and maker.ended == 2, what="as many are ready")


def test_a_closed_pool_has_nothing_open_and_keeps_nothing(
    pool: NamespacePool, maker: Maker
) -> None:
    filled(pool, maker)
    kept = list(pool._ready)
    maker.gate.clear()
    for _ in range(READY // 2):
        os.close(some(pool.take()))
    wait_for(lambda: len(maker.threads) == 2, what="more are being made")
    pool.close()
    maker.gate.set()  # one is being made while it is closed
    wait_for(lambda: maker.ended == 2, what="that has ended")
    assert pool.take() is None
    assert not pool._ready
    for one in kept:
        with suppress(OSError):
            assert identity(one) not in maker.made
    assert len(maker.threads) == 2


@pytest.mark.parametrize(
    "error", [OSError("no more addresses"), RuntimeError("cannot start new thread"), MemoryError()]
)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_one_that_cannot_be_made_is_tried_again_by_the_next_session(
    pool: NamespacePool, maker: Maker, error: Exception
) -> None:
    maker.fails = error
    assert pool.take() is None
    wait_for(lambda: not any(map(makes, threading.enumerate())), what="its thread has ended")
    maker.fails = None
    assert pool.take() is None
    wait_for(lambda: len(pool._ready) == READY, what="as many are ready")


def test_a_thread_that_cannot_be_started_is_tried_again_by_the_next_session(
    pool: NamespacePool, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert pool.take() is None, "the session makes its own"
    assert pool.take() is None
    wait_for(lambda: len(pool._ready) == READY, what="as many are ready")


def makes(thread: threading.Thread) -> bool:
    return thread.name == "nsml-networks"


def some(descriptor: int | None) -> int:
    assert descriptor is not None
    return descriptor
