import io
import json
import os
import tempfile
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from cli.app import App
from cli.competitions.settings_file import template
from cli.main import run
from controlplane.access.authority import make_authority
from nsml.common.clock import SystemClock
from nsml.common.signed_json import JsonSigning, to_json
from nsml.content.packing import pack
from nsml.content.session_archives import ArchiveWriter, Header
from nsml.v1 import (
    artifacts_pb2,
    boards_pb2,
    checkpoints_pb2,
    competitions_pb2,
    content_pb2,
    datasets_pb2,
    media_pb2,
    nodes_pb2,
    projects_pb2,
    resources_pb2,
)
from nsml.v1 import sessions_pb2 as pb
from tests.support.past_runs import write_mlflow, write_tensorboard, write_wandb
from tests.support.recorded_run import write_sound_run
from tests.unit.nsml.client.contract_server import EPOCH, LAPTOP, TOKEN, ContractServer

os.environ.setdefault("GRPC_VERBOSITY", "NONE")


class Stream(io.TextIOWrapper):
    """A stream in memory that may say that it is a terminal."""

    def __init__(self, text="", *, is_terminal=False):
        super().__init__(io.BytesIO(text.encode()), encoding="utf-8", newline="")
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal

    @property
    def raw_bytes(self):
        self.flush()
        return self.buffer.getvalue()


class FixedClock:
    """A day after the sessions of the tests were made."""

    def time(self):
        return EPOCH + 86_400.0

    def monotonic(self):
        return 0.0

    async def sleep(self, seconds):
        raise AssertionError("nothing sleeps here")


class Result:
    def __init__(self, code, app):
        self.code = code
        self.stdout = app.stdout.raw_bytes.decode(errors="surrogateescape")
        self.stderr = app.stderr.raw_bytes.decode()
        self.bytes = app.stdout.raw_bytes


class Nsml:
    """Runs command lines in this process, against a server and a home of its own."""

    def __init__(self, environ):
        self.environ = environ

    def __call__(self, *words, stdin="", terminal=False, check=True, **environ):
        app = App(
            environ={**self.environ, **environ},
            stdout=Stream(is_terminal=terminal),
            stderr=Stream(is_terminal=terminal),
            stdin=Stream(stdin, is_terminal=terminal),
            given_clock=FixedClock(),
        )
        result = Result(int(run(list(words), app)), app)
        if check:
            assert result.code == 0, result.stderr
        return result


@pytest.fixture(scope="session")
def running_server():
    with ContractServer() as running:
        yield running


@pytest.fixture
def server(running_server):
    running_server.state.__init__()
    return running_server


@pytest.fixture
def state(server):
    return server.state


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "token").chmod(0o600)
    (tmp_path / "old.tar.zst").write_bytes(_backup())
    write_tensorboard(tmp_path / "past/runs")
    write_mlflow(tmp_path / "mlruns")
    write_wandb(tmp_path / "wandb")
    (tmp_path / "desktop.pub").write_text(LAPTOP.replace("laptop", "desktop"))
    (tmp_path / "cup.toml").write_text(template(date(2026, 11, 30), "Asia/Seoul"))
    return folder


@pytest.fixture
def environ(server, home):
    return {
        "NSML_SERVER": server.address,
        "NSML_TOKEN_FILE": str(home / "token"),
        "NSML_CONFIG_DIR": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "HOME": str(home),
        "TERM": "xterm-256color",
    }


@pytest.fixture
def nsml(environ):
    return Nsml(environ)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a program, as the current one."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    return Path(folder)


@cache
def _authority():
    """That of the platform, which is one for all tests."""
    return make_authority(SystemClock())


@cache
def _backup():
    """What `write_backup` writes, made once: each test has one."""
    with tempfile.TemporaryDirectory() as folder:
        write_backup(path := Path(folder) / "old.tar.zst")
        return path.read_bytes()


def write_signed(folder, document=None):
    """The export of a competition, cup.json, and the certificate of the platform that signed it, ca.pem."""
    authority = _authority()
    (folder / "ca.pem").write_bytes(authority.pem)
    signing = JsonSigning(authority.sign_digest)
    text = to_json(
        document
        or {
            "format": "nsml.competition.v1",
            "platform": "c1",
            "exported_at": "2023-11-15T22:13:20.000Z",
            "competition": {"owner": "kim", "name": "cup", "state": "closed"},
            "teams": [{"name": "lions"}],
            "submissions": [],
        }
    )
    (folder / "cup.json").write_bytes(signing.begin() + signing.add(text) + signing.end())
    return authority


