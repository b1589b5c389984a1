"""Exit codes, and the mapping from errors to them."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from nsml.client import errors

if TYPE_CHECKING:
    from collections.abc import Mapping


class ExitCode(IntEnum):
    """The exit codes of every command. `run --wait`, `sh` and `ssh` pass on those of programs instead."""

    OK = 0
    """Done."""
    FAILED = 1
    """It did not work; the error says why."""
    USAGE = 2
    """The command line or a file it names is wrong, or nobody can confirm it."""
    UNAVAILABLE = 3
    """No control plane answers, or the platform failed; safe to run again."""
    DENIED = 4
    """Not logged in, or not allowed."""
    NOT_FOUND = 5
    """What was named is not there, or is not visible."""
    CONFLICT = 6
    """Wrong state for this: already ended, still running, name taken."""
    NOT_ENOUGH = 7
    """No credit, over quota, or no machine that is large enough or free."""
    TIMED_OUT = 8
    """--timeout passed."""
    PARTLY = 9
    """Some of several were done; the failures are listed."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE_CLOSED = 141
    """The reader of the output left."""


class CommandError(Exception):
    """A failure of the command line itself, shown like the platform's errors."""

    def __init__(
        self,
        message: str,
        *,
        code: ExitCode = ExitCode.FAILED,
        reason: str = "",
        why: str = "",
        advice: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason or code.name
        self.why = why
        self.advice = advice


_CODES: Mapping[type[errors.ClientError], ExitCode] = {
    errors.Unavailable: ExitCode.UNAVAILABLE,
    errors.NotSignedIn: ExitCode.DENIED,
    errors.UntrustedServer: ExitCode.DENIED,
    errors.Denied: ExitCode.DENIED,
    errors.NotFound: ExitCode.NOT_FOUND,
    errors.InvalidRequest: ExitCode.USAGE,
    errors.StateConflict: ExitCode.CONFLICT,
    errors.NotEnough: ExitCode.NOT_ENOUGH,
    errors.TooLarge: ExitCode.FAILED,
    errors.Unsupported: ExitCode.FAILED,
    errors.PlatformFault: ExitCode.FAILED,
}


def code_of(error: errors.ClientError) -> ExitCode:
    """Return the exit code of a platform's error: that of its nearest ancestor in the table."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), ExitCode.FAILED)
