"""The whole configuration of a container: what is not here, a session does not get."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.engine.client import EngineRefused
from nodeagent.engine.images import MOST_CONFIGURATION_BYTES, StoredImage
from nodeagent.folders import ReplicaFolder, ReplicaId
from nodeagent.network.gang_network import GangNetwork
from nodeagent.runtimes.account_names import with_session
from nodeagent.runtimes.container import (
    FIRST_PROGRAM,
    ContainerPlace,
    container_config,
    container_name,
    late_variables,
)
from nodeagent.runtimes.interface import DeviceGrant, Isolation, Mount, ReplicaSpec

REPLICA = ReplicaId(session_id="s" + "a" * 16, attempt=2, rank=1)
FOLDER = ReplicaFolder(Path("/agent/replicas") / str(REPLICA))
PLACE = ContainerPlace(
    node="alpha", mark="k3jw2x7q", user="1000:1000", open_files=(1024, 524288), network="none"
)
SPEC = ReplicaSpec(
    replica_id=REPLICA,
    argv=["python", "-u", "main.py", "--name", "a b; rm -rf /"],
    env={"NSML_SESSION_NAME": "kim/digits/7", "PYTHONPATH": "/app/lib"},
    mounts=[Mount(source=Path("/agent/datasets/abc"), target="/data/digits")],
    devices=[
        DeviceGrant(uuid="GPU-1", minor=0),
        DeviceGrant(uuid="GPU-2", minor=1),
        DeviceGrant(uuid="SIM-1", simulated=True),
    ],
    isolation=Isolation.CONTAINER,
    memory_bytes=8 << 30,
    shm_bytes=2 << 30,
    cpus=1.5,
    process_count=500,
    sdk_folder=Path("/agent/sdk/1"),
    image="example/torch:2",
)


def bind(source: str, target: str, *, is_read_only: bool) -> dict[str, object]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": is_read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def test_the_whole_configuration() -> None:
    found = container_config(
        SPEC,
        FOLDER,
        PLACE,
        image=StoredImage(
            id="sha256:1234",
            environment={
                "PATH": "/opt/conda/bin:/usr/bin",
                "PYTHONPATH": "/image/lib",
                "NVIDIA_VISIBLE_DEVICES": "all",
            },
        ),
    )
    assert found == {
        "Hostname": "saaaaaaaaaaa-1",
        "User": "1000:1000",
        "Image": "sha256:1234",
        "Entrypoint": ["/bin/sh", "-c", FIRST_PROGRAM, "sh"],
        "Cmd": ["python", "-u", "main.py", "--name", "a b; rm -rf /"],
        "WorkingDir": "/app",
        "Env": [
            "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2,SIM-1",
            "HOME=/tmp",
            "LOGNAME=nsml",
            "NSML_ATTEMPT=2",
            "NSML_DATASET_PATH=/data/digits",
            "NSML_GPU_SHARE=1",
            "NSML_HOSTFILE=/nsml/hostfile",
            "NSML_ISOLATION=container",
            "NSML_RANK=1",
            f"NSML_REPLICA={REPLICA}",
            "NSML_RUN_DIR=/nsml",
            f"NSML_SESSION_ID={REPLICA.session_id}",
            "NSML_SESSION_NAME=kim/digits/7",
            "NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2",
            "PATH=/opt/conda/bin:/usr/bin:/tmp/.local/bin",
            "PIP_BREAK_SYSTEM_PACKAGES=1",
            "PYTHONPATH=/sdk:/app/lib",
            "PYTHONUNBUFFERED=1",
            "TINI_KILL_PROCESS_GROUP=1",
            "TMPDIR=/tmp",
            "USER=nsml",
        ],
        "Labels": {
            "nsml.build": "",
            "nsml.agent": "k3jw2x7q",
            "nsml.node": "alpha",
            "nsml.replica": str(REPLICA),
        },
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "OpenStdin": False,
        "Tty": False,
        "HostConfig": {
            "Init": True,
            "AutoRemove": False,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "none", "Config": {}},
            "Privileged": False,
            "CapAdd": [],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "GroupAdd": [],
            "ReadonlyRootfs": True,
            "NetworkMode": "none",
            "IpcMode": "private",
            "PidMode": "",
            "UTSMode": "",
            "CgroupnsMode": "private",
            "PublishAllPorts": False,
            "Devices": [],
            "DeviceRequests": [
                {"Driver": "nvidia", "DeviceIDs": ["GPU-1", "GPU-2"], "Capabilities": [["gpu"]]}
            ],
            "Mounts": [
                bind(f"{FOLDER.path}/app", "/app", is_read_only=False),
                bind(f"{FOLDER.path}/run", "/nsml", is_read_only=False),
                bind(f"{FOLDER.path}/tmp", "/tmp", is_read_only=False),
                bind(f"{FOLDER.path}/tmp", "/var/tmp", is_read_only=False),
                bind(f"{FOLDER.path}/output", "/.nsml/output", is_read_only=False),
                bind("/agent/sdk/1", "/sdk", is_read_only=True),
                bind("/agent/datasets/abc", "/data/digits", is_read_only=True),
            ],
            "ShmSize": 2 << 30,
            "Memory": 8 << 30,
            "MemorySwap": 8 << 30,
            "CpuPeriod": 100_000,
            "CpuQuota": 150_000,
            "PidsLimit": 502,
            "OomScoreAdj": 500,
            "OomKillDisable": False,
            "Ulimits": [
                {"Name": "nofile", "Soft": 1024, "Hard": 524288},
                {"Name": "core", "Soft": 1, "Hard": 1},
            ],
        },
    }


@pytest.fixture
def begins(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Runs the first program with these programs in the image: its code, output, what it said."""
    places = {"/.nsml/output": tmp_path / "output", "/nsml": tmp_path / "run"}
    script = re.sub("/\\.nsml/output|/nsml", lambda found: str(places[found[0]]), FIRST_PROGRAM)
    (tmp_path / "image").mkdir()
    (tmp_path / "run").mkdir()

    def begin(*argv: str, image: Sequence[str]) -> tuple[int, str, str]:
        for name in image:
            program = tmp_path / "image" / name
            program.write_text(f'#!/bin/sh\necho {name}; for one; do echo "[$one]"; done; exit 5\n')
            program.chmod(0o755)
        os.mkfifo(tmp_path / "run" / ".gate")
        opener = threading.Thread(
            target=lambda: (tmp_path / "run" / ".gate").write_text("nsml_given=all\n")
        )
        opener.start()
        done = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *argv],
            env={"PATH": str(tmp_path / "image")},
            check=False,
        )
        opener.join()
        output = tmp_path / "output"
        said = (tmp_path / "run" / ".said").read_text().strip()
        return done.returncode, output.read_text() if output.exists() else "", said

    return begin


