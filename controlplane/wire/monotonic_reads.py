"""Monotonic reads: after a move from another control plane, callers get nothing older.

Control planes follow the store, each at its own pace. So answers have their revision, callers send the
newest one that they have seen with their next call, and a control plane that is behind catches up first.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from controlplane.access.current import caller
from controlplane.access.interceptor import metadata_of
from controlplane.access.wrapping import Wrapper, method_of, with_method
from controlplane.domain.errors import Unavailable
from controlplane.domain.identity import AnonymousCaller
from controlplane.store.interface import StoreError
from controlplane.wire.errors import as_refusal, refuse
from nsml.spec.metadata import REVISION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from controlplane.access.wrapping import Handler
    from controlplane.state.live_state import LiveState
    from controlplane.wire.errors import Context

CATCH_UP_S: Final = 5.0
"""How long a caller with a newer revision than ours waits."""

_MOST_DIGITS: Final = 18


class Freshness(Wrapper):
    """Delays each call until we have its caller's revision, and adds ours to each answer."""

    def __init__(self, state: LiveState) -> None:
        super().__init__()
        self._state = state

    def wrap(self, handler: Handler, method: str) -> Handler:  # noqa: ARG002 - for all alike
        """Return the method's handler, which catches up first."""
        if handler.request_streaming:
            # Messages of agents' streams are looked up in the store if unknown here.
            return handler
        catching_up = self._streaming if handler.response_streaming else self._answering
        return with_method(handler, catching_up(method_of(handler)))

    def _answering(self, inner: Any) -> Any:
        async def answer(request: Any, context: Context) -> Any:
            await self._catch_up(context)
            answered = await inner(request, context)
            context.set_trailing_metadata(((REVISION, str(self._state.newest)),))
            return answered

        return answer

    def _streaming(self, inner: Any) -> Any:
        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            await self._catch_up(context)
            async with aclosing(inner(request, context)) as responses:
                async for response in responses:
                    yield response

        return stream if inspect.isasyncgenfunction(inner) else inner

    async def _catch_up(self, context: Context) -> None:
        """End the call if its caller's revision cannot be reached soon."""
        if isinstance(caller(), AnonymousCaller):
            return  # unknown callers have seen nothing, and must not cause reads of the store
        revision = _seen(context)
        if revision <= self._state.revision:
            return
        try:
            async with asyncio.timeout(CATCH_UP_S):
                # A revision that never happened is from before a restore: nothing to wait for.
                await self._state.catch_up(revision)
        except TimeoutError:
            await refuse(
                context, Unavailable("this control plane is behind", attempt="another one")
            )
        except StoreError as error:
            await refuse(context, as_refusal(error))


def _seen(context: Context) -> int:
    said = metadata_of(context, REVISION) or ""
    return int(said) if said.isascii() and said.isdigit() and len(said) <= _MOST_DIGITS else 0
