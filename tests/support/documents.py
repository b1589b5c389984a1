"""The blocks of documents that readers paste: which there are, which run, and why others do not.

A block in ```sh is pasted into a shell, line after line. `<!-- not run: REASON -->` on the line before says why no
test runs it; REASON is one of REASONS, and has to be so. What is no command (a drawing, output, a grammar) is a block in ```text.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "deploy/README.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")),
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "examples").glob("*/README.md")),
)
REASONS = {
    "another machine": r"0\.0\.0\.0|admin user add|nsml join",
    "a cluster": r"etcd|ETCD",
    "paths of a server": r"/(backups|etc|opt|srv)/",
    "more GPUs": r"-g (8|16)",
    "more nodes": r"--nodes [0-9]",
    "a form": r"SESSION|FILE|XXXX|gpu-7",
    "one of these": r"nsml up .*\n.*nsml up ",
    "a fixed port": r"127\.0\.0\.1:18555",
    "needs Visdom": r"visdom",
    "needs nodes": r"nsml env build",
    "needs a registry": r"nsml image login",
    "needs a node with containers": r"--dockerfile",
    "needs a dataset with a hidden test set": r"nsml (submit|board|infer) ",
    "a service of yours": r"webhook",
    "runs of other tools": r"nsml import",
    "takes a submission": r"nsml submit",
    "takes minutes": r"make |pip |torchrun|distributed|--sweep|nsml resume",
}
"""Why a block is not run, and what it has then."""
_FENCE = re.compile(r"^```(\S*)$")
_REASON = re.compile(r"^<!-- not run: (.+) -->$")


class Block(NamedTuple):
    """One fenced block: `line` is the number of its fence, from 1."""

    page: str
    line: int
    language: str
    lines: Sequence[str]
    reason: str

    @property
    def place(self) -> str:
        """PAGE:LINE."""
        return f"{self.page}:{self.line}"


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    begun: tuple[int, str, str] | None = None
    held: list[str] = []
    before = ""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), start=1):
        fence = _FENCE.match(line.strip())
        if fence and begun is None:
            reason = _REASON.match(before)
            begun, held = (number, fence[1], reason[1] if reason else ""), []
        elif fence and begun is not None:
            yield Block(page, begun[0], begun[1], held, begun[2])
            begun = None
        elif begun is not None:
            held.append(line)
        before = line.strip()


def commands(block: Block) -> list[str]:
    """The commands of a block as they are pasted: a line each, or as many as bash takes for a whole."""
    found: list[str] = []
    held = ""
    for line in block.lines:
        held += line + "\n"
        if _is_open(held):
            continue
        if not held.endswith("\\\n"):
            found += [held.strip()] if held.strip() and not held.lstrip().startswith("#") else []
            held = ""
    return found


def _is_open(text: str) -> bool:
    """Whether bash would wait for more lines."""
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    return done.returncode != 0
