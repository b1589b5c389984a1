"""Datasets as rows and records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsml.view.sessions import seconds_of, visibility_word
from nsml.view.tables import Column
from nsml.view.units import ago, moment, size_text

if TYPE_CHECKING:
    from nsml.v1.datasets_pb2 import Dataset


def _modified(dataset: Dataset, now: float) -> str:
    return ago(now - seconds_of(dataset.updated_at))


COLUMNS: tuple[Column[Dataset], ...] = (
    Column(key="name", title="Name", cell=lambda d, _: d.name, is_name=True),
    Column(key="size", title="Size", cell=lambda d, _: size_text(d.size_bytes)),
    Column(key="modified", title="Last Modified", cell=_modified, is_optional=True),
    Column(key="author", title="Author", cell=lambda d, _: d.owner),
    Column(key="message", title="Description", cell=lambda d, _: d.message, shrinks_to=11),
    Column(key="version", title="Version", cell=lambda d, _: str(d.version)),
    Column(key="files", title="Files", cell=lambda d, _: str(d.file_count), is_wide=True),
    Column(
        key="visibility",
        title="Visibility",
        cell=lambda d, _: visibility_word(d.visibility),
        is_wide=True,
    ),
    Column(
        key="updated_at",
        title="Modified at",
        cell=lambda d, _: moment(seconds_of(d.updated_at)),
        is_wide=True,
    ),
    Column(key="digest", title="Digest", cell=lambda d, _: d.digest, is_wide=True),
)


def record(dataset: Dataset) -> dict[str, Any]:
    """Everything of a dataset in raw values."""
    return {
        "name": dataset.name,
        "owner": dataset.owner,
        "team": dataset.team or None,
        "visibility": visibility_word(dataset.visibility),
        "version": dataset.version,
        "digest": dataset.digest,
        "size_bytes": dataset.size_bytes,
        "file_count": dataset.file_count,
        "message": dataset.message,
        "updated_at": moment(seconds_of(dataset.updated_at)),
    }