def test_python_is_python3_where_an_image_has_only_that(
    begins: Callable[..., tuple[int, str, str]],
) -> None:
    ended = begins("python", "-u", "a b.py", "*", image=["python3"])
    assert ended == (5, "python3\n[-u]\n[a b.py]\n[*]\n", "begun")


def test_python_is_the_images_own_where_it_has_one(
    begins: Callable[..., tuple[int, str, str]],
) -> None:
    ended = begins("python", "x", image=["python", "python3"])
    assert ended == (5, "python\n[x]\n", "begun")


@pytest.mark.parametrize("name", ["python", "python2", "train"])
def test_what_an_image_does_not_have_is_said_with_what_to_do(
    begins: Callable[..., tuple[int, str, str]], name: str
) -> None:
    image = ["python3"] if name == "python2" else []
    code, output, said = begins(name, image=image)
    assert (code, output) == (127, "")
    assert said.startswith(f"cannot start '{name}': the image has no such program: name an image")
    assert said.endswith("(--image), or its Debian package in nsml_package.txt")


@pytest.mark.parametrize("first", ["#!/nowhere/bash", "#! /nowhere/bash -e"])
def test_an_interpreter_that_the_image_does_not_have_is_named(
    begins: Callable[..., tuple[int, str, str]], tmp_path: Path, first: str
) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"{first}\necho never\n")
    script.chmod(0o755)
    said = f"cannot start '{script}': its first line names the interpreter '/nowhere/bash', which the image does not have"
    assert begins(str(script), image=[]) == (127, "", said)


@pytest.mark.parametrize("first", ["#!/bin/sh -e\n", "#! /bin/sh\n", ""])
def test_a_script_of_the_folder_is_started(
    begins: Callable[..., tuple[int, str, str]], tmp_path: Path, first: str
) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f'{first}echo "$1${{nsml_line-}}"\n')
    script.chmod(0o755)
    assert begins(str(script), "x y", image=[]) == (0, "x y\n", "begun")


def test_no_device_is_given_that_is_not_granted() -> None:
    bare = ReplicaSpec(replica_id=REPLICA, argv=["true"], isolation=Isolation.CONTAINER)
    found = container_config(
        bare,
        FOLDER,
        PLACE,
        image=StoredImage(id="i", environment={"NVIDIA_VISIBLE_DEVICES": "all"}),
    )
    assert found["HostConfig"]["DeviceRequests"] == []
    assert "NVIDIA_VISIBLE_DEVICES=void" in found["Env"]
    assert found["HostConfig"]["PidsLimit"] == 0, "who orders it sets the limits"


