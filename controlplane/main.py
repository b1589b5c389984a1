"""The program `nsml-controlplane`: settings that precede the import of gRPC, then the server."""

from __future__ import annotations

from typing import NoReturn

from nsml.common.c_memory import keep_freed_memory
from nsml.common.grpc_polling import poll_in_place
from nsml.common.program_logs import quiet_grpc
from nsml.common.python_gc import no_collection


def main() -> NoReturn:
    """Run it."""
    quiet_grpc()
    poll_in_place()
    keep_freed_memory()
    with no_collection():
        from controlplane.startup.server import main as run  # noqa: PLC0415 - it imports gRPC

    run()


if __name__ == "__main__":
    main()
