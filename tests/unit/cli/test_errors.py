"""Bad input gets a clear error and an exit code: one row each."""

import json
import os
import shlex

import click
import pytest

import cli.sessions.ps
from cli.exits import CommandError, ExitCode, code_of
from cli.local import units
from cli.root import COMMANDS, SYNONYMS, root
from nsml.client import errors
from nsml.client.trust import TrustError
from nsml.v1 import sessions_pb2 as pb


def test_synonyms_suggest_commands_that_exist_and_hide_none():
    names = {name for part in COMMANDS.values() for name in part}
    assert not names & set(SYNONYMS)
    assert {name.split()[0] for meant in SYNONYMS.values() for name in meant} <= names


@pytest.mark.parametrize("line", sorted({one for meant in SYNONYMS.values() for one in meant}))
def test_a_suggested_command_and_its_options_exist(line):
    found, context = root, click.Context(root)
    for word in line.split():
        if word.startswith("-"):
            assert word in {name for one in found.get_params(context) for name in one.opts}
        else:
            found = found.get_command(context, word)
            assert found is not None


@pytest.mark.parametrize(
    ("words", "meant", "never"),
    [
        (["fetch"], "'model pull'", "'down'"),
        (["stats"], "'gpumonitor'", "'stop'"),
        (["remove"], "'rm'", "memo"),
        (["describe"], "'status --explain'", "secret"),
        (["session"], "'ps'", "version"),
        (["dataset", "list"], "'ls'", "push"),
        (["secret", "get"], "'ls'", "'set'"),
        (["config", "show"], "'get'", "'set'"),
        (["restart"], "'requeue'", "'status'"),
        (["shell"], "'sh'", "'help'"),
        (["terminal"], "'sh'", "'forward'"),
        (["run", "--from", "1"], "-- --from ...", "--rm"),
        (["run", "--mem", "2G"], "try: nsml run --memory\n", "--memo\n"),
        (["run", "--time", "2h"], "try: nsml run --time-limit\n", "--timeout"),
        (["run", "-t", "2h"], "try: nsml run --time-limit\n", "--timeout"),
        (["run", "--gres", "gpu:2"], "try: nsml run --gpus\n", "--grace"),
        (["run", "--name", "first"], "not supported yet\n  try: nsml run --memo ...", "--nodes"),
        (["ps", "--limit", "3"], "try: nsml ps --last\n", "--filter"),
        (["ps", "-l"], "try: nsml ps -o wide\n", "-q"),
        (["stop", "--all"], "try: nsml stop '*'\n", "--reason"),
        (["forward", "@last", "-p", "1"], "try: nsml forward --port\n", "--pod"),
    ],
)
def test_what_other_programs_call_it_leads_to_its_name_here_and_nowhere_else(
    nsml, words, meant, never
):
    """`nsml down` and `run --rm` are not for people who want to download, or to start from something."""
    result = nsml(*words, check=False)
    assert result.code == 2
    assert meant in result.stderr
    assert never not in result.stderr.replace(" ".join(words), "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["python", "main.py"], "nsml run main.py\n"),
        (["python3.11", "main.py", "--lr", "1"], "nsml run main.py -- --lr 1  #"),
        (["main.py", "1"], "nsml run main.py -- 1\n"),
        (["main.py", "--lr", "1", "-d", "mnist"], "nsml run main.py -d mnist -- --lr 1  #"),
        (["-e", "main.py", "--lr", "1"], "nsml run -e main.py -- --lr 1  #"),
        (["main.py --lr 1", "-g", "2"], "nsml run main.py -g 2 -- --lr 1\n"),
        (["-e", "python -u main.py --lr 1"], "nsml run main.py -- --lr 1\n"),
        (["main.py", "--env", "A=unshown", "--lr", "1"], "nsml run ... -- --lr ...  #"),
        (["none.py", "--lr", "1"], "nsml run ... -- --lr ...  #"),
        (["-d", "mnist", "-d", "./mnist"], "nsml dataset push mnist ./mnist\n"),
        (["-d", "../data/"], "nsml dataset push data ../data/\n"),
        (["-d", "mnist:3"], "try: mnist@3\n"),
        (["-d", "mnist:latest"], "try: mnist\n"),
    ],
)
def test_a_command_line_as_of_python_or_docker_is_told_as_one_of_run(nsml, project, words, line):
    result = nsml("run", *words, check=False)
    assert result.code == 2
    assert line in result.stderr
    assert "unshown" not in result.stderr


