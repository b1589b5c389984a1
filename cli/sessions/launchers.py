"""--launch: checks, and the command lines that it leads to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cli.exits import CommandError, ExitCode
from nsml.common.shell import shell_line, shell_word
from nsml.spec.run_flags import DEFAULT_ENTRY, LAUNCHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsml.v1.sessions_pb2 import SessionSpec

_OF_REPLICA: Final = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NSML_HOSTFILE")
"""Variables of each replica that are named in the command line, since their values are known only once it is placed."""
_VARIABLE: Final = re.compile(r"\$[A-Z_]+")
_WHOLE: Final = 1000


def check_launch(launcher: str | None, words: Sequence[str]) -> None:
    """Raise CommandError for a launcher of a whole command."""
    if not launcher or launcher == LAUNCHER.default:
        return
    programs = [at for at, word in enumerate(words) if word.endswith(".py")]
    behind = words[programs[0] :] if programs else ("train.py",)
    entry, *arguments = behind
    line = [
        "nsml",
        "run",
        "--launch",
        launcher,
        "-e",
        entry,
        *(["--", *arguments] * bool(arguments)),
    ]
    raise CommandError(
        "--launch goes without --argv",
        code=ExitCode.USAGE,
        why="a launcher starts an entry, a Python file of this folder; --argv is a command of its own",
        advice=f"{shell_line(line)}\n{shell_line(['nsml', 'run', '--argv', '--', *words])}",
    )


def launch_lines(spec: SessionSpec) -> list[str]:
    """Return the command lines that a launcher leads to: of rank 0 first, then of the others if they differ."""
    from nsml._launchers import command_of

    launcher = LAUNCHER.word(spec, "launcher")
    if launcher not in LAUNCHER.words or launcher == LAUNCHER.default:
        return []
    devices = -(-spec.resources.gpu_thousandths // _WHOLE)
    replicas = max(spec.replica_count, 1)
    env = {
        **{name: f"${name}" for name in _OF_REPLICA},
        "NSML_WORLD_SIZE": str(replicas),
        "NSML_GPU_NUM": str(devices),
        **{
            name: spec.environment[name]
            for name in spec.environment
            if name.startswith("ACCELERATE_")
        },
    }
    program = [spec.entry or DEFAULT_ENTRY, *spec.args]
    line = _line(command_of(launcher, program, env))
    if replicas == 1 and launcher != "ray":
        return [line]
    if launcher == "mpirun":
        return [f"{line} (rank 0; the others start what it asks for)"]
    if launcher == "ray":
        head = "ray start --head --node-ip-address $MASTER_ADDR --port $MASTER_PORT"
        other = "ray start --address $MASTER_ADDR:$MASTER_PORT"
        lines = [f"{head}; {line}"]
        return lines if replicas == 1 else [f"{lines[0]} (rank 0)", f"{other} (the others)"]
    return [line]


def _line(words: Sequence[str]) -> str:
    return " ".join(word if _VARIABLE.fullmatch(word) else shell_word(word) for word in words)
