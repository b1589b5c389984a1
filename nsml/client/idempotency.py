"""Which calls may be retried: the option `idempotency_level` of their rpc in the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import MethodOptions
    from google.protobuf.message import Message


def is_idempotent(method: str, request: type[Message]) -> bool:
    """Whether a call may be sent to two control planes, even concurrently; `method` is "Service/Method"."""
    options = _options(method, request)
    return options.idempotency_level != options.IDEMPOTENCY_UNKNOWN


def only_reads(method: str, request: type[Message]) -> bool:
    """Whether a call changes nothing."""
    options = _options(method, request)
    return options.idempotency_level == options.NO_SIDE_EFFECTS


def _options(method: str, request: type[Message]) -> MethodOptions:
    # A service and the requests of its methods are in one file.
    service, _, name = method.partition("/")
    options: MethodOptions = (
        request.DESCRIPTOR.file.services_by_name[service].methods_by_name[name].GetOptions()
    )
    return options
