"""Executes the decisions of `nsml._changes` in the training thread: talks to the agent, waits, pauses, sets and loads.

Raises nothing in the program, except exceptions of signal handlers.
"""

from __future__ import annotations

import os
import sys
import time

import nsml
from nsml._agent import AgentRefusedError, Conversation
from nsml._changes import APPLY, READ_BACK, WAIT, Change, Follower
from nsml._notice import notice
from nsml._strict import comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from nsml._knobs import Knobs
    from nsml._presets import Preset

UNDECIDED_S = 60.0
"""How long a process waits for the decision at the step of a change."""
SPEAKS_EVERY_S = 1.0
"""How often a waiting or paused process contacts the agent, even without news."""
_ANSWERS_WITHIN_S = 2.0
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.001, 0.02
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0
_MOST_ROUNDS = 8
"""Per conversation: each answer may change the report."""
_MOST_REASON_CHARS = 500
_UNITS = {"report": "reported step", "optimizer": "optimizer step"}
"""Units of counters for the log; of all others, steps."""


class Program:
    """Interface to the program for changes; implemented by `nsml._session.Session`."""

    def knobs(self) -> Knobs:
        """Return its knobs."""
        raise NotImplementedError

    def set_after(self, number: int) -> List[Preset]:
        """Return what later changes set in this attempt. Raises ValueError if that cannot be read."""
        raise NotImplementedError

    def is_training(self) -> bool:
        """Return whether this is the training thread of this process."""
        raise NotImplementedError

    def can_load(self) -> bool:
        """Return whether a checkpoint can be loaded."""
        raise NotImplementedError

    def load_now(self, checkpoint: str, session: str) -> None:
        """Load a checkpoint. Its exceptions pass through."""
        raise NotImplementedError

    def says_state(self, state: str) -> None:
        """Record PAUSED or RUNNING."""
        raise NotImplementedError

    def save_on_notice(self) -> None:
        """Save, if requested by the platform; may end the program, if it has to exit."""
        raise NotImplementedError

    def should_stop(self) -> bool:
        """Return whether the program should save and exit."""
        raise NotImplementedError


