"""Of the first line what has no room is left out whole, the least worth first."""

import re

import pytest

from nsml.common.text import width
from tests.unit.tui.conftest import said, until
from tests.unit.tui.story import demo
from tui.appearance import Appearance
from tui.headline import HeadlineItem, headline

PARTS = (
    HeadlineItem("nsml", worth=0),
    HeadlineItem("garden", gap="  ", is_name=True),
    HeadlineItem("● live", gap="  "),
    HeadlineItem("leader garden-1", worth=1, gap="  "),
    HeadlineItem("GPUs 38/40 simulated", worth=3, short="GPUs 38/40 sim"),
    HeadlineItem("66% busy", worth=2, gap=" "),
    HeadlineItem("queue 8", worth=4),
)


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (100, " nsml  garden  ● live  leader garden-1   GPUs 38/40 simulated 66% busy   queue 8"),
        (80, " nsml  garden  ● live  leader garden-1   GPUs 38/40 simulated 66% busy   queue 8"),
        (79, " nsml  garden  ● live  leader garden-1   GPUs 38/40 sim 66% busy   queue 8"),
        (73, " garden  ● live  leader garden-1   GPUs 38/40 sim 66% busy   queue 8"),
        (60, " garden  ● live   GPUs 38/40 sim 66% busy   queue 8"),
        (50, " garden  ● live   GPUs 38/40 sim   queue 8"),
        (30, " garden  ● live   queue 8"),
        (20, " garden  ● live"),
        (10, " garden  …"),
    ],
)
def test_what_is_worth_least_has_to_go(cells, line):
    assert headline(PARTS, cells).plain == line


def test_whatever_room_there_is_it_fits_and_what_stays_is_whole():
    whole = re.compile(
        " (nsml  )?garden  ● live(  leader garden-1)?"
        "(   GPUs 38/40 sim(ulated)?)?( 66% busy)?(   queue 8)?"
    )
    for cells in range(len(" garden  ● live"), 120):
        line = headline(PARTS, cells).plain
        assert width(line) <= cells
        assert whole.fullmatch(line), line


@pytest.mark.parametrize("name", ["a-platform-with-a-very-long-name", "아주-긴-이름의-플랫폼-이다"])
def test_a_long_name_is_cut_in_its_middle_and_keeps_its_ends(name):
    parts = (
        HeadlineItem("nsml", worth=0),
        HeadlineItem(name, is_name=True, gap="  "),
        HeadlineItem("● live", gap="  "),
    )
    line = headline(parts, 24).plain
    assert line.startswith(f" {name[:3]}")
    assert line.endswith(f"{name[-2:]}  ● live")
    assert "…" in line
    assert width(line) <= 24


def first(app):
    return said(app).split("\n")[0].rstrip()


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
async def test_at_each_width_it_is_there_with_nothing_cut(columns):
    app = demo(appearance=Appearance(is_animated=False))
    async with app.run_test(size=(columns, 24)) as pilot:
        await until(pilot, lambda: "queue 8" in first(app))
        assert first(app).startswith(
            " nsml  garden" if columns == 120 else " garden  ▶ demo, made up"
        )
        assert first(app).endswith("queue 8" if columns == 60 else "queue 8   held 1")
        await pilot.resize_terminal(40, 24)
        await until(pilot, lambda: first(app) == " garden  ▶ demo, made up · 1x")
