"""Listening sockets of this process that look as if another account had made them."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives sockets to others")


@contextlib.contextmanager
def listening_as(port: int, uid: int) -> Iterator[None]:
    """The sockets of this process that listen at a port are another account's, while inside."""
    mine = list(_listening(port))
    assert mine, f"nobody here listens at {port}"
    for one in mine:
        os.fchown(one, uid, -1)
    try:
        yield
    finally:
        for one in mine:
            os.fchown(one, os.getuid(), -1)
            os.close(one)


def _listening(port: int) -> Iterator[int]:
    for name in sorted(one.name for one in Path("/proc/self/fd").iterdir()):
        try:
            is_socket = stat.S_ISSOCK(os.fstat(int(name)).st_mode)
        except OSError:  # the one of the folder itself
            continue
        if not is_socket:
            continue
        with socket.socket(fileno=os.dup(int(name))) as one:
            is_tcp = one.family in {socket.AF_INET, socket.AF_INET6}
            listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if is_tcp and listens and one.getsockname()[1] == port:
                yield os.dup(one.fileno())
