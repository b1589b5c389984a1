"""Media of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.content.feature import content
from controlplane.core.feature import Feature
from controlplane.media.media import Shown
from controlplane.media.service import MediaServicer
from nsml.v1 import media_pb2_grpc

if TYPE_CHECKING:
    from controlplane.core.core import Core


def wire(core: Core) -> Feature:
    """Offer MediaService."""
    shown = Shown(history=core.history, content=core.shared(content), rights=core.rights)
    servicer = MediaServicer(shown, core.references, core.shared(content), core.reading)
    return Feature(services=((media_pb2_grpc.add_MediaServiceServicer_to_server, servicer),))
