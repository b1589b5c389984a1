import json
import os
import threading

import grpc
import pytest

from nsml.client.errors import Unavailable
from nsml.v1 import checkpoints_pb2, datasets_pb2, nodes_pb2, resources_pb2
from nsml.v1 import sessions_pb2 as pb


def only_session(state):
    (session,) = state.sessions.values()
    return session


def test_a_run_sends_the_folder_and_says_what_next(nsml, state, project):
    result = nsml("run", "-g", "2", "-a", "--lr 0.1 --name 'two words'", "-m", "first try")
    assert result.stdout == "Session kim/None/1 started\n"
    assert "1 file" in result.stderr
    assert "nsml logs -f @last" in result.stderr
    session = only_session(state)
    assert session.spec.entry == "main.py"
    assert list(session.spec.args) == ["--lr", "0.1", "--name", "two words"]
    assert session.spec.resources == resources_pb2.Resources(gpu_thousandths=2000)
    assert session.memo == "first try"
    assert session.spec.bundle_digest in state.blobs
    assert nsml("command", "@last").stdout == (
        """nsml run -g 2 -a "--lr 0.1 --name 'two words'" -m 'first try'\n"""
    )


def test_limits_go_with_the_session(nsml, state, project):
    nsml(
        "run", "--memory", "12G", "--shm-size", "12G", "--disk", "24000000000", "--processes", "64"
    )
    limits = pb.Limits(shm_bytes=12 * 10**9, disk_bytes=24 * 10**9, process_count=64)
    assert only_session(state).spec.limits == limits
    (record,) = json.loads(nsml("ps", "-o", "json").stdout)["items"]
    assert record["limits"] == {
        "shm_bytes": 12 * 10**9,
        "disk_bytes": 24 * 10**9,
        "processes": 64,
    }


def test_a_run_without_an_answer_says_how_to_see_what_came_of_it(nsml, state, project, monkeypatch):
    monkeypatch.setattr("nsml.client.calls._CREATE_RETRIES_S", ())
    state.fail_next["CreateSession"] = grpc.StatusCode.UNAVAILABLE
    result = nsml("run", check=False)
    assert result.code == 3
    assert "try: nsml ps -a" in result.stderr
    assert only_session(state).name == "kim/None/1"


def test_code_is_sent_again_to_another_control_plane_that_has_not_heard_it(nsml, state, project):
    state.forgets_what_was_sent = True
    assert nsml("run", "-o", "name").stdout == "kim/None/1\n"
    assert only_session(state).spec.bundle_digest in state.blobs


def test_a_run_that_was_answered_has_succeeded_whoever_answers_then(
    nsml, state, project, monkeypatch
):
    async def gone(*_):
        raise Unavailable("nobody answers")

    monkeypatch.setattr("cli.sessions.run._waits", lambda _: True)
    monkeypatch.setattr("nsml.client.calls.Sessions.get", gone)
    result = nsml("run", "-o", "name")
    assert result.stdout == "kim/None/1\n"


def test_an_interrupt_after_the_answer_leaves_the_session(nsml, state, project, monkeypatch):
    async def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.sessions.run._settled", interrupted)
    result = nsml("run", check=False)
    assert (result.code, result.stdout) == (130, "")
    assert result.stderr.endswith("\nsession kim/None/1 continues: nsml logs -f kim/None/1\n")


def test_a_run_that_waits_says_so_and_why(nsml, state, project):
    state.waiting = "needs 8 GPUs on one node; most free on one node: 2"
    result = nsml("run", "-g", "8")
    assert result.stdout == f"Session kim/None/1 queued: {state.waiting}\n"
    hints = result.stderr.splitlines()[-1:]
    assert hints == ["  why: nsml status --explain @last   follow: nsml logs -f @last"]
    assert max(map(len, hints)) <= 80


def test_what_is_sent_is_told_in_eighty_columns(nsml, project):
    (project / ".nsmlignore").write_text("data/\n")
    (project / "data").mkdir()
    for number in range(1200):
        (project / "data" / str(number)).write_bytes(b"x" * 999)
        (project / f"{number}.txt").write_text(str(number) * 99)
    told = nsml("run").stderr.splitlines()
    assert [line.split()[0] for line in told[:2]] == ["packing", "sending"]
    assert "ignored 1,200 files" in told[0]
    assert max(len(line) for line in told) <= 80


def test_what_is_no_file_is_left_out_and_told(nsml, state, project):
    for name in ("a", "b\x1b[31m", "c", "d", "e"):
        os.mkfifo(project / name)
    for words in (["run"], ["dataset", "push", "pipes", "."]):
        told = nsml(*words).stderr.splitlines()
        assert told[0] == (
            "note: left out, for they are no files: a (a pipe), b\\x1b[31m (a pipe), c (a pipe)"
            " and 2 more"
        )
        assert told[1].startswith("packing   1 file 15 Bytes")
    assert nsml("-q", "run").stderr == ""


def test_names_that_are_not_utf8_are_sent_and_words_are_named(nsml, state, project):
    (project / os.fsdecode(b"caf\xe9.txt")).write_text("1")
    (project / os.fsdecode(b"m\xe9.py")).write_text("1")
    assert "packing   3 files" in nsml("run").stderr
    word = os.fsdecode(b"b\xff")
    for words in (["--", word], ["-m", word], ["-d", word], ["-e", os.fsdecode(b"m\xe9.py")]):
        result = nsml("run", *words, check=False)
        assert result.code == 2
        assert result.stderr.startswith(f"error: '{words[-1][0]}\\x")
        assert "is not UTF-8" in result.stderr
    for words, variables in ((["--env", f"A={word}"], {}), (["--env", "A"], {"A": word})):
        told = nsml("run", *words, check=False, **variables).stderr
        assert "error: --env: the value of A is not UTF-8" in told
        assert "xff" not in told
    assert len(state.sessions) == 1


