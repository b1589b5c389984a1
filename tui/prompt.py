"""Runs commands typed after `:`, and new runs typed into the form."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual.app import SuspendNotSupported

from nsml.client.contexts import ContextError, choose, load
from nsml.client.errors import ClientError
from nsml.common.shell import option_words, shell_line
from nsml.common.text import visible
from nsml.view.complete_sessions import is_short
from tui.background import in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsml.v1.sessions_pb2 import Session
    from tui.commands import Nsml, Own
    from tui.shell import Shell

_MOST_PROGRAMS: Final = 6
"""Listed programs of a folder."""


class Prompt:
    """Runs lines for a dashboard: its own commands, and those of `nsml`."""

    def __init__(self, app: Shell) -> None:
        self._app = app
        self._refused = ""
        """The last line of a new run, if it failed."""

    def ask(self, begun: str = "") -> None:
        """Ask for a line and run it; `begun` is prefilled."""
        from tui.commands import offered
        from tui.screens.command_line import CommandLine

        def offer(text: str) -> Sequence[str]:
            return offered(text, sessions=self._session_names, contexts=self._context_names)

        self._app.push_screen(CommandLine(self._app.preferences.typed, offer, begun), self.obey)

    def _context_names(self) -> Sequence[str]:
        """Return the selectable platforms; a page's visitors do not see its server's."""
        if self._app.cli_environ is None or self._app.is_web:
            return ()
        try:
            return sorted(load(self._app.cli_environ).contexts)
        except ContextError:
            return ()

    def _session_names(self) -> Iterable[str]:
        from nsml.view.filtering import Filter

        rows = self._app.model.rows(Filter(""), self._app.clock.time(), with_steps=False)
        return (row.session.name for row in rows)

    def obey(self, text: str | None) -> None:
        """Run a line."""
        from tui import commands

        try:
            command = commands.understood(text or "")
        except commands.CommandError as error:
            self._note(text or "")
            self._app.say(error.message, is_bad=True)
            return
        if command is None:
            return
        self._note(text or "")
        if isinstance(command, commands.Own):
            self._obey_own(command)
            return
        if not commands.lacks_session(command):
            self._obey_nsml(command)
        elif not (names := self._chosen_names()):
            self._app.say(f"{command.text}: of which session?", is_bad=True)
        elif command.way is commands.Way.SHOWN:
            self._obey_nsml(command._replace(words=(*command.words, *names)))
        else:  # commands that change data or keep running start only with the names visible
            self.ask(shell_line([*command.words, *names]))

    def _chosen_names(self) -> Sequence[str]:
        """Return the marked sessions of the screen in front, else the one under the cursor."""
        from tui.screens.frame import Frame

        screen = self._app.screen
        return [one.name for one in screen.chosen()] if isinstance(screen, Frame) else []

    def _note(self, text: str) -> None:
        """Save a typed line, once."""
        from msgspec.structs import replace as changed

        from tui.preferences import MOST_TYPED

        typed = [one for one in self._app.preferences.typed if one != text.strip()]
        self._app.set_preferences(
            changed(self._app.preferences, typed=(*typed, text.strip())[-MOST_TYPED:])
        )

    def _obey_own(self, command: Own) -> None:
        match command.name:
            case "q":
                self._app.exit()
            case "ps":
                self._app.show_sessions(command.rest)
            case "plot":
                self._open_plot(command.rest)
            case "theme":
                self._choose_theme(command.rest)
            case "history":
                self._choose_typed()
            case _:
                self._go_to_context(command.rest)

    def _choose_typed(self) -> None:
        """Choose an earlier line, newest first, and ask for it again."""
        from tui.screens.picking import Choice, Picker

        before = [one for one in reversed(self._app.preferences.typed) if one != "history"]
        if not before:
            self._app.say("nothing was typed before")
            return

        def go(chosen: tuple[str, ...] | None) -> None:
            for text in chosen or ():
                self.ask(text)

        self._app.push_screen(Picker("Typed before", [Choice(one, one) for one in before]), go)

    def _open_plot(self, name: str) -> None:
        session = self._named(name or next(iter(self._chosen_names()), ""))
        if session is None:
            self._app.say(f"no session here is called {name!r}", is_bad=True)
            return
        self._app.open_session(session, tab="plot")

    def _named(self, name: str) -> Session | None:
        """Find a session by name, the end of a name, or id."""
        from nsml.view.filtering import Filter

        rows = self._app.model.rows(Filter(""), self._app.clock.time()) if name else ()
        for row in rows:
            one = row.session
            if name in {one.name, one.id} or one.name.endswith(f"/{name}"):
                return one
        return None

    def _choose_theme(self, name: str) -> None:
        known = ", ".join(self._app.available_themes)
        if name in self._app.available_themes:
            self._app.theme = name
        elif name:
            self._app.say(f"no theme {name!r}: {known}", is_bad=True)
        else:
            self._app.say(f"this is {self._app.theme} · themes: {known}")

    def _go_to_context(self, name: str) -> None:
        """Show another platform in place of this one."""
        if self._app.cli_environ is None or self._app.is_web:
            self._app.say("no other platform can be shown from here", is_bad=True)
            return
        if self._app.recorder is not None:
            self._app.say("a recording has one platform: quit first", is_bad=True)
            return
        try:
            context = choose(load(self._app.cli_environ), self._app.cli_environ, name or None)
            context.token()
        except ContextError as error:
            self._app.say(f"{error.message}\n{error.advice}", is_bad=True)
            return
        if not name or context.name == self._app.platform:
            others = [one for one in self._context_names() if one != self._app.platform]
            state = (
                f"others: {', '.join(others)}" if others else "there is no other: nsml context ls"
            )
            self._app.say(f"this is {self._app.platform} · {state}")
            return
        self._app.goes_to = context.name
        self._app.exit()

    def _obey_nsml(self, command: Nsml) -> None:
        from tui.commands import Way
        from tui.running import program
        from tui.screens.asking import Confirm

        environ, nsml = self._app.cli_environ, program()
        if self._app.refuses_action("run"):
            return
        if environ is None or self._app.is_web or nsml is None:
            self._app.say("nsml is not run from here: copy the command to a terminal", is_bad=True)
            return
        words = [nsml, *command.words]

        def go(is_meant: bool | None) -> None:
            if is_meant:
                self._app.last_command = command.text
                self._show_output(command, [*words, "-y"], environ)

        match command.way:
            case Way.SHOWN:
                self._show_output(command, words, environ)
            case Way.ASKED:
                self._app.push_screen(Confirm("Do this?", command.text), go)
            case Way.HANDED:
                self._app.last_command = command.text
                self._hand_over(command.text, words, environ)

    def submit(self, session: Session | None) -> None:
        """Ask for a new run of the folder, prefilled from the session if it is the user's own; and submit it."""
        if session is not None and session.owner == self._app.user and is_short(session):
            in_background(self._app, "again", partial(self._submit_whole, session))
        else:
            self._submit(session)

    async def _submit_whole(self, session: Session) -> None:
        """Do the same, fetching the session's whole command first."""
        if self._app.client is None:
            self._app.say("the platform does not answer, and the command is not here", is_bad=True)
            return
        try:
            whole = await self._app.client.sessions.get(session.id)
        except ClientError as error:
            self._app.say(error.message, is_bad=True)
        else:
            self._submit(whole)

    def _submit(self, session: Session | None) -> None:
        from nsml.view.sessions import repeat_words
        from tui.commands import run_of, runs_of, without_memo
        from tui.running import program
        from tui.screens.submit import Submit

        environ, nsml = self._app.cli_environ, program()
        if self._app.refuses_action("submitted"):
            return
        if environ is None or self._app.is_web or nsml is None:
            self._app.say(
                "nothing is submitted from here: nsml run does it in a terminal", is_bad=True
            )
            return
        is_own = session is not None and session.owner == self._app.user
        again = without_memo(repeat_words(session)) if session is not None and is_own else ()
        # Progress is printed line by line: here no line is redrawn.
        known, folder = {**environ, "NSML_ACCESSIBLE": "1"}, Path.cwd()

        def go(text: str | None) -> None:
            if text is None:
                return
            command = run_of(text)
            self._note(command.text)
            self._app.last_command = command.text

            def done(code: int | None) -> None:
                self._refused = command.text if code else ""

            self._show_output(command, [nsml, *command.words], known, done)

        form = Submit(
            self._refused or (shell_line(again) if again else "") or _first_run(folder),
            folder=_folder_text(folder),
            nsml=nsml,
            environ=known,
            typed=runs_of(self._app.preferences.typed),
        )
        self._app.push_screen(form, go)

    def _show_output(
        self,
        command: Nsml,
        words: Sequence[str],
        environ: Mapping[str, str],
        done: Callable[[int | None], None] | None = None,
    ) -> None:
        from tui.screens.output import Output

        shown = Output(command.text, words, environ=environ, clock=self._app.clock)
        self._app.push_screen(shown, done)

    def _hand_over(self, text: str, words: Sequence[str], environ: Mapping[str, str]) -> None:
        """Give the terminal to a command until it ends and the user has read its output."""
        import click

        # Ctrl-C is for the command; it is not ignored, which the command would inherit.
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            with self._app.suspend():
                click.echo(f"$ {visible(text)}")
                code = subprocess.run(words, env=environ, check=False).returncode
                click.echo(f"exit code {code} · Enter or Ctrl-C leads back to the dashboard")
                _until_read()
        except SuspendNotSupported:
            self._app.say("this terminal cannot be handed over", is_bad=True)
        except OSError as error:  # also if the line is too long
            self._app.say(f"not started: {error.strerror}", is_bad=True)
        finally:
            signal.signal(signal.SIGINT, before)
        self._app.has_mouse = True
        self._app.model.stood_still(self._app.clock.time())
        self._app.refresh()


def _until_read() -> None:
    """Wait for Enter or Ctrl-C: users who interrupted the command press it again."""

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    with suppress(KeyboardInterrupt):
        try:
            signal.signal(signal.SIGINT, leave)
            sys.stdin.readline()
        finally:
            signal.signal(signal.SIGINT, before)


def _programs(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(one.name for one in folder.glob("*.py") if one.is_file())
    return []


def _first_run(folder: Path) -> str:
    """Return the line that runs `main.py`, else the first program of the folder."""
    programs = _programs(folder)
    entry = programs[0] if programs and "main.py" not in programs else "main.py"
    return shell_line(["nsml", "run", *option_words("-e", entry, long="--entry")])


def _folder_text(folder: Path) -> str:
    """Describe the code to send."""
    programs = _programs(folder)
    shown = ", ".join(programs[:_MOST_PROGRAMS]) + (", ..." if programs[_MOST_PROGRAMS:] else "")
    return f"sends {folder} ({shown or 'no Python program'}), except what .nsmlignore lists"
