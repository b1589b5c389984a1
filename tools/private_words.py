"""Finds files and classes that are named in words of this project's own, where the field has a term.

A reader who sees a path or a class for the first time has to guess what is in it. Names that failed that test with readers
who had never seen the tree are listed here, so that they do not come back: `python -m tools.private_words`.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMS = ("controlplane", "nodeagent", "cli", "tui", "nsml", "chaos")
_FILES = """
    answers behind beneath cells changing choosing claim closed companion contacts continued drafts ends extent fits folding
    garbage given growing happenings held known leasts line looking looks mosts occupants occupied ordering outlook parts passing_on
    patience presenting production recent reclaiming redrawing scarce sending settling silence single sought spent stillness stock
    supposing surroundings thinning told turns unfit wasting waiting ways whole words writes yielders
"""
_CLASSES = """
    Character Door Found Ground Happening Heard Known Nearest Part Parts Place Standing Suits Surroundings Taker Told Wastes
    Wish
"""
FILES, CLASSES = frozenset(_FILES.split()), frozenset(_CLASSES.split())


def private(root: Path) -> Iterator[str]:
    """Each file and class of the product below `root` whose name is listed, as `path[:line]: name`."""
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            if path.stem in FILES:
                yield f"{path.relative_to(root)}: {path.stem}"
            if path.stem.endswith(("_pb2", "_pb2_grpc")):
                continue
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.ClassDef) and node.name in CLASSES:
                    yield f"{path.relative_to(root)}:{node.lineno}: {node.name}"


def main() -> None:
    """Exit with 1 where there is any."""
    found = list(private(Path(__file__).parents[1]))
    print("\n".join(f"{one}: a private word; use the field's term" for one in found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
