"""The one door: every call of every service passes here, and what is not allowed is refused.

Identity comes from the bearer token or, on the agents' port, from the certificate of the peer;
never from a request. A presented token that is not valid is refused even where strangers may
call, so that a typing error never turns into somebody else's answer.
"""

from __future__ import annotations

import inspect
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self

import grpc
import structlog

from controlplane.access.current import set_caller
from controlplane.access.limiter import MOST_FAILURES, FailureLimiter, address_of
from controlplane.access.secret import Secret, parse_secret, short
from controlplane.access.table import refusal
from controlplane.domain.errors import NotSignedIn, NsmlError
from controlplane.domain.identity import AnonymousCaller, Caller, PeerCaller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import Protocol

    from controlplane.access.table import Row

    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]
    Refuse = Callable[[Context, NsmlError], Awaitable[NoReturn]]

    class Identities(Protocol):
        """Who stands behind a credential."""

        async def of_secret(self, secret: Secret, *, thorough: bool) -> Caller | None:
            """Return whose token this is; None if it is unknown, expired or revoked.

            Without `thorough` only what is in memory is consulted.
            """
            ...

        async def of_certificate(self, node: str, certificate: bytes) -> Caller | None:
            """Return the node whose verified certificate (PEM) this is; None if it is valid no more."""
            ...


_log = structlog.get_logger()

_BEARER = "Bearer "

ON_BEHALF_OF = "nsml-node"
"""Metadata of a control plane: the node whose call it passes on. Of nobody else it is heeded."""


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Finds out who calls, looks into the table, and sets `current_caller` for the method."""

    def __init__(
        self,
        identities: Identities,
        table: Mapping[str, Row],
        *,
        limiter: FailureLimiter,
        refuse: Refuse,
    ) -> None:
        self._identities = identities
        self._table = table
        self._limiter = limiter
        self._refuse = refuse

    async def intercept_service(  # type: ignore[override] # the stubs forget None
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the method's handler behind the door; None for a method that nobody serves."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return self.guard(handler, handler_call_details.method)

    def guard(self, handler: Handler, method: str) -> Handler:
        """Return `handler` so that it runs only for callers whom the table lets through."""

        def welcome(context: Context) -> _Welcome:
            # Once for all messages of a stream: gRPC makes a copy of all facts for each question.
            shown = _Shown.by(context)
            return _Welcome(partial(self._why_not, shown, method), partial(self._refuse, context))

        return _behind(welcome, handler)

    async def _why_not(self, shown: _Shown, method: str) -> NsmlError | None:
        """Return why the call is refused as things are now; else None, and its caller is set."""
        try:
            who = await self._identify(shown)
        except NsmlError as error:
            return error
        refused = refusal(self._table, method, who)
        if refused is None:
            set_caller(who)
        return refused

    async def _identify(self, shown: _Shown) -> Caller:
        if shown.authorization is not None:
            return await self._of_token(shown.authorization, shown.address)
        if shown.certificate is None:
            return AnonymousCaller()
        node, pem = shown.certificate
        who = await self._identities.of_certificate(node, pem)
        if who is None:
            raise NotSignedIn(
                f"the certificate of node {node} is not valid any more",
                why="it has expired, or the node has joined anew with another key",
                attempt="nsml join HOST",
            )
        if isinstance(who, PeerCaller):
            return replace(who, node=shown.on_behalf_of)
        return who

    async def _of_token(self, authorization: str, address: str) -> Caller:
        is_limited = self._limiter.is_limited(address)
        secret = None
        if authorization.startswith(_BEARER):
            secret = parse_secret(authorization.removeprefix(_BEARER).strip())
        if secret is not None:
            who = await self._identities.of_secret(secret, thorough=not is_limited)
            if who is not None:
                return who
        failures = self._limiter.failed(address)
        if failures <= MOST_FAILURES:
            token = short(secret.fingerprint) if secret is not None else "malformed"
            _log.warning("access.token_refused", address=address, token=token, failures=failures)
        raise _not_valid(is_limited=is_limited)


def _not_valid(*, is_limited: bool) -> NotSignedIn:
    if is_limited:
        return NotSignedIn(
            "too many wrong tokens from this address", attempt="wait a minute, then nsml login HOST"
        )
    return NotSignedIn(
        "the token is not valid",
        why="it is unknown, expired or revoked",
        attempt="nsml login HOST",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What a call shows of its caller: the same as long as it lasts, whatever becomes of its worth.

    `certificate` is that of the handshake, common name and PEM; a token takes its place.
    """

    authorization: str | None = field(repr=False)
    certificate: tuple[str, bytes] | None
    on_behalf_of: str
    address: str

    @classmethod
    def by(cls, context: Context) -> Self:
        authorization = metadata_of(context, "authorization")
        return cls(
            authorization=authorization,
            certificate=_certificate(context) if authorization is None else None,
            on_behalf_of=metadata_of(context, ON_BEHALF_OF) or "",
            address=address_of(context.peer()),
        )


