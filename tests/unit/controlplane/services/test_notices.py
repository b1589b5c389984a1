"""The end of a session is told to the webhook of its owner: through a whole control plane, and over a take-over."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pytest

from controlplane.domain.identity import Role
from controlplane.notices import notices_loop as loop
from controlplane.notices.webhook_delivery import Poster
from nsml.v1 import accounts_pb2, sessions_pb2
from nsml.v1 import webhooks_pb2 as pb
from tests.unit.controlplane.rig import (
    Rig,
    Stubs,
    one_leads,
    platform,
    serving,
    surroundings,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controlplane.core.webhook_targets import Target


class Post:
    """Takes every message; `hangs` before that."""

    allows_private = True

    def __init__(self, *, hangs: bool = False) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []
        self._hangs = hangs

    async def __call__(self, target: Target, body: bytes, *, owner: str) -> int:
        self.said.append((owner, json.loads(body)))
        if self._hangs:
            await asyncio.Event().wait()
        return 200


async def set_webhook(user: Stubs, *events: str, url: str = "https://hooks.example.org/x") -> Any:
    answer = await user.webhooks.SetWebhook(pb.SetWebhookRequest(url=url, events=events))
    return answer.webhook


async def ends(rig: Rig, user: Stubs, *, cause: str, code: int = 0) -> sessions_pb2.Session:
    """A session of a user that runs on a node of its own, and ends so."""
    one = await user.submit()
    agent = await (await rig.agent(f"n{one.id[:8].lower()}")).connect()
    [assignment] = await agent.assignments(1)
    await agent.report(assignment.replica, "RUNNING")
    await agent.report(assignment.replica, "FINALIZED", cause=cause, code=code)
    ended = await user.reaches(one.id, "SUCCEEDED", "FAILED")
    await agent.close()
    return ended


async def is_gone(rig: Rig, session_id: str) -> bool:
    return await rig.on.store.get(f"session/{session_id}") is None


async def kept(rig: Rig) -> list[str]:
    return [item.key for item in (await rig.on.store.list("notice/")).items]


async def told(rig: Rig, post: Post, count: int) -> list[tuple[str, str, str]]:
    async def is_told() -> bool:
        return len(post.said) >= count and not await kept(rig)

    await until(is_told, f"{count} are told")
    # Those of one user come in their order; users wait for nobody else.
    by_owner = sorted(post.said, key=itemgetter(0))
    return [(owner, said["event"], said["session"]) for owner, said in by_owner]


async def test_each_user_is_told_what_they_chose_and_no_more() -> None:
    post = Post()
    async with platform(post=post) as rig:
        kim, lee, mo = [await rig.user(name) for name in ("kim", "lee", "mo")]
        assert [*(await set_webhook(kim)).events] == [1, 3]
        assert [*(await set_webhook(lee, "WEBHOOK_EVENT_FAILED")).events] == [2]
        done = [await ends(rig, user, cause="COMPLETED") for user in (mo, lee, kim)]
        failed = [await ends(rig, user, cause="PROGRAM_FAILED", code=3) for user in (mo, lee, kim)]
        expected = [
            ("kim", "ended", done[2].name),
            ("kim", "failed", failed[2].name),
            ("lee", "failed", failed[1].name),
        ]
        assert await told(rig, post, 3) == expected
        [said] = [said for _, said in post.said if said["session"] == failed[2].name]
        assert (said["state"], said["cause"], said["exit_code"]) == ("FAILED", "PROGRAM_FAILED", 3)
        assert said["session_id"] == failed[2].id
        for one in (*done, *failed):
            await until(lambda one=one: is_gone(rig, one.id), "it is exported")
        assert await told(rig, post, 3) == expected


async def test_who_stops_a_session_of_their_own_is_not_told_and_its_owner_is() -> None:
    post = Post()
    async with platform(post=post) as rig:
        kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
        await set_webhook(kim)
        own, others = await kim.submit(), await kim.submit()
        for user, one in ((kim, own), (root, others)):
            await user.sessions.StopSession(sessions_pb2.StopSessionRequest(session=one.id))
        await until(lambda: is_gone(rig, own.id), "it is exported")
        assert await told(rig, post, 1) == [("kim", "failed", others.name)]
        assert "by root" in post.said[0][1]["message"]


async def test_a_leader_that_goes_while_it_tells_leaves_it_to_the_next() -> None:
    silent, post = Post(hangs=True), Post()
    async with surroundings(post=silent) as on:
        async with serving(on) as first:
            await until(lambda: one_leads(first), "it leads")
            kim = await first.user("kim")
            await set_webhook(kim)
            one = await ends(first, kim, cause="COMPLETED")

            async def is_calling() -> bool:
                return bool(silent.said)

            await until(is_calling, "it calls")
            assert await kept(first) == [f"notice/kim/{one.id}"]
        async with serving(replace(on, post=post)) as second:
            assert await told(second, post, 1) == [("kim", "ended", one.name)]


async def test_a_user_who_is_removed_is_told_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "PAUSES_S", (0.05,))
    with receiver(500) as server:
        async with platform(post=Poster(allows_private=True)) as rig:
            kim, root = await rig.user("kim"), await rig.user("root", role=Role.ADMIN)
            await set_webhook(kim, url=url_of(server))
            await ends(rig, kim, cause="COMPLETED")

            async def is_called() -> bool:
                return bool(server.said) and bool(await kept(rig))

            await until(is_called, "it is called")
            await root.accounts.DeleteUser(accounts_pb2.DeleteUserRequest(name="kim"))

            async def is_over() -> bool:
                return not await kept(rig)

            await until(is_over, "it is given up")


async def test_a_receiver_that_fails_at_first_is_told_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "PAUSES_S", (0.05,))
    with receiver(500, 503, 200) as server:
        async with platform(post=Poster(allows_private=True)) as rig:
            kim = await rig.user("kim")
            await set_webhook(kim, url=url_of(server))
            one = await ends(rig, kim, cause="PROGRAM_FAILED", code=1)

            async def is_over() -> bool:
                return len(server.said) >= 3 and not await kept(rig)

            await until(is_over, "it is told")
            assert [json.loads(body)["session"] for body in server.said] == [one.name] * 3


def url_of(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/hook"


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.said.append(self.rfile.read(int(self.headers["Content-Length"])))  # type: ignore[attr-defined]
        answers = self.server.answers  # type: ignore[attr-defined]
        self.send_response(answers.pop(0) if len(answers) > 1 else answers[0])
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def receiver(*answers: int) -> Iterator[Any]:
    """Answers with these in turn, and with the last one again and again."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    server.said, server.answers = [], list(answers)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
