"""Every method of every service, called by everybody with nonsense: no mistake of ours is ever the answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from controlplane.access.access_table import TABLE
from controlplane.domain.identity import Role
from tests.unit.controlplane.rig import Rig, Stubs, platform

SEED = int(os.environ.get("NSML_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
ROUNDS = int(os.environ.get("NSML_FUZZ_ROUNDS", "4"))
"""Requests of each kind of nonsense for each method and identity."""
MISTAKES = {"UNKNOWN", "INTERNAL", "DATA_LOSS"}
CLIENTS_OWN = "Internal error from Core"
WITHIN_S = 0.1
"""A stream that goes on after that is fine; a call that does not answer is not looked at here."""

TEXTS = (
    "",
    "a",
    "kim",
    "kim/None/1",
    "@last",
    "..",
    "../../etc/passwd",
    "/",
    "-x",
    "\0",
    "a\0b",
    "\x1b[2J",
    "\u202e",
    "é",
    "💥",
    "%s%n",
    "a/b/c/d/e",
    "x" * 300,
    "x" * 70_000,
    "1e999",
    "[",
    "(a+)+$",
    "0" * 64,
    "b3:" + "0" * 64,
    "None",
    "*" * 100,
    "key>=nan",
)
FLOATS = (0.0, -0.0, -1.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))
INTEGERS = (
    0,
    1,
    -1,
    2,
    255,
    1 << 15,
    (1 << 31) - 1,
    -(1 << 31),
    (1 << 32) - 1,
    (1 << 63) - 1,
    -(1 << 63),
    (1 << 64) - 1,
)
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}


def scalar(field: FieldDescriptor, rng: random.Random, known: list[str]) -> Any:
    kind = field.cpp_type
    if kind in _BOUNDS:
        low, high = _BOUNDS[kind]
        return min(high, max(low, rng.choice(INTEGERS)))
    if kind in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        return rng.choice(FLOATS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([0, 1, 2, 3, 99, -1, (1 << 31) - 1])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice([b"", b"\0", b"\xff\xfe", rng.randbytes(40), b"x" * 5000])
    return rng.choice(known) if rng.random() < 0.4 else rng.choice(TEXTS)


def fill(message: Any, rng: random.Random, known: list[str], depth: int = 0) -> Any:
    """Some fields, or nearly all, with values that a program would never send; the rest stays as it is."""
    share = rng.choice((0.1, 0.2, 0.7))
    for field in message.DESCRIPTOR.fields:
        if rng.random() > share:
            continue
        count = rng.choice((0, 1, 1, 2, 5)) if field.is_repeated else 1
        for _ in range(count):
            put(message, field, rng, known, depth)
    return message


def sound(message: Any, rng: random.Random) -> Any:
    """A request that is fine but for what is changed of it: else nothing behind the first check is reached."""
    fields = message.DESCRIPTOR.fields_by_name
    if "request_id" in fields:
        message.request_id = f"r{rng.randrange(1 << 40)}"
    if "spec" in fields:
        message.spec.argv.append("true")
    known = (("session", "kim/None/1"), ("name", "a"), ("node", "a"), ("user", "kim"))
    for name, text in known:
        if name in fields and fields[name].type == FieldDescriptor.TYPE_STRING:
            setattr(message, name, text)
    if "sessions" in fields:
        message.sessions.append("kim/None/1")
    if "target" in fields and fields["target"].message_type is not None:
        sound(message.target, rng)
    if "register" in fields:
        message.register.node = "a"
    return message


def put(
    message: Any, field: FieldDescriptor, rng: random.Random, known: list[str], depth: int
) -> None:
    inner = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        key = scalar(kind.fields_by_name["key"], rng, known)
        value = kind.fields_by_name["value"]
        if value.message_type is not None:
            inner[key].SetInParent()
        else:
            inner[key] = scalar(value, rng, known)
    elif kind is not None:
        part = inner.add() if field.is_repeated else inner
        part.SetInParent()
        if depth < 4:
            fill(part, rng, known, depth + 1)
    elif field.is_repeated:
        inner.append(scalar(field, rng, known))
    else:
        setattr(message, field.name, scalar(field, rng, known))


def broken(kind: Descriptor, rng: random.Random) -> bytes:
    """Bytes that are no message of this kind, or hardly one."""
    made = rng.randrange(6)
    if made == 0:
        return rng.randbytes(rng.randrange(1, 60))
    if made == 1:  # a text that is no UTF-8, in the first field that has one
        texts = [one for one in kind.fields if one.type == FieldDescriptor.TYPE_STRING]
        number = texts[0].number if texts else 1
        return tag(number, 2) + b"\x03\xff\xfe\xfd"
    if made == 2:  # a length without an end
        return tag(1, 2) + b"\xff\xff\xff\xff\x0f"
    if made == 3:  # groups, which nobody writes any more, and do not end
        return tag(rng.randrange(1, 9), 3) * rng.randrange(1, 300)
    if made == 4:  # another type in each field
        return b"".join(tag(one.number, 1) + struct.pack("<d", float("nan")) for one in kind.fields)
    return b"\x0a\x02" * 200 + b"\x00"


def tag(number: int, wire: int) -> bytes:
    value, data = number << 3 | wire, b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


def methods() -> Iterator[tuple[str, MethodDescriptor]]:
    pool = descriptor_pool.Default()
    # Those last that may end the callers' own tokens.
    for method in sorted(TABLE, key=lambda one: one.endswith(("/RevokeToken", "/DeleteUser"))):
        service, _, name = method.removeprefix("/").partition("/")
        if service.startswith("nsml."):
            yield method, pool.FindServiceByName(service).methods_by_name[name]


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Those in the log; gRPC has some of its own, where a client is gone before it is answered, or an earlier test's loop is."""
    found = [one.getMessage() for one in caplog.records if one.exc_info]
    own = ("ExecuteBatchError", "PollerCompletionQueue._handle_events")
    return [words for words in found if not any(one in words for one in own)]


