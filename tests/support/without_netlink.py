"""Run a program that does not hear of the machine's interfaces: `python -m tests.support.without_netlink PROGRAM ...`.

Chromium aborts what it loads when the machine gets or loses an address (ERR_NETWORK_CHANGED), and other tests'
agents make bridges all the time. Without a netlink socket it takes the machine to be online and asks no more.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys

from nodeagent.shim import namespaces, seccomp

_SOCKET_CALL = {"x86_64": 41, "aarch64": 198}
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _FIRST_ARGUMENT_AT = 0, 16
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def main() -> None:
    """Become the program."""
    code = (
        (_LOAD, 0, 0, _NUMBER_AT),
        (_EQUAL, 0, 3, _SOCKET_CALL[os.uname().machine]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_EQUAL, 0, 1, socket.AF_NETLINK),
        (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    )
    namespaces.prctl(namespaces.PR_SET_NO_NEW_PRIVS, 1)
    filtering = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    seccomp.Filter(filtering).attach()
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
