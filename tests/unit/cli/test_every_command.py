"""What holds for each command of the tree, whatever it does."""

import json
import re
import shlex
from pathlib import Path

import click
import pytest

import cli as cli_package
import nsml.client as client_package
from cli.app import App
from cli.group import Command, Refused
from cli.root import root
from cli.topics import ENVIRONMENT, TOPICS
from nsml.v1 import checkpoints_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.nsml.client.contract_server import EPOCH

GROUPS = [
    "",
    "config",
    "context",
    "dataset",
    "model",
    "env",
    "artifact",
    "node",
    "doctor",
    "admin",
    "admin user",
    "secret",
    "key",
    "project",
    "board",
    "submission",
    "competition",
]


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_without_a_command_shows_its_help(nsml, name):
    result = nsml(*name.split())
    assert result.stdout == nsml(*name.split(), "--help").stdout
    assert (result.stdout.split()[:2], result.stderr) == (["Usage:", "nsml"], "")
    assert not [line for line in result.stdout.splitlines()[1:] if line.endswith("...")]


def commands(group=root, path=()):
    context = click.Context(group, info_name="nsml")
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name), found


ALL = {" ".join(path): command for path, command in commands()}
READING = [name for name, command in ALL.items() if "output" in {p.name for p in command.params}]
FORMATS = ["table", "wide", "json", "jsonl", "yaml", "csv", "name"]
IN_ALL = "ps"
"""The command that is tried in each format for each change."""


def in_formats(names):
    """Each command in each format: who writes a format is the same for all, so most have their turn."""
    return [
        pytest.param(
            name,
            output,
            marks=[] if name == IN_ALL or output in {"table", "json"} else pytest.mark.variant,
        )
        for name in names
        for output in FORMATS
    ]


EXAMPLES = [(name, example) for name, command in ALL.items() for example in command.examples]

