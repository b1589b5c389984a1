"""The program: settings, data folder, listeners, signals."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controlplane.access.wrapping import Wrapper, method_of, with_method
from controlplane.domain.values import Priority
from controlplane.startup import backends as surroundings
from controlplane.startup.config import Settings, SettingsError, read_settings
from controlplane.startup.ownership import StartRefused, choose_coordination
from controlplane.startup.server import _Door, serve
from nsml.spec.exit_codes import CANNOT_LISTEN
from nsml.v1 import nodes_pb2, nodes_pb2_grpc

PLAIN = (
    'data = "d"\naddress = "127.0.0.1:0"\ncoordination = "embedded"\nadmin = "kim"\nnode = "a"\n'
)


class Program:
    """`nsml-controlplane` as a process."""

    def __init__(self, folder: Path, settings: str = PLAIN) -> None:
        self.data = folder / "d"
        self.config = folder / "controlplane.toml"
        self.config.write_text(settings)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "controlplane.main", "--config", str(self.config)],
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[4],
        )

    def ready(self) -> dict:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                facts = json.loads((self.data / "ready.json").read_text())
                if facts["pid"] == self.process.pid:
                    return facts
            except (FileNotFoundError, ValueError):
                pass
            assert self.process.poll() is None, self.process.stderr.read().decode()
            time.sleep(0.02)
        raise AssertionError("not ready")

    def refused(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=120)
        return self.process.returncode, said.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_it_serves_health_and_users_and_stops_in_order(tmp_path: Path) -> None:
    with Program(tmp_path) as program:
        facts = program.ready()
        token = (program.data / "admin.token").read_text().strip()
        assert (program.data / "node.token").exists()
        for target in (facts["address"], f"unix:{facts['socket']}"):
            with grpc.insecure_channel(target) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                answer = health.Check(health_pb2.HealthCheckRequest(), timeout=60)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
                nodes = nodes_pb2_grpc.NodeServiceStub(channel)
                with pytest.raises(grpc.RpcError) as caught:
                    nodes.GetCluster(nodes_pb2.GetClusterRequest(), timeout=60)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                cluster = nodes.GetCluster(
                    nodes_pb2.GetClusterRequest(),
                    timeout=60,
                    metadata=(("authorization", f"Bearer {token}"),),
                )
                assert cluster.coordination == "embedded"
                assert cluster.cluster_id == facts["cluster_id"]
        private = ("ready.json", "admin.token", "node.token", "ca.key", "coordination")
        for name in private:
            assert (program.data / name).stat().st_mode & 0o077 == 0
        assert program.data.stat().st_mode & 0o777 == 0o700
        program.process.send_signal(signal.SIGTERM)
        code, said = program.refused()
        assert code == 0, said
        assert token not in said
        assert not (program.data / "ready.json").exists()


def test_it_answers_over_http_while_it_runs(tmp_path: Path) -> None:
    with Program(tmp_path, f'{PLAIN}http = "127.0.0.1:0"\n') as program:
        url = program.ready()["http"]
        boss = {"Authorization": f"Bearer {(program.data / 'admin.token').read_text().strip()}"}

        def get(path: str) -> str:
            request = urllib.request.Request(url + path, headers=boss)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read().decode()

        assert get("/healthz") == "ok\n"
        deadline = time.monotonic() + 60
        while (told := ready_at(url)) != "ready\n":
            assert time.monotonic() < deadline, told
        assert 'nsml_sessions{state="QUEUED"} 0.0' in get("/metrics")
        program.process.send_signal(signal.SIGTERM)
        code, said = program.refused()
        assert code == 0, said
        with pytest.raises(urllib.error.URLError, match="refused"):
            get("/healthz")


def ready_at(url: str) -> str:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_after_a_kill_it_goes_on_where_it_was(tmp_path: Path) -> None:
    with Program(tmp_path) as program:
        first = program.ready()
        token = (program.data / "admin.token").read_text()
        program.process.kill()
        program.process.wait()
    with Program(tmp_path) as program:
        assert program.ready()["cluster_id"] == first["cluster_id"]
        assert (program.data / "admin.token").read_text() == token


async def test_it_stops_while_the_folder_of_its_objects_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is mounted from a machine that is gone: whoever looks at it waits."""
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hanging(*_: object, **__: object) -> None:
        begun.set()
        goes_on.wait(60)
        ended.set()
        raise ValueError("it was taken away")

    monkeypatch.setattr(surroundings, "open_shared", hanging)
    settings = Settings(data=tmp_path / "data", coordination="embedded", objects="file:///mounted")
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(settings, stop=stop))
    try:
        await asyncio.to_thread(begun.wait, 20)
        stop.set()
        await serving
        assert begun.is_set()
        assert not ended.is_set()
    finally:
        goes_on.set()


