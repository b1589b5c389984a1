"""Asks a platform, as a user, every rpc that only reads, about given things, and returns all that it answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions

from controlplane.access.access_table import TABLE, AllowedCallers

Things = Mapping[str, Sequence[str]]
"""What to ask about: values by name of the field, such as names of sessions and digests."""
ANSWERS_WITHIN_S = 60.0
WATCHED_S = 0.2
_MOST_REQUESTS = 100
_DEPTH = 2


def reading() -> dict[str, MethodDescriptor]:
    """Every rpc for users that changes nothing and takes one request, by its path."""
    found = {}
    for path, row in TABLE.items():
        service, _, name = path.removeprefix("/").partition("/")
        if not service.startswith("nsml.") or not row.doors & AllowedCallers.USER:
            continue
        method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
        reads = method.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
        if reads and not method.client_streaming:
            found[path] = method
    return found


def requests(shape: Descriptor, things: Things) -> list[Any]:
    """Every combination of values of its fields; flags all false, and all true."""
    fields = [field for field in shape.fields if things.get(field.name)]
    chosen = itertools.product(
        *([*things[field.name], *([""] if field.is_repeated else [])] for field in fields)
    )
    made = []
    for values in itertools.islice(chosen, _MOST_REQUESTS):
        for flag in (False, True):
            request = message_factory.GetMessageClass(shape)()
            _set_flags(request, flag=flag)
            for field, value in zip(fields, values, strict=True):
                _set(request, field, value)
            if request not in made:
                made.append(request)
    return made


def _asks_a_node(shape: Descriptor, things: Things) -> bool:
    """What a node itself answers, of its own: not asked where none was given."""
    needed = "node" in shape.fields_by_name and "session" not in shape.fields_by_name
    return needed and not things.get("node")


def _set_flags(request: Any, *, flag: bool) -> None:
    for field in request.DESCRIPTOR.fields:
        if field.type == field.TYPE_BOOL and not field.containing_oneof and not field.is_repeated:
            setattr(request, field.name, flag and field.name != "follow")


def _set(request: Any, field: FieldDescriptor, value: str) -> None:
    if field.message_type is not None:
        inner = getattr(request, field.name)
        if "session" in inner.DESCRIPTOR.fields_by_name:
            inner.session = value
    elif field.is_repeated:
        getattr(request, field.name).extend([value] if value else [])
    else:
        setattr(request, field.name, value)


async def every_answer(
    channel: grpc.aio.Channel, metadata: Any, things: Things
) -> dict[str, list[bytes]]:
    """Return the bytes of all answers and refusals, by rpc."""
    found: dict[str, list[bytes]] = {}
    for path, method in reading().items():
        if _asks_a_node(method.input_type, things):
            continue
        for request in requests(method.input_type, things):
            async for data in _answers(channel, path, method, request, metadata):
                found.setdefault(path.removeprefix("/nsml.v1."), []).append(data)
    return found


async def _answers(
    channel: grpc.aio.Channel, path: str, method: MethodDescriptor, request: Any, metadata: Any
) -> AsyncIterator[bytes]:
    encode = type(request).SerializeToString
    end: Any = getattr(grpc.aio, "EOF")  # noqa: B009 - its types do not have it
    try:
        if not method.server_streaming:
            call = channel.unary_unary(path, request_serializer=encode, response_deserializer=None)
            yield await call(request, metadata=metadata, timeout=ANSWERS_WITHIN_S)
            return
        stream = channel.unary_stream(path, request_serializer=encode, response_deserializer=None)
        answers = stream(request, metadata=metadata, timeout=ANSWERS_WITHIN_S)
        is_watch = method.name.startswith("Watch")
        try:
            while True:
                async with asyncio.timeout(WATCHED_S if is_watch else ANSWERS_WITHIN_S):
                    answer: Any = await answers.read()
                if answer is end:
                    return
                yield answer
        except TimeoutError:
            answers.cancel()
    except grpc.aio.AioRpcError as error:
        words = error.details() or ""
        metadata = cast(
            "tuple[tuple[str, str | bytes], ...]", tuple(error.trailing_metadata() or ())
        )
        trailing = b" ".join(
            value if isinstance(value, bytes) else value.encode() for _, value in metadata
        )
        yield words.encode() + b" " + trailing
