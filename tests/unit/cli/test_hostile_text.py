"""Text of other people, programs and machines never acts on the terminal of who reads it."""

import json
import re
import shlex

import pytest

from nsml.client.contexts import Context, load, save
from nsml.common.shell import shell_split
from nsml.v1 import artifacts_pb2, boards_pb2, nodes_pb2, resources_pb2
from nsml.v1.checkpoints_pb2 import CHECKPOINT_STATE_LOST
from tests.unit.cli.conftest import FixedClock

from .test_every_command import ARGUMENTS, LOCAL, PULLS, READING, in_formats

EVIL = "a\x1b]0;t\x07\x1b[2J\x9b31m\u202e\u2066\x7f\r\nb\x08\u2028<"
ACTS = re.compile("[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
OTHERS = {
    "sessions of others": ["ps", "-a"],
    "logs": ["logs", "kim/mnist/1"],
    "plot": ["plot", "kim/mnist/1"],
    "memo": ["memo", "kim/mnist/1"],
    "command": ["command", "kim/mnist/1"],
    "stop": ["stop", "-y", "kim/mnist/1"],
    "how it is": ["status", "--explain", "kim/mnist/1"],
    "all that differs": ["diff", "kim/mnist/1", "kim/mnist/2", "--all"],
    "no such": ["model", "pull", "kim/mnist/1", "worst"],
    "lost": ["model", "pull", "kim/mnist/1", f"{EVIL}lost"],
    "nearly": ["model", "pull", "kim/mnist/1", EVIL[:-1]],
    "no such metric": ["plot", "kim/mnist/1", "-m", EVIL[:-1]],
    "a program": ["sh", "-T", "kim/mnist/1"],
    "files": ["cp", "kim/mnist/1:x", "/nonexistent"],
    "no ssh": ["ssh-proxy", "kim/mnist/1.nsml"],
    "no such host": ["ssh-proxy", f"{EVIL}.nsml"],
    "knobs": ["set", "kim/mnist/1"],
    "a pause": ["pause", "kim/mnist/1"],
    "a load": ["load", "kim/mnist/1", "best"],
    "a program on a node": ["node", "sh", "-T", "gpu-1"],
    "a tagged one": ["model", "rm", "kim/mnist/1", "best"],
    "artifacts": ["artifact", "rm", "kim/mnist/1", "*", "--dry-run"],
    "no such artifact": ["artifact", "pull", "kim/mnist/1", EVIL[:-1]],
    "a tag": ["model", "tag", "kim/mnist/1", EVIL, "t"],
    "no such tag": ["model", "untag", "kim/mnist/1", EVIL[:-1]],
    "a submission": ["submit", "kim/mnist/1", "best"],
    "a failed submission": ["submission", "info", "-w", "sub2"],
    "a board as a file": ["board", "export", "mnist"],
    "a board to remove": ["board", "rm", "mnist", "--dry-run"],
    "a competition to close": ["competition", "close", "cup", "--dry-run"],
    "a team to leave": ["competition", "leave", "cup", "--dry-run"],
    "statistics": ["competition", "show", "cup", "--statistics"],
    "an invitation": ["competition", "invite", "cup", EVIL],
    "settings of a competition": ["competition", "create", "new", "../evil.toml"],
    "a dry run": ["model", "rm", "kim/mnist/1", "*", "--dry-run"],
}
READ = {name: [*name.split(), *ARGUMENTS[name]] for name in sorted(set(READING) - LOCAL)}


@pytest.fixture
def hostile(state, everything, tmp_path):
    session = everything
    session.memo = EVIL
    session.command.extend(["nsml", "run", EVIL])
    session.spec.args.append(EVIL)
    session.waiting = EVIL
    session.summary.update({EVIL: EVIL, "nested": {EVIL: [EVIL]}})
    session.replicas[0].node = EVIL
    session.replicas[0].devices.add(uuid=EVIL, model=EVIL)
    session.end.message = EVIL
    state.report(session, EVIL, 1.0, step=3)
    state.report(session, "note", json=json.dumps(EVIL, ensure_ascii=False), step=3)
    state.checkpoints[session.id][0].summary.update({EVIL: EVIL})
    state.checkpoints[session.id].append(type(state.checkpoints[session.id][0])())
    state.checkpoints[session.id][-1].CopyFrom(state.checkpoints[session.id][0])
    state.checkpoints[session.id][-1].name = EVIL
    state.checkpoints[session.id].append(type(state.checkpoints[session.id][0])())
    lost = state.checkpoints[session.id][-1]
    lost.CopyFrom(state.checkpoints[session.id][0])
    lost.name, lost.why_lost, lost.state = f"{EVIL}lost", EVIL, CHECKPOINT_STATE_LOST
    session.git.CopyFrom(type(session.git)(commit=EVIL, branch=EVIL, remote=EVIL, dirty=True))
    initial = session.spec.initial_checkpoint
    initial.session, initial.session_name, initial.name = session.id, EVIL, EVIL
    state.artifacts[session.id][0].node = state.artifacts[session.id][-1].why_lost = EVIL
    lost_one = artifacts_pb2.Artifact(name=EVIL, why_lost=EVIL, state="ARTIFACT_STATE_LOST")
    state.artifacts[session.id] += [lost_one, artifacts_pb2.Artifact(name=EVIL, version=1)]
    best = state.checkpoints[session.id][0]
    best.tags.append(EVIL)
    best.node = EVIL
    best.users.add(session=EVIL)
    session.spec.keep_checkpoints, state.removed_checkpoints = EVIL, 1
    state.ssh_answer.refused = EVIL
    state.datasets[0].message = state.datasets[0].description = EVIL
    state.datasets[0].tags.append(EVIL)
    state.datasets[0].live_sessions = 2
    state.datasets[0].lineage.session = EVIL
    state.datasets[0].lineage.command.extend(["nsml", "run", EVIL])
    state.datasets[0].lineage.datasets.add(name=EVIL, version=1)
    state.dataset_users = [EVIL]
    node = state.nodes[0]
    node.host = node.device_note = node.pod = node.agent_version = EVIL
    node.devices[0].device.CopyFrom(resources_pb2.Device(uuid=EVIL, model=EVIL, simulated=True))
    node.not_ready = node.engine_note = EVIL
    environment = state.environments[node.name][0]
    environment.key = environment.owner = EVIL
    environment.sessions.append(EVIL)
    told = json.dumps({EVIL: {EVIL: EVIL}, "list": [EVIL]})
    session.reported_config.runs.add(origin="wandb", run=EVIL, json=told)
    state.report(session, "train/loss", 0.5, step=9, origin=EVIL)
    session.replicas[0].image = session.environment_lock.digest = EVIL
    state.locks[session.id] = (
        f"numpy==1 ; {EVIL.replace(chr(10), '').replace(chr(13), '')} --hash=sha256:{'a' * 64}\n"
    )
    state.processes.processes[0].command = EVIL
    state.processes.processes.add(pid=8, command=EVIL * 100, is_cut=True)
    process = state.stacks[0].processes[0]
    process.command = EVIL
    process.threads[0].name = EVIL
    call = process.threads[0].frames[0]
    call.function = call.file = call.locals[0].name = call.locals[0].value = EVIL
    state.stacks[0].processes.add(pid=8, command=EVIL, unseen=EVIL)
    state.change_reason = EVIL
    for member in state.change_members:
        member.reason = EVIL
        member.knobs.add(name=EVIL, before=EVIL, after=EVIL, in_force=EVIL)
    change = session.changes.add(number=1, kind=1, phase=5, asked_by=EVIL, reason=EVIL)
    change.members.extend(state.change_members)
    found = state.evaluated
    found.value = found.output = found.error = EVIL
    state.processes.visitors.add(user=EVIL, service=EVIL)
    state.programs.refusal = state.files.refusal = EVIL
    state.images[node.name] = [nodes_pb2.NodeImage(name=EVIL)]
    state.logins[EVIL] = (EVIL, b"")
    board = state.boards["kim/mnist"]
    settings = board.settings
    settings.metric = settings.filter = settings.description = EVIL
    for entry in state.entries["kim/mnist"]:
        entry.owner = entry.team = entry.session = entry.checkpoint = entry.memo = EVIL
        entry.args += f" --{EVIL} {EVIL}"
    for one in state.submissions.values():
        one.dataset = one.owner = one.team = one.session = one.checkpoint = EVIL
        one.evaluation_output = one.message = EVIL
        one.steps.add(kind=EVIL, session=EVIL, waiting=EVIL)
    failed = state.submissions["sub2"]
    failed.state = boards_pb2.SUBMISSION_STATE_FAILED
    failed.cause = boards_pb2.SUBMISSION_CAUSE_MALFORMED
    state.submission_course = [
        boards_pb2.Submission(steps=[{"kind": "predict", "waiting": EVIL}]),
        boards_pb2.Submission(state=boards_pb2.SUBMISSION_STATE_FAILED, message=EVIL),
    ]
    for answer in state.competitions.values():
        found = answer.competition
        found.settings.title = found.settings.description = found.phase = EVIL
        found.settings.phases[0].name = found.settings.phases[0].dataset = EVIL
        answer.announcements.add(text=EVIL)
        answer.why_not = EVIL
        answer.invitations.append(EVIL)
        for one in answer.statistics:
            one.phase = EVIL
        for team in (answer.team, *answer.teams) if answer.HasField("team") else ():
            team.name = team.disqualified = EVIL
            for texts in (team.members, team.invited, team.merge_requests, team.picks):
                texts.append(EVIL)
    for row in state.standings["kim/cup"]:
        row.team = row.disqualified = row.rerun = EVIL
        row.members.append(EVIL)
    (tmp_path / "evil.toml").write_text(
        f"{json.dumps(EVIL)} = 1\n[[phase]]\nname = {json.dumps(EVIL)}"
    )
    return session


def acts(text: str) -> list[str]:
    """What in a screen would be obeyed, but for the colours that the program itself sets."""
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", text.replace("\r\n", "\n").replace("\r\x1b[K", ""))
    return [*ACTS.findall(plain), *re.findall("\x1b.{0,5}", plain)]


@pytest.mark.parametrize(("name", "output"), in_formats(READ))
def test_no_format_lets_it_through(name, output, nsml, hostile, project, tmp_path):
    words = [*READ[name][: len(name.split())], "-o", output, *READ[name][len(name.split()) :]]
    if name in PULLS:
        words.append(str(tmp_path / "pulled"))
    result = nsml(*words, terminal=True, check=False)
    assert acts(result.stdout + result.stderr) == []


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_command_does(name, nsml, hostile):
    result = nsml(*OTHERS[name], terminal=True, check=False)
    assert acts(result.stdout + result.stderr) == []


@pytest.mark.parametrize("terminal", [True, False])
def test_the_reason_of_a_wait_does_not(terminal, nsml, state, project, monkeypatch):
    async def sleep(_self, _seconds):
        """Takes no time."""

    monkeypatch.setattr(FixedClock, "sleep", sleep)
    state.is_away, state.why_away = 1, EVIL
    result = nsml("run", terminal=terminal)
    assert "trying again" in result.stderr
    assert acts(result.stderr.replace("\r\x1b[K", "")) == []


def test_where_a_platform_says_that_it_is_does_not(nsml, home):
    config = load(nsml.environ)
    save(config.with_context(Context(name="lab", server="gpu.lab:1", others=(EVIL,))))
    result = nsml("context", "use", "lab")
    assert "gpu.lab:1, a" in result.stderr
    assert acts(result.stderr) == []


def test_programs_still_read_what_was_written(nsml, hostile):
    found = json.loads(nsml("ps", "-a", "-o", "json").stdout)
    assert found["items"][0]["memo"] == EVIL
    names = nsml("model", "ls", "kim/mnist/1", "-o", "json").stdout
    assert [item["name"] for item in json.loads(names)["items"]] == ["best", EVIL, f"{EVIL}lost"]


SLY = "best $(id); `id` > x\n  try: id #"
"""Of a shell and of who reads errors: each of its parts would do something, or pass for a line of ours."""


@pytest.fixture
def sly(state, everything):
    known = state.checkpoints[everything.id][0]
    for name in (SLY, f"{SLY} lost"):
        one = type(known)()
        one.CopyFrom(known)
        one.name = name
        state.checkpoints[everything.id].append(one)
    one.state, one.why_lost = CHECKPOINT_STATE_LOST, SLY
    state.report(everything, SLY, 1.0, step=3)
    everything.summary.update({SLY: 1.0})
    everything.spec.args.extend([f"--{SLY}", "1"])
    return everything


@pytest.mark.parametrize(
    "words",
    [
        ["model", "pull", "kim/mnist/1", SLY[:-1]],
        ["model", "pull", "kim/mnist/1", f"{SLY} lost"],
        ["model", "ls", "kim/mnist/1"],
        ["plot", "kim/mnist/1", "-m", SLY[:-1]],
        ["export", "kim/mnist/1", "-m", SLY[:-1]],
        ["diff", "kim/mnist/1", "kim/mnist/1", "--lower", SLY[:-1]],
        ["ps", "-a", "--sort", SLY[:-1]],
        ["media", "kim/mnist/1", SLY[:-1]],
        ["run", "-e", SLY[:-1] + ".py"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_what_is_offered_to_be_copied_is_one_word_of_a_shell(
    words, nsml, sly, tmp_path, monkeypatch
):
    """Names that others chose are suggested, and nobody reads them before they paste them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{SLY.replace('/', '')}.py").touch()
    told = nsml(*words, check=False, terminal=True).stderr
    lines = told.splitlines()
    assert "  try: id #" not in lines
    assert not any(re.match(r" {0,2}try: id", line) for line in lines)
    for line in lines:
        if "$(id)" not in line or not re.match(r"(  try:| {7}|try:) ?(nsml|--)", line):
            continue
        offered = shlex.split(line.strip().removeprefix("try:"))
        assert any("$(id)" in word and "`id`" in word and "#" in word for word in offered), line


def test_names_that_are_offered_are_quoted(nsml, sly):
    told = nsml("model", "pull", "kim/mnist/1", SLY[:-1], check=False).stderr
    offered = [line for line in told.splitlines() if "nsml model pull" in line]
    assert shell_split(offered[0])[-1] == SLY, "one word of one line"
    assert acts(told) == []


def test_errors_for_programs_act_on_no_terminal_either(nsml, hostile):
    told = nsml("model", "pull", "kim/mnist/1", f"{EVIL}lost", "-j", check=False, terminal=True)
    assert acts(told.stdout + told.stderr) == []
    assert json.loads(told.stderr)["error"]["why"] == EVIL


def test_a_checkpoint_that_is_named_in_full_is_meant_alone(nsml, state, everything):
    """Its name may read as a glob that others fit."""
    known = state.checkpoints[everything.id][0]
    for name in ("[ab]", "a", "*"):
        one = type(known)()
        one.CopyFrom(known)
        one.name = name
        state.checkpoints[everything.id].append(one)
    for name in ("[ab]", "*"):
        nsml("model", "rm", "kim/mnist/1", name, "-y")
        names = [one.name for one in state.checkpoints[everything.id]]
        assert name not in names
        assert "a" in names
