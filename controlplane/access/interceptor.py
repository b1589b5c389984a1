"""Access control: every call of every service passes here, and is refused unless allowed.

Identity is that of the bearer token or, on the agents' port, of the peer's certificate; never of a
request. An invalid token is refused even if anonymous calls are allowed, so that a typing error
never gives an anonymous caller's response.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import grpc
import structlog
from google.protobuf.message import DecodeError

from controlplane.access import anonymous_limits as anonymous
from controlplane.access.access_table import Change, refusal
from controlplane.access.audit_rows import code_name, is_dry_run, name_in, outcome_of, row_of
from controlplane.access.current import begin_call, current_call, set_caller, set_check
from controlplane.access.failed_attempts import MOST_FAILURES, FailureLimiter, address_of
from controlplane.access.incoming_memory import AHEAD_BYTES, MESSAGE_BYTES, STRANGERS, Arriving
from controlplane.access.secret import Secret, parse_secret, short
from controlplane.access.wrapping import Wrapper, method_of, with_raw_requests
from controlplane.domain.errors import (
    InvalidRequest,
    LimitReached,
    NotSignedIn,
    NsmlError,
    Unavailable,
)
from controlplane.domain.identity import AnonymousCaller, Caller, PeerCaller, UserCaller
from controlplane.domain.policy import ADMINISTER, ALLOW, PLATFORM, may
from controlplane.limits.concurrency_limits import Turns
from controlplane.limits.ordinary_calls import OrdinaryCalls
from nsml.spec.metadata import SSH_KEY

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
    from collections.abc import Set as AbstractSet
    from types import TracebackType
    from typing import Protocol

    from controlplane.access.access_table import Row
    from controlplane.access.auditing import Audit

    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]
    Refuse = Callable[[Context, NsmlError], Awaitable[NoReturn]]

    class Identities(Protocol):
        """Owners of credentials."""

        async def of_secret(self, secret: Secret, *, thorough: bool) -> Caller | None:
            """Return a token's owner; None if it is unknown, expired or revoked.

            Without `thorough` only memory is consulted.
            """
            ...

        async def of_certificate(self, node: str, certificate: bytes) -> Caller | None:
            """Return the node of a verified certificate (PEM); None if it is no longer valid."""
            ...

        def is_jump_host(self, secret: Secret) -> bool:
            """Return whether this is the secret of this control plane's own jump host."""
            ...

        async def of_ssh_key(self, digest: str) -> Caller | None:
            """Return the caller for a jump host's call with a public key; None if no user has it."""
            ...


_log = structlog.get_logger()

_BEARER = "Bearer "
_NO_CHANGE: Final = Change()

REQUEST_WITHIN_S: Final = 60.0
"""How long a call may take to send its only request: 4 MiB at most."""

MOST_REQUESTS: Final = 64
"""Maximum number of one user's open unary calls, and of streams with an incomplete first request: each may
hold a whole request or, until the caller has received it, a whole response."""
_MOST_WAITING: Final = 256
"""Maximum number of one user's calls that wait for that; each holds up to 128 KiB (controlplane.startup.server)."""

ON_BEHALF_OF = "nsml-node"
"""Metadata of a control plane: the node whose call it forwards. Ignored from all others."""


