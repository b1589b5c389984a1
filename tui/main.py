"""`nsml-tui`: chooses a platform and shows it."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import threading
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import quote

import click

from nsml._version import VERSION
from nsml.client import contexts
from nsml.common.clock import SystemClock
from nsml.common.resolving import bound_resolvers
from nsml.view.themes import SETTING, THEMES
from tui import terminal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsml.client.calls import Client
    from tui.app import Dashboard
    from tui.appearance import Appearance
    from tui.story import Story

USAGE_CODE = 2
DENIED_CODE = 4
FRAMES_A_SECOND: Final = "240"
_LOOPBACK = "127.0.0.1"
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)")
_BROWSER: Final = {"COLORTERM": "truecolor"}
"""The environment of a terminal with all colours."""


class _Program(click.Command):
    """Reports errors of its command line as `nsml` does."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the command line; exits with USAGE_CODE if that fails."""
        try:
            return super().make_context(*args, **extra)
        except click.UsageError as error:
            _fail(_usage_message(error), "nsml-tui --help", USAGE_CODE)


def _usage_message(error: click.UsageError) -> str:
    message = error.format_message()
    match error:
        case click.NoSuchOption():
            return f"no such option: {error.option_name}"
        case click.BadParameter(param=click.Option() as option):
            return f"{option.opts[0]}: {error.message.rstrip('.')}"
    extra = _EXTRA.fullmatch(message)
    return f"unexpected argument: {extra[1]}" if extra else message.rstrip(".")


