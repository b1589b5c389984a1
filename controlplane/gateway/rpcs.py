"""Counts and durations of calls, by an interceptor of the gRPC server."""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2  # noqa: F401 - the pool has what is loaded
from grpc_reflection.v1alpha import reflection_pb2  # noqa: F401

from controlplane.access.audit_rows import code_name
from controlplane.access.wrapping import Wrapper, method_of, with_method

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    Handler = grpc.RpcMethodHandler[Any, Any]

BUCKETS_S: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Upper bounds of the buckets of durations; the last bucket, without a bound, is not listed."""


@dataclass(slots=True)
class Durations:
    """Of one method: number of calls by duration, in the buckets of BUCKETS_S and one beyond."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a call."""
        self.buckets[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class CallCounts(Wrapper):
    """Counts calls of one request and one answer. The duration of streams depends on their callers.

    Args:
        methods: the counted ones, as `/SERVICE/METHOD`, each with one request and one answer: labels stay
            bounded whatever is called.
        monotonic: seconds.

    Attributes:
        ended: number of ended calls, by method and by the name of the status code.
        durations: their durations, by method.
    """

    def __init__(
        self, methods: Collection[str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._methods = frozenset(methods)
        self._monotonic = monotonic
        self.ended: dict[tuple[str, str], int] = {}
        self.durations: dict[str, Durations] = {}

    def wrap(self, handler: Handler, method: str) -> Handler:
        """Return the method's handler, counted if it is among `methods`."""
        if method not in self._methods:
            return handler
        inner = method_of(handler)

        async def answer(request: Any, context: Any) -> Any:
            begun = self._monotonic()
            try:
                answered = await inner(request, context)
            except BaseException:
                # The code set by `abort`; an unforeseen error has none, and gRPC reports UNKNOWN.
                self._count(method, code_name(context.code(), "UNKNOWN"), begun)
                raise
            self._count(method, code_name(context.code(), "OK"), begun)
            return answered

        return with_method(handler, answer)

    def _count(self, method: str, code: str, begun: float) -> None:
        self.ended[method, code] = self.ended.get((method, code), 0) + 1
        self.durations.setdefault(method, Durations()).add(self._monotonic() - begun)


def unary_methods(methods: Iterable[str]) -> tuple[str, ...]:
    """Return the `methods` with one request and one answer in the contract."""
    pool = descriptor_pool.Default()
    found = []
    for method in methods:
        service, _, name = method.removeprefix("/").partition("/")
        one = pool.FindServiceByName(service).methods_by_name[name]
        if not (one.client_streaming or one.server_streaming):
            found.append(method)
    return tuple(found)
