"""Which commit the folder is at: asked of git, of which a hostile folder must not make a program that runs."""

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
"""Seconds for all calls together: of a huge repository it is not known then whether it is changed."""
_MOST_BYTES: Final = 1 << 20
"""Of an answer."""
_MOST_FILTERS: Final = 100
_SAFE: Final = (
    # Commands that a repository's own configuration has git run.
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.sshCommand", "false"),
    ("core.askPass", ""),
    ("credential.helper", ""),
    # Elsewhere than in the folder, or in other repositories.
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
    ("core.untrackedCache", "false"),
)
_FILTER_COMMANDS: Final = ("clean", "smudge", "process")


class _GitError(Exception):
    """It did not answer: there is no commit, or it refuses the folder, or its time is up."""


def git_commit(folder: Path, environ: Mapping[str, str]) -> GitFacts | None:
    """The commit of a folder in a git work tree; None where there is none, no git, or no answer in time.

    Never raises, and never runs what the folder's repository configures: hooks, a file system monitor, filters, a
    transport for objects that it lacks. The user's own configuration is not read either.
    """
    git = shutil.which("git", path=environ.get("PATH"))
    if git is None or not Path(git).is_absolute():  # one of the folder, by a `.` in PATH
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
    """Calls of git in a folder, until a moment of the monotonic clock."""

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
        """The first `most` bytes that it prints. Raises _GitError, also for an answer of _MOST_BYTES; OSError."""
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
    """End it, with all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(running.pid, signal.SIGKILL)


def _environment(environ: Mapping[str, str], settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The caller's, with nothing that git reads but these settings, which come before those of the repository."""
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
    """Keys and values of `git config --list -z`, the last one of a key first."""
    pairs = (entry.partition("\n") for entry in listed.split("\0") if entry)
    return [(key, value) for key, _, value in pairs][::-1]


def _without_filters(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Settings by which no filter of a repository is run: git has files of another size or time filtered.

    Raises _GitError where there are so many that they may not be all.
    """
    names = {key[: key.rindex(".")] for key in keys if key.startswith("filter.")}
    if len(names) > _MOST_FILTERS:
        raise _GitError
    off = ((f"{name}.{command}", "") for name in sorted(names) for command in _FILTER_COMMANDS)
    return [*off, *((f"{name}.required", "false") for name in sorted(names))]
