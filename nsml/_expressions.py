"""Evaluates what `nsml exec` asks, in the training process and never in the training thread.

An exception that is set from outside in a thread can come up in any line of it, also in a `finally` of its callers.
So expressions run in a thread of their own, which alone is ever interrupted, while the thread that trains waits.
"""

from __future__ import annotations

import ast
import builtins
import sys
import threading
import time
import traceback
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

MOST_BYTES = 64 << 10
"""Of a value, of what is printed and of an error, in UTF-8."""
_FILE = "<nsml exec>"
_ENDS_WITHIN_S = 0.5
"""How long an expression may take to end that was interrupted; then it is left behind."""
_MOST_CALLS = 50
_INTERRUPTED_EVERY_S = 0.05
_BUSY = "an expression that did not stop at its time limit still runs in this process"
_STILL_RUNS = "it does not stop: it goes on in the process, beside training"


class TimeLimitError(BaseException):
    """Set in an expression that has taken too long; no `except Exception` of it catches this."""


class Evaluator:
    """Evaluates one after another, and keeps the names that they assign."""

    def __init__(self) -> None:
        self._own: Dict[str, Any] = {}
        self._left_behind: Optional[_Run] = None

    def evaluate(self, text: str, names: Dict[str, Any], limit_s: float) -> Dict[str, Any]:
        """The answer: `value`, `output`, `error`, `is_cut`, `is_late`, and `took_s` in seconds.

        Names that are assigned are those of later expressions, and no variables of the program: it is changed
        through its objects. `value` is the `repr` of a last line that is an expression and not None.

        Args:
            text: an expression, or statements.
            names: the variables that it sees: a copy, which it may change.
            limit_s: after so many seconds it is interrupted. What is in a function of C goes on until that returns.
        """
        if self._left_behind is not None and self._left_behind.is_running:
            return {"error": _BUSY}
        began = time.monotonic()
        run = _Run(text, {**names, **self._own, "__builtins__": builtins})
        is_late = not run.ended_within(limit_s)
        if run.is_running:
            self._left_behind = run
        else:
            self._keep(run.names, names)
        answer = run.answer(is_late=is_late)
        answer["took_s"] = time.monotonic() - began
        return answer

    def _keep(self, after: Dict[str, Any], before: Dict[str, Any]) -> None:
        """Remember what was assigned, and forget what was deleted."""
        self._own = {
            name: value
            for name, value in after.items()
            if name != "__builtins__" and (name not in before or before[name] is not value)
        }


class _Run:
    """One evaluation, in a thread of its own."""

    def __init__(self, text: str, names: Dict[str, Any]) -> None:
        self.names = names
        self._text = text
        self._device = _cuda_device()
        self._value: Optional[str] = None
        self._error = ""
        self._printed = _Printed()
        self._thread = threading.Thread(target=self._run, name="nsml exec", daemon=True)

    def ended_within(self, limit_s: float) -> bool:
        """Run it; False when it was interrupted, or goes on."""
        streams = sys.stdout, sys.stderr
        sys.stdout = _Stream(streams[0], self._printed)
        sys.stderr = _Stream(streams[1], self._printed)
        try:
            self._thread.start()
            self._thread.join(limit_s)
            if not self.is_running:
                return True
            give_up_at = time.monotonic() + _ENDS_WITHIN_S
            while self.is_running and time.monotonic() < give_up_at:  # it may catch the first ones
                _interrupt(self._thread)
                self._thread.join(_INTERRUPTED_EVERY_S)
            return False
        finally:
            sys.stdout, sys.stderr = streams

    @property
    def is_running(self) -> bool:
        """Whether it goes on, after all."""
        return self._thread.is_alive()

    def answer(self, *, is_late: bool) -> Dict[str, Any]:
        """What came of it until now."""
        value, is_value_cut = _cut(self._value)
        output, is_output_cut = _cut(self._printed.text())
        error, is_error_cut = _cut(self._error)
        return {
            "value": value,
            "output": output,
            "error": (_STILL_RUNS if self.is_running else "") if is_late else error,
            "is_late": is_late,
            "is_cut": is_value_cut or is_output_cut or is_error_cut or self._printed.is_cut,
        }

    def _run(self) -> None:
        try:
            self._printed.thread = threading.get_ident()
            _use_cuda_device(self._device)
            self._value = self._evaluated()
        except BaseException as error:
            self._error = _told(error)

    def _evaluated(self) -> Optional[str]:
        """Run all of it; the `repr` of its last line, if that is an expression and not None."""
        tree = ast.parse(self._text.strip(), _FILE)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, _FILE, "exec"), self.names)  # noqa: S102 - what it is for
        if not isinstance(last, ast.Expr):
            return None
        code = compile(ast.Expression(last.value), _FILE, "eval")
        value = eval(code, self.names)  # noqa: S307 - what it is for
        if value is None:
            return None
        self.names["_"] = value
        return repr(value)


