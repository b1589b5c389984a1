"""What stands in a table, and above it."""

from typing import NamedTuple

from textual.app import App

from nsml.view.tables import Column
from tests.unit.tui.conftest import said, shows, until
from tui.widgets.table import MOST_KEPT, Table, with_sign


def test_titles_say_how_many_columns_have_no_room_and_are_not_cut_for_that():
    assert with_sign("  Name  Summary    ", 3, 24) == "  Name  Summary       +3"
    assert with_sign("  Name  Summary", 3, 18) == "  Name  Summary +3"
    assert with_sign("  Name  Summary", 12, 18) == "  Name  Summary  +"
    assert with_sign("  Name  Summary", 12, 15) == "  Name  Summa…+"


class Thing(NamedTuple):
    name: str
    born: float
    colour: str = ""


class Alone(App):
    """A table of things by name and age, on a clock that is set."""

    def __init__(self):
        super().__init__()
        self.now, self.asked, self.painted = 1_000.0, 0, 0

    def _age(self, thing, now):
        self.asked += 1
        return f"{now - thing.born:.0f}s old"

    def compose(self):
        columns = (
            Column(key="name", title="Name", cell=lambda thing, _: thing.name, is_name=True),
            Column(key="age", title="Age", cell=self._age, colour=lambda thing: thing.colour),
        )
        yield Table(columns, key=lambda thing: thing.name, clock=lambda: self.now)

    def on_mount(self):
        table = self.query_one(Table)
        paint = table._paint

        def counted(line, width):
            self.painted += 1
            return paint(line, width)

        table._paint = counted


async def test_texts_are_made_out_once_in_a_second_and_lines_that_look_alike_are_painted_once():
    app, things = Alone(), [Thing("one", 990.0), Thing("two", 980.0)]
    async with app.run_test(size=(40, 10)) as pilot:
        table = app.query_one(Table)
        table.show(things)
        await shows(pilot, "10s old", "20s old")
        asked, painted = app.asked, app.painted
        table.show(things[::-1])
        await until(pilot, lambda: said(app).index("two") < said(app).index("one"))
        assert app.asked == asked
        app.now += 5
        table.show(things)
        await shows(pilot, "15s old", "25s old")
        assert app.asked > asked
        asked, painted = app.asked, app.painted
        app.now += 0.5
        table.show([things[0]._replace(born=990.5), things[1]._replace(colour="red")])
        await until(pilot, lambda: app.painted > painted)
        await shows(pilot, "15s old")
        assert app.painted == painted + 1
        table.mark({"two"})
        await shows(pilot, "✓ two")


async def test_of_many_that_were_shown_not_all_are_kept():
    app = Alone()
    async with app.run_test(size=(40, 10)) as pilot:
        table = app.query_one(Table)
        for number in range(2 * MOST_KEPT // 8):
            table.show([Thing(f"{number}.{one}", 0.0) for one in range(8)])
            table.render_lines(table.size.region)
        await shows(pilot, f"{number}.7")
        assert len(table._drawn) <= MOST_KEPT
        assert all(len(one.cell._known) <= MOST_KEPT + 1 for one in table._columns)
