"""Forwards calls to the leading control plane, and ends streams when this one stops.

A call that only the leader can answer is forwarded to it: once, within the caller's
deadline, and with the caller's own credential. Forwarded calls are marked, so that two control
planes that each take the other for the leader do not forward them in a loop.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import grpc.aio

from controlplane.access.access_table import TABLE
from controlplane.access.current import caller, current_call
from controlplane.access.interceptor import ON_BEHALF_OF, metadata_of
from controlplane.access.wrapping import Wrapper, method_of, with_method
from controlplane.domain.errors import NotLeader, NsmlError, StateConflict, Unavailable
from controlplane.domain.identity import JumpHostCaller
from controlplane.wire.errors import DETAILS, refuse
from nsml.spec.metadata import RELAY, REVISION, SSH_KEY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from google.protobuf.message import Message

    from controlplane.access.peers import Peers
    from controlplane.access.wrapping import Handler
    from controlplane.domain.identity import NodeCaller
    from controlplane.store.election import Leader
    from controlplane.wire.errors import Context
    from nsml.common.clock import Clock

PASSED: Final = "nsml-passed-on"
"""Metadata of a forwarded call."""

LEADER_WITHIN_S: Final = 3.0
"""How long a call waits while there is no leader: longer than a hung leader's lease."""
ELSEWHERE_WITHIN_S: Final = 1.0
"""Timeout of the leader for an answer that we can also give, but less well."""

_SAYS_NOTHING: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Errors of a call to the leader after which it is unknown whether it was answered."""

CONTROL: Final = "/nsml.v1.AgentService/Control"
"""The stream that ends last: its agent gets the next leader's address."""


class Leading(Protocol):
    """This control plane's knowledge of the leader: `controlplane.core.leader.LeaderLoop`."""

    @property
    def term(self) -> int:
        """Our own term while we surely lead, else 0."""
        ...

    @property
    def leader(self) -> Leader | None:
        """The leader, including ourselves."""
        ...

    def elsewhere(self) -> Leader | None:
        """Another leader; None while there is none, or while it seems to be dead."""
        ...

    def leader_address(self) -> str:
        """Address of another leader; "" while there is none."""
        ...

    async def changed(self) -> None:
        """Return when the known leader changes."""
        ...

    async def settled(self, within_s: float) -> None:
        """Return when a leader is known, us or another, or after this timeout."""
        ...


