"""`nsml fork`, `resume` and `rerun`: from the record of a session, and what could not be pinned."""

import json

import pytest

from nsml.content.packing import pack
from nsml.v1 import checkpoints_pb2, datasets_pb2, nodes_pb2, resources_pb2
from nsml.v1 import sessions_pb2 as pb
from tests.unit.nsml.client.contract_server import EPOCH

DIGEST = "sha256:" + "a" * 64
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def source(state, tmp_path):
    """An ended session with code, an image, GPUs, secrets, checkpoints, and a live change."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "main.py").write_text("print('hello')\n")
    (folder / "requirements.txt").write_text("torch\nnumpy==2.1.0\n-r more.txt\n")
    (folder / "more.txt").write_text("pandas>=2\n")
    packed = pack(folder)
    digest = packed.manifest.digest
    state.blobs[digest] = packed.manifest.encode()
    for blob in packed.manifest.blobs():
        state.blobs[blob] = packed.source.read(blob)
    state.datasets = [datasets_pb2.Dataset(name="mnist", owner="kim", version=2)]
    spec = pb.SessionSpec(
        entry="main.py",
        args=["--lr", "0.1"],
        bundle_digest=digest,
        datasets=[pb.DatasetReference(name="mnist", version=2, digest="d" * 64)],
        resources=resources_pb2.Resources(gpu_thousandths=1000),
        image="lab/torch:2",
    )
    spec.secrets.add(name="TOKEN", variable="TOKEN")
    session = state.add("kim/mnist/1", pb.SESSION_STATE_SUCCEEDED, spec=spec)
    session.started_at.seconds, session.ended_at.seconds = EPOCH, EPOCH + 60
    session.progress.resumable = True
    session.git.CopyFrom(pb.GitFacts(commit=COMMIT, branch="main", dirty=True))
    replica = session.replicas.add(rank=0, node="gpu-1", image=f"lab/torch@{DIGEST}")
    replica.devices.add(uuid="GPU-0", model="NVIDIA A100")
    change = session.changes.add(
        number=1, kind=pb.PROGRAM_CHANGE_KIND_SET, phase=pb.PROGRAM_CHANGE_PHASE_APPLIED
    )
    change.values["lr"], change.at = "0.003", 5000
    state.checkpoints[session.id] = [
        checkpoints_pb2.Checkpoint(
            name=name, session=session.name, digest=name[0] * 64, state="CHECKPOINT_STATE_DURABLE"
        )
        for name in ("best", "last")
    ]
    return session


def newest(state):
    return list(state.sessions.values())[-1]


def test_it_is_the_same_session_again_and_what_may_differ_is_named(nsml, state, source):
    before = dict(state.blobs)
    told = nsml("fork", "mnist/1")
    assert told.stdout == "Session kim/mnist/2 started\n"
    assert told.stderr.splitlines()[:7] == [
        "  fork of kim/mnist/1: nothing changed",
        "  not pinned: packages: no exact version: torch, pandas>=2 (no lock of kim/mnist/1 is kept)",
        "  not pinned: GPU model: any; kim/mnist/1 ran on NVIDIA A100 (--gpu-model MODEL)",
        "  not pinned: GPU driver: not recorded",
        "  not pinned: secrets: TOKEN: they have the values of the start",
        "  not pinned: network: what the program fetches while it runs is not recorded",
        "  not pinned: live change: lr=0.003 at step 5,000 is not repeated",
    ]
    made = newest(state)
    expected = pb.SessionSpec.FromString(source.spec.SerializeToString())
    expected.image = f"lab/torch@{DIGEST}"
    expected.datasets[0].name = "mnist"
    assert made.spec == expected
    assert state.blobs == before
    assert made.origin == pb.Origin(kind=pb.ORIGIN_KIND_FORK, session=source.id, name=source.name)
    assert made.git == source.git
    assert list(made.command) == ["nsml", "fork", "kim/mnist/1"]
    assert nsml("command", "2").stdout == "nsml run --rerun kim/mnist/2\n"


def test_a_dataset_is_streamed_in_place_of_being_fetched_and_back(nsml, state, source):
    del source
    for flag, typed, streamed in (("--stream", "kim/mnist", True), ("-d", "mnist@2", False)):
        nsml("fork", "@last", flag, typed)
        [found] = newest(state).spec.datasets
        assert (found.name.rpartition("/")[2], found.streamed) == ("mnist", streamed)


@pytest.mark.parametrize("command", ["fork", "rerun"])
def test_a_dataset_that_a_restored_session_lacks_is_typed(nsml, state, source, command):
    source.spec.datasets[0].digest = ""
    source.imported.platform = "c1"
    before = newest(state).id
    result = nsml(command, "kim/mnist/1", check=False)
    assert (result.code, newest(state).id) == (6, before)
    assert "was restored without its dataset mnist@2" in result.stderr
    assert "-d DATASET" in result.stderr
    nsml(command, "kim/mnist/1", "-d", "mnist@2")
    [used] = newest(state).spec.datasets
    assert (used.name, newest(state).id == before) == ("mnist", False)


def test_what_a_restored_session_lacks_beside_is_told(nsml, state, source):
    source.imported.platform = "c1"
    began = source.spec.initial_checkpoint
    began.session, began.name, began.session_name = source.id, "best", "lee/mnist/6"
    told = nsml("fork", "kim/mnist/1").stderr
    assert (
        "  not pinned: checkpoint: kim/mnist/1 began with best of lee/mnist/6, which was not restored:"
        " this one begins anew (-c CHECKPOINT)\n"
    ) in told
    assert not newest(state).spec.HasField("initial_checkpoint")
    nsml("fork", "kim/mnist/1", "-c", "best")
    assert newest(state).spec.initial_checkpoint.digest
    source.spec.environment["A"] = "***"
    refused = nsml("fork", "kim/mnist/1", check=False)
    assert "kim/mnist/1 was restored without the values of A" in refused.stderr


def test_what_is_given_is_told_and_changes_nothing_else(nsml, state, source):
    words = ("fork", "1", "-c", "best", "-g", "2", "--cpu", "8", "--image", "lab/torch:3")
    told = nsml(*words, "--env", "A=1", "--", "--lr", "0.2")
    made = newest(state)
    initial = made.spec.initial_checkpoint
    assert (initial.session, initial.name, initial.digest) == (source.id, "best", "b" * 64)
    assert (made.spec.resources.cpu_thousandths, made.spec.image) == (8000, "lab/torch:3")
    first, second, *_ = told.stderr.splitlines()
    assert first == (
        "  fork of kim/mnist/1: lr 0.1 -> 0.2, image lab/torch:2 -> lab/torch:3,"
        " env A - -> 1, gpus 1 -> 2, cpus - -> 8"
    )
    assert second == "  begins with checkpoint best of kim/mnist/1"
    assert "not pinned: image: lab/torch:3 is a tag" in told.stderr
    assert list(made.command[:5]) == ["nsml", "fork", "kim/mnist/1", "-c", "best"]
    assert "A=1" not in made.command, "values are in the spec alone"
    shown = nsml("status", "--explain", "2").stdout
    assert "  begins with: checkpoint best of kim/mnist/1\n" in shown
    assert f"  git: {COMMIT[:12]} main, changed\n" in shown
    record = json.loads(nsml("ps", "-a", "-j", "origin:fork").stdout)["items"][0]
    assert record["initial_checkpoint"]["name"] == "best"
    assert record["git"]["commit"] == COMMIT
    # What repeats it begins with the same.
    nsml("rerun", "2")
    assert newest(state).spec.initial_checkpoint == initial
    assert list(newest(state).command) == ["nsml", "rerun", "kim/mnist/2"]
    assert nsml("fork", "1", "-c", "", check=False).code == 2


def test_nsmls_verbose_is_accepted(nsml, state, source):
    nsml("fork", "-v", "-c", "best", "1")
    assert newest(state).spec.initial_checkpoint.name == "best"


@pytest.mark.parametrize("words", [("run",), ("fork", "1"), ("rerun", "1")])
def test_an_argument_that_is_given_in_both_ways_is_refused(nsml, state, source, project, words):
    before = len(state.sessions)
    refused = nsml(*words, "-a", "--lr 1 --x", "--", "--y", "--lr=2", check=False)
    assert (refused.code, len(state.sessions)) == (2, before)
    assert "--lr is given twice, by -a and behind --: leave one out" in refused.stderr


def test_programs_get_what_could_not_be_pinned(nsml, state, source):
    found = json.loads(nsml("fork", "1", "--gpu-model", "A100", "-j").stdout)
    assert found["origin"]["kind"] == "FORK"
    whats = [one["what"] for one in found["not_pinned"]]
    assert whats == ["packages", "GPU driver", "secrets", "network", "live change"]


def test_what_nodes_have_now_is_compared_with_what_it_ran_with(nsml, state, source):
    device = source.replicas[0].devices[0]
    device.driver_version, device.cuda_version = "535.129.03", "12.2"
    node = nodes_pb2.Node(name="gpu-1", state="NODE_STATE_READY")
    node.devices.add().device.CopyFrom(device)
    state.nodes = [node]
    assert "GPU driver" not in nsml("fork", "1").stderr
    node.devices[0].device.driver_version = "550.54.14"
    line = "GPU driver: kim/mnist/1 ran with 535.129.03 (CUDA 12.2), nodes now have 550.54.14 (CUDA 12.2)"
    assert f"  not pinned: {line}\n" in nsml("rerun", "1").stderr
    assert f"  not pinned: {line}\n" in nsml("fork", "1", "--dry-run").stderr
    shown = nsml("node", "show", "gpu-1").stdout
    assert "  driver    550.54.14 (CUDA 12.2)\n" in shown
    assert "  driver: 535.129.03 (CUDA 12.2)\n" in nsml("status", "--explain", "1").stdout


def test_resume_goes_on_from_the_newest_checkpoint_of_what_has_ended(nsml, state, source):
    told = nsml("resume", "1", "-g", "4")
    made = newest(state)
    assert (made.spec.initial_checkpoint.name, made.origin.kind) == ("last", pb.ORIGIN_KIND_RESUME)
    assert "begins with checkpoint last of kim/mnist/1" in told.stderr
    assert "  origin: resume of kim/mnist/1\n" in nsml("status", "--explain", "2").stdout
    running = state.add("kim/mnist/3")
    refused = nsml("resume", "3", check=False)
    assert refused.code == 6
    assert "kim/mnist/3 has not ended" in refused.stderr
    assert "nsml requeue kim/mnist/3" in refused.stderr
    state.sessions.pop(running.id)
    del state.checkpoints[source.id]
    assert nsml("resume", "1", check=False).code == 5


def test_a_program_that_loads_nothing_by_itself_is_told_of(nsml, state, source):
    source.progress.resumable = False
    told = nsml("fork", "1", "-c", "@last")
    assert newest(state).spec.initial_checkpoint.name == "last"
    assert "kim/mnist/1 has not bound a load function" in told.stderr


def test_a_fork_that_begins_anew_says_what_goes_on(nsml, state, source):
    assert "begins anew" not in nsml("fork", "1").stderr, "there is nothing to go on from"
    source.checkpoint_count = 2
    told = nsml("fork", "1").stderr
    again = "nsml fork kim/mnist/1 -c @last goes on from there"
    assert f"  note: it begins anew: kim/mnist/1 has 2 checkpoints; {again}\n" in told
    for words in (["fork", "1", "-c", "best"], ["rerun", "1"]):
        assert "begins anew" not in nsml(*words).stderr
    source.progress.resumable = False
    assert "begins anew" not in nsml("fork", "1").stderr


OF_NSML = """\
parser.add_argument("--pause", type=int, default=0)
parser.add_argument('--iteration', default='0')
if config.pause:
    nsml.paused(scope=locals())
