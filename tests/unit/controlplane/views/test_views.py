"""TensorBoard itself and the dashboard, behind the gateway: what they show, to whom, and until when."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import resource
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pyte
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from controlplane.access.failed_attempts import MOST_FAILURES
from controlplane.access.listeners import take_port
from controlplane.access.secret import Secret, new_secret
from controlplane.domain.identity import Role
from controlplane.gateway import optional_packages as extras
from controlplane.history.values import Channel, Chunk, StreamKey
from controlplane.startup.web import Web
from controlplane.views import login, proxy, viewers, viewing
from controlplane.views import views as rules
from controlplane.views.feature import views
from nsml.v1 import resources_pb2, sessions_pb2, views_pb2, views_pb2_grpc
from tests.unit.controlplane.rig import Rig, Stubs, platform, until


@dataclass
class Site:
    rig: Rig
    web: Web
    url: str

    @property
    def running(self) -> list[rules.View]:
        return list(self.rig.plane.core.shared(views)._views.values())

    async def open(
        self, who: Stubs, *sessions: str, kind: views_pb2.ViewKind = views_pb2.VIEW_KIND_UNSPECIFIED
    ) -> views_pb2.OpenViewResponse:
        stub = views_pb2_grpc.ViewServiceStub(await self.rig.channel())
        request = views_pb2.OpenViewRequest(sessions=sessions, kind=kind)
        return await stub.OpenView(request, metadata=who.metadata, timeout=60)

    async def stop(self, who: Stubs, view: str) -> None:
        stub = views_pb2_grpc.ViewServiceStub(await self.rig.channel())
        await stub.StopView(views_pb2.StopViewRequest(id=view), metadata=who.metadata, timeout=60)

    async def listed(self, who: Stubs) -> list[views_pb2.View]:
        stub = views_pb2_grpc.ViewServiceStub(await self.rig.channel())
        answer = await stub.ListViews(views_pb2.ListViewsRequest(), metadata=who.metadata)
        return list(answer.views)

    async def report(self, session: sessions_pb2.Session, first: int, *values: float) -> None:
        """As the agent of a program sends it: steps count from `first`."""
        records = tuple(
            json.dumps(
                {"kind": "metric", "time": 1e9 + step, "step": step, "values": {"loss": value}}
            ).encode()
            for step, value in enumerate(values, first)
        )
        stream = StreamKey(session.id, 1, 0, Channel.METRIC, 1)
        last = first + len(values) - 1
        chunk = Chunk(stream=stream, first=first, last=last, records=records)
        await self.rig.on.history.streams.append([chunk])


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[Site]:
    async with platform() as rig:
        address, taken = take_port("127.0.0.1:0")
        url = f"http://{address}"
        web = Web(rig.plane, taken, identity=None, token_file=None, url=url, server=rig.address)
        serving = asyncio.create_task(web.serve())
        try:
            yield Site(rig, web, url)
        finally:
            web.stop()
            await serving


class Browser:
    """Keeps cookies, as browsers do."""

    def __init__(self, base: str) -> None:
        self._client = httpx.AsyncClient(base_url=base, trust_env=False, timeout=60)

    async def __aenter__(self) -> httpx.AsyncClient:
        return await self._client.__aenter__()

    async def __aexit__(self, *what: object) -> None:
        await self._client.__aexit__(*what)


async def scalars(browser: httpx.AsyncClient, view: str, run: str) -> list[tuple[int, float]]:
    """Steps and values as TensorBoard's own page asks for them."""
    answer = await browser.get(
        f"/view/{view}/data/plugin/scalars/scalars", params={"run": run, "tag": "loss"}
    )
    return [(step, value) for _, step, value in answer.json()] if answer.status_code == 200 else []


