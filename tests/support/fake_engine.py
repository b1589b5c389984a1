"""A container engine that is as slow as a test wants: HTTP on a Unix socket, processes as containers.

It takes what a shim and the agent ask an engine for. A call that is held is answered once it is let go,
as by an engine whose disk is slow: what was asked for happens then, whoever asked may be gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

IMAGE = "sha256:" + "a" * 64
_HELD = ("create", "start", "inspect", "list", "remove", "ping")
EVERYWHERE = ":/"
"""An id that the control groups of every process bear: a shim takes any process for a container's."""

_INIT = """
import os, signal, sys
child = os.fork()
if not child:
    os.setpgid(0, 0)
    os.execvp(sys.argv[1], sys.argv[1:])
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: os.killpg(child, number))
while True:
    ended, status = os.wait()
    if ended == child:
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
"""
"""The first process of a container, as docker-init with TINI_KILL_PROCESS_GROUP: it passes signals on to the group of its child."""


class FakeEngine:
    """`with FakeEngine(path) as engine`; `hold` a call by its name, `let_go` of it later."""

    def __init__(self, path: Path) -> None:
        self.socket = path
        self.asked: list[str] = []
        self.containers: dict[str, subprocess.Popen[bytes] | None] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.started = 0
        self.refuses_to_remove = False
        self.says_running: bool | None = None
        self.keeps_containers = True
        self.loses_an_answer = False
        """It does what it is asked for next, and is gone before it says so."""
        self._free = {name: threading.Event() for name in _HELD}
        for event in self._free.values():
            event.set()
        self._lock = threading.Lock()
        self._server = _Server(str(path), self)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        for event in self._free.values():
            event.set()
        self._server.shutdown()
        self._server.server_close()
        for process in self.containers.values():
            _end(process)

    def hold(self, name: str) -> None:
        self._free[name].clear()

    def let_go(self, name: str) -> None:
        self._free[name].set()

    def answer(self, method: str, url: str, body: dict[str, Any]) -> tuple[int, object]:
        parts = urlsplit(url)
        words = parts.path.strip("/").split("/")
        words = words[1:] if words[0].startswith("v1") else words
        match [method, *words]:
            case ["POST", "containers", "create"]:
                name = parse_qs(parts.query)["name"][0]
                return self._in_turn("create", lambda: self._create(name, body))
            case ["POST", "containers", name, "start"]:
                return self._in_turn("start", lambda: self._start(name))
            case ["GET", "containers", "json"]:
                self._free["list"].wait()
                return 200, [
                    {
                        "Id": EVERYWHERE,
                        "Names": [f"/{name}"],
                        "Labels": self.configs[name]["Labels"],
                    }
                    for name in self.containers
                ]
            case ["GET", "containers", name, "json"]:
                return self._in_turn("inspect", lambda: self._inspect(name))
            case ["DELETE", "containers", name]:
                return self._in_turn("remove", lambda: self._remove(name))
            case ["GET", "images", _, "json"]:
                self.asked.append("image")
                return 200, {"Id": IMAGE, "Config": {"Env": ["PATH=/usr/bin:/bin"]}}
            case ["GET", "version"]:
                return 200, {"ApiVersion": "1.41", "Version": "20.10"}
            case ["GET", "_ping"]:
                return self._in_turn("ping", lambda: (200, "OK"))
            case ["GET", "info"]:
                return 200, {"LiveRestoreEnabled": self.keeps_containers}
            case ["GET", "networks"]:
                return 200, []
        return 404, {"message": f"no such page: {method} {url}"}

    def _in_turn(self, name: str, do: Any) -> tuple[int, object]:
        self.asked.append(name)
        self._free[name].wait()
        with self._lock:
            answer = do()
        if self.loses_an_answer:
            self.loses_an_answer = False
            raise ConnectionAbortedError
        return answer

    def _create(self, name: str, config: dict[str, Any]) -> tuple[int, object]:
        if name in self.containers:
            return 409, {"message": "the name is in use"}
        self.containers[name], self.configs[name] = None, config
        return 201, {"Id": EVERYWHERE}

    def _start(self, name: str) -> tuple[int, object]:
        if name not in self.containers:
            return 404, {"message": "no such container"}
        config = self.configs[name]
        folders = {one["Target"]: one["Source"] for one in config["HostConfig"]["Mounts"]}
        entry = [_here(word, folders) for word in config["Entrypoint"]]
        environment = dict(line.split("=", 1) for line in config["Env"])
        self.containers[name] = process = subprocess.Popen(
            [sys.executable, "-S", "-c", _INIT, *entry, *config["Cmd"]],
            env=environment,
            cwd=folders["/app"],
            start_new_session=True,
        )
        threading.Thread(target=_end_all, args=(process,), daemon=True).start()
        self.started += 1
        return 204, {}

    def _inspect(self, name: str) -> tuple[int, object]:
        if name not in self.containers:
            return 404, {"message": "no such container"}
        process = self.containers[name]
        code = None if process is None else process.poll()
        is_running = process is not None and code is None
        state = {
            "Running": is_running if self.says_running is None else self.says_running,
            "Pid": process.pid if process is not None and code is None else 0,
            "ExitCode": 0 if code is None else code if code >= 0 else 128 - code,
        }
        mounts = [
            {"Type": one["Type"], "Destination": one["Target"]}
            for one in self.configs[name]["HostConfig"]["Mounts"]
        ]
        return 200, {"Id": EVERYWHERE, "State": state, "Mounts": mounts}

    def _remove(self, name: str) -> tuple[int, object]:
        if name not in self.containers:
            return 404, {"message": "no such container"}
        if self.refuses_to_remove:
            _end(self.containers[name])
            return 500, {"message": "its root is busy"}
        _end(self.containers.pop(name))
        return 204, {}


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        _end_all(process)


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """End what is left in a container whose first process has ended."""
    process.wait()
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(one.name)) == process.pid:
                os.kill(int(one.name), signal.SIGKILL)


def _here(word: str, folders: dict[str, str]) -> str:
    """A path in the container, as one of this machine."""
    return re.sub("/\\.nsml/output|/nsml", lambda found: folders[found[0]], word)


class _Server(socketserver.ThreadingUnixStreamServer):
    def __init__(self, path: str, engine: FakeEngine) -> None:
        self.engine = engine
        super().__init__(path, _Call)


class _Call(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        try:
            status, answer = self.server.engine.answer(self.command, self.path, body)
        except ConnectionAbortedError:
            return
        content = b"" if status == 204 else json.dumps(answer).encode()
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_POST = do_DELETE = do_GET  # noqa: N815 - the names that it is called by

    def address_string(self) -> str:
        return "shim"

    def log_message(self, *_words: object) -> None:
        pass
