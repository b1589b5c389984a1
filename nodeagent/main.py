"""The program `nsml-agent`: settings needed before gRPC is imported, then the agent."""

from __future__ import annotations

from typing import NoReturn

from nsml.common.c_memory import keep_freed_memory
from nsml.common.program_logs import quiet_grpc
from nsml.common.python_gc import no_collection


def main() -> NoReturn:
    """Run it."""
    quiet_grpc()
    keep_freed_memory()
    with no_collection():
        from nodeagent.agent import main as run  # noqa: PLC0415 - it imports gRPC

    run()


if __name__ == "__main__":
    main()
