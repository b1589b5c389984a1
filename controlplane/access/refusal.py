"""A refusal at the door as gRPC carries it: a code, a sentence, and google.rpc.ErrorInfo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from controlplane.domain.errors import Denied, NotSignedIn, NsmlError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Refuse = Callable[[grpc.aio.ServicerContext[Any, Any], NsmlError], Awaitable[NoReturn]]

DOMAIN = "nsml"
"""Domain of every ErrorInfo of ours."""

DETAILS = "grpc-status-details-bin"
"""Trailing metadata that carries a google.rpc.Status."""


async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: NsmlError) -> NoReturn:
    """End the call with an error of the door."""
    code = _code_of(error)
    details = any_pb2.Any()
    details.Pack(
        error_details_pb2.ErrorInfo(domain=DOMAIN, reason=error.reason, metadata=error.details)
    )
    status = status_pb2.Status(code=code.value[0], message=error.message, details=[details])
    await context.abort(code, error.message, ((DETAILS, status.SerializeToString()),))


def _code_of(error: NsmlError) -> grpc.StatusCode:
    match error:
        case NotSignedIn():
            return grpc.StatusCode.UNAUTHENTICATED
        case Denied():
            return grpc.StatusCode.PERMISSION_DENIED
        case _:
            return grpc.StatusCode.UNAVAILABLE
