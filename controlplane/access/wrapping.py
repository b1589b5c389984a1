"""Wrap handlers of gRPC methods: common code of the control plane's interceptors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Handler = grpc.RpcMethodHandler[Any, Any]
    Method = Callable[..., Any]

_KINDS: dict[tuple[bool, bool], tuple[str, Any]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
"""By whether requests and responses are streams: the handler's attribute, and its constructor."""


class Wrapper(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """An interceptor that wraps the handler of each method once, not once for each call."""

    def __init__(self) -> None:
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    def wrap(self, handler: Handler, method: str) -> Handler:
        """Return the handler that replaces another; `method` is `/SERVICE/METHOD`."""
        raise NotImplementedError

    async def intercept_service(  # type: ignore[override] # the stubs forget None
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the wrapped handler; None for an unknown method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        inner, wrapped = self._wrapped.get(method, (None, handler))
        if inner is not handler:
            wrapped = self.wrap(handler, method)
            self._wrapped[method] = handler, wrapped
        return wrapped


class ByName:
    """A server for generated code that looks up methods by name at each call.

    gRPC's asyncio server runs a task for every registered method, and iterates over all of them at each call:
    with our 75 that took a sixth of the time of a small call.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Ignore them: they are among the generic ones."""


def method_of(handler: Handler) -> Method:
    """Return a handler's method; its arguments: a request or an iterator of them, and the context."""
    name, _ = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
    method: Method = getattr(handler, name)
    return method


def with_method(handler: Handler, method: Method) -> Handler:
    """Copy a handler, but call `method`."""
    _, make = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
    made: Handler = make(method, handler.request_deserializer, handler.response_serializer)
    return made


def with_raw_requests(handler: Handler, method: Method) -> Handler:
    """Copy a handler, but call `method` with an iterator of requests as bytes, even for a single one."""
    _, make = _KINDS[True, bool(handler.response_streaming)]
    made: Handler = make(method, bytes, handler.response_serializer)
    return made