def test_what_is_not_sent_or_not_read_is_named(nsml, state, project):
    for name in ("logs", "env/bin", "sub"):
        (project / name).mkdir(parents=True)
    (project / "env/pyvenv.cfg").touch()
    (project / "env/bin/python").symlink_to("/usr/bin/env")
    (project / "sub/.nsmlignore").touch()
    (project / "data.bin").write_bytes(b"x" * 2000)
    (project / ".gitignore").write_text("*.bin\r\nsub/\r\nenv/\r\n*.pyc\r\n")
    assert nsml("run").stderr.splitlines()[:4] == [
        "note: left out, environments of Python packages: env",
        "note: empty folders are not sent: logs",
        "note: not read, only .nsmlignore of the folder itself is: sub/.nsmlignore",
        "note: .gitignore is not read: 2 files (2.0 kB) that it names are sent; .nsmlignore leaves files out",
    ]
    (project / ".nsmlignore").write_text("*.bin\nsub\n")
    assert "ignore is not read" not in nsml("run").stderr


@pytest.mark.parametrize("name", [".gitignore", ".nsmlignore"])
def test_an_ignore_file_that_is_a_pipe_is_not_waited_for(nsml, state, project, name):
    os.mkfifo(project / name)
    result = nsml("run", "--dry-run", check=False)
    if name == ".gitignore":
        assert result.code == 0
        assert "note: left out, for they are no files: .gitignore (a pipe)" in result.stderr
    else:
        assert result.code != 0
        assert "cannot read .nsmlignore" in result.stderr


def test_ignore_files_of_folders_and_of_other_tools_are_named(nsml, state, project):
    (project / "data").mkdir()
    unknown = "!\n[[:alpha:]]*.npy\n"  # to nsml, not to git
    (project / "data" / ".gitignore").write_text(f"{unknown}/big.csv\n")
    (project / "data" / "big.csv").write_text("x" * 1000)
    (project / "big.csv").write_text("not what is meant in data")
    told = "note: data/.gitignore is not read: 1 file (1.0 kB) that it names are sent;"
    assert told in nsml("run", "--dry-run").stderr
    (project / ".dockerignore").write_text("data\n")
    assert (
        "note: .dockerignore, data/.gitignore are not read: 2 files (1.0 kB) that they name are sent;"
        in nsml("run", "--dry-run").stderr
    )
    (project / ".nsmlignore").write_text("data/\n")
    assert "not read" not in nsml("run", "--dry-run").stderr


@pytest.mark.parametrize("words", [["run"], ["dataset", "push", "x", "."]])
def test_a_link_that_cannot_be_sent_is_left_out_by_the_line_that_is_shown(
    nsml, state, project, words
):
    (project / "[da] ta").symlink_to("/etc")
    result = nsml(*words, check=False)
    assert result.code == 1
    assert "the link [da] ta leaves the folder: /etc" in result.stderr
    line = "/\\[da] ta"
    assert f"try: a line {line} in .nsmlignore leaves it out" in result.stderr
    (project / ".nsmlignore").write_text(f"{line}\n")
    nsml(*words)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-e .", "nodes install packages of an index, not folders"),
        ("-c constraints.txt", "constraints files are not read"),
        ("six @ git+https://github.com/benjaminp/six@1.16.0", "nodes fetch no repositories"),
        ("../six", "it is a file or folder"),
        ("--trusted-host a", "options are those that name an index"),
        ("-r missing.txt", "there is no such file"),
        ("-r ../up.txt", "leads out of the folder"),
        ("-r ignored.txt", "there is no such file"),
    ],
)
@pytest.mark.parametrize("form", ["utf-8", "utf-16"])
@pytest.mark.parametrize("words", [["run"], ["run", "--dry-run"], ["run", "--image", "python"]])
def test_what_no_node_installs_is_refused_before_anything_is_sent(
    nsml, state, project, words, line, why, form
):
    (project / "ignored.txt").write_text("six\n")
    (project / ".nsmlignore").write_text("ignored.txt\n")
    (project / "requirements.txt").write_bytes(f"numpy\r\n{line}\r\n".encode(form))
    result = nsml(*words, check=False)
    assert (result.code, result.stdout, state.blobs, state.sessions) == (2, "", {}, {})
    assert f"error: requirements.txt: {line}"[:24] in result.stderr.replace("'", "")
    assert why in result.stderr
    assert "  try: " in result.stderr


