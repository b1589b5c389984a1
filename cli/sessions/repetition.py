"""New sessions from the record of another one, without an upload: run --rerun, rerun, fork and resume."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cli.arguments import shell_words
from cli.exits import CommandError, ExitCode
from cli.sessions.launchers import check_launch
from nsml.client.errors import ClientError
from nsml.common.shell import shell_line
from nsml.common.text import visible
from nsml.common.units import counted
from nsml.spec import echo
from nsml.spec.nsml_arguments import (
    fork_arguments,
    has_fork_arguments,
    takes_fork_arguments,
    with_fork_arguments,
    with_pause,
)
from nsml.spec.run_flags import put_again
from nsml.spec.variables import HIDDEN, without_values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from cli.app import App
    from cli.group import Typed
    from nsml.client.calls import Client
    from nsml.packages.requirements import Requirements
    from nsml.v1.checkpoints_pb2 import Checkpoint
    from nsml.v1.nodes_pb2 import Node
    from nsml.v1.sessions_pb2 import CreateSessionRequest, Session, SessionSpec
    from nsml.view.reproduction import Unpinned

_OF_FOLDERS = ("sends_code", "max_size", "rehash")
"""Options about the uploaded folder; here there is none."""
_OF_SOURCES = ("rerun", "session")
"""Parameters that name the session on a command line."""
NEWEST = "@last"
"""The newest checkpoint, on a command line."""


class Source(NamedTuple):
    """The repeated session, and how."""

    session: str
    """A reference."""
    kind: str = "rerun"
    """In the contract's terms: rerun, fork, resume, infer."""
    command: tuple[str, ...] = ("nsml", "run", "--rerun")
    """The words of the command before the session."""
    checkpoint: str | None = None
    """The initial checkpoint of the new session; None: that of the other session."""