@pytest.mark.parametrize("by", ["image", "session"])
def test_no_variable_has_nvidias_runtime_give_further_devices(by: str) -> None:
    """InfiniBand adapters, disks, switches: the program has its variables, the engine's programs do not."""
    asked = {"NVIDIA_MOFED": "enabled", "NVIDIA_GDS": "enabled", "NVIDIA_IMEX_CHANNELS": "0,1"}
    kept = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    spec = replace(SPEC, env={**asked, **kept} if by == "session" else {})
    image = StoredImage(id="i", environment={**asked, **kept} if by == "image" else {})
    found = container_config(spec, FOLDER, PLACE, image=image)["Env"]
    assert {f"{name}=" for name in asked} <= set(found)
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in found
    assert asked.items() <= late_variables(spec, FOLDER, image)[0].items()


def test_a_session_with_a_user_of_its_own_runs_as_that() -> None:
    spec = replace(SPEC, uid=70001, gid=70001, groups=[70002])
    found = container_config(spec, FOLDER, PLACE, image=StoredImage(id="i"))
    assert found["User"] == "70001:70001"
    assert found["HostConfig"]["GroupAdd"] == ["70002"]


def test_two_agents_on_one_engine_do_not_share_a_name() -> None:
    assert container_name(REPLICA, "one") != container_name(REPLICA, "two")


def made(spec: ReplicaSpec) -> dict[str, Any]:
    return container_config(spec, FOLDER, PLACE, image=StoredImage(id="i"))


def test_a_gang_gets_the_network_that_the_administrator_allows_and_nothing_else() -> None:
    allowed = GangNetwork(mode="host", devices=("/dev/infiniband",), unlimited_memlock=True)
    alone, gang = made(SPEC), made(replace(SPEC, gang=allowed))
    infiniband = {
        "PathOnHost": "/dev/infiniband",
        "PathInContainer": "/dev/infiniband",
        "CgroupPermissions": "rw",
    }
    before, after = alone.pop("HostConfig"), gang.pop("HostConfig")
    assert gang == alone
    assert after.pop("Ulimits") == [
        *before.pop("Ulimits"),
        {"Name": "memlock", "Soft": -1, "Hard": -1},
    ]
    assert after == {**before, "NetworkMode": "host", "Devices": [infiniband]}


def test_a_session_without_a_network_is_in_none_of_the_engine() -> None:
    connected = replace(PLACE, network="nsml")
    found = [
        container_config(one, FOLDER, connected, image=StoredImage(id="i"))
        for one in (SPEC, replace(SPEC, without_network=True))
    ]
    assert [one["HostConfig"]["NetworkMode"] for one in found] == ["nsml", "none"]


def test_a_gang_in_an_overlay_is_found_by_the_names_that_its_members_are_told() -> None:
    overlay = GangNetwork(mode="overlay:train-7")
    found = made(replace(SPEC, gang=overlay))
    assert found["HostConfig"]["NetworkMode"] == "train-7"
    endpoints = found["NetworkingConfig"]["EndpointsConfig"]
    told = overlay.hosts(REPLICA, ["10.0.0.1", "10.0.0.2"])
    assert endpoints == {"train-7": {"Aliases": [told[REPLICA.rank]]}}
    assert GangNetwork().hosts(REPLICA, ["10.0.0.1"]) == ["10.0.0.1"]


def mounted(image: StoredImage, spec: ReplicaSpec = SPEC) -> dict[str, str]:
    """Where the container's mounts lead to, by their targets."""
    found = container_config(spec, FOLDER, PLACE, image=image)["HostConfig"]["Mounts"]
    assert {one["Type"] for one in found} == {"bind"}, (
        "an engine's own volumes are counted by nobody"
    )
    targets = [one["Target"] for one in found]
    assert len(targets) == len(set(targets))
    return {one["Target"]: one["Source"] for one in found}


def test_each_volume_of_an_image_is_a_folder_that_counts_as_the_replicas() -> None:
    image = StoredImage(
        id="i",
        volumes=["/cache", "/cache/", "//var/lib//mysql/", "/data", "/app", "/tmp/", "/a/./b"],
    )
    found = mounted(image)
    folders = {target: found[target] for target in ("/a/b", "/cache", "/data", "/var/lib/mysql")}
    assert folders == {
        target: str(FOLDER.volume(number)) for number, target in enumerate(sorted(folders))
    }
    assert found["/app"] == str(FOLDER.app)
    assert found["/tmp"] == str(FOLDER.tmp)
    assert found["/data/digits"] == "/agent/datasets/abc"
    assert set(found) == set(mounted(StoredImage(id="i"))) | set(folders)