def test_a_command_line_of_python_behind_the_dashes(nsml, state, project):
    (project / "main.py").rename(project / "train.py")
    said = nsml("run", "-g", "0", "--", "python", "train.py", "--lr", "1", check=False).stderr
    assert "try: nsml run train.py -g 0 -- --lr 1\n" in said
    assert "nsml run --argv -- python train.py --lr 1\n" in said
    for line in said.split("try:")[1].strip().splitlines():
        nsml(*shlex.split(line)[1:])
    assert [(one.spec.entry, list(one.spec.argv)) for one in state.sessions.values()] == [
        ("train.py", []),
        ("", ["python", "train.py", "--lr", "1"]),
    ]


def test_an_entry_may_be_named_with_the_path_of_its_folder(nsml, state, project):
    nsml("run", str(project.resolve() / "main.py"))
    assert [one.spec.entry for one in state.sessions.values()] == ["main.py"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["psa"], 2, "did you mean 'ps'"),
        (["scancel", "@last"], 2, "no such command: 'scancel'; did you mean 'stop'?"),
        (["squeue"], 2, "no such command: 'squeue'; did you mean 'ps' or 'queue'?"),
        (["datset", "ls"], 2, "did you mean 'dataset'"),
        (["model", "lst", "@last"], 2, "did you mean 'ls'"),
        (["ps", "--al"], 2, "nsml ps --all"),
        (
            ["run", "--gpu", "1"],
            2,
            "no such option: --gpu\n  try: nsml run --gpus\n       nsml run ... -- --gpu ...",
        ),
        (
            ["run", "-a", "--lr", "0.1", "--epochs", "5"],
            2,
            "--epochs\n  try: nsml run ... -- --epochs ...  # an option of your program\n       nsml run --help",
        ),
        (
            ["run", "--lr", "0.1"],
            2,
            "no such option: --lr\n  try: nsml run ... -- --lr ...  # an option of your program\n",
        ),
        (
            ["model", "pull", "@last"],
            2,
            (
                "missing argument: CHECKPOINT\n  why: nsml model pull takes SESSION CHECKPOINT [PATH]\n"
                "  try: nsml model ls @last\n"
            ),
        ),
        (
            ["competition", "watch", "lee/cup"],
            2,
            "did you mean 'standings'?\n  try: nsml competition standings lee/cup\n",
        ),
        (
            ["competition", "submit", "lee/cup", "@last"],
            2,
            "no such command: 'submit'\n  try: nsml submit --help\n       nsml competition --help\n",
        ),
        (["logs"], 2, "missing argument: SESSION\n  try: nsml logs @last\n"),
        (["diff"], 2, "missing argument: SESSION\n  try: nsml diff @last @2\n"),
        (["dataset", "push", "x"], 2, "nsml dataset push mnist ./mnist    # for example\n"),
        (["ps", "--hlp"], 2, "no such option: --hlp\n  try: nsml ps --help\n"),
        (["run", "-g", "2x"], 2, "error: --gpus: '2x' is not a number"),
        (
            ["run", "-n", "0"],
            2,
            "error: --nodes: 0 is too small: the minimum is 1\n  try: nsml run --nodes 1 ...",
        ),
        (["ps", "-Z"], 2, "no such option: -Z\n  try: nsml ps --help"),
        (["--contxt", "lab", "ps"], 2, "no such option: --contxt\n  try: nsml --context"),
        (["login", "lab", "--pasword"], 2, "no such option: --pasword\n  try: nsml login --help"),
        (["run", "--image", "x;reboot"], 2, "'x;reboot' is not the name of an image"),
        (["run", "--image", "$(id)"], 2, "is not the name of an image"),
        (["run", "--shm-size", "0"], 2, "leave it out for the default"),
        (
            ["run", "--memory", "1.5G", "--shm-size", "2Gi"],
            2,
            "--shm-size 2Gi is more than --memory 1.5G, and shared memory is a part",
        ),
        (["run", "--disk", "much"], 2, "is not a size"),
        (["run", "--processes", "0"], 2, "0 is too small: the minimum is 1"),
        (["run", "--processes", "9" * 30], 2, f"{'9' * 20} is more than there can be\n"),
        (["run", "-n", "4294967296"], 2, "4294967296 is more than there can be"),
        (["run", "--retry", "-1"], 2, "-1 is too small: the minimum is 0"),
        (["run", "--retry", "9999999999"], 2, "9999999999 is more than there can be"),
        (["run", "--memory", "99999P"], 2, "99999P is more than any machine has"),
        (["run", "--shm-size", "9223372036854775808"], 2, "is more than any machine has"),
        (["run", "-g", "1.5"], 2, "1.5: above one, only whole GPUs; 1 or 2?"),
        (["run", "-g", "-1"], 2, "'-1' is less than none\n  try: nsml run --gpus 0 ..."),
        (["run", "--time-limit", "two hours"], 2, "'two hours' is not a duration such as 30s"),
        (["run", "--time-limit", "abc"], 2, "'abc' is not a duration such as 30s"),
        (["run", "--time-limit", "-5m"], 2, "'-5m' is not a duration"),
        (["run", "--time-limit", "9" * 400], 2, f"{'9' * 20} is longer than a hundred years"),
        (["run", "--grace", "36501d"], 2, "36501d is longer than a hundred years"),
        (
            ["run", "--time-limit", "99999d"],
            2,
            "hundred years\n  why: 3650d is the longest\n  try: nsml run --time-limit 3650d ...",
        ),
        (
            ["stop", "1", "--grace", "99999d"],
            2,
            "why: 1h is the longest\n  try: nsml stop --grace 1h",
        ),
        (
            ["run", "--retry", "99999999999"],
            2,
            "there can be\n  why: 100 is the most\n  try: nsml run --retry 100 ...",
        ),
        (["run", "-n", "99999999999"], 2, "why: 64 is the most\n  try: nsml run --nodes 64 ..."),
        (["status", "mnist/3"], 2, "argument: mnist/3\n  try: nsml status --explain mnist/3"),
        (["run", "--priority", "urgent"], 2, "'urgent' is not one of idle, low, normal, high"),
        (["run", "--gpu-model", "- "], 2, "'- ' is not the name of a GPU model"),
        (["run", "--gpu-model", "A100", "-g", "0"], 2, "--gpu-model names GPUs, and -g 0 asks"),
        (["run", "--label", "stage"], 2, "label stage has no value\n  why: it takes KEY=VALUE"),
        (["run", "--label", "stage"], 2, "try: nsml run --label stage=VALUE ..."),
        (
            ["run", "--label", "-x=1"],
            2,
            "'-x' is not the key of a label\n  why: a key has 1 to 63 of",
        ),
        (
            ["run", "--label", "x=\x1b[2J"],
            2,
            "is not the value of a label\n  why: x: it has characters that cannot be printed",
        ),
        (["run", "--label", "x="], 2, "'' is not the value of a label\n  why: x: it is empty"),
        (
            ["run", "--label", "a=1", "--label", "a=2"],
            2,
            "label a is given twice\n  why: as '1' and as '2'; a key has one value",
        ),
        (["run", "--pod", ""], 2, "it names no pod: leave it out for any"),
        (["run", "--network", "hots"], 2, "'hots' is not one of own, host"),
        (["run", "-g", "1.5"], 2, "only whole GPUs"),
        (["run", "-g", "-1"], 2, "try: nsml run --gpus 0 ..."),
        (["run", "-g", "1.5"], 2, "try: nsml run --gpus 1 ...\n       nsml run --gpus 2 ..."),
        (["run", "-g", "0.0001"], 2, "try: nsml run --gpus 0.001 ..."),
        (["run", "-n", "1.5"], 2, "try: nsml run --nodes 1 ...\n       nsml run --nodes 2 ..."),
        (["run", "--priority", "hihg"], 2, "try: nsml run --priority high ..."),
        (["run", "--time-limit", "two hours"], 2, "try: nsml run --time-limit 2h ..."),
        (["run", "--project", ""], 2, "--project names none: leave it out for your own"),
        (["run", "-g", "0.0001"], 2, "0.0001 is finer than a thousandth"),
        (["run", "-g", "1234567"], 2, "1234567 is more than any machine has"),
        (["run", "-c", "2.00001"], 2, "2.00001 is finer than a thousandth"),
        (
            ["run", "--time-limit", "2"],
            2,
            (
                "error: --time-limit: 2 lacks its unit\n"
                "  why: a time is in s, m, h, d or w\n"
                "  try: nsml run --time-limit 2h ...\n"
                "       nsml run --time-limit 2m ...\n"
                "       nsml run --time-limit 2s ...\n"
            ),
        ),
        (["run", "--time-limit", "1.5"], 2, "try: nsml run --time-limit 1.5h ..."),
        (["admin", "user", "token", "lee", "--valid-for", "30"], 2, "--valid-for 30d ..."),
        (["run", "--time-limit", "0"], 2, "0 is no time: leave it out for no limit"),
        (["run", "--time-limit", "0s"], 2, "0s is no time: leave it out for no limit"),
        (["run", "--memory", "much"], 2, "not a size"),
        (
            ["run", "--memory", "300"],
            2,
            "300 is too small, the minimum is 6.0 MiB; 300 is bytes; 300M?",
        ),
        (["run", "--memory", "300K"], 2, "name more, such as 512M"),
        (["run", "--shm-size", "300"], 2, "300 is bytes; 300M?"),
        (["run", "--disk", "300"], 2, "300 is bytes; 300M?"),
        (["run", "--memory", "0"], 2, "0 is no size: leave it out for the default"),
        (["run", "--max-size", "0G"], 2, "0G is no size"),
        (["run", "-f", "-o", "json"], 2, "-o goes with --wait"),
        (["run", "-c", "0"], 2, "0 is none: leave it out for the default"),
        (["memo", "kim/mnist/1", "--append"], 2, "--append needs a text"),
        (["run", "--env", "1A"], 2, "'1A' is not the name of a variable"),
        (["run", "-a", "'open"], 2, "-a: No closing quotation"),
        (["run", "--argv"], 2, "--argv needs a command"),
        (["run", "-e", "missing.py"], 2, "no such entry file: missing.py"),
        (["run", "-m", "x", "-a", "--lr", "0.1"], 2, "try: nsml run ... -a '--lr 0.1'\n"),
        (["run", "-e", "mian.py"], 2, "nsml run -e main.py"),
        (["run", "-e", "/etc/passwd"], 2, "outside this folder"),
        (["run", "-e", "../x.py"], 2, "outside this folder"),
        (["run", "-d", "nowhere"], 5, "no dataset 'nowhere'"),
        (["run", "-g", "9"], 7, "no node has 9 GPUs"),
        (["logs", "kim/mnist/7"], 5, "no session 'kim/mnist/7'"),
        (["logs", "kim/nothing/*"], 5, "no session fits"),
        (["stop", "kim/mnist/2"], 6, "has ended"),
        (["rm", "kim/mnist/1"], 6, "has not ended"),
        (["memo", "1", "x"], 2, "one of: kim/cifar/1"),
        (["model", "pull", "kim/mnist/1", "44"], 5, "no checkpoint '44'"),
        (["ps", "--filter", "stat:run"], 2, "--filter: no key 'stat'; there are state, "),
        (["ps", "--filter", "user:'kim"], 2, "--filter: a quote (') that nothing closes"),
        (["ps", "--filter", "memo=rq"], 2, "try: --filter memo:rq"),
        (["ps", "--filter", "lr>high"], 2, "'high' is not a number"),
        (["ps", "--sort", "staet"], 2, "--sort state"),
        (["ps", "--state", "runing"], 2, "nsml ps --state running"),
        (["ps", "--state", "xyz"], 2, "there are "),
        (["ps", "-o", "tabel"], 2, "nsml ps --output table ..."),
        (["plot", "@last", "-x", "stpe"], 2, "nsml plot -x step ..."),
        (["completion", "bsh"], 2, "nsml completion bash"),
        (["ps", "-o", "xml"], 2, "xml"),
        (["ps", "-w", "-o", "json"], 2, "nsml ps -w -o jsonl"),
        (["help", "exit-code"], 2, "nsml help exit-codes"),
        (["config", "set", "outptu", "wide"], 2, "nsml config get output"),
        (["config", "set", "output", "xml"], 2, "not an output format"),
        (["config", "set", "theme", "pink"], 2, "high-contrast"),
        (["context", "use", "lab"], 5, "no such context"),
        (["login", "gpu.lab", "-p", "secret"], 2, "--token-stdin"),
        (["dataset", "push", "x", "nowhere"], 2, "nowhere"),
        (["admin", "user", "rm", "kim"], 2, "add -y"),
        (["admin", "user", "rm", "kim", "-y"], 6, "the last administrator"),
        (["admin", "user", "add", "kim"], 6, "taken"),
        (["gpustat", "gpu-2"], 5, "no such node"),
        (["dataset", "push", "x", ".", "--max-size", "1"], 1, "--exclude PATTERN"),
        (["dataset", "info", "x@0"], 2, "error: x@0: after @ comes a version"),
        (["run", "-n", "x"], 2, "'x' is not a whole number"),
        (["logs", "@last", "--attempt", "all"], 2, "--attempt 1    the first; without it the last"),
        (["plot", "@last", "--rank", "all"], 2, "without --rank: all of them"),
        (["plot", "@last", "--attempt", "all"], 2, "--attempts    all of them, each apart"),
        (["run", "-n", "0"], 2, "0 is too small: the minimum is 1"),
        (["run", "--public", "--private"], 2, "--public and --private exclude one another"),
        (["plot", "@last", "--csv", "--table"], 2, "--csv and --table exclude one another"),
        (["plot", "@last", "--table", "--csv"], 2, "--table and --csv exclude one another"),
        (["plot", "@last", "--smooth", "x"], 2, "'x' is not a valid number"),
    ],
)
def test_bad_input(nsml, state, project, words, code, said):
    state.add("kim/mnist/1")
    state.add("kim/mnist/2", pb.SESSION_STATE_SUCCEEDED)
    state.add("kim/cifar/1")
    before = list(state.sessions)
    result = nsml(*words, check=False)
    assert result.code == code, result.stderr
    assert said in result.stderr
    assert any(line.startswith(("error: ", '{"schema')) for line in result.stderr.splitlines())
    assert result.stdout == ""
    assert list(state.sessions) == before