PROJECT = '[project]\nname="x"\nversion="1"\ndependencies=["six>=1"]\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[project", "pyproject.toml is no TOML"),
        ('[project]\ndependencies = "six"\n', "dependencies is no list of texts"),
        (f"{PROJECT}requires-python = '<3.9'\n", "pyproject.toml requires Python <3.9"),
        (f"{PROJECT}requires-python = 'new'\n", "'new' is no range of versions"),
        (f"{PROJECT}[tool.uv.sources]\nsix = {{ path = '../six' }}\n", "it is a file or folder"),
        (f"{PROJECT}[tool.uv.sources]\nsix = {{ git = 'https://a/b' }}\n", "no repositories"),
    ],
)
def test_a_project_that_no_node_installs_is_refused(nsml, state, project, text, told):
    (project / "pyproject.toml").write_text(text)
    result = nsml("run", check=False)
    assert (result.code, result.stdout, state.blobs, state.sessions) == (2, "", {}, {})
    assert told in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("files", "words", "told"),
    [
        (
            {"pyproject.toml": PROJECT, "main.py": "import six, numpy, helpers_of_ours"},
            [],
            [
                "environment: from pyproject.toml (1 package)\n",
                "warning: main.py imports numpy, and pyproject.toml does not name numpy\n",
                "  try: uv add numpy\n",
                "warning: main.py imports helpers_of_ours, which no package is listed for\n",
                "  try: list the package in pyproject.toml; its name may not be the module's\n",
            ],
        ),
        (
            {"pyproject.toml": PROJECT, "requirements.txt": "numpy\n"},
            [],
            [
                "warning: pyproject.toml is not read, and requirements.txt does not name six>=1",
                "  try: printf '%s\\n' 'six>=1' >> requirements.txt",
            ],
        ),
        (
            {"main.py": '# /// script\n# dependencies = ["six"]\n# ///\nimport six, yaml\n'},
            [],
            [
                "environment: from the script block of main.py (1 package)\n",
                "  try: list pyyaml in the script block of main.py\n",
            ],
        ),
        (
            {"poetry.lock": '[[package]]\nname = "six"\n', "main.py": "import six"},
            [],
            [
                "warning: poetry.lock is not read, and there is no requirements.txt that names six\n",
                "  try: poetry export -o requirements.txt\n",
            ],
        ),
        (
            {"pixi.lock": "version: 6\n"},
            [],
            [
                "warning: pixi.lock is not read, and there is no requirements.txt that names its packages\n"
            ],
        ),
        (
            {"base-requirements.txt": "six\n"},
            [],
            ["environment: from base-requirements.txt (1 package)\n"],
        ),
        (
            {"base-requirements.txt": "six\n", "gpu-requirements.txt": "torch\n"},
            [],
            [
                "warning: base-requirements.txt is not read, and there is no requirements.txt that names six\n",
                "  try: printf '%s\\n' '-r base-requirements.txt' >> requirements.txt\n",
            ],
        ),
        (
            {"main.py": "import torch\nimport cv2, os, nsml, helper\n", "helper.py": "import yaml"},
            [],
            [
                "warning: main.py imports torch, cv2, yaml, and there is no requirements.txt that",
                "  why: sessions do not see the packages of this machine: it fails unless its node's default packages have them",
                "  try: printf '%s\\n' torch opencv-python-headless pyyaml >> requirements.txt",
            ],
        ),
        (
            {"main.py": "import numpy", "requirements.txt": "six"},
            ["--dry-run"],
            ["  try: printf '\\n%s' numpy >> requirements.txt"],
        ),
        (
            {"train.py": "import jax"},
            ["--argv", "--", "torchrun", "train.py"],
            ["warning: train.py imports jax, torch,"],
        ),
        ({"train.py": "import jax"}, ["--argv", "--", "/opt/conda/bin/python", "train.py"], []),
        ({"main.py": "import numpy"}, ["--image", "python"], []),
        ({"main.py": "import numpy", "setup.py": "#nsml: python"}, [], []),
        ({"main.py": "import numpy", "requirements.txt": "scipy"}, [], []),
        ({"pyproject.toml": "[tool.ruff]\nline-length = 9\n"}, [], []),
    ],
)
def test_packages_that_nothing_lists_are_warned_of(nsml, state, project, files, words, told):
    for name, text in files.items():
        (project / name).write_text(text)
    result = nsml("run", *words)
    for line in told:
        assert line in result.stderr
    assert told or "warning" not in result.stderr


@pytest.mark.parametrize(
    ("content", "mode", "told"),
    [
        (b"#!/bin/sh\r\necho\r\n", 0o755, "its first line ends in CR LF"),
        (b"#!/bin/sh\necho\n", 0o644, "is not executable\n  try: chmod +x train.sh"),
        (None, 0, "no such program: train.sh"),
    ],
)
def test_a_program_that_no_node_can_start_is_refused(nsml, state, project, content, mode, told):
    if content is not None:
        (project / "train.sh").write_bytes(content)
        (project / "train.sh").chmod(mode)
    result = nsml("run", "--argv", "--", "./train.sh", check=False)
    assert (result.code, state.sessions) == (2, {})
    assert told in result.stderr


@pytest.mark.parametrize(
    ("entry", "content", "advice"),
    [
        ("a b.ipynb", "{}", "jupyter nbconvert --to script 'a b.ipynb'"),
        ("train.sh", "echo hi", "nsml run --argv -- sh train.sh"),
        ("train.sh", "#!/bin/bash\necho hi", "nsml run --argv -- ./train.sh"),
        ("train", "#!/usr/bin/env Rscript\n", "nsml run --argv -- ./train"),
        ("train", "#!/usr/bin/env python\n", None),
        ("train", "print(1)\n", None),
        ("train.py", "#!/bin/sh\n", None),
    ],
)
def test_an_entry_in_another_language_is_refused(nsml, state, project, entry, content, advice):
    (project / entry).write_text(content)
    result = nsml("run", "-e", entry, check=advice is None)
    assert result.code == (0 if advice is None else 2)
    assert (advice or "") in result.stderr
    assert len(state.sessions) == (advice is None)


def test_arguments_of_the_program_without_dashes_before_them(nsml, project):
    assert "try: nsml run main.py -- x\n" in nsml("run", "main.py", "x", check=False).stderr
    assert "try: nsml run ENTRY -- ARGS" in nsml("run", "none.py", "x", check=False).stderr


def test_one_file_can_be_a_dataset(nsml, state, project):
    (project / "a b.csv").write_text("1,2\n")
    told = nsml("dataset", "push", "prices", "a b.csv").stderr
    assert "packing   1 file 4 Bytes" in told


