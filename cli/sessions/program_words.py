"""`nsml run python train.py --lr 0.1`: moves the words of a program to their place in `nsml run`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from nsml.common.shell import shell_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.group import Typed

_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*$")
_ENVIRONMENT = "env"


def corrected(typed: Sequence[Typed], after: Sequence[str]) -> str:
    """Return the command line that runs the entry with these arguments; "" if ambiguous.

    Args:
        typed: the words before `--`.
        after: the words after it.
    """
    kept: list[str] = []
    theirs: list[str] = []
    for one in typed:
        if one.option is None:
            theirs += one.words
        elif one.option.name == _ENVIRONMENT:
            return ""  # its value is not shown
        else:
            kept += one.words
    has_entry = any(one.option is not None and one.option.name == "entry" for one in typed)
    theirs += after
    if theirs and _PYTHON.match(theirs[0]):
        theirs = theirs[1:]
        while theirs and theirs[0] in {"-u", "-O"}:
            theirs = theirs[1:]
    entry: list[str] = []
    if not has_entry and theirs and not theirs[0].startswith("-"):
        entry, theirs = theirs[:1], theirs[1:]
    if entry and not Path(entry[0]).is_file():
        return ""
    if not (entry or has_entry):
        return ""
    return shell_line(["nsml", "run", *entry, *kept, *(["--", *theirs] if theirs else [])])


def meant_by(options: Sequence[Typed], words: Sequence[str]) -> str:
    """The same for words that are a whole command, `python train.py` or `train.py --lr 0.1`; "" for others."""
    first = words[0] if words else ""
    is_command = bool(_PYTHON.match(first)) or first.endswith(".py")
    return corrected(options, words) if is_command else ""
