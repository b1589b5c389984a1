"""Draw docs/nsml-tui.svg: the dashboard, with the demo at one moment.

python -m tools.dashboard_picture            write it
python -m tools.dashboard_picture --check    fail when it is out of step
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from textual.pilot import Pilot

from nsml.client.calls import Client
from nsml.common.clock import SystemClock
from tui.app import Dashboard
from tui.demo.story import Demo
from tui.screens.sessions import SessionsScreen
from tui.shell import AGES_EVERY, REPAINTS_A_SECOND
from tui.story import Player

TARGET = Path(__file__).resolve().parent.parent / "docs" / "nsml-tui.svg"
SIZE: Final = (120, 40)
AT: Final = 1_767_607_200.0
"""The moment that is shown, Unix seconds."""
CHOSEN: Final = "ada/leaves/50 baseline, warm-up 5 %"
"""Name and memo of the session under the cursor."""
WITHIN_S: Final = 60.0
STEADY: Final = 2 * AGES_EVERY + 1
"""Repaints that show the same: everything was drawn anew among them."""
_FONTS: Final = "'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace"


class Stopped(SystemClock):
    """A clock by which no story goes on."""

    def monotonic(self) -> float:
        """Always the same."""
        return 0.0


async def drawn() -> str:
    """The dashboard as Textual draws it."""
    player = Player(Demo(AT), Stopped())
    app = Dashboard(_no_platform, clock=player, platform=player.story.platform, player=player)
    async with app.run_test(size=SIZE) as pilot:
        await _until(pilot, lambda: _current(app) is not None)
        while _current(app) != CHOSEN:
            before = _current(app)
            await pilot.press("down")
            await _until(pilot, lambda: _current(app) != before)  # noqa: B023 - at once
        await _until(pilot, lambda: bool(app.model.shown.groups and app.model.shown.lines))
        # What was received last is drawn by the next beat; what nothing changes any more is the picture.
        drawings: list[str] = []
        while len(drawings) < STEADY or len({*drawings[-STEADY:]}) > 1:
            await pilot.pause(1 / REPAINTS_A_SECOND)
            drawings.append(app.export_screenshot(title="nsml-tui --demo"))
        return drawings[-1]


def _current(app: Dashboard) -> str | None:
    """Whose turn it is, as the list tells it."""
    screen = app.screen
    if not isinstance(screen, SessionsScreen) or not screen.is_mounted:
        return None  # it has no list yet
    session = screen.table.current
    return None if session is None else f"{session.name} {session.memo}"


async def _until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > ends_at:
            raise TimeoutError(f"the dashboard was not drawn within {WITHIN_S:g}s")
        await pilot.pause(0.05)


def _no_platform() -> AbstractAsyncContextManager[Client]:
    raise RuntimeError("a story has no platform")


def self_contained(svg: str) -> str:
    """The picture with the fonts of whoever looks at it, and nothing that is fetched."""
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family:[^;]*;", f"font-family: {_FONTS};", svg)


def main() -> None:
    """Write the picture, or check it."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    for setting in ("NO_COLOR", "TEXTUAL_THEME", "COLORTERM"):
        os.environ.pop(setting, None)
    svg = self_contained(asyncio.run(drawn()))
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(svg)
    elif not TARGET.is_file() or TARGET.read_text() != svg:
        sys.exit(
            "docs/nsml-tui.svg is not what the dashboard looks like: python -m tools.dashboard_picture draws it"
        )


if __name__ == "__main__":
    main()
