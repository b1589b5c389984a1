"""Evaluates code for `nsml exec`, in the training process but never in the training thread.

An exception set from another thread can be raised in any line, also in a `finally` of its callers.
So code runs in a thread of its own, the only one ever interrupted, while the training thread waits.
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
"""Of a value, of the output and of an error, in UTF-8."""
_FILE = "<nsml exec>"
_ENDS_WITHIN_S = 2.0
"""How long interrupted code may take to end; then it is abandoned."""
_MOST_CALLS = 50
_INTERRUPTED_EVERY_S = 0.05
_TURNS = 100
_MOST_HIDDEN = 5
_BUSY = (
    "error: what nsml exec began {:.0f} s ago did not stop at its time limit, and still runs in this process,"
    " which evaluates one thing at a time (where it is: nsml stacks)"
)
_STILL_RUNS = "error: it did not stop at its time limit: it goes on in the process, beside training"


class TimeLimitError(BaseException):
    """Raised in code at its time limit; no `except Exception` catches it."""


class Evaluator:
    """Evaluates code, one piece at a time, and keeps assigned names."""

    def __init__(self) -> None:
        self.own: Dict[str, Any] = {}
        """Assigned names and their values."""
        self._run: Optional[_Run] = None
        self._began = 0.0

    def evaluate(self, text: str, names: Dict[str, Any], limit_s: float) -> Dict[str, Any]:
        """Evaluate code; return `value`, `output`, `error`, `is_cut`, `is_late`, `hides`, and `took_s` in seconds.

        Assigned names are kept for later expressions, but are no variables of the program: to change it, change
        its objects. `hides` lists the ones that hide names of the program. `value` is the `repr` of the last line, if it is an expression and not None.

        Args:
            text: an expression, or statements.
            names: a copy of the visible variables, which may be changed.
            limit_s: it is interrupted after this time, in seconds. A running C function continues until it returns.

        Raises:
            RuntimeError: no further thread can be started.
        """
        if self._run is not None and self._run.is_running:
            return {"error": _BUSY.format(time.monotonic() - self._began)}
        began = self._began = time.monotonic()
        run = _Run(self, text, names)
        del names
        self._run = run
        try:
            is_late = not run.ended_within(limit_s)
        except BaseException:  # of a signal handler of the program, which ends the wait
            run.interrupt()
            raise
        answer = run.answer(is_late=is_late)
        answer["took_s"] = time.monotonic() - began
        return answer

    def after_fork(self) -> None:
        """Reset in a child, which the code itself may have forked: restore the program's streams."""
        if self._run is not None:
            self._run.forget()
            self._run = None


class _Run:
    """One evaluation, in a thread of its own.

    Objects of the code are used and released only there, since their methods may run any code:
    the training thread reads plain texts only.
    """

    def __init__(self, evaluator: Evaluator, text: str, names: Dict[str, Any]) -> None:
        self._evaluator = evaluator
        self._text = text
        self._names = names
        self._device = _cuda_device()
        self._value: Optional[str] = None
        self._error = ""
        self._is_cut = False
        self._hides: List[str] = []
        self._printed = _Printed()
        self._thread = threading.Thread(target=self._run, name="nsml exec", daemon=True)
        # `is_alive` is False for a running thread after an exception in `join` (bpo-45274).
        self._end = threading.Lock()
        self._end.acquire()
        self._gate = threading.Lock()
        self._is_over = self._is_interrupted = False

    def ended_within(self, limit_s: float) -> bool:
        """Run it; return False if it was interrupted, or still runs."""
        streams = sys.stdout, sys.stderr
        try:
            sys.stdout = _Stream(streams[0], self._printed)
            sys.stderr = _Stream(streams[1], self._printed)
            self._thread.start()
            if self._end.acquire(timeout=limit_s):
                return True
            give_up_at = time.monotonic() + _ENDS_WITHIN_S
            while time.monotonic() < give_up_at:  # it may catch the first ones
                self.interrupt()
                if self._end.acquire(timeout=_INTERRUPTED_EVERY_S):
                    break
            return False
        finally:
            sys.stdout, sys.stderr = streams

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""
        return not self._is_over

    def interrupt(self) -> None:
        """Raise TimeLimitError in its thread at its next Python instruction; never in another thread that reuses the number.

        Code not yet started never starts: its thread may not even exist.
        """
        with self._gate:
            if self._printed.thread is None:
                self._is_over = True
            elif not self._is_over:
                self._is_interrupted = True
                _raise_in(self._printed.thread)

    def forget(self) -> None:
        """Reset in a forked child: its thread does not exist here, or is the only one."""
        self._printed.thread = None
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, _Stream):
                setattr(sys, name, stream.program)

    def answer(self, *, is_late: bool) -> Dict[str, Any]:
        """Return the result so far."""
        output, is_output_cut = _cut(self._printed.text())
        return {
            "value": self._value,
            "output": output,
            "error": (_STILL_RUNS if self.is_running else "") if is_late else self._error,
            "is_late": is_late,
            "hides": self._hides,
            "is_cut": self._is_cut or is_output_cut or self._printed.is_cut,
        }

    def _run(self) -> None:
        try:
            with self._gate:
                self._printed.thread = None if self._is_over else threading.get_ident()
            if not self._is_over:
                self._evaluate()
        except BaseException as error:
            with suppress(BaseException):
                self._error, self._is_cut = _cut(_told(error))
        self._be_over()

    def _evaluate(self) -> None:
        _use_cuda_device(self._device)
        before, self._names = self._names, {}
        own = self._evaluator.own
        names = {**before, **own, "__builtins__": builtins}
        try:
            value = self._evaluated(names)
            if value is not None:
                self._value, self._is_cut = _cut(value)
        finally:
            self._evaluator.own = {
                name: value
                for name, value in names.items()
                if name != "__builtins__" and (name not in before or before[name] is not value)
            }
            now = self._evaluator.own
            assigned = (one for one in now if one not in own or own[one] is not now[one])
            self._hides = [one for one in assigned if type(one) is str and one in before]
            del self._hides[_MOST_HIDDEN:]

    def _evaluated(self, names: Dict[str, Any]) -> Optional[str]:
        """Run all of it; return the `repr` of its last line, if that is an expression and not None."""
        tree = ast.parse(self._text.strip(), _FILE)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, _FILE, "exec", dont_inherit=True), names)  # noqa: S102 - what it is for
        if not isinstance(last, ast.Expr):
            return None
        code = compile(ast.Expression(last.value), _FILE, "eval", dont_inherit=True)
        value = eval(code, names)  # noqa: S307 - what it is for
        return None if value is None else repr(value)

    def _be_over(self) -> None:
        """Stop interruptions of the thread: one that is too late for the code is raised here.

        It is not cancelled: Python 3.11 and older would check for it forever, in every thread, and a tracer would hang.
        """
        while True:
            try:
                with self._gate:
                    self._is_over = True
                for _ in range(_TURNS if self._is_interrupted else 0):
                    pass  # each iteration is a chance to raise it
                break
            except TimeLimitError:
                pass
        self._printed.thread = None  # a new thread may reuse its number, and keep a stream
        self._end.release()


