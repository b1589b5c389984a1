"""A marked secret through a whole platform, and then a search for the mark everywhere.

The one place where it may be is the environment of its owner's programs. Beside it a marked variable,
which its owner and administrators may see and others may not.
"""

import hashlib
import os
import secrets
import signal
from pathlib import Path

import pytest

from tests.e2e.platforms import user_of
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform
from tests.support.living_folders import files_below

MARK, SETTING = f"s3cret-{secrets.token_hex(8)}", f"setting-{secrets.token_hex(8)}"

PROGRAM = """\
import hashlib, os, sys, time
import nsml
print("ready", hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest(), flush=True)
nsml.report(step=0, loss=1.0, summary=True)
nsml.save(0, save_fn=lambda path: open(os.path.join(path, "model"), "w").write("weights"))
while not os.path.exists("/app/finish"):
    time.sleep(0.02)
sys.exit(int(sys.argv[1]))
"""

THIEF = """\
import glob, os, socket, sys
found = []
def look(path):
    try:
        with open(path, "rb") as file:
            data = file.read(1 << 20)
    except OSError:
        return
    if b"HF_TOKEN" in data:
        found.append(path)
for pattern in ("/proc/*/environ", "/proc/*/task/*/environ"):
    for path in glob.glob(pattern):
        if path.split("/")[2] not in (str(os.getpid()), "self", "thread-self"):
            look(path)
beside = os.path.dirname(os.environ["NSML_RUN_DIR"])
tops = ["/nsml", "/tmp", "/app", "/run", "/var/tmp", *sys.argv[1:]]
for top in tops + [beside] * (beside != "/"):  # what the machine has installed is no place of secrets
    for base, _, files in os.walk(top):
        for name in files:
            path = os.path.join(base, name)
            if os.path.isfile(path) and path != "/app/main.py":
                look(path)
requests = os.path.join(os.environ["NSML_RUN_DIR"], "socket")
if os.path.exists(requests):
    for question in (b'{"kind": "secrets"}\\n', b'{"op": "secret", "name": "HF_TOKEN"}\\n'):
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(requests)
            end.settimeout(2)
            end.sendall(len(question).to_bytes(4, "little") + question)
            try:
                if b"s3cret" in end.recv(4096):
                    found.append("socket")
            except OSError:
                pass
print("found", [path.replace("HF_", "HF-") for path in found], os.environ.get("HF_TOKEN"))
"""


@pytest.fixture(scope="module")
def platform():
    with Platform(simulate_gpus=2) as running:
        yield running


def files_with(folder: Path, *marks: str) -> list[str]:
    return [
        str(file)
        for file in files_below(folder)
        if any(mark.encode() in _bytes(file) for mark in marks)
    ]


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it went meanwhile
        return b""


def processes_with(mark: str) -> list[tuple[int, str, bytes]]:
    """Where among the environments and command lines of this machine a text is: pid, file, title."""
    found = []
    for file in (*Path("/proc").glob("[0-9]*/environ"), *Path("/proc").glob("[0-9]*/cmdline")):
        content = _bytes(file)
        if mark.encode() in content:
            found.append((int(file.parent.name), file.name, content))
    return found


def said(platform: Platform, session: str, who: dict[str, str] | None) -> str:
    """All that the command line tells of a session and the platform, in one text."""
    lines = [
        ["ps", "-a", "-j"],
        ["ps", "-a", "-o", "wide"],
        ["ps", "-a", "-o", "csv"],
        ["command", session],
        ["logs", session],
        ["events", session, "-j"],
        ["model", "ls", session, "-j"],
        ["getid", session, "-j"],
        ["status", "-j"],
        ["node", "ls", "-j"],
        ["gpustat", "-j"],
        ["secret", "ls", "-j"],
        ["dataset", "ls", "-j"],
    ]
    done = [platform.nsml(*line, environment=who) for line in lines]
    return "\n".join(one.stdout + one.stderr for one in done)


