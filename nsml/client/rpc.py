"""One door to the wire: every call gets the token, a deadline, and errors by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from nsml.client.errors import TooLarge, translate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable

    from google.protobuf.message import Message

MESSAGE_LIMIT = 4 << 20
"""Bytes; gRPC's default, which the control plane keeps."""
DEADLINE_S = 30.0
"""For one answer, where the caller names no other."""

R = TypeVar("R", bound="Message")


class Channel(Protocol):
    """The part of grpc.aio.Channel that is used; the simulation brings its own."""

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


class Rpc:
    """Calls of package nsml.v1 over one channel.

    `method` is "Service/Method". All methods raise `nsml.client.errors.ClientError`.
    """

    def __init__(
        self, channel: Channel, *, token: str | None = None, deadline_s: float = DEADLINE_S
    ) -> None:
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.deadline_s = deadline_s

    async def unary(self, method: str, request: Message, response: type[R]) -> R:
        """Send one request and return its response."""
        size = request.ByteSize()
        if size > MESSAGE_LIMIT:
            raise TooLarge(
                f"the request has {size:,} bytes, over the limit of {MESSAGE_LIMIT:,}",
                reason="TOO_LARGE",
                why="a request carries names and numbers; bytes travel as files",
                advice="shorten the arguments, or pass a file inside the folder or a dataset",
            )
        call = self._channel.unary_unary(
            f"/nsml.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            answer: R = await call(request, timeout=self.deadline_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise translate(error) from error
        return answer

    async def stream(
        self, method: str, request: Message, response: type[R]
    ) -> AsyncGenerator[R, None]:
        """Send one request and yield its responses; closing the iterator cancels the call."""
        opened = self._channel.unary_stream(
            f"/nsml.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        call = opened(request, metadata=self._metadata)
        try:
            async for answer in call:
                yield answer
        except grpc.RpcError as error:
            raise translate(error) from error
        finally:
            call.cancel()

    async def upload(self, method: str, requests: AsyncIterable[Message], response: type[R]) -> R:
        """Send many requests, with no deadline of their own, and return the one response."""
        opened = self._channel.stream_unary(
            f"/nsml.v1.{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )
        try:
            answer: R = await opened(requests, metadata=self._metadata)
        except grpc.RpcError as error:
            raise translate(error) from error
        return answer

    def duplex(self, method: str, request: type[Message], response: type[Message]) -> Any:
        """A stream both ways, to be used by `read` and `write`, which raise gRPC's own errors."""
        opened = self._channel.stream_stream(
            f"/nsml.v1.{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return opened(metadata=self._metadata)