def test_again_sends_nothing(nsml, state, project):
    nsml("run")
    puts = state.calls.count("PutBlobs")
    result = nsml("run")
    assert state.calls.count("PutBlobs") == puts
    assert "sending   0 files 0 Bytes, 1 unchanged" in result.stderr
    assert len(state.sessions) == 2


def test_every_flag_reaches_the_spec(nsml, state, project, everything):
    (project / "train.py").touch()
    nsml(
        *("run", "-d", "mnist@1", "-e", "train.py", "-g", "0.5", "-c", "1.5", "--memory", "2Gi"),
        *("--nodes", "3", "--env", "A=b=c", "--time-limit", "1h30m", "--grace", "500ms"),
        *("--retry", "2", "--no-queue", "--team", "--priority", "High", "--preemptible"),
        *("--gpu-model", "A100 80GB", "--pod", "p1", "--network", "Host", "--refresh"),
        *("--label", "team/stage=dev", "--label", "try=둘째 시도"),
        *("--", "--flag", "-x"),
    )
    spec = max(state.sessions.values(), key=lambda s: s.created_at.seconds).spec
    assert spec == pb.SessionSpec(
        entry="train.py",
        args=["--flag", "-x"],
        bundle_digest=spec.bundle_digest,
        datasets=[pb.DatasetReference(name="mnist", version=1)],
        resources=resources_pb2.Resources(
            gpu_thousandths=500, cpu_thousandths=1500, memory_bytes=2 << 30
        ),
        replica_count=3,
        environment={"A": "b=c"},
        time_limit={"seconds": 5400},
        grace={"nanos": 500_000_000},
        retry_count=2,
        no_queue=True,
        priority=pb.PRIORITY_HIGH,
        preemptible=True,
        gpu_model="A100 80GB",
        pod="p1",
        network=resources_pb2.NETWORK_HOST,
        refresh_environment=True,
        labels={"team/stage": "dev", "try": "둘째 시도"},
    )


def test_the_project_reaches_the_platform(nsml, state, project):
    nsml("run", "--project", "vision")
    assert only_session(state).project == "vision"


def test_a_launcher_is_recorded_repeated_and_shown_as_the_command_line(nsml, state, project):
    words = ["run", "--launch", "accelerate", "-g", "2", "--nodes", "2", "--", "--lr", "0.1"]
    line = (
        "accelerate launch --num_machines 2 --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port"
        " $MASTER_PORT --num_processes 4 --mixed_precision no --dynamo_backend no --multi_gpu main.py --lr 0.1"
    )
    state.free_gpus = 8
    told = nsml(*words[:-3], "--dry-run", *words[-3:]).stdout
    assert told == f"would start now\n  runs: {line}\n"
    nsml(*words)
    assert only_session(state).spec.launcher == pb.LAUNCHER_ACCELERATE
    assert "--launch accelerate" in nsml("command", "@last").stdout
    nsml("run", "--rerun", "@last", "--launch", "none")
    made = max(state.sessions.values(), key=lambda one: one.created_at.ToNanoseconds())
    assert made.spec.launcher == pb.LAUNCHER_UNSPECIFIED


def test_a_launcher_of_a_whole_command_is_refused_with_the_entry_meant(nsml, state, project):
    words = ["--argv", "--", "python", "main.py", "--lr", "0.1"]
    result = nsml("run", "--launch", "torchrun", *words, check=False)
    assert result.code == 2
    assert "--launch goes without --argv" in result.stderr
    assert "nsml run --launch torchrun -e main.py -- --lr 0.1" in result.stderr
    assert not state.sessions
    assert "torchrun" in nsml("run", "--launch", "torchrum", check=False).stderr, "the nearest word"


def test_a_dry_run_tells_what_would_come_of_it_and_leaves_nothing(nsml, state, project):
    result = nsml("run", "--dry-run", "--gpu-model", "A100")
    assert result.stdout == "would start now\n"
    assert "nothing was sent" in result.stderr
    state.free_gpus = 0
    told = json.loads(nsml("run", "--dry-run", "-j").stdout)
    assert (told["state"], told["waiting"]) == ("QUEUED", "most free on one node: 0")
    assert (told["files"], told["bytes"]) == (1, 15)
    assert nsml("run", "--dry-run", "-o", "name").stdout == "QUEUED\n"
    assert nsml("run", "--dry-run", "--no-queue", check=False).code == 7
    assert nsml("run", "--dry-run", "-g", "9", check=False).code == 7
    assert nsml("run", "--dry-run", "-d", "nosuch", check=False).code == 5
    assert nsml("run", "--dry-run", "--wait", check=False).code == 2
    assert (state.sessions, state.blobs) == ({}, {})


def test_who_says_nothing_asks_for_nothing(nsml, state, project):
    nsml("run", "--queue")
    spec = only_session(state).spec
    assert (spec.priority, spec.preemptible, spec.no_queue) == (0, False, False)
    assert (spec.gpu_model, spec.pod, spec.network) == ("", "", 0)


def test_a_session_is_repeated_with_its_place_in_the_queue(nsml, state, everything):
    session = state.sessions["s0000000000000001"]
    spec = session.spec
    spec.priority, spec.preemptible = pb.PRIORITY_LOW, True
    spec.gpu_model, spec.pod, session.project = "A100 80GB", "p1", "vision"
    del session.command[:]
    spec.network = resources_pb2.NETWORK_HOST
    told = nsml("command", session.name).stdout
    asked = "--pod p1 --network host --priority low --preemptible --project vision"
    assert "--gpu-model 'A100 80GB'" in told
    assert asked in told
    spec.priority, session.project = pb.PRIORITY_IDLE, session.owner
    told = nsml("command", session.name).stdout
    assert "--network host --priority idle -e" in told
    assert "--project" not in told