def test_a_mark_is_found_nowhere_but_in_the_program(platform, tmp_path):
    code = write_program(tmp_path / "code", PROGRAM)
    (code / ".env").write_text(f"SETTING={SETTING}\n")
    lee = user_of(platform, "lee", tmp_path)
    platform.nsml("secret", "set", "TOKEN", stdin=MARK + "\n")
    platform.nsml("secret", "set", "TOKEN", stdin="lees own\n", environment=lee)
    words = ["--secret", "TOKEN=HF_TOKEN", "--env-file", ".env", "--env", f"OTHER={SETTING}"]
    made = platform.nsml("run", "-g", "1", "--public", *words, "-o", "name", "-a", "0", cwd=code)
    session = made.stdout.strip()
    digest = hashlib.sha256(MARK.encode()).hexdigest()
    wait_for(lambda: f"ready {digest}" in platform.nsml("logs", session).stdout, what="it runs")

    # of every process of the machine only the program, and what passes signals on to it
    having = processes_with(MARK)
    assert having, "it is in the program's environment"
    assert {name for _, name, _ in having} == {"environ"}
    assert all(b"NSML_REPLICA=" in content for _, _, content in having)

    [replica] = (platform.folder / "data" / "agent" / "replicas").glob("s*")
    assert files_with(replica, "HF_TOKEN"), "or nothing is looked at"
    assert files_with(platform.folder, MARK) == []
    for who in (None, lee):
        assert MARK not in said(platform, session, who)
    assert SETTING in said(platform, session, None)
    assert SETTING not in said(platform, session, lee)
    assert f"--env OTHER={SETTING}" in platform.nsml("command", session).stdout
    assert "--env OTHER " in platform.nsml("command", session, environment=lee).stdout

    # an agent that comes back takes the session up without the secret
    platform.kill("agent")
    platform.nsml("up", timeout_s=120, check=False)
    (replica / "app" / "finish").touch()
    wait_for(lambda: _state(platform, session) == "SUCCEEDED", what="it ends")
    assert processes_with(MARK) == []
    assert files_with(platform.folder, MARK) == []
    bundles = platform.folder / "data" / "agent" / "bundles"  # as they are: objects are compressed
    assert files_with(bundles, "HF_TOKEN"), "the code is there"
    assert files_with(bundles, SETTING) == []
    for who in (None, lee):
        assert MARK not in said(platform, session, who)
    assert SETTING not in said(platform, session, lee)
    [key] = [one for one in files_below(platform.folder) if one.name == "secrets.key"]
    assert key.stat().st_mode & 0o777 == 0o600


def _state(platform: Platform, session: str) -> str:
    return {one["name"]: one["state"] for one in platform.json("ps", "-a")["items"]}[session]


def test_another_users_program_finds_nothing(platform, tmp_path):
    code = write_program(tmp_path / "code", PROGRAM)
    platform.nsml("secret", "set", "TOKEN", stdin=MARK)
    words = ["--secret", "TOKEN=HF_TOKEN", "-o", "name", "-a", "0"]
    victim = platform.nsml("run", "-g", "1", *words, cwd=code).stdout.strip()
    wait_for(lambda: "ready" in platform.nsml("logs", victim).stdout, what="it runs")
    park = user_of(platform, "park", tmp_path)
    thief = write_program(tmp_path / "thief", THIEF)
    refused = platform.nsml("run", "--secret", "TOKEN", cwd=thief, check=False, environment=park)
    assert refused.returncode == 5, refused.stderr
    run = ["run", "-g", "1", "-f", "-a", str(platform.folder)]
    done = platform.nsml(*run, cwd=thief, environment=park, check=False, timeout_s=120)
    if os.geteuid():  # an agent without root keeps users apart by taking one of them alone
        assert done.returncode == 7, done.stderr
        assert "runs only sessions of" in done.stderr
    else:
        assert done.stdout.splitlines()[-1] == "found [] None", done.stdout
    platform.nsml("stop", "--kill", victim)


def test_a_secret_that_is_removed_while_a_session_waits(platform, tmp_path):
    code = write_program(tmp_path / "code", "print('started')\n")
    hold = write_program(tmp_path / "hold", "import time\ntime.sleep(1000)\n")
    blocker = platform.nsml("run", "-g", "2", "-o", "name", cwd=hold).stdout.strip()
    platform.nsml("secret", "set", "GONE", stdin=MARK)
    words = ["run", "-g", "2", "--secret", "GONE", "-o", "name"]
    waiting = platform.nsml(*words, cwd=code).stdout.strip()
    platform.nsml("secret", "rm", "GONE", "-y")
    platform.nsml("stop", "--kill", blocker)
    wait_for(lambda: _state(platform, waiting) == "FAILED", what="it fails")
    told = platform.nsml("logs", waiting).stdout
    assert "secret GONE of" in told
    assert "was removed" in told
    assert "started" not in told


def test_a_killed_shim_leaves_nothing(platform, tmp_path):
    code = write_program(tmp_path / "code", PROGRAM)
    platform.nsml("secret", "set", "TOKEN", stdin=MARK)
    words = ["--secret", "TOKEN=HF_TOKEN", "-o", "name", "-a", "0"]
    session = platform.nsml("run", "-g", "1", *words, cwd=code).stdout.strip()
    wait_for(lambda: "ready" in platform.nsml("logs", session).stdout, what="it runs")
    for pid, _, _ in processes_with(MARK):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: _state(platform, session) == "FAILED", what="it ends")
    assert processes_with(MARK) == []
    assert files_with(platform.folder, MARK) == []
