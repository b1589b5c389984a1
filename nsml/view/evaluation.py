"""Progress and results of code evaluated by a running program (`nsml exec`)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from nsml.common.text import visible
from nsml.spec.evaluation import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsml.v1.sessions_pb2 import Evaluated, EvaluateResponse


class AnswerKind(StrEnum):
    """The kind of a line of a result."""

    OUTPUT = "output"
    """Output of the code."""
    VALUE = "value"
    NOTE = "note"
    """A remark of nsml: output is truncated, or the code was interrupted."""
    ERROR = "error"
    """The traceback, or why it does not end."""


def progress_text(response: EvaluateResponse) -> str:
    """Describe what is being waited for, once the node reports progress."""
    match response.WhichOneof("kind"):
        case "behind":
            return f"waiting for what {visible(response.behind)} has evaluated there"
        case "waits":
            return "waiting for the program's next safe point"
        case _:
            return "the program evaluates it"


def answer_lines(found: Evaluated, limit_s: float) -> Iterator[tuple[AnswerKind, str]]:
    """Yield the lines of a result in reading order, safe for a terminal."""
    yield from ((AnswerKind.OUTPUT, line) for line in _lines(found.output))
    if found.HasField("value"):
        yield from ((AnswerKind.VALUE, line) for line in _lines(found.value))
    if found.is_cut:
        yield AnswerKind.NOTE, f"there was more: {MOST_BYTES >> 10} KiB of each text are shown"
    if found.is_late and not found.error:
        yield AnswerKind.NOTE, f"error: it was interrupted after {limit_s:g} s"
    if found.hides:
        names = ", ".join(map(visible, found.hides))
        yield (
            AnswerKind.NOTE,
            f"{names}: assigned for later calls of exec alone; in the program it is as it was (del {names}: see that again)",
        )
    yield from ((AnswerKind.ERROR, line) for line in _lines(found.error))


def _lines(text: str) -> Iterator[str]:
    return map(visible, text.removesuffix("\n").split("\n") if text else ())
