"""What a command line of `run` asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.sessions.rerun import Rerun
    from nsml.v1.sessions_pb2 import CreateSessionRequest, SessionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asks for.

    Attributes:
        request: what the platform is asked, but for the id and the code's digest.
        rerun: what fills it in, where a session is run again.
    """

    request: CreateSessionRequest = field(repr=False)
    environment_files: tuple[str, ...]
    sends_code: bool
    max_bytes: int | None
    rerun: Rerun | None = None

    @property
    def spec(self) -> SessionSpec:
        """What is to run, and on what."""
        return self.request.spec
