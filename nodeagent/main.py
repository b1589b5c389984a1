"""The program `nsml-agent`: what has to be said before gRPC is imported, and then the agent."""

from __future__ import annotations

import gc
from typing import NoReturn

from nsml.common.program_logs import quiet_grpc


def main() -> NoReturn:
    """Run it."""
    quiet_grpc()
    gc.disable()  # imports make no garbage, and looking for it takes a tenth of a start
    from nodeagent.agent import main as run  # noqa: PLC0415 - it imports gRPC

    gc.enable()
    run()


if __name__ == "__main__":
    main()
