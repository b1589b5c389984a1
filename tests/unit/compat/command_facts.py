"""Facts of NSML's commands: a function a row of `nsml.spec.nsml_compat`."""

from __future__ import annotations

import json

import click

from cli.root import root
from nsml.v1 import boards_pb2, checkpoints_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.cli.test_run import train
from tests.unit.compat.place import Place


def _options(*path: str) -> set[str]:
    """The options of a command."""
    found: click.Command = root
    for name in path:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), name)
        assert inner is not None, path
        found = inner
    return {name for one in found.params for name in one.opts}


def _refused(place: Place, *words: str) -> str:
    """What is said of a command line that is refused."""
    assert place.folder.is_dir()
    done = place.nsml(*words, check=False)
    assert done.code == 2
    assert done.stdout == ""
    assert "try: nsml" in done.stderr
    assert not place.state.sessions
    return done.stderr


def login(place: Place) -> None:
    assert {"-e", "--token-stdin"} <= _options("login")
    done = place.nsml("login", "-e", "CP949", "", check=False)
    assert "note: --encoding changes nothing" in done.stderr


def version(place: Place) -> None:
    assert place.nsml("--version").stdout.startswith("nsml ")


def credit(place: Place) -> None:
    assert place.session
    assert place.nsml("credit").stdout == "User : kim credit 29250 (project vision)\n"
    place.state.projects["vision"].usage.gpu_seconds = 600 * 3600.0
    assert place.nsml("credit").stdout == "User : kim credit 0 (project vision)\n"
    place.state.projects["vision"].usage.ClearField("gpu_seconds")
    assert place.nsml("credit").stdout == "User : kim credit unknown (project vision)\n"
    place.state.projects.clear()
    done = place.nsml("credit")
    assert (done.stdout, done.stderr[:36]) == ("", "kim has no project with a budget: GP")


def run_datasets(place: Place) -> None:
    assert place.session
    place.nsml("dataset", "push", "other", str(place.folder))
    spec = place.run("-d", "mnist", "--dataset", "other")
    assert [one.name for one in spec.datasets] == ["mnist", "other"]
    spec = place.run("-d", "mnist,other@1")
    assert [one.name for one in spec.datasets] == ["mnist", "other"]
    assert spec.datasets[1].version == 1


def run_entry(place: Place) -> None:
    (place.folder / "train.py").write_text("print(1)\n")
    assert place.run("-e", "train.py").entry == "train.py"
    assert place.run("train.py").entry == "train.py"
    assert place.run().entry == "main.py"


def run_arguments(place: Place) -> None:
    spec = place.run("-a", "--batch 1000 --name 'two words'")
    assert list(spec.args) == ["--batch", "1000", "--name", "two words"]


def run_resources(place: Place) -> None:
    assert place.run().resources.gpu_thousandths == 1000
    spec = place.run("-c", "4", "-g", "2", "--memory", "24G")
    assert (spec.resources.cpu_thousandths, spec.resources.gpu_thousandths) == (4000, 2000)
    assert spec.resources.memory_bytes == 24 * 10**9


def run_without_gpus(place: Place) -> None:
    assert place.run("-g", "0").resources.gpu_thousandths == 0


def run_sizes(place: Place) -> None:
    assert place.run("--memory", "24000000000").resources.memory_bytes == 24 * 10**9
    assert place.run("--memory", "12G").resources.memory_bytes == 12 * 10**9


def run_shared_memory(place: Place) -> None:
    assert place.run("--shm-size", "2G").limits.shm_bytes == 2 * 10**9


def run_memo(place: Place) -> None:
    place.run("-m", "second try")
    assert place.newest.memo == "second try"


def run_nodes_and_models(place: Place) -> None:
    spec = place.run("-n", "2", "--gpu-model", "P40")
    assert (spec.replica_count, spec.gpu_model) == (2, "P40")


def run_verbose(place: Place) -> None:
    assert place.folder
    assert "15 Bytes  main.py" in place.nsml("run", "-v").stderr


def run_quietly(place: Place) -> None:
    assert place.folder
    done = place.nsml("run", "--hide-client-log")
    assert (done.stdout, done.stderr) == ("Session kim/None/1 started\n", "")


