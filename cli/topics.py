"""help, version: topics and versions."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import click

from cli.app import App
from cli.exits import CommandError, ExitCode
from cli.group import command, near, pass_app
from cli.output import write_one
from nsml._version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsml.client.calls import Client
    from nsml.v1.nodes_pb2 import GetClusterResponse, Node

_TOPIC_CELLS = 80
"""Longest line of a topic."""
_ANSWERS_WITHIN_S = 2.0
"""Timeout for the platform's version, shown beside this program's, in seconds."""

REFERENCES = """\
How to name a session

  kim/mnist/3     its full name: USER/DATASET/N; USER/None/N without a dataset
  mnist/3, 3      short forms, of your own sessions
  @last, @2, @3   your last one that is not removed, the one before, to @1000;
                  steps of submissions do not count
  s4k...          its id (nsml getid)
  'mnist/[3-9]'   every matching session, by full name or short form; quote it.
                  stop, requeue, rm and memo match your own only, unless a user
                  is named: 'lee/mnist/*', or --user lee '*'
  -               names from stdin: nsml ps -o name | nsml stop -

A short form that matches several sessions is refused, with a list of them.

How to name a dataset

  mnist           your own, else the only one of that name that you see
  kim/mnist       kim's
  mnist@3         version 3; without @ the newest version
  mnist@gold      the version with this tag (nsml dataset tag)
"""

FILTERS = """\
How to choose sessions: words of nsml ps, --filter and nsml-tui

  lr>=0.05          an argument, or a number of the summary: < <= > >= =
  age<2h gpus>=4    how long ago it was submitted, how many GPUs it asks for
  state:run,queued  one of these; as state: also name, user, project, memo, ds
                    (dataset), node, model, priority, pod, id, origin (a
                    session), held_cause (start_failures, node_losses),
                    type (normal, submit, submit(test), evaluate, infer),
                    submission (an id; * lists the steps of all);
                    * and ? are text
                    states: queued preparing running paused unknown stopping
                    finalizing succeeded failed stopped held
  label:stage=dev   of run --label stage=dev; label:stage with any value;
                    label.try>=2 compares; label.try is a sort key and field
  sweep             is looked for in name, memo, arguments, summary and state
  'mnist/[3-9]'     a glob with a / is one of names; @last, @2 in nsml ps alone
  !baseline         without this
  a b, a | b        both, either

Examples
  nsml ps -a --filter 'lr>=0.05 memo:sweep' --sort -val/acc
  nsml diff $(nsml ps -a sweep -o name)
"""

CONFIRMATION = """\
Which commands ask before they act

{table}

  -y         do not ask
  --dry-run  list what would be done, and do nothing

Without a terminal and without -y they do nothing and exit with code 2.
A glob is looked up once, before the question.
"""

CODE = """\
Files that control a run

  main.py           the program, unless ENTRY or -e names another
  .nsmlignore       files not to send, in the syntax of .gitignore
  requirements.txt  Python packages, by name and version or https URL
  setup.py          install_requires: more of them; read, never executed
  uv.lock, pyproject.toml    the packages where those two list none
  # /// script      packages in the program itself; these count first
  environment.yml   packages of conda, where no other file lists any; needs
                    nodes with micromamba
  nsml_package.txt  Debian packages, one a line; needs nodes with containers
  #nsml: IMAGE      container image, at the head of setup.py or
                    requirements.txt; --image wins; needs nodes with containers
  .env              never sent; --env-file .env passes its variables

Not read: .gitignore, setup.cfg, Pipfile, pixi.toml, other locks
(poetry.lock, ...), requirements in other folders (-r reads them).
Built when you ask for it: nsml run --dockerfile Dockerfile, on the node.
Not built: compose.yaml, Singularity, .devcontainer.
nsml run warns of packages that these list or the program imports, and
the file in use does not name.

What nsml wrote into the folder (model pull, export -o, plot --svg, media
--export), and a dataset that was pushed from it, is sent like any other file:
nsml run names it, and the line for .nsmlignore that leaves it out.

Packages are installed once on each node and cached for later sessions; the log
of the session that needed them first begins with the installation.
"""

NSML = """\
What is as in NAVER's NSML (=), what differs (~), and what is not here (-)

  nsml config set style nsml
                    tables, statuses, messages and -j as in NSML

The guide for users of NSML: docs/nsml.md
"""

ENVIRONMENT = """\
Environment variables

  NSML_CONTEXT     which context to use, like --context
  NSML_SERVER      HOST:PORT instead of the context's server
  NSML_TOKEN_FILE  a file with the token instead of the context's
  NSML_CONFIG_DIR  the folder of config.toml (default: $XDG_CONFIG_HOME/nsml)
  NSML_DATA        the data folder of up, down and join, like --data
  DOCKER_HOST      unix:///PATH: the container engine for up, join and doctor
  NSML_OUTPUT      default of -o
  NSML_STYLE       nsml: tables and messages as in NAVER's NSML
  NSML_COLOR       auto, always or never; NO_COLOR and FORCE_COLOR work too
  NSML_ACCESSIBLE  nothing is redrawn, plots in words; ACCESSIBLE works too
  NSML_DEBUG       a traceback with every error, like --debug