def test_the_entry_by_position(nsml, state, project):
    (project / "other.py").touch()
    nsml("run", "other.py", "-g", "0")
    assert only_session(state).spec.entry == "other.py"


def test_a_plain_command(nsml, state, project):
    (project / "train.sh").write_text("#!/bin/sh\n")
    (project / "train.sh").chmod(0o755)
    nsml("run", "--argv", "--", "./train.sh", "-g", "--fast")
    spec = only_session(state).spec
    assert list(spec.argv) == ["./train.sh", "-g", "--fast"]
    assert (spec.entry, spec.bundle_digest != "") == ("", True)
    nsml("run", "--argv", "--no-code", "--", "true")
    assert state.sessions[f"s{2:016d}"].spec.bundle_digest == ""


def test_a_plain_command_from_an_empty_folder(nsml, state, tmp_path, monkeypatch):
    (tmp_path / "void").mkdir()
    monkeypatch.chdir(tmp_path / "void")
    nsml("run", "--argv", "--", "true")
    assert only_session(state).spec.bundle_digest == ""


def test_for_programs(nsml, project):
    assert nsml("run", "-o", "name").stdout == "kim/None/1\n"
    assert json.loads(nsml("run", "-j").stdout)["name"] == "kim/None/2"


def test_an_image_that_a_line_names_is_the_nodes_business(nsml, project, state):
    (project / "setup.py").write_text("#nsml: pytorch/pytorch:1.0\n")
    assert nsml("run").code == 0
    assert only_session(state).spec.image == ""


@pytest.mark.parametrize("file", ["setup.py", "requirements.txt"])
def test_an_image_line_that_names_none_is_refused(nsml, project, state, file):
    (project / file).write_text("# -*- coding: utf-8 -*-\n#nsml: bad name\n")
    refused = nsml("run", check=False)
    assert (refused.code, state.sessions) == (2, {})
    assert f"{file}, line 2: '#nsml: bad name' names no image\n  why: it is [HOST" in refused.stderr
    assert "try: correct the line" in refused.stderr
    (project / ".nsmlignore").write_text(f"{file}\n")
    assert nsml("run").code == 0


def test_an_image(nsml, project, state):
    nsml("run", "--image", "registry.lab:5000/kim/torch:2.6")
    assert only_session(state).spec.image == "registry.lab:5000/kim/torch:2.6"


def act_when_read(state, act):
    """Do something to the session as soon as it is there, from another thread."""

    def work():
        with state.changed:
            state.changed.wait_for(lambda: state.sessions, timeout=60)
        act(only_session(state))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def train(state, *, code, checkpoints=0):
    def act(session):
        running = state.change(
            session, state=pb.SESSION_STATE_RUNNING, checkpoint_count=checkpoints
        )
        state.checkpoints[running.id] = [
            checkpoints_pb2.Checkpoint(name=str(number), size_bytes=1_500_000_000)
            for number in range(checkpoints)
        ]
        state.log(running, b"epoch 1\n")
        end = pb.SessionEnd(cause=pb.CAUSE_PROGRAM_FAILED, exit_code=code)
        ended = pb.SESSION_STATE_FAILED if code else pb.SESSION_STATE_SUCCEEDED
        state.change(running, state=ended, end=end)

    return act_when_read(state, act)


def test_following_ends_with_the_sessions_code(nsml, state, project):
    thread = train(state, code=3)
    result = nsml("run", "-f", check=False)
    thread.join()
    assert result.code == 3
    assert result.stdout == "epoch 1\n"
    assert "✗ Failed (exit 3)" in result.stderr
    assert nsml("command", "@last").stdout == "nsml run\n"


def test_following_ends_where_the_session_is_held(nsml, state, project):
    def act(session):
        running = state.change(session, state=pb.SESSION_STATE_RUNNING, attempt=1)
        state.log(running, b"epoch 1\n")
        end = pb.SessionEnd(cause=pb.CAUSE_START_FAILED, message="no python here")
        state.change(running, state=pb.SESSION_STATE_HELD, end=end)

    thread = act_when_read(state, act)
    result = nsml("run", "-f", check=False)
    thread.join()
    assert (result.code, result.stdout) == (1, "epoch 1\n")
    assert "no python here" in result.stderr


@pytest.mark.parametrize(("replicas", "times"), [(1, 0), (2, 1)])
def test_what_the_log_ended_with_is_not_told_again(nsml, state, project, replicas, times):
    def act(session):
        session.spec.replica_count = replicas
        running = state.change(session, state=pb.SESSION_STATE_RUNNING, attempt=1)
        state.log(running, b"nsml: no such package\n")
        end = pb.SessionEnd(cause=pb.CAUSE_ENVIRONMENT_FAILED, message="no such package")
        state.change(running, state=pb.SESSION_STATE_FAILED, end=end)

    thread = act_when_read(state, act)
    result = nsml("run", "-f", check=False)
    thread.join()
    assert (result.code, result.stdout) == (1, "nsml: no such package\n")
    assert "✗ Failed (environment" in result.stderr
    assert result.stderr.count("no such package") == times


@pytest.mark.parametrize(
    ("flags", "shown"),
    [([], "Session kim/None/1 started\n"), (["-o", "name"], "kim/None/1\n")],
)
def test_waiting_shows_the_session_and_no_output(nsml, state, project, flags, shown):
    thread = train(state, code=0)
    result = nsml("run", "--wait", *flags)
    thread.join()
    assert result.stdout == shown
    assert "✔ Succeeded" in result.stderr


