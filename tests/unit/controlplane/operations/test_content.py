"""What is remembered of callers, and what their uploads hold: nobody's is at another's cost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest

from controlplane.domain.errors import NotFound
from controlplane.domain.identity import User, UserCaller
from controlplane.history.sqlite import open_history
from controlplane.objects.memory import MemoryObjects
from controlplane.operations.content import Content
from controlplane.operations.state import LiveState
from nsml.clock import inline
from nsml.content.digests import digest_of
from nsml.content.manifest import ChunkRef, Entry, build
from tests.unit.controlplane.workbench import HandClock

KIM = UserCaller(user=User(name="kim"))
EVE = UserCaller(user=User(name="eve"))
MANY = 5_000


@pytest.fixture
async def content() -> AsyncIterator[Content]:
    clock = HandClock()
    history = await open_history(":memory:", clock=clock, run=inline)
    state = LiveState(None, clock)  # type: ignore[arg-type]
    yield Content(objects=MemoryObjects(clock), history=history, state=state)
    await history.close()


async def parts(blobs: Iterable[bytes]) -> AsyncIterator[tuple[str, bytes, bool]]:
    for data in blobs:
        yield digest_of(data), data, True


def manifest(name: str) -> bytes:
    chunk = ChunkRef(digest_of(b"x"), 1)
    return build([Entry(path=name, mode=0o644, size=1, chunks=(chunk,))]).encode()


async def test_what_one_sent_is_his_whatever_others_send(content: Content) -> None:
    mine = manifest("mine")
    await content.put(KIM, parts([b"x", mine]))
    await content.put(EVE, parts(manifest(f"f{number}") for number in range(MANY)))
    assert await content.may_use(KIM, digest_of(mine))
    # Of each there is a bound: what was sent long ago is to be sent again.
    assert await content.may_use(EVE, digest_of(manifest(f"f{MANY - 1}")))
    assert not await content.may_use(EVE, digest_of(manifest("f0")))


async def test_what_one_was_shown_he_reads_whatever_others_are_shown(content: Content) -> None:
    mine = manifest("mine")
    root = digest_of(mine)
    await content.put(EVE, parts([mine]))
    content.show(KIM, root)
    for number in range(MANY):
        content.show(EVE, digest_of(b"%d" % number))
    assert [one async for one in content.read(KIM, root, ())] == [(root, mine)]
    with pytest.raises(NotFound):
        await anext(content.read(EVE, digest_of(b"0"), ()))
