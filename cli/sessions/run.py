"""run: check, pack, send what is missing, submit, and follow where asked to.

Everything that can be known here is checked before anything is sent, so that a mistake leaves
nothing behind.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from cli.app import App, Format, new_request_id
from cli.arguments import (
    CPUS,
    DATASET,
    DISK,
    GPU_MODEL,
    GPUS,
    IMAGE,
    MEMORY,
    NETWORK,
    POD,
    PRIORITY,
    PROJECT,
    SECRET_USE,
    SHM_SIZE,
    SIZE,
    TIME_LIMIT,
    VARIABLE,
    VARIABLES_FILE,
    WholeRange,
    shell_words,
    split_dataset,
    visibility_options,
)
from cli.exits import CommandError, ExitCode
from cli.group import DURATION, GRACE, SplitCommand, command, near, not_there_yet, the_app, to_try
from cli.output import write_one
from cli.retry import DEFAULT_S, patiently
from cli.sessions.attached import REMOVES_NOTE, After, goes_on, stay
from cli.sessions.file_names import files_text
from cli.sessions.preflight import DEFAULT_ENTRY, check_dataset_name, check_first, entry_of
from cli.sessions.run_options import RunOptions
from cli.sessions.upload import made_of, pack_folder, send
from cli.sessions.written_files import warn_of_pushed
from nsml.client.errors import Unavailable
from nsml.request_limits import MOST_PROCESSES, MOST_REPLICAS, MOST_RETRIES
from nsml.variables import without_values
from nsml.view.shell import hint_line, shell_word
from nsml.view.units import exact_size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.group import Typed
    from nsml.client.calls import Client
    from nsml.content.packing import Packed
    from nsml.v1.sessions_pb2 import CreateSessionRequest, Session


_STAY_OPTIONS = {"follow", "interactive", "removes", "wait"}
"""What this program does while the session runs: no part of the command that repeats the session."""
_LOOKS, _LOOK_S = 16, 0.03
"""How often, and how far apart, `run` looks whether its session was placed."""
_SEE = "nsml ps -a    shows whether it was submitted all the same"


class _Submission:
    """How far a submission came, for whoever breaks it off or gets no answer."""

    request: CreateSessionRequest | None = None
    """What is asked, the same in each try: its id makes that safe."""
    is_sent = False
    """Whether the platform has the code."""
    is_asked = False
    """Whether the platform may have taken it already."""
    session: Session | None = None
    """What the platform answered."""


def _show_ignores(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from nsml.content.ignore import DEFAULT_CODE_IGNORES

        click.echo(DEFAULT_CODE_IGNORES, nl=False)
        context.exit()


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
    ],
)
@click.argument("positional", metavar="[ENTRY]", required=False)
@click.option(
    "-d",
    "--dataset",
    "datasets",
    multiple=True,
    type=DATASET,
    metavar="DATASET",
    help="Mount it at /data/NAME; NAME@3 is version 3; repeatable.",
)
@click.option(
    "-g",
    "--gpus",
    type=GPUS,
    default="1",
    show_default=True,
    metavar="N",
    help="GPUs of each replica; 0 for none, 0.5 for half of one.",
)
@click.option(
    "--gpu-model",
    type=GPU_MODEL,
    metavar="NAME",
    help="Only GPUs of this model: A100, A100-80GB; A100|H100: any of these.",
)
@click.option("-c", "--cpus", type=CPUS, metavar="N", help="Cores; default: the GPUs' share.")
@click.option(
    "--memory", type=MEMORY, metavar="SIZE", help="Such as 24G; default: the GPUs' share."
)
@click.option(
    "--shm-size",
    type=SHM_SIZE,
    metavar="SIZE",
    help="Shared memory (in /dev/shm), part of the memory; default: 1G.",
)
@click.option(
    "--disk", type=DISK, metavar="SIZE", help="What it may write; default: the node's setting."
)
@click.option(
    "--processes",
    type=WholeRange(1, platform_most=MOST_PROCESSES),
    metavar="N",
    help="Processes and threads; default: the node's setting, 4096 or more.",
)
@click.option("-e", "--entry", metavar="FILE", help=f"The program; default {DEFAULT_ENTRY}.")
@click.option("-a", "--args", "arguments", default="", metavar="ARGS", help="Its arguments.")
@click.option("-m", "--memo", default="", metavar="TEXT", help="Memo: a text of your own.")
@click.option(
    "-n",
    "--nodes",
    "--replicas",
    "nodes",
    type=WholeRange(1, platform_most=MOST_REPLICAS),
    default=1,
    metavar="N",
    help="Replicas of a gang: all start together or none.",
)
@click.option(
    "--env",
    "environment",
    multiple=True,
    type=VARIABLE,
    metavar="K[=V]",
    help="A variable of the program; K alone: as it is here; repeatable.",
)
@click.option(
    "--env-file",
    "environment_files",
    multiple=True,
    type=VARIABLES_FILE,
    metavar="FILE",
    help="Variables from K=V lines; --env wins; repeatable.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    type=SECRET_USE,
    metavar="NAME[=VARIABLE]",
    help="A secret (nsml secret set) as a variable; repeatable.",
)
@click.option(
    "--image",
    type=IMAGE,
    metavar="IMAGE",
    help="Container image; only nodes that run containers take it.",
)
@click.option(
    "--refresh",
    "refreshes",
    is_flag=True,
    help="Pull the image and build what the requirements ask for anew, instead of using what nodes have.",
)
@click.option(
    "--time-limit",
    type=TIME_LIMIT,
    metavar="TIME",
    help="End each attempt after this long: 90s, 30m, 2h, 1d.",
)
@click.option("--grace", type=GRACE, metavar="TIME", help="Between SIGTERM and SIGKILL.")
@click.option(
    "--retry",
    type=WholeRange(0, platform_most=MOST_RETRIES),
    default=0,
    metavar="N",
    help="Place it anew after a lost node or GPU, or its time limit if it saved.",
)
@click.option("--pod", type=POD, metavar="NAME", help="Only nodes of this pod.")
@click.option(
    "--network",
    type=NETWORK,
    help="host: the node's network, where the node allows it; own: one of its own. Default: the node's setting.",
)
@click.option(
    "--priority",
    type=PRIORITY,
    help="Its class in the queue; idle: uses spare GPUs, preempted first. Default: normal.",
)
@click.option("--preemptible", is_flag=True, help="Allow preemption without a checkpoint.")
@click.option(
    "--project",
    type=PROJECT,
    metavar="NAME",
    help="The project that it counts for; default: your own.",
)
@click.option(
    "--queue/--no-queue",
    "is_queued",
    default=True,
    help="Wait where nothing is free (default), or be refused.",
)
@click.option(
    "--patience",
    type=DURATION,
    metavar="TIME",
    default=f"{DEFAULT_S:g}s",
    help="Retry this long while a part of the platform is away; 0s: never. Default: 2m.",
)
@visibility_options
@click.option("--argv", "is_argv", is_flag=True, help="The words after -- are a whole command.")
@click.option(
    "--code/--no-code",
    "sends_code",
    default=True,
    help="Send this folder (--no-code: only with --argv).",
)
@click.option("--max-size", type=SIZE, metavar="SIZE", help="Refuse a larger folder.")
@click.option("--dry-run", is_flag=True, help="Only say what would come of it.")
@click.option("--wait", is_flag=True, help="Stay until it ends, and end with its exit code.")
@click.option("-f", "--follow", is_flag=True, help="The same, showing what it prints.")
@click.option(
    "-i",
    "--interactive",
    is_flag=True,
    help="Follow; on a terminal, ask at the end whether to remove it.",
)
@click.option(
    "--rm",
    "removes",
    is_flag=True,
    help="Follow (or --wait); if it succeeds, remove it with logs, metrics and checkpoints.",
)
@click.option(
    "--show-default-nsmlignore",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_ignores,
    help="Show what is never sent.",
)
@not_there_yet("--gpu-driver-version")
@not_there_yet("--name")
@not_there_yet("--tag")
@not_there_yet("--args-file")
@not_there_yet("--sync", is_flag=True)
@not_there_yet("--nfs-output", is_flag=True)
@not_there_yet("--no-verify", is_flag=True)
@not_there_yet("--hide-client-log", is_flag=True)
@not_there_yet("--show-limits", is_flag=True)
@click.pass_context
def run(context: click.Context, /, **given: Any) -> int:
    """Submit this folder as a session: `python -u ENTRY ARGS` on some GPUs, with a dataset.

    Words after -- are arguments of the program; with --argv they are the whole command.
    What the folder may say of packages, images and what is not sent: nsml help code.

    Ctrl-C, a lost connection or a failover leave the session and its results alone, with --rm and -i, too.
    --rm keeps a session that did not succeed.
    """
    app = the_app(context)
    options = _options(given, context.meta["words"], context.meta["typed"])
    follows = _follows(app, given)
    check_first(app, options)
    if given["dry_run"]:
        _dry_run(app, options)
        return ExitCode.OK
    submission = _Submission()
    try:
        packed, contained = _pack(app, Path.cwd(), options) if options.sends_code else (None, [])

        async def submit(client: Client) -> Session:
            await _warn_of_containers(app, client, contained)
            return await _submit(app, client, options, packed, submission)

        session = app.call(
            lambda client: patiently(app, lambda: submit(client), patience_s=given["patience"]),
            waits=False,
        )
    except KeyboardInterrupt:
        app.say("")
        for line in _aborted(submission).splitlines():
            app.say(line)
        return ExitCode.INTERRUPTED
    except (CommandError, Unavailable) as error:
        if submission.is_asked:
            error.advice = _SEE
        raise
    return _show(app, session, given, follows=follows)


def _show(app: App, session: Session, given: dict[str, Any], *, follows: bool) -> int:
    """Say what was submitted, and stay with it where asked to; the exit code."""
    after = After.ASK if given["interactive"] else After.KEEP
    after = After.REMOVE if given["removes"] else after
    if after is After.REMOVE:
        app.say(REMOVES_NOTE)
    if follows:
        # The result is what the program prints; the line about its session goes to stderr.
        app.say(_submitted_text(app, session))
        return stay(app, session, shows=True, after=after)
    if not given["wait"]:
        _write(app, session)
        if app.is_for_people:
            next_steps = (
                "follow: nsml logs -f @last   plot: nsml plot @last   stop: nsml stop @last"
            )
            if _waits(session):
                next_steps = "why: nsml status --explain @last   follow: nsml logs -f @last"
            app.say(f"  {next_steps}")
        return ExitCode.OK
    # People and `-o name` get it at once; a record is of the ended session.
    is_at_once = app.is_for_people or app.format is Format.NAME
    if is_at_once:
        _write(app, session)
    write_end = None if is_at_once else partial(_write, app)
    return stay(app, session, write_end=write_end, after=after)


def _follows(app: App, given: dict[str, Any]) -> bool:
    """Whether to stay and show what the program prints; a usage error where that cannot be."""
    follows = bool(given["follow"] or given["interactive"])
    follows = follows or bool(given["removes"] and not given["wait"])
    if given["dry_run"] and (follows or given["wait"]):
        raise click.UsageError(
            "--dry-run makes no session to stay with: without -f, -i, --rm and --wait"
        )
    if follows and app.flags.output is not None:
        raise click.UsageError("-f, -i and --rm write what the program prints: -o goes with --wait")
    return follows


def _options(given: dict[str, Any], words: list[str] | None, typed: Sequence[Typed]) -> RunOptions:
    """The options of a command line; a usage error where they contradict each other."""
    if given["positional"] and given["entry"]:
        raise click.UsageError("the entry is named twice: ENTRY and -e")
    arguments = shell_words("-a", given["arguments"])
    argv: tuple[str, ...] = ()
    if given["is_argv"]:
        if not words:
            raise click.UsageError("--argv needs a command after --, such as: --argv -- ./train.sh")
        if given["positional"] or given["entry"] or arguments:
            raise click.UsageError("--argv goes without ENTRY, -e and -a")
        argv = tuple(words)
    elif not given["sends_code"]:
        raise click.UsageError("--no-code goes with --argv only: an entry is a file of the folder")
    _check_shm(given["shm_size"] or 0, given["memory"] or 0)
    if given["gpu_model"] and not given["gpus"]:
        raise click.UsageError("--gpu-model names GPUs, and -g 0 asks for none")
    if given["project"] is not None and not given["project"].strip():
        raise click.UsageError("--project names none: leave it out for your own")
    entry = (
        "" if argv else entry_of(given["positional"] or given["entry"] or "", typed, words or ())
    )
    for reference in given["datasets"]:
        check_dataset_name(reference)
    repeated = (one for one in typed if one.option is None or one.option.name not in _STAY_OPTIONS)
    repeat = [word for one in repeated for word in one.words]
    repeat += [] if words is None else ["--", *words]
    return RunOptions(
        entry=entry and PurePosixPath(Path(entry).as_posix()).as_posix(),
        args=() if argv else (*arguments, *(words or ())),
        argv=argv,
        datasets=given["datasets"],
        gpu_thousandths=given["gpus"],
        cpu_thousandths=given["cpus"] or 0,
        memory_bytes=given["memory"] or 0,
        shm_bytes=given["shm_size"] or 0,
        disk_bytes=given["disk"] or 0,
        process_count=given["processes"] or 0,
        memo=given["memo"],
        replica_count=given["nodes"],
        environment=_environment(given),
        environment_files=tuple(name for name, _ in given["environment_files"]),
        secrets=tuple(dict.fromkeys(given["secrets"])),
        image=given["image"] or "",
        time_limit_s=given["time_limit"],
        grace_s=given["grace"],
        retry_count=given["retry"],
        no_queue=not given["is_queued"],
        priority=given["priority"] or "",
        preemptible=given["preemptible"],
        gpu_model=given["gpu_model"] or "",
        pod=given["pod"] or "",
        network=given["network"] or "",
        refreshes=given["refreshes"],
        project=given["project"] or "",
        visibility=given["visibility"] or "private",
        sends_code=given["sends_code"],
        max_bytes=given["max_size"],
        command=("nsml", "run", *without_values(repeat)),
    )


def _check_shm(shm_bytes: int, memory_bytes: int) -> None:
    if 0 < memory_bytes < shm_bytes:
        raise click.UsageError(
            f"--shm-size {exact_size_text(shm_bytes)} is more than"
            f" --memory {exact_size_text(memory_bytes)}, and shared memory is a part of that"
        )


def _environment(given: dict[str, Any]) -> dict[str, str]:
    """The variables of all files and flags; of one name the last file's, and the flags' before it."""
    variables: dict[str, str] = {}
    for _, found in given["environment_files"]:
        variables |= found
    return variables | dict(given["environment"])


def _pack(app: App, folder: Path, options: RunOptions) -> tuple[Packed | None, list[str]]:
    """The folder described, None for an empty one that a plain command does not need; what needs containers of it."""
    from cli.sessions.code_checks import Code, check_code
    from nsml.content.errors import EmptyFolder, TooLarge
    from nsml.content.ignore import rules_for
    from nsml.content.packing import CODE_LIMIT_BYTES

    limit = options.max_bytes or CODE_LIMIT_BYTES
    try:
        packed = pack_folder(app, folder, ignore=rules_for(folder), max_bytes=limit)
    except EmptyFolder:
        if options.argv:
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
    warn_of_pushed(app, folder, packed)
    for warning in packed.warnings():
        app.say(warning)
    return packed, check_code(app, Code(folder, packed), options)


async def _warn_of_containers(app: App, client: Client, needs: Sequence[str]) -> None:
    """Say that programs run without these, where no node runs containers."""
    from nsml.client.errors import ClientError
    from nsml.v1.resources_pb2 import ISOLATION_CONTAINER

    if not needs:
        return
    try:
        nodes = await client.nodes.every()
    except ClientError:
        return  # what is asked for next fails as well, or the node says it in the log
    if nodes and not any(one.isolation == ISOLATION_CONTAINER for one in nodes):
        app.say_once(
            f"warning: no node runs containers: the program runs without {' and '.join(needs)}"
        )


def _dry_run(app: App, options: RunOptions) -> None:
    """Say whether it would start now or wait; raises what submitting it would."""
    from nsml.client.errors import NoCapacity

    packed, contained = _pack(app, Path.cwd(), options) if options.sends_code else (None, [])
    request = _request(options, packed.manifest.digest if packed is not None else "")

    async def ask(client: Client) -> str:
        await _warn_of_containers(app, client, contained)
        await client.sessions.check(request)
        request.spec.no_queue = True
        try:
            await client.sessions.check(request)
        except NoCapacity as error:
            return error.why
        return ""

    waiting = app.call(ask)
    files = len(packed.manifest.entries) if packed is not None else 0
    found = {
        "state": "QUEUED" if waiting else "PREPARING",
        "waiting": waiting or None,
        "files": files,
        "bytes": packed.manifest.size if packed is not None else 0,
    }
    text = f"would wait: {waiting}" if waiting else "would start now"
    write_one(app, found, [text], name="state")
    app.say("  nothing was sent, and no session made")


async def _submit(
    app: App, client: Client, options: RunOptions, packed: Packed | None, submission: _Submission
) -> Session:
    """Check what only the platform knows, send what it lacks, and create the session.

    It may be done again with the same request, whatever became of it the first time.
    """
    from nsml.client.errors import NotFound

    if submission.request is None:
        submission.request = _request(options, packed.manifest.digest if packed is not None else "")
    request = submission.request
    try:
        if packed is not None and not submission.is_sent:
            await client.sessions.check(request)
            await _send(app, client, packed)
            submission.is_sent = True
        submission.is_asked = True
        if packed is None:
            submission.session = await client.sessions.create(request)
        else:
            submission.session = await made_of(
                app, client, packed, lambda: client.sessions.create(request)
            )
        return await _settled(client, submission.session)
    except NotFound:
        for reference in options.datasets:
            await _check_dataset(client, reference)
        raise


async def _settled(client: Client, session: Session) -> Session:
    """The session once it is placed, or known to wait and why; as it is after half a second.

    It exists, whoever answers now: in its last known state where nobody does.
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