async def code_of(
    channel: Any, method: str, one: MethodDescriptor, data: Iterable[bytes], who: Stubs
) -> tuple[str, str]:
    """What the server answers. A write that its answer cuts short may be an error of the client's own: once more."""
    asked = list(data)
    while (answer := await _asked_once(channel, method, one, asked, who))[1] == CLIENTS_OWN:
        pass
    return answer


async def _asked_once(
    channel: Any, method: str, one: MethodDescriptor, asked: list[bytes], who: Stubs
) -> tuple[str, str]:
    timeout = WITHIN_S if one.server_streaming else 30
    kinds = {True: "stream", False: "unary"}
    make = getattr(channel, f"{kinds[one.client_streaming]}_{kinds[one.server_streaming]}")
    call = make(method)(
        *(() if one.client_streaming else asked), metadata=who.metadata, timeout=timeout
    )
    if one.client_streaming:
        # A call that is refused while its requests are written is one all the same.
        with contextlib.suppress(Exception):
            for message in asked:
                await call.write(message)
            await call.done_writing()
    try:
        if one.server_streaming:
            while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
                pass
        else:
            await call
    except grpc.aio.AioRpcError:
        return (await call.code()).name, await call.details() or ""
    return "OK", ""


async def identities(rig: Rig) -> dict[str, Stubs]:
    node = await rig.plane.core.accounts.create_node_token("a")
    return {
        "root": await rig.user("root", role=Role.ADMIN),
        "kim": await rig.user("kim"),
        "node": Stubs(await rig.channel(), node.secret.text),
        "nobody": Stubs(await rig.channel(), ""),
    }


@pytest.mark.timeout(120)
async def test_nonsense_is_never_answered_with_a_mistake_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    print("NSML_FUZZ_SEED", SEED)  # shown where it fails
    rng = random.Random(SEED)
    wrong: list[tuple[Any, ...]] = []
    with structlog.testing.capture_logs() as said:
        async with platform() as rig:
            who = await identities(rig)
            known = ["root", "kim", "a", (await who["kim"].submit()).name]
            channel = await rig.channel()

            async def attack(method: str, one: MethodDescriptor, name: str, seed: int) -> None:
                rng = random.Random(seed)
                make = message_factory.GetMessageClass(one.input_type)
                for number in range(2 * ROUNDS):
                    if number % 2:
                        data = [broken(one.input_type, rng)]
                    else:
                        count = rng.choice((1, 2, 3)) if one.client_streaming else 1
                        asked = [fill(sound(make(), rng), rng, known) for _ in range(count)]
                        data = [message.SerializeToString() for message in asked]
                    code, words = await code_of(channel, method, one, data, who[name])
                    if code in MISTAKES:
                        wrong.append((method, name, seed, code, words, data[0][:80]))

            for method, one in methods():
                await asyncio.gather(
                    *(attack(method, one, name, rng.randrange(1 << 32)) for name in who)
                )
            # It still stands.
            judge = await rig.user("judge", role=Role.ADMIN)
            assert (await judge.submit()).owner == "judge"
    assert not wrong, (
        SEED,
        wrong[:5],
        [one for one in said if one.get("log_level") == "error"][:3],
    )
    mistakes = [one for one in said if one.get("exc_info") or one.get("event") == "call.failed"]
    assert not mistakes, (SEED, mistakes[:3])
    assert not tracebacks(caplog), (SEED, caplog.text[-2000:])


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff", b"\x0a\x03\xff\xfe\xfd", b"\x0a\xff\xff\xff\xff\x0f"]
)
async def test_bytes_that_are_no_message_are_the_callers_mistake(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with platform() as rig:
        who = await identities(rig)
        channel = await rig.channel()
        for method, one in methods():
            if (
                one.input_type.fields
                and one.input_type.fields[0].type == FieldDescriptor.TYPE_STRING
            ):
                for name, row in (("root", "USER"), ("nobody", "")):
                    code, words = await code_of(channel, method, one, [data], who[name])
                    if not row:
                        assert code in {"UNAUTHENTICATED", "INVALID_ARGUMENT"}, method
                    else:
                        assert code in {"INVALID_ARGUMENT", "PERMISSION_DENIED"}, (method, words)
    assert not tracebacks(caplog), caplog.text[-2000:]
