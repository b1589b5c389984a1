"""Actions of the dashboard on the platform, each equal to a command of `nsml`."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsml.client.errors import ClientError
from nsml.client.streams import ENDED_STATES
from nsml.common.shell import hint_line, operands, shell_line, shell_word
from nsml.common.text import visible
from nsml.common.units import counted, duration_text, size_text
from nsml.view.confirmation import (
    COMMANDS,
    Plan,
    listed,
    losses,
    needs_list,
    summary,
    target_of,
)
from tui.background import in_background
from tui.hints import key_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from nsml.client.calls import Client
    from nsml.client.content import Transfer
    from nsml.v1.sessions_pb2 import Evaluated, EvaluateResponse, ProgramChange, Session
    from nsml.view.saved import Saved
    from tui.commands import Settings
    from tui.screens.evaluate import Conversation
    from tui.shell import Shell

MOST_STOPPED: Final = 100
"""Sessions per stop."""
MOST_REMOVED: Final = 100
"""Sessions per removal."""
_MOST_TYPED_CODE: Final = 200
"""Size of the history of typed code."""
_NOT_CONNECTED: Final = "not connected yet"


class Actions:
    """Actions of a dashboard.

    Attributes:
        fetching: progress of a download; "" if none is running.
    """

    def __init__(self, app: Shell) -> None:
        self._app = app
        self.fetching = ""
        self._typed_code: deque[str] = deque(maxlen=_MOST_TYPED_CODE)
        self._conversation: Conversation | None = None
        """The last one with a program."""

    def stop(self, sessions: Sequence[Session]) -> None:
        """Stop sessions, after confirmation."""
        from nsml.view.sessions import WAITING_STATES
        from tui.screens.asking import Confirm

        if self._app.refuses_action("stopped"):
            return
        live = [one for one in sessions if one.state not in ENDED_STATES]
        if not live:
            self._app.say(_none_runs(sessions, key_of(self._app, "sessions.unmark")))
            return
        if len(live) > MOST_STOPPED:
            self._app.say(
                f"{len(live):,} are marked: at most {MOST_STOPPED} at a time", is_bad=True
            )
            return
        plan = self._plan("stop", live)
        command = shell_line(["nsml", "stop", *(one.name for one in live)])

        def go(is_meant: bool | None) -> None:
            if is_meant:
                each = {shell_line(["nsml", "stop", one.name]): self._stopping(one) for one in live}
                self._act(command, each)

        has_program = any(one.state not in WAITING_STATES for one in live)
        how = " SIGTERM first, SIGKILL after the grace." if has_program else ""
        question = f"{_asked(plan)}?{how}"
        self._app.push_screen(Confirm(question, command, _listed(plan)), go)

    def _stopping(self, session: Session) -> Callable[[Client], Awaitable[object]]:
        return lambda client: client.sessions.stop(session.id)

    def remove(self, sessions: Sequence[Session]) -> None:
        """Remove ended sessions and all their data, after confirmation."""
        from nsml.client.checkpoints import saved_in
        from tui.screens.asking import Confirm

        if self._app.refuses_action("removed"):
            return
        ended = [one for one in sessions if one.state in ENDED_STATES]
        if not ended:
            stop = key_of(self._app, "sessions.stop")
            live = f"nothing to remove: it has not ended · {stop} stops it"
            self._app.say(live if sessions else "nothing is chosen")
            return
        if len(ended) > MOST_REMOVED:
            self._app.say(
                f"{len(ended):,} are marked: at most {MOST_REMOVED} at a time", is_bad=True
            )
            return
        plan = self._plan("rm", ended, loses=losses(ended))
        left = len(sessions) - len(ended)
        stays = f" {counted(left, 'live session')} will stay." if left else ""
        command = shell_line(["nsml", "rm", *(one.name for one in ended)])

        def go(is_meant: bool | None) -> None:
            if is_meant:
                each = {shell_line(["nsml", "rm", one.name]): self._removing(one) for one in ended}
                self._act(command, each)

        confirm = Confirm(
            f"{_asked(plan)}, for good?{stays}", command, _listed(plan), typed=plan.typed
        )
        self._app.push_screen(confirm, go)

        async def add_sizes() -> None:
            client = self._app.client
            saved = await saved_in(client, ended) if client is not None else None
            exact = self._plan("rm", ended, loses=losses(ended, saved))
            if confirm.is_attached:
                confirm.ask(f"{_asked(exact)}, for good?{stays}")

        in_background(self._app, "sizes", add_sizes)

    def _plan(self, command: str, sessions: Sequence[Session], loses: Sequence[str] = ()) -> Plan:
        """Plan a command on sessions; keys always ask, since they are easy to press."""
        targets = [target_of(one) for one in sessions]
        return Plan(rule=COMMANDS[command], targets=targets, user=self._app.user, loses=loses)

    def _removing(self, session: Session) -> Callable[[Client], Awaitable[object]]:
        async def call(client: Client) -> None:
            await client.sessions.remove(session.id)
            self._app.model.forget(session.id, self._app.clock.time())

        return call

    def write_memo(self, sessions: Sequence[Session]) -> None:
        """Ask for a memo, and write it to one session."""
        from tui.screens.asking import Ask

        if self._app.refuses_action("given a memo"):
            return
        if len(sessions) != 1:
            self._app.say("a memo is for one session")
            return
        (session,) = sessions

        def go(text: str | None) -> None:
            if text is not None and text != visible(session.memo):
                command = shell_line(["nsml", "memo", *operands(session.name, text)])
                each = {command: lambda client: client.sessions.update(session.id, memo=text)}
                self._act(command, each)

        self._app.push_screen(Ask(f"Memo of {session.name}", session.memo), go)

    def forward(self, sessions: Sequence[Session]) -> None:
        """Open the command line with a port forward of one session; the user types the port."""
        if self._app.refuses_action("forwarded"):
            return
        if len(sessions) != 1:
            self._app.say("a port is forwarded from one session")
            return
        (session,) = sessions
        if session.state in ENDED_STATES:
            self._app.say(f"nothing to forward: {session.name} has ended")
            return
        self._app.ask_command(f"forward {shell_word(session.name)} ")

    def enter(self, sessions: Sequence[Session], *, rank: int = 0) -> None:
        """Open a shell in one session on this terminal, until it ends."""
        if self._app.refuses_action("entered"):
            return
        if len(sessions) != 1:
            self._app.say("a shell is started in one session")
            return
        (session,) = sessions
        if session.state in ENDED_STATES:
            self._app.say(f"no shell: {session.name} has ended")
            return
        self._app.obey(shell_line(["sh", f"{session.name}:{rank}" if rank else session.name]))

    def evaluate(self, sessions: Sequence[Session], *, rank: int = 0) -> None:
        """Ask for code, evaluate it in the program of one session, and show the result."""
        from tui.screens.evaluate import Conversation, Evaluate

        if self._app.refuses_action("evaluated"):
            return
        if len(sessions) != 1:
            self._app.say("code is evaluated by the program of one session")
            return
        (session,) = sessions
        if session.state in ENDED_STATES:
            self._app.say(f"nothing to ask: {session.name} has ended")
            return
        of = f"{session.name}:{rank}" if rank else session.name
        if self._conversation is None or self._conversation.of != of:
            self._conversation = Conversation(of, self._typed_code)

        async def ask(
            code: str, limit_s: float, told: Callable[[EvaluateResponse], None]
        ) -> Evaluated:
            if self._app.client is None:
                raise ClientError("not connected yet")
            self._app.last_command = shell_line(["nsml", "exec", *operands(of, code)])
            return await self._app.client.sessions.evaluate(
                session.id, code, rank=rank, limit_s=limit_s, told=told
            )

        self._app.push_screen(Evaluate(self._conversation, ask))

    def hold(self, sessions: Sequence[Session]) -> None:
        """Pause or continue the program of one session, after confirmation."""
        from nsml.spec.knobs import USUAL_PAUSE_S
        from nsml.v1 import sessions_pb2 as pb
        from nsml.view.program_changes import is_held
        from tui.screens.asking import Confirm

        session = self._changeable(sessions, "paused")
        if session is None:
            return
        goes_on = is_held(session)
        kind = pb.PROGRAM_CHANGE_KIND_CONTINUE if goes_on else pb.PROGRAM_CHANGE_KIND_PAUSE
        command = shell_line(["nsml", "continue" if goes_on else "pause", session.name])
        limit_s = None if goes_on else USUAL_PAUSE_S
        question = (
            f"Let {session.name} go on?"
            if goes_on
            else f"Pause {session.name}? Its processes wait at the same step and keep its GPUs,"
            f" for {duration_text(USUAL_PAUSE_S)} at most."
        )

        def go(is_meant: bool | None) -> None:
            if is_meant:
                self._change(
                    command,
                    lambda client: client.sessions.change_program(
                        session.id, kind, limit_s=limit_s
                    ),
                )

        self._app.push_screen(Confirm(question, command), go)

    def set_knobs(
        self,
        sessions: Sequence[Session],
        settings: Settings,
        *,
        taken: Callable[[], None],
        refused: Callable[[str], bool],
    ) -> bool:
        """Set knobs of the program of one session, in all its processes at the same step.

        Args:
            sessions: exactly one.
            settings: the knobs to set.
            taken: called once the change is made, or waits for its step.
            refused: called with the reason if it fails; False: a note must show it.

        Returns:
            Whether the change is requested.
        """
        from nsml.v1.sessions_pb2 import PROGRAM_CHANGE_KIND_SET

        if (session := self._changeable(sessions, "set")) is None:
            return False
        self._change(
            shell_line(["nsml", "set", session.name, *settings.words]),
            lambda client: client.sessions.change_program(
                session.id, PROGRAM_CHANGE_KIND_SET, values=settings.values, at=settings.at
            ),
            taken=taken,
            refused=refused,
        )
        return True

    def withdraw(self, sessions: Sequence[Session]) -> None:
        """Withdraw the pending change of the program of one session, after confirmation."""
        from nsml.view.program_changes import open_change, what
        from tui.screens.asking import Confirm

        session = self._changeable(sessions, "withdrawn")
        if session is None:
            return
        change = open_change(session)
        if change is None:
            self._app.say(f"nothing to withdraw: no change of {session.name} waits")
            return
        command = shell_line(["nsml", "set", session.name, "--withdraw"])

        def go(is_meant: bool | None) -> None:
            if is_meant:
                self._act(
                    command, {command: lambda client: client.sessions.withdraw_change(session.id)}
                )

        self._app.push_screen(Confirm(f"Withdraw {what(change)}?", command), go)

    def _changeable(self, sessions: Sequence[Session], done: str) -> Session | None:
        """Return the one session whose program can change; else say why not and return None."""
        from nsml.view.program_changes import RUNS

        if self._app.refuses_action(done):
            return None
        if len(sessions) != 1:
            self._app.say("a change is for one session")
            return None
        (session,) = sessions
        if session.state not in RUNS:
            why = "has ended" if session.state in ENDED_STATES else "does not run"
            self._app.say(f"nothing to change: {session.name} {why}")
            return None
        return session

    def _change(
        self,
        command: str,
        ask: Callable[[Client], Awaitable[Session]],
        *,
        taken: Callable[[], None] = lambda: None,
        refused: Callable[[str], bool] | None = None,
    ) -> None:
        """Change running programs, and report the result."""
        from nsml.client.program_changes import until_over
        from nsml.v1 import sessions_pb2 as pb
        from nsml.view.program_changes import line, results, step_text, was_withdrawn_by_user

        def told(change: ProgramChange) -> None:
            taken()
            where = step_text(change) or "the program's next safe point"
            self._app.say(f"$ {command}\nwaiting for {where}")

        async def call(client: Client) -> None:
            change = await until_over(client, await ask(client), told=told)
            if change.phase == pb.PROGRAM_CHANGE_PHASE_WITHDRAWN:
                if was_withdrawn_by_user(change):  # withdrawn on request
                    taken()
                    self._app.say(line(change))
                    return
                raise ClientError(change.reason or "it was withdrawn")
            taken()
            is_divided = change.phase == pb.PROGRAM_CHANGE_PHASE_DIVIDED
            self._app.say("\n".join([line(change), *results(change)]), is_bad=is_divided)

        self._act(command, {command: call}, refused=refused)

    def pull(self, saved: Saved | None) -> None:
        """Fetch a checkpoint or an artifact into the dashboard's working directory, after confirmation."""
        from nsml.content.errors import ContentError
        from nsml.view.saved import is_lost, state_text
        from tui.screens.asking import Confirm

        if self._app.refuses_action("fetched"):
            return
        if self._app.is_web:  # that folder is the server's
            self._app.say("nothing is fetched from here: nsml model pull does it", is_bad=True)
            return
        if saved is None:
            self._app.say("nothing is chosen")
            return
        found = _fetching(saved)
        if found is None:
            on_its_way = "it is on its way to the object store still"
            self._app.say(state_text(saved) if is_lost(saved) else on_its_way)
            return
        words, target, pull = found
        command, size = shell_line(words), size_text(saved.size_bytes)

        async def fetch(client: Client) -> None:
            try:
                await pull(client, show_progress)
            except (ContentError, OSError) as error:
                raise ClientError(str(error)) from error
            finally:
                self.fetching = ""
            self._app.say(f"{target}: {size}")

        def show_progress(seen: Transfer) -> None:
            done = size_text(seen.bytes)
            self.fetching = f"fetching {visible(saved.name)}: {done} of {size}"

        def go(is_meant: bool | None) -> None:
            if is_meant:
                self._act(command, {command: fetch})

        self._app.push_screen(Confirm(f"Fetch {saved.name}, {size}, to ./{target}?", command), go)

    def _act(
        self,
        command: str,
        calls: Mapping[str, Callable[[Client], Awaitable[object]]],
        *,
        refused: Callable[[str], bool] | None = None,
    ) -> None:
        """Run calls, and show the equivalent command line; a failed call shows its own, its key in `calls`.

        With `refused`, a note is shown only if it returns False, since a note would cover the input.
        """

        def is_told(why: str) -> bool:
            return refused is not None and refused(why)

        async def act() -> None:
            client = self._app.client
            if client is None:
                if not is_told(_NOT_CONNECTED):
                    self._app.say(_NOT_CONNECTED, is_bad=True)
                return
            self._app.last_command = command
            if refused is None:
                self._app.say(f"$ {command}")
            for alone, call in calls.items():
                try:
                    await call(client)
                except ClientError as error:
                    if is_told(": ".join(filter(None, (error.message, error.why)))):
                        continue
                    words = [
                        f"not done: $ {alone}",
                        error.message,
                        *filter(None, [error.why]),
                        *map(hint_line, error.advice.splitlines()),
                    ]
                    self._app.say("\n".join(words), is_bad=True)

        in_background(self._app, "act", act, is_alone=False)


