"""A refusal as gRPC carries it: one table from errors to codes, a sentence, google.rpc.ErrorInfo."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from controlplane.domain import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

DOMAIN = "nsml"
"""Domain of every ErrorInfo of ours."""

DETAILS = "grpc-status-details-bin"
"""Trailing metadata that carries a google.rpc.Status."""

CODES: Mapping[type[errors.NsmlError], grpc.StatusCode] = MappingProxyType(
    {
        errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
        errors.NotFound: grpc.StatusCode.NOT_FOUND,
        errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
        errors.StateConflict: grpc.StatusCode.FAILED_PRECONDITION,
        errors.NotSignedIn: grpc.StatusCode.UNAUTHENTICATED,
        errors.Denied: grpc.StatusCode.PERMISSION_DENIED,
        errors.TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
        errors.Superseded: grpc.StatusCode.FAILED_PRECONDITION,
        errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
        errors.NsmlError: grpc.StatusCode.UNKNOWN,
    }
)
"""The nearest ancestor of an error that is in the table says its code."""


async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: errors.NsmlError) -> NoReturn:
    """End the call with an error."""
    code = code_of(error)
    fact = any_pb2.Any()
    fact.Pack(
        error_details_pb2.ErrorInfo(domain=DOMAIN, reason=error.reason, metadata=error.details)
    )
    status = status_pb2.Status(code=code.value[0], message=error.message, details=[fact])
    await context.abort(code, error.message, ((DETAILS, status.SerializeToString()),))


def code_of(error: errors.NsmlError) -> grpc.StatusCode:
    """Return the status code of an error."""
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
