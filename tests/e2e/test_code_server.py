"""`nsml dev --code-server`: a real code-server, where this machine has one, in a real browser."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from bench.platform import PROGRAMS
from tests.e2e.programs import wait_for, write_program
from tests.support.chromium import chromium, required_chromium
from tests.support.in_process import Platform

SMALL = ("-g", "0", "-c", "1", "--memory", "3G", "--grace", "1s")


@pytest.mark.slow
@pytest.mark.long("code-server takes its time, and is not in the package indexes of Python")
def test_files_of_the_session_are_shown(tmp_path: Path) -> None:
    program = shutil.which("code-server")
    if program is None or program.startswith("/tmp"):
        pytest.skip("no code-server on PATH that sessions see")
    required_chromium()
    code = write_program(tmp_path / "code", "print('of the folder')\n")
    path = f"PATH={Path(program).parent}:{os.defpath}"
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
                    page.wait(
                        lambda: "main.py" in page.evaluate("document.body.innerText"),
                        "the folder is shown",
                    )
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 130
            finally:
                process.kill()
        wait_for(lambda: not platform.nsml("ps", "-o", "name").stdout, what="it has ended")
