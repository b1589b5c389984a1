"""Wrap paragraphs and list items of the documents that have a line of more than 130 characters.

python -m tools.wrap_docs            wrap them
python -m tools.wrap_docs --check    fail for such a line, and for a table with more than 40 words in a cell
"""

from __future__ import annotations

import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
]
LONGEST, WIDTH, WORDS_OF_A_CELL = 130, 120, 40
_ITEM = re.compile(r"\s*([-*] |\d+\. )")
_WHOLE = re.compile(r"`[^`]*`|\]\([^)]*\)| (?=(?:[-*+]|\d+\.)(?: |$)|[#>|])")
"""Not broken: code, link targets, and the blank before a sign that would begin a list, heading or quote."""


def wrapped(text: str) -> str:
    """Return a page with its long paragraphs wrapped; code, tables and headings stay."""
    return "\n".join(itertools.chain.from_iterable(map(_fitted, _paragraphs(text)))) + "\n"


def _paragraphs(text: str) -> Iterator[list[str]]:
    """Paragraphs and items of lists; every other line alone."""
    held: list[str] = []
    is_code = False
    for line in text.splitlines():
        is_fence = line.lstrip().startswith("```")
        is_text = not is_code and not is_fence and re.match(r"\s*[^\s#|>!<]", line)
        is_code ^= is_fence
        if held and (not is_text or _ITEM.match(line)):
            yield held
            held = []
        if is_text:
            held.append(line)
        else:
            yield [f"{line}\0"]
    yield from [held] if held else []


def _fitted(lines: list[str]) -> list[str]:
    if lines[0].endswith("\0") or max(map(len, lines)) <= LONGEST:
        return [line.removesuffix("\0") for line in lines]
    begin = _ITEM.match(lines[0]) or re.match(r"\s*", lines[0])
    indent = " " * (begin.end() if begin else 0)
    joined = " ".join([lines[0], *(line.strip() for line in lines[1:])])
    whole = _WHOLE.sub(lambda found: found[0].replace(" ", "\0"), joined)
    folded = textwrap.wrap(
        whole, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in folded]


def main() -> int:
    """Wrap the pages, or name those with long lines or cells."""
    wrong = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if "--check" not in sys.argv:
            page.write_text(wrapped(text), encoding="utf-8")
        elif wrapped(text) != text:
            wrong.append(f"{page.relative_to(ROOT)}: long lines: python -m tools.wrap_docs")
        cells = [
            cell for line in text.splitlines() if line.startswith("|") for cell in line.split("|")
        ]
        long = [cell for cell in cells if len(cell.split()) > WORDS_OF_A_CELL]
        wrong += [f"{page.relative_to(ROOT)}: a long cell: {cell[:60]}" for cell in long]
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
