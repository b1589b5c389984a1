"""What a command line of `run` asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.sessions.repetition import Repetition
    from nsml.v1.sessions_pb2 import CreateSessionRequest, SessionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asks for.

    Attributes:
        request: what the platform is asked, but for the id and the code's digest.
        rehash: whether files are read that look unchanged.
        repetition: what fills it in, where it is made from the record of another session.
    """

    request: CreateSessionRequest = field(repr=False)
    environment_files: tuple[str, ...]
    sends_code: bool
    max_bytes: int | None
    rehash: bool = False
    repetition: Repetition | None = None

    @property
    def spec(self) -> SessionSpec:
        """What is to run, and on what."""
        return self.request.spec