class Repetition:
    """The request to repeat a session.

    Args:
        source: which session, and how.
        given: the command's parameters.
        typed: the words before `--`, and `words` those after it, None without it.
        repeats: the words of `typed` to include in the command that repeats the new session.

    Raises:
        UsageError: they contradict each other.
    """

    def __init__(
        self,
        source: Source,
        given: Mapping[str, Any],
        typed: Sequence[Typed],
        words: Sequence[str] | None,
        repeats: Sequence[Typed],
    ) -> None:
        self._source, self._given, self._words, self._repeats = source, given, words, repeats
        self._typed = {one.option.name for one in typed if one.option and one.option.name}
        if "env_file" in self._typed:
            self._typed.add("env")
        self._found: Session | None = None
        self._required: Requirements | None = None
        self._nodes: list[Node] | None = None
        self._caller = ""
        """The user's name, if either session has output datasets."""
        self._outputs_left_out: list[str] = []
        self._lock_left_out = ""
        """Why the other session's packages are not requested; "": they are, or there is no lock."""
        self._added: list[str] = []
        """The arguments also added by NSML."""
        if self._typed.intersection(_OF_FOLDERS):
            raise click.UsageError(
                "--rerun sends no folder: leave out --code, --no-code, --max-size and --rehash"
            )

    def tell_if_unknown(self, app: App, session: Session) -> None:
        """Warn if the platform does not store the origin of sessions."""
        if not session.HasField("origin"):
            app.say(
                "warning: the platform is of an older version: it does not keep what it is a rerun of"
            )

    def supposed(self, request: CreateSessionRequest) -> Session:
        """Return the session of the request, as far as known; owned by the source session's user."""
        from nsml.v1.sessions_pb2 import Session as Message

        git = request.git if request.HasField("git") else None
        made = Message(spec=request.spec, git=git)
        if self._found is not None:
            made.owner = self._found.owner
            if made.spec.initial_checkpoint.session == self._found.id:
                made.spec.initial_checkpoint.session_name = self._found.name
        return made

    def tell(self, app: App, made: Session) -> None:
        """Report differences from the source session, actual and possible."""
        from nsml.view.sessions import initial_text

        source = self._found
        if source is None:
            return
        changed = self._changed(made)
        app.say(f"  {self._source.kind} of {source.name}: {changed or 'nothing changed'}")
        if made.spec.HasField("initial_checkpoint"):
            app.say(f"  begins with checkpoint {initial_text(made)}")
            if not source.progress.resumable:
                app.say(
                    f"  note: {source.name} has not bound a load function: the program begins"
                    " anew unless it calls nsml.load"
                )
            if self._added:
                app.say(f"  arguments added, as NSML's fork does: {shell_line(self._added)}")
        elif self._source.kind == "fork" and source.progress.resumable and source.checkpoint_count:
            saved = counted(source.checkpoint_count, "checkpoint")
            again = shell_line([*self._source.command, source.name, "-c", NEWEST])
            app.say(
                f"  note: it begins anew: {source.name} has {saved}; {again} goes on from there"
            )
        for text in made.spec.output_datasets:
            app.say(f"  output dataset: {self._caller}/{text.partition('=')[0]}")
        if self._outputs_left_out:
            app.say(
                f"  output datasets of {source.owner} left out: {', '.join(self._outputs_left_out)};"
                " --output-dataset names yours"
            )
        for one in self._not_pinned(made):
            app.say(f"  not pinned: {one.what}: {one.why}")

    def record(self, made: Session) -> dict[str, Any]:
        """The same for programs, beside the record of the session."""
        unpinned = self._not_pinned(made)
        return {"not_pinned": [{"what": one.what, "why": one.why} for one in unpinned]}

    def _not_pinned(self, made: Session) -> list[Unpinned]:
        from nsml.view.reproduction import Unpinned, not_pinned

        if self._found is None:
            return []
        lock = [Unpinned("lock", self._lock_left_out)] if self._lock_left_out else []
        return [*lock, *not_pinned(self._found, made, self._required, self._nodes)]

    def _changed(self, made: Session) -> str:
        """Return requested differences from the source session: `gpus 1 -> 2, lr 0.1 -> 0.2`."""
        from nsml.view import compare

        if self._found is None:
            return ""
        before, after = (_comparable(one) for one in (self._found, made))
        rows = [
            row
            for row in compare.asked([before, after])
            if row.differs and row.key != "checkpoint"  # has a line of its own
        ]
        return ", ".join(
            f"{row.title} {compare.cell(row, before.name)} -> {compare.cell(row, after.name)}"
            for row in rows
        )

    @asynccontextmanager
    async def asked(self, client: Client, request: CreateSessionRequest) -> AsyncIterator[None]:
        """Fill the request from the session, except for typed options; advice of errors within refers to it.

        Raises:
            NotFound: there is no such session.
            CommandError: the user may not see all of it, it runs a command and has no arguments, it was
                restored without its datasets, or it is to be resumed and has not ended.
        """
        if self._found is None:
            self._found = await self._fill(client, request)
        try:
            yield
        except ClientError as error:
            error.advice = "\n".join(map(self._of_source, error.advice.splitlines()))
            raise

    def _of_source(self, line: str) -> str:
        is_other = not line.startswith("nsml run ") or "--rerun" in line
        again = shell_line([*self._source.command, self._source.session]) + " "
        return line if is_other else line.replace("nsml run ", again, 1)

    async def _fill(self, client: Client, request: CreateSessionRequest) -> Session:
        from nsml.v1 import sessions_pb2 as pb

        source = self._source
        session = await client.sessions.get(source.session)
        if source.kind == "resume":
            _check_ended(session)
        known = pb.Session.FromString(session.SerializeToString())
        self._leave_out_foreign(session)
        _leave_out_hidden_echo(session)
        _leave_out_lost_start(session)
        _name_owner(session)
        put_again(request, session, self._given, self._typed)
        kind = f"ORIGIN_KIND_{source.kind.upper()}"
        request.origin.CopyFrom(pb.Origin(kind=kind, session=session.id))
        if session.HasField("git"):
            request.git.CopyFrom(session.git)
        if source.checkpoint is not None:
            name = "" if source.checkpoint == NEWEST else source.checkpoint
            initial = pb.InitialCheckpoint(session=session.id, name=name)
            request.spec.initial_checkpoint.CopyFrom(initial)
        self._check_known(session)
        await self._leave_out_outputs(client, request.spec, session)
        self._set_program(request.spec, session)
        self._set_stage(request.spec)
        await self._add_fork_arguments(client, request.spec, session)
        self._pin_image(request, known)
        self._pin_packages(request, known)
        self._required = await _required(client, session, request.spec)
        await self._set_conda(client, request.spec, known)
        self._nodes = await _nodes(client, session)
        request.command[:] = self._command(session)
        return known

    def _leave_out_foreign(self, session: Session) -> None:
        """Drop a restored session's datasets that were not found here: one of the same name may be another.

        Raises CommandError unless datasets were typed.
        """
        foreign = [one for one in session.spec.datasets if not one.digest]
        if not session.HasField("imported") or not foreign:
            return
        if self._typed.isdisjoint({"dataset", "stream"}):
            names = ", ".join(f"{one.name}@{one.version}" for one in foreign)
            raise CommandError(
                f"{session.name} was restored without its dataset {visible(names)}",
                code=ExitCode.CONFLICT,
                reason="STATE_CONFLICT",
                why="you had no version of that name and content, and one of its name may be another",
                advice=f"{self._again(session)} -d DATASET ...",
            )
        kept = [one for one in session.spec.datasets if one.digest]
        del session.spec.datasets[:]
        session.spec.datasets.extend(kept)

    async def _leave_out_outputs(self, client: Client, spec: SessionSpec, session: Session) -> None:
        """Drop output datasets that were not typed from another user's session: they would become versions of one's own."""
        if not spec.output_datasets:
            return
        self._caller = (await client.accounts.caller()).user.name
        if session.owner != self._caller and "output_dataset" not in self._typed:
            self._outputs_left_out = list(spec.output_datasets)
            del spec.output_datasets[:]

    def _pin_image(self, request: CreateSessionRequest, session: Session) -> None:
        """Request the image it ran in, unless another one, a newer one of its name, or one from a Dockerfile is requested."""
        from nsml.view.reproduction import pinned_image

        if "image" in self._typed and "dockerfile" not in self._typed:
            request.spec.dockerfile = ""
            request.spec.build_arguments.clear()
        elif "dockerfile" in self._typed and "image" not in self._typed:
            request.spec.image = ""
        is_same = {"image", "refresh"}.isdisjoint(self._typed) and not request.spec.dockerfile
        if is_same and (pinned := pinned_image(session)):
            request.spec.image = session.spec.image = pinned

    def _pin_packages(self, request: CreateSessionRequest, session: Session) -> None:
        """Request the packages it ran with, unless the newest ones, an image, or a Dockerfile, which installs its own, are requested."""
        is_same = {"image", "refresh"}.isdisjoint(self._typed) and not request.spec.dockerfile
        lock = session.environment_lock.digest or session.spec.environment_lock
        request.spec.environment_lock = lock if is_same else ""

    async def _set_conda(self, client: Client, spec: SessionSpec, session: Session) -> None:
        """Request a node with conda if the code lists conda packages, and drop a lock of the other kind.

        Requests of older clients do not mention conda, and the nodes of that time installed none of it.
        """
        from nsml.packages.locks import is_of_conda

        required = self._required
        if required is None:
            return
        before = session.spec.needs_conda
        spec.needs_conda = required.conda is not None and not spec.dockerfile
        if not spec.environment_lock or not (before or spec.needs_conda):
            return
        try:
            lock = (await client.environments.lock(session.id)).content
        except ClientError:
            return  # the submission reports the missing part
        if is_of_conda(lock) != spec.needs_conda:
            spec.environment_lock = ""
            lists = f"{visible(required.source)} lists" if required.source else "the code lists"
            self._lock_left_out = (
                f"the lock of {session.name} is not used: it has no packages of conda, and {lists} some"
                if spec.needs_conda
                else f"the lock of {session.name} is not used: it has packages of conda, and {lists} none"
            )

    def _check_known(self, session: Session) -> None:
        """Hidden values are hidden all together; a single value of three asterisks is a normal value."""
        if set(session.spec.environment.values()) != {HIDDEN}:
            return
        hidden = sorted(session.spec.environment.keys() - self._given["env"].keys())
        if hidden:
            given = [word for name in hidden for word in ("--env", f"{name}=VALUE")]
            names = ", ".join(hidden)
            is_restored = session.HasField("imported")
            raise CommandError(
                f"{session.name} was restored without the values of {names}"
                if is_restored
                else f"only {session.owner} sees the values of {names}",
                why="whoever wrote the backup was not the owner of the session"
                if is_restored
                else f"{session.name} has them as variables",
                advice=f"{self._again(session)} {shell_line(given)} ...",
            )

    def _set_program(self, spec: SessionSpec, session: Session) -> None:
        given, words = self._given, self._words
        entry = given["positional"] or given["entry"]
        arguments = shell_words("-a", given["args"])
        if given["is_argv"]:
            check_launch(given.get("launch"), words or ())
            spec.ClearField("launcher")
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
                    advice=f"{self._again(session)} --argv -- COMMAND ...",
                )
            spec.args[:] = (*arguments, *(words or ()))

    def _set_stage(self, spec: SessionSpec) -> None:
        """Request a session that waits for inputs, or an ordinary one: steps of submissions are the platform's."""
        from nsml.v1 import sessions_pb2 as pb

        spec.ClearField("submission_id")
        repeats_one = self._source.kind == "rerun" and spec.stage == pb.SESSION_STAGE_INFER
        if self._source.kind != "infer":
            spec.stage = pb.SESSION_STAGE_INFER if repeats_one else pb.SESSION_STAGE_UNSPECIFIED
            return
        spec.stage = pb.SESSION_STAGE_INFER
        if not spec.argv:
            spec.args[:] = with_pause(spec.args)

    def next_steps(self, made: Session) -> str:
        """Return what to do with the new session, if that is not what one does with others; else ""."""
        from nsml.v1 import sessions_pb2 as pb

        if made.spec.stage != pb.SESSION_STAGE_INFER:
            return ""
        ask = shell_line(["nsml", "exec", made.name, "nsml.infer(data)"])
        return f"ask: {ask}   end: {shell_line(['nsml', 'stop', made.name])}"

    async def _add_fork_arguments(
        self, client: Client, spec: SessionSpec, session: Session
    ) -> None:
        """Add the fork arguments for a program written for NSML that starts from a checkpoint.

        Not if the user typed one of them, or the program differs from the session's.
        """
        is_same = session.progress.resumable and spec.entry == session.spec.entry
        typed = [*shell_words("-a", self._given["args"]), *(self._words or ())]
        if (
            self._source.kind == "infer"
            or self._source.checkpoint is None
            or not is_same
            or has_fork_arguments(typed)
        ):
            return
        from nsml.client.code import read_python

        try:
            name = await _checkpoint_name(client, session, spec.initial_checkpoint.name)
            if not name or not takes_fork_arguments(await read_python(client, session), name):
                return
        except ClientError:
            return  # the submission reports the missing part
        # By name: a newer checkpoint created meanwhile would not match the arguments.
        spec.initial_checkpoint.name = name
        spec.args[:] = with_fork_arguments(spec.args, name)
        self._added = fork_arguments(name)

    def _again(self, session: Session) -> str:
        return shell_line([*self._source.command, session.name])

    def _command(self, session: Session) -> list[str]:
        """Return the typed command, with the session's permanent name and without the values of variables."""
        words: list[str] = []
        for one in self._repeats:
            if one.option is not None and one.option.name not in _OF_SOURCES:
                words += one.words
            elif one.option is None and self._given["positional"]:
                words += one.words  # the entry; of other commands than `run` it is the session
        words += [] if self._words is None else ["--", *self._words]
        # Not an option there, as of fork.
        is_infer = self._source.kind == "infer" and self._source.checkpoint not in {None, NEWEST}
        checkpoint = [self._source.checkpoint or ""] if is_infer else []
        return [*self._source.command, session.name, *checkpoint, *without_values(words)]