async def test_tensorboard_shows_what_was_reported_as_it_is_reported_and_to_its_owner_alone() -> (
    None
):
    async with site() as one:
        kim, lee = await one.rig.user("kim"), await one.rig.user("lee")
        mine, other = await kim.submit(), await lee.submit()
        await one.report(mine, 1, 0.5, 0.25)
        opened = await one.open(kim, mine.name)
        view = opened.view.id
        assert list(opened.view.sessions) == [mine.name]
        place = urlsplit(opened.url)
        assert f"{place.scheme}://{place.netloc}" == one.url
        async with Browser(one.url) as browser, Browser(one.url) as stranger:
            # Nobody without a ticket.
            assert (await stranger.get(f"/view/{view}/")).status_code == 403
            entered = await browser.get(opened.url)
            assert entered.status_code == 303
            assert entered.headers["location"] == f"/view/{view}/"
            said = entered.headers["set-cookie"].lower()
            assert {"httponly", "samesite=lax", f"path=/view/{view}/"} <= set(said.split("; "))
            page = await browser.get(f"/view/{view}/")
            assert page.status_code == 200
            assert "TensorBoard" in page.text
            asked = browser.build_request("GET", f"/view/{view}/data/runs")
            del asked.headers["accept-encoding"]
            assert "content-encoding" not in (await browser.send(asked)).headers

            run = mine.name

            async def shows(*expected: tuple[int, float]) -> bool:
                return await scalars(browser, view, run) == list(expected)

            await until(lambda: shows((1, 0.5), (2, 0.25)), "TensorBoard shows what was reported")
            await one.report(mine, 3, 0.125)
            await until(lambda: shows((1, 0.5), (2, 0.25), (3, 0.125)), "and what came since")

            # What is escaped stays so on its way.
            assert (await browser.get(f"/view/{view}/no%3Fsuch%2Fpage%23")).status_code == 404

            # A ticket is good once; nor does a cookie or a ticket of another view open this one.
            assert (await stranger.get(opened.url)).status_code == 403
            one.rig.plane.core.shared(views).viewing = Showing(one.url)
            theirs = await one.open(lee, other.name)
            assert theirs.view.id != view
            ticket = theirs.url.partition("?")[2]
            assert (await stranger.get(f"/view/{view}/?{ticket}")).status_code == 403
            assert (await stranger.get(theirs.url)).status_code == 303
            cookie = stranger.cookies.get("nsml_view", path=f"/view/{theirs.view.id}/")
            assert cookie
            stolen = {"Cookie": f"nsml_view={cookie}"}
            assert (await stranger.get(f"/view/{view}/", headers=stolen)).status_code == 403
            # Nobody is there behind that one.
            assert (await stranger.get(f"/view/{theirs.view.id}/")).status_code == 502

            # The same sessions are the same view, with another address.
            again = await one.open(kim, mine.name)
            assert again.view.id == view
            assert again.url != opened.url

            # Others neither see nor stop it.
            assert [found.id for found in await one.listed(lee)] == [theirs.view.id]
            with pytest.raises(grpc.RpcError) as refused:
                await one.stop(lee, view)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            await one.stop(kim, view)
            assert (await browser.get(f"/view/{view}/")).status_code == 403
            assert await one.listed(kim) == []


async def test_a_program_ends_with_whoever_started_it_and_leaves_nothing() -> None:
    """Its end of the pipe is closed by the kernel, too, where the control plane is killed."""
    async with site() as one:
        kim = await one.rig.user("kim")
        session = await kim.submit()
        view = (await one.open(kim, session.name)).view.id
        (known,) = one.running
        child = known.viewer
        assert isinstance(child, viewers._Child)
        assert child._folder.stat().st_mode & 0o777 == 0o700
        most_memory, _ = resource.prlimit(child._process.pid, resource.RLIMIT_DATA)
        assert most_memory == viewing.MOST_MEMORY
        token = kim.metadata[0][1].removeprefix("Bearer ").encode()
        assert token not in told(child._process.pid)
        assert child._process.stdin is not None
        child._process.stdin.close()
        async with asyncio.timeout(60):
            await child._process.wait()
        assert not child._folder.exists()
        assert one.rig.plane.core.shared(views).admit(view, "x") is None
        # Asked for again, it is another one.
        one.rig.plane.core.shared(views).viewing = Showing()
        assert (await one.open(kim, session.name)).view.id != view
        assert len(one.running) == 1