"""


def _exit_codes() -> str:
    import ast
    import inspect

    from cli import exits

    # The docstring under each member, not stored by Python.
    tree = ast.parse(inspect.getsource(exits))
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ExitCode").body
    texts: dict[str, str] = {}
    for item, below in itertools.pairwise(body):
        if isinstance(item, ast.Assign) and isinstance(below, ast.Expr):
            names = [target.id for target in item.targets if isinstance(target, ast.Name)]
            texts[names[0]] = str(ast.literal_eval(below.value))
    rows = [f"  {int(code):>3}  {texts[code.name]}" for code in ExitCode]
    return (
        "Exit codes\n\n"
        + "\n".join(rows)
        + "\n\nrun --wait and run -f end with the session's own exit code,"
        + "\nsh with that of the program that it started.\n"
    )


def _confirmation() -> str:
    from nsml.view.confirmation import COMMANDS, Asks

    lines = []
    for asks in Asks:
        lines.append(f"  {asks.value}")
        lines += [f"    nsml {name}" for name, rule in COMMANDS.items() if rule.asks is asks]
    return CONFIRMATION.format(table="\n".join(lines))


def _flags() -> str:
    from cli.group import global_options, output_options

    def table(title: str, options: list[click.Parameter]) -> str:
        formatter = click.HelpFormatter(width=80)
        context = click.Context(click.Command("nsml"))
        rows = [row for option in options if (row := option.get_help_record(context))]
        with formatter.section(title):
            formatter.write_dl(rows)
        return formatter.getvalue()

    return (
        table("Flags of every command", global_options())
        + "\n"
        + table("Flags of commands that read", output_options())
    )


def _nsml() -> str:
    from textwrap import wrap

    from nsml.spec.nsml_compat import FACTS, Verdict

    marks = {Verdict.SAME: "=", Verdict.OURS: "~", Verdict.ABSENT: "-"}
    sections = {one.section: "" for one in FACTS}
    for one in FACTS:
        lines = wrap(one.fact, _TOPIC_CELLS - 5)
        lines += [f"  {line}" for line in wrap(one.here, _TOPIC_CELLS - 7)]
        sections[one.section] += f"  {marks[one.verdict]}  " + "\n     ".join(lines) + "\n"
    titles = {"SDK": "import nsml", "project": "Projects", "command": "Commands", "table": "Output"}
    return NSML + "".join(f"\n{titles[name]}\n{text}" for name, text in sections.items())


TOPICS: dict[str, Callable[[], str]] = {
    "exit-codes": _exit_codes,
    "references": lambda: REFERENCES,
    "filters": lambda: FILTERS,
    "code": lambda: CODE,
    "confirmation": _confirmation,
    "environment": lambda: ENVIRONMENT,
    "flags": _flags,
    "nsml": _nsml,
}


@command("help", examples=["nsml help run", "nsml help exit-codes", "nsml help model pull"])
@click.argument("words", nargs=-1, metavar="[COMMAND|TOPIC]")
@pass_app
@click.pass_context
def show_help(context: click.Context, app: App, *, words: tuple[str, ...]) -> None:
    """Help on a command, or on a topic: exit-codes, references, filters, code, confirmation, environment, flags, nsml."""
    root = context.find_root()
    if len(words) == 1 and words[0] in TOPICS:
        app.write(TOPICS[words[0]]().rstrip("\n"))
        return
    found: click.Command = root.command
    path = root
    for word in words:
        inner = found.get_command(path, word) if isinstance(found, click.Group) else None
        if inner is None:
            raise _unknown(word, found, path)
        found = inner
        path = click.Context(found, parent=path, info_name=word)
    app.write(found.get_help(path))
    if not words:
        app.write(f"\nTopics of nsml help: {', '.join(TOPICS)}")


def _unknown(word: str, inside: click.Command, context: click.Context) -> CommandError:
    known = inside.list_commands(context) if isinstance(inside, click.Group) else []
    nearest = near(word, [*known, *TOPICS], alike=0.7)
    return CommandError(
        f"no help on {word!r}",
        code=ExitCode.USAGE,
        advice="\n".join(f"nsml help {name}" for name in nearest) or "nsml help",
    )


@command("version", reads=True, examples=["nsml version", "nsml version --server"])
@click.option("--server", is_flag=True, help="Fail if the platform does not answer.")
@pass_app
def version(app: App, *, server: bool) -> None:
    """Show and compare the versions of this program, the control planes and the agents.

    Where no platform answers within two seconds, only this program's. A version names the release and the
    commit: control planes of one platform run the same one, agents and clients may be one release older.
    """
    from nsml.client.contexts import ContextError
    from nsml.client.errors import ClientError
    from nsml.common.text import visible
    from nsml.view import versions

    try:
        cluster, nodes = app.call(
            lambda client: _asked(client, None if server else _ANSWERS_WITHIN_S)
        )
    except (CommandError, ClientError, ContextError) as error:
        if server:
            raise
        lines = [f"client   {VERSION}", f"platform not asked: {error}"]
        write_one(app, {"client": VERSION, "server": None}, lines, name="client")
        return
    lines = [visible(line) for line in versions.lines(VERSION, cluster, nodes)]
    write_one(app, versions.record(VERSION, cluster, nodes), lines, name="client")


async def _asked(
    client: Client, within_s: float | None
) -> tuple[GetClusterResponse, Sequence[Node]]:
    """Return the control planes and the nodes of the platform; CommandError after `within_s` seconds."""
    import asyncio

    try:
        async with asyncio.timeout(within_s):
            return await client.nodes.cluster(), await client.nodes.every()
    except TimeoutError as error:
        raise CommandError("no answer", code=ExitCode.TIMED_OUT) from error