async def _checkpoint_name(client: Client, session: Session, given: str) -> str:
    """Return the name of the checkpoint with this name or tag, of the newest readable one for ""; "" if there is none.

    The newest one is that of the latest attempt with a checkpoint, as on the platform.
    """
    if given:
        return (await client.checkpoints.get(session.id, given)).name
    found = [one for one in await client.checkpoints.every(session.id) if one.digest]

    def age(one: Checkpoint) -> tuple[int, int, str]:
        saved = one.content_saved_at if one.HasField("content_saved_at") else one.saved_at
        return one.attempt, saved.ToNanoseconds(), one.name

    newest = max(found, key=age, default=None)
    return newest.name if newest is not None else ""


def _leave_out_lost_start(session: Session) -> None:
    """Drop a restored session's initial checkpoint if it was not restored; see `not_pinned`."""
    initial = session.spec.initial_checkpoint
    if session.HasField("imported") and not initial.digest:
        session.spec.ClearField("initial_checkpoint")


def _leave_out_hidden_echo(session: Session) -> None:
    """Drop another user's choice of loggers, which is not shown: it is no value that a program needs."""
    if session.spec.environment.get(echo.VARIABLE) == HIDDEN:
        del session.spec.environment[echo.VARIABLE]


async def _required(client: Client, session: Session, spec: SessionSpec) -> Requirements | None:
    """Return the requirements of a session's code with the program of `spec`; None if unreadable."""
    from nsml.client.code import read_required

    asked = type(session).FromString(session.SerializeToString())
    asked.spec.entry, asked.spec.argv[:] = spec.entry, spec.argv
    try:
        return await read_required(client, asked, has_image=bool(spec.image))
    except ClientError:
        return None  # the submission reports the missing part


