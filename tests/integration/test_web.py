"""`nsml-tui --web` in a real Chromium."""

import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from tests.support.chromium import PATIENCE_S, chromium, colours


@pytest.mark.every_time
def test_a_browser_shows_the_dashboard_and_asks_nobody_else(tmp_path):
    program = subprocess.Popen(
        [sys.executable, "-P", "-m", "tui.main", "--web", "--demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = program.stdout.readline().decode().strip()
        with chromium(tmp_path) as page:
            # Nor does a page that asks for it by its address.
            page.open(f"{address}?ping=http://evil.example/")
            page.wait(lambda: "evil.example" in " ".join(page.said), "that is refused")
            page.open(address)
            page.wait(lambda: "garden" in page.text and "1 Sessions" in page.text, "it is shown")
            page.wait(lambda: colours(page.picture()) > 100, "and painted")
            page.type("2")
            page.wait(lambda: "GPUs asked for" in page.text, "keys reach it")
            page.type("1")
            page.wait(lambda: "of 3" in page.text and "GPUs asked" not in page.text, "back")
            page.type("/state:run")
            page.wait(lambda: "state:run" in page.text, "and what is typed")
            page.press("q", 81, control=True)
            ended = "document.body?.classList.contains('-closed') === true"
            page.wait(lambda: page.evaluate(ended), "the page says that it has ended")
            before = page.connections
            page.press("Enter", 13)
            page.wait(lambda: page.connections > before, "and opens it again with Enter")
            page.wait(lambda: "1 Sessions" in page.text, "anew")
            places = {urlsplit(one).netloc for one in page.requested if "evil" not in one}
            assert places == {urlsplit(address).netloc}
            paths = {urlsplit(one).path for one in page.requested if "evil" not in one}
            assert all(path.startswith(urlsplit(address).path) for path in paths)
            program.send_signal(signal.SIGINT)
            assert program.wait(PATIENCE_S) == 0
            why = "document.getElementById('why').innerText"
            page.wait(lambda: "tried again" in page.evaluate(why), "it says what it does")
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
