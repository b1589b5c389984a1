"""Records what the hooks find: metrics, media, configuration and progress of this process.

A metric belongs to the first library that reports it: further ones that report the same name, as Transformers, W&B and
TensorBoard do in one training, are not recorded, so that a session has one set of curves. `nsml.report` comes before
all of them.
"""

from __future__ import annotations

import os
import re
import threading
import time as clock
from contextlib import suppress

from nsml._echo import _hooks
from nsml._echo._config import plain_config
from nsml._frames import MAX_PAYLOAD
from nsml._media import Media
from nsml._notice import notice
from nsml._path_text import name_text
from nsml._report import MOST_NAME_CHARS, MOST_NAMES, encode, encoded, metric_record, step_of
from nsml._rights import create, make_folders
from nsml._strict import Strictness, reason
from nsml._values import LARGEST_INTEGER, Flattened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

    from nsml._progress import ProgressWriter
    from nsml._report import Reporter
    from nsml._spool import Spool

_FOLDER = "echo"
_REPORT = "nsml.report"
_SERIES = "series"
_MOST_SERIES_BYTES = 16 << 20
_LATEST_TIME = float(1 << 33)
_QUICK = (float, int)
_MOST_PREFIXES = 1_000
_SHORT = MAX_PAYLOAD // 4
"""A text of so many characters surely is no longer than a record."""
_SHOWN = frozenset(("loss", "acc", "accuracy"))
_OF_EPOCHS = "epoch"
"""Last word of Lightning's means over an epoch: `train_loss_epoch`."""


def is_shown(name: str) -> bool:
    """Return whether `nsml ps` shows a metric of this name: of all others there may be hundreds."""
    words = [word for word in re.split(r"[/_. -]", name.lower()) if word]
    if len(words) > 1 and words[-1] == _OF_EPOCHS:
        del words[-1]
    return bool(words) and words[-1] in _SHOWN


