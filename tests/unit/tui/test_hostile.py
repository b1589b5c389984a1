"""A story whose every text is meant for a terminal, or for whoever reads markup: it is shown, and nothing else happens."""

from dataclasses import replace

from google.protobuf.message import Message

from nsml.v1 import sessions_pb2 as pb
from tests.unit.tui.conftest import said, shows, until
from tests.unit.tui.story import AT, Stopped, nowhere
from tui.app import Dashboard
from tui.demo.story import Demo
from tui.screens.board import BoardScreen
from tui.screens.frame import NAMES
from tui.screens.session import SessionScreen
from tui.screens.standings import StandingsScreen
from tui.sources import Topic
from tui.story import Player

EVIL = "[/b][@click=app.quit]\x1b]0;x\x07\u202e[red\\{0}$%\n"
NAMED = {"id", "digest", "session_id", "bundle_digest"}
"""What others are found by."""


def evil(found):
    """The same with other texts."""
    if isinstance(found, Message):
        made = type(found)()
        made.CopyFrom(found)
        _spoil(made)
        return made
    if isinstance(found, (list, tuple)):
        return type(found)(map(evil, found)) if type(found) in {list, tuple} else found
    return found


def _spoil(message):
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.type == field.TYPE_STRING and field.name not in NAMED:
            spoilt = [EVIL + one for one in values]
            if field.is_repeated:
                del value[:]
                value.extend(spoilt)
            else:
                setattr(message, field.name, spoilt[0])
        elif field.type == field.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry:
            for one in values:
                _spoil(one)


class Evil(Demo):
    """The demo, told by somebody who means harm."""

    def received(self, after, at):
        yield from self._spoilt(super().received(after, at))

    def received_of(self, topic, names, query, after, at, *, what=""):
        plain = tuple(name.replace(EVIL, "") for name in names)
        told = super().received_of(topic, plain, query, after, at, what=what.replace(EVIL, ""))
        if topic in {Topic.BOARD, Topic.STANDINGS}:
            told = [(when, replace(event, key=names[0])) for when, event in told]
        yield from self._spoilt(told)

    def _spoilt(self, told):
        for when, event in told:
            fields = {name: evil(getattr(event, name)) for name in event.__slots__}
            yield when, type(event)(**fields)


async def test_no_text_is_obeyed_or_stops_anything():
    player = Player(Evil(AT), Stopped())
    app = Dashboard(nowhere, clock=player, platform=EVIL, player=player)
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "␛]0;x␇")
        await until(pilot, lambda: app.model.shown.session_ids)
        rows = [row for row in app.model.every_row() if row.session.name.startswith(EVIL)]
        assert len(rows) > 10

        async def press(*keys):
            await pilot.press(*keys)
            text = said(app)
            assert not {"\x1b", "\x07", "\u202e"} & set(text + app.clipboard)
            assert app._exception is None
            assert not app._exit

        for number in range(1, len(NAMES) + 1):
            await press(str(number), "j", "slash", "b", "enter", "escape")
        for board in app.model.boards:
            app.action_go("boards")
            app.open_board(board)
            await until(pilot, lambda: isinstance(app.screen, BoardScreen))
            await until(pilot, lambda: app.screen.query("#list") and app.screen.table.items)
            for keys in ("b", "b", "j", "Y", "d", "escape", "a", "slash", "b", "enter", "escape"):
                await press(keys)
        for competition in app.model.competitions:
            app.action_go("boards")
            app.open_competition(competition)
            await until(pilot, lambda: isinstance(app.screen, StandingsScreen))
            await until(pilot, lambda: app.screen.query("#list") and app.screen.table.items)
            for keys in ("j", "Y", "enter", "p", "slash", "b", "enter", "escape", "escape"):
                await press(keys)
        for keys in ("C", "o", "m", "ctrl+p", "colon", "ctrl+k", "ctrl+d", "c", "Y"):
            await press("1", keys)
            await press("escape")
        await press("space", "space", "x", "c", "j")
        await press("escape", "escape", "u", "b", "b", "b")
        for state in (pb.SESSION_STATE_QUEUED, pb.SESSION_STATE_RUNNING):
            app.action_go("sessions")
            app.open_session(next(row.session for row in rows if row.session.state == state))
            await until(pilot, lambda: isinstance(app.screen, SessionScreen))
            for _ in range(9):
                await press("t", "j", "Y")
                await press("enter", "Y")
                await press("escape")
                if not isinstance(app.screen, SessionScreen):
                    break
