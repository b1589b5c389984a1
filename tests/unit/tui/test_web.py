"""`nsml-tui --web`: who is let in, what is shown, and that processes end."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import httpx
import psutil
import pyte
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from nsml.client import contexts
from nsml.client.contexts import Config, Context
from tests.unit.nsml.client.contract_server import TOKEN
from tests.unit.tui.conftest import WITHIN_S
from tui.web import page
from tui.web.visits import DIED, LEFT, MOST_VISITS, NOT_UNDERSTOOD, REPLACED, RESTARTED


def command(*options):
    return [sys.executable, "-P", "-m", "tui.main", *options]


@contextlib.contextmanager
def serving(*options, **environment):
    """The program, and the address that it prints."""
    program = subprocess.Popen(
        command("--web", *options),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield program, program.stdout.readline().decode().strip()
    finally:
        for process in (*visits(program), program):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        program.wait()
        program.stdout.close()


@pytest.fixture(scope="module")
def address():
    with serving("--demo") as (_, address):
        yield address


def visits(program):
    try:
        return psutil.Process(program.pid).children()
    except psutil.NoSuchProcess:
        return []


def visit(address, *, origin=None, path="ws", **options):
    place = urlsplit(address)
    return connect(
        f"ws://{place.netloc}{place.path}{path}?width=120&height=30",
        origin=f"http://{place.netloc}" if origin is None else origin,
        proxy=None,
        open_timeout=60,
        max_queue=None,  # else what is not read is in the way of its end
        **options,
    )


class Terminal:
    """A browser's end of a visit."""

    def __init__(self, connection):
        self._connection = connection
        self._screen = pyte.Screen(120, 30)
        self._stream = pyte.ByteStream(self._screen)

    def say(self, *message):
        self._connection.send(json.dumps(message))

    def read_until(self, holds):
        ends_at = time.monotonic() + WITHIN_S
        while not holds("\n".join(self._screen.display)):
            try:
                said = self._connection.recv(max(ends_at - time.monotonic(), 0))
            except TimeoutError:
                raise AssertionError("\n".join(self._screen.display)) from None
            if isinstance(said, bytes):
                self._stream.feed(said)


