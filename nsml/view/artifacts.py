"""Artifacts as rows and records (`nsml artifact ls`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsml.common.units import (
    ago,
    counted,
    local_moment,
    moment,
    number_text,
    size_text,
    whole,
)
from nsml.v1 import artifacts_pb2 as pb
from nsml.view.enums import enum_word
from nsml.view.tables import Column
from nsml.view.times import seconds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.content.manifest import Entry
    from nsml.v1.artifacts_pb2 import Artifact

_TITLE_CELLS = 9
_MOST_FILES = 20
"""Most files of one version shown to people."""


def state_word(artifact: Artifact) -> str:
    """`saved` on its node, `durable` in the object store, `lost`."""
    return enum_word(pb.ArtifactState, artifact.state, "ARTIFACT_STATE_")


def is_lost(artifact: Artifact) -> bool:
    """Return whether all copies are lost."""
    return artifact.state == pb.ARTIFACT_STATE_LOST


def state_text(artifact: Artifact) -> str:
    """Return the state's word, with the reason of a loss, or a note."""
    word, more = state_word(artifact), artifact.why_lost or artifact.note
    return ": ".join(filter(None, (word, expiry_text(artifact), more)))


def expiry_text(artifact: Artifact) -> str:
    """Return its expiry: `until 2026-12-01 10:00`; "" if it is kept as long as its session."""
    if not artifact.HasField("expires_at"):
        return ""
    return f"until {local_moment(seconds_of(artifact.expires_at))[:16].replace('T', ' ')}"


def label(artifact: Artifact) -> str:
    """`NAME@VERSION`; without a version the name."""
    return f"{artifact.name}@{artifact.version}" if artifact.version else artifact.name


def _step(artifact: Artifact, _now: float) -> str:
    return number_text(artifact.step) if artifact.HasField("step") else "-"


COLUMNS: tuple[Column[Artifact], ...] = (
    Column(key="artifact", title="Artifact", cell=lambda a, _: label(a), is_name=True),
    Column(key="step", title="Step", cell=_step),
    Column(key="saved", title="Saved", cell=lambda a, now: ago(now - seconds_of(a.saved_at))),
    Column(key="size", title="Size", cell=lambda a, _: size_text(a.size_bytes)),
    Column(key="files", title="Files", cell=lambda a, _: str(a.file_count)),
    Column(
        key="state",
        title="State",
        cell=lambda a, _: state_text(a),
        is_wide=True,
        is_worth=lambda a: (
            a.state != pb.ARTIFACT_STATE_DURABLE or bool(a.note) or a.HasField("expires_at")
        ),
        shrinks_to=12,
        colour=lambda a: "red" if is_lost(a) else "",
    ),
    Column(
        key="saved_at",
        title="Saved at",
        cell=lambda a, _: local_moment(seconds_of(a.saved_at)),
        is_wide=True,
    ),
    Column(key="digest", title="Digest", cell=lambda a, _: a.digest or "-", is_wide=True),
)


def record(artifact: Artifact) -> dict[str, Any]:
    """Return all fields of a version in raw values."""
    return {
        "name": artifact.name,
        "version": artifact.version or None,
        "session": artifact.session,
        "state": state_word(artifact).upper(),
        "why_lost": artifact.why_lost or None,
        "note": artifact.note or None,
        "expires_at": (
            moment(seconds_of(artifact.expires_at)) if artifact.HasField("expires_at") else None
        ),
        "digest": artifact.digest or None,
        "size_bytes": artifact.size_bytes,
        "file_count": artifact.file_count,
        "saved_at": moment(seconds_of(artifact.saved_at)),
        "step": whole(artifact.step) if artifact.HasField("step") else None,
        "attempt": artifact.attempt,
        "rank": artifact.rank,
        "node": artifact.node or None,
    }


def info_record(found: Artifact, files: Sequence[Entry]) -> dict[str, Any]:
    """Return the same with its files (`nsml artifact info`)."""
    return {**record(found), "files": [{"path": one.path, "size_bytes": one.size} for one in files]}


def info_lines(found: Artifact, files: Sequence[Entry], now: float) -> list[str]:
    """Return the lines on one version for people."""
    saved_at = seconds_of(found.saved_at)
    rank = f", rank {found.rank}" if found.rank else ""
    rows = [
        (
            "saved",
            f"{local_moment(saved_at)} ({ago(now - saved_at)}), attempt {found.attempt}{rank}",
        ),
        ("step", _step(found, now)),
        ("state", state_text(found)),
        ("node", found.node),
        ("digest", found.digest or "-"),
        ("size", f"{size_text(found.size_bytes)} in {counted(found.file_count, 'file')}"),
    ]
    shown = [f"  {size_text(one.size):>10}  {one.path}" for one in files[:_MOST_FILES]]
    if len(files) > _MOST_FILES:
        shown.append(f"  and {counted(len(files) - _MOST_FILES, 'file')} more: -j has all")
    return [
        f"artifact {label(found)} of {found.session}",
        *(f"  {title:{_TITLE_CELLS}}{text}" for title, text in rows if text),
        *shown,
    ]