PULLS = {"pull", "download", "model pull", "artifact pull", "dataset pull"}
"""Those that make a folder, below one that is given behind their arguments."""
ARGUMENTS = {
    "run": ["--argv", "--", "true"],
    "fork": ["kim/mnist/1"],
    "resume": ["kim/mnist/3"],
    "rerun": ["kim/mnist/1"],
    "infer": ["kim/mnist/1"],
    "submit": ["kim/mnist/1", "best", "--no-wait"],
    "submission ls": [],
    "submission info": ["sub1"],
    "board ls": [],
    "board show": ["mnist"],
    "board info": ["mnist"],
    "board diff": ["mnist"],
    "board create": ["speed", "--metric", "val/acc"],
    "board set": ["mnist", "--close"],
    "dataset board": ["mnist"],
    "competition ls": [],
    "competition show": ["cup"],
    "competition phases": ["cup"],
    "competition page": ["cup"],
    "competition teams": ["cup"],
    "competition standings": ["cup"],
    "competition create": ["new", "../cup.toml"],
    "competition update": ["cup", "../cup.toml"],
    "competition open": ["draft"],
    "competition join": ["cup2"],
    "competition merge": ["cup", "tigers", "-y"],
    "competition pick": ["cup", "sub1"],
    "competition verify": ["../cup.json", "--ca", "../ca.pem"],
    "ps": [],
    "queue": [],
    "events": ["kim/mnist/1"],
    "eventlen": ["kim/mnist/1"],
    "diff": ["kim/mnist/1", "kim/mnist/2"],
    "getid": ["kim/mnist/1"],
    "tensorboard": ["kim/mnist/1"],
    "visdom": ["kim/mnist/1"],
    "dashboard": [],
    "media": ["kim/mnist/1"],
    "storage": [],
    "model ls": ["kim/mnist/1"],
    "model info": ["kim/mnist/1", "best"],
    "model pull": ["kim/mnist/1", "best"],
    "artifact ls": ["kim/mnist/1"],
    "artifact info": ["kim/mnist/1", "report"],
    "artifact pull": ["kim/mnist/1", "report@1"],
    "pull": ["kim/mnist/1"],
    "download": ["kim/mnist/1"],
    "restore": ["../old.tar.zst"],
    "import tensorboard": ["../past/runs"],
    "import mlflow": ["../mlruns"],
    "import wandb": ["../wandb"],
    "dataset pull": ["mnist"],
    "dataset push": ["digits", "."],
    "dataset add": ["digits", "--in-place", "."],
    "dataset ls": [],
    "dataset info": ["mnist"],
    "dataset search": ["mni"],
    "dataset versions": ["mnist"],
    "dataset lineage": ["mnist"],
    "dataset diff": ["mnist@1", "mnist"],
    "dataset share": ["mnist", "--team"],
    "dataset describe": ["mnist", "digits"],
    "dataset tag": ["mnist", "gold"],
    "dataset untag": ["mnist", "gold"],
    "dataset rm": ["mnist", "-y"],
    "dataset restore": ["mnist"],
    "secret set": ["TOKEN", "--from-env", "TERM"],
    "secret ls": [],
    "key add": ["../desktop.pub"],
    "key ls": [],
    "webhook set": ["--from-env", "TERM"],
    "webhook show": [],
    "webhook test": [],
    "project ls": [],
    "project show": ["vision"],
    "project create": ["speech"],
    "project set": ["vision", "--gpus", "8"],
    "project add": ["vision", "lee"],
    "project remove": ["vision", "lee", "-y"],
    "gpustat": [],
    "gpumonitor": ["kim/mnist/1"],
    "top": ["kim/mnist/1"],
    "stacks": ["kim/mnist/1"],
    "exec": ["kim/mnist/1", "loss"],
    "set": ["kim/mnist/1", "lr=0.5"],
    "status": [],
    "image ls": [],
    "image pull": ["lab/torch:2", "--node", "gpu-1"],
    "image rm": ["lab/torch:2", "-y"],
    "env build": ["--all-nodes"],
    "image login": ["ghcr.io", "-u", "kim", "--from-env", "TERM"],
    "image logins": [],
    "env ls": [],
    "env lock": ["kim/mnist/1"],
    "env rm": ["3f9a0c51d2e4", "-y"],
    "node ls": [],
    "doctor node": ["--data", "."],
    "doctor chaos": ["--check", "../recorded"],
    "doctor storage": [],
    "node show": ["gpu-1"],
    "context ls": [],
    "admin user add": ["lee"],
    "admin audit": [],
    "admin user ls": [],
    "admin user token": ["kim"],
    "admin join-token": [],
    "admin backup": ["../backups"],
    "version": ["--server"],
}

ENDS_WITH = {"doctor storage": 1}
"""The exit code of what finds something wrong."""
LOCAL = {"context ls", "doctor node", "doctor chaos", "competition verify"}


@pytest.fixture
def everything(everything, state):
    """And a second session, for what takes two."""
    state.add("kim/mnist/2")
    ended = state.add("kim/mnist/3", pb.SESSION_STATE_SUCCEEDED)
    ended.ended_at.seconds = EPOCH + 60
    state.checkpoints[ended.id] = [checkpoints_pb2.Checkpoint(name="best", session=ended.name)]
    return everything


def test_every_variable_is_told():
    folders = [Path(cli_package.__file__).parent, Path(client_package.__file__).parent]
    texts = [file.read_text() for folder in folders for file in folder.rglob("*.py")]
    read = {name for text in texts for name in re.findall(r'environ(?:\.get\(|\[)"(\w+)"', text)}
    ours = {name for name in read if name.startswith("NSML_")}
    assert {"NSML_SERVER", "NSML_DATA"} <= ours
    assert [name for name in ours if f"  {name} " not in ENVIRONMENT] == []


@pytest.mark.parametrize("topic", TOPICS)
def test_no_topic_breaks_a_word_on_a_terminal_of_80_columns(topic):
    assert [line for line in TOPICS[topic]().splitlines() if len(line) > 80] == []


