"""What bad input gets: a clear error, an exit code, and nothing left over."""

import os
import re
import secrets
import shlex
import shutil
import subprocess

import grpc
import pytest

from bench.platform import PROGRAMS
from nsml.client import contexts
from nsml.v1 import sessions_pb2, sessions_pb2_grpc
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform


def refused(platform: Platform, *arguments: str, code: int, cwd=None, says: str, by=()) -> str:
    """The command ends with `code`, says so in words on stderr, and leaves no session behind."""
    before = ids(platform)
    done = platform.nsml(*arguments, check=False, cwd=cwd, by=by)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert re.search("^error: ", done.stderr, re.MULTILINE), done.stderr
    assert says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert ids(platform) == before
    return done.stderr


def ids(platform: Platform) -> list[str]:
    """Of all sessions; what they are about may change, since those of other tests come to their end."""
    return [item["id"] for item in platform.json("ps", "-a")["items"]]


@pytest.fixture
def code(tmp_path):
    return write_program(tmp_path / "code", "print('hello')\n")


def ended(platform: Platform, name: str) -> dict | None:
    for item in platform.json("ps", "-a")["items"]:
        if item["name"] == name and item["state"] in {"SUCCEEDED", "FAILED", "STOPPED"}:
            return item
    return None


def run(platform: Platform, folder, *options: str) -> str:
    """Submit and give the session's name."""
    return platform.nsml("run", "-o", "name", *options, cwd=folder).stdout.strip()


def test_no_such_entry(platform, code):
    refused(platform, "run", "-e", "nothere.py", cwd=code, code=2, says="nothere.py")


def test_folder_over_the_limit(platform, code):
    (code / "big.bin").write_bytes(os.urandom(3_000_000))
    refused(platform, "run", "--max-size", "1M", cwd=code, code=1, says="big.bin")


def test_unreadable_file(platform, code):
    (code / "secret.txt").write_text("x")
    (code / "secret.txt").chmod(0)
    # root may read every file, unless it is started without that right
    by = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    refused(platform, "run", cwd=code, code=1, says="secret.txt", by=by)


def test_symlink_that_leaves_the_folder(platform, code):
    (code / "out").symlink_to("/etc")
    refused(platform, "run", cwd=code, code=1, says="out")


NAMES = [b"caf\xe9", b"A", b"a", b"aux", b"n\nl", b"b\\s", b"Jr."]
LISTS = f"""\
import nsml, os

def save(folder):
    for name in {NAMES}:
        open(os.path.join(os.fsencode(folder), name), "wb").write(name)

def names(folder):
    print(sorted(os.listdir(os.fsencode(folder))))

names("names")
names(nsml.DATASET_PATH)
nsml.save("best", save_fn=save)
"""


def test_names_that_only_linux_has_travel_there_and_back(platform, tmp_path):
    code = write_program(tmp_path / "code", LISTS)
    (code / "names").mkdir()
    for name in NAMES:
        (code / "names" / os.fsdecode(name)).write_bytes(name)
    platform.nsml("dataset", "push", "names", code / "names")
    there = f"{sorted(NAMES)}\n"
    assert platform.nsml("run", "-f", "-d", "names", cwd=code).stdout == there * 2
    pulled = tmp_path / "pulled"
    platform.nsml("model", "pull", "@last", "best", pulled)
    platform.nsml("pull", "@last", pulled)
    platform.nsml("dataset", "pull", "names", pulled)
    (saved,), (sent,) = pulled.glob("*/best/model"), pulled.glob("*/code")
    for folder in (saved, sent / "names", pulled / "names"):
        assert {os.fsencode(file.name): file.read_bytes() for file in folder.iterdir()} == {
            name: name for name in NAMES
        }
    assert (sent / "main.py").read_text() == LISTS