def write_backup(path, name="kim/mnist/1", memo="", *, members=None, spec=None, **record):
    """An archive of a session that printed a line; `members` are before it, by path, and `record` is beside it."""
    header = Header("c1", "0.2", "2026-11-28T20:00:00Z", "kim", (name,))
    session = {"id": "sold", "name": name, "memo": memo, "state": "SESSION_STATE_SUCCEEDED"}
    session["spec"] = spec or {}
    with path.open("wb") as file, ArchiveWriter(file, header, now=EPOCH) as archive:
        for member, data in (members or {}).items():
            archive.add(member, data)
        archive.add("sessions/1/logs/1-0.log", b"hello\n")
        archive.add("sessions/1/logs/1-0.jsonl", b'{"first": 0, "last": 5, "received_at": 5}\n')
        archive.add("sessions/1/session.json", json.dumps({"session": session, **record}).encode())
        archive.finish()


def vision():
    """A project with all that one may have."""
    made = projects_pb2.Project(
        name="vision",
        members=["kim", "lee"],
        member_count=2,
        settings=projects_pb2.ProjectSettings(
            owner="kim",
            quota=projects_pb2.Quota(gpu_thousandths=16_000, sessions=4),
            member_quota=projects_pb2.Quota(gpu_thousandths=8_000, memory_bytes=64 << 30),
            budget=projects_pb2.Budget(gpu_seconds=500 * 3600.0, period_days=30),
            weight=2.0,
            most_priority=pb.PRIORITY_NORMAL,
        ),
        usage=projects_pb2.ProjectUsage(
            gpu_thousandths=8_000,
            cpu_thousandths=12_000,
            memory_bytes=40 << 30,
            sessions=3,
            gpu_seconds=12.5 * 3600,
            share=pb.FairShare(
                account="vision",
                held_gpus=8.0,
                lately_gpus=3.0,
                weight=2.0,
                value=5.5,
                half_life={"seconds": 604_800},
            ),
        ),
    )
    made.created_at.seconds = EPOCH
    made.usage.since.seconds = made.settings.budget.anchor.seconds = EPOCH // 86_400 * 86_400
    made.usage.until.seconds = made.usage.since.seconds + 30 * 86_400
    return made


