"""The program `nsml-agent`: settings needed before gRPC is imported, then the agent."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nsml.common.c_memory import keep_freed_memory
from nsml.common.program_logs import quiet_grpc
from nsml.common.python_gc import no_collection

if TYPE_CHECKING:
    from nodeagent.config import Settings


def main() -> NoReturn:
    """Run `nsml-agent --config FILE` until SIGTERM or SIGINT, or `nsml-agent doctor` once.

    With `--check` it only checks the settings and their files: exit code 0, or 1 with the problems on stderr. With
    `--check=settings` only the settings, for scripts that create the files before the start.
    """
    quiet_grpc()
    keep_freed_memory()
    if sys.argv[1:2] == ["doctor"]:
        from nodeagent.machine.examination import main as examine  # noqa: PLC0415 - it looks at everything

        sys.exit(examine(sys.argv[2:]))
    with no_collection():
        settings = _settings()
        from nodeagent.agent import run  # noqa: PLC0415 - it imports gRPC, which takes most of a start

    run(settings)


def _settings() -> Settings:
    """Return the settings, if they are not only checked."""
    parser = argparse.ArgumentParser(prog="nsml-agent", description="The node agent of nsml.")
    parser.add_argument("--config", type=Path, required=True, help="settings, a TOML file")
    parser.add_argument(
        "--check",
        nargs="?",
        const="files",
        choices=("files", "settings"),
        help="look at them and the files that they name, or at the settings alone; start nothing",
    )
    arguments = parser.parse_args()
    from nodeagent.config import SettingsError, read_settings, unreadable_files  # noqa: PLC0415 - after the help

    try:
        settings = read_settings(arguments.config, os.environ)
    except SettingsError as error:
        sys.exit(f"nsml-agent: {error}")
    if arguments.check:
        wrong = unreadable_files(settings) if arguments.check == "files" else []
        sys.exit("\n".join(f"nsml-agent: {one}" for one in wrong) or 0)
    return settings


if __name__ == "__main__":
    main()
