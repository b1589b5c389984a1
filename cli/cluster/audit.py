"""audit: log of changes to the platform."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from cli.app import App
from cli.arguments import MOMENT
from cli.group import command, pass_app
from cli.output import write_list
from nsml.view.tables import Column

if TYPE_CHECKING:
    from nsml.v1.audit_pb2 import AuditRow

_MOST = 100_000
_UPLOADS = ("ContentService/PutBlobs",)
"""Every `nsml run` makes some."""


def _when(row: AuditRow, now: float) -> str:
    from nsml.common.units import ago
    from nsml.view.times import seconds_of

    return ago(now - seconds_of(row.at))


def _outcome(row: AuditRow) -> str:
    return f"{row.outcome} ({row.calls:,} calls)" if row.calls > 1 else row.outcome


_COLUMNS: tuple[Column[AuditRow], ...] = (
    Column(key="when", title="When", cell=_when),
    Column(key="actor", title="Who", cell=lambda row, _: row.actor or "-"),
    Column(key="method", title="What", cell=lambda row, _: row.method),
    Column(key="target", title="Of", cell=lambda row, _: row.target or "-"),
    Column(key="outcome", title="Outcome", cell=lambda row, _: _outcome(row)),
)


def _record(row: AuditRow) -> dict[str, Any]:
    from nsml.common.units import moment
    from nsml.view.times import seconds_of

    return {
        "at": moment(seconds_of(row.at)),
        "actor": row.actor,
        "method": row.method,
        "target": row.target,
        "outcome": row.outcome,
        "request_id": row.request_id,
        "token": row.token,
        "calls": row.calls or 1,
    }


@command(
    "audit",
    reads=True,
    examples=[
        "nsml admin audit",
        "nsml admin audit --user kim --since 24h",
        "nsml admin audit --method NodeService/DrainNode -n 1000 -j",
    ],
)
@click.option(
    "--user", "actor", default="", metavar="NAME", help="Only by this user, or 'node NAME'."
)
@click.option("--method", default="", metavar="METHOD", help="Only this method of the API.")
@click.option("--target", default="", metavar="NAME", help="Only changes of this object.")
@click.option(
    "--since",
    type=MOMENT,
    metavar="TIME",
    help="Only since then: 24h, or a local time such as 09:30.",
)
@click.option("--uploads", is_flag=True, help="Include successful uploads of blobs.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, _MOST),
    default=50,
    show_default=True,
    help="At most N rows.",
)
@pass_app
def audit(
    app: App,
    *,
    actor: str,
    method: str,
    target: str,
    since: datetime | timedelta | None,
    uploads: bool,
    count: int,
) -> None:
    """Show who changed what, newest first.

    Refused calls are listed with the reason; no secret is recorded. A row with several calls is a
    burst of the same actor.
    """
    without = () if uploads or method else _UPLOADS
    start = 0.0
    if isinstance(since, timedelta):
        start = time.time() - since.total_seconds()
    elif since is not None:
        start = since.timestamp()
    found = app.call(
        lambda client: client.audit.rows(
            count, actor=actor, method=method, target=target, since=start, without=without
        )
    )
    write_list(
        app, found, columns=_COLUMNS, record=_record, name="target", none="no matching calls"
    )