def _asked(plan: Plan) -> str:
    text = summary(plan)
    return text[:1].upper() + text[1:]


def _listed(plan: Plan) -> list[str]:
    return listed(plan) if needs_list(plan) else []


def _none_runs(sessions: Sequence[Session], unmark: str) -> str:
    """Say why there is nothing to stop. Several sessions are chosen only if marked, wherever the cursor is."""
    if not sessions:
        return "nothing is chosen"
    if len(sessions) > 1:
        return f"of the {len(sessions)} marked ones none runs: {unmark} unmarks"
    return f"nothing to stop: {sessions[0].name} has ended"


def _fetching(
    saved: Saved,
) -> (
    tuple[list[str], Path, Callable[[Client, Callable[[Transfer], None]], Awaitable[object]]] | None
):
    """Return the command, the target, and the download; None if it is not in the object store."""
    from nsml.client import artifacts, checkpoints
    from nsml.v1.artifacts_pb2 import ARTIFACT_STATE_DURABLE, Artifact
    from nsml.v1.checkpoints_pb2 import CHECKPOINT_STATE_DURABLE
    from nsml.view.artifacts import label

    if isinstance(saved, Artifact):
        if saved.state != ARTIFACT_STATE_DURABLE:
            return None
        words = ["nsml", "artifact", "pull", *operands(saved.session, label(saved), ".")]
        return (
            words,
            artifacts.folder_of(saved, Path()),
            lambda client, progress: artifacts.pull(client, saved, Path.cwd(), progress=progress),
        )
    if saved.state != CHECKPOINT_STATE_DURABLE:
        return None
    words = ["nsml", "model", "pull", *operands(saved.session, saved.name, ".")]
    return (
        words,
        checkpoints.folder_of(saved, Path()),
        lambda client, progress: checkpoints.pull(client, saved, Path.cwd(), progress=progress),
    )