def test_more_gpus_than_any_node_has(platform, code):
    refused(platform, "run", "-g", "64", cwd=code, code=7, says="64")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["-g", "9"], "no node has 9 GPUs; the largest has 2"),
        (["-g", "3", "--nodes", "2"], "no node has 3 GPUs; the largest has 2"),
        (["--nodes", "3"], "at most 2 replicas fit together: 1 node with 2 GPUs"),
        (["--nodes", "65"], "65 replicas: a gang has 1 to 64"),
        (["-g", "2000"], "2000 GPUs: a session has at most 1000"),
        (["--gpu-model", "H100"], "no node has GPU model H100; there are: Simulated GPU (1 node)"),
        (["--pod", "p1"], "there is no pod p1; no node is in one"),
        (["-c", "9999"], "no node has 9999 cores; the largest has "),
        (["--memory", "900T"], "of memory; the largest has "),
        (["--memory", "900T", "-g", "9", "--pod", "p1", "--gpu-model", "H100"], "no pod p1"),
        (["--retry", "101"], "101 retries: at most 100"),
        (["--time-limit", "5000d"], "a time limit of 5000d"),
    ],
)
def test_what_is_proposed_in_place_of_what_could_never_be_is_taken(platform, code, flags, says):
    done = platform.nsml("run", *flags, check=False, cwd=code)
    assert done.returncode in {2, 7}, done.stderr
    assert says in done.stderr, done.stderr
    proposed = re.search(
        r"try: nsml run (.*?)\.\.\.(?:    # without (.*))?$", done.stderr, re.MULTILINE
    )
    assert proposed, done.stderr
    kept = list(flags)
    for word in (*shlex.split(proposed[1])[::2], *(proposed[2] or "").split(" and ")):
        if word in kept:
            del kept[kept.index(word) : kept.index(word) + 2]
    name = run(platform, code, *kept, *shlex.split(proposed[1]))
    platform.nsml("stop", "--grace", "0s", name, check=False)


def test_what_a_session_asked_for_is_seen_and_repeated(platform, code):
    (code / "main.py").write_text("import time\ntime.sleep(600)\n")
    asked = ("--gpu-model", "simulated", "--priority", "low", "--preemptible")
    name = run(platform, code, *asked)
    (item,) = [one for one in platform.json("ps")["items"] if one["name"] == name]
    assert (item["priority"], item["preemptible"]) == ("low", True)
    assert (item["gpu_model"], item["pod"]) == ("simulated", None)
    table = platform.nsml("ps").stdout
    assert "low, preemptible" in table
    assert "GPU model" in table
    assert shlex.join(asked) in platform.nsml("command", name).stdout
    platform.nsml("stop", "--grace", "0s", name)


def test_dataset_that_is_not_there(platform, code):
    refused(platform, "run", "-d", "nosuchdata", cwd=code, code=5, says="nosuchdata")


def test_unknown_flag_with_the_nearest_one(platform, code):
    refused(platform, "run", "--gpu", "1", cwd=code, code=2, says="--gpus")


def test_misspelt_command_with_the_nearest_one(platform):
    refused(platform, "losg", code=2, says="logs")


def test_session_that_is_not_there(platform):
    refused(platform, "logs", "admin/none/999", code=5, says="999")


def test_wrong_token(platform, tmp_path):
    token = tmp_path / "token"
    token.write_text("nsml_wrong")
    token.chmod(0o600)
    token.chmod(0o600)
    done = platform.nsml("ps", check=False, environment={"NSML_TOKEN_FILE": str(token)})
    assert done.returncode == 4, done.stderr
    assert "nsml login" in done.stderr


def test_dead_control_plane(platform):
    done = platform.nsml("ps", check=False, environment={"NSML_SERVER": "127.0.0.1:1"})
    assert done.returncode == 3, done.stderr
    assert "127.0.0.1:1" in done.stderr


def test_ambiguous_reference(platform, code):
    data = write_program(code.parent / "data", "x", "train")
    platform.nsml("dataset", "push", "ambiguous", str(data))
    names = {run(platform, code, "-g", "0"), run(platform, code, "-g", "0", "-d", "ambiguous")}
    numbers = {}
    for item in platform.json("ps", "-a")["items"]:
        numbers.setdefault(item["name"].rsplit("/", 1)[1], set()).add(item["name"])
    number, candidates = next((n, c) for n, c in numbers.items() if len(c) > 1)
    done = platform.nsml("logs", number, check=False)
    assert done.returncode == 2, done.stderr
    assert all(candidate in done.stderr for candidate in candidates)
    for name in names:
        wait_for(lambda name=name: ended(platform, name), what=f"{name} ended")