class PassingOn(Wrapper):
    """Wraps every handler, after authentication, with access to the leader."""

    def __init__(self, *, leading: Leading, peers: Peers, clock: Clock) -> None:
        super().__init__()
        self._leading = leading
        self._peers = peers
        self._clock = clock
        # A dictionary as a set: the order of ending must not depend on memory addresses.
        self._open: dict[_OpenStream, None] = {}
        self._is_stopping = False
        self._has_handed_over = False

    def wrap(self, handler: Handler, method: str) -> Handler:
        """Return the method's handler, which forwards to the leader if needed."""
        inner = method_of(handler)
        if handler.unary_unary is not None:
            return self._answered(handler, method)
        if _is_generator(inner):
            return with_method(handler, self._dismissible(inner, method))
        return handler

    async def dismiss(self, *, has_handed_over: bool, within_s: float = 0.0) -> None:
        """End every stream: its caller resumes it at another control plane.

        Agents' orders only when the next leader is known, or there will be none. They are spread over
        `within_s` seconds, since a resumed stream costs its new server more than a running one.
        """
        self._is_stopping, self._has_handed_over = True, has_handed_over
        ending = [stream for stream in self._open if self._ends(stream.method)]
        for stream in ending:
            stream.dismiss()
            if within_s:
                await self._clock.sleep(within_s / len(ending))

    def _ends(self, method: str) -> bool:
        """Return whether a stream must end here."""
        return self._has_handed_over if method == CONTROL else self._is_stopping

    # One answer.

    def _answered(self, handler: Handler, method: str) -> Handler:
        row = TABLE.get(method)
        prefers_leader = row is not None and row.prefers_leader
        inner: Any = handler.unary_unary
        serialize: Any = handler.response_serializer

        async def answer(request: Any, context: Context) -> Any:
            if prefers_leader:
                known = await self._known_elsewhere(method, request, context)
                if known is not None:
                    return known
            try:
                return await inner(request, context)
            except NotLeader:
                if _was_passed(context):
                    raise
            await self._leading.settled(_within(context, LEADER_WITHIN_S))
            if self._leading.elsewhere() is None:
                return await inner(request, context)
            try:
                return await self._ask_leader(method, request, context, _within(context, 30.0))
            except grpc.aio.AioRpcError as error:
                await pass_error(context, error)

        async def refusing(request: Any, context: Context) -> Any:
            try:
                return await answer(request, context)
            except NsmlError as error:
                await refuse(context, error)

        return grpc.unary_unary_rpc_method_handler(
            refusing,
            handler.request_deserializer,
            lambda answered: answered if isinstance(answered, bytes) else serialize(answered),
        )

    async def _known_elsewhere(self, method: str, request: Any, context: Context) -> bytes | None:
        if self._leading.elsewhere() is None or _was_passed(context):
            return None
        try:
            within = _within(context, ELSEWHERE_WITHIN_S)
            return await self._ask_leader(method, request, context, within)
        except (NsmlError, grpc.aio.AioRpcError):
            return None

    async def _ask_leader(
        self, method: str, request: Message, context: Context, within_s: float
    ) -> bytes:
        """Return the leader's answer, verbatim."""
        leader = self._leading.elsewhere()
        if leader is None:
            raise NotLeader("")
        channel = self._peers.channel(leader.address, is_tls=leader.is_tls)
        call = channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=bytes,
        )
        seen = [(REVISION, said)] if (said := metadata_of(context, REVISION)) else []
        metadata = (*_credential(context), *seen, (PASSED, "1"))
        asked = call(request, metadata=metadata, timeout=within_s)
        try:
            answered: bytes = await asked
        except grpc.aio.AioRpcError as error:
            current_call().is_elsewhere = error.code() not in _SAYS_NOTHING
            raise
        current_call().is_elsewhere = True
        # The leader adds its revision, too: see `monotonic_reads`.
        told = [(key, value) for key, value in await asked.trailing_metadata() if key == REVISION]
        context.set_trailing_metadata(told)
        return answered

    # Streams.

    def _dismissible(self, inner: Any, method: str) -> Any:
        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            stops = Unavailable("this control plane stops")
            if self._ends(method):
                await refuse(context, stops)
            opened = _OpenStream(asyncio.current_task(), method)
            self._open[opened] = None
            try:
                async with aclosing(inner(request, context)) as responses:
                    while (response := await opened.next(responses)) is not None:
                        yield response
                        if opened.is_to_end:
                            break
            except _Dismissed:
                pass
            else:
                if not opened.is_to_end:
                    return
            finally:
                self._open.pop(opened, None)
            await refuse(context, stops)

        return stream


