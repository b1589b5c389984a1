"""How gRPC's C core waits for its sockets; said before gRPC is imported, as `program_logs.quiet_grpc` is."""

from __future__ import annotations

import os
from typing import Final

IN_PLACE: Final = ("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")


def poll_in_place() -> None:
    """Let the thread that waits for calls read their sockets itself.

    By itself the core has a pool of threads read them, which hand each other every piece: for a gigabyte over a Unix
    socket 55,000 changes of threads in place of 31,000, and a fifth of what the call costs client and server. Over TLS
    it makes no difference. What the user has set stands.
    """
    os.environ.setdefault(*IN_PLACE)