@pytest.mark.parametrize(
    "words",
    [
        ["ps"],
        ["ps", "-w"],
        ["logs", "-f", "@last"],
        ["run", "-f"],
        ["run", "--wait"],
        ["forward", "@last", "web"],
    ],
)
def test_a_platform_that_does_not_answer_the_first_call_is_not_waited_for(nsml, project, words):
    result = nsml(*words, check=False, NSML_SERVER="127.0.0.1:1")
    assert (result.code, result.stdout) == (3, "")
    assert result.stderr.startswith("error: the control plane at 127.0.0.1:1 does not answer\n")


def test_no_local_mistake_sends_anything(nsml, state, project):
    (project / "away").symlink_to("/etc/hostname")
    result = nsml("run", check=False)
    assert result.code == 1
    assert "away leaves the folder" in result.stderr
    (project / "away").unlink()
    (project / "big").write_bytes(b"x" * 2000)
    result = nsml("run", "--max-size", "1k", check=False)
    assert result.code == 1
    assert "2,000  big" in result.stderr
    assert ".nsmlignore" in result.stderr
    assert not state.calls


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-g", "9"], 7, "no node has 9 GPUs"),
        (["-d", "nowhere"], 5, "no dataset 'nowhere'"),
    ],
)
def test_what_the_platform_refuses_is_refused_before_the_code_is_sent(
    nsml, state, project, words, code, said
):
    result = nsml("run", *words, check=False)
    assert (result.code, state.blobs, state.sessions) == (code, {}, {})
    assert said in result.stderr
    assert not {"FindMissingBlobs", "PutBlobs"} & set(state.calls)


