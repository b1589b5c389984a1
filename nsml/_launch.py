"""`python -m nsml._launch LAUNCHER ENTRY ARGS`: starts the processes of an entry, as `nsml run --launch LAUNCHER` asks.

It runs on each replica, in the session's own Python, and takes what a launcher has to know of the others from the
environment (docs/sdk-protocol.md). torchrun, accelerate, deepspeed and jax take its place; mpirun and ray run below it.
"""

from __future__ import annotations

import os
import shlex
import sys

from nsml._launchers import (
    DEEPSPEED_PROCESS,
    MPI_PROCESS,
    WORKING_FOLDER,
    CannotLaunch,
    become,
    command_of,
    executable,
    has_package,
    print_error,
    variables_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Sequence

_NOT_FOUND = 127


def main(arguments: Sequence[str]) -> NoReturn:
    """Start the processes; end as they do."""
    launcher, *program = arguments
    if launcher.startswith("--local_rank="):  # deepspeed puts it before the words of its program
        _run_process(launcher, program[1:])
    if launcher == MPI_PROCESS:
        os.chdir(os.environ[WORKING_FOLDER])
        if os.environ.get("GLOO_SOCKET_IFNAME"):
            # Of this node: Open MPI would try all networks, also those of containers, which others do not reach.
            os.environ.setdefault("OMPI_MCA_btl_tcp_if_include", os.environ["GLOO_SOCKET_IFNAME"])
        # With mpi4py a process that raises ends all: else the others wait for it without an end.
        runner = ["-m", "mpi4py"] if has_package("mpi4py") else []
        become(["python", "-u", *runner, *program])
    try:
        _check_entry(program[0])
        if launcher in ("mpirun", "ray"):
            from nsml import _gang

            sys.exit(_gang.run(launcher, program))
        os.environ.update(variables_of(launcher, os.environ))
        command = command_of(launcher, program, os.environ)
        if launcher == "deepspeed":
            # It numbers devices from 0 in CUDA_VISIBLE_DEVICES: its processes take back those of the session.
            at = len(command) - len(program)
            command[at:at] = ["--module", "nsml._launch", DEEPSPEED_PROCESS]
            os.environ["NSML_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        become(executable(command))
    except CannotLaunch as error:
        print_error(error)
        sys.exit(_NOT_FOUND)


def _run_process(local_rank: str, program: Sequence[str]) -> NoReturn:
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.pop("NSML_VISIBLE_DEVICES", "")
    from nsml import _labelled

    entry, *arguments = program
    sys.exit(_labelled.run(["python", "-u", entry, local_rank, *arguments], os.environ))


def _check_entry(entry: str) -> None:
    if not os.path.isfile(entry):
        raise CannotLaunch(
            f"no such entry file: {shlex.quote(entry)}", why=f"looked in {os.getcwd()}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
