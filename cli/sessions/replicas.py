"""SESSION:RANK: references to replicas."""

from __future__ import annotations

from typing import Final

import click

from cli.arguments import WholeRange

RANK: Final = WholeRange(0)


def replica_of(reference: str, rank: int | None = None) -> tuple[str, int]:
    """Return the session and the replica's rank; `rank` is the option's value."""
    session, colon, written = reference.rpartition(":")
    if not (colon and session and written.isdecimal()):
        return reference, rank or 0
    number = RANK.convert(written, None, click.get_current_context())
    if rank not in {None, number}:
        raise click.UsageError(f"{reference} and --rank {rank} name two replicas")
    return session, number
