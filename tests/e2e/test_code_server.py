"""code-server, where this machine has one: in a real browser, and its VS Code server over ssh.

For these tests it is in a folder of the system, beside the Node that it asks for (docs/inside.md).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from bench.platform import PROGRAMS
from tests.e2e.programs import wait_for, write_program
from tests.e2e.test_secrets import processes_with
from tests.e2e.test_sh import begun
from tests.e2e.test_ssh import WAITS, Ssh
from tests.support.chromium import Page, chromium, required_chromium
from tests.support.in_process import Platform

SMALL = ("-g", "0", "-c", "1", "--memory", "3G", "--grace", "1s")
F1, ENTER = 112, 13
FILES = "document.querySelector('.explorer-folders-view').innerText"
CHOSEN = "document.querySelector('.quick-input-list .monaco-list-row.focused')?.innerText ?? ''"
HAS_FOCUS = "document.activeElement.className"
BOOTSTRAP = r"""
umask 077
folder=$HOME/.vscode-server-MARK
mkdir -p "$folder"
if ! kill -0 "$(cat "$folder/pid" 2>/dev/null)" 2>/dev/null; then
  echo MARK > "$folder/token"
  nohup NODE SERVER --start-server --host=127.0.0.1 --port=0 --connection-token-file "$folder/token" \
    --server-data-dir "$folder" --accept-server-license-terms > "$folder/log" 2>&1 < /dev/null &
  echo $! > "$folder/pid"
fi
until port=$(sed -n 's/^Extension host agent listening on //p' "$folder/log") && [ -n "$port" ]; do sleep 0.1; done
echo "$(cat "$folder/pid") $port"
"""
"""What Remote-SSH gives a shell on its standard input."""
UPGRADE = """\
GET /?reconnectionToken=some&reconnection=false&skipWebSocketFrames=false HTTP/1.1
Host: localhost
Connection: Upgrade
Upgrade: websocket
Sec-WebSocket-Version: 13
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==

""".replace("\n", "\r\n")


@pytest.mark.slow
@pytest.mark.long("code-server takes its time, and is not in the package indexes of Python")
def test_its_terminal_has_the_environment_of_the_session(tmp_path: Path) -> None:
    folder = folder_of_code_server()
    required_chromium()
    code = write_program(tmp_path / "code", "import sys; print(sys.prefix)\n")
    path = f"PATH={folder}:{os.defpath}"
    with Platform(simulate_gpus=1) as platform:
        with subprocess.Popen(
            [str(PROGRAMS / "nsml"), "dev", "--code-server", "--stop", *SMALL, "--env", path],
            cwd=code,
            env=platform.environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                address = next(
                    line for line in process.stdout if line.startswith("http://")
                ).strip()
                with chromium(tmp_path / "browser", size=(1200, 800)) as page:
                    page.open(address)
                    page.wait(lambda: "main.py" in page.evaluate(FILES), "the folder is shown")
                    open_terminal(page)
                    page.type("(python main.py; echo $SHELL) > part && mv part made.txt\r")
                    page.wait(lambda: "made.txt" in page.evaluate(FILES), "the new file is shown")
                made = platform.nsml("sh", "@last", "--", "cat", "made.txt").stdout.splitlines()
                assert "/environments/" in made[0]
                assert Path(made[1]).name == ("bash" if shutil.which("bash") else "sh")
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 130
            finally:
                process.kill()
        wait_for(lambda: not platform.nsml("ps", "-o", "name").stdout, what="it has ended")


@pytest.mark.slow
@pytest.mark.long("VS Code's server takes its time")
def test_its_server_started_over_ssh_outlives_a_broken_connection_and_ends_with_the_session(
    tmp_path: Path,
) -> None:
    folder = folder_of_code_server()
    code = (folder / "code-server").resolve().parents[2] / "lib/vscode"
    node = shutil.which("node", path=f"{folder}:{os.defpath}")
    mark = secrets.token_hex(8)
    values = {"MARK": mark, "NODE": node, "SERVER": code / "out/server-main.js"}
    script = BOOTSTRAP
    for name, value in values.items():
        script = script.replace(name, str(value))
    with Platform(simulate_gpus=1) as platform:
        (config := tmp_path / "config").write_text(platform.nsml("ssh-config").stdout)
        ssh = Ssh(platform, config)
        small = ("-g", "0", "-c", "1", "--memory", "3G")
        session = begun(platform, write_program(tmp_path / "code", WAITS), *small)
        host = f"{platform.nsml('getid', session).stdout.strip()}.nsml"
        with ssh.open("-T", host, "sh") as shell:  # stays, until the connection breaks
            assert shell.stdin is not None
            assert shell.stdout is not None
            shell.stdin.write(script.encode())
            began = shell.stdout.readline()
        again = ssh.run("ssh", "-T", host, "sh", given=script.encode())
        assert again[:2] == (0, began)
        port = began.split()[1].decode()
        version = "GET /version HTTP/1.0\r\n\r\n"
        commit = json.loads((code / "product.json").read_text())["commit"]
        assert commit in answer(ssh, host, port, version, ends=commit)
        upgraded = answer(ssh, host, port, UPGRADE, ends="\r\n\r\n")
        assert upgraded.startswith("HTTP/1.1 101 ")
        assert processes_with(mark)
        platform.nsml("stop", session)
        wait_for(lambda: not processes_with(mark), what="the server has ended")


def folder_of_code_server() -> Path:
    """Where it is, or a skip."""
    program = shutil.which("code-server")
    if program is None or program.startswith("/tmp"):
        pytest.skip("no code-server on PATH that sessions see")
    return Path(program).parent


def answer(ssh: Ssh, host: str, port: str, request: str, *, ends: str) -> str:
    """What a port of the session says to a request, through a channel of ssh, up to an end."""
    with ssh.open("-W", f"127.0.0.1:{port}", host) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request.encode())
        said = b""
        while not said.endswith(ends.encode()) and (data := process.stdout.read(1)):
            said += data
    return said.decode()


def open_terminal(page: Page) -> None:
    """Open one by the command palette; nothing asks whether the folder is trusted."""

    def is_offered() -> bool:
        page.press("F1", F1)  # is not heard before the page is ready
        return "quick-input" in page.evaluate(
            "document.activeElement.closest('.quick-input-widget')?.className ?? ''"
        )

    page.wait(is_offered, "the command palette is open")
    page.type("Terminal: Create New Terminal")
    page.wait(
        lambda: page.evaluate(CHOSEN).startswith("Terminal: Create New Terminal"), "it is found"
    )
    page.press("Enter", ENTER)
    page.wait(lambda: "xterm" in page.evaluate(HAS_FOCUS), "the terminal is open")
