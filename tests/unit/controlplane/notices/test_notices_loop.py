"""Notices are delivered in order, again while that may help, and never hold up another user's."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.domain.errors import NotFound, StateConflict
from controlplane.domain.notices import Notice, WebhookEvent, event_of_end, is_wanted
from controlplane.domain.values import Cause, End, SessionState, Stop
from controlplane.notices import notices as outbox_module
from controlplane.notices.notices import Outbox, notice_of_end
from controlplane.notices.notices_loop import KEPT_S, Delivering
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import Put, StoreUnavailable, Transaction
from controlplane.stored.etcd_codec import encode_notice, notice_key
from nsml.common.clock import inline
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.rig import until
from tests.unit.controlplane.workbench import HandClock, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

HANGS = "hangs"


class SleptClock(HandClock):
    """Sleeping moves time."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        await asyncio.sleep(0)


class Webhooks:
    """Answers each user's calls with these in turn, the last one again and again."""

    def __init__(self, **answers: Collection[Any]) -> None:
        self.said: list[tuple[str, str]] = []
        self._answers = {owner: list(those) for owner, those in answers.items()}

    async def send(
        self, owner: str, message: Mapping[str, object], event: WebhookEvent, *, owner_id: str
    ) -> int:
        assert (event, owner_id) == (WebhookEvent.ENDED, f"id of {owner}")
        self.said.append((owner, str(message["session"])))
        answers = self._answers.get(owner, [200])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer == HANGS:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return int(answer)


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedStore]:
    async with EmbeddedStore(":memory:", clock=HandClock(), run=inline) as store:
        yield store


async def nobody(_: Collection[str]) -> dict[str, tuple[WebhookEvent, ...]]:
    return {}


def notice(name: str, owner: str = "kim") -> Notice:
    return Notice(
        owner=owner,
        owner_id=f"id of {owner}",
        session_id=name,
        event=WebhookEvent.ENDED,
        body=json.dumps({"session": name}),
        recorded_at=HandClock.now,
    )


async def record(store: EmbeddedStore, *those: Notice) -> None:
    puts = tuple(Put(key=notice_key(one), value=encode_notice(one)) for one in those)
    await store.commit(Transaction(success=puts))


async def left(store: EmbeddedStore) -> list[str]:
    return [item.key for item in (await store.list("notice/")).items]


async def drained(outbox: Outbox, store: EmbeddedStore) -> None:
    async def is_empty() -> bool:
        return not outbox.owners() and not await left(store)

    await until(is_empty, "all is told")


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ([200], 1),
        ([500, 200], 2),
        ([429, StateConflict("away"), 503, 204], 4),
        ([404], 1),
        ([302], 1),
        ([NotFound("no webhook")], 1),
    ],
)
async def test_what_may_help_is_tried_again_and_what_is_told_is_removed(
    store: EmbeddedStore, answers: list[Any], calls: int
) -> None:
    await record(store, notice("s1"))
    webhooks, outbox = (
        Webhooks(kim=answers),
        Outbox(store, wanted=nobody, is_full=lambda: False, clock=SleptClock()),
    )
    delivering = Delivering(outbox, webhooks, clock=SleptClock())  # type: ignore[arg-type]
    async with working(delivering.run()):
        await drained(outbox, store)
        assert webhooks.said == [("kim", "s1")] * calls


async def test_a_dead_webhook_is_given_up_after_a_day(store: EmbeddedStore) -> None:
    await record(store, notice("s1"))
    webhooks, clock = Webhooks(kim=[500]), SleptClock()
    outbox = Outbox(store, wanted=nobody, is_full=lambda: False, clock=clock)
    async with working(Delivering(outbox, webhooks, clock=clock).run()):  # type: ignore[arg-type]
        await drained(outbox, store)
    assert KEPT_S <= sum(clock.slept) < KEPT_S + max(clock.slept) + 1
    assert len(webhooks.said) == len(clock.slept) + 1


async def test_one_that_hangs_holds_up_nobody_else(store: EmbeddedStore) -> None:
    await record(store, notice("s1"), notice("s2"), notice("s3", owner="lee"))
    webhooks, outbox = (
        Webhooks(kim=[HANGS]),
        Outbox(store, wanted=nobody, is_full=lambda: False, clock=HandClock()),
    )
    delivering = Delivering(outbox, webhooks, clock=HandClock())  # type: ignore[arg-type]
    async with working(delivering.run()):

        async def one_is_left() -> bool:
            return "notice/lee/s3" not in await left(store) and len(webhooks.said) == 2

        await until(one_is_left, "lee is told")
        await record(store, notice("s4", owner="lee"))
        outbox.recorded(notice("s4", owner="lee"))

        async def is_told() -> bool:
            return ("lee", "s4") in webhooks.said and "notice/lee/s4" not in await left(store)

        await until(is_told, "lee is told again")
        assert [name for owner, name in webhooks.said if owner == "kim"] == ["s1"]
    # Who leads next finds them.
    assert await left(store) == ["notice/kim/s1", "notice/kim/s2"]
    assert not outbox.owners()


