"""Maps errors to gRPC: a status code, and google.rpc.ErrorInfo in the trailers."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import grpc
import structlog
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from controlplane.domain import errors
from controlplane.history.errors import (
    HistoryCorrupt,
    HistoryFull,
    HistoryRefused,
    HistoryTooNew,
    HistoryUnavailable,
)
from controlplane.objects.errors import BlobDamaged, ObjectsFull, ObjectsUnavailable
from controlplane.store.interface import CommitUnknown, NoSpace, StoreError, StoreUnavailable
from controlplane.wire.times import duration

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from google.protobuf.message import Message

Context = grpc.aio.ServicerContext[Any, Any]
ServicerT = TypeVar("ServicerT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

DOMAIN: Final = "nsml"
DETAILS: Final = "grpc-status-details-bin"

MESSAGE_BYTES: Final = 500
VALUE_BYTES: Final = 1_200
"""Limits of an error's message, and of each of its details: gRPC's clients accept 8 KiB of trailers, and
replace larger ones with an error of their own."""

_ASK: Final = (
    "again in a moment; if it persists, an administrator finds it in the control plane's log"
)
_LOOK: Final = "nsml status    shows what is wrong, since when, and what ends it"
_INSIDE: Final = (
    HistoryUnavailable,
    HistoryCorrupt,
    HistoryTooNew,
    HistoryRefused,
    ObjectsUnavailable,
    BlobDamaged,
)

_GONE: Final[tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...]] = (
    (HistoryFull, "the disk of the platform's history is full"),
    (HistoryUnavailable, "the platform's history does not answer"),
    (ObjectsFull, "the platform's object store is full"),
    (ObjectsUnavailable, "the platform's object store does not answer"),
    (NoSpace, "the platform's store is full"),
    ((StoreUnavailable, CommitUnknown), "the platform's store does not answer"),
)
"""Temporary failures, in words that name the part: the first matching row applies."""

_log = structlog.get_logger()

CODES: Final[tuple[tuple[type[errors.NsmlError], grpc.StatusCode], ...]] = (
    (errors.Superseded, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.StateConflict, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.NotSignedIn, grpc.StatusCode.UNAUTHENTICATED),
    (errors.Denied, grpc.StatusCode.PERMISSION_DENIED),
    (errors.TooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.NsmlError, grpc.StatusCode.INTERNAL),
)
"""The first matching row applies."""


def code_of(error: errors.NsmlError) -> grpc.StatusCode:
    """Return the status code of an error."""
    return next(code for kind, code in CODES if isinstance(error, kind))


async def refuse(context: Context, error: errors.NsmlError) -> NoReturn:
    """End the call with an error."""
    code, message = code_of(error), _cut(error.message, MESSAGE_BYTES)
    metadata = {key: _cut(value, VALUE_BYTES) for key, value in error.details.items()}
    info = error_details_pb2.ErrorInfo(domain=DOMAIN, reason=error.reason, metadata=metadata)
    status = status_pb2.Status(code=code.value[0], message=message, details=[_packed(info)])
    if isinstance(error, errors.Unavailable) and error.retry_after_s:
        retry = error_details_pb2.RetryInfo(retry_delay=duration(error.retry_after_s))
        status.details.append(_packed(retry))
    await context.abort(code, message, ((DETAILS, status.SerializeToString()),))


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


def _cut(text: str, most: int) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= most else data[: most - 3].decode(errors="ignore") + "..."


def as_refusal(error: Exception) -> errors.NsmlError:
    """Return the error that users see for any exception of a method.

    Errors of backends mention files, disks and sockets: these are for the log only.
    """
    if isinstance(error, errors.NsmlError) and not isinstance(error, _INSIDE):
        return error
    evidence = getattr(error, "why", "")
    if isinstance(error, StoreUnavailable | CommitUnknown | errors.Unavailable):
        # Temporary: nothing to fix here, so the traceback is not logged.
        _log.warning("call.unavailable", error=repr(error), evidence=evidence)
    else:
        _log.error("call.failed", error=repr(error), evidence=evidence, exc_info=error)
    for kind, words in _GONE:
        if isinstance(error, kind):
            return _passing(words, getattr(error, "reason", errors.Unavailable.reason))
    if isinstance(error, BlobDamaged):
        return type(error)(
            "a part of this content is damaged in the object store",
            attempt="nsml dataset push NAME PATH    of the same files repairs it\n"
            "nsml doctor storage    shows administrators all that is damaged",
        )
    if isinstance(error, _INSIDE):
        return type(error)("a part of the platform cannot be used now", attempt=_ASK)
    if isinstance(error, StoreError):
        return errors.Unavailable("the platform's store does not answer", attempt=_ASK)
    return errors.NsmlError("the platform made a mistake", attempt=_ASK)


def _passing(words: str, reason: str) -> errors.NsmlError:
    refusal = errors.Unavailable(words, attempt=_LOOK, retry_after_s=errors.RETRY_AFTER_S)
    refusal.reason = reason
    return refusal


def answering(
    method: Callable[[ServicerT, RequestT, Context], Awaitable[ResponseT]],
) -> Callable[[ServicerT, RequestT, Context], Awaitable[ResponseT]]:
    """Turn the refusals of a method with one response into the call's error."""

    @functools.wraps(method)
    async def answer(self: ServicerT, request: RequestT, context: Context) -> ResponseT:
        try:
            return await method(self, request, context)
        except (grpc.aio.AbortError, errors.NotLeader):
            raise  # the latter passes on to the leader: leadership/leader_forwarding.py
        except Exception as error:  # noqa: BLE001 - what nobody foresaw must not be told as it is
            await refuse(context, as_refusal(error))

    return answer


def streaming(
    method: Callable[[ServicerT, RequestT, Context], AsyncGenerator[ResponseT, None]],
) -> Callable[[ServicerT, RequestT, Context], AsyncGenerator[ResponseT, None]]:
    """Turn the refusals of a method with many responses into the call's error."""

    @functools.wraps(method)
    async def stream(
        self: ServicerT, request: RequestT, context: Context
    ) -> AsyncGenerator[ResponseT, None]:
        try:
            async with contextlib.aclosing(method(self, request, context)) as responses:
                async for response in responses:
                    yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            await refuse(context, as_refusal(error))

    return stream