def told(pid: int) -> bytes:
    """What every user of a machine, or its own, can read of a process."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


class Shown:
    """A viewer that shows nothing."""

    socket = "/nowhere"

    def __init__(self, spec: rules.ViewerSpec) -> None:
        self.spec = spec
        self.has_ended = False

    def allows(self, method: str, path: str) -> bool:
        return (method, path) != ("POST", "/close")

    async def stop(self) -> None:
        self.has_ended = True


@dataclass
class Showing:
    url: str = "http://here"

    async def start(self, spec: rules.ViewerSpec) -> Shown:
        return Shown(spec)


@contextlib.asynccontextmanager
async def shown(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Site, rules.Views]]:
    """A platform whose views are looked at all the time."""
    monkeypatch.setattr(rules, "LOOK_EVERY_S", 0.01)
    async with site() as one:
        one.rig.plane.core.shared(views).viewing = Showing()
        yield one, one.rig.plane.core.shared(views)


async def gone(views: rules.Views) -> bool:
    return not views._views


async def test_a_view_ends_with_its_owners_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown(monkeypatch) as (one, views):
        kim = await one.rig.user("kim")
        session = await kim.submit()
        await one.open(kim, session.name)
        (view,) = one.running
        await one.rig.plane.core.accounts.revoke_all("kim")
        await until(lambda: gone(views), "the view has ended")
        assert view.viewer.has_ended


async def test_a_view_ends_when_its_owner_may_not_see_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shown(monkeypatch) as (one, views):
        kim, lee = await one.rig.user("kim"), await one.rig.user("lee")
        public = {"visibility": resources_pb2.VISIBILITY_PUBLIC}
        first, second = await kim.submit(**public), await kim.submit(**public)
        with pytest.raises(grpc.RpcError) as hidden:
            await one.open(lee, (await kim.submit()).name)
        assert hidden.value.code() is grpc.StatusCode.NOT_FOUND
        await one.open(lee, first.name, second.name)
        mine = await one.open(kim, first.name)
        await kim.sessions.UpdateSession(
            sessions_pb2.UpdateSessionRequest(
                session=second.name, visibility=resources_pb2.VISIBILITY_PRIVATE
            )
        )
        await until(lambda: _are(views, mine.view.id), "lee's view has ended, and kim's has not")


async def _are(views: rules.Views, *ids: str) -> bool:
    return list(views._views) == list(ids)


async def test_a_view_that_nobody_looks_at_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown(monkeypatch) as (one, views):
        kim = await one.rig.user("kim")
        opened = await one.open(kim, (await kim.submit()).name)
        cookie = views.redeem(opened.view.id, opened.url.rpartition("=")[2])
        assert views.admit(opened.view.id, cookie) is one.running[0].viewer
        assert views.admit(opened.view.id, cookie + "x") is None
        assert views.admit("vother", cookie) is None
        async with Browser(one.url) as browser:
            browser.cookies.set("nsml_view", cookie)
            refused = await browser.post(f"/view/{opened.view.id}/close")
            assert (refused.status_code, "for looking alone" in refused.text) == (403, True)
            # Nobody is there behind it: it was asked.
            assert (await browser.get(f"/view/{opened.view.id}/close")).status_code == 502
        monkeypatch.setattr(rules, "IDLE_S", 0.05)
        await until(lambda: gone(views), "the view has ended")
        assert views.admit(opened.view.id, cookie) is None


async def test_tickets_are_good_once_and_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown(monkeypatch) as (one, views):
        kim = await one.rig.user("kim")
        name = (await kim.submit()).name
        opened = await one.open(kim, name)
        ticket = opened.url.rpartition("=")[2]
        assert views.redeem(opened.view.id, ticket)
        assert not views.redeem(opened.view.id, ticket)
        monkeypatch.setattr(rules, "TICKET_S", -1.0)
        late = (await one.open(kim, name)).url.rpartition("=")[2]
        assert not views.redeem(opened.view.id, late)
        # Nothing that opens a door lies in memory as it is.
        assert ticket not in repr(one.running[0].tickets) + repr(one.running[0].cookies)


async def test_views_are_few_and_only_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown(monkeypatch) as (one, views):
        kim, lee = await one.rig.user("kim"), await one.rig.user("lee")
        names = [(await kim.submit()).name for _ in range(rules.MOST_OF_USER + 1)]
        for name in names[:-1]:
            await one.open(kim, name)
        await refused(one.open(kim, names[-1]), "RESOURCE_EXHAUSTED", "you have 3 views")
        await one.open(kim, names[0])
        monkeypatch.setattr(rules, "MOST_VIEWS", rules.MOST_OF_USER)
        mine = (await lee.submit()).name
        await refused(one.open(lee, mine), "RESOURCE_EXHAUSTED", "there are 3 views")
        await refused(one.open(lee), "INVALID_ARGUMENT", "1 to 20 sessions")
        boss = await one.rig.user("boss", role=Role.ADMIN)
        assert len(await one.listed(boss)) == rules.MOST_OF_USER
        await one.stop(boss, one.running[0].id)
        views.viewing = viewers.Viewers(url="http://here", server="unix:/nowhere")
        visdom = views_pb2.VIEW_KIND_VISDOM
        await refused(
            one.open(lee, mine, kind=visdom), "FAILED_PRECONDITION", "no visdom is set up"
        )
        await refused(one.open(lee, mine, kind=99), "INVALID_ARGUMENT", "no such kind")  # type: ignore[arg-type]
        dashboard = views_pb2.VIEW_KIND_DASHBOARD
        await refused(one.open(lee, mine, kind=dashboard), "INVALID_ARGUMENT", "takes no sessions")
        monkeypatch.setattr(viewers.importlib.util, "find_spec", lambda _: None)
        await refused(one.open(lee, mine), "FAILED_PRECONDITION", "TensorBoard is not installed")
        await refused(one.open(lee, kind=dashboard), "FAILED_PRECONDITION", "in a browser is not")
        views.viewing = None
        await refused(one.open(lee, mine), "FAILED_PRECONDITION", "HTTP is disabled")


async def test_views_of_the_same_sessions_are_one_for_each_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shown(monkeypatch) as (one, _):
        kim = await one.rig.user("kim")
        name = (await kim.submit()).name
        kinds = (views_pb2.VIEW_KIND_TENSORBOARD, views_pb2.VIEW_KIND_VISDOM)
        opened = [(await one.open(kim, name, kind=kind)).view for kind in kinds * 2]
        assert [view.kind for view in opened] == [*kinds, *kinds]
        assert [view.id for view in opened[:2]] == [view.id for view in opened[2:]]
        assert [view.viewer.spec.kind for view in one.running] == ["tensorboard", "visdom"]


DASHBOARD = views_pb2.VIEW_KIND_DASHBOARD
WITHIN_S = 60.0


@contextlib.asynccontextmanager
async def visit(
    url: str, view: str, cookie: str, origin: str | None = None
) -> AsyncIterator[ClientConnection]:
    """What a browser's page connects."""
    headers = {"Cookie": f"{proxy.COOKIE}={cookie}"} if cookie else {}
    place = f"{url.replace('http', 'ws', 1)}/view/{view}/ws?width=120&height=30"
    async with connect(
        place,
        origin=origin or url,
        additional_headers=headers,
        proxy=None,
        open_timeout=60,
        max_queue=None,
    ) as connection:
        yield connection


