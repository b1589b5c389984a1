"""The layer over gRPC: every call gets the token, a deadline, and named errors."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import grpc

from nsml.client.endpoints import Endpoints, asked_of_any, asked_once
from nsml.client.errors import StillWorking, TooLarge, Unavailable, translate
from nsml.client.idempotency import is_idempotent, only_reads
from nsml.spec.metadata import REVISION, SSH_KEY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Callable

    from google.protobuf.message import Message

    from nsml.client.channel import Channel
    from nsml.client.errors import ClientError

MESSAGE_LIMIT = 4 << 20
"""Bytes; gRPC's default, also of the control plane."""
DEADLINE_S = 30.0
"""Default timeout of one response."""


class Encoded(Protocol):
    """A message of protobuf, or one that encodes itself."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - named by protobuf
        """Encode the message."""
        ...

    @classmethod
    def FromString(cls, message: bytes, /) -> Self:  # noqa: N802 - named by protobuf
        """Decode a message."""
        ...


R = TypeVar("R", bound=Encoded)


def pinging(*, every_s: float, within_s: float) -> tuple[tuple[str, int], ...]:
    """Return options of a channel that breaks if a ping is not answered in time."""
    return (
        ("grpc.keepalive_time_ms", round(every_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(within_s * 1000)),
        # This one detects a connection that accepts data but never answers; its default
        # is a minute.
        ("grpc.http2.ping_timeout_ms", round(within_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
    )


HASTY = pinging(every_s=0.6, within_s=1.2)
"""For platforms with several control planes: one that hangs is left within two seconds, about as long as
its leader lease."""


class Patience(Protocol):
    """Waits before retries of a refused call."""

    async def wait(self, error: Unavailable) -> None:
        """Wait before the next try; raises `error` itself if there is none."""
        ...

    def close(self) -> None:
        """End it: no more retries."""
        ...


class Rpc:
    """Calls of package nsml.v1, to the control plane that `nsml.client.endpoints` chooses.

    `method` is "Service/Method". All methods raise `nsml.client.errors.ClientError`.

    `ssh_key`: from jump hosts, the key of the user they call for (`nsml.spec.metadata`).

    Attributes:
        seen: the newest store revision of any response: no later response is older.
        patience: creates the Patience of a call that only reads, `is_retried` or gets StillWorking; None: no retries.
    """

    def __init__(
        self,
        channel: Channel | Endpoints,
        *,
        token: str | None = None,
        deadline_s: float = DEADLINE_S,
        seen: int = 0,
        ssh_key: str = "",
    ) -> None:
        self.ways = channel if isinstance(channel, Endpoints) else Endpoints.alone(channel)
        shown = {"authorization": f"Bearer {token}" if token else "", SSH_KEY: ssh_key}
        self._authorization = tuple((name, word) for name, word in shown.items() if word)
        self.deadline_s = deadline_s
        self.seen = seen
        self.patience: Callable[[], Patience] | None = None

    def has_seen(self, revision: int) -> None:
        """Record the store revision of a response."""
        self.seen = max(self.seen, revision)

    async def unary(
        self, method: str, request: Message, response: type[R], *, is_retried: bool = False
    ) -> R:
        """Send one request and return its response.

        `is_retried`: retry it like a call that only reads, since a repetition changes nothing more.
        """
        size = request.ByteSize()
        if size > MESSAGE_LIMIT:
            raise TooLarge(
                f"the request has {size:,} bytes, over the limit of {MESSAGE_LIMIT:,}",
                reason="TOO_LARGE",
                why="a request carries names and numbers; bytes travel as files",
                advice="shorten the arguments, or pass a file inside the folder or a dataset",
            )
        if self.patience is None:
            return await self._tried(method, request, response)
        patience = self.patience()
        try:
            while True:
                try:
                    return await self._tried(method, request, response)
                except StillWorking as error:
                    await patience.wait(error)
                except Unavailable as error:
                    if not is_retried and not only_reads(method, type(request)):
                        raise
                    await patience.wait(error)
        finally:
            patience.close()

    async def _tried(self, method: str, request: Message, response: type[R]) -> R:
        ask = partial(self._ask, method, request, response)
        if len(self.ways.addresses) == 1:
            return await ask(self.ways.now, self.deadline_s)
        asked = asked_of_any if is_idempotent(method, type(request)) else asked_once
        return await asked(self.ways, ask, self.deadline_s)

    async def _ask(
        self, method: str, request: Message, response: type[R], address: str, within_s: float
    ) -> R:
        """Call one control plane."""
        asked = self.ways.channel(address).unary_unary(
            f"/nsml.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        call = asked(request, timeout=within_s, metadata=self._metadata_for(address))
        try:
            answer: R = await call
            trailing = await call.trailing_metadata()
        except grpc.RpcError as error:
            raise translate(error) from error
        self.has_seen(_revision_in(trailing))
        return answer

    def _metadata_for(self, address: str) -> tuple[tuple[str, str], ...]:
        if self._authorization:
            self.ways.check(address)
        return self._metadata()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        if not self.seen:
            return self._authorization
        return (*self._authorization, (REVISION, str(self.seen)))

    async def stream(
        self, method: str, request: Message, response: type[R]
    ) -> AsyncGenerator[R, None]:
        """Send one request and yield its responses; closing the iterator cancels the call.

        After Unavailable the next call goes elsewhere.
        """
        address = self.ways.now
        opened = self.ways.channel(address).unary_stream(
            f"/nsml.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        call = opened(request, metadata=self._metadata_for(address))
        self.ways.warm()
        try:
            async for answer in call:
                yield answer
        except grpc.RpcError as error:
            raise self._failed(address, error) from error
        finally:
            call.cancel()

    def _failed(self, address: str, error: grpc.RpcError) -> ClientError:
        failure = translate(error)
        if isinstance(failure, Unavailable):
            self.ways.failed(address)
        return failure

    async def upload(self, method: str, requests: AsyncIterable[Encoded], response: type[R]) -> R:
        """Send many requests, with no deadline of their own, and return the one response.

        Errors of `requests` end the call and are raised here. (gRPC would report a failing iterator
        as a cancelled call.)
        """
        address = self.ways.now
        opened = self.ways.channel(address).stream_unary(
            f"/nsml.v1.{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )
        call = opened(metadata=self._metadata_for(address))
        try:
            # if the call has ended before its requests, its status has the reason
            with suppress(asyncio.InvalidStateError):
                async for request in requests:
                    await call.write(request)
                await call.done_writing()
            answer: R = await call
        except grpc.RpcError as error:
            raise self._failed(address, error) from error
        finally:
            call.cancel()
        return answer

    def duplex(
        self, method: str, request: type[Message], response: type[Message], *, address: str
    ) -> Any:
        """Open a bidirectional stream; its `read` and `write` raise gRPC's own errors."""
        opened = self.ways.channel(address).stream_stream(
            f"/nsml.v1.{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        return opened(metadata=self._metadata_for(address))


def _revision_in(trailing: Any) -> int:
    for key, value in trailing or ():
        if key == REVISION and value.isdigit():
            return int(value)
    return 0
