"""Whether a call that cannot record something raises, or says so in the log and lets training go on."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` has, without loading that

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Set

_MOST_WHY_CHARS = 200
"""Of the words of another library: those of torch go on for a page."""


class Strictness:
    """The mode of one process, shared by all its threads: outside of a session it is on at first."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on

    def strict(self, on: bool = True) -> _Restored:
        """Raise TypeError where something cannot be recorded, instead of naming it in the log.

        From the call on, for the whole process: `nsml.strict()`; for a block: `with nsml.strict():`.
        Outside of a session that is so from the start; `nsml.strict(False)` makes it as in one.
        """
        before, self.is_on = self.is_on, bool(on)
        return _Restored(self, before)


class _Restored:
    """Sets the mode back at the end of a `with`."""

    def __init__(self, strictness: Strictness, before: bool) -> None:
        self._strictness = strictness
        self._before = before

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._strictness.is_on = self._before


def reason(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none or raises."""
    kind = type(error).__name__
    try:
        words = (str(error).splitlines() or [""])[0][:_MOST_WHY_CHARS]
    except Exception:
        words = ""
    return words or kind


def comes_from_signal(error: BaseException) -> bool:
    """Whether a signal handler of the program raised it: a timeout, say, which must reach the program."""
    codes: Set[Any] = set()
    for number in _signal.valid_signals():
        handler: Any = _signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # functools.partial
        codes.add(getattr(handler, "__code__", None))
        call = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is wanted
        codes.add(getattr(call, "__code__", None))
    codes.discard(None)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
