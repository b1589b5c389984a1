"""Strict mode: whether a call that cannot record something raises, or logs it and lets training continue."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # what `signal` has, without loading that

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Set

_MOST_WHY_CHARS = 200
"""Limit for texts of other libraries: those of torch fill a page."""


class Strictness:
    """The mode of one process, shared by all its threads; initially on outside of a session."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on

    def strict(self, on: bool = True) -> _Restored:
        """Raise TypeError if something cannot be recorded, instead of logging it.

        From the call on, for the whole process: `nsml.strict()`; for a block: `with nsml.strict():`.
        It is the default outside of a session; `nsml.strict(False)` turns it off.
        """
        before, self.is_on = self.is_on, bool(on)
        return _Restored(self, before)


class _Restored:
    """Restores the mode at the end of a `with`."""

    def __init__(self, strictness: Strictness, before: bool) -> None:
        self._strictness = strictness
        self._before = before

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._strictness.is_on = self._before


def reason(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if the text is empty or raises."""
    kind = type(error).__name__
    try:
        words = (str(error).splitlines() or [""])[0][:_MOST_WHY_CHARS]
    except Exception:
        words = ""
    return words or kind


def comes_from_signal(error: BaseException) -> bool:
    """Return whether an exception comes from a signal handler of the program: a timeout, say, which must reach the program."""
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
