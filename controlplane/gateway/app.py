"""The paths served over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from prometheus_client import exposition
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from controlplane.domain.errors import Denied, NotSignedIn, NsmlError
from controlplane.gateway.addresses import address_of
from nsml.common.clock import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client import Metric
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from controlplane.gateway.scrape_access import Readers
    from nsml.common.clock import Clock

T = TypeVar("T")

FRESH_S: Final = 1.0
"""How long a page of metrics is cached: further scrapes cost no more."""


class Scrapes(Generic[T]):
    """The page of metrics, made once for concurrent scrapes.

    Args:
        take: returns a snapshot of the sources; called on the event loop.
        figures: returns all metrics of a snapshot; called in a thread.
    """

    def __init__(
        self, take: Callable[[], T], figures: Callable[[T], Iterable[Metric]], clock: Clock
    ) -> None:
        self._take = take
        self._figures = figures
        self._clock = clock
        self._making = asyncio.Lock()
        self._pages: dict[str, tuple[float, bytes]] = {}

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the page in the newest accepted format, and its content type."""
        encode, content_type = exposition.choose_encoder(accept)
        async with self._making:
            known = self._pages.get(content_type)
            if known is not None and self._clock.monotonic() - known[0] < FRESH_S:
                return known[1], content_type
            taken = self._take()
            # A second for thousands of devices, during which calls are answered.
            body = await in_own_thread(lambda: encode(_Found(list(self._figures(taken)))))
            self._pages[content_type] = self._clock.monotonic(), body
            return body, content_type


class _Found:
    """The registry for the encoder: collected metrics."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


def make_app(
    *,
    scrapes: Scrapes[Any],
    readers: Readers,
    why_not_ready: Callable[[], str],
    routes: Iterable[BaseRoute],
) -> Starlette:
    """Return the application.

    Args:
        routes: of the areas of the control plane.
        scrapes: answers /metrics.
        readers: checks access to it.
        why_not_ready: why no call should be sent here now; "" if ready.
    """

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        reason = why_not_ready()
        return PlainTextResponse(f"{reason or 'ready'}\n", status_code=503 if reason else 200)

    async def metrics(request: Request) -> Response:
        await readers.check(request.headers.get("authorization", ""), address_of(request))
        body, content_type = await scrapes.page(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return Starlette(
        routes=[
            Route("/healthz", health),
            Route("/readyz", ready),
            Route("/metrics", metrics),
            *routes,
        ],
        exception_handlers={NsmlError: _refused},
    )


async def _refused(_: Request, error: Exception) -> Response:
    """Return an error in the words of a gRPC client."""
    assert isinstance(error, NsmlError)  # noqa: S101 - what this is registered for
    lines = [error.message, error.why, error.attempt]
    body = "".join(f"{line}\n" for line in lines if line)
    match error:
        case NotSignedIn():
            headers = {"www-authenticate": 'Bearer realm="nsml"'}
            return PlainTextResponse(body, status_code=401, headers=headers)
        case Denied():
            return PlainTextResponse(body, status_code=403)
    return PlainTextResponse(body, status_code=503)
