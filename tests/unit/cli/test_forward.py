"""What `nsml forward` says before anything is forwarded; tests/e2e/test_forward.py has the rest."""

import socket

from nsml.v1 import sessions_pb2 as pb


def test_a_session_that_is_not_there(nsml):
    result = nsml("forward", "kim/mnist/7", "web", check=False)
    assert result.code == 5
    assert result.stdout == ""


def test_a_session_that_has_ended(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED)
    result = nsml("forward", "kim/mnist/1", "web", check=False)
    assert (result.code, result.stdout) == (6, "")
    assert "kim/mnist/1 has ended" in result.stderr


def test_a_number_that_is_no_port(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_RUNNING)
    for port in ("0", "70000"):
        result = nsml("forward", "kim/mnist/1", port, check=False)
        assert (result.code, result.stdout) == (2, "")
        assert "PORT|SERVICE: " in result.stderr


def test_a_name_that_no_service_has_is_refused_before_an_address_is_printed(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_RUNNING)
    for name in ("53/udp", "Web", "a b", "x" * 33, "caf\u00e9"):
        result = nsml("forward", "kim/mnist/1", name, check=False)
        assert (result.code, result.stdout) == (2, "")
        assert "is not a port or service" in result.stderr


def test_a_port_that_is_taken(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_RUNNING)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = nsml("forward", "kim/mnist/1", "web", "--port", str(port), check=False)
    assert (result.code, result.stdout) == (6, "")
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


def test_the_address_is_all_that_is_printed(nsml, state):
    state.add("kim/mnist/1", pb.SESSION_STATE_RUNNING)
    result = nsml("forward", "@last", "web", "--timeout", "200ms", check=False)
    assert result.code == 8
    host, port = result.stdout.strip().split(":")
    assert (host, port.isdigit()) == ("127.0.0.1", True)
    assert "web of kim/mnist/1" in result.stderr


def test_two_ports_in_one_word_are_refused_with_the_option_for_them(nsml, state):
    state.add("kim/mnist/1")
    result = nsml("forward", "kim/mnist/1", "18888:8888", check=False)
    assert result.code == 2
    assert "nsml forward SESSION 8888 --port 18888" in result.stderr
    assert "why: --port is the port on this machine" in result.stderr
