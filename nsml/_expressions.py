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
_TURNS = 100
_MOST_HIDDEN = 5
_BUSY = (
    "error: what nsml exec began {:.0f} s ago did not stop at its time limit, and still runs in this process,"
    " which evaluates one thing at a time (where it is: nsml stacks)"
)
_STILL_RUNS = "error: it did not stop at its time limit: it goes on in the process, beside training"


class TimeLimitError(BaseException):
    """Set in an expression that has taken too long; no `except Exception` of it catches this."""


class Evaluator:
    """Evaluates one after another, and keeps the names that they assign."""

    def __init__(self) -> None:
        self.own: Dict[str, Any] = {}
        """What was assigned and not deleted."""
        self._run: Optional[_Run] = None
        self._began = 0.0

    def evaluate(self, text: str, names: Dict[str, Any], limit_s: float) -> Dict[str, Any]:
        """The answer: `value`, `output`, `error`, `is_cut`, `is_late`, `hides`, and `took_s` in seconds.

        Names that are assigned are those of later expressions, and no variables of the program: it is changed
        through its objects. `hides` are those of them that are names of the program's, too. `value` is the `repr` of a last line that is an expression and not None.

        Args:
            text: an expression, or statements.
            names: the variables that it sees: a copy, which it may change.
            limit_s: after so many seconds it is interrupted. What is in a function of C goes on until that returns.

        Raises:
            RuntimeError: there is no room for another thread.
        """
        if self._run is not None and self._run.is_running:
            return {"error": _BUSY.format(time.monotonic() - self._began)}
        began = self._began = time.monotonic()
        run = _Run(self, text, names)
        del names
        self._run = run
        try:
            is_late = not run.ended_within(limit_s)
        except BaseException:  # of a signal handler of the program's, which waits no more
            run.interrupt()
            raise
        answer = run.answer(is_late=is_late)
        answer["took_s"] = time.monotonic() - began
        return answer

    def after_fork(self) -> None:
        """In a child, which may be one that an expression has made: its streams are the program's."""
        if self._run is not None:
            self._run.forget()
            self._run = None


class _Run:
    """One evaluation, in a thread of its own.

    All that belongs to the expression is touched and let go of there, since any of its methods may be its own:
    what the thread that trains reads of it are plain texts.
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
        # Of a thread that runs `is_alive` says that it does not, once an exception came up in `join` (bpo-45274).
        self._end = threading.Lock()
        self._end.acquire()
        self._gate = threading.Lock()
        self._is_over = self._is_interrupted = False

    def ended_within(self, limit_s: float) -> bool:
        """Run it; False when it was interrupted, or goes on."""
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
        """Whether it goes on, after all."""
        return not self._is_over

    def interrupt(self) -> None:
        """Raise TimeLimitError in its thread, as soon as that executes Python; never in another that has its number.

        What has not begun does not begin any more: its thread may not even be there.
        """
        with self._gate:
            if self._printed.thread is None:
                self._is_over = True
            elif not self._is_over:
                self._is_interrupted = True
                _raise_in(self._printed.thread)

    def forget(self) -> None:
        """In a child of the process: there is no such thread here, or it is the only one."""
        self._printed.thread = None
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, _Stream):
                setattr(sys, name, stream.program)

    def answer(self, *, is_late: bool) -> Dict[str, Any]:
        """What came of it until now."""
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
        """Run all of it; the `repr` of its last line, if that is an expression and not None."""
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
        """From here on nothing is raised in the thread: what came too late for the expression comes up here.

        It is not taken back: Python 3.11 and older would look for it for ever, in every thread, and a tracer would hang.
        """
        while True:
            try:
                with self._gate:
                    self._is_over = True
                for _ in range(_TURNS if self._is_interrupted else 0):
                    pass  # each turn is a moment for it
                break
            except TimeLimitError:
                pass
        self._printed.thread = None  # its number may be another thread's, which keeps a stream
        self._end.release()


class _Printed:
    """What one thread has written to its standard streams, of which the beginning is kept."""

    def __init__(self) -> None:
        self.thread: Optional[int] = None
        self.is_cut = False
        self._parts: List[str] = []
        self._room = MOST_BYTES

    def add(self, text: str) -> None:
        """As much as there is room for. Raises TypeError: it is no text."""
        kept = _plain(text, self._room)
        if str.__len__(text) > self._room:
            self.is_cut = True
        if kept:
            self._parts.append(kept)
            self._room -= len(kept)

    def text(self) -> str:
        """All that was kept."""
        return "".join(self._parts)


class _Stream:
    """In the place of a standard stream: what the thread of an expression writes is kept, that of others passed on."""

    def __init__(self, program: Any, printed: _Printed) -> None:
        self.program = program
        self._printed = printed

    def write(self, text: str) -> Any:
        """Keep it or pass it on, as of the stream; where the program has none it goes nowhere."""
        if threading.get_ident() != self._printed.thread:
            return self.program.write(text) if self.program is not None else len(text)
        self._printed.add(text)
        return str.__len__(text)

    def flush(self) -> None:
        """As of the stream."""
        if threading.get_ident() != self._printed.thread and self.program is not None:
            self.program.flush()

    def close(self) -> None:
        """As of the stream, which is not the expression's to close."""
        if threading.get_ident() != self._printed.thread and self.program is not None:
            self.program.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)


def _raise_in(thread: int) -> None:
    """Have TimeLimitError come up in a thread as soon as that executes Python."""
    with suppress(ImportError, AttributeError):  # a Python without it: the thread is left behind
        import ctypes

        ident = ctypes.c_ulong(thread)
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


def _cut(text: str) -> Tuple[str, bool]:
    """The beginning of a text, and whether more was there. Halves of characters become question marks."""
    raw = _plain(text, MOST_BYTES + 1).encode("utf-8", "replace")
    return raw[:MOST_BYTES].decode("utf-8", "ignore"), len(raw) > MOST_BYTES


def _plain(text: str, most: int) -> str:
    """The first characters of a text, by none of its own methods, which may do anything."""
    return str.__getitem__(text, slice(0, most))


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
