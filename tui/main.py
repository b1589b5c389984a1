"""`nsml-tui`: chooses a platform and shows it."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from nsml._version import VERSION
from nsml.client import contexts
from nsml.clock import SystemClock

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from tui.app import Dashboard
    from tui.story import Story

USAGE_CODE = 2
DENIED_CODE = 4


@click.command("nsml-tui", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--context", "name", metavar="NAME", help="The platform, as in nsml context ls.")
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write what is seen to a new file.",
)
@click.option(
    "--replay",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Show such a file: no platform is needed.",
)
@click.option("--demo", is_flag=True, help="Show a made-up cluster: no platform is needed.")
@click.version_option(VERSION, prog_name="nsml-tui")
def main(name: str | None, record: Path | None, replay: Path | None, demo: bool) -> None:
    """Show the platform live: sessions, charts, logs, the queue and the machines.

    Keys are at the foot of the screen, and all of them behind ?. Ctrl-Q leaves; nothing that runs is touched.

    Every action is an nsml command, which is shown. NO_COLOR, TERM and the terminal's size are heeded.
    """
    chosen = {
        "--replay": replay is not None,
        "--demo": demo,
        "--record": record is not None,
        "--context": name is not None,
    }
    given = [option for option, is_given in chosen.items() if is_given]
    if len(given) > 1 and given[0] in {"--replay", "--demo"}:
        _fail(f"{given[0]} goes without {given[1]}", "nsml-tui --help", USAGE_CODE)
    story: Story | None = None
    if replay is not None:
        story = _read(replay)
    elif demo:
        from tui.demo import Demo

        story = Demo(SystemClock().time())
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        _fail("nsml-tui needs a terminal", "for programs: nsml ps -w -o jsonl", USAGE_CODE)
    app = _of_platform(name, record) if story is None else _of_story(story)
    try:
        app.run()
    finally:
        if app.recorder is not None:
            app.recorder.close()
    sys.exit(app.return_code or 0)


def _read(path: Path) -> Story:
    from tui.recording import Recording, RecordingError

    try:
        return Recording(path)
    except RecordingError as error:
        _fail(str(error), "", USAGE_CODE)


def _of_story(story: Story) -> Dashboard:
    from tui.app import Dashboard
    from tui.story import Player

    player = Player(story, SystemClock())

    def connect() -> AbstractAsyncContextManager[Client]:
        raise RuntimeError("a story has no platform")

    return Dashboard(connect, clock=player, platform=story.platform, player=player)


def _of_platform(name: str | None, record: Path | None) -> Dashboard:
    # gRPC's own diagnostics would go over the screen.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        context = contexts.choose(contexts.load(os.environ), os.environ, name)
        context.token()
    except contexts.ContextError as error:
        _fail(error.message, error.advice, DENIED_CODE)

    from tui.app import Dashboard
    from tui.recording import Recorder, RecordingError

    def connect() -> AbstractAsyncContextManager[Client]:
        from nsml.client import connect as client

        return client.connect(context)

    platform, recorder = context.name or context.places, None
    clock = SystemClock()
    if record is not None:
        try:
            recorder = Recorder(record, platform=platform, at=clock.time())
        except RecordingError as error:
            _fail(str(error), "", USAGE_CODE)
    return Dashboard(connect, clock=clock, platform=platform, recorder=recorder)


def _fail(message: str, advice: str, code: int) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    for line in advice.splitlines():
        click.echo(f"  try: {line}", err=True)
    sys.exit(code)
