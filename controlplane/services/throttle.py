"""Limits of calls that users make in large numbers: open streams, and changes of records in the coordination store.

An interceptor behind the door, so that no method has to ask. Submissions are not among these: they are decided
with what they ask for (`operations/submit.py`).
"""

from __future__ import annotations

import functools
import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc

from controlplane.access.current import caller
from controlplane.domain.errors import TooLarge
from controlplane.domain.identity import UserCaller
from controlplane.services.errors import refuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from controlplane.operations.admission import Admission
    from controlplane.services.errors import Context

    Handler = grpc.RpcMethodHandler[Any, Any]

RECORD_BYTES: Final = 1 << 10
"""What a change counts for beside its request: keys, and a record that it rewrites."""

AGENTS: Final = "/nsml.v1.AgentService/"

CHANGES: Final = frozenset(
    f"/nsml.v1.{method}"
    for method in (
        "SecretService/SetSecret",
        "WebhookService/SetWebhook",
        "WebhookService/TestWebhook",
        "AccountService/CreateToken",
        "ProjectService/ChangeMembers",
        "SessionService/RequeueSession",
        "SessionService/UpdateSession",
    )
)
"""Methods of users that write to the coordination store, or call elsewhere, but for submissions, stops, and what makes
room or locks somebody out: that is never refused."""

RECORDED: Final = frozenset({"/nsml.v1.DatasetService/CreateDatasetVersion"})
"""Those that add to the history, and are refused while it is at its floor."""


class Throttle(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Asks the admission about streams and changes of users; agents and other control planes pass."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def intercept_service(  # type: ignore[override] # the stubs forget None
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the method's handler; of most methods as it is."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        if handler.request_streaming or handler.response_streaming:
            # Agents' streams carry much, and are nobody's watch.
            return handler if method.startswith(AGENTS) else self._counted(handler)
        if method in CHANGES or method in RECORDED:
            return grpc.unary_unary_rpc_method_handler(
                self._changing(handler.unary_unary, method),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        return handler

    def _changing(self, inner: Any, method: str) -> Any:
        @functools.wraps(inner)
        async def answer(request: Any, context: Context) -> Any:
            who = caller()
            # Administrators have to be able to mend what is wrong.
            if isinstance(who, UserCaller) and not who.is_admin:
                try:
                    if method in RECORDED:
                        self._admission.check_history()
                    else:
                        self._admission.check_store()
                    self._admission.write(who.user.name, request.ByteSize() + RECORD_BYTES)
                except TooLarge as error:
                    await refuse(context, error)
            return await inner(request, context)

        return answer

    def _counted(self, handler: Handler) -> Handler:
        inner, make = _shape_of(handler)
        is_generator = inspect.isasyncgenfunction(inner)

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            user = await self._opened(context)
            try:
                async with aclosing(inner(request, context)) as responses:
                    async for response in responses:
                        yield response
            finally:
                self._closed(user)

        async def answer(request: Any, context: Context) -> Any:
            user = await self._opened(context)
            try:
                return await inner(request, context)
            finally:
                self._closed(user)

        return make(
            stream if is_generator else answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _opened(self, context: Context) -> str:
        """Count a call that stays open, or end it; whose it is, "" where that is no user."""
        who = caller()
        if not isinstance(who, UserCaller):
            return ""
        try:
            self._admission.open_stream(who.user.name)
        except TooLarge as error:
            await refuse(context, error)
        return who.user.name

    def _closed(self, user: str) -> None:
        if user:
            self._admission.close_stream(user)


def _shape_of(handler: Any) -> tuple[Callable[..., Any], Callable[..., Handler]]:
    shapes: dict[tuple[bool, bool], tuple[Any, Any]] = {
        (True, True): (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
        (True, False): (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
        (False, True): (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
    }
    return shapes[bool(handler.request_streaming), bool(handler.response_streaming)]
