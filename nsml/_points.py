"""Safe points: moments of a program, between two steps, at which the platform may ask it something.

They are calls of `nsml.report`, `nsml.save` and `nsml.step`, ends of steps of `nsml.steps`, and steps of torch's
optimizers. The agent says that it
has an order by another number at the beginning of a file that is mapped into memory here: a look costs a tenth of
a microsecond and no system call, and no thread waits. What an order is and how it is obeyed is loaded
with the first one.
"""

from __future__ import annotations

import os
import sys

from nsml._notice import notice
from nsml._strict import comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    Scope = Callable[[], Dict[str, Any]]

_PAGE = "orders"
_NUMBER_BYTES = 8
_OWN = ("nsml", "torch")
"""Packages whose functions stand between the program and a safe point."""
_IS_FUNCTION = 1  # CO_OPTIMIZED of `inspect`
_TAKES_VARIABLES = frozenset(("locals", "vars"))


class Points:
    """The safe points of one process.

    Args:
        run_dir: the folder that the agent shares with the program; "" outside of a session, where nobody asks.
        reported: the variables of the last report, or None.
    """

    def __init__(self, run_dir: str, reported: Callable[[], Optional[Dict[str, Any]]]) -> None:
        self._run_dir = run_dir
        self._reported = reported
        self._page: Any = _mapped(run_dir)
        self._seen = self._page[:_NUMBER_BYTES]
        self._is_obeying = False
        self._is_in_torch = not run_dir
        self.at: Optional[int] = None
        """The step that `nsml.step` named last."""

    def step(self, number: Optional[int] = None) -> None:
        """Say that a step begins or ends here, in a loop that reports less often than it steps.

        What is asked of the running program (`nsml exec`) is done at such calls. One takes some 0.1 microseconds.

        Args:
            number: of the step; nothing depends on it yet.
        """
        self.at = number
        if self._page[:_NUMBER_BYTES] != self._seen:
            try:  # noqa: SIM105 - in as few calls as can be
                self._obey()
            except RecursionError:
                pass  # so deep in calls that there is no room for one more: it is another safe point's

    def look(self) -> None:
        """See whether there is an order, and obey it."""
        if self._page[:_NUMBER_BYTES] != self._seen:
            try:  # noqa: SIM105 - in as few calls as can be
                self._obey()
            except RecursionError:
                pass

    def look_from_torch(self) -> None:
        """Have the steps of optimizers be safe points, too, once torch is loaded."""
        module = None if self._is_in_torch else sys.modules.get("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is not None:
            self._is_in_torch = True
            try:
                register(lambda *_: self.look())
            except Exception as error:  # another torch: its steps are none, then
                if comes_from_signal(error):
                    raise

    def _obey(self) -> None:
        """Nothing of it is raised in the program, but for what its own signal handlers raise meanwhile."""
        if self._is_obeying and _is_called_elsewhere(sys._getframe()):  # noqa: SLF001 - of itself
            return  # what an order runs is at a safe point, or another thread is
        self._is_obeying = True
        try:
            self._seen = self._page[:_NUMBER_BYTES]
            from nsml._orders import obey

            obey(self._run_dir, self._scope)
        except Exception as error:
            if comes_from_signal(error):
                raise
            notice(f"what was asked of the program could not be done: {reason(error)}")
        finally:
            self._is_obeying = False

    def _scope(self) -> Dict[str, Any]:
        """The variables that expressions may read: those of the program where it is, and of its last report.

        A report with `scope=` is what the program wants to be read: then only the globals of its main module are beside.
        """
        main = sys.modules.get("__main__")
        names: Dict[str, Any] = dict(vars(main)) if main is not None else {}
        reported = self._reported()
        if reported is not None:
            names.update(reported)
            return names
        frame = sys._getframe()  # noqa: SLF001 - the only way to the variables of a caller
        while frame is not None and _package(frame) in _OWN:
            frame = frame.f_back  # type: ignore[assignment]
        if frame is not None:
            names.update(frame.f_globals)
            names.update(_variables(frame))
        return names


def _variables(frame: Any) -> Dict[str, Any]:
    """The variables of a frame.

    Before Python 3.13 a function has one dict of them for ever: the reader brings it up to date, and it holds what
    was in them then, such as the tensors of a step. So it is emptied; what a function has itself
    taken with `locals()` is not even looked at.
    """
    variables_are_its_own = not frame.f_code.co_flags & _IS_FUNCTION
    if sys.version_info >= (3, 13) or variables_are_its_own:
        return dict(frame.f_locals)
    if not _TAKES_VARIABLES.isdisjoint(frame.f_code.co_names):
        return {}
    held = frame.f_locals
    found = dict(held)
    held.clear()
    return found


def _is_called_elsewhere(call: Any) -> bool:
    """Whether another call of its function has not returned, in any thread.

    No lock says so as well: an exception of a signal handler can come up in any line, also before a lock is released.
    """
    for top in sys._current_frames().values():  # noqa: SLF001 - the only way to them
        frame: Any = top
        while frame is not None:
            if frame.f_code is call.f_code and frame is not call:
                return True
            frame = frame.f_back
    return False


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _mapped(run_dir: str) -> Any:
    """The page of orders, or b"" where there is none: then no look finds anything."""
    if not run_dir:
        return b""
    try:
        import mmap

        file = os.open(os.path.join(run_dir, _PAGE), os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            if os.fstat(file).st_size < _NUMBER_BYTES:
                return b""
            return mmap.mmap(file, _NUMBER_BYTES, access=mmap.ACCESS_READ)
        finally:
            os.close(file)
    except (ImportError, OSError, ValueError):
        return b""  # of an agent that asks nothing, or a system without such files
