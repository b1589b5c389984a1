"""Pages of competitions, as a browser without a token gets them."""

from __future__ import annotations

import httpx

from controlplane.domain.competitions.standings import SETTLED_AFTER_S
from nsml.v1 import competitions_pb2 as pb
from nsml.v1 import resources_pb2
from nsml.view.competition_page import POLICY
from tests.unit.controlplane.rig import Stubs, until
from tests.unit.controlplane.services.competitions import Contest
from tests.unit.controlplane.services.test_sessions import refused
from tests.unit.controlplane.views.test_views import site

PAGE = "/competitions/kim/cup"
MISSING = (
    "there is no such competition or phase, or it is not public;\n"
    "nsml competition page OWNER/NAME prints an address that signs you in\n"
)
MARKER = 0.123457
"""A private score that nothing else is, and that pages show with all its digits."""
DESCRIPTION = (
    "# Read\n\n<script>alert(1)</script> [rules](https://x.example) [no](javascript:alert(1))"
)


def token(who: Stubs) -> dict[str, str]:
    return {"authorization": str(who.metadata[0][1])}


async def test_anybody_reads_a_public_competition() -> None:
    async with (
        site() as here,
        httpx.AsyncClient(base_url=here.url, trust_env=False, timeout=60) as browser,
    ):
        cup = await Contest.of(
            here.rig, "lee", "park", title="Digits <2026>", description=DESCRIPTION
        )
        await cup.scored("lee", 0.75, MARKER)
        await cup.scored("park", 0.5, 0.25)
        said = pb.AnnounceRequest(competition="cup", text="The data is fixed.\nTrain again.")
        await cup.kim.competitions.Announce(said)
        assert (await cup.get()).page == f"{here.url}{PAGE}"

        found = await browser.get(PAGE)
        assert (found.status_code, found.headers["content-type"]) == (
            200,
            "text/html; charset=utf-8",
        )
        assert found.headers["content-security-policy"] == POLICY
        assert found.headers["cache-control"] == "public, max-age=15"
        for text in (
            *('<h1 dir="auto">Digits &lt;2026&gt;</h1>', "<h3>Read</h3>", "Train again."),
            *('<a href="https://x.example" rel="nofollow noopener noreferrer">rules</a>', ">0.75<"),
            *("nsml competition join kim/cup", "nsml run -d kim/digits main.py", "2 teams"),
        ):  # fmt: skip
            assert text in found.text, text
        assert "<script" not in found.text
        assert str(MARKER) not in found.text
        assert "your team" not in found.text

        async def is_unchanged() -> bool:
            tag = (await browser.get(PAGE)).headers["etag"]
            again = await browser.get(PAGE, headers={"if-none-match": tag})
            return (again.status_code, again.content) == (304, b"")

        await until(is_unchanged, "the page is the same within a minute")
        head = await browser.head(PAGE)
        assert (head.status_code, head.content) == (200, b"")
        # The organiser, who may know them, has no private scores in it either.
        for who, is_own in ((cup.kim, False), (cup.users["lee"], True)):
            own = await browser.get(PAGE, headers=token(who))
            assert ("your team" in own.text) is is_own
            assert str(MARKER) not in own.text
            assert own.headers["cache-control"] == "private, no-cache"
        for path in (f"{PAGE}?phase=two", "/competitions/kim/none", "/competitions/a%20b/%3Cx"):
            missing = await browser.get(path)
            assert (missing.status_code, missing.text) == (404, MISSING)

        listed = await browser.get("/competitions/")
        assert '<a href="kim/cup"><bdi>Digits &lt;2026&gt;</bdi></a>' in listed.text

        await cup.close()
        cup.clock.ahead = SETTLED_AFTER_S

        final = await browser.get(PAGE, params={"phase": "one"})
        assert str(MARKER) in final.text
        assert "final, by private scores" in final.text


async def test_others_are_not_there_without_a_token_that_sees_them() -> None:
    async with (
        site() as here,
        httpx.AsyncClient(base_url=here.url, trust_env=False, timeout=60) as browser,
    ):
        cup = await Contest.of(here.rig, visibility=resources_pb2.VISIBILITY_PRIVATE)
        lee = await here.rig.user("lee")
        await cup.create("draft")
        assert (await cup.get()).page == f"{here.url}{PAGE}"
        for path in (PAGE, "/competitions/kim/draft"):
            missing = await browser.get(path)
            assert (missing.status_code, missing.text) == (404, MISSING)
            assert missing.headers["cache-control"] == "no-store"
            assert (await browser.get(path, headers=token(lee))).status_code == 404
            assert (await browser.get(path, headers=token(cup.kim))).status_code == 200
        assert "cup" not in (await browser.get("/competitions/")).text
        wrong = await browser.get(PAGE, headers={"authorization": "Bearer nothing"})
        assert wrong.status_code == 401


async def test_a_browser_signs_in_to_one_page_by_an_address_for_one_visit() -> None:
    async with (
        site() as here,
        httpx.AsyncClient(base_url=here.url, trust_env=False, timeout=60) as browser,
    ):
        cup = await Contest.of(here.rig, visibility=resources_pb2.VISIBILITY_PRIVATE)
        lee = await cup.user("lee")
        asked = pb.OpenCompetitionPageRequest(competition="kim/cup")
        assert (await refused(lee.competitions.OpenCompetitionPage(asked)))[0] == "NOT_FOUND"
        invite = pb.InviteUsersRequest(competition="cup", users=["lee"], into_competition=True)
        await cup.kim.competitions.InviteUsers(invite)
        await cup.join("lee")
        await cup.scored("lee", 0.75)
        url = (await lee.competitions.OpenCompetitionPage(asked)).url
        assert url.startswith(f"{here.url}{PAGE}?ticket=")

        assert (
            await browser.get("/competitions/kim/other", params=url.partition("?")[2])
        ).status_code == 403
        url = (await lee.competitions.OpenCompetitionPage(asked)).url
        assert (await browser.head(url)).status_code == 404, "what only looks uses no ticket up"
        led = await browser.get(url)
        assert (led.status_code, led.headers["location"]) == (303, PAGE)
        cookie = led.headers["set-cookie"]
        for part in (f"Path={PAGE};", "HttpOnly;", "Max-Age=3600;", "SameSite=lax"):
            assert part in cookie, part
        shown = await browser.get(PAGE)
        assert "your team" in shown.text
        assert (shown.headers["cache-control"], shown.headers["vary"]) == (
            "private, no-cache",
            "authorization, cookie",
        )
        used = await browser.get(url)
        assert (used.status_code, "nsml competition page kim/cup" in used.text) == (403, True)
        await cup.create("draft")
        secret = {"cookie": cookie.partition(";")[0]}
        for dest in ("empty", "iframe"):
            read = await browser.get(
                f"{here.url}{PAGE}", headers={**secret, "sec-fetch-dest": dest}
            )
            assert read.status_code == 404, "no script reads it with the cookie"
        other = await browser.get("/competitions/kim/draft", headers=secret)
        assert other.status_code == 404, "a cookie is of one page"
        assert "cup" not in (await browser.get("/competitions/", headers=secret)).text
        async with httpx.AsyncClient(base_url=here.url, trust_env=False, timeout=60) as another:
            assert (await another.get(PAGE)).status_code == 404
        await lee.competitions.LeaveCompetition(pb.LeaveCompetitionRequest(competition="kim/cup"))
        await here.rig.plane.core.accounts.delete_user("lee")
        assert (await browser.get(PAGE)).status_code == 404