async def _check_dataset(client: Client, reference: str) -> None:
    """Raise NotFound, with the names that were perhaps meant, unless there is such a dataset."""
    from nsml.client.errors import NotFound

    name, version = split_dataset(reference)
    try:
        await client.datasets.get(name, version)
    except NotFound as error:
        known = [item.name for item in await client.datasets.every()]
        nearest = near(name.rpartition("/")[2], known)
        raise NotFound(
            error.message,
            reason=error.reason,
            why=error.why,
            advice=to_try("nsml run -d", nearest)
            or error.advice
            or f"nsml dataset push {shell_word(name)} PATH",
        ) from error


async def _send(app: App, client: Client, packed: Packed) -> None:
    from nsml.view.units import duration_text, size_text

    began = app.clock.monotonic()
    sent = await send(app, client, packed)
    files = len(packed.manifest.entries)
    skipped = packed.skipped
    ignored = (
        f" (ignored {files_text(skipped.files)}, {size_text(skipped.bytes)})"
        if skipped.files
        else ""
    )
    took_s = app.clock.monotonic() - began
    took = f"{took_s:.1f}s" if took_s < 60 else duration_text(took_s)
    app.say(f"packing   {files_text(files)} {size_text(packed.manifest.size)}{ignored}")
    app.say(
        f"sending   {files_text(sent.files_sent)} {size_text(sent.bytes_sent)},"
        f" {files - sent.files_sent:,} unchanged   done {took}"
    )