def test_why_it_waits_is_told_once(nsml, state, project):
    state.waiting = "needs 8 GPUs on one node"
    thread = train(state, code=0)
    result = nsml("run", "-f")
    thread.join()
    assert result.stderr.count(state.waiting) == 1


def test_waiting_for_programs_gives_the_ended_session(nsml, state, project):
    thread = train(state, code=3)
    result = nsml("run", "--wait", "-j", check=False)
    thread.join()
    assert (result.code, json.loads(result.stdout)["end"]["exit_code"]) == (3, 3)


@pytest.mark.parametrize(
    ("flags", "answer", "said"),
    [
        ([], None, "its results are kept; to remove it: nsml rm kim/None/1"),
        (["-y"], "y\n", "its results are kept; to remove it: nsml rm kim/None/1"),
        (["--no-input"], "y\n", "its results are kept; to remove it: nsml rm kim/None/1"),
        ([], "\n", "kept; to remove it: nsml rm kim/None/1"),
        ([], "", "kept; to remove it: nsml rm kim/None/1"),
        ([], "maybe\n", "kept; to remove it: nsml rm kim/None/1"),
    ],
)
def test_an_interactive_session_stays(nsml, state, project, flags, answer, said):
    thread = train(state, code=0)
    terminal = {"terminal": True, "stdin": answer} if answer is not None else {}
    result = nsml("run", "-i", *flags, **terminal)
    thread.join()
    assert result.stdout == "epoch 1\n"
    assert said in result.stderr
    assert [one.name for one in state.sessions.values()] == ["kim/None/1"]
    assert nsml("command", "@last").stdout == " ".join(["nsml", "run", *flags]) + "\n"


def test_an_interactive_session_is_removed_for_a_yes_at_its_end(nsml, state, project):
    thread = train(state, code=3)
    result = nsml("run", "-i", terminal=True, stdin="y\n", check=False)
    thread.join()
    assert result.code == 3
    assert "remove kim/None/1, logs and metrics? [y/N] " in result.stderr
    assert "removed kim/None/1, logs and metrics\n" in result.stderr
    assert not state.sessions


@pytest.mark.parametrize(("flags", "shown"), [([], "epoch 1\n"), (["--wait", "-o", "name"], None)])
def test_a_session_that_succeeded_is_removed_with_rm_and_that_is_said(
    nsml, state, project, flags, shown
):
    thread = train(state, code=0, checkpoints=2)
    result = nsml("run", "--rm", *flags)
    thread.join()
    assert result.stdout == (shown or "kim/None/1\n")
    assert "--rm: this session is removed when it succeeds, with logs, metrics" in result.stderr
    assert "removed kim/None/1, 2 checkpoints (3.0 GB), logs and metrics\n" in result.stderr
    assert not state.sessions


def test_a_session_that_failed_stays_with_rm(nsml, state, project):
    thread = train(state, code=3)
    result = nsml("run", "--rm", "-i", terminal=True, stdin="y\n", check=False)
    thread.join()
    assert result.code == 3
    assert "not removed: it did not succeed; to remove it: nsml rm kim/None/1" in result.stderr
    assert len(state.sessions) == 1


def test_a_session_that_cannot_be_removed_is_told_with_its_own_exit_code(nsml, state, project):
    state.refuses["RemoveSession"] = 100
    thread = train(state, code=0)
    result = nsml("run", "--rm")
    thread.join()
    assert "not removed: " in result.stderr
    assert len(state.sessions) == 1


def test_rm_alone_follows_and_is_not_repeated(nsml, state, project):
    assert "without -f, -i, --rm" in nsml("run", "--rm", "--dry-run", check=False).stderr
    thread = train(state, code=0)
    nsml("run", "-i", "-m", "again", "-f", "--", "-i")
    thread.join()
    assert nsml("command", "@last").stdout == "nsml run -m again -- -i\n"


def test_progress_is_redrawn_on_a_terminal_only(nsml, project, monkeypatch):
    (project / "data.bin").write_bytes(b"x" * 300_000)
    assert "\r" in nsml("run", terminal=True).stderr
    (project / "data.bin").write_bytes(b"y" * 300_000)
    result = nsml("run")
    assert "\r" not in result.stderr
    assert "\x1b" not in result.stderr
    assert nsml("-q", "run").stderr == ""


def newest(state):
    return max(state.sessions.values(), key=lambda session: session.created_at.seconds)


def test_variables_from_files_flags_and_here(nsml, state, project):
    (project / "one.env").write_text("# note\nexport A=1\nB='2 3'\n")
    (project / "two.env").write_text("B=4\nC=5\n")
    words = ["--env-file", "one.env", "--env-file", "two.env", "--env", "C=6", "--env", "D"]
    result = nsml("run", "--env", "C=7", *words, D="here", E="not asked for")
    session = newest(state)
    assert dict(session.spec.environment) == {"A": "1", "B": "4", "C": "6", "D": "here"}
    assert list(session.command) == [
        *("nsml", "run", "--env", "C", "--env-file", "one.env", "--env-file", "two.env"),
        *("--env", "D"),
    ]
    for name in ("one.env", "two.env"):
        assert f"warning: {name} is sent with the code" in result.stderr


def test_what_containers_are_made_of_elsewhere_is_not_built_in_silence(nsml, state, project):
    assert "not built" not in nsml("run").stderr
    (project / "Dockerfile").write_text("FROM python\n")
    assert "note: Dockerfile is not built: nsml run --dockerfile Dockerfile" in nsml("run").stderr
    (project / "compose.yaml").write_text("services: {}\n")
    told = nsml("run", "--dry-run").stderr
    assert "note: Dockerfile, compose.yaml are not built" in told


