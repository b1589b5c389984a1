"""Images on nodes as rows and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsml.view.tables import Column
from nsml.view.units import memory_text

if TYPE_CHECKING:
    from nsml.v1.nodes_pb2 import NodeImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOnNode:
    """One image of one node."""

    node: str
    image: NodeImage


COLUMNS: tuple[Column[ImageOnNode], ...] = (
    Column(key="name", title="Image", cell=lambda i, _: i.image.name, is_name=True),
    Column(key="node", title="Node", cell=lambda i, _: i.node),
    Column(key="size", title="Size", cell=lambda i, _: memory_text(i.image.bytes)),
)


def record(item: ImageOnNode) -> dict[str, Any]:
    """Everything of it in raw values."""
    return {"name": item.image.name, "node": item.node, "bytes": item.image.bytes}