def test_one_process_has_a_data_folder(tmp_path: Path) -> None:
    with Program(tmp_path) as first:
        first.ready()
        with Program(tmp_path) as second:
            code, said = second.refused()
        assert code == 3
        assert "another control plane runs in" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('address = "0.0.0.0:0"', "refuse to listen on 0.0.0.0:0 without TLS"),
        ('coordination = "paper"', "coordination 'paper' is not"),
        ('coordination = "https://me:canary@10.0.0.1:2379"', "no user in its URL: etcd_user"),
        ('etcd_user = "me"\netcd_password_file = "p"', "etcd_user is for an etcd cluster by URLs"),
        ('history = "postgresql://me:canary@10.0.0.1/nsml"', "sslmode=verify-full"),
        ('http = "unix:/tmp/x"', "write HOST:PORT"),
        ('objects = "file:///proc/nowhere/at/all"', "is it mounted?"),
        ('objects = "s3://bucket"\ns3_endpoint = "http://10.0.0.1"', "not encrypted: use https"),
    ],
)
def test_it_refuses_to_start(tmp_path: Path, change: str, words: str) -> None:
    key = change.split(" ", maxsplit=1)[0]
    settings = "\n".join(line for line in PLAIN.splitlines() if not line.startswith(key))
    with Program(tmp_path, f"{settings}\n{change}\n") as program:
        code, said = program.refused()
    assert code == 1
    assert words in said
    assert "Traceback" not in said
    assert "canary" not in said


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with Program(tmp_path) as first:
        address = first.ready()["address"]
        other = tmp_path / "other"
        other.mkdir()
        with Program(other, PLAIN.replace("127.0.0.1:0", address)) as second:
            code, said = second.refused()
    assert code == CANNOT_LISTEN == 69
    assert f"cannot listen on {address}" in said


def test_a_folder_made_with_another_backend_is_refused(tmp_path: Path) -> None:
    (tmp_path / "coordination").write_text("embedded\n")
    assert choose_coordination("embedded", tmp_path).kind == "embedded"
    assert choose_coordination("auto", tmp_path).kind == "embedded"
    with pytest.raises(StartRefused) as refused:
        choose_coordination("http://127.0.0.1:2379", tmp_path)
    assert "was made with coordination by 'embedded'" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('history = "mysql://u:canary@h/d"', "history: postgresql://USER@HOST/DATABASE"),
        ('history = "canary.db"', "history: postgresql://USER@HOST/DATABASE"),
        ('objects = "/mnt/canary"', "objects: s3://BUCKET/PREFIX"),
        ('objects = "gcs://canary"', "objects: s3://BUCKET/PREFIX"),
        ('objects = "file://canary/x"', "objects: s3://BUCKET/PREFIX"),
        ('etcd_user = "root"', "etcd_user and etcd_password_file belong together"),
        ('etcd_password_file = "canary"', "etcd_user and etcd_password_file belong together"),
        ("platform_key = 5", "platform_key"),
    ],
)
def test_bad_settings_are_named_and_not_shown(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'data = "d"\n{text}\n')
    with pytest.raises(SettingsError) as refused:
        read_settings(path, {})
    assert words in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        'data = "d"\nunknown = 1',
        'data = "d"\nsilent_after_s = 1.0',
        'data = "d"\nhalf_life_days = 0.001',
        'data = "d"\nhalf_life_days = -7',
        'data = "d"\nhalf_life_days = nan',
        'data = "d"\nhalf_life_days = inf',
        'data = "d"\nlease_s = 0.1',
        'data = "d"\nleast_run_s = -1.0',
        'data = "d"\nleast_run_in_class_s = 0.0',
        'data = "d"\nkeep_points_s = 60',
        'data = "d"\nkeep_points_s = -1',
        'data = "d"\nkeep_points_s = nan',
        'data = "d"\nkeep_levels_s = 7200',
        'data = "d"\nkeep_points_s = 7200\nkeep_levels_s = 3600',
        'data = "d"\ngive_way_in_class = "all"',
        'data = "d"\ndefragment = "maybe"',
        'data = "d"\ntime_limits = ["urgent=1h"]',
        'data = "d"\ntime_limits = ["high"]',
        'data = "d"\ntime_limits = ["high=soon"]',
        'data = "d"\ntime_limits = ["high=0s"]',
        'data = "d"\ntime_limits = ["high=24"]',
        'data = "d"\ntime_limits = ["high=1h", "high=2h"]',
        'data = "d"\nlog_level = "loud"',
        "data = [",
        "data = 5",
    ],
)
def test_bad_settings_are_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(SettingsError):
        read_settings(path, {})


