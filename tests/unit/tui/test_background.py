"""Work in the background."""

import asyncio
import gc
import warnings
from pathlib import Path

import pytest
from textual.app import App
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Static
from textual.worker import WorkerFailed

import tui
from tui.background import in_background


async def test_what_is_replaced_before_its_turn_was_never_begun():
    done = []

    async def first():
        done.append("first")

    async def second():
        done.append("second")

    app = App()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with app.run_test() as pilot:
            in_background(app, "one", first)
            in_background(app, "one", second)
            while "second" not in done:
                await pilot.pause()
            in_background(app, "one", first)
        gc.collect()
    assert done.count("second") == 1


class Part(Static):
    """A part of a screen, after which work on that screen goes on."""

    def on_unmount(self):
        self.screen.is_gone.set()


class Working(Screen):
    """Work that shows what it found in a part that is gone by then."""

    def __init__(self):
        super().__init__()
        self.is_gone = asyncio.Event()
        self.missed = []

    def compose(self):
        yield Part(classes="state")

    def on_mount(self):
        in_background(self, "work", self._work)

    async def _work(self):
        await self.is_gone.wait()
        try:
            self.query_one(".state", Static).update("done")
        except NoMatches as error:
            self.missed.append(error)
            raise


@pytest.mark.parametrize("is_left", [True, False])
async def test_work_of_a_screen_that_is_being_removed_misses_its_parts_quietly(is_left):
    screen = Working()
    async with App().run_test() as pilot:
        await pilot.app.push_screen(screen)
        await pilot.pause()
        if is_left:
            await pilot.app.pop_screen()
    assert screen.missed


async def test_work_that_misses_a_part_of_a_screen_that_stays_fails():
    screen = Working()

    async def lose_a_part():
        async with App().run_test() as pilot:
            await pilot.app.push_screen(screen)
            await screen.query_one(".state").remove()
            await pilot.pause()

    with pytest.raises(WorkerFailed):
        await lose_a_part()
    assert screen.missed


def test_nothing_else_begins_what_may_never_have_its_turn():
    [folder] = tui.__path__
    found = [one.name for one in Path(folder).rglob("*.py") if "run_worker(" in one.read_text()]
    assert found == ["background.py"]