class _Printed:
    """What one thread has written to its standard streams, of which the beginning is kept."""

    def __init__(self) -> None:
        self.thread: Optional[int] = None
        self.is_cut = False
        self._parts: List[str] = []
        self._room = MOST_BYTES

    def add(self, text: str) -> None:
        """As much as there is room for."""
        if len(text) > self._room:
            self.is_cut = True
        if self._room > 0:
            self._parts.append(text[: self._room])
            self._room -= len(text)

    def text(self) -> str:
        """All that was kept."""
        return "".join(self._parts)


class _Stream:
    """In the place of a standard stream: what the thread of an expression writes is kept, that of others passed on."""

    def __init__(self, stream: Any, printed: _Printed) -> None:
        self._stream = stream
        self._printed = printed

    def write(self, text: str) -> int:
        """Keep it or pass it on."""
        if threading.get_ident() != self._printed.thread:
            return int(self._stream.write(text) or 0)
        self._printed.add(str(text))
        return len(text)

    def flush(self) -> None:
        """As of the stream."""
        if threading.get_ident() != self._printed.thread:
            self._stream.flush()

    def close(self) -> None:
        """As of the stream, which is not the expression's to close."""
        if threading.get_ident() != self._printed.thread:
            self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _interrupt(thread: threading.Thread) -> None:
    """Raise TimeLimitError in a thread, as soon as it executes Python."""
    with suppress(ImportError, AttributeError):  # a Python without it: the thread is left behind
        import ctypes

        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(TimeLimitError))


def _told(error: BaseException) -> str:
    """The traceback from the expression on; of an error that cannot be told, its type."""
    try:
        if isinstance(error, SyntaxError) and error.filename == _FILE:
            return "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != _FILE:
            trace = trace.tb_next
        parts = traceback.format_exception(type(error), error, trace, limit=_MOST_CALLS)
        return "".join(parts).rstrip("\n")
    except BaseException:  # its own methods, and those of its type, may do anything
        return str(type.__getattribute__(type(error), "__name__"))


def _cut(text: Optional[str]) -> Tuple[Optional[str], bool]:
    """The beginning of a text, and whether more was there. Halves of characters become question marks."""
    if text is None:
        return None, False
    raw = text[: MOST_BYTES + 1].encode("utf-8", "replace")
    return raw[:MOST_BYTES].decode("utf-8", "ignore"), len(raw) > MOST_BYTES


def _cuda_device() -> Optional[int]:
    """The CUDA device of this thread: another one begins with the first, which may be another process's."""
    try:
        cuda = sys.modules["torch"].cuda
        return int(cuda.current_device()) if cuda.is_initialized() else None
    except Exception:
        return None


def _use_cuda_device(device: Optional[int]) -> None:
    if device is not None:
        with suppress(Exception):
            sys.modules["torch"].cuda.set_device(device)
