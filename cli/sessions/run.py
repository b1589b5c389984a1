"""run: check, pack, upload, submit, and follow if requested.

Everything that can be checked locally is checked before the upload, so that a mistake leaves
nothing behind.
"""

from __future__ import annotations

import re
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from cli.app import App, Format, new_request_id
from cli.arguments import (
    SESSION,
    SIZE,
    flag_options,
    option_names,
    shell_words,
    visibility_options,
)
from cli.compat import show_limits
from cli.exits import CommandError, ExitCode
from cli.group import (
    DURATION,
    SplitCommand,
    command,
    explained,
    near,
    needless,
    not_there_yet,
    set_flag,
    the_app,
)
from cli.output import write_line, write_one
from cli.retry import DEFAULT_S, patiently
from cli.sessions.attached import REMOVES_NOTE, After, goes_on, stay
from cli.sessions.file_names import files_text
from cli.sessions.git_commit import git_commit
from cli.sessions.launchers import check_launch, launch_lines
from cli.sessions.preflight import check_dataset_name, check_first, entry_of
from cli.sessions.repetition import Repetition, Source
from cli.sessions.run_request import RunOptions
from cli.sessions.sweep import INDEX, LABEL, members
from cli.sessions.upload import list_files, made_of, send, stat_cache
from cli.sessions.written_files import warn_of_pushed
from nsml.client.errors import InvalidRequest, Unavailable
from nsml.common.shell import hint_line, shell_line, shell_word
from nsml.common.units import exact_size_text
from nsml.spec.echo import VARIABLE as ECHO
from nsml.spec.run_flags import put_all
from nsml.spec.variables import without_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from cli.group import Typed
    from cli.sessions.sweep import Member
    from nsml.client.calls import Client
    from nsml.content.listing import FolderFiles
    from nsml.content.packing import Packed
    from nsml.content.stat_cache import StatCache
    from nsml.v1.sessions_pb2 import CreateSessionRequest, DatasetReference, Origin, Session


F = TypeVar("F", bound="Callable[..., Any] | click.Command")
_STAY_OPTIONS = {"follow", "interactive", "removes", "verbose", "wait"}
"""Options of what is shown here while it runs: no part of the command that repeats the session."""
_LOOKS, _LOOK_S = 16, 0.03
"""Number and interval, in seconds, of the checks by `run` whether its session was placed."""
_SEE = "nsml ps -a    shows whether it was submitted all the same"


_UNSENT = "0" * 64
"""Placeholder digest for unread code: the platform checks everything else."""


class _Code(NamedTuple):
    """The files to send, None if there are none, and their cache."""

    listed: FolderFiles | None
    cache: StatCache | None


class _Submission:
    """Progress of a submission, for interrupts and lost responses."""

    request: CreateSessionRequest | None = None
    """The request, the same in each retry: its id makes that safe."""
    packed: Packed | None = None
    """The code, once the platform has it."""
    is_asked = False
    """Whether the platform may have received it already."""
    session: Session | None = None
    """The platform's response."""


