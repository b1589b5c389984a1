import socket

import pytest

from nsml.common import local_peers
from nsml.common.local_peers import UNKNOWN_UID, uids_listening
from tests.support.listeners import listening_as, needs_root


def no_netlink(*_):
    raise OSError("not here")


def bound_alone(family: socket.AddressFamily, address: str, host: str) -> socket.socket:
    """A socket on a port on which nothing listens at any address of the host: one that is free here may be taken there."""
    while True:
        one = socket.socket(family, socket.SOCK_STREAM)
        one.bind((address, 0))
        if not uids_listening(host, one.getsockname()[1]):
            return one
        one.close()


@needs_root
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize(
    ("family", "address", "host"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "127.0.0.1", "LocalHost"),
        (socket.AF_INET, "0.0.0.0", "127.0.0.7"),
        (socket.AF_INET6, "::1", "localhost"),
        (socket.AF_INET6, "::", "127.0.0.1"),
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
def test_who_may_answer_is_found(family, address, host, asked, monkeypatch):
    if not asked:
        monkeypatch.setattr(local_peers, "_asked_listening", no_netlink)
    with bound_alone(family, address, host) as one:
        port = one.getsockname()[1]
        one.listen()
        assert uids_listening(host, port) == {0}
        with listening_as(port, 1_900_000_003):
            assert uids_listening(host, port) == {1_900_000_003}
        assert uids_listening("127.9.9.9", port) == ({0} if address in {"0.0.0.0", "::"} else set())


def test_what_is_no_address_or_has_no_table_is_not_known(monkeypatch, tmp_path):
    assert uids_listening("127.0.0.999", 80) == set()
    monkeypatch.setattr(local_peers, "_asked_listening", no_netlink)
    monkeypatch.setattr(local_peers, "_TABLES", (tmp_path / "none", tmp_path / "none"))
    assert uids_listening("127.0.0.1", 80) == set()


def test_tables_are_read_up_to_a_bound_and_no_further_than_listeners(monkeypatch, tmp_path):
    def line(port, state, uid):
        return f"  0: 0100007F:{port:04X} 00000000:0000 {state} 0:0 00:0 0 {uid} 0 1\n"

    table = tmp_path / "tcp"
    monkeypatch.setattr(local_peers, "_asked_listening", no_netlink)
    monkeypatch.setattr(local_peers, "_TABLES", (table, tmp_path / "none"))
    monkeypatch.setattr(local_peers, "_MOST_LISTENING", 5)
    table.write_text("head\n" + line(80, "0A", 7) + line(81, "01", 8) + line(80, "0A", 9))
    assert uids_listening("127.0.0.1", 80) == {7}
    table.write_text("head\n" + "".join(line(1_000 + one, "0A", 9) for one in range(9)))
    assert uids_listening("127.0.0.1", 80) == {UNKNOWN_UID}