def test_an_ignored_entry_is_told(nsml, project):
    (project / ".nsmlignore").write_text("*.py\n")
    (project / "other.txt").touch()
    result = nsml("run", check=False)
    assert result.code == 2
    assert "!main.py" in result.stderr


def test_a_message_over_the_limit(nsml, state, project):
    result = nsml("run", "--argv", "--", "x" * (5 << 20), check=False)
    assert result.code == 1
    assert "over the limit" in result.stderr
    assert "CreateSession" not in state.calls


def test_a_dead_platform(nsml):
    result = nsml("ps", check=False, NSML_SERVER="127.0.0.1:1")
    assert result.code == 3
    first, *rest = result.stderr.splitlines()
    assert first == "error: the control plane at 127.0.0.1:1 does not answer"
    assert any("nsml up" in line for line in rest)


def test_without_a_leader_it_is_not_said_that_nobody_answers(nsml, state):
    state.refuses["ListSessions"], state.has_leader = 1, False
    result = nsml("ps", check=False)
    assert result.code == 3
    assert result.stderr.startswith("error: no control plane leads now")
    assert "try: nsml status" in result.stderr


@pytest.mark.parametrize("path", ["gone", "a folder"])
def test_why_a_socket_does_not_answer_is_said_without_its_name_again(nsml, tmp_path, path):
    result = nsml("ps", check=False, NSML_SERVER=f"unix:{tmp_path}/{path}/socket")
    assert result.code == 3
    assert "  why: No such file or directory\n" in result.stderr


