"""How many calls are answered, how, and how fast: counted at the door of the gRPC server."""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pool

from controlplane.access.trail import code_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    Handler = grpc.RpcMethodHandler[Any, Any]

BUCKETS_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Upper bounds of what is told of durations; the last bucket, without a bound, is not listed."""


@dataclass(slots=True)
class Durations:
    """Of one method: how many calls took how long, in the buckets of BUCKETS_S and one beyond."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a call."""
        self.buckets[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class CallCounts(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Counts calls of one request and one answer. Streams last as long as their callers like.

    Args:
        methods: those that are counted, as `/SERVICE/METHOD`, each with one request and one answer: labels stay
            bounded whatever is called.
        monotonic: seconds.

    Attributes:
        ended: how many ended, by method and by the name of the status code.
        durations: how long they took, by method.
    """

    def __init__(
        self, methods: Collection[str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._methods = frozenset(methods)
        self._monotonic = monotonic
        self.ended: dict[tuple[str, str], int] = {}
        self.durations: dict[str, Durations] = {}

    async def intercept_service(  # type: ignore[override] # the stubs forget None
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the method's handler, counted if it is one of ours and no stream."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method not in self._methods:
            return handler
        return self._counted(handler, method)

    def _counted(self, handler: Handler, method: str) -> Handler:
        # The door reads the one request itself.
        inner: Any = handler.stream_unary if handler.request_streaming else handler.unary_unary
        make: Any = (
            grpc.stream_unary_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_unary_rpc_method_handler
        )

        async def answer(request: Any, context: Any) -> Any:
            begun = self._monotonic()
            try:
                answered = await inner(request, context)
            except BaseException:
                # What was set by `abort`; an error that nobody foresaw has none, and gRPC says UNKNOWN.
                self._count(method, code_name(context.code(), "UNKNOWN"), begun)
                raise
            self._count(method, code_name(context.code(), "OK"), begun)
            return answered

        counted: Handler = make(
            answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return counted

    def _count(self, method: str, code: str, begun: float) -> None:
        self.ended[method, code] = self.ended.get((method, code), 0) + 1
        self.durations.setdefault(method, Durations()).add(self._monotonic() - begun)


def unary_methods(methods: Iterable[str]) -> tuple[str, ...]:
    """Those of `methods` with one request and one answer, as the contract has them."""
    pool = descriptor_pool.Default()
    found = []
    for method in methods:
        service, _, name = method.removeprefix("/").partition("/")
        one = pool.FindServiceByName(service).methods_by_name[name]
        if not (one.client_streaming or one.server_streaming):
            found.append(method)
    return tuple(found)
