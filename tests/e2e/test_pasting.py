"""What readers of the pages paste works where it stands, in the order of the page, on a platform of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.platform import PROGRAMS
from tests.support.documents import PAGES, ROOT, Block, blocks, commands
from tests.support.pasting import Shell

TYPED = {
    "nsml ps -w": ("Running", "\x03"),
    "nsml-tui": ("running ", "\x11"),
    "nsml-tui --demo": ("running", "\x11"),
    "nsml ssh @last": (" $", "\x04"),
    "nsml forward @last 8888": ("Ctrl-C ends it", "\x03"),
    "nsml secret set WANDB_API_KEY": (":", "secret\n"),
    "tensorboard --logdir runs": ("http://", "\x03"),
    "nsml gpustat -w": ("Simulated", "\x03"),
    "nsml-tui --record seen.nsml": ("local", "\x11"),
    "nsml-tui --replay seen.nsml": ("local", "\x11"),
    "nsml-tui --web": ("http://", "\x03"),
    "nsml-tui --web --port 8000": ("8000", "\x03"),
    "nsml-tui --theme light": ("local", "\x11"),
    "nsml-tui --ascii": ("local", "\x11"),
}
"""Of commands that stay or ask: what they write then, and the keys that a reader presses."""
INTERRUPTED = 130


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: names of sockets have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="nsml-") as folder:
        yield Path(folder)


@pytest.fixture
def shell(home: Path) -> Iterator[Shell]:
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))}
    environment = {**kept, "HOME": str(home), "LANG": "C.UTF-8"}
    try:
        with Shell(ROOT, environment) as made:
            yield made
    finally:
        down = [str(PROGRAMS / "nsml"), "down", "-y"]
        subprocess.run(down, env=environment, check=False, capture_output=True, timeout=60)


def pasted(shell: Shell, block: Block) -> None:
    """Paste each line of a block; a line that fails names itself."""
    for line in commands(block):
        command = line.partition(" # ")[0].strip()
        awaits, keys = TYPED.get(command, ("", ""))
        code, written = shell.paste(line, awaits=awaits, keys=keys)
        if not command.startswith("nsml") and keys:
            continue  # it served, and ends as it likes
        expected = {0, INTERRUPTED} if keys == "\x03" else {0}
        assert code in expected, f"{block.place}: {line}\nexit code {code}\n{written}"
        assert "Traceback" not in written, f"{block.place}: {line}\n{written}"


WALK = ["README.md", "docs/running.md"]
"""The second continues the first."""


def examples() -> set[Path]:
    """What lies where the walk goes on, but for what a platform may keep there."""
    found = (ROOT / "examples").rglob("*")
    return {one for one in found if not {".nsml", "__pycache__"} & set(one.parts)}


@pytest.mark.slow
def test_the_readme_and_what_continues_it(shell: Shell) -> None:
    before = examples()
    for page in WALK:
        for block in blocks(page):
            if block.language == "sh" and not block.reason:
                pasted(shell, block)
    assert examples() == before, "a line of the walk leaves a file that would be committed"


STORY = """\
import nsml

for step in range(1_001):
    nsml.report(summary=True, step=step, epoch=step, train__loss=1 / (step + 1), val__loss=1.0, val__accuracy=0.5)
nsml.text("val/confusion", "a text", 30)
print("loss: nan", flush=True)
"""
"""What the sessions of the pages do: mnist/1 to mnist/5, of kim."""
TRIED = [
    "docs/boards.md",
    "docs/control-planes.md",
    "docs/datasets.md",
    "docs/nodes.md",
    "docs/nsml.md",
    "docs/projects.md",
    "docs/results.md",
    "docs/session-backup.md",
    "docs/telemetry.md",
    "docs/tui.md",
]
PLATFORM = [
    "export PATH={root}/.venv/bin:$PATH USER=kim LOGNAME=kim",
    "nsml up --simulate-gpus 4",
    "nsml admin user add lee",
    "nsml dataset push mnist data",
    *["nsml run -g 0 -d mnist --wait"] * 5,
]


@pytest.mark.slow
@pytest.mark.parametrize("page", TRIED)
def test_a_page_beside_a_platform_with_sessions(shell: Shell, home: Path, page: str) -> None:
    (home / "work/data").mkdir(parents=True)
    (home / "work/data/a.txt").write_text("a\n")
    (home / "work/main.py").write_text(STORY)
    for line in [f"cd {home}/work", *(one.format(root=ROOT) for one in PLATFORM)]:
        code, written = shell.paste(line)
        assert code == 0, f"{line}\n{written}"
    for block in blocks(page):
        if block.language == "sh" and not block.reason:
            pasted(shell, block)


@pytest.mark.slow
def test_an_example_where_it_stands(shell: Shell) -> None:
    for line in (f"export PATH={ROOT}/.venv/bin:$PATH", "nsml up --simulate-gpus 2"):
        assert shell.paste(line)[0] == 0
    for block in blocks("examples/digits/README.md"):
        pasted(shell, block)


def test_every_page_whose_blocks_are_run_is_among_these() -> None:
    run = {
        block.page
        for page in PAGES
        for block in blocks(page)
        if block.language == "sh" and not block.reason
    }
    assert run == {*WALK, *TRIED, "examples/digits/README.md"}