def read_to_its_end(connection):
    """The code that says why it ended."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            connection.recv(WITHIN_S)
    return connection.close_code


def gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def wait(holds, what):
    ends_at = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < ends_at, what
        time.sleep(0.02)


def test_the_page_is_there_for_whoever_has_the_address_alone(address):
    place = urlsplit(address)
    base = f"http://{place.netloc}"
    with httpx.Client(trust_env=False, timeout=60) as browser:
        shown = browser.get(address)
        assert shown.status_code == 200
        assert {name: shown.headers[name] for name in page.HEADERS} == page.HEADERS
        for name in ("page.js", "page.css", "terminal.js", "terminal.css", "font.ttf"):
            assert browser.get(address + name).raise_for_status().content
        for path in ("/", "/ws", "/page.js", place.path[:-2] + "/", place.path[:-1]):
            assert (path, browser.get(base + path).status_code) == (path, 404)
        for name in ("static/", "page.py", "..%2f..%2fmain.py", "%2e%2e/__init__.py"):
            assert browser.get(address + name).status_code == 404
        # A name that leads here, of somebody else's page.
        rebound = {"Host": f"evil.example:{place.port}"}
        assert browser.get(address, headers=rebound).status_code == 404
        assert browser.get(address, headers={"Host": f"localhost:{place.port}"}).status_code == 200
        assert browser.post(address).status_code == 405


def test_the_page_loads_nothing_from_elsewhere(address):
    own = [file for name, file in page._FILES.items() if not name.startswith("terminal")]
    texts = [file.read_text() for file in own if file.suffix != ".ttf"]
    assert not [text for text in texts if "//" in text.replace("// ", "")]
    assert all("'self'" in one or "'none'" in one or "data:" in one for one in page._POLICY)


def test_a_page_of_somebody_else_reaches_no_dashboard(address):
    port = urlsplit(address).port
    for origin in ("https://evil.example", "null", f"http://evil.example:{port}", ""):
        with pytest.raises(InvalidStatus) as refused, visit(address, origin=origin):
            pass
        assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus), visit(address, path="x/ws"):
        pass


def test_a_visit_shows_the_dashboard_and_ends_with_its_key():
    with serving("--demo") as (program, address):
        with visit(address) as connection:
            terminal = Terminal(connection)
            terminal.read_until(lambda text: "garden" in text and "1 Sessions" in text)
            (process,) = visits(program)
            terminal.say("stdin", "2")
            terminal.read_until(lambda text: "GPUs asked for" in text)
            terminal.say("resize", {"width": 100, "height": 30})
            terminal.say("ping", "17")
            while connection.recv(WITHIN_S) != json.dumps(["pong", "17"], separators=(",", ":")):
                pass
            terminal.say("stdin", "\x11")
            assert read_to_its_end(connection) == LEFT
        wait(lambda: gone(process), "it has ended")
        with visit(address) as connection:
            Terminal(connection).read_until(lambda text: "1 Sessions" in text)
            (process,) = visits(program)
        wait(lambda: gone(process), "it has ended with its connection")

        # What the page never says ends it.
        with visit(address) as connection:
            connection.send('["exec", "sh"]')
            assert read_to_its_end(connection) == NOT_UNDERSTOOD


def test_a_platform_is_shown_as_in_a_terminal(server, tmp_path):
    server.state.add("kim/mnist/1", memo="first try")
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    context = Context(name="gpu-lab", server=server.address, token_file=str(token))
    contexts.save(Config(str(tmp_path), contexts={"gpu-lab": context}))
    with (
        serving("--context", "gpu-lab", NSML_CONFIG_DIR=str(tmp_path)) as (program, address),
        visit(address) as connection,
    ):
        Terminal(connection).read_until(lambda text: "kim/mnist/1" in text and "gpu-lab" in text)
        (process,) = visits(program)
        assert TOKEN not in " ".join(process.cmdline())


def test_a_dashboard_that_is_killed_is_said_to_have_died():
    with serving("--demo") as (program, address), visit(address) as connection:
        Terminal(connection).read_until(lambda text: "1 Sessions" in text)
        (process,) = visits(program)
        process.kill()
        assert read_to_its_end(connection) == DIED


def test_visits_are_few_and_the_oldest_gives_way():
    with serving("--demo") as (program, address), contextlib.ExitStack() as all_of_them:
        first, *_ = [all_of_them.enter_context(visit(address)) for _ in range(MOST_VISITS)]
        wait(lambda: len(visits(program)) == MOST_VISITS, "all are there")
        last = all_of_them.enter_context(visit(address))
        assert read_to_its_end(first) == REPLACED
        Terminal(last).read_until(lambda text: "1 Sessions" in text)
        assert len(visits(program)) == MOST_VISITS


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_server(how):
    with serving("--demo") as (program, address), visit(address) as connection:
        Terminal(connection).read_until(lambda text: "1 Sessions" in text)
        (process,) = visits(program)
        program.send_signal(how)
        assert read_to_its_end(connection) == (RESTARTED if how == signal.SIGINT else 1006)
        assert program.wait(WITHIN_S) == (0 if how == signal.SIGINT else -how)
        wait(lambda: gone(process), "it has ended")


def refused(*options, **environment):
    said = subprocess.run(
        command(*options),
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert (said.returncode, said.stdout) == (2, "")
    return said.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gpu.lab"])
def test_it_listens_on_this_machine_alone(host):
    said = refused("--web", "--demo", "--host", host)
    assert f"this machine alone, not on {host}" in said
    assert "nsml dashboard" in said


def test_what_cannot_be_is_said_in_a_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port} is taken" in refused("--web", "--demo", "--port", port)
    assert "--web goes without --record" in refused("--web", "--record", "seen.nsml")
    assert "--host and --port go with --web" in refused("--demo", "--port", "1")
    assert "needs a terminal" in refused("--demo")
    assert "--visit is for who serves" in refused("--demo", "--visit", "99")
    assert "no-such-file" in refused("--web", "--replay", "no-such-file")


def test_without_the_extra_it_says_what_to_install(tmp_path):
    program = (
        "import sys\n"
        "sys.modules['textual_serve'] = None\n"
        "from tui.main import main\n"
        "main(['--web', '--demo'])\n"
    )
    said = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert (said.returncode, said.stdout) == (2, "")
    assert "try: pip install 'nsml[web]'" in said.stderr


async def test_a_browser_is_offered_no_files(dashboard, monkeypatch):
    async with dashboard.run_test():

        def offered():
            return {one.title for one in dashboard.get_system_commands(dashboard.screen)}

        assert "Screenshot" in offered()
        monkeypatch.setattr(type(dashboard), "is_web", True)
        assert "Screenshot" not in offered()
        assert "Theme" in offered()