class _Printed:
    """Output of one thread, of which the start is kept."""

    def __init__(self) -> None:
        self.thread: Optional[int] = None
        self.is_cut = False
        self._parts: List[str] = []
        self._room = MOST_BYTES

    def add(self, text: str) -> None:
        """Append text up to the limit. Raises TypeError for anything but text."""
        kept = _plain(text, self._room)
        if str.__len__(text) > self._room:
            self.is_cut = True
        if kept:
            self._parts.append(kept)
            self._room -= len(kept)

    def text(self) -> str:
        """Return the kept text."""
        return "".join(self._parts)


class _Stream:
    """Replaces a standard stream: captures output of the evaluation's thread, and forwards that of others."""

    def __init__(self, program: Any, printed: _Printed) -> None:
        self.program = program
        self._printed = printed

    def write(self, text: str) -> Any:
        """Capture or forward text; without a stream of the program it is dropped."""
        if threading.get_ident() != self._printed.thread:
            return self.program.write(text) if self.program is not None else len(text)
        self._printed.add(text)
        return str.__len__(text)

    def flush(self) -> None:
        """Forward, except from the evaluation's thread."""
        if threading.get_ident() != self._printed.thread and self.program is not None:
            self.program.flush()

    def close(self) -> None:
        """Forward, except from the evaluation's thread, which does not own the stream."""
        if threading.get_ident() != self._printed.thread and self.program is not None:
            self.program.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)


def _raise_in(thread: int) -> None:
    """Raise TimeLimitError in a thread at its next Python instruction."""
    with suppress(ImportError, AttributeError):  # without it the thread is abandoned
        import ctypes

        ident = ctypes.c_ulong(thread)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(TimeLimitError))


def _told(error: BaseException) -> str:
    """Format the traceback from the evaluated code on; the type alone if formatting fails."""
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


def _cut(text: str) -> Tuple[str, bool]:
    """Truncate a text; return whether it was longer. Lone surrogates become question marks."""
    raw = _plain(text, MOST_BYTES + 1).encode("utf-8", "replace")
    return raw[:MOST_BYTES].decode("utf-8", "ignore"), len(raw) > MOST_BYTES


def _plain(text: str, most: int) -> str:
    """Return the first characters of a text, without its own methods, which may do anything."""
    return str.__getitem__(text, slice(0, most))


def _cuda_device() -> Optional[int]:
    """Return the CUDA device of this thread: new threads start with the first, which may be another process's."""
    try:
        cuda = sys.modules["torch"].cuda
        return int(cuda.current_device()) if cuda.is_initialized() else None
    except Exception:
        return None


def _use_cuda_device(device: Optional[int]) -> None:
    if device is not None:
        with suppress(Exception):
            sys.modules["torch"].cuda.set_device(device)