async def see(connection: ClientConnection, *texts: str) -> str:
    """What is on the screen once all of these are."""
    screen = pyte.Screen(120, 30)
    stream = pyte.ByteStream(screen)
    async with asyncio.timeout(WITHIN_S):
        while not all(text in "\n".join(screen.display) for text in texts):
            said = await connection.recv()
            if isinstance(said, bytes):
                stream.feed(said)
    return "\n".join(screen.display)


async def closed(connection: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(WITHIN_S):
            while True:
                await connection.recv()


async def entered(one: Site, opened: views_pb2.OpenViewResponse) -> str:
    """The cookie that the address of a view is worth."""
    async with Browser(one.url) as browser:
        await browser.get(opened.url)
        return browser.cookies.get(proxy.COOKIE) or ""


async def test_a_dashboard_shows_what_its_user_may_see_and_ends_with_the_credential(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "LOOK_EVERY_S", 0.05)
    async with site() as one:
        kim, lee = await one.rig.user("kim"), await one.rig.user("lee")
        mine, theirs = await kim.submit(), await lee.submit()
        opened = await one.open(kim, kind=DASHBOARD)
        view, cookie = opened.view.id, await entered(one, opened)
        assert (opened.view.kind, list(opened.view.sessions)) == (DASHBOARD, [])
        assert (await one.open(kim, kind=DASHBOARD)).view.id == view

        async with Browser(one.url) as browser:
            browser.cookies.set(proxy.COOKIE, cookie)
            shown = await browser.get(f"/view/{view}/")
            assert (shown.status_code, "nsml-tui" in shown.text) == (200, True)
            assert "frame-ancestors 'none'" in shown.headers["content-security-policy"]
            assert shown.headers["x-content-type-options"] == "nosniff"
            assert (await browser.post(f"/view/{view}/")).status_code == 403
            assert (await browser.get(f"/view/{view}/http")).status_code == 404

        for bad in (
            {"cookie": ""},
            {"cookie": cookie + "x"},
            {"origin": "https://evil.example"},
            {"view": view + "x"},
        ):
            with pytest.raises(InvalidStatus) as no:
                async with visit(one.url, **{"view": view, "cookie": cookie, **bad}):
                    pass
            assert no.value.response.status_code == 403

        async with visit(one.url, view, cookie) as connection:
            text = await see(connection, mine.name, "1 of 1 session")
            assert theirs.name not in text
            await one.rig.plane.core.accounts.revoke_all("kim")
            await closed(connection)
        assert one.running == []


async def test_an_open_connection_counts_as_use_and_ends_with_the_right_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy, "USED_EVERY_S", 0.05)
    async with site() as one:
        kim = await one.rig.user("kim")
        opened = await one.open(kim, kind=DASHBOARD)
        cookie = await entered(one, opened)
        (known,) = one.running
        async with visit(one.url, known.id, cookie) as connection:
            await see(connection, "1 Sessions")
            before = known.used

            async def is_used() -> bool:
                return known.used > before

            await until(is_used, "it counts as used")
            known.cookies.clear()
            await closed(connection)
            assert connection.close_code == 1001
        cookie = await entered(one, await one.open(kim, kind=DASHBOARD))
        async with visit(one.url, known.id, cookie) as connection:
            await see(connection, "1 Sessions")
            await connection.send('["stdin", "\\u0011"]')
            await closed(connection)
            assert connection.close_code == 1000


