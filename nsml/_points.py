"""Safe points: moments between two steps of a program, at which the platform may send it requests.

They are calls of `nsml.report`, `nsml.save` and `nsml.step`, ends of steps of `nsml.steps`, and steps of torch's
optimizers. The agent signals an order by
changing the number at the start of a file mapped into memory here: a check takes a tenth of
a microsecond and no system call, and no thread waits. The code for orders is loaded with the
first one.
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
"""Limit of valid step numbers."""
_OWN = frozenset(
    (
        "nsml",
        "torch",
        "accelerate",
        "keras",
        "lightning",
        "pytorch_lightning",
        "transformers",
        "trl",
    )
)
"""Packages whose functions may be on the stack between the program and a safe point."""
_IS_FUNCTION = 1  # CO_OPTIMIZED of `inspect`
_TAKES_VARIABLES = frozenset(("locals", "vars"))


class Points:
    """The safe points of one process.

    Args:
        run_dir: the folder shared by the agent and the program; "" outside of a session, without an agent.
        reported: returns the variables of the last report, or None.
        program: receives changes; None: none are made.
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
        """Knobs set in this attempt: see `nsml._presets`."""
        self._page: Any = _mapped(run_dir)
        self._asked: Any = bytes(_NUMBER_BYTES) if self._page else b""
        """The number at the last request to the agent."""
        self._seen: Any = self._asked
        """The number at which safe points are skipped; None if none may be skipped."""
        self._noted: Any = self._asked
        self._is_obeying = False
        self._is_in_torch = not run_dir
        self._optimizer_steps: Optional[int] = None
        self._live: Optional[Live] = None
        self.at: Optional[int] = None
        """The last step passed to `nsml.step`."""
        self.positions: Dict[str, int] = {}
        """The last number of each other step counter."""

    def step(self, number: Optional[int] = None) -> None:
        """Mark the start or end of a step, in a loop with fewer reports than steps.

        Requests to the running program (`nsml exec`, `nsml set`, `nsml pause`) are handled at such calls. One call takes
        about 0.1 microseconds.

        Args:
            number: of the step, an int. With several processes a change is made in all of them at the same number.
        """
        if self._page[:_NUMBER_BYTES] != self._seen:
            try:
                if not self._attend("step", number):
                    return
            except RecursionError:
                pass  # too deep in calls to handle it: left to another safe point
        self.at = number

    def look(self) -> None:
        """Check for an order, and handle it."""
        if self._page[:_NUMBER_BYTES] != self._seen:
            try:  # noqa: SIM105 - in as few calls as can be
                self._attend()
            except RecursionError:
                pass

    def tick(self, counter: str, number: int) -> None:
        """The same when a counter has reached a number, in the training thread."""
        if self._page[:_NUMBER_BYTES] != self._seen:
            try:  # noqa: SIM105 - in as few calls as can be
                self._attend(counter, number)
            except RecursionError:
                pass
        self.positions[counter] = number

    def look_from_torch(self, *, counts: bool = False) -> None:
        """Make optimizer steps safe points, too, once torch is loaded.

        `counts`: count them from here on, since all processes of a session make this call before they train.
        """
        if not self._is_in_torch:
            module = sys.modules.get("torch.optim.optimizer")
            register = getattr(module, "register_optimizer_step_post_hook", None)
            if register is not None:
                self._is_in_torch = True
                try:
                    register(lambda *_: self._optimizer_stepped())
                except Exception as error:  # another torch: no safe points at its steps
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
        """Return whether knobs were set in this attempt."""
        return os.path.exists(self.knobs_file)

    # Below: not executed in programs without requests.

    def follow(self, *, is_due: bool = False) -> None:
        """Check for changes at safe points; `is_due`: the agent has news."""
        if self._live is None and self._program is not None:
            from nsml._live import Live

            self._live = Live(self._run_dir, self._program, self.positions, self.serve)
        if self._live is not None and is_due:
            self._live.become_due()
        self._rest()

    def after_fork(self) -> None:
        """Reset in a forked child: its parent's state of changes does not apply."""
        if self._live is not None:
            self._live = None
            self._seen = self._asked

    def serve(self) -> bool:
        """Handle an order in a waiting process; return False if there is none."""
        if self._page[:_NUMBER_BYTES] == self._asked:
            return False
        self._obey()
        return True

    def _attend(self, counter: str = "", number: Optional[int] = None) -> bool:
        """Handle orders and due changes; return whether this is the training thread.

        Raises exceptions of the program's signal handlers.
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
        """Skip safe points until the next order, unless none may be skipped."""
        self._seen = self._asked
        live = self._live
        if live is not None and live.is_active:  # after that: another thread may just have set it
            self._seen = None

    def _obey(self) -> None:
        """Handle an order. Raises nothing in the program, except exceptions of its own signal handlers."""
        if self._is_obeying and _is_called_elsewhere(sys._getframe()):  # noqa: SLF001 - of itself
            self._note_page()
            return  # the order's code reached a safe point, or another thread handles it
        self._is_obeying = True
        try:
            self._asked = self._page[:_NUMBER_BYTES]
            from nsml._orders import obey

            obey(self._run_dir, self._scope, self._note, self._hear)
        except Exception as error:
            if comes_from_signal(error):
                raise
            if isinstance(error, (OSError, ValueError)):
                self._note(error)  # unknown, so it may be a change
            notice(f"what was asked of the program could not be done: {reason(error)}")
        finally:
            self._is_obeying = False

    def _note_page(self) -> None:
        """Mark news while another thread handles an order: it may be a change, which cannot wait."""
        page = self._page[:_NUMBER_BYTES]
        if page != self._noted:
            self._noted = page
            self._note(page)

    def _note(self, change: Any) -> None:
        """Let the training thread fetch the change, if there is one."""
        if change is not None and self._program is not None:
            self.follow(is_due=True)

    def _hear(self, agent: Conversation, change: Any) -> None:
        """Receive a change, and report this process's state of it. Raises OSError, ValueError."""
        if self._program is None:
            return
        if change is None and self._live is None and not self.are_knobs_set():
            return
        self.follow(is_due=True)  # for the training thread, if this is another one
        if self._live is not None and self._program.is_training():
            self._live.talk(agent)

    def _scope(self) -> Dict[str, Any]:
        """Return the variables for expressions: those of the program's current function, and of its last report.

        A report with `scope=` selects them: then only the globals of its main module are added.
        """
        main = sys.modules.get("__main__")
        names: Dict[str, Any] = {"nsml": sys.modules.get("nsml")}  # for `nsml.infer(...)`
        names.update(vars(main) if main is not None else {})
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
    """Return the variables of a frame.

    Before Python 3.13 a function has one permanent dict of them: reading updates it, and it keeps references,
    such as the tensors of a step. So it is emptied; a function that itself
    called `locals()` is not read at all.
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
    """Return whether another call of the frame's function is active, in any thread.

    A lock would be less reliable: an exception of a signal handler can occur in any line, also before its release.
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
    """Map the page of orders; b"" without one: then no check finds anything."""
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
        return b""  # an agent without orders, or a system without such files
