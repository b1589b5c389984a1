"""What a machine lacks: every judgement on facts, and the facts of this machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.access.authority import make_authority
from nodeagent.config import settings_to_be
from nodeagent.machine.doctor import CHECKS, EngineSymptoms, Finding, Grade, Symptoms, examine
from nodeagent.machine.inspection import _certificate, look
from nsml.common.clock import SystemClock
from tests.engines import SOCKET, required_image

SOUND = Symptoms(
    devices=8,
    has_nvidia_hardware=True,
    engine=EngineSymptoms(
        version="27.1", has_nvidia=True, keeps_containers=True, has_default_image=True
    ),
    default_image="nsml-base:latest",
    clock_ahead_s=0.01,
    is_clock_synchronised=True,
    server="gpu.lab:18554",
    ports=28_232,
    data="/var/lib/nsml/agent",
    filesystem="ext4",
    free_bytes=1 << 40,
    free_inodes=10_000_000,
    isolation="namespace",
    has_own_networks=True,
    is_root=True,
    cgroups=2,
    controllers=frozenset({"cpu", "memory", "pids"}),
    can_make_cgroups=True,
    etcd="3.5.9",
    python=(3, 11, 2),
    files=65_536,
    shm_bytes=64 << 30,
    inotify=8192,
)


NO_IMAGE = EngineSymptoms(version="27.1", has_nvidia=True, keeps_containers=True)
OPEN_METADATA = replace(NO_IMAGE, has_default_image=True, metadata_reason="network lan")


def worst(symptoms: Symptoms, check: str) -> Finding:
    order = list(Grade)
    found = [one for one in examine(symptoms) if one.check == check]
    return max(found, key=lambda one: order.index(one.grade))


def test_a_sound_machine_has_nothing_to_do() -> None:
    findings = examine(SOUND)
    assert [one for one in findings if one.grade is not Grade.OK or one.advice] == []
    assert len(findings) >= len(CHECKS)


@pytest.mark.parametrize(
    ("facts", "check", "grade", "says"),
    [
        ({"python": (3, 10, 9)}, "python", "bad", "Python 3.11"),
        ({"has_pip": False}, "pip", "bad", "ensurepip"),
        ({"keeps_tar_in_place": False}, "python", "warn", "3.11.13"),
        ({"driver_refusal": "no NVIDIA driver"}, "driver", "bad", "nvidia-smi"),
        (
            {"driver_refusal": "no NVIDIA driver", "has_nvidia_hardware": False},
            "driver",
            "warn",
            "none is needed",
        ),
        ({"engine": None}, "engine", "warn", "install docker"),
        ({"engine": EngineSymptoms(refusal="not allowed")}, "engine", "warn", "group docker"),
        (
            {"engine": replace(NO_IMAGE, opens_io_uring=True)},
            "engine",
            "warn",
            "io_uring_disabled",
        ),
        (
            {"engine": replace(NO_IMAGE, filters_calls=False)},
            "engine",
            "bad",
            "seccomp-profile",
        ),
        (
            {"engine": EngineSymptoms(version="27", keeps_containers=True)},
            "toolkit",
            "bad",
            "nvidia-container-toolkit",
        ),
        (
            {"engine": EngineSymptoms(version="27", has_nvidia=True)},
            "engine",
            "warn",
            "live-restore",
        ),
        ({"engine": NO_IMAGE}, "image", "warn", "deploy/image/build nsml-base:latest"),
        (
            {"engine": NO_IMAGE, "default_image": "lab/x:1", "is_image_pulled": True},
            "image",
            "warn",
            "docker pull lab/x:1",
        ),
        ({"engine": NO_IMAGE, "wanted_isolation": "container"}, "image", "bad", "default_image ="),
        ({"settings_refusal": "agent.toml is not TOML"}, "settings", "bad", "put it right"),
        ({"isolation": "none", "engine": None}, "namespaces", "bad", "max_user_namespaces"),
        ({"isolation": "user"}, "namespaces", "warn", "max_user_namespaces"),
        ({"isolation": "none"}, "namespaces", "warn", "max_user_namespaces"),
        ({"has_own_networks": False, "network_reason": "no nft"}, "network", "warn", "nftables"),
        ({"has_own_networks": False, "wanted_network": "own"}, "network", "bad", "as root"),
        ({"is_metadata_open": True}, "metadata", "warn", "role"),
        ({"is_metadata_open": True, "is_root": False}, "metadata", "warn", "as root"),
        ({"engine": OPEN_METADATA}, "metadata", "warn", "role"),
        ({"cgroups": None}, "cgroups", "warn", "less strictly"),
        ({"controllers": frozenset({"cpu"})}, "cgroups", "warn", "delegate"),
        ({"can_make_cgroups": False}, "cgroups", "warn", "Delegate=yes"),
        ({"clock_ahead_s": -5.0}, "clock", "warn", "timesyncd"),
        ({"clock_ahead_s": 400.0}, "clock", "bad", "timesyncd"),
        ({"is_clock_synchronised": False}, "clock", "warn", "timesyncd"),
        ({"clock_ahead_s": None, "is_clock_synchronised": None}, "clock", "warn", "nsml login"),
        ({"server_refusal": "Connection refused"}, "ports", "bad", "firewall"),
        ({"ports": 10}, "ports", "warn", "ip_local_port_range"),
        ({"data_refusal": "cannot be written"}, "disk", "bad", "--data"),
        ({"free_bytes": 1 << 20}, "disk", "bad", "room"),
        ({"free_bytes": 5 << 30}, "disk", "warn", "room"),
        ({"free_inodes": 100}, "inodes", "bad", "filesystem"),
        ({"free_inodes": 50_000}, "inodes", "warn", "filesystem"),
        ({"filesystem": "nfs4"}, "filesystem", "bad", "disk of this machine"),
        ({"filesystem": "tmpfs"}, "filesystem", "warn", "choose a disk"),
        ({"files": 512}, "files", "bad", "LimitNOFILE"),
        ({"files": 2048}, "files", "warn", "LimitNOFILE"),
        ({"shm_bytes": None}, "shm", "bad", "/dev/shm"),
        ({"shm_bytes": 64 << 20}, "shm", "warn", "remount"),
        ({"inotify": 128}, "inotify", "warn", "max_user_instances"),
        ({"inotify": 128, "engine": None, "is_root": False}, "inotify", "warn", "sysctl"),
        ({"etcd": "3.5.2"}, "etcd", "warn", "embedded"),
        ({"etcd": "unknown"}, "etcd", "warn", "embedded"),
    ],
)
def test_each_lack_is_graded_and_comes_with_what_to_do(
    facts: dict[str, Any], check: str, grade: str, says: str
) -> None:
    found = worst(replace(SOUND, **facts), check)
    assert (found.grade.value, says in found.advice) == (grade, True), found


def test_a_clock_is_wrong_only_as_far_as_that_is_sure() -> None:
    slow_answer = replace(SOUND, clock_ahead_s=3.0, clock_error_s=2.5)
    assert worst(slow_answer, "clock").grade is Grade.OK


def test_a_machine_without_etcd_is_not_told_of_it() -> None:
    assert not [one for one in examine(replace(SOUND, etcd=None)) if one.check == "etcd"]


@pytest.mark.parametrize(
    "facts",
    [
        {"wanted_isolation": "namespace"},
        {"engine": EngineSymptoms(refusal="not allowed")},
        {"engine": None},
    ],
)
def test_no_image_is_asked_for_where_there_are_no_containers(facts: dict[str, Any]) -> None:
    found = examine(replace(SOUND, **{"engine": NO_IMAGE, **facts}))
    assert not [one for one in found if one.check == "image"]


def test_sessions_with_instances_of_their_own_need_no_more() -> None:
    sessions = replace(SOUND, inotify=128, engine=None, isolation="namespace")
    assert worst(sessions, "inotify").grade is Grade.OK


def test_a_site_may_have_no_default_image() -> None:
    assert worst(replace(SOUND, engine=NO_IMAGE, default_image=""), "image").grade is Grade.OK


def test_settings_are_those_of_the_agent_even_before_there_is_one(tmp_path: Path) -> None:
    before = settings_to_be(tmp_path / "agent.toml", {})
    assert (before.default_image, before.isolation) == ("nsml-base:latest", "auto")
    (tmp_path / "agent.site.toml").write_text('default_image = "lab/x:1"\n')
    assert settings_to_be(tmp_path / "agent.toml", {}).default_image == "lab/x:1"
    (tmp_path / "agent.toml").write_text('node = "n"\nserver = "s"\ndata = "agent"\n')
    after = settings_to_be(tmp_path / "agent.toml", {})
    assert (after.node, after.default_image) == ("n", "lab/x:1")


def test_this_machine_is_looked_over(tmp_path: Path) -> None:
    """Without a data folder, an engine or a control plane; nothing is left behind."""
    nowhere = tmp_path / "not" / "there"
    settings = settings_to_be(nowhere / "agent.toml", {})
    facts = look(nowhere, "127.0.0.1:1", tmp_path / "none.sock", settings, ahead_s=None, error_s=0)
    assert facts.isolation in {"namespace", "user", "none"}
    assert (facts.engine, facts.data_refusal) == (None, "")
    assert facts.server_refusal
    assert facts.free_bytes > 0
    assert facts.filesystem
    assert facts.python >= (3, 11, 0)
    assert examine(facts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("suffix", "is_there"), [("", True), ("-that-is-not-there", False)])
def test_the_engine_is_asked_for_the_default_image(
    tmp_path: Path, suffix: str, is_there: bool
) -> None:
    image = f"{required_image()}{suffix}"
    settings = settings_to_be(tmp_path / "agent.toml", {"NSML_AGENT_DEFAULT_IMAGE": image})
    facts = look(tmp_path, "", SOCKET, settings, ahead_s=None, error_s=0)
    assert facts.engine is not None
    assert facts.engine.has_default_image is is_there
    assert worst(facts, "image").grade is (Grade.OK if is_there else Grade.WARN)


@pytest.mark.parametrize(
    ("left_s", "grade", "found"),
    [
        (60 * 86_400.0, Grade.OK, "ends in 60d"),
        (13 * 86_400.0, Grade.WARN, "ends in 13d"),
        (-3 * 86_400.0, Grade.BAD, "ended 3d ago: no control plane talks to it"),
    ],
)
def test_a_certificate_is_judged_by_what_is_left(left_s: float, grade: Grade, found: str) -> None:
    [finding] = [
        one
        for one in examine(replace(SOUND, certificate_left_s=left_s))
        if one.check == "certificate"
    ]
    assert (finding.grade, finding.found) == (grade, found)


def test_a_certificate_that_the_platform_refuses_is_not_sound() -> None:
    void = replace(SOUND, certificate_left_s=9e6, certificate_void="the node was removed")
    [finding] = [one for one in examine(void) if one.check == "certificate"]
    assert finding.grade is Grade.BAD
    assert finding.found == "the platform refuses it: the node was removed"
    assert "nsml join" in finding.advice


def test_the_certificate_of_this_node_is_read(tmp_path: Path) -> None:
    file = tmp_path / "node.pem"
    file.write_bytes(make_authority(SystemClock()).issue_server(["a"]).chain)
    environment = {"NSML_AGENT_CERTIFICATE_FILE": str(file), "NSML_AGENT_KEY_FILE": str(file)}
    settings = settings_to_be(tmp_path / "agent.toml", environment)
    assert 89 * 86_400 < _certificate(settings)["certificate_left_s"] < 91 * 86_400
    file.write_text("damaged")
    assert str(file) in _certificate(settings)["certificate_refusal"]
