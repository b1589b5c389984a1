"""The tree of commands and their modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.group import HELP_NAMES, LazyGroup, global_options, output_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = "nsml"

COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Sessions": {
        "run": ("cli.sessions.run:run", "Submit a session: your code, a dataset, some GPUs."),
        "fork": ("cli.sessions.fork:fork", "Start a session from another one, or its checkpoint."),
        "resume": ("cli.sessions.fork:resume", "Go on with an ended session from its checkpoint."),
        "rerun": ("cli.sessions.fork:rerun", "Run a session again."),
        "infer": ("cli.boards.infer:infer", "Start a session that answers with a checkpoint."),
        "ps": ("cli.sessions.ps:ps", "List sessions."),
        "queue": ("cli.sessions.queue:queue", "List queued sessions in order, with reasons."),
        "logs": ("cli.sessions.logs:logs", "Show a session's output."),
        "plot": ("cli.results.plot:plot", "Plot a session's metrics."),
        "tensorboard": ("cli.cluster.views:tensorboard", "Show sessions in TensorBoard, live."),
        "visdom": ("cli.cluster.views:visdom", "Show sessions in Visdom, live."),
        "dashboard": (
            "cli.cluster.views:dashboard",
            "Show nsml-tui in a browser, from the platform.",
        ),
        "diff": ("cli.sessions.diff:diff", "Compare sessions: arguments, code, data, results."),
        "dev": ("cli.sessions.dev:dev", "Start a session to work in, and open a shell in it."),
        "stop": ("cli.sessions.stop_and_remove:stop", "End sessions."),
        "requeue": (
            "cli.sessions.stop_and_remove:requeue",
            "Save sessions and queue them again.",
        ),
        "rm": ("cli.sessions.stop_and_remove:rm", "Remove ended sessions and their data."),
        "events": ("cli.results.events:events", "Print every reported value."),
        "export": ("cli.results.export:export", "Export metrics to a file."),
        "eventlen": ("cli.results.events:eventlen", "Count the reported values."),
        "memo": ("cli.sessions.stop_and_remove:memo", "Write a session's memo."),
        "getid": ("cli.sessions.ps:getid", "Show a session's id."),
        "command": ("cli.sessions.ps:repeat", "Show the command line that repeats a session."),
        "media": ("cli.results.media:media", "Show logged media: images, texts, tables."),
        "model": ("cli.results.models:model", "Checkpoints: list, fetch, tag, remove."),
        "artifact": ("cli.results.artifacts:artifact", "Artifacts: list, fetch, remove."),
        "pull": ("cli.sessions.pull:pull", "Fetch a session's code."),
        "download": ("cli.sessions.download:download", "Fetch the files that a session made."),
        "backup": ("cli.sessions.backup:backup", "Write ended sessions to one archive."),
        "restore": ("cli.sessions.backup:restore", "Restore the sessions of an archive."),
        "import": (
            "cli.results.imports:import_",
            "Import past runs of TensorBoard, MLflow or W&B.",
        ),
        "forward": ("cli.sessions.forward:forward", "Forward a local port to a session's service."),
        "sh": ("cli.sessions.sh:sh", "Start a shell, or a program, in a running session."),
        "cp": ("cli.sessions.cp:cp", "Copy files out of a running session, or into it."),
        "ssh": ("cli.sessions.ssh:ssh", "Connect to a running session with ssh."),
        "ssh-config": ("cli.sessions.ssh:ssh_config", "Set up ssh, scp, rsync and editors."),
        "ssh-proxy": ("cli.sessions.ssh:ssh_proxy", "The connection that ssh uses (ProxyCommand)."),
        "exec": ("cli.sessions.exec:exec_", "Evaluate Python code in a running program."),
        "set": ("cli.sessions.change:set_", "Change knobs of a running program."),
        "pause": ("cli.sessions.change:pause", "Have a running program wait."),
        "continue": ("cli.sessions.change:continue_", "Let a paused program go on."),
        "load": ("cli.sessions.change:load", "Have a running program load a checkpoint."),
        "top": ("cli.sessions.top:top", "Show the processes of a running session."),
        "stacks": ("cli.sessions.stacks:stacks", "Show the Python stacks of a running session."),
    },
    "Boards": {
        "submit": ("cli.boards.submit:submit", "Submit a checkpoint to its dataset's board."),
        "submission": (
            "cli.boards.submissions:submission",
            "Submissions: list them, follow one, see why it failed.",
        ),
        "board": (
            "cli.boards.board:board",
            "Leaderboards: show, watch, compare, create, set, export.",
        ),
        "competition": (
            "cli.competitions.competition:competition",
            "Competitions: organise one, take part in a team, standings.",
        ),
    },
    "Data": {
        "dataset": (
            "cli.data.datasets:dataset",
            "Datasets: push, pull, list, share, tag, compare, remove.",
        ),
        "secret": ("cli.accounts.secret:secret", "Secrets of your programs: set, list, remove."),
        "webhook": (
            "cli.accounts.webhook:webhook",
            "Call a URL when your sessions end, fail or idle.",
        ),
    },
    "Machines": {
        "gpustat": ("cli.cluster.nodes:gpustat", "List GPUs and the sessions on them."),
        "gpumonitor": (
            "cli.results.telemetry:gpumonitor",
            "Show a session's GPU and process use over time.",
        ),
        "status": ("cli.cluster.nodes:status", "Show the platform in a few lines."),
        "node": ("cli.cluster.nodes:node", "Nodes: list, drain, resume, fence."),
        "image": (
            "cli.cluster.images:image",
            "Container images on nodes: build, list, pull, log in.",
        ),
        "env": (
            "cli.cluster.environments:env",
            "Python environments: build, list, print locks, remove.",
        ),
        "doctor": ("cli.local.doctor:doctor", "Check this machine and advise."),
        "up": ("cli.local.up:up", "Start a platform on this machine."),
        "down": ("cli.local.down:down", "Stop the platform on this machine."),
        "join": ("cli.local.join:join", "Make this machine a node of a platform."),
    },
    "You": {
        "project": ("cli.accounts.projects:project", "Projects: members, quota, budget."),
        "storage": ("cli.data.storage:storage", "Show what is stored for you, or for a project."),
        "login": ("cli.accounts.login:login", "Use a platform that runs elsewhere."),
        "logout": ("cli.accounts.login:logout", "Forget this context's token here."),
        "key": ("cli.accounts.key:key", "Public keys for ssh from machines without nsml."),
        "context": ("cli.accounts.login:context", "Contexts: list, choose."),
        "config": ("cli.settings:config", "Settings: get, set, show their file."),
        "completion": ("cli.completion:completion", "Completion for your shell."),
        "admin": ("cli.accounts.users:admin", "Users, tokens, joining nodes, backups."),
        "version": ("cli.topics:version", "Versions of this program and the platform."),
        "help": ("cli.topics:show_help", "Help on a command or a topic."),
    },
}


def _show_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from nsml._version import VERSION

        click.echo(f"nsml {VERSION}")
        context.exit()


NSML_COMMANDS: Mapping[str, str] = {
    "automl": "cli.compat:automl",
    "credit": "cli.compat:credit",
    "gpumornitor": "cli.results.telemetry:gpumonitor",
    "info": "cli.compat:info",
    "inspect": "cli.compat:inspect",
}
"""Names of NAVER's NSML for what has another name here: they run, and `nsml help nsml` lists them."""

