"""Where requests come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request


def address_of(request: Request) -> str:
    """The caller's address as failures are counted by it, the same as of gRPC's calls."""
    host = request.client.host if request.client else ""
    return f"ipv6:[{host}]" if ":" in host else f"ipv4:{host}"
