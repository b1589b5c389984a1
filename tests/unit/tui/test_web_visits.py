"""What ends a visit: that nobody is there any more, and what a page never says."""

import asyncio
import contextlib
from types import SimpleNamespace

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
    await visits._hear(Page('["focus"]'), program)
    assert program.why == visits.UNUSED


async def test_who_types_puts_its_end_off_and_a_page_that_has_the_focus_does_not(monkeypatch):
    put_off = []

    @contextlib.asynccontextmanager
    async def patience(seconds):
        yield SimpleNamespace(reschedule=put_off.append)

    known = SimpleNamespace(timeout=patience, get_running_loop=asyncio.get_running_loop)
    monkeypatch.setattr(visits, "asyncio", known)
    program = Program()
    await visits._hear(Page('["focus"]', '["stdin", "j"]', '["stdin", "k"]', "no more"), program)
    assert program.typed == ["focus", b"j", b"k"]
    assert len(put_off) == 2


@pytest.mark.parametrize("words", ["", "{}", '["exec", "sh"]', '["stdin", {"a": 1}]'])
async def test_what_a_page_never_says_ends_its_visit(words):
    program = Program()
    await visits._hear(Page('["stdin", "j"]', words), program)
    assert (program.why, program.typed) == (visits.NOT_UNDERSTOOD, [b"j"])


async def test_a_page_that_is_gone_ends_its_visit():
    class Gone:
        async def receive_text(self):
            raise WebSocketDisconnect(1001)

    async with asyncio.timeout(10):
        await visits._hear(Gone(), Program())
