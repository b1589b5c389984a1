from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent import wiring
from nodeagent.config import SettingsError, read_settings
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.isolation import IsolationFacts
from nodeagent.runtimes.launch import this_machine
from nodeagent.wiring import ChannelMaker

BASE = 'node = "n1"\nserver = "127.0.0.1:1"\ndata = "data"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text)
    return path


def test_paths_are_meant_from_the_files_folder(tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path, BASE + 'token_file = "t"\n'), {})
    assert settings.data == tmp_path / "data"
    assert settings.token_file == tmp_path / "t"
    assert settings.key_file is None


@pytest.mark.parametrize(
    ("has_accounts", "uid", "chosen", "note"),
    [
        (True, 0, "auto", ""),
        (False, 0, "auto", "the way is shut"),
        (False, 1000, "auto", ""),
        (False, 0, "namespace", ""),
        (False, 0, "none", ""),
    ],
)
def test_a_weaker_level_is_explained_only_where_it_would_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_accounts: bool,
    uid: int,
    chosen: str,
    note: str,
) -> None:
    found = IsolationFacts(
        level=Isolation.NAMESPACE,
        levels=frozenset({Isolation.NONE, Isolation.NAMESPACE}),
        with_accounts=frozenset({Isolation.NAMESPACE}) if has_accounts else frozenset(),
        machine=this_machine(with_pid=False),
        reason="",
        user_reason="the way is shut",
    )
    monkeypatch.setattr(wiring, "probe_isolation", lambda *_, **__: found)
    monkeypatch.setattr(wiring, "_trial_id", lambda _: (1000, ""))
    monkeypatch.setattr(wiring.os, "geteuid", lambda: uid)
    settings = read_settings(write(tmp_path, BASE + f'isolation = "{chosen}"\n'), {})
    assert note in wiring._isolation(settings).reason
    assert bool(wiring._isolation(settings).reason) is bool(note)
    strict = read_settings(write(tmp_path, BASE + 'isolation = "user"\n'), {})
    with pytest.raises(SettingsError, match=r"user does not work here: .*the way is shut"):
        wiring._isolation(strict)


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    environment = {"NSML_AGENT_SIMULATE_GPUS": "4", "NSML_AGENT_POD": "rack-1", "HOME": "/x"}
    settings = read_settings(write(tmp_path, BASE + "simulate_gpus = 2\n"), environment)
    assert (settings.simulate_gpus, settings.pod) == (4, "rack-1")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("node = ", "TOML"),
        ('server = "x:1"\ndata = "d"\n', "node"),
        (BASE + "gpus = 2\n", "gpus"),
        (BASE + "simulate_gpus = 65\n", "simulate_gpus"),
        (BASE + 'isolation = "jail"\n', "isolation"),
        (BASE + 'certificate_file = "c"\n', "key_file"),
        (BASE + 'default_image = "x;reboot"\n', "default_image"),
        (BASE + 'image_aliases = {a = "$(id)"}\n', "image_aliases"),
        (BASE + 'image_pull = "never"\n', "image_pull"),
        (BASE + 'allowed_images = ["*", "a b"]\n', "allowed_images"),
        (BASE + 'container_network = "a b"\n', "container_network"),
        (BASE + 'build_network = "--privileged"\n', "build_network"),
        (BASE + "build_disk_bytes = 0\n", "build_disk_bytes"),
        (BASE + "image_bytes = -1\n", "image_bytes"),
        (BASE + "keep_free_share = 1.5\n", "keep_free_share"),
        (BASE + "build_memory_bytes = 1\n", "build_memory_bytes"),
        (BASE + "sample_interval_s = 0\n", "sample_interval_s"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        read_settings(write(tmp_path, text), {})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        read_settings(tmp_path / "none.toml", {})


@pytest.mark.parametrize("server", ["gpu.lab:18600", "10.0.0.1:18600", "0.0.0.0:1"])
def test_plaintext_never_leaves_the_machine(tmp_path: Path, server: str) -> None:
    text = BASE.replace("127.0.0.1:1", server)
    with pytest.raises(SettingsError, match="plaintext"):
        ChannelMaker(read_settings(write(tmp_path, text), {}))


@pytest.mark.parametrize("told", ["127.0.0.1:2", "10.0.0.1:18600"])
async def test_who_has_no_certificate_dials_what_the_settings_name_and_nothing_else(
    tmp_path: Path, told: str
) -> None:
    """What it is told of are listeners for certificates, also those on its own machine."""
    maker = ChannelMaker(read_settings(write(tmp_path, BASE), {}))
    await maker("127.0.0.1:1").close()  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match="for certificates"):
        maker(told)