def test_a_dead_platform_of_a_unit_is_started_by_systemd(nsml, tmp_path, monkeypatch):
    """And one of `nsml up` by that, also where there is a unit."""
    monkeypatch.setattr(units, "UNIT_FOLDERS", (str(tmp_path),))
    (tmp_path / units.CONTROL_PLANE_UNIT).touch()
    data = tmp_path / "nsml/controlplane"
    data.mkdir(parents=True)
    said = nsml("ps", check=False, NSML_SERVER=f"unix:{data}/socket").stderr
    assert "systemctl start nsml-controlplane" in said
    assert "nsml up" not in said
    stopped = nsml("down", "--data", tmp_path / "none").stderr
    assert "stopped by: systemctl stop nsml-controlplane\n" in stopped
    (data.parent / "local.json").touch()
    said = nsml("ps", check=False, NSML_SERVER=f"unix:{data}/socket").stderr
    assert "nsml up" in said
    assert "systemctl" not in said


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_control_plane_that_waits_says_for_what(nsml, tmp_path, is_alive):
    awaits = "etcd does not answer (http://127.0.0.1:2379: Connection refused)"
    pid = os.getpid() if is_alive else 2**22 + 1  # no process has one so high
    (tmp_path / "starting.json").write_text(json.dumps({"pid": pid, "awaits": awaits}))
    result = nsml("status", check=False, NSML_SERVER=f"unix:{tmp_path}/socket")
    assert result.code == 3
    assert (f"why: its start waits: {awaits}\n" in result.stderr) == is_alive
    assert ("nsml up" in result.stderr) != is_alive