async def _nodes(client: Client, session: Session) -> list[Node] | None:
    """Return all nodes, if something of the session depends on them; None if not, or on failure."""
    from nsml.view.reproduction import is_of_nodes

    if not is_of_nodes(session):
        return None
    try:
        return await client.nodes.every()
    except ClientError:
        return None


def _check_ended(session: Session) -> None:
    from nsml.v1.sessions_pb2 import SESSION_STATE_HELD
    from nsml.view.sessions import WAITING_STATES, word_of

    if session.HasField("ended_at"):
        return
    is_queued = session.state in WAITING_STATES
    if session.state == SESSION_STATE_HELD:
        raise CommandError(
            f"{session.name} has not ended",
            code=ExitCode.CONFLICT,
            reason="STILL_LIVE",
            why="it is held",
            advice=f"nsml requeue {session.name}    to let it go on\n"
            f"nsml status --explain {session.name}    says why it is held",
        )
    raise CommandError(
        f"{session.name} has not ended",
        code=ExitCode.CONFLICT,
        reason="STILL_LIVE",
        why=f"it is {word_of(session).word.lower()}, and goes on from its checkpoint by itself",
        advice=f"nsml status --explain {session.name}"
        if is_queued
        else f"nsml requeue {session.name}    to save it, and queue it again\n"
        f"nsml fork {session.name} -c {NEWEST}    for another session from its newest checkpoint",
    )


def _comparable(session: Session) -> Session:
    """Return the session with full dataset names, comparable between users."""
    from nsml.v1.sessions_pb2 import Session as Message

    copy = Message.FromString(session.SerializeToString())
    _name_owner(copy)
    return copy


def _name_owner(session: Session) -> None:
    """Add the owner to dataset names: their user's short names may be ambiguous here."""
    for one in session.spec.datasets:
        if "/" not in one.name:
            one.name = f"{session.owner}/{one.name}"