def test_a_dockerfile_is_built_where_it_is_asked_for(nsml, state, project):
    (project / "Dockerfile").write_text(
        "FROM python:3.12\nARG A\nRUN --mount=type=cache,target=/x y\n"
    )
    words = ["--dockerfile", "Dockerfile", "--build-arg", "A=b=c"]
    told = nsml("run", *words).stderr
    assert "not built" not in told
    assert "note: RUN --mount=type=cache is left out" in told
    spec = newest(state).spec
    assert (spec.dockerfile, dict(spec.build_arguments)) == ("Dockerfile", {"A": "b=c"})
    assert nsml("command", "@last").stdout == f"nsml run {' '.join(words)}\n"
    for wrong, says in (
        (["--dockerfile", "other"], "other is not among the files that are sent"),
        ([*words, "--build-arg", "B=1"], "it has no ARG B"),
        ([*words, "--build-arg", "B"], "is no build argument"),
    ):
        refused = nsml("run", *wrong, check=False)
        assert (refused.code, says in refused.stderr) == (2, True), refused.stderr
    (project / "Dockerfile").write_text("FROM a\nRUN --mount=type=secret,id=\x1b[31mx y\n")
    missing = nsml("image", "build", "-f", "other", check=False).stderr
    assert "  try: nsml image build -f PATH\n" in missing
    refused = nsml("run", "--dockerfile", "Dockerfile", check=False)
    assert (refused.code, "\x1b" in refused.stderr) == (2, False)
    assert "Dockerfile, line 2: RUN --mount=type=secret" in refused.stderr


@pytest.mark.parametrize("code", [0, 3])
def test_image_build_is_a_session_that_does_nothing(nsml, state, project, code):
    (project / "Dockerfile").write_text("FROM python:3.12\n")
    thread = train(state, code=code)
    result = nsml("image", "build", check=False)
    thread.join()
    assert result.code == code, result.stderr
    assert "epoch 1" in result.stdout
    session = newest(state)
    assert (session.spec.dockerfile, list(session.spec.argv)) == ("Dockerfile", ["true"])
    assert session.spec.resources.gpu_thousandths == 0
    assert list(session.command) == ["nsml", "image", "build", "-f", "Dockerfile"]


def test_an_env_file_stays_here(nsml, state, project):
    (project / ".env").write_text("A=s3cret\n")
    (project / ".env.local").write_text("A=s3cret\n")
    (project / ".env.example").write_text("A=\n")
    told = nsml("run").stderr
    assert "note: .env is not sent: --env-file .env gives its variables to the program" in told
    assert not [blob for blob in state.blobs.values() if b"s3cret" in blob]
    assert [blob for blob in state.blobs.values() if b".env.example" in blob]
    assert ".env is" not in nsml("run", "--env-file", ".env").stderr
    (project / ".nsmlignore").write_text("!.env\n")
    assert "warning: .env is sent with the code" in nsml("run").stderr


@pytest.mark.parametrize(
    ("words", "told", "why", "advice"),
    [
        (["--env", "=topsecret"], "--env: there is no name before the =", "NAME=VALUE", "--env"),
        (["--env", ""], "--env: it names no variable", "NAME=VALUE", "nsml run --env"),
        (["--env", "1A=topsecret"], "--env: '1A' is not the name of a", "letters", "--help"),
        (["--env", "MISSING"], "--env: MISSING is not set here", "exported", "export MISSING"),
        (["--env", "NSML_RANK=1"], "NSML_RANK is set by the platform", "relies", "another name"),
        (["--env", "NSML_ECHO=none"], "NSML_ECHO is set by", "relies", "nsml run --no-echo"),
        (["--env", "HOME=/x"], "HOME is set by the platform", "relies on", "another name"),
        (["--env-file", "none"], "cannot read 'none': No such file", "looked in", "train.env"),
        (["--env-file", ""], "--env-file: it names no file", "looked in", "--env-file .env"),
        (["--env-file", "."], "cannot read '.': Is a directory", "looked in", "--env-file .env"),
        (["--env-file", "bad"], "bad, line 2: there is no = in it", "a line is NAME=", "--help"),
        (["--env-file", "binary"], "binary, line 1: it is no text in UTF-8", "a line", "--help"),
        (["--env-file", "large"], "large is larger than any file of", "32 KiB", "dataset push"),
        (["--image", ""], "--image: '' is not the name of an image", "[HOST", "without --image"),
        (["--image", "a b"], "--image: 'a b' is not the name of an", "[HOST", "without --image"),
        (["--secret", ""], "--secret: it takes NAME or NAME=VAR", "a secret of yours", "secret ls"),
        (["--secret", "A=RANK"], "--secret: RANK is set by the", "relies", "--secret A=ANOTHER"),
    ],
)
def test_variables_that_cannot_be(nsml, state, project, words, told, why, advice):
    (project / ".env").write_text("A=1\n")
    (project / "train.env").write_text("A=1\n")
    (project / "binary").write_bytes(b"\xff\xff\0topsecret")
    (project / "large").write_bytes(b"#" * (2 << 20))
    (project / "bad").write_text("A=1\ntopsecret\n")
    result = nsml("run", *words, check=False)
    assert (result.code, state.sessions) == (2, {})
    first, rest = result.stderr.split("\n  why: ")
    assert told in first
    assert why in rest.split("\n  try: ")[0]
    assert advice in rest.split("\n  try: ")[1]
    assert "topsecret" not in result.stderr