async def test_what_was_told_is_not_told_again_while_the_store_is_away(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record(store, notice("s1"))
    commit, away = store.commit, [StoreUnavailable("a"), StoreUnavailable("b")]

    async def flaky(transaction: Transaction) -> Any:
        if away:
            raise away.pop()
        return await commit(transaction)

    monkeypatch.setattr(store, "commit", flaky)
    webhooks, outbox = (
        Webhooks(),
        Outbox(store, wanted=nobody, is_full=lambda: False, clock=HandClock()),
    )
    delivering = Delivering(outbox, webhooks, clock=HandClock())  # type: ignore[arg-type]
    async with working(delivering.run()):
        await drained(outbox, store)
    assert (webhooks.said, away) == ([("kim", "s1")], [])


async def test_what_cannot_be_read_or_was_never_there_is_passed_by(store: EmbeddedStore) -> None:
    await store.commit(Transaction(success=(Put(key="notice/kim/s0", value=b"\xff\xff"),)))
    await record(store, notice("s2"))
    webhooks, outbox = (
        Webhooks(),
        Outbox(store, wanted=nobody, is_full=lambda: False, clock=HandClock()),
    )
    outbox.recorded(notice("s1"))
    delivering = Delivering(outbox, webhooks, clock=HandClock())  # type: ignore[arg-type]
    async with working(delivering.run()):
        await drained(outbox, store)
    assert webhooks.said == [("kim", "s2")]


def ended(state: SessionState, **facts: Any) -> Any:
    end = End(cause=Cause.OUT_OF_MEMORY, exit_code=137, message="m" * 1_000)
    return session(state=state, started_at=100.0, ended_at=3_700.0, end=end, **facts)


async def test_only_who_wants_it_is_told_and_no_more_than_there_is_room_for(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []

    async def wanted(owners: Collection[str]) -> dict[str, tuple[WebhookEvent, ...]]:
        asked.append(set(owners))
        return {"kim": (WebhookEvent.ENDED,), "lee": (WebhookEvent.IDLE, WebhookEvent.FAILED)}

    full = [False]
    outbox = Outbox(store, wanted=wanted, clock=HandClock(), is_full=lambda: full[0])
    own = ended(SessionState.STOPPED, stop=Stop(grace_s=1.0, asked_by="kim"))
    assert (await outbox.of_ends([own]), asked) == ({}, [])
    fine = [ended(SessionState.SUCCEEDED, owner=owner) for owner in ("kim", "lee", "mo")]
    bad = [ended(SessionState.FAILED, owner=owner) for owner in ("kim", "lee", "mo")]
    told = await outbox.of_ends([own, *fine, *bad])
    assert set(told) == {fine[0].id, bad[0].id, bad[1].id}
    assert asked == [{"kim", "lee", "mo"}]
    monkeypatch.setattr(outbox_module, "MOST_OF_USER", 1)
    outbox.recorded(told[fine[0].id])
    assert set(await outbox.of_ends(bad)) == {bad[1].id}
    full[0] = True
    assert await outbox.of_ends(bad) == {}


@pytest.mark.parametrize(
    ("state", "asked_by", "event"),
    [
        (SessionState.SUCCEEDED, None, WebhookEvent.ENDED),
        (SessionState.FAILED, None, WebhookEvent.FAILED),
        (SessionState.FAILED, "kim", WebhookEvent.FAILED),
        (SessionState.STOPPED, "kim", None),
        (SessionState.STOPPED, "root", WebhookEvent.FAILED),
        (SessionState.STOPPED, "", WebhookEvent.FAILED),
    ],
)
def test_ones_own_wish_is_no_news(state: SessionState, asked_by: Any, event: Any) -> None:
    stop = None if asked_by is None else Stop(grace_s=1.0, asked_by=asked_by)
    assert event_of_end(ended(state, stop=stop)) is event


def test_who_wants_all_ends_wants_failures() -> None:
    assert is_wanted(WebhookEvent.FAILED, (WebhookEvent.ENDED,))
    assert not is_wanted(WebhookEvent.ENDED, (WebhookEvent.FAILED, WebhookEvent.IDLE))
    assert not is_wanted(WebhookEvent.IDLE, (WebhookEvent.ENDED,))


def test_what_is_sent_is_short_and_says_how_it_ended() -> None:
    one = replace(ended(SessionState.FAILED), owner_id="u1", memo="m" * 301)
    one = replace(one, spec=replace(one.spec, labels={"stage": "dev", "fold": "1"}))
    made = notice_of_end(one, WebhookEvent.FAILED, 5.0)
    assert (made.owner, made.owner_id, made.session_id) == ("kim", "u1", one.id)
    assert json.loads(made.body) == {
        "text": f"nsml: {one.name} failed after 1h: {'m' * 300}",
        "event": "failed",
        "session": one.name,
        "session_id": one.id,
        "memo": "m" * 300,
        "labels": {"fold": "1", "stage": "dev"},
        "state": "FAILED",
        "cause": "OUT_OF_MEMORY",
        "message": "m" * 300,
        "exit_code": 137,
        "ended_at": "1970-01-01T01:01:40Z",
        "ran_s": 3600,
    }
    queued = replace(one, state=SessionState.STOPPED, started_at=0.0, end=None)
    said = json.loads(notice_of_end(queued, WebhookEvent.FAILED, 5.0).body)
    assert (said["text"], said["ran_s"]) == (f"nsml: {one.name} stopped", 0)
