"""The list of sessions: its output, and a fast path for a plain `nsml ps` on this machine.

`nsml ps` is the most frequent request of people and their prompts, and importing click, asyncio and gRPC takes
longer than the rest of it. So `ps` without a flag, for a control plane behind a Unix socket,
works without them. Anything unusual takes the normal path, which handles every
flag and error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.app import Format
from nsml.client.contexts import ContextError
from nsml.client.local_rpc import PATIENCE_S, SHORT_PATIENCE_S, ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.app import App
    from cli.sessions.list_options import Choosing
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session
    from nsml.view.tables import Column

PAGE = 1000
"""The most sessions in one response."""
_MOST_SIZED, _READS_AT_ONCE = 200, 16
"""Most sessions whose checkpoints are listed, a call for each; and how many at once."""


def show(
    app: App,
    found: Sequence[Session],
    *,
    include_ended: bool,
    choosing: Choosing | None = None,
) -> None:
    """Write sessions in the chosen format, or report that there are none."""
    from cli.output import write_list
    from nsml.common.shell import shell_line
    from nsml.v1 import sessions_pb2
    from nsml.view import sessions as view

    nsml = _nsml_columns(app, found) if app.is_nsml_style else ()
    words = () if choosing is None else choosing.texts
    ended = f"no live sessions · ended ones: {shell_line(['nsml', 'ps', '-a', *words])}"
    none = "no sessions" if include_ended else ended
    write_list(
        app,
        found,
        columns=view.columns_for(found, None if choosing is None else choosing.columns(app)),
        record=view.record if choosing is None else choosing.record(app),
        none=none,
        blank=sessions_pb2.Session(),
        nsml=nsml,
    )


def _nsml_columns(app: App, found: Sequence[Session]) -> Sequence[Column[Session]]:
    """Return the columns of NSML's `ps`, which has the size of all checkpoints of a session."""
    from nsml.client.errors import ClientError
    from nsml.common.concurrency import each_at_once
    from nsml.view import nsml_style
    from nsml.view.checkpoints import total_bytes

    having = [one.id for one in found if one.checkpoint_count][:_MOST_SIZED]
    if not having or app.format is not Format.TABLE:
        return nsml_style.sessions({})

    async def sizes(client: Client) -> list[int | None]:
        async def size(session: str) -> int | None:
            try:
                return total_bytes(await client.checkpoints.every(session))
            except ClientError:
                return None  # removed meanwhile, or hidden: a submission's

        return await each_at_once(having, size, most=_READS_AT_ONCE)

    read = zip(having, app.call(sizes), strict=True)
    return nsml_style.sessions({session: size for session, size in read if size is not None})


def is_cut(app: App, choosing: Choosing | None = None) -> bool:
    """Return whether long commands are cut in the list, so that only their beginnings need be fetched."""
    looks_closer = choosing is not None and choosing.looks_closer
    is_table = app.format is Format.TABLE and app.room is not None
    return is_table and not app.flags.fields and not looks_closer and not app.is_nsml_style


def answer_plainly(arguments: Sequence[str], app: App) -> bool:
    """Answer a plain `nsml ps`; False, with nothing shown, if the fast path does not apply."""
    if list(arguments) != ["ps"]:
        return False
    found = _fetch(app)
    if found is None:
        return False
    show(app, found, include_ended=False)
    return True


def _fetch(app: App) -> Sequence[Session] | None:
    """Fetch all live sessions on the fast path; None if it fails.

    Only the first control plane is asked here, and of several not for long: the normal path asks all.
    """
    try:
        context = app.context
        token = context.token()
    except ContextError:
        return None
    if not context.server.startswith("unix:"):
        return None

    from nsml.v1 import sessions_pb2 as pb

    request = pb.ListSessionsRequest(
        filter=pb.SessionFilter(without_submission_steps=not app.is_nsml_style),
        page_size=PAGE,
        short=is_cut(app),
    )
    path = context.server.removeprefix("unix:")
    asked = request.SerializeToString()
    patience_s = SHORT_PATIENCE_S if context.others else PATIENCE_S
    answer = ask(path, "SessionService/ListSessions", asked, token=token, patience_s=patience_s)
    if answer is None:
        return None
    page = pb.ListSessionsResponse.FromString(answer)
    return None if page.next_cursor else _shown(app, page.sessions)


def _shown(app: App, found: Sequence[Session]) -> Sequence[Session]:
    from nsml.view.sessions import is_listed

    return [one for one in found if is_listed(one, has_predictions=app.is_nsml_style)]