def test_a_dead_platform_that_was_signed_in_to_is_not_started_here(nsml, home):
    """Its authority is known: it may be at the other end of a tunnel."""
    (home / "lab.pem").touch()
    (home / "config.toml").write_text(
        f'[contexts.lab]\nserver = "127.0.0.1:1"\nca = "{home}/lab.pem"\nserver_name = "nsml"\n'
    )
    result = nsml("ps", "--context", "lab", check=False, NSML_SERVER="")
    assert result.code == 3
    assert "nsml context ls" in result.stderr
    assert "nsml up" not in result.stderr


def test_a_wrong_token(nsml, home):
    (home / "token").write_text("wrong\n")
    result = nsml("ps", check=False)
    assert result.code == 4
    assert "the token is not valid" in result.stderr
    assert "nsml login" in result.stderr


@pytest.mark.parametrize("content", ["tökén\n", "two\nlines\n", "\x1b[31m", b"\xff\xfe"])
@pytest.mark.parametrize("words", [["ps"], ["ps", "-a"], ["status"]])
@pytest.mark.parametrize("way", ["socket", "address"])
def test_a_damaged_token_is_told_with_its_file(nsml, server, home, content, words, way):
    where = f"unix:{server.socket}" if way == "socket" else server.address
    content = content if isinstance(content, bytes) else content.encode()
    (home / "token").write_bytes(content)
    result = nsml(*words, check=False, NSML_SERVER=where)
    assert (result.code, result.stdout) == (4, "")
    first, *rest = result.stderr.splitlines()
    assert first == f"error: the token file {home / 'token'} is damaged"
    assert f"nsml login {where}" in rest[-1]


