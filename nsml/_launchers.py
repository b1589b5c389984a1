"""Launchers of `nsml run --launch`: their command lines, and the variables that they need."""

from __future__ import annotations

import os
import shutil
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, NoReturn, Sequence

LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "ray", "jax")
_PACKAGES = {
    "torchrun": ("torch", "torch.distributed.run"),
    "accelerate": ("accelerate", "accelerate.commands.accelerate_cli"),
    "deepspeed": ("deepspeed", "deepspeed.launcher.runner"),
    "mpirun": ("openmpi and mpi4py", ""),
    "ray": ("ray", "ray.scripts.scripts"),
}
"""Package that has the launcher's program, and the module that does the same; "": none does."""
DEEPSPEED_PROCESS, MPI_PROCESS = "deepspeed-process", "mpi-process"
WORKING_FOLDER = "NSML_WORKING_FOLDER"
"""Variable of each replica of mpirun, which starts processes in the folder of rank 0: it may have another name elsewhere."""


class CannotLaunch(Exception):
    """Why an entry cannot be started, and what to do."""

    def __init__(self, what: str, *, why: str = "", advice: str = "") -> None:
        super().__init__(what)
        self.why, self.advice = why, advice


def command_of(launcher: str, program: Sequence[str], env: Mapping[str, str]) -> List[str]:
    """Return the command line that a replica runs: of mpirun and ray, that of rank 0.

    Args:
        launcher: one of LAUNCHERS.
        program: the entry and its arguments.
        env: of the replica. Its values are used as they are: `nsml run --dry-run` has names of variables in it.
    """
    words = words_of(program)
    replicas, each = int(env["NSML_WORLD_SIZE"]), max(int(env.get("NSML_GPU_NUM", "0")), 1)
    if launcher == "torchrun":
        return ["torchrun", *words]  # PET_* are its options
    if launcher == "accelerate":
        return ["accelerate", "launch", *_accelerate_options(env, replicas, each), *words]
    if launcher == "deepspeed":
        return ["deepspeed", *_deepspeed_options(env), *words]
    if launcher == "mpirun":
        of_hosts = ["--hostfile", env["NSML_HOSTFILE"]]
        tagged = ["--tag-output"] if replicas * each > 1 else []
        return [
            "mpirun",
            *of_hosts,
            *tagged,
            "--map-by",
            "slot",
            "-n",
            str(replicas * each),
            "python",
            "-u",
            *words,
        ]
    return ["python", "-u", *words]


def words_of(program: Sequence[str]) -> List[str]:
    """Return the entry and its arguments: none is read as an option of the launcher."""
    entry, *arguments = program
    return [f"./{entry}" if entry.startswith("-") else entry, *arguments]


def _accelerate_options(env: Mapping[str, str], replicas: int, each: int) -> List[str]:
    """Return the options that say who and where the processes are; the rest is in the user's own configuration."""
    tee = env.get("PET_TEE", "")  # its own option is 0, which PET_TEE does not change
    options = [
        *(("--tee", tee) if tee else ()),
        *("--num_machines", str(replicas), "--machine_rank", env["NODE_RANK"]),
        *("--main_process_ip", env["MASTER_ADDR"], "--main_process_port", env["MASTER_PORT"]),
        *("--num_processes", str(replicas * each)),
    ]
    if env.get("ACCELERATE_CONFIG_FILE"):  # it says how they train
        return ["--config_file", env["ACCELERATE_CONFIG_FILE"], *options]
    # Without GPUs, too: `--cpu` starts a single process; ACCELERATE_USE_CPU says what they compute with.
    kind = ["--multi_gpu"] if replicas * each > 1 else []
    return [*options, "--mixed_precision", "no", "--dynamo_backend", "no", *kind]


def _deepspeed_options(env: Mapping[str, str]) -> List[str]:
    return [
        *("--hostfile", env["NSML_HOSTFILE"], "--no_ssh", "--node_rank", env["NODE_RANK"]),
        *("--master_addr", env["MASTER_ADDR"], "--master_port", env["MASTER_PORT"]),
    ]


def variables_of(launcher: str, env: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that a launcher and its processes need beside those of all sessions; set ones stay."""
    has_gpus = int(env.get("NSML_GPU_NUM", "0")) > 0 and not env.get("NSML_SIMULATED")
    found: Dict[str, str] = {}
    if launcher in ("torchrun", "accelerate") and int(env.get("PET_NPROC_PER_NODE", "1")) > 1:
        # Each line begins with the rank that printed it. PET_TEE=0: as they are.
        found = {"PET_TEE": "3", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]: "}
    if launcher == "accelerate" and not has_gpus:
        found["ACCELERATE_USE_CPU"] = "true"
    elif launcher == "jax" and "NSML_ECHO" in env:
        return {"NSML_ECHO": env["NSML_ECHO"] + ",jax"}  # the hook that --launch jax asks for
    return {name: value for name, value in found.items() if name not in env}


def executable(command: Sequence[str]) -> List[str]:
    """Return the command line with a program that is there; raises CannotLaunch."""
    name = command[0]
    if name == "python" or shutil.which(name):
        return list(command)
    package, module = _PACKAGES[name]
    if module and has_package(package):
        return ["python", "-m", module, *command[1:]]
    raise CannotLaunch(
        f"{name} is not installed in the session's environment",
        why=f"--launch {name} runs it on each replica",
        advice=f"add {package} to requirements.txt, or use an image with it",
    )


def become(command: Sequence[str]) -> NoReturn:
    """Run this command line in place of this program."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(command[0], list(command))  # noqa: S606 - the words are the user's own


def print_error(error: CannotLaunch) -> None:
    """Print an error to the session's log."""
    lines = [f"nsml: {error}", *(f"  {error.why}",) * bool(error.why)]
    lines += [f"  try: {error.advice}"] * bool(error.advice)
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def has_package(name: str) -> bool:
    """Return whether the session's environment has a package."""
    from importlib.util import find_spec

    return find_spec(name) is not None
