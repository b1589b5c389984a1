"""Everything is destroyed between backup and restore, and everything is there again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from controlplane.backups.backups import batches_in, records_in
from controlplane.stored import etcd_codec
from nsml.content.backups import Backup, backups_in
from tests.integration.machine import Machine, machine, until
from tests.integration.test_restored_copy import done, shown
from tests.support.etcd import etcd_in, require_etcd
from tests.support.living_folders import files_below
from tests.support.postgres import PostgresServer

__all__ = ["machine"]

CODE = """
import nsml, pathlib, sys, time
for step in range(20):
    nsml.report(step=step, loss=1 / (step + 1))
    print("line", step, flush=True)
def save(folder):
    (pathlib.Path(folder) / "weights").write_bytes(b"w" * 100_000)
nsml.bind(save=save)
nsml.save("best")
if "--wait" in sys.argv:
    while True:
        time.sleep(1)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "main.py").write_text(CODE)
    (folder / "data.csv").write_text("a,b\n" * 1000)
    return folder


def fill(machine: Machine, code: Path) -> None:
    done(machine, "dataset", "push", "digits", str(code))
    done(machine, "secret", "set", "hub", stdin="s3cr3t")
    done(machine, "admin", "user", "add", "kim")
    done(machine, "run", "-d", "digits", "-g", "1", cwd=code)
    until(lambda: sessions(machine) == {"digits/1": "SUCCEEDED"})
    done(machine, "memo", "@last", "the good one")
    done(machine, "run", "-d", "digits", "-g", "1", "-a", "--wait", cwd=code)
    until(lambda: sessions(machine).get("digits/2") == "RUNNING")
    until(lambda: "line 19" in done(machine, "logs", "@last"))


def sessions(machine: Machine) -> dict[str, str]:
    items = json.loads(done(machine, "ps", "-a", "-j"))["items"]
    return {item["name"].partition("/")[2]: item["state"] for item in items}


def seen(machine: Machine, name: str) -> dict[str, Any]:
    """What a user sees of a session."""
    return {
        "log": done(machine, "logs", name),
        "metrics": json.loads(done(machine, "events", name, "-j")),
        "models": json.loads(done(machine, "model", "ls", name, "-j")),
    }


def rows(path: Path) -> dict[str, list[Any]]:
    """The history of a backup but for what goes on by itself."""
    found: dict[str, list[Any]] = {}
    for batch in batches_in(Backup(path).pieces("history")):
        if batch.table not in {"telemetry_blocks", "telemetry_folds", "audit"}:
            found.setdefault(batch.table, []).extend(batch.rows)
    return found


def kept(path: Path) -> dict[str, bytes]:
    """The store of a backup but for nodes, which their agents write, and what starts write."""
    return {
        key: value
        for key, value in records_in(Backup(path).pieces("store"))
        if not key.startswith((etcd_codec.NODES, "access/token"))
    }