class AccessInterceptor(Wrapper):
    """Identifies the caller, checks the access table, and sets `current_caller` for the method."""

    def __init__(
        self,
        identities: Identities,
        table: Mapping[str, Row],
        *,
        limiter: FailureLimiter,
        refuse: Refuse,
        audit: Audit | None = None,
        arriving: Arriving | None = None,
        calls: OrdinaryCalls | None = None,
    ) -> None:
        super().__init__()
        self._identities = identities
        self._table = table
        self._limiter = limiter
        self._refuse = refuse
        self._audit = audit
        self._anonymous = anonymous.AnonymousCalls()
        self._arriving = arriving or Arriving()
        self._calls = calls or OrdinaryCalls()
        self._requests = Turns(
            "for their requests to arrive",
            slots=sys.maxsize,
            each=MOST_REQUESTS,
            most_waiting=_MOST_WAITING,
        )

    def wrap(self, handler: Handler, method: str) -> Handler:
        """Wrap `handler` so that it runs only for callers allowed by the table."""
        row = self._table.get(method)
        parse = handler.request_deserializer or bytes
        is_stream = handler.request_streaming or handler.response_streaming
        # Its caller sends messages back to back. In a bidirectional stream the next one is due at an unknown time.
        is_upload = handler.request_streaming and not handler.response_streaming

        def begin(context: Context) -> _Admission:
            # Once for all messages of a stream: gRPC copies the whole auth context on each access.
            shown = _Shown.by(context)
            return _Admission(
                partial(self._why_not, shown, method),
                partial(self._refuse, context),
                read=context.read,
                requests=self._requests,
                arriving=self._arriving,
                is_upload=is_upload,
                when_done=None if is_stream else context.add_done_callback,
                parse=parse,
                record=_Record(self._audit, method, row.change if row else None, context),
                stranger=self._anonymous.of(method, shown.address),
            )

        return _behind(begin, handler, self._calls)

    async def _why_not(self, shown: _Shown, method: str) -> tuple[Caller, NsmlError | None]:
        """Return the caller, and why the call is refused now; if it is not, set the current caller."""
        try:
            who = await self._identify(shown)
        except NsmlError as error:
            return AnonymousCaller(), error
        refused = refusal(self._table, method, who)
        if refused is None:
            set_caller(who)
        return who, refused

    async def _identify(self, shown: _Shown) -> Caller:
        if shown.ssh_key:
            return await self._of_ssh_key(shown)
        if shown.has_token:
            return await self._of_token(shown.secret, shown.address)
        if shown.certificate is None:
            return AnonymousCaller()
        node, pem = shown.certificate
        who = await self._identities.of_certificate(node, pem)
        if who is None:
            raise NotSignedIn(
                f"the certificate of node {node} is not valid any more",
                why="it has expired, the node was removed, or another machine has joined under its name",
                attempt="nsml join HOST:PORT   on its machine, with a new token (nsml admin join-token)",
            )
        if isinstance(who, PeerCaller):
            return replace(who, node=shown.on_behalf_of)
        return who

    async def _of_ssh_key(self, shown: _Shown) -> Caller:
        """Return the user of the key in a jump host's call: our own, or one of a forwarding control plane."""
        if shown.secret is not None:
            is_trusted = self._identities.is_jump_host(shown.secret)
        else:
            peer = shown.certificate and await self._identities.of_certificate(*shown.certificate)
            is_trusted = isinstance(peer, PeerCaller)
        if not is_trusted:
            raise _not_valid(is_limited=False)
        who = await self._identities.of_ssh_key(shown.ssh_key)
        if who is None:
            raise NotSignedIn("this ssh key is no user's", attempt="nsml key add FILE")
        return who

    async def _of_token(self, secret: Secret | None, address: str) -> Caller:
        is_limited = self._limiter.is_limited(address)
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


@dataclass(slots=True, eq=False)
class _Shown:
    """Credentials of a call: constant for its duration, even if they become invalid.

    `certificate`: of the handshake, common name and PEM; a token, even a malformed one (no `secret`), replaces it.
    """

    has_token: bool
    secret: Secret | None
    certificate: tuple[str, bytes] | None
    on_behalf_of: str
    ssh_key: str
    address: str

    @classmethod
    def by(cls, context: Context) -> Self:
        # gRPC copies all metadata on each access.
        said = _metadata_of(context, {"authorization", ON_BEHALF_OF, SSH_KEY})
        authorization = said.get("authorization")
        return cls(
            authorization is not None,
            None if authorization is None else parse_secret(_bearer(authorization)),
            _certificate(context) if authorization is None else None,
            said.get(ON_BEHALF_OF, ""),
            said.get(SSH_KEY, ""),
            address_of(context.peer()),
        )


