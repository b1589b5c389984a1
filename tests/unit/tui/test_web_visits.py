"""What ends a visit: that nobody is there any more, and what a page never says."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import ClassVar

import pytest
from starlette.websockets import WebSocketDisconnect

from tui.web import visits


class Page:
    """Says what it is to say, and no more."""

    def __init__(self, *words):
        self._words = list(words)

    async def receive_text(self):
        if not self._words:
            await asyncio.Event().wait()
        return self._words.pop(0)


class Program(SimpleNamespace):
    def __init__(self):
        super().__init__(why=visits.DIED, typed=[])

    async def send_bytes(self, data):
        self.typed.append(data)

    async def focus(self):
        self.typed.append("focus")


async def test_a_visit_ends_when_nobody_does_anything(monkeypatch):
    monkeypatch.setattr(visits, "UNUSED_S", 0.02)
    program = Program()
    await visits._receive(Page('["focus"]'), program)
    assert program.why == visits.UNUSED


async def test_who_types_puts_its_end_off_and_a_page_that_has_the_focus_does_not(monkeypatch):
    put_off = []

    @contextlib.asynccontextmanager
    async def patience(seconds):
        yield SimpleNamespace(reschedule=put_off.append)

    known = SimpleNamespace(timeout=patience, get_running_loop=asyncio.get_running_loop)
    monkeypatch.setattr(visits, "asyncio", known)
    program = Program()
    await visits._receive(Page('["focus"]', '["stdin", "j"]', '["stdin", "k"]', "no more"), program)
    assert program.typed == ["focus", b"j", b"k"]
    assert len(put_off) == 2


@pytest.mark.parametrize("words", ["", "{}", '["exec", "sh"]', '["stdin", {"a": 1}]'])
async def test_what_a_page_never_says_ends_its_visit(words):
    program = Program()
    await visits._receive(Page('["stdin", "j"]', words), program)
    assert (program.why, program.typed) == (visits.NOT_UNDERSTOOD, [b"j"])


async def test_a_page_that_is_gone_ends_its_visit():
    class Gone:
        async def receive_text(self):
            raise WebSocketDisconnect(1001)

    async with asyncio.timeout(60):
        await visits._receive(Gone(), Program())


async def test_many_that_come_at_once_are_as_few_as_others(monkeypatch):
    running, most = set(), []

    class Slow:
        def __init__(self, *_):
            self.why = visits.DIED
            self.ended = asyncio.Event()

        async def start(self, *_):
            await asyncio.sleep(0)
            running.add(self)
            most.append(len(running))
            await asyncio.sleep(0)

        async def gone(self):
            await self.ended.wait()

        async def stop(self):
            await asyncio.sleep(0)
            running.discard(self)
            self.ended.set()

    class Browser(Page):
        query_params: ClassVar = {}

        async def accept(self):
            pass

        async def close(self, why):
            closed.append(why)

    closed = []
    monkeypatch.setattr(visits, "Visit", Slow)
    page = visits.Visits((), {}, {})
    coming = [asyncio.ensure_future(page.receive(Browser())) for _ in range(30)]
    async with asyncio.timeout(60):
        await asyncio.wait(coming[: -visits.MOST_VISITS], return_when=asyncio.ALL_COMPLETED)
        assert closed == [visits.REPLACED] * (30 - visits.MOST_VISITS)
        assert max(most) == visits.MOST_VISITS
        await page.stop()
        await asyncio.gather(*coming)
    assert not running


async def test_of_what_a_program_says_of_itself_the_first_is_kept_and_does_nothing():
    said = asyncio.StreamReader()
    said.feed_data(b"died\x1b]0;title\x07\x1b[2J\xc2\x9b\n" + b"x" * (4 * visits.MOST_WORDS))
    said.feed_eof()
    words, kept = visits._Words(said), b""
    while piece := await words.read(4096):
        kept += piece
    assert said.at_eof()
    assert kept.startswith(b"died")
    assert not any(control in kept.decode() for control in "\x1b\x07\x9b")
    assert visits.MOST_WORDS - 100 < kept.count(b"x") <= visits.MOST_WORDS