@pytest.mark.parametrize("missing", ["textual_serve", "websockets"])
async def test_where_no_dashboard_can_be_shown_nothing_is_connected_to(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def found(name: str) -> object:
        return None if name == missing else importlib.util.find_spec(name)

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=found)))
    async with site() as one:
        kim = await one.rig.user("kim")
        await refused(one.open(kim, kind=DASHBOARD), "FAILED_PRECONDITION", "nsml[web]")
        with pytest.raises(InvalidStatus):
            async with visit(one.url, "v", "x"):
                pass


def token_of(who: Stubs) -> str:
    return str(who.metadata[0][1]).removeprefix("Bearer ")


async def test_whoever_has_a_token_signs_in_without_a_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shown(monkeypatch) as (one, views):
        kim = await one.rig.user("kim")
        own = {"Origin": one.url}
        async with Browser(one.url) as browser:
            form = await browser.get("/", follow_redirects=True)
            assert form.url.path == "/dashboard"
            assert (form.status_code, 'type="password"' in form.text) == (200, True)
            assert "frame-ancestors 'none'" in form.headers["content-security-policy"]

            async def sign_in(token: str, **headers: str) -> httpx.Response:
                return await browser.post("/dashboard", data={"token": token}, headers=headers)

            # A page of somebody else's signs nobody in.
            for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
                assert (await sign_in(token_of(kim), **headers)).status_code == 403
            for wrong in ("", "<b>", token_of(kim) + "x", "x" * login.MOST_BODY):
                answer = await sign_in(wrong, **own)
                assert (answer.status_code, "<b>" in answer.text) == (401, False)
            assert (
                await browser.post("/dashboard", content=b"\xff=", headers=own)
            ).status_code == 401
            assert one.running == []

            led = await sign_in(f" {token_of(kim)} ", **own)
            assert led.status_code == 303
            (view,) = one.running
            assert (view.kind, view.who.user.name) == (rules.Kind.DASHBOARD, "kim")
            assert led.headers["location"].startswith(f"/view/{view.id}/?ticket=")
            assert (await browser.get(led.headers["location"])).status_code == 303
            assert views.admit(view.id, browser.cookies.get(proxy.COOKIE) or "")
            # Again it is the same.
            assert (await sign_in(token_of(kim), **own)).status_code == 303
            assert one.running == [view]


