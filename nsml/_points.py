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

    from nsml._agent import Conversation
    from nsml._live import Live, Program

    Scope = Callable[[], Dict[str, Any]]

_PAGE = "orders"
_KNOBS = "knobs"
_NUMBER_BYTES = 8
_LARGEST = 1 << 62
"""Of step numbers that count."""
_OWN = ("nsml", "torch")
"""Packages whose functions stand between the program and a safe point."""
_IS_FUNCTION = 1  # CO_OPTIMIZED of `inspect`
_TAKES_VARIABLES = frozenset(("locals", "vars"))


class Points:
    """The safe points of one process.

    Args:
        run_dir: the folder that the agent shares with the program; "" outside of a session, where nobody asks.
        reported: the variables of the last report, or None.
        program: what changes are made in; None where none are.
    """

    def __init__(
        self,
        run_dir: str,
        reported: Callable[[], Optional[Dict[str, Any]]],
        program: Optional[Program] = None,
    ) -> None:
        self._run_dir = run_dir
        self._reported = reported
        self._program = program
        self.knobs_file = os.path.join(run_dir, _KNOBS)
        """What was set in this attempt: see `nsml._presets`."""
        self._page: Any = _mapped(run_dir)
        self._asked: Any = bytes(_NUMBER_BYTES) if self._page else b""
        """The number at which the agent was asked last."""
        self._seen: Any = self._asked
        """The number at which safe points need not look any further; None where each of them matters."""
        self._noted: Any = self._asked
        self._is_obeying = False
        self._is_in_torch = not run_dir
        self._optimizer_steps: Optional[int] = None
        self._live: Optional[Live] = None
        self.at: Optional[int] = None
        """The step that `nsml.step` named last."""
        self.positions: Dict[str, int] = {}
        """The last number of each other counter of steps."""

    def step(self, number: Optional[int] = None) -> None:
        """Say that a step begins or ends here, in a loop that reports less often than it steps.

        What is asked of the running program (`nsml exec`, `nsml set`, `nsml pause`) is done at such calls. One takes
        some 0.1 microseconds.

        Args:
            number: of the step, an int. Changes of a session with several processes are made in all of them at one number.
        """
        if self._page[:_NUMBER_BYTES] != self._seen:
            try:
                if not self._attend("step", number):
                    return
            except RecursionError:
                pass  # so deep in calls that there is no room for one more: it is another safe point's
        self.at = number

    def look(self) -> None:
        """See whether there is an order, and obey it."""
        if self._page[:_NUMBER_BYTES] != self._seen:
            try:  # noqa: SIM105 - in as few calls as can be
                self._attend()
            except RecursionError:
                pass

    def tick(self, counter: str, number: int) -> None:
        """The same where a counter has come to a number, in the thread that trains."""
        if self._page[:_NUMBER_BYTES] != self._seen:
            try:  # noqa: SIM105 - in as few calls as can be
                self._attend(counter, number)
            except RecursionError:
                pass
        self.positions[counter] = number

    def look_from_torch(self, *, counts: bool = False) -> None:
        """Have the steps of optimizers be safe points, too, once torch is loaded.

        `counts`: they are counted from here on, since all processes of a session make this call before they train.
        """
        if not self._is_in_torch:
            module = sys.modules.get("torch.optim.optimizer")
            register = getattr(module, "register_optimizer_step_post_hook", None)
            if register is not None:
                self._is_in_torch = True
                try:
                    register(lambda *_: self._optimizer_stepped())
                except Exception as error:  # another torch: its steps are none, then
                    if comes_from_signal(error):
                        raise
        if counts and self._is_in_torch and self._run_dir and self._optimizer_steps is None:
            self._optimizer_steps = 0

    def _optimizer_stepped(self) -> None:
        count = self._optimizer_steps
        if count is None or self._program is None or not self._program.is_training():
            self.look()
            return
        self._optimizer_steps = count + 1
        self.tick("optimizer", count + 1)

    def are_knobs_set(self) -> bool:
        """Whether knobs were set in this attempt."""
        return os.path.exists(self.knobs_file)

    # What follows is not on the way of a program of which nothing is asked.

    def follow(self, *, is_due: bool = False) -> None:
        """Look at safe points whether a change is to be made there; `is_due`: the agent has something to say."""
        if self._live is None and self._program is not None:
            from nsml._live import Live

            self._live = Live(self._run_dir, self._program, self.positions, self.serve)
        if self._live is not None and is_due:
            self._live.become_due()
        self._rest()

    def after_fork(self) -> None:
        """In a child, which is another process: what its parent knew of changes is not the child's."""
        if self._live is not None:
            self._live = None
            self._seen = self._asked

    def serve(self) -> bool:
        """Take what is asked of a process that stays where it is; False where there was nothing."""
        if self._page[:_NUMBER_BYTES] == self._asked:
            return False
        self._obey()
        return True

    def _attend(self, counter: str = "", number: Optional[int] = None) -> bool:
        """Do what was asked, and what is to be done here: whether this is the thread that trains.

        Raises what signal handlers of the program raise.
        """
        is_training = self._program is None or self._program.is_training()
        try:
            if type(self.at) is int and -_LARGEST < self.at < _LARGEST:
                self.positions["step"] = self.at
            if self._page[:_NUMBER_BYTES] != self._asked:
                self._obey()
            if self._live is not None and is_training:
                self._live.at_safe_point(counter, number)
        except Exception as error:
            if comes_from_signal(error):
                raise
            notice(f"a change to the running program failed: {reason(error)}")
        finally:
            self._rest()
        return is_training

    def _rest(self) -> None:
        """The next safe point is one at which nothing is asked, unless each of them matters."""
        self._seen = self._asked
        live = self._live
        if (
            live is not None and live.is_active
        ):  # after that: another thread may just have made it so
            self._seen = None

    def _obey(self) -> None:
        """Nothing of it is raised in the program, but for what its own signal handlers raise meanwhile."""
        if self._is_obeying and _is_called_elsewhere(sys._getframe()):  # noqa: SLF001 - of itself
            self._note_page()
            return  # what an order runs is at a safe point, or another thread is
        self._is_obeying = True
        try:
            self._asked = self._page[:_NUMBER_BYTES]
            from nsml._orders import obey

            obey(self._run_dir, self._scope, self._note, self._hear)
        except Exception as error:
            if comes_from_signal(error):
                raise
            if isinstance(error, (OSError, ValueError)):
                self._note(error)  # whatever it is, it may be a change
            notice(f"what was asked of the program could not be done: {reason(error)}")
        finally:
            self._is_obeying = False

    def _note_page(self) -> None:
        """What is new now cannot wait for the end of an order that another thread obeys: it may be a change."""
        page = self._page[:_NUMBER_BYTES]
        if page != self._noted:
            self._noted = page
            self._note(page)

    def _note(self, change: Any) -> None:
        """Have the thread that trains ask for a change, where there is one."""
        if change is not None and self._program is not None:
            self.follow(is_due=True)

    def _hear(self, agent: Conversation, change: Any) -> None:
        """Hear of a change, and say what this process knows of it. Raises OSError, ValueError."""
        if self._program is None:
            return
        if change is None and self._live is None and not self.are_knobs_set():
            return
        self.follow(is_due=True)  # for the thread that trains, if this is another one
        if self._live is not None and self._program.is_training():
            self._live.talk(agent)

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
