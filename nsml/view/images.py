"""Images on nodes as rows and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsml.common.text import visible
from nsml.common.units import size_text
from nsml.v1 import resources_pb2 as pb
from nsml.view.tables import Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsml.v1.nodes_pb2 import NodeImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOnNode:
    """One image of one node."""

    node: str
    image: NodeImage


COLUMNS: tuple[Column[ImageOnNode], ...] = (
    Column(key="name", title="Image", cell=lambda i, _: i.image.name, is_name=True),
    Column(key="node", title="Node", cell=lambda i, _: i.node),
    Column(key="size", title="Size", cell=lambda i, _: size_text(i.image.bytes)),
)


def record(item: ImageOnNode) -> dict[str, Any]:
    """Return all its fields in raw values."""
    return {"name": item.image.name, "node": item.node, "bytes": item.image.bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAnswer:
    """The result of a pull or a removal on one node; `why` the request failed, "" if it was sent.

    `is_skipped`: the node was not named, and accepts none of the user's sessions.
    """

    node: str
    status: pb.ImageStatus
    why: str = ""
    is_skipped: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the node has, or does not have, the image, as requested."""
        return not self.why and self.status.state in _DONE


_DONE: Final = frozenset({pb.IMAGE_STATE_PRESENT, pb.IMAGE_STATE_REMOVED, pb.IMAGE_STATE_ABSENT})
_WORDS: Final[Mapping[pb.ImageState, str]] = {
    pb.IMAGE_STATE_PULLING: "pulling",
    pb.IMAGE_STATE_PRESENT: "present",
    pb.IMAGE_STATE_FAILED: "failed",
    pb.IMAGE_STATE_REMOVED: "removed",
    pb.IMAGE_STATE_ABSENT: "absent",
    pb.IMAGE_STATE_KEPT: "kept",
}


def answer_word(answer: ImageAnswer) -> str:
    """Return the result in one word: `pulled`, `present`, `skipped`, `failed`, `removed`, `absent`, `kept`."""
    if answer.why:
        return "skipped" if answer.is_skipped else "failed"
    if answer.status.state == pb.IMAGE_STATE_PRESENT and answer.status.fetched:
        return "pulled"
    return _WORDS.get(answer.status.state, "unknown")


def _size(answer: ImageAnswer) -> str:
    return size_text(answer.status.bytes) if answer.status.bytes else ""


ANSWER_COLUMNS: tuple[Column[ImageAnswer], ...] = (
    Column(key="node", title="Node", cell=lambda i, _: i.node, is_name=True),
    Column(key="result", title="Result", cell=lambda i, _: answer_word(i)),
    Column(key="size", title="Size", cell=lambda i, _: _size(i)),
    Column(key="why", title="Why", cell=lambda i, _: visible(i.why or i.status.words)),
)


def answer_record(answer: ImageAnswer) -> dict[str, Any]:
    """Return all its fields in raw values."""
    return {
        "node": answer.node,
        "image": answer.status.image,
        "result": answer_word(answer),
        "bytes": answer.status.bytes,
        "why": answer.why or answer.status.words,
    }
