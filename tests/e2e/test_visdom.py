"""The real visdom behind the gateway, asked for what its page asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from cli.local.ports import Held
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform
from tests.support.visdoms import required_visdom

pytestmark = pytest.mark.slow

PROGRAM = """\
import os, time
import nsml
for step in range(1, 4):
    nsml.report(step=step, loss=1 / step, **{"<b>odd</b>": step})
while not os.path.exists("/app/more"):
    time.sleep(0.05)
nsml.report(step=4, loss=0.125)
"""


@pytest.fixture
def platform() -> Iterator[Platform]:
    python = required_visdom()
    ports = Held()
    try:
        with Platform(
            options=["--http", f"127.0.0.1:{ports.free()}"],
            environment={"NSML_CONTROLPLANE_VISDOM_PYTHON": str(python)},
        ) as running:
            yield running
    finally:
        ports.close()


class Page:
    """What visdom's page does: it registers, chooses an environment, and polls."""

    def __init__(self, browser: httpx.Client, environment: str) -> None:
        self._browser = browser
        self.sid = browser.get("socket_wrap").raise_for_status().json()["sid"]
        self.windows: dict[str, dict[str, Any]] = {}
        self.environments: set[str] = set()
        sent = json.dumps({"sid": self.sid})
        browser.post(f"env/{environment}", content=sent).raise_for_status()

    def ask(self, **words: str) -> Any:
        return self._browser.post("socket_wrap", json={"sid": self.sid, **words}).json()

    def lines(self) -> dict[str, list[tuple[str, list[float], list[float]]]]:
        """Name, x and y of each line by the title of its window, as of now."""
        for message in self.ask(message_type="query")["messages"]:
            said = json.loads(message)
            if said["command"] == "window":
                self.windows[said["id"]] = said
            elif said["command"] == "register":
                assert said["readonly"]
            elif said["command"] == "env_update":
                self.environments = set(said["data"])
        return {
            one["title"]: [(line["name"], line["x"], line["y"]) for line in one["content"]["data"]]
            for one in self.windows.values()
        }


def server_of(platform: Platform) -> psutil.Process:
    children = psutil.Process(platform.pid("controlplane")).children(recursive=True)
    (server,) = [one for one in children if "visdom_launcher.py" in " ".join(one.cmdline())]
    return server


def test_visdom_shows_sessions_as_they_report_and_lets_nobody_change_it(
    platform: Platform, tmp_path: Path
) -> None:
    code = write_program(tmp_path / "code", PROGRAM)
    names = [
        platform.nsml("run", "-o", "name", "-e", "main.py", "-g", "1", cwd=code).stdout.strip()
        for _ in range(2)
    ]
    opened = platform.nsml("visdom", *names, timeout_s=90).stdout.strip()
    place = urlsplit(opened)
    base = f"{place.scheme}://{place.netloc}{place.path}"
    with (
        httpx.Client(base_url=base, trust_env=False, timeout=60) as browser,
        httpx.Client(base_url=base, trust_env=False, timeout=60) as stranger,
    ):
        assert stranger.get("").status_code == 403
        assert stranger.get("socket_wrap").status_code == 403
        assert browser.get(opened).status_code == 303
        page = browser.get("")
        assert "<title>visdom</title>" in page.text
        missing = browser.get("env/none")
        assert (missing.status_code, "Traceback" in missing.text) == (404, False)
        for script in ("js/main.js", "js/plotly-plotly.min.js", "css/style.css"):
            assert browser.get(f"static/{script}").raise_for_status().content

        both = {
            "loss": [(name, [1, 2, 3], [1, 0.5, pytest.approx(1 / 3)]) for name in sorted(names)],
            "<b>odd</b>": [(name, [1, 2, 3], [1, 2, 3]) for name in sorted(names)],
        }
        together = Page(browser, "main")
        wait_for(lambda: together.lines() == both, what="visdom shows what was reported")
        own = [name.replace("/", "_") for name in names]
        assert together.environments == {"main", *own}
        alone = Page(browser, own[0])
        one = {
            title: [line for line in lines if line[0] == names[0]] for title, lines in both.items()
        }
        wait_for(lambda: alone.lines() == one, what="and of one session alone")

        # Nothing can be changed from outside, neither by the paths for that nor through the page's own.
        win = next(iter(together.windows))
        for path in ("close", "events", "update", "win_data", "fork_env", "delete_env", "save"):
            refused = browser.post(path, json={"eid": "main", "win": win, "prev_eid": "main"})
            assert (path, refused.status_code) == (path, 403)
        command = json.dumps({"cmd": "close", "data": win, "eid": "main"})
        assert together.ask(message_type="send", message=command) == {"success": True}
        again = Page(browser, "main")
        wait_for(lambda: again.lines() == both, what="all of it is there")

        for name in names:
            session_id = platform.nsml("getid", name).stdout.strip()
            replica = platform.folder / "data/agent/replicas" / f"{session_id}.1.0"
            (replica / "app/more").touch()
        line = (names[0], [1, 2, 3, 4], [1, 0.5, pytest.approx(1 / 3), 0.125])
        wait_for(lambda: alone.lines()["loss"] == [line], what="what came since is shown")

        (view,) = platform.json("visdom")["items"]
        assert (view["owner"], sorted(view["sessions"])) == ("root", sorted(names))
        assert platform.json("tensorboard")["items"] == []
        server = server_of(platform)
        assert server.net_connections(kind="inet") == []
        platform.nsml("visdom", "--stop")
        assert browser.get("").status_code == 403
        wait_for(lambda: not server.is_running(), what="its process is gone")

    # A view goes with its server.
    platform.nsml("visdom", names[0], timeout_s=90)
    server_of(platform).kill()
    wait_for(lambda: platform.json("visdom")["items"] == [], what="the view has ended")