@pytest.mark.parametrize(("flags", "says"), [(["no name"], "name"), (["x", "--team"], "team")])
def test_a_dataset_that_cannot_be_is_refused_before_anything_is_sent(
    platform, tmp_path, flags, says
):
    content = secrets.token_bytes(100)
    (tmp_path / "a.bin").write_bytes(content)
    name, *options = flags
    refused(platform, "dataset", "push", name, str(tmp_path), *options, code=2, says=says)
    assert not any(content in file.read_bytes() for file in packs_of(platform))
    platform.nsml("dataset", "push", "sent-in-the-end", str(tmp_path))
    assert any(content in file.read_bytes() for file in packs_of(platform))


def packs_of(platform):
    """The files in which the platform keeps what was sent; what does not compress stands there as it is."""
    return (platform.folder / "data/controlplane/objects/packs").glob("??/*")


def test_message_over_its_limit(platform):
    context = contexts.choose(contexts.load(platform.environment), platform.environment)
    request = sessions_pb2.CreateSessionRequest(request_id="large", memo="x" * 5_000_000)
    with grpc.insecure_channel(context.server) as channel:
        stub = sessions_pb2_grpc.SessionServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refusal:
            stub.CreateSession(
                request, metadata=[("authorization", f"Bearer {context.token()}")], timeout=60
            )
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert platform.nsml("status").returncode == 0


def test_program_that_exits_3(platform, tmp_path):
    folder = write_program(tmp_path / "three", "import sys\nprint('so long')\nsys.exit(3)\n")
    done = platform.nsml("run", "-g", "0", "--wait", cwd=folder, check=False)
    assert done.returncode == 3, done.stderr
    item = platform.json("ps", "-a")["items"][0]
    assert item["state"] == "FAILED"


def test_program_that_never_ends_is_stopped(platform, tmp_path):
    text = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\n"
    folder = write_program(tmp_path / "deaf", text + "while True: time.sleep(1)\n")
    name = run(platform, folder, "-g", "0", "--grace", "1s")
    wait_for(lambda: "up" in platform.nsml("logs", name).stdout, what="it runs")
    platform.nsml("stop", name, "-y")
    assert wait_for(lambda: ended(platform, name), what="it is gone")["state"] == "STOPPED"


def test_program_that_prints_100_megabytes(platform, tmp_path):
    text = "import os\nfor n in range(1600): os.write(1, (b'%08d' % n) * 8191 + b'\\n' * 8)\n"
    folder = write_program(tmp_path / "loud", text)
    name = run(platform, folder, "-g", "0")
    wait_for(lambda: ended(platform, name), timeout_s=120, what="it ended")
    target = tmp_path / "log"
    with target.open("wb") as out:
        command = [str(PROGRAMS / "nsml"), "logs", name]
        subprocess.run(command, env=platform.environment, stdout=out, check=True, timeout=120)
    expected = b"".join((b"%08d" % n) * 8191 + b"\n" * 8 for n in range(1600))
    assert target.stat().st_size == len(expected) == 1600 * 65536
    assert target.read_bytes() == expected


def test_escape_sequences_and_invalid_utf8_stay_bytes(platform, tmp_path):
    raw = b"\x1b[2J\x1b]0;title\x07\x9b31m\xff\xfe\x00bad\r\xe2\x80\xae\n"
    folder = write_program(tmp_path / "rude", f"import os\nos.write(1, {raw!r})\n")
    name = run(platform, folder, "-g", "0", "-m", "\x1b[31mred")
    wait_for(lambda: ended(platform, name), what="it ended")
    command = [str(PROGRAMS / "nsml"), "logs", "--raw", name]
    done = subprocess.run(command, env=platform.environment, capture_output=True, check=True)
    assert done.stdout == raw
    assert "\x1b" not in platform.nsml("ps", "-a").stdout


def test_data_folder_of_another_backend(platform, tmp_path):
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: there is only one backend")
    with Platform(simulate_gpus=1, options=["--embedded"]) as other:
        other.nsml("down", "-y")
        etcd = "http://127.0.0.1:1"
        done = other.nsml("up", "--etcd", etcd, check=False, timeout_s=120)
        assert done.returncode != 0
        assert "embedded" in done.stderr, done.stderr
        left = subprocess.run(
            ["pgrep", "-f", str(other.folder)], capture_output=True, text=True, check=False
        )
        assert left.stdout == ""