def metadata_of(context: Context, name: str) -> str | None:
    """What a call says under a name; None where it says nothing, "" for what is not text."""
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return value if isinstance(value, str) else ""
    return None


def token_of(context: Context) -> str:
    """The bearer token that a call shows; "" for none."""
    shown = metadata_of(context, "authorization") or ""
    return shown.removeprefix(_BEARER).strip() if shown.startswith(_BEARER) else ""


def _certificate(context: Context) -> tuple[str, bytes] | None:
    """Return common name and PEM of the certificate that the handshake verified, if there is one.

    Only the agents' port asks for certificates, and it accepts none but our authority's.
    """
    facts = context.auth_context()
    names, pems = facts.get("x509_common_name"), facts.get("x509_pem_cert")
    if not names or not pems:
        return None
    return bytes(next(iter(names))).decode(), bytes(next(iter(pems)))


class _Welcome:
    """Of one call: asked again for each of its messages, and gone for good once it is refused.

    What was refused only because the store did not answer stays refused too: the method has seen
    its requests end, and must not be told to have answered all of them.
    """

    def __init__(
        self,
        why_not: Callable[[], Awaitable[NsmlError | None]],
        refuse: Callable[[NsmlError], Awaitable[NoReturn]],
    ) -> None:
        self._why_not = why_not
        self._refuse = refuse
        self._refused: NsmlError | None = None

    async def refusal(self) -> NsmlError | None:
        if self._refused is None:
            self._refused = await self._why_not()
        return self._refused

    async def check(self) -> None:
        error = await self.refusal()
        if error is not None:
            await self._refuse(error)

    async def only_while(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            if await self.refusal() is not None:
                return
            yield request


def _behind(welcome: Callable[[Context], _Welcome], handler: Handler) -> Handler:
    """Return a handler of the same shape that admits the caller first, in the call's own task.

    A stream that outlives its caller's credential carries nothing more: to the method its requests
    end, as if the caller had closed them, and instead of the next response comes the refusal.
    """
    inner, make = _shape_of(handler)

    def given(request: Any, caller: _Welcome) -> Any:
        return caller.only_while(request) if handler.request_streaming else request

    async def answer(request: Any, context: Context) -> Any:
        caller = welcome(context)
        await caller.check()
        try:
            answered = await inner(given(request, caller), context)
        except NotImplementedError:
            # what generated servicers raise for methods that nobody wrote
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not there yet")
        if handler.request_streaming:
            await caller.check()
        return answered

    async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
        caller = welcome(context)
        await caller.check()
        async with aclosing(inner(given(request, caller), context)) as responses:
            async for response in responses:
                await caller.check()
                yield response
        if handler.request_streaming:
            await caller.check()

    guarded = stream if inspect.isasyncgenfunction(inner) else answer
    return make(
        guarded,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _shape_of(handler: Handler) -> tuple[Callable[..., Any], Callable[..., Handler]]:
    shapes: dict[tuple[bool, bool], tuple[Any, Any]] = {
        (False, False): (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
        (False, True): (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
        (True, False): (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
        (True, True): (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
    }
    return shapes[bool(handler.request_streaming), bool(handler.response_streaming)]
