"""The request of a `run` command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.sessions.repetition import Repetition
    from nsml.v1.sessions_pb2 import CreateSessionRequest, SessionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a command line.

    Attributes:
        request: to the platform, without the id and the code's digest.
        rehash: read files even if they look unchanged.
        is_verbose: list the files that are sent.
        repetition: fills the request, if it repeats another session.
    """

    request: CreateSessionRequest = field(repr=False)
    environment_files: tuple[str, ...]
    sends_code: bool
    max_bytes: int | None
    rehash: bool = False
    is_verbose: bool = False
    repetition: Repetition | None = None

    @property
    def spec(self) -> SessionSpec:
        """The program and its resources."""
        return self.request.spec