def run_default_ignores(place: Place) -> None:
    assert ".git" in place.nsml("run", "--show-default-nsmlignore").stdout


def run_limits(place: Place) -> None:
    assert place.session
    shown = place.nsml("run", "--show-limits").stdout
    assert "-g, --gpus      2 on one node, 2 in all" in shown
    assert "project vision  16 GPUs at once" in shown


def run_no_verify(place: Place) -> None:
    assert place.folder
    said = place.nsml("run", "--no-verify").stderr
    assert "note: --no-verify changes nothing: every file is verified" in said
    assert len(place.state.sessions) == 1


def run_interactive(place: Place) -> None:
    assert place.folder
    training = train(place.state, code=0)
    done = place.nsml("run", "-i")
    training.join()
    assert done.stdout == "epoch 1\n"
    assert "to remove it: nsml rm kim/None/1" in done.stderr
    assert len(place.state.sessions) == 1
    assert "--rm" in _options("run")


def run_nfs_output(place: Place) -> None:
    assert "--output-dataset" in _refused(place, "run", "--nfs-output")


def run_driver_version(place: Place) -> None:
    assert place.folder
    said = place.nsml("run", "--gpu-driver-version", "418.67").stderr
    assert (
        "note: --gpu-driver-version changes nothing: a session gets the driver of its node" in said
    )
    assert len(place.state.sessions) == 1


def run_queue(place: Place) -> None:
    place.state.free_gpus, place.state.waiting = 0, "most free on one node: 0"
    assert place.folder
    assert "queued" in place.nsml("run").stdout
    assert place.nsml("run", "--no-queue", check=False).code == 7


def fork_flags(place: Place) -> None:
    wanted = {"-a", "--args", "-c", "--checkpoint", "-g", "--gpus", "--cpu", "--memory"}
    assert wanted | {"--shm-size", "-v"} <= _options("fork")
    source = place.session
    place.state.change(source, state=pb.SESSION_STATE_SUCCEEDED)
    place.nsml("fork", "-c", "best", "-a", "--lr 0.2", "--memory", "24G", "-v", source.name)
    made = place.newest
    assert made.spec.initial_checkpoint.name == "best"
    assert list(made.spec.args) == ["--lr", "0.2"]
    assert made.origin.kind == pb.ORIGIN_KIND_FORK


def fork_without_checkpoint(place: Place) -> None:
    source = place.session
    source.progress.resumable = True
    place.state.change(source, state=pb.SESSION_STATE_SUCCEEDED)
    said = place.nsml("fork", source.name).stderr
    assert not place.newest.spec.HasField("initial_checkpoint")
    assert "begins anew" in said
    place.nsml("fork", "-c", "@last", source.name)
    assert place.newest.spec.initial_checkpoint.name == "best"


def resume(place: Place) -> None:
    source = place.session
    source.ended_at.seconds = source.started_at.seconds + 60
    place.state.change(source, state=pb.SESSION_STATE_STOPPED)
    place.nsml("resume", source.name)
    assert place.newest.spec.initial_checkpoint.name == "best"


def _names(text: str) -> list[str]:
    return text.split()


def ps_all(place: Place) -> None:
    place.ended("kim/mnist/1")
    place.state.add("kim/mnist/2")
    assert _names(place.nsml("ps", "-o", "name").stdout) == ["kim/mnist/2"]
    assert _names(place.nsml("ps", "-a", "-o", "name").stdout) == ["kim/mnist/2", "kim/mnist/1"]


def ps_filters(place: Place) -> None:
    for number in (1, 2):
        spec = pb.SessionSpec()
        spec.datasets.add(name="mnist" if number == 1 else "other")
        place.state.add(f"kim/{spec.datasets[0].name}/{number}", spec=spec)
    for words, name in (
        (("-n", "1"), "kim/other/2"),
        (("--last", "1"), "kim/other/2"),
        (("-d", "mnist"), "kim/mnist/1"),
        (("-s", "mnist"), "kim/mnist/1"),
    ):
        assert _names(place.nsml("ps", *words, "-o", "name").stdout) == [name], words


def logs(place: Place) -> None:
    session = place.ended()
    place.state.log(session, b"hello\n")
    assert {"-f", "--follow", "--hide-client-log"} <= _options("logs")
    assert place.nsml("logs", session.name).stdout == "hello\n"
    assert place.nsml("logs", "-f", session.name).stdout == "hello\n"