"""


def set_code(state, source, folder, **files):
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    send_code(state, source, folder)


def send_code(state, source, folder):
    packed = pack(folder)
    source.spec.bundle_digest = packed.manifest.digest
    state.blobs[packed.manifest.digest] = packed.manifest.encode()
    for blob in packed.manifest.blobs():
        state.blobs[blob] = packed.source.read(blob)


def test_a_program_of_nsml_gets_the_arguments_of_a_fork(nsml, state, source, tmp_path):
    set_code(state, source, tmp_path / "nsml", main="import options", options=OF_NSML)
    told = nsml("fork", "1", "-c", "best").stderr
    made = newest(state).spec
    assert list(made.args) == ["--lr", "0.1", "--pause", "1", "--iteration", "best"]
    assert "  arguments added, as NSML's fork does: --pause 1 --iteration best\n" in told
    assert list(newest(state).command) == ["nsml", "fork", "kim/mnist/1", "-c", "best"]
    # The newest one by its name; of a fork those of another checkpoint take their place.
    source.spec.args[:] = ["--pause=1", "--iteration", "best", "--lr", "0.1"]
    nsml("resume", "1")
    made = newest(state).spec
    assert list(made.args) == ["--lr", "0.1", "--pause", "1", "--iteration", "last"]
    assert made.initial_checkpoint.name == "last"
    nsml("fork", "1", "-c", "best", "--", "--iteration", "7")
    assert list(newest(state).spec.args) == ["--iteration", "7"], "what is typed stands"
    for words in (["rerun", "1"], ["fork", "1"]):
        nsml(*words)
        assert newest(state).spec.args == source.spec.args
    source.progress.resumable = False
    nsml("fork", "1", "-c", "best")
    assert newest(state).spec.args == source.spec.args


def test_other_programs_do_not_get_them(nsml, state, source, tmp_path):
    """They would end with "unrecognized arguments"."""
    set_code(state, source, tmp_path / "other", main=OF_NSML.replace("--iteration", "--iterations"))
    told = nsml("fork", "1", "-c", "best").stderr
    assert list(newest(state).spec.args) == ["--lr", "0.1"]
    assert "arguments added" not in told


def test_of_somebody_else_secrets_are_ones_own(nsml, state, source):
    source.owner, source.name = "lee", "lee/mnist/1"
    source.visibility = resources_pb2.VISIBILITY_PUBLIC
    state.checkpoints.clear()
    told = nsml("fork", "lee/mnist/1", "-d", "mnist")
    assert "not pinned: secrets: TOKEN: those of kim, not of lee" in told.stderr


def test_code_of_which_nothing_can_be_read_is_said_to_be_so(nsml, state, source, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "requirements.txt").write_text("-e git+https://h/r\n")
    send_code(state, source, folder)
    told = nsml("fork", "1")
    assert "not pinned: packages: the requirements of the code cannot be read" in told.stderr


def test_what_is_hostile_acts_on_no_terminal(nsml, state, source):
    source.spec.image = ""
    source.replicas[0].image = "lab/\x1b[2Jx"
    source.replicas[0].devices[0].model = "\x1b]0;owned\x07A100"
    source.changes[0].values["lr"] = '"\x1b[2J"'
    told = nsml("fork", "1", "-c", "best", terminal=True, NO_COLOR="1")
    assert "\x1b[2J" not in told.stderr + told.stdout
    assert "\x1b]0;" not in told.stderr + told.stdout


def test_a_dry_run_tells_the_same_and_makes_nothing(nsml, state, source):
    told = nsml("fork", "1", "-c", "best", "-g", "2", "--dry-run")
    assert told.stdout == "would start now\n"
    assert told.stderr.startswith(
        "  fork of kim/mnist/1: gpus 1 -> 2\n  begins with checkpoint best"
    )
    assert "not pinned: network" in told.stderr
    assert json.loads(nsml("resume", "1", "--dry-run", "-j").stdout)["not_pinned"]
    assert nsml("fork", "1", "-c", "none", "--dry-run", check=False).code == 5
    assert len(state.sessions) == 1


@pytest.mark.parametrize("command", ["resume", "rerun"])
def test_a_checkpoint_is_a_forks(nsml, everything, command):
    done = nsml(command, "mnist/1", "-c", "best", check=False)
    assert done.code == 2
    assert f"nsml {command} takes no checkpoint" in done.stderr
    assert "  try: nsml fork mnist/1 -c best\n" in done.stderr


@pytest.mark.parametrize(("digest", "beside"), [("", True), ("c" * 64, False)])
def test_default_packages_in_a_container_are_pinned_by_a_lock_alone(
    nsml, state, source, digest, *, beside
):
    source.spec.image = ""
    source.environment_lock.digest = digest
    if not digest:
        source.ClearField("environment_lock")
    told = nsml("fork", "1").stderr
    assert "not pinned: image: the node's default" in told
    assert ("with its default packages if it has some" in told) is beside


SCRIPT = '# /// script\n# dependencies = ["six==1.16.0"]\n# ///\n'
LOCK = f"numpy==2.1.0 --hash=sha256:{'a' * 64}\ntorch==2.4.0 --hash=sha256:{'b' * 64}\n"


@pytest.fixture
def locked(state, source):
    """One that ran without a container, and whose lock is kept."""
    source.spec.image = source.replicas[0].image = ""
    source.environment_lock.digest, source.environment_lock.package_count = "c" * 64, 2
    state.locks[source.id] = LOCK
    return source


def test_the_packages_of_a_lock_are_asked_for_again_and_are_pinned(nsml, state, locked):
    told = nsml("fork", "1", "--", "--lr", "0.2").stderr
    assert "not pinned: packages" not in told
    assert "not pinned: Python: not recorded\n" in told
    assert newest(state).spec.environment_lock == "c" * 64
    assert "  packages: 2 packages, lock cccccccccccc\n" in nsml("status", "--explain", "1").stdout
    facts = {"digest": "c" * 64, "package_count": 2}
    assert json.loads(nsml("status", "--explain", "1", "-j").stdout)["environment_lock"] == facts
    # What repeats it has the same packages, though it never ran.
    nsml("rerun", "2")
    assert newest(state).spec.environment_lock == "c" * 64
    for words in (["fork", "1", "--refresh"], ["fork", "1", "--image", "lab/torch@" + DIGEST]):
        told = nsml(*words).stderr
        assert newest(state).spec.environment_lock == ""
        assert "packages: no exact version: torch, pandas>=2\n" in told


OF_CONDA = (
    "# platform: linux-64\n@EXPLICIT\n"
    f"https://conda.anaconda.org/conda-forge/noarch/six-1.16.0-0.conda#sha256:{'a' * 64}\n"
)


@pytest.mark.parametrize("command", ["fork", "rerun", "resume"])
def test_code_with_packages_of_conda_is_for_nodes_that_install_them(
    nsml, state, locked, tmp_path, command
):
    folder = tmp_path / "conda"
    set_code(state, locked, folder, main="", script=SCRIPT)
    (folder / "environment.yml").write_text("dependencies:\n- python==3.12.1\n- six==1.16.0\n")
    send_code(state, locked, folder)
    assert not locked.spec.needs_conda, "as in records of older clients"
    told = nsml(command, "1")
    made = newest(state).spec
    assert (made.needs_conda, made.environment_lock) == (True, "")
    why = "the lock of kim/mnist/1 is not used: it has no packages of conda, and environment.yml lists some"
    assert f"  not pinned: lock: {why}\n" in told.stderr
    assert "not pinned: packages: those that the requirements need in turn" in told.stderr
    found = json.loads(nsml(command, "1", "-j").stdout)
    assert {"what": "lock", "why": why} in found["not_pinned"]

    state.locks[locked.id] = OF_CONDA
    told = nsml(command, "1").stderr
    made = newest(state).spec
    assert (made.needs_conda, made.environment_lock) == (True, "c" * 64)
    assert "not pinned: lock" not in told
    for words in (["--image", "lab/torch@" + DIGEST], ["--dockerfile", "Dockerfile"]):
        nsml(command, "1", *words)
        assert not newest(state).spec.needs_conda
    locked.spec.needs_conda = True
    told = nsml(command, "1", "-e", "script.py").stderr
    made = newest(state).spec
    assert (made.needs_conda, made.environment_lock) == (False, ""), "its block counts"
    assert "it has packages of conda, and the script block of script.py lists none" in told
    (folder / "requirements.txt").write_text("-e git+https://h/r\n")
    send_code(state, locked, folder)
    nsml(command, "1")
    assert newest(state).spec.needs_conda, "of code that cannot be read as it was"


@pytest.mark.parametrize("lock", ["", "c" * 64])
def test_a_dockerfile_takes_the_place_of_the_image_and_the_packages(nsml, state, source, lock):
    source.environment_lock.digest = lock
    nsml("fork", "1", "--dockerfile", "Dockerfile")
    made = newest(state).spec
    assert (made.dockerfile, made.image, made.environment_lock) == ("Dockerfile", "", "")
    nsml("rerun", "2", "--image", "lab/torch:3")
    made = newest(state).spec
    assert (made.dockerfile, made.image) == ("", "lab/torch:3")


def test_files_that_the_platform_keeps_by_default_need_not_be_kept_again(nsml, state, source):
    source.spec.keep_files = True
    nsml("fork", "1", "--no-keep-files")
    assert (newest(state).spec.keep_files, newest(state).spec.no_keep_files) == (False, True)
    nsml("fork", "2", "--keep-files")
    assert (newest(state).spec.keep_files, newest(state).spec.no_keep_files) == (True, False)


def test_without_a_lock_that_is_said(nsml, locked):
    locked.ClearField("environment_lock")
    told = nsml("fork", "1").stderr
    text = "no exact version: torch, pandas>=2 (no lock of kim/mnist/1 is kept)"
    assert f"  not pinned: packages: {text}\n" in told


def test_a_lock_is_printed_as_requirements_and_for_programs(nsml, state, locked):
    assert nsml("env", "lock", "1").stdout == LOCK
    found = json.loads(nsml("env", "lock", "1", "-j").stdout)
    assert len(found["digest"]) == 64
    hashes = [f"sha256:{'a' * 64}"]
    assert found["items"][0] == {
        "name": "numpy", "version": "2.1.0", "url": None, "hashes": hashes, "channel": None
    }  # fmt: skip
    conda = "https://conda.anaconda.org/conda-forge/noarch/greeting-1.0-py_0.conda"
    text = f"# platform: linux-64\n@EXPLICIT\n{conda}#{hashes[0]}\n# pip a==1 --hash={hashes[0]}\n"
    state.locks[locked.id] = text
    assert nsml("env", "lock", "1").stdout == text
    first, second = json.loads(nsml("env", "lock", "1", "-j").stdout)["items"]
    assert first == {
        "name": "greeting", "version": "1.0", "url": conda, "hashes": hashes, "channel": "conda-forge"
    }  # fmt: skip
    assert (second["name"], second["channel"], second["hashes"]) == ("a", None, hashes)
    state.locks[locked.id] = "--index-url https://evil\n"
    refused = nsml("env", "lock", "1", check=False)
    assert (refused.code, refused.stdout) == (1, "")
    assert "cannot be read" in refused.stderr
    del state.locks[locked.id]
    assert nsml("env", "lock", "1", check=False).code == 5
