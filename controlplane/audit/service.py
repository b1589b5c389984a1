"""AuditService: the audit trail, for administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.access.current import require_user
from controlplane.codec import encoder
from controlplane.core.paging import page_size
from controlplane.domain.errors import InvalidRequest
from controlplane.history.values import AuditQuery, AuditRow
from controlplane.wire.chunking import beside
from controlplane.wire.errors import Context, answering
from controlplane.wire.times import seconds_of
from nsml.v1 import audit_pb2 as pb
from nsml.v1 import audit_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controlplane.access.auditing import Audit
    from controlplane.history.sql.ledger import SqlLedger
    from controlplane.limits.concurrency_limits import Turns

MOST_WITHOUT: Final = 16
PAGE_BYTES: Final = 1 << 20
_LONGEST_CURSOR: Final = 18


class AuditServicer(audit_pb2_grpc.AuditServiceServicer):
    """Lists rows, newest first."""

    def __init__(self, audit: Audit, ledger: SqlLedger, reading: Turns) -> None:
        self._reading = reading
        self._audit = audit
        self._ledger = ledger

    @answering
    async def ListAuditRows(  # noqa: N802 - named by the contract
        self, request: pb.ListAuditRowsRequest, _: Context
    ) -> pb.ListAuditRowsResponse:
        """Return a page."""
        if len(request.without) > MOST_WITHOUT:
            raise InvalidRequest(f"at most {MOST_WITHOUT} methods are left out")
        query = AuditQuery(
            actor=request.actor,
            method=request.method,
            target=request.target,
            since=seconds_of(request.since) if request.HasField("since") else 0.0,
            without=tuple(request.without),
        )
        before = _number(request.cursor) if request.cursor else None
        size = page_size(request.page_size)
        await self._audit.flush()
        async with self._reading.turn(require_user().user.name):
            found = await self._ledger.newest_audited(query, before=before, limit=size + 1)
            return await beside(lambda: _page(found, size), of=len(found))


def _page(found: Sequence[tuple[int, AuditRow]], size: int) -> pb.ListAuditRowsResponse:
    answer, page_bytes = pb.ListAuditRowsResponse(), 0
    for number, row in found[:size]:
        message = _message(row)
        page_bytes += message.ByteSize()
        if answer.rows and page_bytes > PAGE_BYTES:
            break
        answer.rows.append(message)
        last = number
    if len(answer.rows) < len(found):
        answer.next_cursor = str(last)
    return answer


def _number(cursor: str) -> int:
    if cursor.isascii() and cursor.isdigit() and len(cursor) <= _LONGEST_CURSOR:
        return int(cursor)
    raise InvalidRequest("the cursor is not one of this platform's")


_message: Final = encoder(AuditRow, pb.AuditRow).to_message