def _show_ignores(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from nsml.content.ignore import DEFAULT_CODE_IGNORES

        click.echo(DEFAULT_CODE_IGNORES, nl=False)
        context.exit()


def asking_options(command: F) -> F:
    """Add the options of all commands that submit a session, beside the flags of its spec."""
    for option in (
        click.option(
            "--argv", "is_argv", is_flag=True, help="The words after -- are a whole command."
        ),
        visibility_options,
        click.option(
            "--patience",
            type=DURATION,
            metavar="TIME",
            default=f"{DEFAULT_S:g}s",
            help="Retry this long while a part of the platform is away; 0s: never. Default: 2m.",
        ),
    ):
        command = option(command)
    return command


def staying_options(command: F) -> F:
    """Add the options for what to do after the submission, or instead of it."""
    for option in (
        click.option(
            "--rm",
            "removes",
            is_flag=True,
            help="Follow (or --wait); if it succeeds, remove it with logs, metrics and checkpoints.",
        ),
        click.option(
            "-i",
            "--interactive",
            is_flag=True,
            help="Follow; on a terminal, ask at the end whether to remove it.",
        ),
        click.option("-f", "--follow", is_flag=True, help="The same, showing what it prints."),
        click.option(
            "--wait", is_flag=True, help="Stay until it ends, and end with its exit code."
        ),
        click.option("--dry-run", is_flag=True, help="Only say what would come of it."),
    ):
        command = option(command)
    return command


@command(
    "run",
    reads=True,
    cls=SplitCommand,
    examples=[
        'nsml run -d mnist -g 2 -m "second try" -a "--lr 0.02 --bs 128"',
        "nsml run -d mnist -e train.py -f -- --lr 0.02",
        "nsml run -g 0.5 --time-limit 2h --retry 3",
        "nsml run -g 8 --nodes 2 --gpu-model A100 --no-queue",
        "nsml run -g 1 --priority idle --retry 9",
        "nsml run --env-file .env --env LR=0.02 --secret WANDB_API_KEY",
        "nsml run --image pytorch/pytorch:2.4.0 --memory 24G --shm-size 8G",
        "nsml run --argv -- ./train.sh --fast",
        "nsml run --launch torchrun -g 8 --nodes 2 -e train.py",
        "nsml run --rerun @last -g 2 -- --epochs 20 --lr 0.02",
        "nsml run --sweep lr=0.1,0.01 --sweep bs=32,64",
        "nsml run --array 0-9 --after prepare/1",
    ],
)
@click.argument("positional", metavar="[ENTRY]", required=False)
@flag_options
@click.option(
    "--rerun",
    type=SESSION,
    metavar="SESSION",
    help="Run the code, options and data of SESSION again, except for what is given here;"
    " arguments are given all together.",
)
@click.option(
    "--array",
    metavar="RANGE",
    help=f"A session for each number (0-9, 0-9:3, 1,5,7), in the variable {INDEX}.",
)
@click.option(
    "--sweep",
    multiple=True,
    metavar="NAME=V1,V2",
    help="A session for each value, as the argument --NAME V; repeatable: in all combinations.",
)
@asking_options
@click.option(
    "--code/--no-code",
    "sends_code",
    default=True,
    help="Send this folder (--no-code: only with --argv).",
)
@click.option("--max-size", type=SIZE, metavar="SIZE", help="Refuse a larger folder.")
@click.option("--rehash", is_flag=True, help="Read all files, also unchanged ones.")
@staying_options
@click.option(
    "--show-default-nsmlignore",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_ignores,
    help="Show what is never sent.",
)
@click.option(
    "--show-limits",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_limits,
    help="Show how much a session may ask for.",
)
@click.option(
    "--hide-client-log",
    is_flag=True,
    expose_value=False,
    callback=set_flag("is_quiet"),
    help="Same as --quiet.",
)
@click.option("-v", "--verbose", is_flag=True, help="List the files, with their sizes.")
@needless(
    "--gpu-driver-version",
    is_flag=False,
    why="a session gets the driver of its node; --gpu-model and --pod choose among nodes",
)
@explained(
    "--nfs-output",
    is_flag=True,
    message="there is no folder that sessions share",
    why="files of a session are kept by the platform, and datasets are made of them",
    advice="nsml run --keep-files    and nsml download SESSION\n"
    "nsml run --output-dataset NAME=FOLDER    for another session to read",
)
@needless(
    "--no-verify",
    why="every file is verified by its digest while it is sent",
)
@not_there_yet("--name")
@not_there_yet("--tag")
@not_there_yet("--args-file")
@not_there_yet("--sync", is_flag=True)
@click.pass_context
def run(context: click.Context, /, **given: Any) -> int:
    """Submit this folder as a session: `python -u ENTRY ARGS` on some GPUs, with a dataset.

    Words after -- are arguments of the program; with --argv they are the whole command.
    What the folder may say of packages, images and what is not sent: nsml help code.

    Ctrl-C, a lost connection or a failover leave the session and its results alone, with --rm and -i, too.
    --rm keeps a session that did not succeed.
    """
    source = Source(given["rerun"]) if given["rerun"] is not None else None
    several = members(given, context.meta["words"], context.meta["typed"])
    if not several:
        return submit(context, given, source)
    if source is not None:
        raise click.UsageError("--array and --sweep go without --rerun")
    return _submit_all(the_app(context), several)


def _submit_all(app: App, several: Sequence[Member]) -> int:
    """Submit the sessions one by one, with one code; if one is refused, earlier ones stay."""
    first = several[0].given
    if first["wait"] or _follows(app, first):
        raise click.UsageError("--array and --sweep make several sessions: none to stay with")
    options = [options_of(one.given, one.words, one.typed) for one in several]
    check_first(app, options[0])
    if first["dry_run"]:
        app.say(f"{len(several):,} sessions, of which this is the first")
        _dry_run(app, options[0])
        return ExitCode.OK
    from nsml.v1 import sessions_pb2 as pb

    made: Session | None = None
    origin: Origin | None = None
    for member, one in zip(several, options, strict=True):
        made = _submitted_beside(app, one, made, origin, patience_s=first["patience"])
        if made is None:
            return ExitCode.INTERRUPTED
        origin = origin or pb.Origin(kind=pb.ORIGIN_KIND_SWEEP, session=made.id)
        if app.format in {Format.JSON, Format.JSONL}:
            write_line(app, _record(made, one))
        else:
            write_one(app, _record(made, one), [f"{submitted_text(app, made)}   {member.text}"])
        app.stdout.flush()
    if app.is_for_people and made is not None:
        label = f"label:{LABEL}={made.spec.labels.get(LABEL, '')}"
        app.say(f"  list: nsml ps -a {shell_word(label)}")
    return ExitCode.OK


def _submitted_beside(
    app: App,
    options: RunOptions,
    made: Session | None,
    origin: Origin | None,
    *,
    patience_s: float,
) -> Session | None:
    """Submit another session with the code of the last one; or the first one.

    A control plane of an earlier version does not know the origin: then the session has none.
    """
    if made is None or origin is None:
        return submitted(app, options, patience_s=patience_s)
    beside = _beside(options, made)
    beside.request.origin.CopyFrom(origin)
    try:
        return submitted(app, beside, patience_s=patience_s)
    except InvalidRequest as error:
        if not error.message.startswith("unknown kind of origin"):
            raise
        beside.request.ClearField("origin")
        return submitted(app, beside, patience_s=patience_s)


def _beside(options: RunOptions, made: Session) -> RunOptions:
    """Return the options of another session, with the code, commit and `after` of a submitted one.

    The typed references may no longer mean the same: `@last` is another session by now.
    """
    request, spec = options.request, options.spec
    spec.bundle_digest = made.spec.bundle_digest
    del spec.after[:]
    spec.after.extend(made.spec.after)
    if made.HasField("git"):
        request.git.CopyFrom(made.git)
    return replace(options, sends_code=False)


def submit(context: click.Context, given: dict[str, Any], source: Source | None) -> int:
    """Run a submitting command; `source`: the session to repeat, None if the folder is sent."""
    app = the_app(context)
    options = options_of(given, context.meta["words"], context.meta["typed"], source)
    follows = _follows(app, given)
    check_first(app, options)
    if given["dry_run"]:
        _dry_run(app, options)
        return ExitCode.OK
    session = submitted(app, options, patience_s=given["patience"])
    if session is None:
        return ExitCode.INTERRUPTED
    if options.repetition is not None:
        options.repetition.tell_if_unknown(app, session)
    return _show(app, session, given, options, follows=follows)


def submitted(app: App, options: RunOptions, *, patience_s: float = DEFAULT_S) -> Session | None:
    """Submit a session and return it; None after Ctrl-C, with a message on its state."""
    submission = _Submission()
    try:
        cache = stat_cache(app, rehash=options.rehash)
        listed, contained = _list(app, Path.cwd(), options) if options.sends_code else (None, [])
        if listed is not None and (commit := git_commit(Path.cwd(), app.environ)) is not None:
            options.request.git.CopyFrom(commit)

        async def submit(client: Client) -> Session:
            async with _asked(client, options):
                await _warn_of_containers(app, client, contained)
                return await _submit(app, client, options, _Code(listed, cache), submission)

        session = app.call(
            lambda client: patiently(app, lambda: submit(client), patience_s=patience_s),
            waits=False,
        )
    except KeyboardInterrupt:
        app.say("")
        for line in _aborted(submission).splitlines():
            app.say(line)
        return None
    except (CommandError, Unavailable) as error:
        if submission.is_asked:
            error.advice = _SEE
        raise
    if options.spec.dockerfile and not session.spec.dockerfile:
        raise CommandError(
            f"session {session.name} runs in another image",
            why="the control plane is older than --dockerfile and ignores it",
            advice=f"nsml stop {session.name}",
        )
    return session


def _show(
    app: App, session: Session, given: dict[str, Any], options: RunOptions, *, follows: bool
) -> int:
    """Report the submission, and stay with the session if requested; return the exit code."""
    after = After.ASK if given["interactive"] else After.KEEP
    after = After.REMOVE if given["removes"] else after
    if after is After.REMOVE:
        app.say(REMOVES_NOTE)
    if follows:
        # The result is the program's output; the line about its session goes to stderr.
        app.say(submitted_text(app, session))
        _tell_repetition(app, session, options)
        return stay(app, session, shows=True, after=after)
    if not given["wait"]:
        _write(app, session, options)
        if app.is_for_people:
            next_steps = (
                "follow: nsml logs -f @last   plot: nsml plot @last   stop: nsml stop @last"
            )
            if _waits(session):
                next_steps = "why: nsml status --explain @last   follow: nsml logs -f @last"
            if options.repetition is not None:
                next_steps = options.repetition.next_steps(session) or next_steps
            app.say(f"  {next_steps}")
        return ExitCode.OK
    # People and `-o name` get it at once; a record describes the ended session.
    is_at_once = app.is_for_people or app.format is Format.NAME
    if is_at_once:
        _write(app, session, options)
    write_end = None if is_at_once else partial(_write, app, options=options)
    return stay(app, session, write_end=write_end, after=after)


def _tell_repetition(app: App, session: Session, options: RunOptions) -> None:
    if options.repetition is not None:
        options.repetition.tell(app, session)


def _follows(app: App, given: dict[str, Any]) -> bool:
    """Return whether to stay and show the program's output; a usage error for options that contradict it."""
    follows = bool(given["follow"] or given["interactive"])
    follows = follows or bool(given["removes"] and not given["wait"])
    if given["dry_run"] and (follows or given["wait"]):
        raise click.UsageError(
            "--dry-run makes no session to stay with: without -f, -i, --rm and --wait"
        )
    if follows and app.flags.output is not None:
        raise click.UsageError("-f, -i and --rm write what the program prints: -o goes with --wait")
    return follows


def options_of(
    given: dict[str, Any],
    words: list[str] | None,
    typed: Sequence[Typed],
    source: Source | None = None,
) -> RunOptions:
    """Return the options of a command line; a usage error if they contradict each other."""
    if given["positional"] and given["entry"]:
        raise click.UsageError("the entry is named twice: ENTRY and -e")
    arguments = _arguments(given["args"], words or ())
    argv: tuple[str, ...] = ()
    if given["is_argv"]:
        if not words:
            raise click.UsageError("--argv needs a command after --, such as: --argv -- ./train.sh")
        if given["positional"] or given["entry"] or arguments:
            raise click.UsageError("--argv goes without ENTRY, -e and -a")
        check_launch(given.get("launch"), words)
        argv = tuple(words)
    elif not given["sends_code"] and source is None:
        raise click.UsageError("--no-code goes with --argv only: an entry is a file of the folder")
    given = {**given, "env": _environment(given)}
    _check_shm(given["shm_size"] or 0, given["memory"] or 0)
    _check_together(given)
    if given["project"] is not None and not given["project"].strip():
        raise click.UsageError("--project names none: leave it out for your own")
    for reference in (*given["dataset"], *given["stream"]):
        check_dataset_name(reference)
    repeated = [one for one in typed if one.option is None or one.option.name not in _STAY_OPTIONS]
    if source is not None:
        return RunOptions(
            request=_request(given),
            environment_files=(),
            sends_code=False,
            max_bytes=None,
            repetition=Repetition(source, given, typed, words, repeated),
        )
    entry = (
        "" if argv else entry_of(given["positional"] or given["entry"] or "", typed, words or ())
    )
    repeat = [word for one in repeated for word in one.words]
    repeat += [] if words is None else ["--", *words]
    request = _request(given)
    put_all(request, given)
    spec = request.spec
    spec.entry = entry and PurePosixPath(Path(entry).as_posix()).as_posix()
    spec.args[:] = () if argv else (*arguments, *(words or ()))
    spec.argv[:] = argv
    request.command[:] = ("nsml", "run", *without_values(repeat))
    return RunOptions(
        request=request,
        environment_files=tuple(name for name, _ in given["env_file"]),
        sends_code=given["sends_code"],
        max_bytes=given["max_size"],
        rehash=given["rehash"],
        is_verbose=given.get("verbose", False),
    )


def _check_together(given: dict[str, Any]) -> None:
    """Raise click.UsageError for options that contradict each other."""
    if given["echo"] and given["no_echo"]:
        raise click.UsageError("--echo and --no-echo exclude one another")
    if given["gpu_model"] and not given["gpus"]:
        raise click.UsageError("--gpu-model names GPUs, and -g 0 asks for none")


def _arguments(text: str, words: Sequence[str]) -> list[str]:
    """Return the arguments of -a; a usage error if one of them is also after --."""
    arguments = shell_words("-a", text)
    if twice := option_names(arguments) & option_names(words):
        raise click.UsageError(f"{min(twice)} is given twice, by -a and behind --: leave one out")
    return arguments


def _request(given: dict[str, Any]) -> CreateSessionRequest:
    """Return a request with only the session's visibility."""
    from nsml.v1.sessions_pb2 import CreateSessionRequest
    from nsml.view.sessions import visibility_named

    return CreateSessionRequest(visibility=visibility_named(given["visibility"] or "private"))


def _asked(client: Client, options: RunOptions) -> AbstractAsyncContextManager[None]:
    """Return the context for requests: for a repeated session it fills the request."""
    if options.repetition is None:
        return nullcontext()
    return options.repetition.asked(client, options.request)


def _check_shm(shm_bytes: int, memory_bytes: int) -> None:
    if 0 < memory_bytes < shm_bytes:
        raise click.UsageError(
            f"--shm-size {exact_size_text(shm_bytes)} is more than"
            f" --memory {exact_size_text(memory_bytes)}, and shared memory is a part of that"
        )


def _environment(given: dict[str, Any]) -> dict[str, str]:
    """Merge the variables of files and flags; later files win over earlier ones, flags over files."""
    variables: dict[str, str] = {}
    for _, found in given["env_file"]:
        variables |= found
    return variables | dict(given["env"])


def _list(app: App, folder: Path, options: RunOptions) -> tuple[FolderFiles | None, list[str]]:
    """List the folder's files, None for an empty one that a plain command does not need; and its needs of containers."""
    from cli.sessions.code_checks import Code, check_code
    from nsml.common.text import visible
    from nsml.common.units import size_text
    from nsml.content.errors import EmptyFolder, TooLarge
    from nsml.content.ignore import rules_for
    from nsml.content.listing import CODE_LIMIT_BYTES

    limit = options.max_bytes or CODE_LIMIT_BYTES
    try:
        listed = list_files(app, folder, ignore=rules_for(folder), max_bytes=limit)
    except EmptyFolder:
        if options.spec.argv:
            return None, []
        raise
    except TooLarge as error:
        raise CommandError(
            str(error),
            reason="FOLDER_TOO_LARGE",
            advice="name what is not needed in .nsmlignore\n"
            "nsml dataset push NAME PATH    for data\n"
            "nsml run --max-size SIZE       to send it all the same",
        ) from error
    warn_of_pushed(app, folder, listed)
    for warning in listed.warnings():
        app.say(warning)
    if options.is_verbose:
        for file in listed.files:
            app.say(f"{size_text(file.size):>10}  {visible(file.path)}")
    return listed, check_code(app, Code(folder, listed), options)


async def _warn_of_containers(app: App, client: Client, needs: Sequence[str]) -> None:
    """Warn that programs run without these if no node runs containers."""
    from nsml.client.errors import ClientError
    from nsml.v1.resources_pb2 import ISOLATION_CONTAINER

    if not needs:
        return
    try:
        nodes = await client.nodes.every()
    except ClientError:
        return  # the next request fails as well, or the node reports it in the log
    if nodes and not any(one.isolation == ISOLATION_CONTAINER for one in nodes):
        app.say_once(
            f"warning: no node runs containers: the program runs without {' and '.join(needs)}"
        )


def _dry_run(app: App, options: RunOptions) -> None:
    """Report whether it would start now or wait; raises the errors of a submission."""
    from nsml.client.errors import NoCapacity

    listed, contained = _list(app, Path.cwd(), options) if options.sends_code else (None, [])
    request = _identified(options, listed)

    async def ask(client: Client) -> str:
        async with _asked(client, options):
            await _warn_of_containers(app, client, contained)
            await client.sessions.check(request)
            if request.spec.after:
                return f"it starts after {', '.join(one.session for one in request.spec.after)}"
            request.spec.no_queue = True
            try:
                await client.sessions.check(request)
            except NoCapacity as error:
                return error.why
        return ""

    waiting = app.call(ask)
    found: dict[str, Any] = {
        "state": "QUEUED" if waiting else "PREPARING",
        "waiting": waiting or None,
        "files": len(listed.files) if listed is not None else 0,
        "bytes": listed.size if listed is not None else 0,
        "log_metrics": list(request.spec.log_metrics),
        "echo": request.spec.environment.get(ECHO),
    }
    spec = request.spec
    if options.repetition is not None:
        supposed = options.repetition.supposed(request)
        found |= options.repetition.record(supposed)
        spec = supposed.spec
    if lines := launch_lines(spec):
        found["command"] = lines
    text = f"would wait: {waiting}" if waiting else "would start now"
    write_one(app, found, [text, *(f"  runs: {line}" for line in lines)], name="state")
    if options.repetition is not None and app.is_for_people:
        options.repetition.tell(app, options.repetition.supposed(request))
    if request.spec.log_metrics:
        app.say(f"  metrics from the log: {shell_line(list(request.spec.log_metrics))}")
    if echo := request.spec.environment.get(ECHO):
        app.say(f"  loggers that report, too: {echo}")
    app.say("  nothing was sent, and no session made")


async def _submit(
    app: App, client: Client, options: RunOptions, code: _Code, submission: _Submission
) -> Session:
    """Check what only the platform knows, upload missing data, and create the session.

    Safe to retry with the same request, whatever its first outcome.
    """
    from nsml.client.errors import NotFound

    if submission.request is None:
        submission.request = _identified(options, code.listed)
    request = submission.request
    try:
        for one in request.spec.datasets:
            if one.tag:
                await client.datasets.get(one.name, tag=one.tag)
        if code.listed is not None and submission.packed is None:
            await client.sessions.check(request)
            submission.packed = await _send(app, client, code.listed, code.cache, request.project)
            request.spec.bundle_digest = submission.packed.manifest.digest
        submission.is_asked = True
        if submission.packed is None:
            submission.session = await client.sessions.create(request)
        else:
            submission.session = await made_of(
                app,
                client,
                submission.packed,
                lambda: client.sessions.create(request),
                cache=code.cache,
                project=request.project,
            )
        return await _settled(client, submission.session)
    except NotFound:
        for one in request.spec.datasets:
            await _check_dataset(app, client, one)
        raise


async def _settled(client: Client, session: Session) -> Session:
    """Return the session once placed, or waiting with a reason; unchanged after half a second.

    It exists: if the platform does not answer, its last known state is returned.
    """
    with suppress(Unavailable):
        for _ in range(_LOOKS):
            if not _waits(session) or session.waiting:
                break
            await client.clock.sleep(_LOOK_S)
            session = await client.sessions.get(session.id)
    return session


def _waits(session: Session) -> bool:
    from nsml.v1 import sessions_pb2

    return session.state == sessions_pb2.SESSION_STATE_QUEUED


async def _check_dataset(app: App, client: Client, asked: DatasetReference) -> None:
    """Raise NotFound, with similar names, unless the dataset exists."""
    from nsml.client.errors import NotFound

    name = asked.name
    try:
        await client.datasets.get(name, asked.version, asked.tag)
    except NotFound as error:
        known = [item.name for item in await client.datasets.every()]
        plain = name.rpartition("/")[2]
        if plain in known and error.advice:
            raise  # the version is missing
        nearest = near(plain, known)
        raise NotFound(
            error.message,
            reason=error.reason,
            why=error.why,
            advice="\n".join(_with_dataset(app.arguments, name, one) for one in nearest)
            or error.advice
            or f"nsml dataset push {shell_word(name)} PATH",
        ) from error


def _with_dataset(arguments: Sequence[str], name: str, meant: str) -> str:
    """Return the command line with another dataset; a short one if it did not name it, or has values of variables."""
    reference = re.compile(rf"(-d|--dataset=|--stream=|){re.escape(name)}(?=[@=]|\Z)")
    words = list(arguments)
    options = words[: words.index("--")] if "--" in words else words
    for at, (flag, word) in enumerate(zip(["", *options], options, strict=False)):
        found = reference.match(word)
        if found and (found[1] or flag in {"-d", "--dataset", "--stream"}):
            words[at] = f"{found[1]}{meant}{word[found.end() :]}"
    if words == [*arguments] or without_values(words) != words:
        return shell_line(["nsml", "run", "-d", meant])
    return shell_line(["nsml", *words])


async def _send(
    app: App, client: Client, listed: FolderFiles, cache: StatCache | None, project: str
) -> Packed:
    from nsml.common.units import duration_text, size_text

    began = app.clock.monotonic()
    sent = await send(app, client, listed, cache=cache, project=project)
    files, skipped = len(listed.files), listed.skipped
    ignored = (
        f" (ignored {files_text(skipped.files)}, {size_text(skipped.bytes)})"
        if skipped.files
        else ""
    )
    took_s = app.clock.monotonic() - began
    took = f"{took_s:.1f}s" if took_s < 60 else duration_text(took_s)
    app.say(f"packing   {files_text(files)} {size_text(sent.packed.manifest.size)}{ignored}")
    app.say(
        f"sending   {files_text(sent.files_sent)} {size_text(sent.bytes_sent)},"
        f" {files - sent.files_sent:,} unchanged   done {took}"
    )
    return sent.packed


def _identified(options: RunOptions, listed: FolderFiles | None) -> CreateSessionRequest:
    """Return the request with a new id; the code's digest is set after the upload."""
    request = options.request
    request.request_id = new_request_id()
    if options.repetition is None and listed is not None:
        request.spec.bundle_digest = _UNSENT
    return request


def _aborted(submission: _Submission) -> str:
    """Return the state of an interrupted submission."""
    if submission.session is not None:
        return goes_on(submission.session)
    aborted = "run aborted: Interrupted by user"
    return f"{aborted}\n  try: {hint_line(_SEE)}" if submission.is_asked else aborted


def _record(session: Session, options: RunOptions) -> dict[str, Any]:
    from nsml.view.sessions import record

    beside = options.repetition.record(session) if options.repetition is not None else {}
    return {**record(session), **beside}


def _write(app: App, session: Session, options: RunOptions) -> None:
    write_one(app, _record(session, options), [submitted_text(app, session)])
    app.stdout.flush()
    if app.is_for_people:
        _tell_repetition(app, session, options)


def submitted_text(app: App, session: Session) -> str:
    """Report the submission; for a queued session with its reason, cut to one line: --explain has all of it."""
    from nsml.common.text import fit_words
    from nsml.view.sessions import waits_for_others

    if waits_for_others(session):
        others = ", ".join(one.name for one in session.spec.after)
        text = f"Session {session.name} held: starts after {others}"
    elif not _waits(session):
        return _started_text(app, session.name)
    else:
        text = f"Session {session.name} queued" + (session.waiting and f": {session.waiting}")
    return text if app.room is None else fit_words(text, app.room)


def _started_text(app: App, name: str) -> str:
    if not app.is_nsml_style:
        return f"Session {name} started"
    from nsml.view.nsml_style import started_text

    return started_text(name)