class Live:
    """The changes to one process.

    Args:
        run_dir: the folder shared by the agent and the program.
        program: the changed program.
        positions: the last number of each of its counters.
        serve: handles an order during a wait or pause; returns False if there is none.
    """

    def __init__(
        self,
        run_dir: str,
        program: Program,
        positions: Dict[str, int],
        serve: Callable[[], bool],
    ) -> None:
        self._run_dir = run_dir
        self._program = program
        self._serve = serve
        self.follower = Follower(positions, nsml._IMPORTED_AT)  # noqa: SLF001 - the package's own start
        self._said: Tuple[Any, bool] = (None, False)
        self._is_due = False
        self._heard_at = -SPEAKS_EVERY_S  # last contact with the agent
        self._retry_at = self._retry_s = 0.0
        self._process = (0, "")
        self._is_acting = False
        self._pause_ends = 0.0
        self._pause_limit = ""
        self._told: set[str] = set()

    # Called at safe points.

    @property
    def is_active(self) -> bool:
        """Whether each safe point matters, even with an unchanged page."""
        return (
            self._is_due
            or self.follower.is_watching
            or bool(self.follower.todo)
            or self._has_news
            or self._program.knobs().has_presets_ahead
        )

    def become_due(self) -> None:
        """Mark that the agent has news, for the training thread to fetch."""
        self._is_due = True

    def at_safe_point(self, counter: str, number: Optional[int]) -> None:
        """Do all that is due in the training thread, before the program continues."""
        if self._is_acting and _is_called_here(sys._getframe()):  # noqa: SLF001 - of itself
            return  # within a function of the program called by a change
        self._is_acting = True
        try:
            now = time.monotonic()
            if self._is_due and now >= self._retry_at:
                self._speak()
            self._tick(counter, number, now)
            for _ in range(_MOST_ROUNDS):
                self._act()
                if not self._has_news or time.monotonic() < self._retry_at:
                    break
                self._speak()
                if not self.follower.todo:
                    break
        finally:
            self._is_acting = False

    def _tick(self, counter: str, number: Optional[int], now: float) -> None:
        unread = self.follower.unread
        are_read = None if unread is None else self._program.knobs().are_read(unread.values)
        self.follower.tick(counter, number, now, are_read=are_read)
        if counter and type(number) is int:
            self._program.knobs().advance(counter, number)

    def _act(self) -> None:
        for _ in range(_MOST_ROUNDS):
            todo = self.follower.todo
            if todo == WAIT:
                self._wait()
            elif todo == APPLY:
                self._apply()
            elif todo == READ_BACK:
                self._read_back()
            else:
                return

    # Communication with the agent.

    @property
    def _has_news(self) -> bool:
        known = self.follower.known()
        return self._said != (known, self.follower.is_paused) and (
            known is not None or self._said[1] != self.follower.is_paused
        )

    def talk(self, agent: Conversation) -> None:
        """Report and receive changes, until neither changes any more. Raises OSError, ValueError."""
        rank = os.environ.get("LOCAL_RANK", "")
        world = os.environ.get("LOCAL_WORLD_SIZE", "")
        about = {
            "op": "change",
            "process": self._own_id(),
            "local_rank": int(rank) if rank.isdecimal() else 0,
            "local_world_size": int(world) if world.isdecimal() else 1,
        }
        for _ in range(_MOST_ROUNDS):
            report = self.follower.report()
            answer = agent.ask({**about, **report})
            self._said = (report["known"], report["is_paused"])
            self._is_due = False
            self._heard_at = time.monotonic()
            self._retry_s = 0.0
            if answer.get("is_member") is False:
                self.follower.hear(None, self._heard_at, _no_refusal)
                self.follower.goes_on()
                self._said = (None, False)
                return
            self._catch_up()
            self._hear(answer.get("change"))
            if self.follower.todo or not self._has_news:
                return

    def _catch_up(self) -> None:
        """Apply changes decided before this process registered: it was restarted within the attempt."""
        knobs = self._program.knobs()
        try:
            missing = self._program.set_after(max(knobs.newest, self.follower.last_over))
        except ValueError as error:
            self._tell_once(f"what was set before cannot be read: {reason(error)}")
            return
        if missing:
            knobs.take(missing, self.follower.positions)

    def _hear(self, raw: Any) -> None:
        try:
            change = None if raw is None else Change(raw)
        except ValueError as error:
            self._tell_once(f"a change to the running program is not made: {reason(error)}")
            return
        self.follower.hear(change, time.monotonic(), self._refusal)

    def _speak(self) -> None:
        """Contact the agent; on failure retry, with growing delays."""
        try:
            with Conversation(self._run_dir, timeout_s=_ANSWERS_WITHIN_S) as agent:
                self.talk(agent)
        except AgentRefusedError:  # an older agent
            self._is_due = False
            self._said = (self.follower.known(), self.follower.is_paused)
            self._heard_at = time.monotonic()
        except (OSError, ValueError):
            self._retry_s = min(max(2 * self._retry_s, _FIRST_RETRY_S), _LONGEST_RETRY_S)
            self._heard_at = time.monotonic()
            self._retry_at = self._heard_at + self._retry_s

    def _own_id(self) -> str:
        pid = os.getpid()
        if self._process[0] != pid:
            self._process = (pid, os.urandom(8).hex())
        return self._process[1]

    def _refusal(self, change: Change) -> str:
        if change.kind == "set":
            knobs = self._program.knobs()
            why = knobs.refusal(change.values)
            is_early = self.follower.is_beginning(time.monotonic())
            if is_early and not all(map(knobs.has, change.values)):
                why += "; it has just begun, and may declare more: try again in a moment"
            return why[:_MOST_REASON_CHARS]
        if change.kind == "load" and not self._program.can_load():
            return "the program has bound nothing to load with: nsml.bind(load=...)"
        return ""

    # Actions.

    def _wait(self) -> None:
        """Wait until the change is decided, the timeout, or the program has to exit."""
        self.follower.waits()
        give_up_at = time.monotonic() + UNDECIDED_S
        for _ in self._looks(until=lambda: self.follower.todo != WAIT):
            if self._program.should_stop():
                self._give_up("the session gives way")
            elif time.monotonic() >= give_up_at:
                why = f"nobody decided within {duration(UNDECIDED_S)}"
                self._give_up(why)
                notice(f"goes on without the change that was to be made here: {why}")

    def _give_up(self, why: str) -> None:
        if self.follower.todo == WAIT:
            self.follower.gave_up(why)

    def _looks(self, until: Callable[[], bool]) -> Any:
        """Yield between polls of a waiting process, handling orders meanwhile."""
        look_s = _FIRST_LOOK_S
        while not until():
            if self._serve():
                look_s = _FIRST_LOOK_S
                if until():
                    return
            is_long_ago = not 0 <= time.monotonic() - self._heard_at < SPEAKS_EVERY_S
            if (is_long_ago or self._is_due or self._has_news) and time.monotonic() >= min(
                self._retry_at, self._heard_at + SPEAKS_EVERY_S
            ):
                self._speak()
            if until():
                return
            yield
            time.sleep(look_s)
            look_s = min(2 * look_s, _LONGEST_LOOK_S)

    def _apply(self) -> None:
        change = self.follower.change
        if change is None:
            return
        try:
            if change.kind == "set":
                self._set(change)
            elif change.kind == "load":
                self._load(change)
            elif change.kind == "pause":
                self._pause(change)
            else:
                self.follower.is_paused = False
                self.follower.done()
        except Exception as error:
            if comes_from_signal(error):
                raise
            self._fail(change, error)

    def _fail(self, change: Change, error: BaseException) -> None:
        why = f"{type(error).__name__}: {reason(error)}"[:_MOST_REASON_CHARS]
        if self.follower.change is change:
            self.follower.failed(why)
        notice(f"{change.kind} by {change.by} failed{self._here(change)}: {why}")

    def _set(self, change: Change) -> None:
        knobs, position = self._program.knobs(), self.follower.positions.get(change.counter)
        values = change.values
        if self.follower.begins_with_it:
            values = knobs.lacking(values, change.place)
        values = knobs.set(values, position, change.place, change.number)
        self.follower.applied(values, time.monotonic())
        from nsml._knob_values import shown

        for name, (old, new) in values.items():
            self._log(
                f"{change.by} set {name} to {shown(new)}, from {shown(old)}{self._here(change)}"
            )

    def _read_back(self) -> None:
        unread = self.follower.unread
        if unread is None:
            return
        values, why = self._program.knobs().read_back(unread.values)
        self.follower.read_back(values, why[:_MOST_REASON_CHARS])
        if why:
            notice(why)

    def _load(self, change: Change) -> None:
        self._log(f"{change.by} loads checkpoint {change.checkpoint}{self._here(change)}")
        try:
            self._program.load_now(change.checkpoint, change.session)
        except (Exception, SystemExit, GeneratorExit) as error:
            if comes_from_signal(error):
                raise
            self._fail(change, error)
        else:
            if (
                self.follower.change is change
            ):  # the program's function may have processed another change
                self.follower.done()

    def _pause(self, change: Change) -> None:
        was_paused = self.follower.is_paused
        self.follower.pauses()
        self._pause_ends = time.monotonic() + change.limit_s
        limit = self._pause_limit = duration(change.limit_s)
        self._log(
            f"paused by {change.by}{self._here(change)} for at most {limit}; to go on: nsml continue "
            + os.environ.get("NSML_SESSION_NAME", "SESSION")
        )
        if was_paused:
            return  # the call that started the pause waits until the new limit
        self._program.says_state("PAUSED")
        try:
            self._stay_paused()
        finally:
            self.follower.goes_on()
            self._program.says_state("RUNNING")

    def _stay_paused(self) -> None:
        for _ in self._looks(until=self._is_over_or_acts):
            if self._program.should_stop():
                notice("goes on: the session gives way")
                return
            self._program.save_on_notice()
            if time.monotonic() >= self._pause_ends:
                notice(f"goes on: it was paused for {self._pause_limit}, its limit")
                return
        self._log("goes on")

    def _is_over_or_acts(self) -> bool:
        """Apply due changes; return whether the pause is over."""
        if self.follower.todo == APPLY:
            self._apply()
        return not self.follower.is_paused

    # Messages for people.

    def _here(self, change: Change) -> str:
        position = self.follower.positions.get(change.counter)
        unit = _UNITS.get(change.counter, "step")
        return f" at {unit} {position:,}" if position is not None else ""

    def _log(self, text: str) -> None:
        """Log once per replica."""
        if os.environ.get("LOCAL_RANK", "") in ("", "0"):
            notice(text)

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            notice(text)


def duration(seconds: float) -> str:
    """Format a duration: 90 s, 5 min, 2 h."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _is_called_here(call: Any) -> bool:
    """Return whether this thread is within another call of the frame's function."""
    frame = call.f_back
    while frame is not None:
        if frame.f_code is call.f_code:
            return True
        frame = frame.f_back
    return False


def _no_refusal(_: Change) -> str:
    return ""