class Sink:
    """Receives what other libraries report in one process; may be called by any thread, and raises nothing but errors of its own code.

    Args:
        run_dir: the folder shared by the node agent and the program.
        spool: receives the records.
        reporter: of `nsml.report`, whose metrics come first.
        progress: receives how far a training is.
    """

    def __init__(
        self, run_dir: str, spool: Spool, reporter: Reporter, progress: ProgressWriter
    ) -> None:
        self._spool = spool
        self.progress = progress
        """Records how far a training is."""
        self._reporter = reporter
        self._series = _Series(os.path.join(run_dir, _FOLDER))
        self._runs: Dict[str, Dict[str, str]] = {}
        self._configs: Dict[Tuple[str, str], Dict[str, Any]] = {}
        self._lock = threading.RLock()
        self._logged: Set[str] = set()
        self._shown: Dict[str, bool] = {}
        self._muted = threading.local()
        self._has_muted = False
        self._known: Dict[Tuple[str, str], Dict[str, Tuple[str, bool]]] = {}
        """By library and prefix: recorded names as JSON, and whether `nsml ps` shows them, by given names."""
        reporter.follow_names(self._claim_for_report)
        self.media = Media(spool, run_dir, Strictness(is_on=False))
        """Shows images, sounds, texts, tables as `nsml.image` and the others do. Use with names from `media_name`."""

    def after_fork(self) -> None:
        """Forget what belongs to the parent: threads that held locks do not exist here."""
        self._lock = threading.RLock()
        self._series.after_fork()

    def prefix(self, origin: str, run: str, name: str = "") -> str:
        """Return the prefix of metrics of a run of this library in this process: "" for the first run, then NAME/.

        A name that an earlier run has gets a number: NAME-2/.

        Args:
            origin: the library.
            run: identifies the run.
            name: for people; default `run`.
        """
        with self._lock:
            runs = self._runs.setdefault(origin, {})
            if run not in runs:
                prefix = found = (
                    f"{name_text(name or run).strip('/')[:100] or 'run'}/" if runs else ""
                )
                if len(runs) >= MOST_NAMES:
                    return found
                number = 1
                while found in runs.values():
                    number += 1
                    found = f"{prefix[:-1]}-{number}/"
                runs[run] = found
            return runs[run]

    @property
    def has_metrics(self) -> bool:
        """Whether this process has recorded metrics, of `nsml.report` or of any library."""
        return self._series.has_owners

    def mute(self, origin: str, *, on: bool) -> None:
        """Skip metrics and configuration of this library in this thread: they are those of another, by other names."""
        self._has_muted = True
        vars(self._muted)[origin] = on

    def metrics(
        self,
        origin: str,
        values: Mapping[str, Any],
        step: Any = None,
        *,
        prefix: str = "",
        time: Optional[float] = None,
        summary: Optional[bool] = None,
    ) -> None:
        """Record numbers and other plain values by name, as `nsml.report` does; what cannot be recorded is skipped.

        Args:
            origin: the library: one of NSML_ECHO's names.
            values: of any types that `nsml.report` takes.
            step: the x axis; None if there is none.
            prefix: of the names, from `prefix`.
            time: Unix seconds of the report; default, and for impossible ones: now.
            summary: whether `nsml ps` shows these values; default: losses and accuracies, by their names.
        """
        records = self.records(origin, values, step, prefix=prefix, time=time, summary=summary)
        if records:
            self._spool.append_all(records)

    def append(self, records: Sequence[bytes]) -> None:
        """Append what `records` has returned."""
        self._spool.append_all(records)

    def records(  # noqa: C901, PLR0912 - calls would take longer than what they do
        self,
        origin: str,
        values: Mapping[str, Any],
        step: Any = None,
        *,
        prefix: str = "",
        time: Optional[float] = None,
        summary: Optional[bool] = None,
    ) -> List[bytes]:
        """Return the records of `metrics`, for `append` with others."""
        if self._has_muted and vars(self._muted).get(origin):
            return []
        if type(step) is not int:
            step = None if step is None else step_of(step)
        if time is None or not 0 <= time < _LATEST_TIME:  # NaN, too
            time = clock.time()
        known = self._known.get((origin, prefix))
        if known is None:
            known = {}
            if len(self._known) < _MOST_PREFIXES:
                self._known[origin, prefix] = known
        # Nearly all: floats and integers by names that were recorded before.
        shown = others = ""
        for given, value in values.items():
            name = known.get(given)
            kind = type(value)
            if name is None or not (
                value - value == 0.0  # neither NaN nor infinite
                if kind is float
                else kind is int and -LARGEST_INTEGER < value < LARGEST_INTEGER
            ):
                break
            if name[1] if summary is None else summary:
                shown = f"{shown},{name[0]}{value!r}" if shown else f"{name[0]}{value!r}"
            else:
                others = f"{others},{name[0]}{value!r}" if others else f"{name[0]}{value!r}"
        else:
            if len(shown) + len(others) < _SHORT:
                found = []
                if shown:
                    found.append(metric_record(time, step, f"{{{shown}}}", "shown", origin))
                if others:
                    found.append(metric_record(time, step, f"{{{others}}}", "", origin))
                return found
        return self._records_of_any(origin, values, step, prefix, time, summary, known)

    def _records_of_any(  # noqa: PLR0917 - as `records` has them
        self,
        origin: str,
        values: Mapping[str, Any],
        step: Any,
        prefix: str,
        time: float,
        summary: Optional[bool],
        known: Dict[str, Tuple[str, bool]],
    ) -> List[bytes]:
        parts: Dict[bool, Dict[str, Any]] = {True: {}, False: {}}
        for name, value in self._recorded(origin, values, prefix, known).items():
            parts[self._is_shown(name) if summary is None else summary][name] = value
        records: List[bytes] = []
        for is_shown, part in parts.items():
            if part:
                self._encode(time, step, part, is_shown, origin, records)
        return records

    def _recorded(
        self,
        origin: str,
        values: Mapping[str, Any],
        prefix: str,
        known: Dict[str, Tuple[str, bool]],
    ) -> Dict[str, Any]:
        """Return the plain values that belong to this library, by recorded names; remember names in `known`."""
        found: Dict[str, Any] = {}
        for given, value in values.items():
            is_quick = type(value) in _QUICK
            if is_quick:
                pairs: List[Tuple[str, Any]] = [(given, value)]
            else:
                pairs = Flattened(str(given), value).values
            for nested, plain in pairs:
                if plain is None or type(plain) is str:
                    continue
                name = name_text(f"{prefix}{nested}")
                if 0 < len(name) <= MOST_NAME_CHARS and self._is_ours(origin, name):
                    found[name] = plain
                    if is_quick and type(given) is str and len(known) < MOST_NAMES:
                        known[given] = (f"{encoded(name)}:", self._is_shown(name))
                        if self._reporter.has(name):  # in another thread, since we asked
                            self._known.clear()
        return found

    def config(self, origin: str, values: Mapping[str, Any], *, run: str = "") -> None:
        """Record arguments of the program: later values replace earlier ones, key by key at the top level.

        Only what has changed is recorded. Values of other types than JSON's become text.
        """
        if vars(self._muted).get(origin):
            return
        plain = plain_config(values)
        with self._lock:
            known = self._configs.setdefault((origin, run), {})
            changed = {
                key: value
                for key, value in plain.items()
                if key not in known or known[key] != value
            }
            known.update(changed)
        if not changed:
            return
        record = {
            "kind": "config",
            "time": clock.time(),
            "origin": origin,
            "run": name_text(run)[:100],
            "values": changed,
        }
        try:
            payload = encode(record)
        except TypeError as error:
            self.log_once(
                f"{origin} config", f"its configuration is not recorded: {reason(error)}", origin
            )
            return
        if len(payload) > MAX_PAYLOAD:
            self.log_once(
                f"{origin} config", "its configuration is not recorded: it is too large", origin
            )
            return
        self._spool.append(payload)

    def media_name(self, name: str, prefix: str = "") -> str:
        """Return the name for media."""
        return f"{prefix}{name}"[:MOST_NAME_CHARS]

    def log_once(self, topic: str, text: str, origin: str) -> None:
        """Write a line into the session's log, once per topic."""
        if topic not in self._logged and len(self._logged) < MOST_NAMES:
            self._logged.add(topic)
            notice(f"{_hooks.title(origin)}: {text}")

    def _claim_for_report(self, name: str) -> None:
        """Claim a metric for `nsml.report`, also in other processes of the replica."""
        self._known.clear()
        self._series.claim(name, _REPORT)

    def _is_shown(self, name: str) -> bool:
        shown = self._shown.get(name)
        if shown is None:
            shown = is_shown(name)
            if len(self._shown) < MOST_NAMES:
                self._shown[name] = shown
        return shown

    def _is_ours(self, origin: str, name: str) -> bool:
        """Return whether this library's values of this metric are recorded."""
        if self._reporter.has(name):
            owner = _REPORT
        else:
            owner = self._series.owner(name) or self._series.claim(name, origin)
            if owner == origin:
                return True
        self.log_once(
            f"{origin} {owner}",
            f"its {name!r} is not recorded, because {_hooks.title(owner)} reported a metric of this name first; "
            "the same applies to other metrics that both report",
            origin,
        )
        return False

    def _encode(  # noqa: PLR0917
        self,
        time: float,
        step: Any,
        values: Dict[str, Any],
        summary: bool,
        origin: str,
        records: List[bytes],
    ) -> None:
        """Add the record of these values to `records`; several records if they are long."""
        try:
            payload = metric_record(time, step, encoded(values), summary, origin)
        except TypeError as error:
            if len(values) == 1:
                self.log_once(
                    f"{origin} value",
                    f"{next(iter(values))!r} is not recorded: {reason(error)}",
                    origin,
                )
                return
            payload = b""
        if payload and len(payload) <= MAX_PAYLOAD:
            records.append(payload)
        elif len(values) == 1:
            self._spool.drop(f"{next(iter(values))!r} is not recorded: its value is too large")
        else:
            names = [*values]
            for part in (names[: len(names) // 2], names[len(names) // 2 :]):
                half = {name: values[name] for name in part}
                self._encode(time, step, half, summary, origin, records)


class _Series:
    """Which library each metric belongs to, among all processes of the replica: the first line of a file that names it.

    A line is appended by one `write`, then the file is read again: so two processes agree on the first.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._owners: Dict[str, str] = {}
        self._read = 0
        self._lock = threading.RLock()

    def after_fork(self) -> None:
        """Forget the lock of the parent."""
        self._lock = threading.RLock()

    @property
    def has_owners(self) -> bool:
        """Whether a metric belongs to any library."""
        return bool(self._owners)

    def owner(self, name: str) -> str:
        """Return the library, "" if this process knows of none."""
        return self._owners.get(name, "")

    def claim(self, name: str, origin: str) -> str:
        """Return the library; from now on `origin` if no other has claimed the metric."""
        if len(self._owners) >= MOST_NAMES:
            return origin
        with self._lock:
            with suppress(
                OSError
            ):  # a full disk, or a folder that was removed: this process decides alone
                self._look(f"{origin} {name}\n".encode("utf-8", "replace"))
            return self._owners.setdefault(name, origin)

    def _look(self, line: bytes) -> None:
        path = os.path.join(self._folder, _SERIES)
        try:
            file = os.open(path, os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            make_folders(self._folder)
            with suppress(FileExistsError):
                os.close(create(path))
            file = os.open(path, os.O_RDWR | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
        try:
            if os.fstat(file).st_size < _MOST_SERIES_BYTES:
                os.write(file, line)
            data = os.pread(file, _MOST_SERIES_BYTES, self._read)
        finally:
            os.close(file)
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for text in whole.decode("utf-8", "replace").splitlines():
            origin, _, name = text.partition(" ")
            self._owners.setdefault(name, origin)


_sinks: List[Sink] = []
_starting = threading.Lock()


def sink() -> Sink:
    """Return this process's sink."""
    if not _sinks:
        with _starting:
            if not _sinks:
                from nsml import _session

                session = _session._SESSION  # noqa: SLF001 - of the same package
                run_dir = os.environ["NSML_RUN_DIR"]
                _sinks.append(
                    Sink(run_dir, session.spool, session.reporter, session.progress_writer)
                )
    return _sinks[0]


def _after_fork() -> None:
    global _starting
    _starting = threading.Lock()
    for one in _sinks:
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
