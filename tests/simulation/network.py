"""gRPC without sockets: servers and channels in one process, over links that can fail.

The production servicers, interceptors and stubs run unchanged: a `MemoryServer` takes their
generic handlers, a `MemoryChannel` gives the stubs their calls. Every message is serialised, waits for the
latency of its link, and is lost with everything else of its call when the link or an end breaks.
What a server does for a call belongs to the process that serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, Self

import grpc
import grpc.aio

KEEPALIVE_S = 15.0
"""After so long without an answer to a ping a connection is given up."""

PACE_S = 10.0
"""How long a span is in which the calls of a machine are counted."""

_REMEMBERED_ORDERS = 20

_END = object()
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class Broken(Exception):
    """The call cannot go on."""


@dataclass(frozen=True)
class _Details:
    """What an interceptor is told about a call."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...]


class Network:
    """All servers and links. `rng` decides every latency."""

    def __init__(self, rng: random.Random, *, latency_s: tuple[float, float] = (0.0002, 0.002)):
        self.rng = rng
        self.latency_s = latency_s
        self._servers: dict[str, MemoryServer] = {}
        # Insertion order, so that what a crash breaks breaks in the same order every time.
        self._calls: dict[_Call, None] = {}
        self._cut: set[frozenset[str]] = set()
        self._frozen: set[tuple[str, str]] = set()
        self._healed = asyncio.Event()
        self._lost = asyncio.Event()
        self._answer_loss: dict[frozenset[str], float] = {}
        self._ordered: dict[str, deque[bytes]] = {}
        self._controls: dict[str, _Call] = {}
        self.broken_calls = 0
        self.paces: Counter[tuple[str, str, int]] = Counter()
        """Calls that each machine began of each method, in each span of PACE_S."""

    def serve(self, address: str, interceptors: Iterable[Any] = ()) -> MemoryServer:
        """A server at `address`; it replaces one that was there."""
        self._servers[address] = MemoryServer(tuple(interceptors))
        return self._servers[address]

    def channel(self, source: str, address: str) -> MemoryChannel:
        """A channel from the machine `source` to the server at `address`."""
        return MemoryChannel(self, source, address)

    def crash(self, endpoint: str) -> None:
        """The process at `endpoint` is gone: its server, and all calls from and to it."""
        self._servers.pop(endpoint, None)
        self._lost.set()
        self._break(lambda call: endpoint in {call.source, call.address})

    def cut(self, source: str, address: str) -> None:
        """Nothing passes between the two until `heal`."""
        self._cut.add(frozenset({source, address}))
        self._lost.set()
        self._break(lambda call: {call.source, call.address} == {source, address})

    def heal(self, source: str, address: str) -> None:
        """Undo `cut`, `freeze` and `lose_answers`."""
        self._answer_loss.pop(frozenset({source, address}), None)
        self._cut.discard(frozenset({source, address}))
        self._frozen -= {(source, address), (address, source)}
        self._healed.set()

    def heal_all(self) -> None:
        """Undo every `cut`, `freeze` and `lose_answers`."""
        self._answer_loss.clear()
        self._cut.clear()
        self._frozen.clear()
        self._healed.set()

    def is_cut(self, source: str, address: str) -> bool:
        """Whether nothing passes between the two."""
        return frozenset({source, address}) in self._cut

    def is_frozen(self, sender: str, receiver: str) -> bool:
        """Whether what one sends to the other waits."""
        return (sender, receiver) in self._frozen

    async def healed(self, source: str, address: str) -> None:
        """Return when something passes between the two."""
        while self.is_cut(source, address):
            self._healed.clear()
            await self._healed.wait()

    async def lost(self, source: str, address: str, process: str) -> None:
        """Return when a connection to this process has ended; at once when there is none."""
        while self.is_met(source, address, process):
            self._lost.clear()
            await self._lost.wait()

    def is_met(self, source: str, address: str, process: str) -> bool:
        """Whether this process answers at the address."""
        found = self._servers.get(address)
        return not self.is_cut(source, address) and found is not None and found.process == process

    def refuses(self, source: str, address: str) -> bool | None:
        """What a connection meets: True, nobody listens there; False, somebody; None, no answer."""
        if self.is_cut(source, address):
            return None
        return address not in self._servers

    def freeze(self, source: str, address: str, *, one_way: bool = False) -> None:
        """What is sent between the two arrives only after `heal`; nobody is told.

        With `one_way`, only what `source` sends waits.
        """
        self._frozen.add((source, address))
        if not one_way:
            self._frozen.add((address, source))
        self._look_again(source, address)

    def _look_again(self, source: str, address: str) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(KEEPALIVE_S, self._keep_alive, source, address)

    def _keep_alive(self, source: str, address: str) -> None:
        """Pings are not answered: the connection is given up, as it is by gRPC."""
        if (source, address) in self._frozen:
            self._break(lambda call: {call.source, call.address} == {source, address})
            self._look_again(source, address)

    def fall_silent(self, endpoint: str) -> None:
        """The process at `endpoint` has answered no ping for too long."""
        self._break(lambda call: endpoint in {call.source, call.address})

    def server(self, source: str, address: str) -> MemoryServer:
        """The server that `source` reaches at `address`, or Broken."""
        if self.is_cut(source, address) or address not in self._servers:
            # As gRPC says it: the call was not sent.
            raise Broken(f"failed to connect to all addresses; {address} is cut off from {source}")
        return self._servers[address]

    def context(self, address: str) -> Context:
        """Of the process that serves there, for one call."""
        server = self._servers.get(address)
        return server.context.copy() if server else copy_context()

    def lose_answers(self, source: str, address: str, share: float) -> None:
        """Let so many calls between the two break when all is done and nothing is answered yet."""
        self._answer_loss[frozenset({source, address})] = share

    def loses_answer(self, source: str, address: str) -> bool:
        """Whether the answer that is to be sent now is lost."""
        share = self._answer_loss.get(frozenset({source, address}))
        return share is not None and self.rng.random() < share

    async def pass_link(self, sender: str, receiver: str) -> None:
        """Wait for one message to cross."""
        await asyncio.sleep(self.rng.uniform(*self.latency_s))
        while self.is_frozen(sender, receiver):
            self._healed.clear()
            await self._healed.wait()

    def ordered(self, call: _Call, orders: bytes) -> None:
        """Orders go down to an agent."""
        self._ordered.setdefault(call.source, deque(maxlen=_REMEMBERED_ORDERS)).append(orders)
        self._controls[call.source] = call

    def replay(self, source: str) -> bool:
        """Have orders come again that an agent was sent, as from a leader who slept; False for none."""
        call, orders = self._controls.get(source), self._ordered.get(source)
        if call is None or call.done() or not orders:
            return False
        call.deliver(self.rng.choice(orders))
        return True

    def opened(self, call: _Call) -> None:
        self._calls[call] = None
        span = int(asyncio.get_running_loop().time() // PACE_S)
        self.paces[call.source, call.method, span] += 1

    def closed(self, call: _Call) -> None:
        self._calls.pop(call, None)

    def _break(self, which: Callable[[_Call], bool]) -> None:
        for call in [call for call in self._calls if which(call)]:
            self.broken_calls += 1
            call.break_off()


class MemoryServer:
    """What `add_XServicer_to_server` takes."""

    def __init__(self, interceptors: tuple[Any, ...]) -> None:
        self.context = copy_context()
        self._generic: list[Any] = []
        self._interceptors = interceptors
        self.process = ""

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """The same handlers once more; the generic ones are enough here."""

    async def find(self, details: _Details) -> Any:
        """The handler of a method, through all interceptors."""

        async def lookup(asked: Any) -> Any:
            for generic in self._generic:
                handler = generic.service(asked)
                if handler is not None:
                    return handler
            return None

        found = lookup
        for interceptor in reversed(self._interceptors):
            found = _chain(interceptor, found)
        return await found(details)


def _chain(interceptor: Any, inner: Any) -> Any:
    async def step(details: Any) -> Any:
        return await interceptor.intercept_service(inner, details)

    return step


class _Context:
    """The part of grpc.aio.ServicerContext that servicers may use."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self.trailing: tuple[tuple[str, Any], ...] = ()
        self.code_: grpc.StatusCode | None = None
        self.details_ = ""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._call.metadata

    def peer(self) -> str:
        return f"ipv4:{self._call.source}:1"

    def auth_context(self) -> dict[str, Any]:
        return {}

    def time_remaining(self) -> float | None:
        return self._call.time_remaining()

    def cancelled(self) -> bool:
        return self._call.is_broken

    def done(self) -> bool:
        return self._call.is_broken

    def add_done_callback(self, callback: Any) -> None:
        self._call.callbacks.append(lambda: callback(self))

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.trailing = tuple(metadata)

    def trailing_metadata(self) -> Any:
        return self.trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code_ = code

    def code(self) -> grpc.StatusCode | None:
        return self.code_

    def set_details(self, details: str) -> None:
        self.details_ = details

    async def read(self) -> Any:
        return await self._call.read_request()

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Nobody waits for it here."""

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> None:
        self.code_, self.details_ = code, details
        self.trailing = (*self.trailing, *trailing_metadata)
        raise grpc.aio.AbortError

    async def abort_with_status(self, status: Any) -> None:
        await self.abort(status.code, status.details, status.trailing_metadata)


class _Call:
    """One call: two queues of serialised messages and the server's task between them."""

    def __init__(self, channel: MemoryChannel, method: str, metadata: Any, codec: Any) -> None:
        self.network = channel.network
        self.source, self.method = channel.source, method
        self.address = channel.address
        self.metadata = tuple(metadata or ())
        self._serialize, self._deserialize = codec
        self._up: asyncio.Queue[Any] = asyncio.Queue()
        self._down: asyncio.Queue[Any] = asyncio.Queue()
        self._outcome: grpc.aio.AioRpcError | None = None
        self._context = _Context(self)
        self._parse: Callable[[bytes], Any] = bytes
        self.callbacks: list[Callable[[], None]] = []
        self.is_broken = False
        self.deadline: float | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._server = loop.create_task(self._serve(), context=self.network.context(self.address))
        self.network.opened(self)

    # The caller's side.

    def feed(self, requests: Iterable[Any] | AsyncIterable[Any]) -> None:
        """Send what the iterator gives, then close this half."""
        self._feeder = asyncio.create_task(self._feed(requests))

    async def _feed(self, requests: Any) -> None:
        if hasattr(requests, "__aiter__"):
            async for request in requests:
                await self.write(request)
        else:
            for request in requests:
                await self.write(request)
        await self.done_writing()

    async def write(self, request: Any) -> None:
        if self._outcome is not None:
            raise asyncio.InvalidStateError("the call is over")
        data = self._serialize(request)
        await self.network.pass_link(self.source, self.address)
        self._up.put_nowait(data)

    async def done_writing(self) -> None:
        self._up.put_nowait(_END)

    async def read(self) -> Any:
        """The next response; _EOF at the end; AioRpcError when the call failed."""
        item = await self._down.get()
        if item is _END:
            self._down.put_nowait(_END)
            if self._outcome is not None and self._outcome.code() is not grpc.StatusCode.OK:
                raise self._outcome
            return _EOF
        return self._deserialize(item)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Any]:
        while (item := await self.read()) is not _EOF:
            yield item

    def __await__(self) -> Any:
        return self._single().__await__()

    async def _single(self) -> Any:
        item = await self.read()
        if item is _EOF:
            raise self._error(grpc.StatusCode.INTERNAL, "no response")
        return item

    def cancel(self) -> bool:
        was_open = self._outcome is None
        self._finish(grpc.StatusCode.CANCELLED, "cancelled by the caller")
        self._server.cancel()
        return was_open

    def done(self) -> bool:
        return self._outcome is not None

    def cancelled(self) -> bool:
        return self._outcome is not None and self._outcome.code() is grpc.StatusCode.CANCELLED

    def add_done_callback(self, callback: Any) -> None:
        self.callbacks.append(lambda: callback(self))

    async def code(self) -> grpc.StatusCode:
        await self._over.wait()
        assert self._outcome is not None
        return self._outcome.code()

    async def details(self) -> str:
        await self._over.wait()
        assert self._outcome is not None
        return self._outcome.details() or ""

    async def initial_metadata(self) -> tuple[()]:
        return ()

    async def trailing_metadata(self) -> Any:
        await self._over.wait()
        return grpc.aio.Metadata(*self._context.trailing)

    async def wait_for_connection(self) -> None:
        await self.network.pass_link(self.source, self.address)

    # The server's side.

    async def _serve(self) -> None:
        code, details = grpc.StatusCode.OK, ""
        try:
            await self._handle()
        except grpc.aio.AbortError:
            code = self._context.code_ or grpc.StatusCode.UNKNOWN
            details = self._context.details_
        except Broken as broken:
            code, details = grpc.StatusCode.UNAVAILABLE, str(broken)
        except asyncio.CancelledError:
            code, details = grpc.StatusCode.UNAVAILABLE, "the connection broke"
        except Exception as error:  # noqa: BLE001 - as grpc.aio: a servicer's defect is UNKNOWN
            code, details = grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}"
        self._finish(code, details)

    async def _handle(self) -> None:
        await self.network.pass_link(self.source, self.address)
        server = self.network.server(self.source, self.address)
        handler = await server.find(_Details(self.method, self.metadata))
        if handler is None:
            await self._context.abort(grpc.StatusCode.UNIMPLEMENTED, self.method)
        function = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        self._parse = handler.request_deserializer
        requests = self._requests()
        argument = requests if handler.request_streaming else await anext(requests)
        result = function(argument, self._context)
        if handler.response_streaming:
            async with contextlib.aclosing(result) as responses:
                async for response in responses:
                    await self._respond(handler, response)
        else:
            answer = await result
            if self.network.loses_answer(self.source, self.address):
                raise Broken("the connection broke before the answer")
            await self._respond(handler, answer)

    async def _respond(self, handler: Any, response: Any) -> None:
        data = handler.response_serializer(response)
        if self.method.endswith("/Control") and response.WhichOneof("kind") == "orders":
            self.network.ordered(self, data)
        await self.network.pass_link(self.address, self.source)
        self._down.put_nowait(data)

    def deliver(self, data: bytes) -> None:
        """A message comes down that nobody sends now."""
        self._down.put_nowait(data)

    async def _requests(self) -> AsyncIterator[Any]:
        while (request := await self.read_request()) is not grpc.aio.EOF:
            yield request

    async def read_request(self) -> Any:
        """The server's next request; grpc.aio.EOF at the end."""
        item = await self._up.get()
        return grpc.aio.EOF if item is _END else self._parse(item)

    def time_remaining(self) -> float | None:
        """Seconds of the caller's deadline; None when it has none."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    def time_out(self) -> None:
        """The caller's deadline has passed."""
        self._finish(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded")
        self._server.cancel()

    def break_off(self) -> None:
        """The link or one of the ends is gone."""
        self.is_broken = True
        self._finish(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        self._server.cancel()

    def _finish(self, code: grpc.StatusCode, details: str) -> None:
        if self._outcome is not None:
            return
        self._outcome = self._error(code, details)
        self._over.set()
        if self._feeder is not None:
            self._feeder.cancel()
        self.network.closed(self)
        self._down.put_nowait(_END)
        self.is_broken = self.is_broken or code is not grpc.StatusCode.OK
        for callback in self.callbacks:
            callback()

    def _error(self, code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
        return grpc.aio.AioRpcError(
            code,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(*self._context.trailing),
            details=details,
            debug_error_string="",
        )


class MemoryChannel:
    """The part of grpc.aio.Channel that stubs and clients use."""

    def __init__(self, network: Network, source: str, address: str) -> None:
        self.network, self.source, self.address = network, source, address
        self._open: dict[_Call, None] = {}

    def unary_unary(self, method: str, *codec: Any, **named: Any) -> Callable[..., _Call]:
        return self._call(method, codec, named, streaming=False)

    unary_stream = unary_unary

    def stream_unary(self, method: str, *codec: Any, **named: Any) -> Callable[..., _Call]:
        return self._call(method, codec, named, streaming=True)

    stream_stream = stream_unary

    def _call(
        self, method: str, codec: Any, named: dict[str, Any], *, streaming: bool
    ) -> Callable[..., _Call]:
        serialize = named.get("request_serializer") or codec[0]
        deserialize = named.get("response_deserializer") or codec[1]

        def begin(
            request: Any = None,
            timeout: float | None = None,
            metadata: Any = None,
            **options: Any,
        ) -> _Call:
            call = _Call(self, method, metadata, (serialize, deserialize))
            self._open[call] = None
            call.add_done_callback(lambda done: self._open.pop(done, None))
            if timeout is not None:
                loop = asyncio.get_running_loop()
                call.deadline = loop.time() + timeout
                timer = loop.call_later(timeout, call.time_out)
                call.add_done_callback(lambda _: timer.cancel())
            if not streaming:
                call.feed([request])
            elif (source := options.get("request_iterator", request)) is not None:
                call.feed(source)
            return call

        return begin

    async def close(self, grace: float | None = None) -> None:
        for call in list(self._open):
            call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    async def channel_ready(self) -> None:
        await self.network.pass_link(self.source, self.address)