def metadata_of(context: Context, name: str) -> str | None:
    """Return a call's metadata under a name; None if there is none, "" if it is not text."""
    return _metadata_of(context, {name}).get(name)


def _metadata_of(context: Context, names: AbstractSet[str]) -> dict[str, str]:
    """Return the same for several names: the first value of each."""
    said: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if key in names and key not in said:
            said[key] = value if isinstance(value, str) else ""
    return said


def token_of(context: Context) -> str:
    """Return a call's bearer token; "" if none."""
    return _bearer(metadata_of(context, "authorization") or "")


def _bearer(authorization: str) -> str:
    return authorization.removeprefix(_BEARER).strip() if authorization.startswith(_BEARER) else ""


def _certificate(context: Context) -> tuple[str, bytes] | None:
    """Return common name and PEM of the handshake's verified certificate, if there is one.

    Only the agents' port requests certificates, and it accepts only our authority's.
    """
    facts = context.auth_context()
    names, pems = facts.get("x509_common_name"), facts.get("x509_pem_cert")
    if not names or not pems:
        return None
    return bytes(next(iter(names))).decode(), bytes(next(iter(pems)))


class _Record:
    """The row of one call in the audit trail, if it has one."""

    def __init__(
        self, audit: Audit | None, method: str, change: Change | None, context: Context
    ) -> None:
        self._audit = audit if change else None
        self._method = method
        self._change = change or _NO_CHANGE
        self._context = context
        self._request: Any = None
        self._is_done = False
        self._call = begin_call() if self._audit is not None else None

    @property
    def needs_request(self) -> bool:
        """Whether the row's target is in the request."""
        return self._audit is not None and bool(self._change.target)

    def asked(self, request: Any) -> None:
        """Note the first request."""
        if self._request is None and self._call is not None:
            self._request = request
            self._call.target = name_in(request, self._change.target)

    def answered(self, answer: Any) -> None:
        """Note the answer."""
        if self._call is not None and self._change.answer:
            self._call.target = name_in(answer, self._change.answer)

    async def write(self, who: Caller, code: str) -> None:
        """Write the row, only once: before this returns for known callers of infrequent methods, else soon."""
        if self._audit is None or self._is_done or current_call().is_elsewhere:
            return
        self._is_done = True
        if is_dry_run(self._change, self._request):
            return
        row = row_of(who, self._method, self._request, outcome_of(code))
        at_once = not self._change.is_frequent and bool(row.actor)
        is_admin = isinstance(who, UserCaller) and may(who, ADMINISTER, PLATFORM) is ALLOW
        await self._audit.record(row, at_once=at_once, is_admin=is_admin)

    async def ended(self, who: Caller, error: BaseException | None) -> None:
        """Write the row of a call that has ended, with or without an error."""
        if self._audit is None or self._is_done:
            return
        unset = "OK" if error is None else "UNKNOWN"
        await self.write(who, code_name(self._context.code(), unset))


