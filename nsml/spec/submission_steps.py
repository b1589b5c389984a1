"""Which sessions are steps of submissions. Rules for clients and servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsml.v1 import sessions_pb2

if TYPE_CHECKING:
    from nsml.v1.sessions_pb2 import SessionSpec

_STEPS: Final = frozenset(
    {
        sessions_pb2.SESSION_STAGE_PREDICT,
        sessions_pb2.SESSION_STAGE_PREDICT_TEST,
        sessions_pb2.SESSION_STAGE_EVALUATE,
    }
)


def is_step(spec: SessionSpec) -> bool:
    """Return whether a session predicts or evaluates for a submission: the platform started it, not a user."""
    return spec.stage in _STEPS
