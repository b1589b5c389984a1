"""The process of this control plane's jump host, and its orders."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from controlplane.access.secret import new_secret
from controlplane.access.ssh_authority import SshAuthority
from controlplane.core.serving_process import ServingProcess

if TYPE_CHECKING:
    import socket

    from controlplane.core.core import Core


def jump_host_process(
    core: Core, listener: socket.socket, *, address: str, server: str
) -> ServingProcess:
    """Return the process: `address` is `listener`'s address for users, `server` ours for the process.

    Each process gets a secret of its own, which is kept only in memory, and only allows it to connect users of
    public keys to ssh servers that require such a key themselves.
    """
    authority = SshAuthority(core.backends.authority, core.wall)

    def first() -> bytes:
        secret = new_secret(core.random_bytes)
        core.identities.admit_jump_host(secret)
        order = {
            "server": server,
            "secret": secret.text,
            "host_key": authority.jump_host_key.hex(),
        }
        return json.dumps(order).encode() + b"\n"

    return ServingProcess(
        "controlplane.jump_host.main",
        listener,
        name="jump host",
        address=address,
        clock=core.clock,
        first=first,
    )