class _Ending:
    """Cancels the current task's wait, once, and knows whether it caused the cancellation."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelled = self._task.cancelling() if self._task is not None else 0
        self._has_begun = False

    def begin(self) -> None:
        """Cancel it."""
        if self._task is not None and not self._has_begun:
            self._has_begun = True
            self._task.cancel()

    def is_cause(self) -> bool:
        """Return whether only this cancelled the task, which then continues; call it once, on cancellation."""
        return (
            self._has_begun and self._task is not None and self._task.uncancel() <= self._cancelled
        )


class _Admission:
    """Admission of one call: checked again for each of its messages, and final once it is refused.

    A refusal only because the store did not answer is final, too: the method has seen its requests
    end, and its response must not look complete.
    """

    def __init__(
        self,
        why_not: Callable[[], Awaitable[tuple[Caller, NsmlError | None]]],
        refuse: Callable[[NsmlError], Awaitable[NoReturn]],
        *,
        read: Callable[[], Awaitable[Any]],
        requests: Turns,
        arriving: Arriving,
        is_upload: bool,
        when_done: Callable[[Any], None] | None,
        parse: Callable[[bytes], Any],
        record: _Record,
        stranger: anonymous.AnonymousCall,
    ) -> None:
        self._why_not = why_not
        self._refuse = refuse
        self._read = read
        self._requests = requests
        self._arriving = arriving
        self._is_upload = is_upload
        self._when_done = when_done
        self._parse = parse
        self._stranger = stranger
        self._refused: NsmlError | None = None
        self.record = record
        self.who: Caller = AnonymousCaller()

    async def refusal(self) -> NsmlError | None:
        if self._refused is None:
            self.who, self._refused = await self._why_not()
        return self._refused

    async def refused_by_now(self) -> NsmlError | None:
        """Do the same between its messages; None also while the store does not answer."""
        _, error = await self._why_not()
        return None if isinstance(error, Unavailable) else error

    async def check(self) -> None:
        error = await self.refusal()
        if error is not None:
            await self._refuse(error)

    async def admit(self) -> None:
        """Admit the caller, or refuse the call; for known callers a refused call's target is recorded."""
        error = await self.refusal()
        if error is None and isinstance(self.who, AnonymousCaller):
            error = self._refused = self._stranger.enter()
        if error is None:
            set_check(self.refused_by_now)
            return
        if self.record.needs_request and not isinstance(self.who, AnonymousCaller):
            with contextlib.suppress(NsmlError):
                self.record.asked(await self._first())
        await self._refuse(error)

    async def whole(self) -> Any:
        """Return the only request of a call."""
        try:
            request = await self._first()
        except NsmlError as error:
            await self._refuse(error)
        self.record.asked(request)
        return request

    async def each(self, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        """Yield the requests of a stream, while its caller is allowed to."""
        if isinstance(self.who, UserCaller):
            try:
                data = await self._read_first()
                if data is grpc.aio.EOF:  # type: ignore[attr-defined]
                    return
                yield self._noted(data)
            except (InvalidRequest, LimitReached, Unavailable) as error:
                self._refused = error
                return
        async for data in self._rest() if self._is_upload else requests:
            if await self.refusal() is not None:
                return
            try:
                request = self._noted(data)
            except InvalidRequest as error:
                self._refused = error
                return
            yield request

    async def _rest(self) -> AsyncIterator[bytes]:
        """Yield the messages of an upload after the first; raises LimitReached if one has no room."""
        while True:
            data = await self._arrival(self._read, MESSAGE_BYTES, None)
            if data is grpc.aio.EOF:  # type: ignore[attr-defined]
                return
            yield data

    def _noted(self, data: bytes) -> Any:
        request = self._parsed(data)
        self.record.asked(request)
        return request

    async def _first(self) -> Any:
        data = await self._read_first()
        if data is grpc.aio.EOF:  # type: ignore[attr-defined]
            raise InvalidRequest("the call has no request")
        return self._parsed(data)

    async def _read_first(self) -> Any:
        """Read the first message, or EOF; the number per user in transfer is limited."""
        if not isinstance(self.who, UserCaller):
            return await self._read_in_time()
        name = self.who.user.name
        if not self._requests.take_at_once(name):
            await self._arrival(partial(self._requests.take, name), AHEAD_BYTES, None)
        if self._when_done is not None:
            self._when_done(lambda _: self._requests.give_back(name))
            return await self._read_in_time()
        try:
            return await self._read_in_time()
        finally:
            self._requests.give_back(name)

    async def _read_in_time(self) -> Any:
        within_s = anonymous.REQUEST_WITHIN_S if self._stranger.counts else REQUEST_WITHIN_S
        # Not by the iterator: closing an unfinished one takes a task and an iteration of the loop.
        data = await self._arrival(self._read, MESSAGE_BYTES, within_s)
        self._stranger.goes_on()
        return data

    async def _arrival(
        self, wait: Callable[[], Awaitable[Any]], size: int, within_s: float | None
    ) -> Any:
        """Return the result of `wait`; the message counts for `size` bytes until then."""
        # asyncio.timeout costs as much as all other work for a small call.
        ending = _Ending()
        message = self._arriving.begin(self._counts_as(), size, ending.begin, within_s)
        self._stranger.waits(ending.begin)
        try:
            return await wait()
        except asyncio.CancelledError:
            if not ending.is_cause():
                raise
            if message.is_given_up:
                raise self._arriving.error() from None
            raise Unavailable(
                f"no whole request came within {within_s:g} s, or others needed the room"
            ) from None
        finally:
            message.over()

    def _counts_as(self) -> str | None:
        """Return the user charged for arriving messages; None: nodes and administrators always have room."""
        if isinstance(self.who, AnonymousCaller):
            return STRANGERS
        if isinstance(self.who, UserCaller) and may(self.who, ADMINISTER, PLATFORM) is not ALLOW:
            return self.who.user.name
        return None

    def _parsed(self, data: bytes) -> Any:
        try:
            return self._parse(data)
        except DecodeError:
            raise InvalidRequest(
                "the request cannot be read",
                why="it is no message of this kind, or a text in it is no UTF-8",
            ) from None

    def bounded(self, responses: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """Limit the duration of a method's stream to an anonymous caller."""
        return self._until_its_end(responses) if self._stranger.counts else responses

    async def _until_its_end(
        self, responses: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[Any, None]:
        ends_at = asyncio.get_running_loop().time() + anonymous.STREAM_S
        async with aclosing(responses):
            try:
                while True:
                    async with asyncio.timeout_at(ends_at):
                        response = await anext(responses)
                    yield response
            except StopAsyncIteration:
                return
            except TimeoutError:
                pass
        await self._refuse(
            Unavailable("a call without a token stays open for some minutes", attempt="again")
        )

    async def asked(self, requests: AsyncIterator[bytes], *, is_stream: bool) -> Any:
        """Admit the caller, and return the argument of the method."""
        await self.admit()
        return self.each(requests) if is_stream else await self.whole()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The call's row in the audit trail is written once it has ended.
        self._stranger.leave()
        await self.record.ended(self.who, error)


def _behind(
    begin: Callable[[Context], _Admission], handler: Handler, calls: OrdinaryCalls
) -> Handler:
    """Return a handler that admits the caller first, in the call's own task, and only then reads requests.

    Requests are read as bytes, one by one, even a single one: gRPC would wait for it without a limit
    before the caller is identified, and answer a malformed one with an error of its own.

    A stream that outlives its caller's credential ends: for the method its requests end, as if the
    caller had closed them, and the next response is replaced by the refusal.
    """
    inner, is_stream = method_of(handler), handler.request_streaming

    async def answer(requests: AsyncIterator[bytes], context: Context) -> Any:
        async with begin(context) as call:
            request = await call.asked(requests, is_stream=is_stream)
            try:
                with contextlib.nullcontext() if is_stream else calls.served():
                    answered = await inner(request, context)
            except NotImplementedError:
                # generated servicers raise this for unimplemented methods
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not there yet")
            if is_stream:
                await call.check()
            call.record.answered(answered)
        return answered

    async def stream(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        async with begin(context) as call:
            request = await call.asked(requests, is_stream=is_stream)
            async with aclosing(call.bounded(inner(request, context))) as responses:
                async for response in responses:
                    await call.check()
                    yield response
                    # The row is not delayed until the end, which the caller decides.
                    await call.record.write(call.who, "OK")
            if is_stream:
                await call.check()

    return with_raw_requests(handler, stream if inspect.isasyncgenfunction(inner) else answer)
