"""The commit of the folder, read with git; a hostile folder must not make git run its programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from itertools import chain
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.spec.git_facts import is_branch, is_commit, public_remote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsml.v1.sessions_pb2 import GitFacts

MOST_S: Final = 2.0
"""Seconds for all calls together; for a huge repository it may then be unknown whether it is changed."""
_MOST_BYTES: Final = 1 << 20
"""Limit of an answer."""
_MOST_FILTERS: Final = 100
_SAFE: Final = (
    # Commands that git runs from a repository's own configuration.
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.sshCommand", "false"),
    ("core.askPass", ""),
    ("credential.helper", ""),
    # Reads elsewhere than in the folder, or in other repositories.
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
    ("core.untrackedCache", "false"),
)
_FILTER_COMMANDS: Final = ("clean", "smudge", "process")


class _GitError(Exception):
    """Git failed: there is no commit, it refuses the folder, or the time is up."""


def git_commit(folder: Path, environ: Mapping[str, str]) -> GitFacts | None:
    """Return the commit of a folder in a git work tree; None if there is none, no git, or no answer in time.

    Never raises, and never runs programs configured by the folder's repository: hooks, a file system monitor, filters, a
    transport for missing objects. The user's own configuration is not read either.
    """
    git = shutil.which("git", path=environ.get("PATH"))
    if git is None or not Path(git).is_absolute():  # a program of the folder, from a `.` in PATH
        return None
    if not any((one / ".git").exists() for one in (folder, *folder.parents)):
        return None
    asking = _Git(git, folder, environ, time.monotonic() + MOST_S)
    try:
        return _facts(asking)
    except (_GitError, OSError):
        return None


def _facts(git: _Git) -> GitFacts | None:
    from nsml.v1.sessions_pb2 import GitFacts

    config = _settings(git.answer(["config", "--list", "-z"]))
    safe = [*_SAFE, *_without_filters(key for key, _ in config)]
    lines = git.answer(["rev-parse", "HEAD", "--symbolic-full-name", "HEAD"]).split()
    commit = lines[0] if lines else ""
    if not is_commit(commit):
        return None
    branch = lines[1].removeprefix("refs/heads/") if len(lines) > 1 else ""
    found = GitFacts(
        commit=commit,
        branch=branch if branch != "HEAD" and is_branch(branch) else "",
        remote=public_remote(next((v for key, v in config if key == "remote.origin.url"), "")),
    )
    status = ("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=all")
    try:
        found.dirty = bool(git.answer([*status, "--", "."], safe, most=1))
    except _GitError:
        found.ClearField("dirty")
    return found


class _Git(NamedTuple):
    """Calls git in a folder, with a deadline on the monotonic clock."""

    program: str
    folder: Path
    environ: Mapping[str, str]
    until: float

    def answer(
        self,
        words: Sequence[str],
        settings: Iterable[tuple[str, str]] = _SAFE,
        *,
        most: int = _MOST_BYTES,
    ) -> str:
        """Return the first `most` bytes of its output. Raises _GitError, also for _MOST_BYTES of output; OSError."""
        left_s = self.until - time.monotonic()
        if left_s <= 0:
            raise _GitError
        with subprocess.Popen(
            [self.program, "--no-optional-locks", *words],
            cwd=self.folder,
            env=_environment(self.environ, settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this program, which ends it
        ) as running:
            ending = Timer(left_s, _kill, [running])
            ending.start()
            try:
                output = b"" if running.stdout is None else running.stdout.read(most)
                is_enough = len(output) == most
                if not is_enough:
                    running.wait()
            finally:
                ending.cancel()
                _kill(running)
        if (not is_enough and running.returncode) or len(output) == _MOST_BYTES:
            raise _GitError
        return output.decode(errors="replace")


def _kill(running: subprocess.Popen[bytes]) -> None:
    """Kill it, with all its children."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(running.pid, signal.SIGKILL)


def _environment(environ: Mapping[str, str], settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the caller's environment, with these settings alone for git; they override those of the repository."""
    kept = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    given = list(settings)
    numbered = chain.from_iterable(
        ((f"GIT_CONFIG_KEY_{number}", key), (f"GIT_CONFIG_VALUE_{number}", value))
        for number, (key, value) in enumerate(given)
    )
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_COUNT": str(len(given)),
        **dict(numbered),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_REPLACE_OBJECTS": "1",
    }


def _settings(listed: str) -> list[tuple[str, str]]:
    """Return keys and values of `git config --list -z`, the last one of a key first."""
    pairs = (entry.partition("\n") for entry in listed.split("\0") if entry)
    return [(key, value) for key, _, value in pairs][::-1]


def _without_filters(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Return settings that disable all filters of a repository: git filters files whose size or time differs.

    Raises _GitError if there are so many that the list may be incomplete.
    """
    names = {key[: key.rindex(".")] for key in keys if key.startswith("filter.")}
    if len(names) > _MOST_FILTERS:
        raise _GitError
    off = ((f"{name}.{command}", "") for name in sorted(names) for command in _FILTER_COMMANDS)
    return [*off, *((f"{name}.required", "false") for name in sorted(names))]
