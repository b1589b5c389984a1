"""Starts the programs of a data folder, all or none: for `nsml up` and `nsml join`."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

from cli.exits import CommandError, ExitCode
from cli.local import processes
from cli.local.data_folder import TITLES, DataFolder
from cli.local.processes import StartFailed
from nsml.common.text import visible
from nsml.common.units import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cli.app import App

READY_WITHIN_S = 60.0
END_WITHIN_S = 15.0
LEAST_ROOM_BYTES = 64 << 20
"""Size of etcd's first log file; with less room a program may fail without naming the cause."""


class BringUp:
    """Starts missing programs; see `undoing`.

    Attributes:
        started: names of the programs started here, in that order.
    """

    def __init__(self, app: App, folder: DataFolder) -> None:
        self._app = app
        self._folder = folder
        self.started: list[str] = []

    @contextlib.contextmanager
    def undoing(self) -> Iterator[None]:
        """Stop the programs started inside the block if the block fails, and nothing else."""
        try:
            yield
        except BaseException:
            for name in reversed(self.started):
                self._app.say(f"{TITLES[name]:<14} stopping again")
                stop_program(self._folder, name)
            raise

    def check(self, name: str, settings: Mapping[str, object]) -> None:
        """Check the administrator's settings of a program before anything is started.

        Raises:
            CommandError: the program would not start with them.
        """
        folder = self._folder
        site, prefix = folder.site_settings(name), f"NSML_{name.upper()}_"
        is_set = site.exists() or any(key.startswith(prefix) for key in self._app.environ)
        if not is_set or folder.running(name) is not None:
            return  # our own settings are valid
        file = folder.write_settings(name, settings)
        reason = processes.refusal(name, file, environ=self._app.environ)
        if reason:
            raise CommandError(
                f"the {TITLES[name]} would not start with its settings",
                why=reason,
                advice=f"mend {site if site.exists() else prefix + '... in the environment'}",
            )

    def ensure(self, name: str, settings: Mapping[str, object]) -> Mapping[str, Any]:
        """Make sure that a program runs; return the contents of its ready file.

        Raises:
            CommandError: it does not start; the reason is its last output.
        """
        if self._folder.running(name) is None:
            return self._start(name, settings)
        said = self._folder.said(name)
        if said:
            return said
        return self._adopt(name)

    def _start(self, name: str, settings: Mapping[str, object]) -> Mapping[str, Any]:
        folder, title = self._folder, TITLES[name]
        clear_leftovers(folder, name)
        log = processes.log_of(name, folder.path)
        file = folder.write_settings(name, {**settings, "log_file": log})
        self._app.say(f"{title:<14} starting")
        launched = processes.launch(
            name, ["--config", str(file)], folder=folder.path, environ=self._app.environ
        )
        if name not in self.started:
            self.started.append(name)
        try:
            return launched.wait_ready(
                folder.ready(name), deadline_s=READY_WITHIN_S, more_s=self._patience(name)
            )
        except StartFailed as error:
            raise _did_not_start(title, str(error), folder, name) from error

    def _adopt(self, name: str) -> Mapping[str, Any]:
        """Wait for a running program that is not ready yet."""
        self._app.say(f"{TITLES[name]:<14} runs, waiting until it is ready")
        try:
            return processes.wait_until(
                lambda: self._folder.said(name),
                alive=lambda: self._folder.running(name) is not None,
                deadline_s=READY_WITHIN_S,
                more_s=self._patience(name),
            )
        except StartFailed as error:
            raise _did_not_start(TITLES[name], str(error), self._folder, name) from error

    def _patience(self, name: str) -> Callable[[], float]:
        """Return a function that reports what a start waits for, and grants the reported seconds."""
        granted_s, reported = 0.0, set[str]()

        def more_s() -> float:
            nonlocal granted_s
            said = self._folder.awaits(name)
            awaits, within_s = str(said.get("awaits", "")), said.get("within_s")
            if awaits and awaits not in reported:
                reported.add(awaits)
                bound = ""
                if isinstance(within_s, int | float):
                    granted_s += within_s
                    bound = f" up to {within_s:g} s"
                self._app.say(f"{'':<14} waits{bound}: {visible(awaits)}")
            return granted_s

        return more_s


def stop_program(folder: DataFolder, name: str) -> bool:
    """Stop a program and its leftovers; return False if it had to be killed. Does nothing if it is gone."""
    program = folder.running(name)
    is_orderly = program is None or processes.end(program, grace_s=END_WITHIN_S)
    clear_leftovers(folder, name)
    return is_orderly


def clear_leftovers(folder: DataFolder, name: str) -> None:
    """Kill the leftover processes of a killed program, and remove its records."""
    record = folder.path / f"{name}.pid"
    leader = processes.read_json(record).get("pid")
    if isinstance(leader, int) and folder.running(name) is None:
        processes.end_orphans(leader, folder.path)
    record.unlink(missing_ok=True)
    with contextlib.suppress(NotADirectoryError):  # the program itself will report it
        folder.ready(name).unlink(missing_ok=True)
        folder.starting(name).unlink(missing_ok=True)


def _did_not_start(title: str, reason: str, folder: DataFolder, name: str) -> CommandError:
    free = shutil.disk_usage(folder.path).free
    advice = f"read {folder.path / name}.log"
    said = folder.awaits(name)
    if "awaits" in said:
        reason = f"it still waits: {said['awaits']}"
        if "within_s" not in said:
            advice = f"start it, or mend the way to it; then nsml up\n{advice}"
    return CommandError(
        f"the {title} did not start",
        code=ExitCode.FAILED,
        why="\n".join(filter(None, (too_full(folder.path, free), reason))),
        advice=advice,
    )


def too_full(path: Path, free_bytes: int) -> str:
    """Return the error if the disk of a data folder lacks room for its programs, else ""."""
    if free_bytes >= LEAST_ROOM_BYTES:
        return ""
    return f"the disk of {path} is full: {size_text(free_bytes)} are free"