async def test_a_browser_signs_out_and_the_last_one_ends_the_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shown(monkeypatch) as (one, views):
        kim = await one.rig.user("kim")
        async with Browser(one.url) as first, Browser(one.url) as second:
            cookies = []
            for browser in (first, second):
                answer = await browser.post(
                    "/dashboard", data={"token": token_of(kim)}, headers={"Origin": one.url}
                )
                assert (await browser.get(answer.headers["location"])).status_code == 303
                cookies.append(browser.cookies.get(proxy.COOKIE) or "")
            (view,) = one.running
            path = f"/view/{view.id}/sign-out"
            # A page of somebody else's signs nobody out, and neither does a link.
            for headers in ({}, {"Origin": "https://evil.example"}):
                assert (await first.post(path, headers=headers)).status_code == 403
            assert all(views.admit(view.id, cookie) for cookie in cookies)

            left = await first.post(path, headers={"Origin": one.url})
            assert (left.status_code, left.headers["link"]) == (204, '</dashboard>; rel="login"')
            assert not first.cookies.get(proxy.COOKIE)
            assert views.admit(view.id, cookies[0]) is None
            assert views.admit(view.id, cookies[1]) is not None
            assert (await first.get(f"/view/{view.id}/")).status_code == 403

            assert (await second.post(path, headers={"Origin": one.url})).status_code == 204
            assert one.running == []
            assert (await second.post(path, headers={"Origin": one.url})).status_code == 403


async def test_who_guesses_tokens_is_soon_heard_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown(monkeypatch) as (one, _):
        kim = await one.rig.user("kim")
        secret = new_secret(os.urandom).text
        async with Browser(one.url) as browser:
            for _ in range(MOST_FAILURES):
                answer = await browser.post(
                    "/dashboard", data={"token": secret}, headers={"Origin": one.url}
                )
                assert answer.status_code == 401
        assert one.rig.plane.core.limiter.is_limited("127.0.0.1")
        # Who is known already is not locked out by that.
        assert await one.rig.plane.core.identities.of_secret(Secret(token_of(kim)), thorough=False)


@pytest.mark.parametrize(
    ("kind", "method", "path", "is_allowed"),
    [
        (rules.Kind.DASHBOARD, "WEBSOCKET", "/ws", True),
        (rules.Kind.DASHBOARD, "WEBSOCKET", "/", False),
        (rules.Kind.DASHBOARD, "GET", "/", True),
        (rules.Kind.DASHBOARD, "POST", "/", False),
        (rules.Kind.TENSORBOARD, "WEBSOCKET", "/ws", False),
        (rules.Kind.TENSORBOARD, "POST", "/data", True),
        (rules.Kind.VISDOM, "WEBSOCKET", "/", False),
        (rules.Kind.VISDOM, "WEBSOCKET", "/socket_wrap", False),
        (rules.Kind.VISDOM, "GET", "/", True),
    ],
)
def test_only_a_dashboard_is_connected_to(
    kind: rules.Kind, method: str, path: str, is_allowed: bool
) -> None:
    child = viewers._Child(None, Path(), kind)  # type: ignore[arg-type]
    assert child.allows(method, path) is is_allowed


async def refused(call: Any, code: str, words: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        await call
    assert error.value.code().name == code
    assert words in f"{error.value.details()} {error.value.trailing_metadata()}"
