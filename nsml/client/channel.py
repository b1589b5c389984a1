"""Interface of a gRPC channel."""

from __future__ import annotations

from typing import Any, Protocol


class Channel(Protocol):
    """The part of grpc.aio.Channel used by the client; the simulation has its own."""

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """A callable for one request and one response."""
        ...

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """A callable for one request and many responses."""
        ...

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """A callable for many requests and one response."""
        ...

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """A callable for many requests and many responses."""
        ...