SYNONYMS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("sbatch", "srun", "sweep"), ("run",)),
    "salloc": ("dev", "run"),
    **dict.fromkeys(("cancel", "kill", "scancel", "terminate"), ("stop",)),
    **dict.fromkeys(("sacct", "squeue"), ("ps", "queue")),
    **dict.fromkeys(
        ("history", "job", "jobs", "list", "ls", "runs", "session", "sessions"), ("ps",)
    ),
    **dict.fromkeys(("nvidia-smi", "sinfo"), ("gpustat", "node")),
    **dict.fromkeys(("gpu", "gpus"), ("gpustat",)),
    "stats": ("gpumonitor", "gpustat", "top"),
    **dict.fromkeys(("process", "processes"), ("top",)),
    **dict.fromkeys(("backtrace", "py-spy", "stack", "traceback"), ("stacks",)),
    **dict.fromkeys(("cluster", "nodes"), ("node", "status")),
    **dict.fromkeys(("describe", "show", "why"), ("status --explain",)),
    **dict.fromkeys(("attach", "tail"), ("logs -f",)),
    **dict.fromkeys(("log", "output"), ("logs",)),
    "cat": ("logs",),
    "wait": ("logs -f", "run --wait"),
    "watch": ("ps -w", "logs -f"),
    "restart": ("requeue", "rerun"),
    "unpause": ("continue", "requeue"),
    **dict.fromkeys(("suspend", "scontrol"), ("pause", "requeue")),
    **dict.fromkeys(("knob", "knobs", "lr"), ("set",)),
    **dict.fromkeys(("again", "repeat", "retry"), ("rerun", "command")),
    **dict.fromkeys(("branch", "clone"), ("fork",)),
    **dict.fromkeys(("del", "delete", "prune", "remove"), ("rm",)),
    "compare": ("diff",),
    **dict.fromkeys(("chart", "graph"), ("plot",)),
    **dict.fromkeys(("metric", "metrics", "results"), ("plot", "export")),
    **dict.fromkeys(("checkpoint", "checkpoints", "ckpt"), ("model",)),
    **dict.fromkeys(("artifacts", "output", "outputs"), ("artifact",)),
    **dict.fromkeys(("archive", "snapshot"), ("backup",)),
    "unarchive": ("restore",),
    "fetch": ("download", "pull", "model pull", "artifact pull", "dataset pull", "cp"),
    "copy": ("cp",),
    **dict.fromkeys(("rsync", "scp", "sftp"), ("cp", "ssh-config")),
    **dict.fromkeys(("data", "datasets"), ("dataset",)),
    **dict.fromkeys(("push", "upload"), ("dataset push", "cp")),
    **dict.fromkeys(("open", "tui", "ui", "web"), ("dashboard",)),
    **dict.fromkeys(("boards", "leaderboard", "ranking", "ranks"), ("board",)),
    **dict.fromkeys(("challenge", "competitions", "contest", "standings"), ("competition",)),
    **dict.fromkeys(("score", "scores", "submissions"), ("submission", "board")),
    **dict.fromkeys(("predict", "serve-model"), ("infer",)),
    **dict.fromkeys(("init", "serve", "server", "setup"), ("up", "login")),
    "start": ("run", "up"),
    **dict.fromkeys(("jupyter", "notebook"), ("dev", "forward")),
    **dict.fromkeys(("port-forward", "tunnel"), ("forward",)),
    **dict.fromkeys(("debug", "eval", "evaluate", "repl"), ("exec",)),
    **dict.fromkeys(("devel", "interactive", "workspace"), ("dev",)),
    **dict.fromkeys(("bash", "shell", "terminal"), ("sh", "dev")),
    **dict.fromkeys(("label", "name", "note", "rename", "tag"), ("memo",)),
    "secrets": ("secret", "run --env"),
    **dict.fromkeys(("environment", "environments", "packages", "pip", "venv"), ("env",)),
    **dict.fromkeys(("keys", "ssh-copy-id", "ssh-key", "ssh-keygen"), ("key",)),
    **dict.fromkeys(("token", "user", "users", "whoami"), ("context", "admin")),
    **dict.fromkeys(("df", "disk", "du", "quota", "usage"), ("storage",)),
    **dict.fromkeys(("settings",), ("config",)),
}
"""Commands of Slurm and others, and their counterparts here."""


def _root() -> LazyGroup:
    options: list[click.Parameter] = [*global_options(), *output_options()]
    options.append(
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version.",
        )
    )
    for option in options[:-1]:
        if isinstance(option, click.Option):
            option.hidden = True
    return LazyGroup(
        name=PROGRAM,
        sections=COMMANDS,
        synonyms=SYNONYMS,
        unlisted=NSML_COMMANDS,
        params=options,
        callback=lambda: None,
        help="A machine-learning platform run from a terminal.\n\n"
        "Help: nsml COMMAND -h, and nsml help references, filters, code, flags, environment, confirmation, exit-codes, nsml.",
        context_settings=HELP_NAMES,
    )


root = _root()