@pytest.mark.parametrize("content", [b"contexts = 5", b'contexts = "ab"', b"\xff\xff"])
def test_a_damaged_configuration_is_told_with_its_file(nsml, home, content):
    (home / "config.toml").write_bytes(content)
    result = nsml("ps", check=False)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {home / 'config.toml'}")


def test_no_platform_at_all(nsml):
    result = nsml("ps", check=False, NSML_SERVER="")
    assert result.code == 4
    assert "nsml up" in result.stderr


def test_a_timeout_has_its_own_code(nsml, state):
    state.add("kim/mnist/1")
    result = nsml("logs", "-f", "@last", "--timeout", "200ms", check=False)
    assert result.code == 8


@pytest.mark.parametrize("form", ["json", "jsonl"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["logs", "99"], 5),
        (["ps", "--nosuch"], 2),
        (["psa"], 2),
        (["run", "-g", "much"], 2),
    ],
)
@pytest.mark.parametrize("way", ["flag", "variable", "setting"])
def test_errors_are_json_where_the_output_is(nsml, home, words, code, form, way):
    flag = ["-o", form] if way == "flag" else []
    if way == "setting":
        (home / "config.toml").write_text(f'[settings]\noutput = "{form}"\n')
    result = nsml(*flag, *words, check=False, NSML_OUTPUT=form if way == "variable" else "")
    assert result.code == code
    assert json.loads(result.stderr)["error"]["code"] == code


@pytest.mark.parametrize("flag", ["-j", "-aj", "--json", "-ojsonl", "--output=json"])
def test_a_flag_for_json_is_found_in_what_could_not_be_parsed(nsml, flag):
    for words in (["ps", flag, "--nosuch"], ["ps", "--nosuch", flag], ["psa", flag]):
        assert json.loads(nsml(*words, check=False).stderr)["error"]["reason"] == "USAGE"


@pytest.mark.parametrize(
    "words",
    [
        ["ps", "-o", "table", "--nosuch"],
        ["run", "--nosuch", "--", "-o", "json"],
        ["ps", "--nosuch", "--", "-j"],
    ],
)
def test_errors_are_words_where_the_output_is_not_json(nsml, words):
    assert nsml(*words, check=False).stderr.startswith("error: no such option: --nosuch\n")


def test_a_flag_wins_over_the_variable_for_errors_too(nsml):
    result = nsml("ps", "-o", "table", "--nosuch", check=False, NSML_OUTPUT="json")
    assert result.stderr.startswith("error: ")
    assert nsml("ps", "-j", check=False, NSML_OUTPUT="xml", NSML_CONTEXT="no").stderr[0] == "{"
    assert nsml("ps", check=False, NSML_OUTPUT="xml").stderr.startswith("error: 'xml' is not")


def test_ambiguity_as_json_has_the_candidates(nsml, state):
    state.add("kim/mnist/1")
    state.add("kim/cifar/1")
    result = nsml("getid", "1", "-j", check=False)
    error = json.loads(result.stderr)["error"]
    assert error["candidates"] == ["kim/cifar/1", "kim/mnist/1"]


def test_a_defect_is_told_as_one(nsml, monkeypatch):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("here")

    monkeypatch.setattr(cli.sessions.ps, "wanted", broken)
    result = nsml("ps", check=False)
    assert result.code == 1
    assert "a defect of nsml itself: ZeroDivisionError: here" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in nsml("ps", "--debug", check=False).stderr


