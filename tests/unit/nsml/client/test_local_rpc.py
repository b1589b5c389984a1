"""One answer without the gRPC library: the same as gRPC's, or none; never an error, never a wait."""

import itertools
import socket
import struct
import threading
from contextlib import contextmanager, suppress

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsml.client import local_rpc as single
from nsml.v1 import sessions_pb2 as pb
from tests.support.examples import examples
from tests.unit.nsml.client.contract_server import TOKEN, ContractServer

METHOD = "SessionService/ListSessions"
REQUEST = pb.ListSessionsRequest(filter=pb.SessionFilter(include_ended=True), page_size=2)


@pytest.fixture
def server():
    with ContractServer() as running:
        yield running


def ask(server, *, method=METHOD, request=REQUEST, token=TOKEN):
    return single.ask(server.socket, method, request.SerializeToString(), token=token)


def answer_of_grpc(server, token=TOKEN):
    with grpc.insecure_channel(f"unix:{server.socket}") as channel:
        call = channel.unary_unary(
            f"/nsml.v1.{METHOD}",
            request_serializer=pb.ListSessionsRequest.SerializeToString,
            response_deserializer=bytes,
        )
        return call(REQUEST, metadata=(("authorization", f"Bearer {token}"),), timeout=60)


@pytest.mark.parametrize("size", [0, 1, 100, 16_379, 16_384, 70_000, 3_000_000])
def test_the_answer_is_that_of_grpc(server, size):
    server.state.add("kim/mnist/1", memo="m" * size)
    server.state.add("kim/김/2", memo="오늘")
    answer = ask(server)
    assert answer == answer_of_grpc(server)
    assert len(pb.ListSessionsResponse.FromString(answer).sessions) == 2


def test_no_sessions_are_an_answer_too(server):
    assert ask(server) == answer_of_grpc(server)


@pytest.mark.parametrize("length", [1, 119, 120, 126, 127, 128, 255, 400, 5000])
def test_tokens_of_every_length_arrive(server, length):
    server.state.tokens[token := "t" * length] = "kim"
    assert ask(server, token=token) == answer_of_grpc(server, token=token)


def test_refusals_are_no_answers(server):
    assert ask(server, token="wrong") is None
    assert ask(server, token=None) is None
    assert ask(server, method="SessionService/NoSuchCall") is None
    assert ask(server, method="NoSuchService/ListSessions") is None


def test_nobody_there_is_no_answer(server, tmp_path):
    assert single.ask(str(tmp_path / "none"), METHOD, b"") is None
    assert single.ask(str(tmp_path / ("n" * 200)), METHOD, b"") is None
    (tmp_path / "file").write_text("no socket")
    assert single.ask(str(tmp_path / "file"), METHOD, b"") is None
    server.cut()
    assert ask(server) is None


def test_what_is_too_large_is_no_answer(server):
    assert ask(server, token="t" * (1 << 14)) is None
    assert ask(server, request=pb.ListSessionsRequest(cursor="c" * (1 << 14))) is None


@pytest.mark.parametrize("excess", [1, 1 << 20])
def test_too_large_an_answer_is_none(server, excess):
    server.state.add("kim/mnist/1", memo="m" * ((4 << 20) + excess))
    assert ask(server) is None


# Servers that are none


@contextmanager
def speaker(folder, answers, *, closes=True):
    """Say the next of `answers` to whoever connects, after the first of their words."""
    path = str(folder / "speaker")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def serve():
        for words in answers:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):  # who is given up may be gone already
                connection.recv(1 << 16)
                connection.sendall(words)
                if closes:
                    connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield path
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


def frame(kind, payload=b"", *, flags=0, stream=0):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def message(text):
    return b"\0" + struct.pack(">I", len(text)) + text


HELLO = frame(4) + frame(4, flags=1)
HEADERS = frame(1, b"\x88", flags=4, stream=1)
TRAILERS = frame(1, b"\x00\x01a\x01b", flags=5, stream=1)
WHOLE = HELLO + HEADERS + frame(0, message(b"answer"), stream=1) + TRAILERS

SOUND = {
    "one frame": WHOLE,
    "pieces": HELLO
    + HEADERS
    + b"".join(frame(0, bytes([byte]), stream=1) for byte in message(b"answer"))
    + TRAILERS,
    "padding": HELLO
    + HEADERS
    + frame(0, b"\x03" + message(b"answer") + b"\0\0\0", flags=8, stream=1)
    + TRAILERS,
    "pings and unknown frames between": frame(4, struct.pack(">HI", 4, 1 << 20))
    + frame(6, b"12345678")
    + HEADERS
    + frame(0xFB, b"what", stream=1)
    + frame(0, message(b"answer"), stream=1)
    + frame(8, b"\0\0\0\1")
    + TRAILERS,
    "the end on the data": HELLO + HEADERS + frame(0, message(b"answer"), flags=1, stream=1),
}
BROKEN = {
    "nothing": b"",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "no message": HELLO + TRAILERS,
    "two messages": HELLO + frame(0, message(b"a") + message(b"b"), stream=1) + TRAILERS,
    "compressed": HELLO + frame(0, b"\1" + message(b"a")[1:], stream=1) + TRAILERS,
    "a message cut short": HELLO + frame(0, message(b"answer")[:-1], stream=1) + TRAILERS,
    "reset": HELLO
    + HEADERS
    + frame(0, message(b"answer"), stream=1)
    + frame(3, b"\0\0\0\2", stream=1),
    "going away": HELLO + frame(7, b"\0" * 8) + WHOLE,
    "a huge frame": HELLO + struct.pack(">I", 1 << 20)[1:] + b"\0\0\0\0\0\1" + b"a" * 100,
    "padding beyond the frame": HELLO + frame(0, b"\xff12", flags=8, stream=1) + TRAILERS,
    "an empty padded frame": HELLO + frame(0, b"", flags=8, stream=1) + TRAILERS,
    "more than the window": HELLO + frame(0, b"a" * (1 << 14), stream=1) * 300 + TRAILERS,
}


def test_what_keeps_the_protocol_is_understood(tmp_path):
    with speaker(tmp_path, SOUND.values()) as path:
        for name in SOUND:
            assert single.ask(path, METHOD, b"") == b"answer", name


def test_what_does_not_is_no_answer(tmp_path):
    with speaker(tmp_path, BROKEN.values()) as path:
        for name in BROKEN:
            assert single.ask(path, METHOD, b"") is None, name


def test_an_answer_cut_at_any_byte_is_none(tmp_path):
    with speaker(tmp_path, [WHOLE[:length] for length in range(len(WHOLE))]) as path:
        for _ in range(len(WHOLE)):
            assert single.ask(path, METHOD, b"") is None


def test_a_server_that_says_no_more_is_given_up(tmp_path):
    with speaker(tmp_path, [WHOLE[:-1]], closes=False) as path:
        assert single.ask(path, METHOD, b"", patience_s=0.05) is None


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4))
def test_changed_bytes_never_raise(tmp_path_factory, changes):
    words = bytearray(WHOLE)
    for place, byte in changes:
        words[place] = byte
    with speaker(tmp_path_factory.mktemp("s"), itertools.repeat(bytes(words), 1)) as path:
        answer = single.ask(path, METHOD, b"")
    assert answer is None or isinstance(answer, bytes)
