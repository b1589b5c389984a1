"""The dashboard behind the gateway, in a real Chromium, as somebody who has neither terminal nor administrator's rights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from cli.local.ports import Held
from tests.e2e.platforms import user_of
from tests.e2e.programs import wait_for, write_program
from tests.support.chromium import chromium, colours
from tests.support.in_process import Platform

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "bnNtbCBpcyBub3QgaGVyZQ==",
}
SAID = "document.body?.innerText ?? ''"
FOCUS = "document.activeElement?.id"
PROGRAM = """\
import time
import nsml
for step in range(1, 40):
    nsml.report(step=step, loss=1 / step, summary=True)
print("seen by its owner")
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def platform() -> Iterator[Platform]:
    ports = Held()
    try:
        with Platform(options=["--http", f"0.0.0.0:{ports.free()}"]) as running:
            yield running
    finally:
        ports.close()


def shown(platform: Platform) -> list[psutil.Process]:
    """What runs for browsers."""
    children = psutil.Process(platform.pid("controlplane")).children(recursive=True)
    return [one for one in children if {"tui.web.view", "tui.main"} & set(one.cmdline())]


def test_a_user_sees_and_does_in_a_browser_what_that_user_may(
    platform: Platform, tmp_path: Path
) -> None:
    kim = user_of(platform, "kim", tmp_path)
    code = write_program(tmp_path / "code", PROGRAM)
    run = ("run", "-o", "name", "-e", "main.py", "-g", "1")
    mine = platform.nsml(*run, "-m", "of kim", cwd=code, environment=kim).stdout.strip()
    others = platform.nsml(*run, "-m", "hidden memo", cwd=code).stdout.strip()
    opened = platform.nsml("dashboard", environment=kim).stdout.strip()
    place = urlsplit(opened)
    assert place.scheme == "https"

    with chromium(tmp_path / "browser", size=(1400, 800)) as page:
        page.open(opened)
        page.wait(lambda: mine in page.text and "of kim" in page.text, "kim's session is shown")
        page.wait(lambda: "seen by its owner" in page.text, "and what it printed")
        page.wait(lambda: "loss=" in page.text, "and reported")
        page.wait(lambda: colours(page.picture()) > 100, "it is painted")
        if picture := os.environ.get("NSML_PICTURE"):
            page.picture().save(picture)
        assert others not in page.text
        assert "hidden memo" not in page.text
        page.type("2")
        page.wait(lambda: "no queued sessions" in page.text, "the queue is shown")
        assert others not in page.text
        assert page.evaluate("document.cookie") == ""
        assert "ticket" not in page.evaluate("location.href")
        assert {urlsplit(one).netloc for one in page.requested} == {place.netloc}

        # Nobody finds the credential where others of this machine can look.
        token = Path(kim["NSML_TOKEN_FILE"]).read_bytes().strip()
        assert len(shown(platform)) == 2
        for process in shown(platform):
            for name in ("cmdline", "environ"):
                assert token not in Path(f"/proc/{process.pid}/{name}").read_bytes()
            assert process.net_connections(kind="inet") == []

        # Nor does anybody come in without the cookie, or with it from a page of somebody else's.
        answer = page.tell("Network.getCookies", urls=[f"https://{place.netloc}{place.path}"])
        (cookie,) = answer["cookies"]
        assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Lax")
        port = place.port or 443
        base = f"https://127.0.0.1:{port}{place.path}"
        assert httpx.get(base, verify=False, trust_env=False, timeout=60).status_code == 403
        held = {"Cookie": f"{cookie['name']}={cookie['value']}"}
        assert (
            httpx.get(base, headers=held, verify=False, trust_env=False, timeout=60).status_code
            == 200
        )
        for origin, headers in (
            ("https://evil.example", held),
            (None, held),
            (f"https://127.0.0.1:{port}", {}),
        ):
            opening = UPGRADE | headers | ({} if origin is None else {"Origin": origin})
            refused = httpx.get(
                f"{base}ws", headers=opening, verify=False, trust_env=False, timeout=60
            )
            assert refused.status_code == 403

        # What kim may, the page does: as the command line.
        page.type("1")
        page.wait(lambda: "nobody waits" not in page.text and mine in page.text, "back")
        page.press("k", 75, control=True)
        page.wait(lambda: f"$ nsml stop {mine}" in page.text, "it asks")
        page.type("y")
        wait_for(lambda: state(platform, mine) != "RUNNING", what="it is stopped")
        assert state(platform, others) == "RUNNING"

        platform.nsml("dashboard", "--stop", environment=kim)
        ended = "document.body?.classList.contains('-closed') === true"
        page.wait(lambda: page.evaluate(ended), "it is seen")
        why = "document.getElementById('why')?.innerText ?? ''"
        page.wait(lambda: "this view has ended" in page.evaluate(why), "and said")
        wait_for(lambda: not shown(platform), what="its processes are gone")
        answer = page.evaluate("fetch(location.pathname).then((answer) => answer.status)")
        assert answer == 403

        # It leads to where one signs in without a command line: with the token itself.
        page.press("Enter", 13)
        page.wait(lambda: page.evaluate(FOCUS) == "token", "it asks for it")
        page.type("nothing\r")
        page.wait(lambda: "not valid" in page.evaluate(SAID), "it says no")
        page.wait(lambda: page.evaluate(FOCUS) == "token", "and asks again")
        before = page.connections
        page.type(token.decode() + "\r")
        page.wait(lambda: page.connections > before, "and leads on")
        page.wait(lambda: mine in page.text, "the dashboard is shown")
        assert others not in page.text
        assert token.decode() not in " ".join(page.requested)

        # Whoever leaves may sign out: then this browser is let in nowhere any more.
        page.press("q", 81, control=True)
        offered = "document.getElementById('leave')?.hidden === false"
        page.wait(lambda: page.evaluate(offered), "signing out is offered")
        if picture := os.environ.get("NSML_PICTURE_ENDED"):
            page.picture().save(picture)
        left = page.evaluate("location.pathname")
        (cookie,) = page.tell("Network.getCookies", urls=[f"https://{place.netloc}{left}"])[
            "cookies"
        ]
        page.evaluate("document.getElementById('leave').click()")
        page.wait(lambda: page.evaluate(FOCUS) == "token", "it asks for a token")
        answer = page.tell("Network.getCookies", urls=[f"https://{place.netloc}{left}"])
        assert answer["cookies"] == []
        held = {"Cookie": f"{cookie['name']}={cookie['value']}"}
        base = f"https://127.0.0.1:{port}{left}"
        assert (
            httpx.get(base, headers=held, verify=False, trust_env=False, timeout=60).status_code
            == 403
        )
        wait_for(lambda: not shown(platform), what="its processes are gone")


def state(platform: Platform, name: str) -> str:
    (found,) = [one for one in platform.json("ps", "-a")["items"] if one["name"] == name]
    return str(found["state"])