EXPECTED_CODES = {
    errors.Unavailable: 3,
    errors.ConnectionLost: 3,
    errors.NodeUnavailable: 3,
    errors.StillWorking: 3,
    errors.NotSignedIn: 4,
    errors.UntrustedServer: 4,
    errors.Denied: 4,
    errors.NotFound: 5,
    errors.InvalidRequest: 2,
    errors.AmbiguousReference: 2,
    errors.StateConflict: 6,
    errors.AlreadyEnded: 6,
    errors.StillLive: 6,
    errors.AlreadyExists: 6,
    errors.MissingBlobs: 6,
    errors.NoSuchService: 6,
    errors.NotEnough: 7,
    errors.CannotEverFit: 7,
    errors.NoCapacity: 7,
    errors.OverQuota: 7,
    errors.NoCredit: 7,
    errors.LimitReached: 7,
    errors.TooLarge: 1,
    errors.Unsupported: 1,
    errors.ContentDamaged: 1,
    errors.PlatformFault: 1,
    TrustError: 1,
}


def test_every_error_has_its_exit_code():
    def below(kind):
        return {kind}.union(*(below(item) for item in kind.__subclasses__()))

    assert below(errors.ClientError) - {errors.ClientError} == set(EXPECTED_CODES)
    assert {kind: int(code_of(kind("x"))) for kind in EXPECTED_CODES} == EXPECTED_CODES


def test_the_help_topic_has_every_code(nsml):
    shown = nsml("help", "exit-codes").stdout
    for code in ExitCode:
        assert any(line.split()[:1] == [str(int(code))] for line in shown.splitlines()), code


def test_a_command_error_names_its_code():
    assert CommandError("x", code=ExitCode.CONFLICT).reason == "CONFLICT"


def test_the_last_lines_are_asked_for_as_docker_does(nsml, state):
    state.add("kim/mnist/1")
    said = nsml("logs", "@last", "-n", "20", check=False).stderr
    assert "try: nsml logs @last --tail 20\n" in said
    assert "with --grep PATTERN" in nsml("logs", "@last", "-n", check=False).stderr


def test_a_file_among_sessions_is_where_to_export_to(nsml, state):
    state.add("kim/mnist/1")
    result = nsml("export", "1", "@last", "runs.csv", check=False)
    assert result.code == 2
    assert "try: nsml export 1 @last -o runs.csv\n" in result.stderr


def test_an_ended_session_is_queued_again_by_its_command_line(nsml, state):
    state.add("kim/mnist/2", pb.SESSION_STATE_SUCCEEDED)
    said = nsml("requeue", "kim/mnist/2", check=False).stderr
    assert "try: nsml command kim/mnist/2" in said
    assert "try: nsml logs kim/mnist/2" in nsml("stop", "kim/mnist/2", check=False).stderr


def test_an_empty_list_names_the_line_for_ended_ones_with_its_words(nsml):
    assert nsml("ps", "ds:mnist", "lr>1").stderr.endswith(": nsml ps -a ds:mnist 'lr>1'\n")


def test_filters_are_a_topic_and_its_examples_are_understood(nsml, state):
    state.add("kim/mnist/1")
    text = nsml("help", "filters").stdout
    terms = [line[2:20].strip() for line in text.splitlines()[2:8]]
    assert terms[0] == "lr>=0.05"
    for one in terms:
        assert nsml("ps", "-a", "--filter", one.replace(", ", " | ")).code == 0


@pytest.mark.parametrize(
    ("words", "message", "advice"),
    [
        (["run", "-d"], "-d needs a value: DATASET", "nsml run --help"),
        (["run", "--rerun"], "--rerun needs a value: SESSION", "nsml run --help"),
        (["plot", "@last", "-m"], "-m needs a value: ", "nsml plot --help"),
        (["run", "--wait=yes"], "--wait takes no value", "nsml run --help"),
        (["--context"], "--context needs a value: NAME", "nsml --help"),
    ],
)
def test_an_option_without_its_value_names_what_it_takes(nsml, words, message, advice):
    refused = nsml(*words, check=False)
    assert refused.code == 2
    assert f"error: {message}" in refused.stderr
    assert f"try: {advice}" in refused.stderr
