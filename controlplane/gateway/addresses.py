"""Addresses of HTTP requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.common.hosts import client_of

if TYPE_CHECKING:
    from starlette.requests import Request


def address_of(request: Request) -> str:
    """Return the client that failures are counted for, the same as for gRPC's calls."""
    return client_of(request.client.host if request.client else "")