class Relay:
    """Streams answered by the leader and relayed by us."""

    def __init__(self, *, leading: Leading, peers: Peers) -> None:
        self._leading = leading
        self._peers = peers

    async def settled(self) -> None:
        """Wait a little for a leader while there is none: an election is under way."""
        await self._leading.settled(LEADER_WITHIN_S)

    @property
    def is_needed(self) -> bool:
        """Whether another control plane leads."""
        return not self._leading.term

    async def where_needed(
        self,
        method: str,
        messages: tuple[type[Message], type[Message]],
        requests: AsyncIterator[Any],
        context: Context,
    ) -> AsyncGenerator[Any, None] | None:
        """As `stream`, for calls that only the leader can answer; None if that is us."""
        await self._leading.settled(LEADER_WITHIN_S)
        return self.stream(method, messages, requests, context) if self.is_needed else None

    async def stream(
        self,
        method: str,
        messages: tuple[type[Message], type[Message]],
        requests: AsyncIterator[Any],
        context: Context,
        *,
        node: NodeCaller | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Yield the leader's responses to a call of "Service/Method".

        `messages` are the types of request and response; `node` is the caller, if it is not
        a user.

        Raises:
            StateConflict: a jump host calls, and its user cannot be passed to the leader (no TLS).
            NotLeader: there is no leader, or the call was forwarded already; or the leader has been replaced.
        """
        leader = self._leading.elsewhere()
        if leader is None or _was_passed(context):
            raise NotLeader(self._leading.leader_address())
        metadata, who = [(PASSED, "1")], caller()
        if node is not None and leader.is_tls:
            metadata.append((ON_BEHALF_OF, node.node))
        elif isinstance(who, JumpHostCaller):
            if not leader.is_tls:  # its own credential is valid only here
                raise StateConflict(
                    "the jump host of this control plane cannot be used now",
                    why="another one leads, which listens for no other machines",
                    attempt="nsml up --listen HOST:PORT on both",
                )
            metadata.append((SSH_KEY, who.key))
        else:
            metadata += _credential(context)
        opened = self._peers.channel(leader.address, is_tls=leader.is_tls).stream_stream(
            f"/nsml.v1.{method}",
            request_serializer=messages[0].SerializeToString,
            response_deserializer=messages[1].FromString,
        )
        call = opened(requests, metadata=tuple(metadata))
        current_call().is_elsewhere = True
        replaced = asyncio.create_task(self._replaced(leader), name="relay.replaced")
        # A hung leader does not end the call, not even after it lost leadership.
        replaced.add_done_callback(lambda _: call.cancel())
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            await pass_error(context, error)
        except asyncio.CancelledError:
            if not replaced.done():
                raise
            now = self._leading.leader  # perhaps this very control plane
            raise NotLeader(now.address if now is not None else "") from None
        finally:
            replaced.cancel()
            call.cancel()

    async def _replaced(self, leader: Leader) -> None:
        """Return when another one leads, or we do."""
        while True:
            now = self._leading.elsewhere()
            if self._leading.term or (now is not None and now.term != leader.term):
                return
            await self._leading.changed()


def asks_for_relay(context: Context) -> bool:
    """Return whether an agent cannot reach the leader itself."""
    return metadata_of(context, RELAY) == "1"


async def pass_error(context: Context, error: grpc.aio.AioRpcError) -> NoReturn:
    """End the call with the leader's error."""
    trailing: Any = error.trailing_metadata() or ()
    details = tuple((key, value) for key, value in trailing if key == DETAILS)
    await context.abort(error.code(), error.details() or "", details)


@dataclass(eq=False, slots=True)
class _OpenStream:
    """A stream being answered, by `task`."""

    task: asyncio.Task[Any] | None
    method: str
    waits: bool = False
    is_to_end: bool = False
    is_dismissed: bool = False

    async def next(self, responses: AsyncGenerator[Any, None]) -> Any:
        """Return the next response; None at the end."""
        self.waits = True
        try:
            return await anext(responses, None)
        except asyncio.CancelledError:
            if not self.is_dismissed or self.task is None or self.task.uncancel():
                raise
            raise _Dismissed from None
        finally:
            self.waits = False

    def dismiss(self) -> None:
        """End it now if it waits; a stream that is just sending checks by itself."""
        self.is_to_end = True
        if self.waits and self.task is not None and not self.is_dismissed:
            self.is_dismissed = True
            self.task.cancel()


class _Dismissed(Exception):
    """The stream ends because we stop."""


def _is_generator(inner: Any) -> bool:
    return inspect.isasyncgenfunction(inner)


def _was_passed(context: Context) -> bool:
    return metadata_of(context, PASSED) == "1"


def _credential(context: Context) -> list[tuple[str, str]]:
    token = metadata_of(context, "authorization")
    return [("authorization", token)] if token else []


def _within(context: Context, most_s: float) -> float:
    """Return the remaining seconds of the caller's deadline, at most `most_s`."""
    left = context.time_remaining()
    return most_s if left is None else max(0.0, min(left, most_s))
