"""One metric, from `nsml.report` in a program to a cell of the dashboard's table, on a real platform."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from nsml.client import contexts
from nsml.client.connect import connect
from nsml.common.clock import SystemClock
from tests.e2e.programs import write_program
from tests.unit.tui.conftest import said, until
from tui.app import Dashboard

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.in_process import Platform

PROGRAM = """\
import time
import nsml

for step in range(1, 10_000):
    nsml.report(summary=True, step=step, val__score=1000 + step)
    time.sleep(0.2)
"""


async def test_reports_come_to_their_cell_by_themselves(platform: Platform, tmp_path: Path) -> None:
    platform.nsml("run", "-g", "0", cwd=write_program(tmp_path / "reports", PROGRAM))
    [name] = platform.nsml("ps", "-o", "name").stdout.split()
    context = contexts.choose(contexts.load(platform.environment), platform.environment)
    dashboard = Dashboard(partial(connect, context), clock=SystemClock(), platform=context.name)
    async with dashboard.run_test(size=(120, 40)) as pilot:
        seen: dict[int, int] = {}
        """Which score the table showed, of which revision of the session."""

        def look() -> bool:
            [line, *_] = [line for line in said(dashboard).split("\n") if name in line] or [""]
            row = dashboard.model.row_named(name)
            if row is not None and (found := re.search(r"val/score=([\d.,]+)", line)):
                seen[int(found[1].replace(",", ""))] = row.session.revision
            return len(seen) >= 4

        await until(pilot, look)
    assert list(seen) == sorted(seen)
    # Nothing else of it changed: nobody told of a change to which the summary was added.
    assert len(set(list(seen.values())[-3:])) == 1
