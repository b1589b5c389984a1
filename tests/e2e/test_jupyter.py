"""`nsml dev --jupyter`: a real JupyterLab of the session's own environment, in a real browser."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from bench.platform import PROGRAMS
from tests.e2e.programs import wait_for, write_program
from tests.support.chromium import chromium, required_chromium
from tests.support.in_process import Platform

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ("-g", "0", "-c", "1", "--memory", "3G", "--grace", "1s")
COMPUTES = """
new Promise(async (resolve, reject) => {
  const token = new URLSearchParams(location.search).get("token") || "TOKEN";
  const headers = {Authorization: "token " + token};
  const made = await fetch("/api/kernels", {method: "POST", headers, body: "{}"});
  const kernel = (await made.json()).id;
  const socket = new WebSocket(`ws://${location.host}/api/kernels/${kernel}/channels?token=${token}`);
  const header = {msg_id: "1", msg_type: "execute_request", username: "", session: "1", date: "", version: "5.3"};
  const content = {code: "print(6 * 7, open('main.py').read())", silent: false, store_history: false};
  const message = {header, parent_header: {}, metadata: {}, content, channel: "shell", buffers: []};
  socket.onopen = () => socket.send(JSON.stringify(message));
  socket.onmessage = (event) => {
    const said = JSON.parse(event.data);
    if (said.msg_type === "stream") resolve(said.content.text);
    if (said.msg_type === "error") reject(new Error(said.content.evalue));
  };
  socket.onclose = () => reject(new Error("closed"));
})
"""


@pytest.mark.slow
@pytest.mark.long("JupyterLab is installed from the package index")
def test_a_notebook_computes_in_the_session(tmp_path: Path) -> None:
    required_chromium()
    code = write_program(tmp_path / "code", "print('of the folder')\n")
    (code / "requirements.txt").write_text("jupyterlab==4.4.9\n")
    with Platform(simulate_gpus=1) as platform:
        with subprocess.Popen(
            [str(PROGRAMS / "nsml"), "dev", "--jupyter", "--stop", *SMALL],
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
                token = address.rpartition("=")[2]
                with chromium(tmp_path / "browser", size=(1200, 800)) as page:
                    page.open(address)
                    page.wait(
                        lambda: "JupyterLab" in page.evaluate("document.title"), "it is shown"
                    )
                    found = page.evaluate(COMPUTES.replace("TOKEN", token))
                assert found == "42 print('of the folder')\n\n"
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 130
            finally:
                process.kill()
        wait_for(lambda: not platform.nsml("ps", "-o", "name").stdout, what="it has ended")
