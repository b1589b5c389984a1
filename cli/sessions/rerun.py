"""run --rerun: the code, options and data of a session once more, except for what the command line says."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from cli.arguments import shell_words
from cli.exits import CommandError, ExitCode
from nsml.client.errors import ClientError
from nsml.common.shell import shell_line, shell_word
from nsml.spec.run_flags import put_again
from nsml.spec.variables import HIDDEN, without_values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from cli.app import App
    from cli.group import Typed
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import CreateSessionRequest, Session, SessionSpec

_OF_FOLDERS = ("sends_code", "max_size")
"""Options about the folder that is sent: here none is."""


class Rerun:
    """What to run again.

    Args:
        given: the command's parameters.
        typed: what stands before `--`, and `words` what stands behind it, None without it.
        repeats: of those that are part of the command which repeats the new session.

    Raises:
        UsageError: they contradict each other.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        typed: Sequence[Typed],
        words: Sequence[str] | None,
        repeats: Sequence[Typed],
    ) -> None:
        self._given, self._words, self._repeats = given, words, repeats
        self._typed = {one.option.name for one in typed if one.option and one.option.name}
        if "env_file" in self._typed:
            self._typed.add("env")
        self._is_filled = False
        if self._typed.intersection(_OF_FOLDERS):
            raise click.UsageError(
                "--rerun sends no folder: leave out --code, --no-code and --max-size"
            )

    def tell_if_unknown(self, app: App, session: Session) -> None:
        """Say so where the platform does not keep what a session came from."""
        if not session.HasField("origin"):
            app.say(
                "warning: the platform is of an older version: it does not keep what it is a rerun of"
            )

    @asynccontextmanager
    async def asked(self, client: Client, request: CreateSessionRequest) -> AsyncIterator[None]:
        """Ask for what the session asked for, except for what was typed; what is advised within is about a rerun.

        Raises:
            NotFound: there is no such session.
            CommandError: something of it is not the user's to know, or the session runs a command and has no arguments.
        """
        if not self._is_filled:
            await self._fill(client, request)
        try:
            yield
        except ClientError as error:
            error.advice = "\n".join(map(self._of_rerun, error.advice.splitlines()))
            raise

    def _of_rerun(self, line: str) -> str:
        is_other = not line.startswith("nsml run ") or "--rerun" in line
        again = f"nsml run --rerun {shell_word(self._given['rerun'])} "
        return line if is_other else line.replace("nsml run ", again, 1)

    async def _fill(self, client: Client, request: CreateSessionRequest) -> None:
        from nsml.v1.sessions_pb2 import ORIGIN_KIND_RERUN

        session = await client.sessions.get(self._given["rerun"])
        _name_owner(session)
        put_again(request, session, self._given, self._typed)
        request.origin.kind, request.origin.session = ORIGIN_KIND_RERUN, session.id
        self._check_known(session)
        self._set_program(request.spec, session)
        request.command[:] = ("nsml", "run", *without_values(self._words_for(session)))
        self._is_filled = True

    def _check_known(self, session: Session) -> None:
        """Where values are hidden, all are; one that is three asterisks is a value like any other."""
        if set(session.spec.environment.values()) != {HIDDEN}:
            return
        hidden = sorted(session.spec.environment.keys() - self._given["env"].keys())
        if hidden:
            given = [word for name in hidden for word in ("--env", f"{name}=VALUE")]
            raise CommandError(
                f"only {session.owner} sees the values of {', '.join(hidden)}",
                why=f"{session.name} has them as variables",
                advice=f"nsml run --rerun {session.name} {shell_line(given)} ...",
            )

    def _set_program(self, spec: SessionSpec, session: Session) -> None:
        given, words = self._given, self._words
        entry = given["positional"] or given["entry"]
        arguments = shell_words("-a", given["args"])
        if given["is_argv"]:
            spec.entry, spec.args[:], spec.argv[:] = "", (), words or ()
        elif entry:
            spec.entry, spec.argv[:] = PurePosixPath(entry).as_posix(), ()
            if "args" in self._typed or words is not None:
                spec.args[:] = (*arguments, *(words or ()))
        elif "args" in self._typed or words is not None:
            if spec.argv:
                raise CommandError(
                    f"{session.name} ran a whole command, which has no arguments of its own",
                    code=ExitCode.USAGE,
                    why=shell_line(spec.argv),
                    advice=f"nsml run --rerun {session.name} --argv -- COMMAND ...",
                )
            spec.args[:] = (*arguments, *(words or ()))

    def _words_for(self, session: Session) -> list[str]:
        """What was typed, with the session by a name that means it tomorrow, too."""
        words = ["--rerun", session.name]
        for one in self._repeats:
            if one.option is None or one.option.name != "rerun":
                words += one.words
        return words if self._words is None else [*words, "--", *self._words]


def _name_owner(session: Session) -> None:
    """Datasets are named as their user sees them: here somebody else may ask for them."""
    for one in session.spec.datasets:
        if "/" not in one.name:
            one.name = f"{session.owner}/{one.name}"