@pytest.fixture
def everything(state, tmp_path):
    """One of each thing, so that every command has something to show."""
    write_signed(tmp_path)
    (tmp_path / "recorded").mkdir()
    write_sound_run(tmp_path / "recorded")
    state.files.folder = tmp_path / "inside"
    state.files.folder.mkdir()
    (state.files.folder / "now.txt").write_text("now")
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "weights.npy").write_bytes(b"weights")
    packed = pack(saved)
    digest = packed.manifest.digest
    state.blobs[digest] = packed.manifest.encode()
    for blob in packed.manifest.blobs():
        state.blobs[blob] = packed.source.read(blob)
    state.simulated = True
    state.broken = [content_pb2.BrokenContent(kind="code", owner="kim", digest="ab" * 32, lost=1)]
    state.webhook = "https://hooks.example.org/x"
    state.images["gpu-1"] = [nodes_pb2.NodeImage(name="lab/torch:2", bytes=3 << 30)]
    state.projects["vision"] = vision()
    state.secrets["TOKEN"] = b"x"
    state.add_key(LAPTOP).used_at.seconds = EPOCH
    state.rows.append(pb.QueuedSession(place=1, session="lee/mnist/2", owner="lee"))
    spec = pb.SessionSpec(
        entry="main.py",
        bundle_digest=digest,
        args=["--lr", "0.1"],
        datasets=[pb.DatasetReference(name="mnist", version=1)],
        resources=resources_pb2.Resources(gpu_thousandths=2000),
    )
    session = state.add("kim/mnist/1", spec=spec, memo="first try")
    session.summary.update({"step": 3, "val/accuracy": 0.98765, "train/loss": 0.25})
    session.checkpoint_count = 1
    session.started_at.seconds = EPOCH + 60
    session.replicas.add(rank=0, node="gpu-1")
    state.environments["gpu-1"] = [
        resources_pb2.NodeEnvironment(key=f"3f9a0c51d2e4{'0' * 20}", owner="kim", package_count=2)
    ]
    state.locks[session.id] = f"numpy==2.1.0 --hash=sha256:{'a' * 64}\n"
    session.environment_lock.digest, session.environment_lock.package_count = "cd" * 32, 1
    state.log(session, b"hello\n")
    for step in range(3):
        state.report(session, "train/loss", 1 / (step + 1), step=step)
    state.report(session, "note", json='"caf\\u00e9"', step=2)
    checkpoint = checkpoints_pb2.Checkpoint(
        name="best",
        session=session.name,
        state=checkpoints_pb2.CHECKPOINT_STATE_DURABLE,
        digest=digest,
        size_bytes=7,
        file_count=1,
        elapsed_s=12.5,
        step=2,
    )
    checkpoint.saved_at.seconds = EPOCH + 3600
    checkpoint.summary.update({"val/accuracy": 0.98765})
    state.media[session.id] = [
        media_pb2.Media(name="val/samples", kind="image", state="MEDIA_STATE_SAVED", step=3)
    ]
    state.checkpoints[session.id] = [checkpoint]
    state.artifacts[session.id] = [
        artifacts_pb2.Artifact(
            name="report",
            version=number,
            session=session.name,
            state="ARTIFACT_STATE_DURABLE",
            digest=digest,
            size_bytes=7,
            file_count=1,
            step=number,
            attempt=1,
        )
        for number in (1, 2)
    ]
    state.artifacts[session.id].append(
        artifacts_pb2.Artifact(
            name="/app",
            version=1,
            session=session.name,
            state="ARTIFACT_STATE_DURABLE",
            digest=digest,
            attempt=1,
            note="left out: big.bin",
        )
    )
    dataset = datasets_pb2.Dataset(
        name="mnist",
        owner="kim",
        version=1,
        digest=digest,
        size_bytes=3_500_000,
        file_count=4,
        visibility=resources_pb2.VISIBILITY_TEAM,
        message="#example",
    )
    dataset.updated_at.seconds = EPOCH + 72_000
    state.datasets.append(dataset)
    cup = state.add_competition("kim/cup")
    cup.team.CopyFrom(competitions_pb2.Team(name="lions", members=["kim"]))
    cup.teams.add().CopyFrom(cup.team)
    cup.statistics.add(phase="qualifying", users=1)
    state.add_standing("kim/cup", "lions", 0.9, is_own=True)
    state.add_competition("kim/cup2", phase="")
    state.add_competition("kim/draft", state=competitions_pb2.COMPETITION_STATE_DRAFT)
    state.add_board("kim/mnist", kind=boards_pb2.BOARD_KIND_DATASET)
    for owner, args, score in (("lee", "--lr 0.2", 0.9), ("kim", "--lr 0.1", 0.8)):
        is_own = owner == "kim"
        submission = state.add_submission(session, state=boards_pb2.SUBMISSION_STATE_SCORED)
        submission.score = score
        state.add_entry(
            "kim/mnist",
            owner,
            score,
            session=session.name if is_own else "lee/mnist/7",
            session_id=session.id if is_own else "hidden",
            submission_id=submission.id,
            checkpoint="best",
            args=args,
        )
    node = nodes_pb2.Node(
        name="gpu-1",
        state=nodes_pb2.NODE_STATE_READY,
        capacity=resources_pb2.Resources(
            gpu_thousandths=2000, cpu_thousandths=4000, memory_bytes=16 << 30
        ),
        allocated=resources_pb2.Resources(gpu_thousandths=1500, cpu_thousandths=1000),
        isolation=resources_pb2.ISOLATION_NAMESPACE,
        agent_version="0.1.0",
        cpu_percent=12.5,
        memory_used_bytes=4 << 30,
        host="box",
    )
    node.last_contact_at.seconds = EPOCH + 86_399
    for index, held in enumerate((1000, 500)):
        use = node.devices.add(
            device=resources_pb2.Device(
                uuid=f"SIM-{index}",
                index=index,
                model="Simulated GPU",
                memory_bytes=80 << 30,
                simulated=True,
            ),
            allocated_thousandths=held,
            sessions=["kim/mnist/1", ""][: index + 1],
        )
        use.sample.utilization_percent = 91
        use.sample.memory_used_bytes = 61 << 30
        use.sample.power_watts = 388
        use.sample.temperature_celsius = 71
    node.pod = "p1"
    state.nodes.append(node)
    return session