@pytest.fixture(params=[pytest.param("embedded", marks=pytest.mark.variant), "etcd"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "etcd":
        require_etcd()
    return request.param


def test_what_was_destroyed_is_there_again(
    machine: Machine, tmp_path: Path, code: Path, kind: str
) -> None:
    folder = tmp_path / "backups"
    up = ("up", "--simulate-gpus", "3", *(["--embedded"] if kind == "embedded" else []))
    done(machine, *up)
    fill(machine, code)
    assert done(machine, "secret", "ls", "-o", "name").split() == ["hub"]
    before = {number: seen(machine, f"digits/{number}") for number in (1, 2)}
    token = done(machine, "admin", "user", "token", "kim").strip()
    said = done(machine, "admin", "backup", str(folder))
    assert "ca.key" in said
    assert "s3cr3t" not in said
    [first] = backups_in(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert first.name in done(machine, "admin", "backup", "--check", str(folder), "-j")

    # What comes after the backup is lost, but not stopped.
    done(machine, "run", "--argv", "-g", "1", "--", "/bin/sleep", "600", cwd=code)
    until(lambda: sessions(machine).get("None/1") == "RUNNING")
    done(machine, "down", "--keep-sessions")
    shutil.rmtree(machine.data / "controlplane")
    (machine.data / "local.json").unlink()

    restored = machine.nsml("admin", "restore", str(folder))
    assert restored.returncode == 0, restored.stderr
    assert "revoked after the backup are valid again" in restored.stderr
    again = machine.nsml("admin", "restore", str(folder))
    assert again.returncode == 6
    assert "is in use" in again.stderr
    done(machine, "up")
    until(lambda: shown(machine)["state"] == "HELD")
    [foreign] = shown(machine)["hold"]["foreign"]
    assert foreign["session"].endswith("/None/1")
    assert {n: seen(machine, f"digits/{n}") for n in (1, 2)} == before
    items = json.loads(done(machine, "ps", "-a", "-j"))["items"]
    assert [item["memo"] for item in items] == ["", "the good one"]
    assert done(machine, "secret", "ls", "-o", "name").split() == ["hub"]
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    kims = {"NSML_TOKEN_FILE": str(tmp_path / "token")}
    assert json.loads(done(machine, "ps", "-a", "-j", **kims))["items"] == []
    done(machine, "admin", "backup", str(folder))
    second = backups_in(folder)[-1]
    assert rows(second) == rows(first)
    assert kept(second).keys() == kept(first).keys()

    done(machine, "node", "resume", shown(machine)["name"], "-y")
    until(lambda: shown(machine)["state"] == "READY")
    assert sessions(machine) == {"digits/1": "SUCCEEDED", "digits/2": "RUNNING"}
    # Content is there, and the numbers of sessions go on.
    done(machine, "model", "pull", "digits/1", "best", str(tmp_path / "fetched"))
    [weights] = files_below(tmp_path / "fetched", "weights")
    assert weights.read_bytes() == b"w" * 100_000
    done(machine, "run", "-d", "digits", "-g", "1", cwd=code)
    until(lambda: sessions(machine).get("digits/3") == "SUCCEEDED")
    done(machine, "down", "-y")


@contextlib.contextmanager
def places(folder: Path, server: PostgresServer) -> Iterator[tuple[str, ...]]:
    """An etcd, a database and a folder that hold nothing, as options of `nsml up`."""
    objects, passwords = folder / "objects", folder / "pgpass"
    objects.mkdir(parents=True)
    passwords.write_text(f"*:*:*:*:{server.password}\n")
    passwords.chmod(0o600)
    etcd = etcd_in(folder / "etcd")
    etcd.start()
    try:
        asyncio.run(etcd.ready())
        with server.database() as url:
            parts = urlsplit(url)
            place = f"{parts.username}@{parts.hostname}:{parts.port}{parts.path}"
            history = f"postgresql://{place}?passfile={passwords}"
            yield "--etcd", etcd.endpoint, "--history", history, "--objects", objects.as_uri()
    finally:
        asyncio.run(etcd.stop())


SECRET = "nsml.report(told=int(__import__('os').environ['TOKEN'] == 's3cr3t'))"


def test_a_shared_platform_comes_back_on_other_servers(
    machine: Machine, tmp_path: Path, code: Path, postgres_server: PostgresServer
) -> None:
    """With all that it stood on gone, its keys too: they lie sealed in the store."""
    folder = tmp_path / "backups"
    with places(tmp_path / "lost", postgres_server) as lost:
        elsewhere = tmp_path / "key of the platform"
        done(machine, "up", "--simulate-gpus", "3", *lost, "--platform-key", str(elsewhere))
        fill(machine, code)
        done(machine, "secret", "set", "TOKEN", stdin="s3cr3t")
        before = {number: seen(machine, f"digits/{number}") for number in (1, 2)}
        assert "platform.key" in done(machine, "admin", "backup", str(folder))
        assert not (machine.data / "controlplane" / "ca.key").exists()
        done(machine, "down", "--keep-sessions")
    shutil.rmtree(tmp_path / "lost")
    elsewhere.unlink()
    shutil.rmtree(machine.data / "controlplane")
    (machine.data / "local.json").unlink()

    with places(tmp_path / "fresh", postgres_server) as fresh:
        done(machine, "admin", "restore", str(folder), *fresh)
        done(machine, "up")
        until(lambda: sessions(machine) == {"digits/1": "SUCCEEDED", "digits/2": "RUNNING"})
        assert {n: seen(machine, f"digits/{n}") for n in (1, 2)} == before
        done(machine, "model", "pull", "digits/1", "best", str(tmp_path / "fetched"))
        # What was sealed opens: a program is given its secret, another control plane its keys.
        (code / "main.py").write_text(f"import nsml\n{SECRET}\n")
        done(machine, "run", "-d", "digits", "-g", "1", "--secret", "TOKEN", cwd=code)
        until(lambda: sessions(machine).get("digits/3") == "SUCCEEDED")
        [told] = json.loads(done(machine, "events", "digits/3", "-j"))["items"]
        assert (told["metric"], told["value"]) == ("told", 1)
        key = machine.data / "controlplane" / "platform.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        second = Machine(tmp_path / "second")
        try:
            done(second, "up", "--no-agent", *fresh, "--platform-key", str(key))
        finally:
            second.nsml("down", "-y")
        done(machine, "down", "-y")