@pytest.mark.parametrize(
    "volume",
    [
        "/",
        "//",
        "/.",
        "/usr",
        "/etc/",
        "/proc",
        "/proc/sys",
        "/sys/fs",
        "/dev",
        "data",
        "",
        "/a/../usr",
    ],
)
def test_an_image_with_volumes_that_no_program_could_run_with_is_refused(volume: str) -> None:
    with pytest.raises(EngineRefused, match="the image declares"):
        mounted(StoredImage(id="i", volumes=[volume]))


def test_an_image_that_says_too_much_of_itself_is_refused() -> None:
    most = MOST_CONFIGURATION_BYTES
    mounted(StoredImage(id="i", configuration_bytes=most))
    with pytest.raises(EngineRefused, match="variables, labels and ports"):
        mounted(StoredImage(id="i", configuration_bytes=most + 1))


def test_an_image_with_very_many_volumes_is_refused() -> None:
    with pytest.raises(EngineRefused, match="declares 5000 volumes: at most 32"):
        mounted(StoredImage(id="i", volumes=[f"/v{number}" for number in range(5000)]))


def test_what_an_image_says_of_itself_is_no_word_of_the_platform() -> None:
    """Labels that other programs act on, variables that would be loaded into an engine's hooks."""
    image = StoredImage(
        id="i",
        environment={
            "LD_PRELOAD": "/proc/self/cwd/evil.so",
            "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
            "NSML_SIMULATED": "1",
            "NSML_RANK": "7",
            "PLAIN": "stays",
        },
        labels={"nsml.agent": "other", "nsml.replica": "other", "traefik.enable": "true"},
    )
    spec = replace(SPEC, env={"LD_AUDIT": "/app/mine.so", "NSML_GPU_NUM": "2"})
    found = container_config(spec, FOLDER, PLACE, image=image)
    environment = dict(line.split("=", 1) for line in found["Env"])
    loaded = {name: value for name, value in environment.items() if name.startswith("LD_")}
    assert loaded == {"LD_PRELOAD": "", "LD_LIBRARY_PATH": "", "LD_AUDIT": ""}
    assert (environment["PLAIN"], environment["NSML_RANK"]) == ("stays", "1")
    assert late_variables(spec, FOLDER, image) == (
        {
            "LD_PRELOAD": "/proc/self/cwd/evil.so",
            "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
            "LD_AUDIT": "/app/mine.so",
        },
        ["NSML_SIMULATED"],
    )
    assert found["Labels"]["traefik.enable"] == ""
    assert (found["Labels"]["nsml.agent"], found["Labels"]["nsml.replica"]) == (
        PLACE.mark,
        str(REPLICA),
    )


def test_names_of_users_are_the_images_and_the_sessions() -> None:
    spec = replace(SPEC, names={"/etc/passwd": b""})
    found = container_config(spec, FOLDER, PLACE, image=StoredImage(id="sha256:1"))
    (mount,) = [one for one in found["HostConfig"]["Mounts"] if one["Target"] == "/etc/passwd"]
    assert (mount["Source"], mount["ReadOnly"]) == (str(FOLDER.path / "passwd"), True)


@pytest.mark.parametrize(
    ("path", "content", "expected"),
    [
        ("/etc/passwd", b"root:x:0:0::/root:/bin/sh", b"root:x:0:0::/root:/bin/sh\nnsml:x:7:8::/tmp:/bin/sh\n"),
        ("/etc/passwd", b"", b"nsml:x:7:8::/tmp:/bin/sh\n"),
        ("/etc/passwd", b"kim:x:7:1::/home/kim:/bin/sh\n", b"kim:x:7:1::/home/kim:/bin/sh\nnsml:x:7:8::/tmp:/bin/sh\n"),
        ("/etc/passwd", b"\xff\nodd:x", b"\xff\nodd:x\nnsml:x:7:8::/tmp:/bin/sh\n"),
        ("/etc/group", b"root:x:0:\n", b"root:x:0:\nnsml:x:8:\n"),
        ("/etc/group", b"seven:x:7:\neight:x:8:\n", b"seven:x:7:\neight:x:8:\nnsml:x:8:\n"),
    ],
)  # fmt: skip
def test_a_sessions_ids_have_names(path: str, content: bytes, expected: bytes) -> None:
    assert with_session(path, content, 7, 8) == expected
