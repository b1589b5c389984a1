"""Knobs of running programs, and waiting for their changes."""

from __future__ import annotations

import ast
import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from nsml.client.errors import ClientError
from nsml.view.program_changes import OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import ProgramChange, Session

_LOOK_EVERY_S: Final = (0.05, 0.5)
"""Polling interval of a change: at first, and at most."""
_PATIENCE_S: Final = 3.0
"""Waits longer than this are reported."""
_KNOBS: Final = "import json, nsml\njson.dumps(nsml.knobs())"
_WAIT_S: Final = 5.0
"""How long the program may take to reach a safe point."""


async def read_knobs(client: Client, session_id: str) -> Mapping[str, Mapping[str, Any]]:
    """Read the knobs of the program of rank 0, by name: value, default, min, max, choices.

    The program evaluates this at a safe point. Raises ClientError if it does not.
    """
    found = await client.sessions.evaluate(session_id, _KNOBS, wait_s=_WAIT_S)
    try:
        knobs = json.loads(ast.literal_eval(found.value))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        knobs = None
    if not isinstance(knobs, dict):
        last = found.error.strip().rpartition("\n")[2]
        raise ClientError("the program does not list its knobs", why=last)
    return {str(name): facts for name, facts in knobs.items() if isinstance(facts, dict)}


async def until_over(
    client: Client, session: Session, *, told: Callable[[ProgramChange], None] = lambda _: None
) -> ProgramChange:
    """Wait for the end of a session's last change and return it; `told` is called if that takes long.

    Raises ClientError, also if the session no longer has the change.
    """
    change, (pause_s, longest_s) = session.changes[-1], _LOOK_EVERY_S
    loop = asyncio.get_running_loop()
    tell_at = loop.time() + _PATIENCE_S
    while change.phase in OPEN:
        if loop.time() >= tell_at:
            told(change)
            tell_at = float("inf")
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, longest_s)
        seen = await client.sessions.get(session.id)
        number = change.number
        change = next((one for one in seen.changes if one.number == number), None) or _gone(seen)
    return change


def _gone(session: Session) -> ProgramChange:
    raise ClientError(f"{session.name} keeps nothing of this change any more")