def logs_alone(place: Place) -> None:
    session = place.ended()
    place.state.log(session, b"hello\n")
    done = place.nsml("logs", "-f", session.name, "--hide-client-log")
    assert done.stdout == "hello\n"


def stop(place: Place) -> None:
    session = place.state.add("kim/mnist/1")
    place.nsml("stop", session.name)
    assert place.state.sessions[session.id].state != pb.SESSION_STATE_RUNNING


def rm_globs(place: Place) -> None:
    for number in (1, 2, 10, 11):
        place.ended(f"kim/mnist/{number}")
    place.nsml("rm", "-f", "kim/mnist/1?")
    assert {one.name for one in place.state.sessions.values()} == {"kim/mnist/1", "kim/mnist/2"}
    place.nsml("rm", "-f", "kim/mnist/1*")
    assert {one.name for one in place.state.sessions.values()} == {"kim/mnist/2"}


def memo(place: Place) -> None:
    session = place.state.add("kim/mnist/1", memo="first")
    place.nsml("memo", session.name, "second try")
    assert place.state.sessions[session.id].memo == "second try"


def model_rm_globs(place: Place) -> None:
    session = place.ended()
    for glob, left in (("?1", ["2", "20", "111"]), ("2*", ["1", "11", "111"]), ("*", [])):
        place.state.checkpoints[session.id] = [
            checkpoints_pb2.Checkpoint(name=name, session=session.name)
            for name in ("1", "2", "11", "20", "111")
        ]
        place.nsml("model", "rm", session.name, glob, "-y")
        kept = [one.name for one in place.state.checkpoints[session.id]]
        assert kept == ([*left] if glob != "?1" else ["1", "2", "20", "111"]), glob


def model_pull(place: Place) -> None:
    assert place.folder
    place.nsml("model", "pull", place.session.name, "best", ".")
    assert (place.folder / "kim_mnist_1/best/model/weights.npy").read_bytes() == b"weights"


def pull(place: Place) -> None:
    assert {"-v", "-f"} <= _options("pull")
    assert place.folder
    place.nsml("pull", "-v", place.session.name, ".")
    assert (place.folder / "kim_mnist_1/code/weights.npy").exists()


def download(place: Place) -> None:
    assert {"-s", "-f"} <= _options("download")
    assert place.folder
    session = place.session
    place.state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
    place.nsml("download", "-s", "/app/weights.npy", session.name, ".")
    assert (place.folder / "kim_mnist_1/files/weights.npy").read_bytes() == b"weights"


def exec_and_sh(place: Place) -> None:
    session = place.session
    place.state.evaluations = []
    done = place.nsml("exec", session.name, "loss", check=False)
    assert done.code == 0, done.stderr
    words = place.nsml("sh", "--help").stdout.split()
    assert "SESSION[:RANK]" in words


def command_line(place: Place) -> None:
    place.run("-m", "second try")
    assert place.nsml("command", place.newest.name).stdout == "nsml run -m 'second try'\n"


def getid(place: Place) -> None:
    assert place.nsml("getid", place.session.name).stdout == f"{place.session.id}\n"


def diff(place: Place) -> None:
    first = place.state.add("kim/mnist/1", spec=pb.SessionSpec(args=["--lr", "0.1"]))
    second = place.state.add("kim/mnist/2", spec=pb.SessionSpec(args=["--lr", "0.2"]))
    shown = place.nsml("diff", first.name, second.name).stdout
    assert "0.1" in shown
    assert "0.2" in shown


_INSPECTED = (
    *("Status", "Running", "Paused", "Restarting", "OOMKilled", "Dead", "Pid", "ExitCode"),
    *("Error", "StartedAt", "FinishedAt"),
)


