"""Which sessions the agent keeps apart, by their stage: the same as `SessionSpec` of the control plane does."""

from __future__ import annotations

from nsml.spec.submission_steps import is_step
from nsml.v1 import sessions_pb2 as sessions


def is_confined(spec: sessions.SessionSpec) -> bool:
    """Whether nothing may leave it but its result, whatever else is ordered: no network, and nobody enters it."""
    return is_step(spec)


def is_sealed(spec: sessions.SessionSpec) -> bool:
    """Whether its own user may read nothing that it writes: it sees hidden inputs."""
    return spec.stage == sessions.SESSION_STAGE_PREDICT
