"""Checkpoints as rows and records (`nsml model ls`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nsml.common.units import (
    ago,
    counted,
    duration_text,
    exact_number_text,
    local_moment,
    moment,
    number_text,
    size_text,
    whole,
)
from nsml.spec.checkpoint_retention import KEEP_ALL, retention_of
from nsml.v1 import checkpoints_pb2 as pb
from nsml.view.enums import enum_word
from nsml.view.sessions import summary_of, summary_text
from nsml.view.tables import Column
from nsml.view.times import moment_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsml.content.manifest import Entry
    from nsml.v1.checkpoints_pb2 import Checkpoint, ListCheckpointsResponse


_TITLE_CELLS = 10
_MOST_FILES = 20
"""Most files of one checkpoint shown to people."""


def _summary(checkpoint: Checkpoint, _now: float) -> str:
    return summary_text(checkpoint)


def _summary_within(checkpoint: Checkpoint, _now: float, cells: int) -> str:
    return summary_text(checkpoint, cells)


def _exact_summary(checkpoint: Checkpoint, _now: float) -> str:
    values = summary_of(checkpoint).items()
    return ", ".join(f"{key}={_exact(value)}" for key, value in values if key != "step")


def _step(checkpoint: Checkpoint, _now: float) -> str:
    """Return the step of the last report before it, omitted in summaries."""
    step = checkpoint.step if checkpoint.HasField("step") else summary_of(checkpoint).get("step")
    return number_text(step) if isinstance(step, int | float) else "-"


def _exact(value: Any) -> str:
    if isinstance(value, float):
        return exact_number_text(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def state_word(checkpoint: Checkpoint) -> str:
    """`saved` on its node, `durable` in the object store, `lost`."""
    return enum_word(pb.CheckpointState, checkpoint.state, "CHECKPOINT_STATE_")


def is_lost(checkpoint: Checkpoint) -> bool:
    """Return whether all copies are lost."""
    return checkpoint.state == pb.CHECKPOINT_STATE_LOST


def has_earlier(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint that is not durable replaced a durable one of its name, which is still readable."""
    return bool(checkpoint.digest) and checkpoint.state != pb.CHECKPOINT_STATE_DURABLE


def state_text(checkpoint: Checkpoint) -> str:
    """Return the state's word, with the reason of a loss: `lost: weights.pt was changed after it was saved`."""
    word = state_word(checkpoint)
    return f"{word}: {checkpoint.why_lost}" if checkpoint.why_lost else word


def total_bytes(checkpoints: Iterable[Checkpoint]) -> int:
    """Return the total size, without lost ones."""
    return sum(one.size_bytes for one in checkpoints if not is_lost(one))


COLUMNS: tuple[Column[Checkpoint], ...] = (
    Column(key="name", title="Checkpoint", cell=lambda c, _: c.name, is_name=True),
    Column(key="step", title="Step", cell=_step),
    Column(
        key="modified",
        title="Last Modified",
        cell=lambda c, now: ago(now - seconds_of(c.saved_at)),
    ),
    Column(key="elapsed", title="Since last", cell=lambda c, _: duration_text(c.elapsed_s)),
    Column(
        key="tags",
        title="Tags",
        cell=lambda c, _: " ".join(c.tags),
        is_worth=lambda c: bool(c.tags),
        is_wide=True,
    ),
    # -o wide has all digits instead.
    Column(
        key="summary",
        title="Summary",
        cell=_summary,
        tells=lambda _: False,
        shrinks_to=20,
        within=_summary_within,
    ),
    Column(key="exact_summary", title="Summary", cell=_exact_summary, is_wide=True, shrinks_to=20),
    Column(key="size", title="Size", cell=lambda c, _: size_text(c.size_bytes)),
    Column(
        key="state",
        title="State",
        cell=lambda c, _: state_text(c),
        is_wide=True,
        is_worth=is_lost,
        shrinks_to=12,
        colour=lambda c: "red" if is_lost(c) else "",
    ),
    Column(key="files", title="Files", cell=lambda c, _: str(c.file_count), is_wide=True),
    Column(
        key="saved_at",
        title="Saved at",
        cell=lambda c, _: local_moment(seconds_of(c.saved_at)),
        is_wide=True,
    ),
    Column(key="digest", title="Digest", cell=lambda c, _: c.digest or "-", is_wide=True),
)


def record(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return all fields of a checkpoint in raw values."""
    return {
        "name": checkpoint.name,
        "session": checkpoint.session,
        "state": state_word(checkpoint).upper(),
        "why_lost": checkpoint.why_lost or None,
        "digest": checkpoint.digest or None,
        "content_saved_at": moment_of(checkpoint, "content_saved_at"),
        "size_bytes": checkpoint.size_bytes,
        "file_count": checkpoint.file_count,
        "saved_at": moment(seconds_of(checkpoint.saved_at)),
        "elapsed_s": checkpoint.elapsed_s,
        "step": whole(checkpoint.step) if checkpoint.HasField("step") else None,
        "summary": summary_of(checkpoint),
        "tags": list(checkpoint.tags),
    }


def info_record(found: Checkpoint, files: Sequence[Entry]) -> dict[str, Any]:
    """Return the same with its files and its users (`nsml model info`)."""
    return {
        **record(found),
        "node": found.node or None,
        "attempt": found.attempt or None,
        "files": [{"path": one.path, "size_bytes": one.size} for one in files],
        "used_by": [
            {"session": one.session, "used_at": moment(seconds_of(one.used_at))}
            for one in found.users
        ],
        "hidden_users": found.hidden_users,
    }


def info_lines(found: Checkpoint, files: Sequence[Entry], now: float) -> list[str]:
    """Return the lines on one checkpoint for people."""
    saved = f"{local_moment(seconds_of(found.saved_at))} ({ago(now - seconds_of(found.saved_at))})"
    others = [f"{found.hidden_users} of others"] if found.hidden_users else []
    rows = [
        ("saved", saved + (f", attempt {found.attempt}" if found.attempt else "")),
        ("step", _step(found, now)),
        ("metrics", _exact_summary(found, now) or "-"),
        ("state", state_text(found)),
        ("node", found.node),
        ("digest", found.digest or "-"),
        ("tags", " ".join(found.tags)),
        ("used by", ", ".join([*(one.session for one in found.users), *others])),
        ("size", f"{size_text(found.size_bytes)} in {counted(found.file_count, 'file')}"),
    ]
    shown = [f"  {size_text(one.size):>10}  {one.path}" for one in files[:_MOST_FILES]]
    if len(files) > _MOST_FILES:
        shown.append(f"  and {counted(len(files) - _MOST_FILES, 'file')} more: -j has all")
    return [
        f"checkpoint {found.name} of {found.session}",
        *(f"  {title:{_TITLE_CELLS}}{text}" for title, text in rows if text),
        *shown,
    ]


def retention_lines(listing: ListCheckpointsResponse) -> list[str]:
    """Describe what retention removed, and why it removes nothing."""
    told = []
    if listing.removed_count:
        count = counted(listing.removed_count, "checkpoint")
        told.append(
            f"{count} ({size_text(listing.removed_bytes)}) removed; retention: {listing.keep or 'all'}"
        )
    try:
        rules = retention_of(listing.keep or KEEP_ALL)
    except ValueError:  # of a newer platform
        rules = None
    own = [one for one in listing.checkpoints if one.attempt and not is_lost(one)]
    unknown = [
        rule.metric
        for rule in (rules.best if rules and own else ())
        if not any(rule.metric in one.summary for one in own)
    ]
    if unknown:
        told.append(f"none removed: no checkpoint has {unknown[0]} in its summary")
    return told
