"""Work in the background."""

import gc
import warnings
from pathlib import Path

from textual.app import App

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


def test_nothing_else_begins_what_may_never_have_its_turn():
    [folder] = tui.__path__
    found = [one.name for one in Path(folder).rglob("*.py") if "run_worker(" in one.read_text()]
    assert found == ["background.py"]
