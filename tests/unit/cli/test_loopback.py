"""Who is at the other end of a connection on this machine, and which requests are for it."""

import os
import socket
import subprocess
import sys

import pytest

from cli.sessions.loopback import MOST_HEAD_BYTES, may_pass, owner_in, refusal, user_at

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
LINE = (
    "   1: {near} {far} {state} 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0"
)
PEER, HERE = ("127.0.0.1", 0xC001), ("127.0.0.1", 0x1F90)
NEAR, FAR = "0100007F:C001", "0100007F:1F90"


def table(near=NEAR, far=FAR, state="01", uid=1000, inode=77):
    return f"{HEAD}\n{LINE.format(near=near, far=far, state=state, uid=uid, inode=inode)}\n"


@pytest.mark.skipif(sys.byteorder != "little", reason="the lines are of such a machine")
@pytest.mark.parametrize(
    ("text", "owner"),
    [
        (table(), 1000),
        (table(state="05"), 1000),
        (table(uid=0, inode=0, state="06"), None),
        (table(near=FAR, far=NEAR, uid=5), None),
        (table(near="0100007F:C002"), None),
        (table(far="0200007F:1F90"), None),
        (HEAD, None),
        ("", None),
    ],
)
def test_the_owner_of_the_other_end(text, owner):
    assert owner_in([text], PEER, HERE) == owner
    assert owner_in(["", text], PEER, HERE) == owner


@pytest.mark.skipif(sys.byteorder != "little", reason="the line is of such a machine")
def test_a_socket_for_both_versions():
    mapped = "0000000000000000FFFF00000100007F"
    text = table(near=f"{mapped}:C001", far=f"{mapped}:1F90", uid=7)
    assert owner_in(["", text], PEER, HERE) == 7


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="by Linux's list of connections")
def test_this_machines_own_list():
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")):
            with socket.socket(family) as client:
                client.connect((host, here[1]))
                with server.accept()[0] as accepted:
                    assert user_at(accepted.getpeername(), here) == os.geteuid()
                    client.close()
                    assert user_at(accepted.getpeername(), here) is None
        if os.geteuid() == 0:
            script = f"exec 3<>/dev/tcp/{here[0]}/{here[1]} && cat <&3"
            command = ["/bin/bash", "-c", script]
            stranger = subprocess.Popen(command, user=65_534, cwd="/")
            with server.accept()[0] as accepted:
                assert user_at(accepted.getpeername(), here) == 65_534
            stranger.wait()


def request(*hosts, target="/", version="1.1"):
    lines = [f"GET {target} HTTP/{version}", *(f"Host: {host}" for host in hosts), "Accept: */*"]
    return "\r\n".join([*lines, "", "body"]).encode()


@pytest.mark.parametrize(
    ("begun", "passes"),
    [
        (b"", None),
        (b"GET", None),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", None),
        (request("localhost"), True),
        (request("LOCALHOST.:8080"), True),
        (request("a.localhost"), True),
        (request("127.0.0.1:6006"), True),
        (request("127.8.8.8"), True),
        (request("[::1]:6006"), True),
        (request("box:1"), True),
        (request(version="1.0"), True),
        (request("evil.example"), False),
        (request("box.evil.example"), False),
        (request("127.0.0.1.evil.example"), False),
        (request("evil.example:80@127.0.0.1"), False),
        (request("0.0.0.0"), False),
        (request(""), False),
        (request("localhost", "evil.example"), False),
        (request("evil.example", target="http://localhost/"), False),
        (request("evil.example").replace(b"\r", b""), False),
        (request("evil.example").replace(b"Host: ", b"hOST :\t"), False),
        (request("evil.example").replace(b"GET", b"MY-OWN"), False),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * MOST_HEAD_BYTES, False),
        (b"GET key\r\n", True),
        (b"PRI * HTTP/2.0\r\n\r\n", True),
        (b"\x16\x03\x01", True),
        (b"SSH-2.0-OpenSSH_9.6\r\n", True),
        (b"a line that is long" * MOST_HEAD_BYTES, False),
        (b"GET /" + b"a" * MOST_HEAD_BYTES, False),
        (b"A" * 41 + b" / HTTP/1.1\r\nHost: evil.example\r\n\r\n", False),
        (b"A" * MOST_HEAD_BYTES, False),
        (b"a line that ends\n" + b"x" * MOST_HEAD_BYTES, True),
    ],
)
def test_which_beginnings_are_passed_on(begun, passes):
    assert may_pass(begun, ["box"]) is passes


def test_a_refusal_says_what_to_do():
    head, body = refusal("nsml forward --host NAME").split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 421 ")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"--host NAME" in body