@click.command("nsml-tui", cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--context", "name", metavar="NAME", help="The platform, as in nsml context ls.")
@click.option(
    "--record",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Record what the dashboard shows to a new file.",
)
@click.option(
    "--replay",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Play back a recording, without a platform.",
)
@click.option("--demo", is_flag=True, help="Show a made-up cluster: no platform is needed.")
@click.option("--web", is_flag=True, help="Show it in a browser of this machine.")
@click.option(
    "--host", metavar="ADDRESS", help="With --web: of this machine alone, 127.0.0.1 by default."
)
@click.option(
    "--port",
    metavar="NUMBER",
    type=click.IntRange(0, 65_535),
    help="With --web: where it answers; a free one by default.",
)
@click.option("--visit", type=int, hidden=True)
@click.option(
    "--theme",
    metavar="NAME",
    type=click.Choice(THEMES),
    help=f"{', '.join(THEMES)}: for this time.",
)
@click.option(
    "--ascii/--no-ascii",
    "in_ascii",
    default=None,
    help="Draw with ASCII alone, or not; else as TERM and the locale say.",
)
@click.option("--keys", is_flag=True, help="Print every key with its id, for keymap.toml.")
@click.version_option(VERSION, prog_name="nsml-tui")
def main(
    *,
    name: str | None,
    record: Path | None,
    replay: Path | None,
    demo: bool,
    web: bool,
    host: str | None,
    port: int | None,
    visit: int | None,
    theme: str | None,
    in_ascii: bool | None,
    keys: bool,
) -> None:
    """Show the platform live: sessions, charts, logs, the queue and the machines.

    Keys are at the foot of the screen, and all of them behind ?. Ctrl-Q leaves; nothing that runs is touched.

    Every action is an nsml command, which is shown. NO_COLOR, COLORTERM, TERM, the locale and the terminal's size
    are heeded, TEXTUAL_ANIMATIONS too. A theme that is chosen in the palette is saved: nsml config get theme.

    With --web it prints an address for a browser instead. Whoever has that address acts as you, until Ctrl-C.
    """
    # gRPC's own diagnostics would overwrite the screen.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    bound_resolvers(os.environ)
    # A key's changes may come in two parts, and Textual delays the second until its next frame.
    os.environ.setdefault("TEXTUAL_FPS", FRAMES_A_SECOND)
    if keys:
        _print_keys()
        return
    chosen = {
        "--replay": replay is not None,
        "--demo": demo,
        "--record": record is not None,
        "--context": name is not None,
    }
    given = [option for option, is_given in chosen.items() if is_given]
    if len(given) > 1 and given[0] in {"--replay", "--demo"}:
        _fail(f"{given[0]} goes without {given[1]}", "nsml-tui --help", USAGE_CODE)
    replayed = _read(replay) if replay is not None else None
    _check_place(web=web or visit is not None, host=host, port=port, record=record)
    # No imported object is freed: looking for garbage would only take time.
    gc.disable()
    order = {} if visit is None else _order(visit)
    # Settings here are the server's, not those of users behind a gateway.
    is_own = "server" not in order
    appearance = (
        _appearance(theme, in_ascii=in_ascii, in_browser=visit is not None) if is_own else None
    )
    keymap = _keymap() if is_own else {}
    if not is_own:
        app = _of_order(order)
    elif replayed is not None:
        app = _of_story(replayed, appearance)
    elif demo:
        app = _of_demo(appearance)
    else:
        app = _of_platform(name, record, appearance)
    if web:
        # The same again for each browser. Its errors have shown here by now.
        words = [
            f"{option}={value}"
            for option, value in (("--replay", replay), ("--context", name), ("--theme", theme))
            if value
        ]
        words += ["--demo"] if demo else []
        words += ["--ascii"] if in_ascii else []
        _serve(words, host or _LOOPBACK, port or 0)
    while True:
        app.set_keymap(keymap)
        try:
            app.run()
        finally:
            if app.recorder is not None:
                app.recorder.close()
        if not app.goes_to:
            sys.exit(app.return_code or 0)
        app = _of_platform(app.goes_to, None, appearance and replace(appearance, theme=app.theme))


def _check_place(*, web: bool, host: str | None, port: int | None, record: Path | None) -> None:
    """Check the options for terminals and browsers."""
    if web and record is not None:
        _fail("--web goes without --record", "nsml-tui --help", USAGE_CODE)
    if not web and (host is not None or port is not None):
        _fail("--host and --port go with --web", "nsml-tui --help", USAGE_CODE)
    if not (web or (sys.stdin.isatty() and sys.stdout.isatty())):
        advice = "for programs: nsml ps -w -o jsonl\nfor a browser: nsml-tui --web"
        _fail("nsml-tui needs a terminal", advice, USAGE_CODE)


def _serve(arguments: list[str], host: str, port: int) -> NoReturn:
    missing = [name for name in ("textual_serve", "websockets") if find_spec(name) is None]
    if missing:
        _fail("--web needs a package that is not installed", "pip install 'nsml[web]'", USAGE_CODE)
    from tui.web.local import NotServed, serve

    gc.enable()  # it serves for days
    try:
        serve(arguments, host=host, port=port)
    except NotServed as error:
        _fail(error.message, error.advice, USAGE_CODE)
    except KeyboardInterrupt:
        pass  # Ctrl-C ends it, also right after it has printed its address
    sys.exit(0)


def _order(descriptor: int) -> dict[str, Any]:
    """Read the first line from the process that serves a browser; exit when that ends."""
    try:
        with open(os.dup(descriptor), "rb", buffering=0) as orders:  # noqa: PTH123 - it has no path
            order: dict[str, Any] = json.loads(orders.readline())
    except (OSError, ValueError):
        _fail("--visit is for who serves a browser", "nsml-tui --web", USAGE_CODE)

    def end_with_it() -> None:
        while os.read(descriptor, 4096):
            pass
        os._exit(0)

    threading.Thread(target=end_with_it, daemon=True).start()
    return order


def _of_order(order: dict[str, Any]) -> Dashboard:
    """Build the dashboard of a gateway's user: the gateway sends server and credential."""
    from nsml.client import connect
    from nsml.common.time_zone import use_utc
    from tui.app import Dashboard

    use_utc()  # the user's time zone is not known here
    context = contexts.Context(name=order["platform"], server=order["server"])
    return Dashboard(
        lambda: connect.connect(context, token=order["token"]),
        clock=SystemClock(),
        platform=context.name,
        settled=_spare,
    )


def _of_demo(appearance: Appearance | None) -> Dashboard:
    from tui.demo.story import Demo

    return _of_story(Demo(SystemClock().time()), appearance)


def _appearance(
    theme: str | None, *, in_ascii: bool | None, in_browser: bool = False
) -> Appearance:
    """Choose the appearance: by options, else the user's settings, else the terminal."""
    from tui.appearance import Appearance

    try:
        saved = contexts.load(os.environ).settings.get(SETTING, "")
    except contexts.ContextError as error:
        _fail(error.message, error.advice, DENIED_CODE)
    if saved and saved not in THEMES:
        _fail(f"no theme {saved!r} (settings.theme)", "nsml config set theme dark", USAGE_CODE)
    # A browser can show everything, whatever the server's terminal.
    shown_on: Mapping[str, str] = _BROWSER if in_browser else os.environ
    is_colourless = terminal.has_no_colours(os.environ)
    if is_colourless:
        chosen = "terminal"
    else:
        chosen = theme or saved or ("dark" if terminal.has_colours(shown_on) else "terminal")
    return Appearance(
        theme=chosen,
        is_colourless=is_colourless,
        is_ascii=terminal.is_ascii(shown_on) if in_ascii is None else in_ascii,
        has_letters=terminal.has_letters(shown_on),
        is_animated=terminal.may_animate(shown_on),
    )


def _keymap() -> dict[str, str]:
    """Read the user's keymap."""
    path = Path(contexts.config_folder(os.environ)) / "keymap.toml"
    if not path.exists():
        return {}  # reading it imports every screen
    from tui.keymap import KeymapError, parts, read

    try:
        return read(path, parts())
    except KeymapError as error:
        _fail(error.message, error.advice, USAGE_CODE)


def _print_keys() -> None:
    from nsml.common.text import pad, visible, width
    from tui.keymap import table

    rows = [("ID", "KEYS", "WHAT"), *table(_keymap())]
    cells = [max(width(row[place]) for row in rows) for place in range(2)]
    for name, keys, what in rows:
        click.echo(f"{pad(name, cells[0])}  {pad(visible(keys), cells[1])}  {what}")


def _save_theme(theme: str) -> None:
    """Save the theme for the next start."""
    config = contexts.load(os.environ)
    contexts.save(config._replace(settings={**config.settings, SETTING: theme}))


def _cli_environ(name: str | None) -> Mapping[str, str]:
    """Return the environment in which `nsml` uses the same platform."""
    return {**os.environ, **({"NSML_CONTEXT": name} if name else {})}


def _preferences_file(platform: str, environ: Mapping[str, str]) -> Path:
    """The preferences file of a platform; it need not exist."""
    on_linux: bool = sys.platform.startswith("linux")
    if on_linux:
        home = Path(environ.get("HOME") or "~").expanduser()
        folder = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "nsml"
    else:
        from platformdirs import user_state_path

        folder = user_state_path("nsml", appauthor=False)
    return folder / "tui" / f"{quote(platform, safe='')}.json"


def _read(path: Path) -> Story:
    from tui.recording import Recording, RecordingError

    try:
        return Recording(path)
    except RecordingError as error:
        _fail(str(error), "", USAGE_CODE)


def _of_story(story: Story, appearance: Appearance | None) -> Dashboard:
    from tui.app import Dashboard
    from tui.story import Player

    player = Player(story, SystemClock())

    def connect() -> AbstractAsyncContextManager[Client]:
        raise RuntimeError("a story has no platform")

    return Dashboard(
        connect,
        clock=player,
        platform=story.platform,
        player=player,
        appearance=appearance,
        remember=_save_theme,
        settled=_spare,
    )


def _of_platform(name: str | None, record: Path | None, appearance: Appearance | None) -> Dashboard:
    try:
        context = contexts.choose(contexts.load(os.environ), os.environ, name)
        context.token()
    except contexts.ContextError as error:
        _fail(error.message, error.advice, DENIED_CODE)

    from nsml.common.shell import shell_word
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
    return Dashboard(
        connect,
        clock=clock,
        platform=platform,
        recorder=recorder,
        preferences_file=_preferences_file(platform, os.environ),
        cli_environ=_cli_environ(name),
        appearance=appearance,
        remember=_save_theme,
        start_with="nsml up" if contexts.may_be_ours(context) else "",
        sign_in_with=f"nsml login {shell_word(context.server)}",
        token=context.token,
        settled=_spare,
    )


def _spare() -> None:
    """Collect cycles, then freeze the rest: scanning thousands of live sessions delays keys."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.enable()


def _fail(message: str, advice: str, code: int) -> NoReturn:
    from nsml.common.text import visible

    click.echo(f"error: {visible(message)}", err=True)
    for line in advice.splitlines():
        click.echo(f"  try: {visible(line)}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