def test_a_folder_that_was_removed_meanwhile_is_told(nsml, state, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = nsml("run", check=False)
    assert (result.code, state.sessions) == (1, {})
    assert result.stderr.startswith("error: the folder that you are in is not there any more\n")


def test_a_path_that_cannot_be_sent_is_told_with_what_to_do(nsml, state, project):
    deep = project.joinpath(*["d"] * 64)
    deep.mkdir(parents=True)
    (deep / "x").touch()
    result = nsml("run", check=False)
    assert (result.code, state.sessions) == (1, {})
    assert result.stderr.startswith("error: 'd/d/")
    assert "cannot be sent\n  why: it is deeper than 64 folders" in result.stderr
    line = result.stderr.partition("a line ")[2].partition(" in .nsmlignore")[0]
    (project / ".nsmlignore").write_text(f"{line}\n")
    assert nsml("run").code == 0


def test_without_a_platform_and_without_the_program_both_are_named(nsml, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nothing = {"NSML_SERVER": "", "NSML_TOKEN_FILE": ""}
    neither = nsml("run", check=False, **nothing)
    assert (neither.code, neither.stdout) == (2, "")
    assert neither.stderr.startswith("error: no such entry file: main.py\n")
    assert f"looked in {tmp_path}; and no platform is chosen yet\n" in neither.stderr
    assert "       nsml up " in neither.stderr
    stopped = nsml("run", check=False, NSML_SERVER=f"unix:{tmp_path}/socket")
    assert "; and the control plane at unix:" in stopped.stderr
    assert "does not answer\n" in stopped.stderr
    (tmp_path / "main.py").write_text("import numpy")
    none = nsml("run", check=False, **nothing)
    assert none.stderr.startswith("error: no platform is chosen yet\n")


CONDA = "dependencies:\n- python=3.11\n- numpy\n- pip:\n  - six\n"


def test_packages_of_conda_are_for_nodes_that_install_them(nsml, state, project):
    (project / "main.py").write_text("import numpy, six")
    (project / "environment.yml").write_text(CONDA)
    said = nsml("run").stderr
    assert "environment: from environment.yml (3 packages, with conda)\n" in said
    assert "warning" not in said
    nsml("run", "--image", "python")
    (project / "requirements.txt").write_text("numpy\nsix\n")
    nsml("run")
    assert [one.spec.needs_conda for one in state.sessions.values()] == [True, False, False]


def test_channels_that_nodes_take_from_conda_forge_are_named(nsml, project):
    (project / "environment.yml").write_text(f"channels:\n- defaults\n{CONDA}")
    note = "note: packages of channel defaults are taken from conda-forge, unless the node has that"
    assert note in nsml("run").stderr


def test_a_file_of_conda_that_no_node_reads_is_refused(nsml, state, project):
    (project / "environment.yml").write_text("dependencies:\n- &a numpy\n- *a\n")
    result = nsml("run", check=False)
    assert (result.code, state.sessions) == (2, {})
    assert "the packages of environment.yml cannot be read\n" in result.stderr
    assert "line 2: '&a numpy' is not read" in result.stderr
    assert "echo environment.yml >> .nsmlignore" in result.stderr
    said = nsml("run", "--image", "python").stderr
    assert (
        "note: not used, since containers have the packages of their image: the packages of" in said
    )
    assert [one.spec.needs_conda for one in state.sessions.values()] == [False]


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_what_only_containers_have_is_warned_of_where_no_node_runs_them(
    nsml, state, project, words
):
    (project / "setup.py").write_text("#nsml: python:3.11\n")
    (project / "nsml_package.txt").write_text("libgl1\n")
    state.nodes.append(nodes_pb2.Node(name="gpu-1", isolation=resources_pb2.ISOLATION_NAMESPACE))
    told = "warning: no node runs containers: the program runs without "
    both = "the image python:3.11 and the packages of nsml_package.txt\n"
    assert told + both in nsml("run", *words).stderr
    assert (
        told + "the packages of nsml_package.txt\n"
        in nsml("run", "--image", "python", *words).stderr
    )
    state.nodes.append(nodes_pb2.Node(name="gpu-2", isolation=resources_pb2.ISOLATION_CONTAINER))
    assert told not in nsml("run", *words).stderr
    state.nodes[1:] = []
    for name in ("setup.py", "nsml_package.txt"):
        (project / name).unlink()
    assert told not in nsml("run", *words).stderr


@pytest.mark.parametrize("folder", ["", "a/b", "..", "a..b", "x" * 65, "=a"])
def test_a_dataset_is_mounted_at_no_other_place_than_a_folder_of_data(nsml, state, project, folder):
    told = nsml("run", "-d", f"mnist@1={folder}", check=False)
    assert (told.code, "names no folder of /data" in told.stderr) == (2, True)
    assert "  try: nsml run -d mnist@1=OTHER ...\n" in told.stderr
    assert not state.sessions


@pytest.mark.parametrize(
    ("words", "advised"),
    [
        (
            ("-g", "1", "-d", "mnits@2=old", "-m", "mnits", "--", "-d", "mnits"),
            "nsml run -g 1 -d mnist@2=old -m mnits -- -d mnits",
        ),
        (("-dmnits", "-m", "two words"), "nsml run -dmnist -m 'two words'"),
        (("--stream=mnits",), "nsml run --stream=mnist"),
        (("-d", "mnits", "--env", "TOKEN=secret"), "nsml run -d mnist"),
    ],
)
def test_for_a_mistyped_dataset_the_whole_command_is_advised(nsml, state, project, words, advised):
    state.datasets = [datasets_pb2.Dataset(name="mnist", owner="kim", version=2)]
    told = nsml("run", *words, check=False)
    assert f"  try: {advised}\n" in told.stderr
    assert "secret" not in told.stderr
