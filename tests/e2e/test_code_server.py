"""`nsml dev --code-server`: a real code-server, where this machine has one, in a real browser.

One for this test, in a folder of the system, beside the Node that it asks for (docs/inside.md).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from bench.platform import PROGRAMS
from tests.e2e.programs import wait_for, write_program
from tests.support.chromium import Page, chromium, required_chromium
from tests.support.in_process import Platform

SMALL = ("-g", "0", "-c", "1", "--memory", "3G", "--grace", "1s")
F1, ENTER = 112, 13
FILES = "document.querySelector('.explorer-folders-view').innerText"
CHOSEN = "document.querySelector('.quick-input-list .monaco-list-row.focused')?.innerText ?? ''"
HAS_FOCUS = "document.activeElement.className"


@pytest.mark.slow
@pytest.mark.long("code-server takes its time, and is not in the package indexes of Python")
def test_its_terminal_has_the_environment_of_the_session(tmp_path: Path) -> None:
    program = shutil.which("code-server")
    if program is None or program.startswith("/tmp"):
        pytest.skip("no code-server on PATH that sessions see")
    required_chromium()
    code = write_program(tmp_path / "code", "import sys; print(sys.prefix)\n")
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