@pytest.mark.parametrize("value", ["5", "abc"])
def test_a_bad_setting_of_the_environment_is_named_by_its_variable(
    tmp_path: Path, value: str
) -> None:
    path = tmp_path / "c.toml"
    path.write_text('data = "d"\nkeep_points_s = 7200\n')
    with pytest.raises(
        SettingsError, match=r"^NSML_CONTROLPLANE_KEEP_POINTS_S in the environment:"
    ):
        read_settings(path, {"NSML_CONTROLPLANE_KEEP_POINTS_S": value})
    with pytest.raises(SettingsError, match=r"c\.toml: silent_after_s"):
        read_settings(
            path, {"NSML_CONTROLPLANE_KEEP_POINTS_S": "7200", "NSML_CONTROLPLANE_HEARTBEAT_S": "60"}
        )


def test_the_environment_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('data = "d"\n')
    environment = {
        "NSML_CONTROLPLANE_HEARTBEAT_S": "0.5",
        "NSML_CONTROLPLANE_HOSTS": "a.example,b.example",
        "NSML_CONTROLPLANE_TIME_LIMITS": "high=24h, normal=7d",
    }
    settings = read_settings(path, environment)
    assert (settings.heartbeat_s, settings.hosts) == (0.5, ("a.example", "b.example"))
    assert settings.limits_by_class == {Priority.HIGH: 86_400, Priority.NORMAL: 7 * 86_400}
    assert settings.data == tmp_path / "d"
    with pytest.raises(SettingsError):
        read_settings(tmp_path / "none.toml", {})


class _Naming(Wrapper):
    """Adds a name to what a handler answers; `wrapped` are the methods that it was asked for."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.wrapped: list[str] = []

    def wrap(self, handler: Any, method: str) -> Any:
        self.wrapped.append(method)
        inner = method_of(handler)

        async def answer(request: Any, context: Any) -> Any:
            return [self._name, *await inner(request, context)]

        return with_method(handler, answer)


async def test_a_method_is_put_behind_the_door_once_and_not_with_each_call() -> None:
    async def method(*_: Any) -> list[str]:
        return ["method"]

    served = grpc.unary_unary_rpc_method_handler(method)

    async def found(details: SimpleNamespace) -> Any:
        return served if details.method == "/a/B" else None

    first, second, door = _Naming("first"), _Naming("second"), _Door()
    called = SimpleNamespace(method="/a/B")
    assert await door.intercept_service(found, called) is None, "it is not open yet"
    door.open((first, second))
    handlers = [await door.intercept_service(found, called) for _ in range(3)]
    assert await handlers[0].unary_unary(None, None) == ["first", "second", "method"]
    assert handlers[0] is handlers[1] is handlers[2]
    assert first.wrapped == second.wrapped == ["/a/B"]
    assert await door.intercept_service(found, SimpleNamespace(method="/a/C")) is None
