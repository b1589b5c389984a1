"""Pages over what lives and what has ended: each session once, newest first."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controlplane.domain.errors import InvalidRequest
from controlplane.domain.identity import Role, User, UserCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.values import DatasetVersion, SessionStage, Visibility
from controlplane.history.sqlite import open_history
from controlplane.sessions.export import row_of
from controlplane.sessions.session_listing import Filter, Listings
from controlplane.state.live_state import LiveState
from nsml.common.clock import inline
from tests.support.examples import examples
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.workbench import HandClock

KIM = UserCaller(user=User(name="kim", team="vision"))
ADMIN = UserCaller(user=User(name="root", role=Role.ADMIN))
EVERYTHING = Filter(include_ended=True)


async def listings(*sessions, both: frozenset[int] = frozenset()):
    """Ended ones in the history; those at positions `both` are still live, too."""
    history = await open_history(":memory:", clock=HandClock(), run=inline)
    state = LiveState(None, HandClock())  # type: ignore[arg-type]
    for position, one in enumerate(sessions):
        if one.state.is_ended:
            await history.catalogue.put_session(row_of(one), term=1)
        if not one.state.is_ended or position in both:
            state.put_session(one, position + 2)
    return Listings(state=state, history=history, run=inline), history, state


async def walk(found: Listings, caller: UserCaller, wanted: Filter, size: int):
    cursor, seen = "", []
    for _ in range(100):
        page = await found.page(caller, wanted, size=size, cursor=cursor)
        assert len(page.sessions) <= size
        seen += page.sessions
        cursor = page.next_cursor
        if not cursor:
            return seen
    raise AssertionError("pages without end")


STATES = st.sampled_from([SessionState.QUEUED, SessionState.RUNNING, SessionState.FAILED])
KINDS = st.tuples(st.integers(0, 3), STATES, st.sampled_from(["kim", "lee"]), st.booleans())


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(KINDS, max_size=25), st.integers(1, 7))
def test_each_once_and_in_order(kinds, size: int) -> None:
    async def run() -> None:
        sessions = [
            session(
                created_at=float(at),
                state=state,
                owner=owner,
                ended_at=9.0 if state.is_ended else 0.0,
            )
            for at, state, owner, _ in kinds
        ]
        both = frozenset(i for i, kind in enumerate(kinds) if kind[3])
        found, history, _ = await listings(*sessions, both=both)
        seen = await walk(found, ADMIN, EVERYTHING, size)
        expected = sorted(sessions, key=lambda one: (one.created_at, one.id), reverse=True)
        assert [one.id for one in seen] == [one.id for one in expected]
        mine = await walk(found, KIM, EVERYTHING, size)
        assert [one.id for one in mine] == [one.id for one in expected if one.owner == "kim"]
        live = await walk(found, ADMIN, Filter(), size)
        assert [one.id for one in live] == [o.id for o in expected if not o.state.is_ended]
        await history.close()

    asyncio.run(run())


async def test_a_session_that_is_exported_between_two_pages_is_seen_once() -> None:
    sessions = [session(created_at=float(at), state=SessionState.RUNNING) for at in range(6)]
    found, history, state = await listings(*sessions)
    first = await found.page(KIM, EVERYTHING, size=3)
    for one in sessions:
        await history.catalogue.put_session(row_of(one), term=1)
        state.delete(f"session/{one.id}", 100)
    second = await found.page(KIM, EVERYTHING, size=3, cursor=first.next_cursor)
    seen = [one.id for one in (*first.sessions, *second.sessions)]
    assert seen == [one.id for one in reversed(sessions)]
    assert not second.next_cursor
    await history.close()


async def test_ended_sessions_are_decoded_beside_the_event_loop() -> None:
    made: list[object] = []

    async def run(work):
        made.append(work())
        return made[-1]

    ended = session(created_at=1.0, state=SessionState.FAILED)
    _, history, state = await listings(ended)
    found = await Listings(state=state, history=history, run=run).page(KIM, EVERYTHING)
    assert [one.id for one in found.sessions] == [ended.id]
    assert made == [[ended]]
    await history.close()


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Filter(owners=("@me",)), {"kim/None/1", "kim/mnist/2"}),
        (Filter(owners=("lee",)), {"lee/None/3", "lee/None/4"}),
        (Filter(dataset="mnist"), {"kim/mnist/2"}),
        (Filter(project="vision"), {"kim/mnist/2"}),
        (Filter(project="vision", include_ended=True), {"kim/mnist/2", "kim/None/5"}),
        (Filter(project="kim"), {"kim/None/1"}),
        (Filter(project="lee"), {"lee/None/3", "lee/None/4"}),
        (Filter(name_glob="kim/*"), {"kim/None/1", "kim/mnist/2"}),
        (Filter(text="FIRST"), {"kim/None/1"}),
        (Filter(states=(SessionState.RUNNING,)), {"kim/mnist/2"}),
        (Filter(states=(SessionState.FAILED,)), {"kim/None/5"}),
        (
            Filter(include_ended=True),
            {"kim/None/1", "kim/mnist/2", "lee/None/3", "lee/None/4", "kim/None/5"},
        ),
    ],
)
async def test_filters_and_visibility(wanted: Filter, names: set[str]) -> None:
    sessions = [
        session(name="kim/None/1", memo="my first"),
        session(name="kim/mnist/2", state=SessionState.RUNNING, project="vision"),
        session(name="lee/None/3", owner="lee", visibility=Visibility.PUBLIC),
        session(name="lee/None/4", owner="lee", team="vision", visibility=Visibility.TEAM),
        session(name="kim/None/5", state=SessionState.FAILED, ended_at=5.0, project="vision"),
        session(name="lee/None/6", owner="lee", project="vision"),
        session(name="lee/None/7", owner="lee", team="audio", visibility=Visibility.TEAM),
    ]
    found, history, _ = await listings(*sessions)
    assert {one.name for one in await walk(found, KIM, wanted, 2)} == names
    await history.close()


STEPS = [SessionStage.PREDICT, SessionStage.PREDICT_TEST, SessionStage.EVALUATE]


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_steps_of_submissions_are_left_out_and_pages_stay_full(size: int) -> None:
    made, ordinary = [], []
    for number in range(24):
        is_ended = number < 18
        stage = None if number % 6 == 0 else STEPS[number % 3]
        one = session(
            spec={"stage": stage},
            created_at=float(number),
            state=SessionState.FAILED if is_ended else SessionState.RUNNING,
            ended_at=99.0 if is_ended else 0.0,
        )
        made.append(one)
        ordinary += [one] if stage is None else []
    found, history, _ = await listings(*made)
    wanted = Filter(include_ended=True, without_submission_steps=True)
    seen = await walk(found, KIM, wanted, size)
    assert [one.id for one in seen] == [one.id for one in reversed(ordinary)]
    first = await found.page(KIM, wanted, size=size)
    assert len(first.sessions) == min(size, len(ordinary))
    live = await walk(found, KIM, Filter(without_submission_steps=True), size)
    assert [one.id for one in live] == [ordinary[-1].id]
    assert len(await walk(found, KIM, EVERYTHING, size)) == len(made)
    await history.close()


MNIST = DatasetVersion(owner="kim", name="mnist", version=1, digest="d")
TEAMS = st.sampled_from(["", "vision", "audio"])
OWNERS = st.sampled_from(["kim", "lee"])
TEXT = st.text(
    "aAbÜüßẞsS\N{LATIN SMALL LETTER DOTLESS I}İK\N{KELVIN SIGN}%_\\[]*?^!-/ \n\x00", max_size=6
)
GLOBS = st.one_of(
    st.text("kimle/Nom1234[]!^-*?\\%_\x00", max_size=8),
    st.sampled_from(["*/[12]", "*/[!1]", "*/[^1]", "*[", "*/[3-1]", "*/[]1]", "???/*", "KIM/*"]),
)
SESSIONS = st.lists(
    st.fixed_dictionaries(
        {
            "owner": OWNERS,
            "team": TEAMS,
            "visibility": st.sampled_from(list(Visibility)),
            "state": st.sampled_from(list(SessionState)),
            "memo": TEXT,
            "spec": st.sampled_from([{}, {"datasets": (MNIST,)}]),
            "project": st.sampled_from(["", "kim", "vision"]),
        }
    ),
    max_size=8,
)
CALLERS = st.builds(
    UserCaller, user=st.builds(User, name=OWNERS, team=TEAMS, role=st.sampled_from(list(Role)))
)
FILTERS = st.builds(
    Filter,
    owners=st.lists(st.sampled_from(["@me", "kim", "lee", "KIM"]), max_size=2).map(tuple),
    states=st.lists(st.sampled_from(list(SessionState)), max_size=3).map(tuple),
    dataset=st.sampled_from(["", "mnist", "None"]),
    project=st.sampled_from(["", "kim", "lee", "vision"]),
    name_glob=st.one_of(st.just(""), GLOBS),
    text=st.one_of(st.just(""), TEXT),
    include_ended=st.just(value=True),
)


@settings(max_examples=examples(300), deadline=None)
@given(SESSIONS, CALLERS, FILTERS)
@example(
    [{"owner": "kim", "memo": "ÜBER lauf"}, {"owner": "kim"}],
    KIM,
    Filter(text="über", include_ended=True),
)
@example([{"owner": "kim"}] * 3, KIM, Filter(name_glob="kim/None/[12]", include_ended=True))
def test_a_session_that_ended_fits_the_filters_that_it_fitted(kinds, caller, wanted) -> None:
    async def run() -> None:
        sessions = [
            session(name=f"{kind['owner']}/None/{number}", **kind)
            for number, kind in enumerate(kinds, start=1)
        ]
        found, history, state = await listings()
        for revision, one in enumerate(sessions, start=1):
            state.put_session(one, revision)
        before = await walk(found, caller, wanted, 3)
        for one in sessions:
            await history.catalogue.put_session(row_of(one), term=1)
            state.delete(f"session/{one.id}", 100)
        after = await walk(found, caller, wanted, 3)
        assert [one.name for one in after] == [one.name for one in before]
        await history.close()

    asyncio.run(run())


async def test_a_foreign_cursor_is_refused() -> None:
    found, history, _ = await listings()
    for cursor in ("?", "AAAA", "bnVsbA==", "WzEsIDIsIDNd"):
        with pytest.raises(InvalidRequest):
            await found.page(KIM, EVERYTHING, cursor=cursor)
    await history.close()
