"""Limits of frequent calls of users: open streams, and changes of records in the coordination store.

An interceptor after authentication, so that no method has to check. Submissions are not included: they are
limited by their content (`sessions/submit.py`).
"""

from __future__ import annotations

import functools
import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from controlplane.access.access_table import TABLE
from controlplane.access.current import caller
from controlplane.access.wrapping import Wrapper, method_of, with_method
from controlplane.domain.errors import TooLarge
from controlplane.domain.identity import UserCaller
from controlplane.domain.policy import ADMINISTER, ALLOW, PLATFORM, may
from controlplane.wire.errors import refuse
from nsml.v1 import options_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.access.wrapping import Handler
    from controlplane.limits.admission import Admission
    from controlplane.wire.errors import Context

RECORD_BYTES: Final = 1 << 10
"""Bytes counted for a change besides its request: keys, and the rewritten record."""

AGENTS: Final = "/nsml.v1.AgentService/"


class Throttle(Wrapper):
    """Checks streams and changes of users against their limits; agents and other control planes pass."""

    def __init__(self, admission: Admission) -> None:
        super().__init__()
        self._admission = admission

    def wrap(self, handler: Handler, method: str) -> Handler:
        """Return the method's handler, unchanged for most methods."""
        if handler.request_streaming or handler.response_streaming:
            # Agents' streams carry much, and belong to no user.
            return handler if method.startswith(AGENTS) else self._counted(handler)
        row = TABLE.get(method)
        if row is None or row.throttle == pb.THROTTLE_UNSPECIFIED:
            return handler
        return with_method(handler, self._changing(method_of(handler), row.throttle))

    def _changing(self, inner: Any, throttle: pb.Throttle) -> Any:
        @functools.wraps(inner)
        async def answer(request: Any, context: Context) -> Any:
            who = caller()
            # Administrators must be able to repair.
            if isinstance(who, UserCaller) and may(who, ADMINISTER, PLATFORM) is not ALLOW:
                try:
                    if throttle == pb.THROTTLE_HISTORY:
                        self._admission.check_history()
                    else:
                        self._admission.check_store()
                    self._admission.write(who.user.name, request.ByteSize() + RECORD_BYTES)
                except TooLarge as error:
                    await refuse(context, error)
            return await inner(request, context)

        return answer

    def _counted(self, handler: Handler) -> Handler:
        inner = method_of(handler)
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

        return with_method(handler, stream if is_generator else answer)

    async def _opened(self, context: Context) -> str:
        """Count an open stream, or end it; return its user, "" if it has none."""
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