def inspect(place: Place) -> None:
    session = place.session
    rows = dict(
        line.split(maxsplit=1) if " " in line else (line, "")
        for line in place.nsml("inspect", session.name).stdout.splitlines()
    )
    assert tuple(rows) == _INSPECTED
    assert (rows["Status"], rows["Running"], rows["OOMKilled"]) == ("running", "true", "false")
    assert rows["Pid"] == "7", "the first process inside"
    end = pb.SessionEnd(cause=pb.CAUSE_OUT_OF_MEMORY, exit_code=137, message="out of memory")
    place.state.change(session, state=pb.SESSION_STATE_FAILED, end=end)
    found = place.json("inspect", session.name, "-j")
    assert (found["Status"], found["OOMKilled"], found["ExitCode"]) == ("exited", True, 137)
    assert (found["Pid"], found["Error"]) == (0, "out of memory")


def info(place: Place) -> None:
    for number in range(3):
        place.state.add(f"kim/None/{number}", spec=pb.SessionSpec())
    place.ended("kim/None/3")
    items = place.json("info", "-j")["items"]
    assert [(one["state"], one["sessions"]) for one in items] == [("RUNNING", 3), ("SUCCEEDED", 1)]


def plot_and_events(place: Place) -> None:
    name = place.session.name
    assert place.nsml("plot", name).stdout
    assert "train/loss" in place.nsml("events", name).stdout
    assert place.nsml("eventlen", name).stdout


def dataset_search(place: Place) -> None:
    assert place.session
    assert "mnist" in place.nsml("dataset", "search", "mni*").stdout
    assert "mnist" not in place.nsml("dataset", "search", "kin_*").stdout


def dataset_push(place: Place) -> None:
    wanted = {"-v", "-f", "-l", "-e", "--private"}
    assert wanted <= _options("dataset", "push")
    folder = place.folder / "data"
    for name in ("train/train_data", "test/test_data", "test/test_label"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1")
    (place.folder / "evaluation.py").write_text("print(0)\n")
    words = ("-v", "-f", "-l", "-e", "evaluation.py", "--private", "digits", str(folder))
    said = place.nsml("dataset", "push", *words).stderr
    assert "evaluation.py" in said
    assert [one.name for one in place.state.datasets] == ["digits"]


def gpustat_and_status(place: Place) -> None:
    assert place.session
    assert "gpu-1" in place.nsml("gpustat").stdout
    assert place.nsml("status", check=False).stdout


def gpumornitor(place: Place) -> None:
    name = place.session.name
    assert place.nsml("gpumornitor", name).stdout == place.nsml("gpumonitor", name).stdout != ""


def backup(place: Place) -> None:
    assert place.folder
    session = place.session
    place.state.change(session, state=pb.SESSION_STATE_SUCCEEDED)
    place.nsml("backup", session.name, "-o", "one.tar.zst")
    assert (place.folder / "one.tar.zst").stat().st_size > 0


def _scored(place: Place) -> pb.Session:
    """A session with a checkpoint, whose submission gets a score."""
    found = place.session
    place.state.submission_course = [
        boards_pb2.Submission(state=boards_pb2.SUBMISSION_STATE_SCORED, score=0.9855, rank=1)
    ]
    return found


def submit(place: Place) -> None:
    assert {"-t", "--test", "-v", "-b"} <= _options("submit")
    name = _scored(place).name
    done = place.nsml("submit", "-v", "-b", "64", name, "best")
    assert done.stdout.splitlines()[0] == "Score: 0.9855"
    assert place.state.batches == [64]


def infer(place: Place) -> None:
    source = place.session
    place.nsml("infer", source.name, "best")
    assert place.newest.spec.stage == pb.SESSION_STAGE_INFER
    assert place.newest.spec.initial_checkpoint.name == "best"


def dataset_board(place: Place) -> None:
    name = "kim/mnist"
    place.state.add_board(name, kind=boards_pb2.BOARD_KIND_DATASET)
    place.state.add_entry(name, "kim", 0.9, session="kim/mnist/1", submission_id="sub1")
    assert [one["score"] for one in place.json("dataset", "board", name, "-j")["items"]] == [0.9]
    assert "kim/mnist/1" in place.nsml("dataset", "board", name).stdout


def automl(place: Place) -> None:
    assert "--sweep lr=0.1,0.01" in _refused(place, "automl", "create", "--is-on-automl")


def json_return(place: Place) -> None:
    name = place.session.name
    for words in (("ps",), ("model", "ls", name), ("dataset", "ls")):
        for flag in ("-j", "--json-return"):
            assert json.loads(place.nsml(*words, flag).stdout)["items"], words