def _request(options: RunOptions, bundle_digest: str) -> CreateSessionRequest:
    from nsml.v1 import resources_pb2, sessions_pb2
    from nsml.view.sessions import network_named, priority_named, visibility_named

    spec = sessions_pb2.SessionSpec(
        entry=options.entry,
        args=options.args,
        argv=options.argv,
        bundle_digest=bundle_digest,
        resources=resources_pb2.Resources(
            gpu_thousandths=options.gpu_thousandths,
            cpu_thousandths=options.cpu_thousandths,
            memory_bytes=options.memory_bytes,
        ),
        replica_count=options.replica_count,
        environment=options.environment,
        secrets=[
            sessions_pb2.SecretUse(name=name, variable=variable)
            for name, variable in options.secrets
        ],
        image=options.image,
        retry_count=options.retry_count,
        no_queue=options.no_queue,
        priority=priority_named(options.priority),
        preemptible=options.preemptible,
        gpu_model=options.gpu_model,
        pod=options.pod,
        network=network_named(options.network),
        refresh_environment=options.refreshes,
    )
    if options.shm_bytes or options.disk_bytes or options.process_count:
        spec.limits.shm_bytes = options.shm_bytes
        spec.limits.disk_bytes = options.disk_bytes
        spec.limits.process_count = options.process_count
    for reference in options.datasets:
        name, version = split_dataset(reference)
        spec.datasets.add(name=name, version=version)
    for target, seconds in ((spec.time_limit, options.time_limit_s), (spec.grace, options.grace_s)):
        if seconds is not None:
            target.FromNanoseconds(round(seconds * 1e9))
    return sessions_pb2.CreateSessionRequest(
        request_id=new_request_id(),
        spec=spec,
        memo=options.memo,
        visibility=visibility_named(options.visibility),
        project=options.project,
        command=options.command,
    )


def _aborted(submission: _Submission) -> str:
    """What an interrupted submission has come to."""
    if submission.session is not None:
        return goes_on(submission.session)
    aborted = "run aborted: Interrupted by user"
    return f"{aborted}\n  try: {hint_line(_SEE)}" if submission.is_asked else aborted


def _write(app: App, session: Session) -> None:
    from nsml.view.sessions import record

    write_one(app, record(session), [_submitted_text(app, session)])
    app.stdout.flush()


def _submitted_text(app: App, session: Session) -> str:
    """That it was submitted; of one that waits also for what, as far as a line has room: --explain has all of it."""
    from nsml.view.text import fit_words

    if not _waits(session):
        return f"Session {session.name} started"
    text = f"Session {session.name} queued" + (session.waiting and f": {session.waiting}")
    return text if app.room is None else fit_words(text, app.room)