def test_the_table_covers_every_reading_command():
    assert set(ARGUMENTS) == set(READING)


@pytest.mark.parametrize("name", ALL)
def test_what_is_refused_is_never_suggested(name, nsml):
    refused = [item.opts[-1] for item in ALL[name].params if isinstance(item, Refused)]
    for option in (item for item in refused if item.startswith("--")):
        said = nsml(*name.split(), option[:-1] + "_", check=False).stderr
        assert said.startswith(f"error: no such option: {option[:-1]}_\n")
        assert not {word for word in said.split() if word in refused}


@pytest.mark.parametrize("name", ALL)
def test_has_two_examples_and_help(name, nsml):
    assert isinstance(ALL[name], Command)
    assert len(ALL[name].examples) >= 2
    shown = nsml(*name.split(), "-h").stdout
    assert ALL[name].examples[0] in shown
    assert "Options:" in shown
    assert nsml("help", *name.split()).stdout == shown.replace("[OPTIONS]", "[OPTIONS]")


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_examples_parse(name, example, tmp_path, monkeypatch):
    """Each example is a command line that the command takes: parsed, not run."""
    monkeypatch.chdir(tmp_path)
    for folder in ("mnist", "runs", "lightning_logs", "mlruns", "wandb"):
        (tmp_path / folder).mkdir()
    (tmp_path / "lab.pem").touch()
    (tmp_path / "mnist.tar.zst").touch()
    (tmp_path / ".env").touch()
    words = shlex.split(example)
    place = words.index("nsml") if "nsml" in words else None
    if place is None:  # inside a substitution: "$(nsml ...)"
        words = shlex.split(example[example.index("nsml") : example.index(")")])
        place = 0
    while words[place + 1 : place + 1 + len(name.split())] != name.split():
        place = words.index("nsml", place + 1)
    rest = words[place + 1 + len(name.split()) :]
    for stop in ("|", "<", ">"):
        rest = rest[: rest.index(stop)] if stop in rest else rest
    parent = click.Context(root, info_name="nsml", obj=App(environ={}))
    ALL[name].make_context(name, rest, parent=parent)


@pytest.mark.parametrize("name", READING)
def test_only_json_reaches_stdout(name, nsml, everything, project):
    words = [*name.split(), "-j", *ARGUMENTS[name]]
    result = nsml(*words, check=False)
    assert result.code == ENDS_WITH.get(name, 0), result.stderr
    assert json.loads(result.stdout)["schema_version"] == 1
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("name", sorted(set(READING) - LOCAL))
def test_errors_are_json_on_stderr_alone(name, nsml, project):
    result = nsml(*name.split(), "-j", *ARGUMENTS[name], check=False, NSML_SERVER="127.0.0.1:1")
    assert result.code == 3, result.stderr
    assert result.stdout == ""
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert error["code"] == 3
    assert "nsml up" in " ".join(error["try"])


@pytest.mark.parametrize(("name", "output"), in_formats(READING))
def test_no_escape_codes_when_piped(name, output, nsml, everything, project, tmp_path):
    words = [*name.split(), "-o", output, *ARGUMENTS[name]]
    if name in PULLS:
        words.append(str(tmp_path / "pulled"))
    nsml("config", "set", "contexts.here.server", "127.0.0.1:1")
    result = nsml(*words, check=False)
    assert result.code == ENDS_WITH.get(name, 0), result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert result.stdout


@pytest.mark.parametrize("name", sorted(set(READING) - {"version", "getid"}))
def test_fields_narrow_and_unknown_ones_are_named(name, nsml, everything, project, tmp_path):
    where = [str(tmp_path / "x")] if name in PULLS else []
    nsml("config", "set", "contexts.here.server", "127.0.0.1:1")
    result = nsml(
        *name.split(), "-j", "--fields", "nonsense", *ARGUMENTS[name], *where, check=False
    )
    assert result.code == 2
    assert "nonsense" in result.stderr
