"""`nsml env ls` and `rm`: environments of nodes."""

import json

import pytest

from nsml.v1 import nodes_pb2, resources_pb2
from tests.unit.nsml.client.contract_server import EPOCH

KEY, OTHER = "3f9a0c51d2e4" + "0" * 20, "3f77" + "1" * 28


def made(key, **facts):
    one = resources_pb2.NodeEnvironment(key=key, package_count=7, bytes=3 << 30, **facts)
    one.built_at.seconds = one.used_at.seconds = EPOCH - 3600
    return one


@pytest.fixture
def on_nodes(state):
    for name in ("gpu-1", "gpu-2"):
        state.nodes.append(nodes_pb2.Node(name=name, state=nodes_pb2.NODE_STATE_READY))
        state.environments[name] = [made(KEY, owner="kim"), made(f"{KEY}.2", for_all=True)]
    state.environments["gpu-2"].append(made(OTHER, owner="kim", sessions=["kim/mnist/1"]))
    return state.environments


def test_they_are_listed_with_what_they_take_and_who_uses_them(nsml, on_nodes):
    lines = nsml("env", "ls", "gpu-2").stdout.splitlines()
    assert lines[0].split() == [
        *("Environment", "Node", "For", "Packages", "Size", "Shared", "Built", "Used", "by")
    ]
    assert [line.split()[:4] for line in lines[-3:]] == [
        ["3f9a0c51d2e4", "gpu-2", "kim", "7"],
        ["3f9a0c51d2e4.2", "gpu-2", "all", "7"],
        ["3f7711111111", "gpu-2", "kim", "7"],
    ]
    assert "kim/mnist/1" in lines[-1]
    items = json.loads(nsml("env", "ls", "-j").stdout)["items"]
    assert [(one["node"], one["key"]) for one in items[:2]] == [
        ("gpu-1", KEY),
        ("gpu-1", f"{KEY}.2"),
    ]
    assert items[0]["bytes"] == 3 << 30


def test_one_goes_from_all_nodes_or_from_those_that_are_named(nsml, on_nodes):
    nsml("env", "rm", "3f9a", "--node", "gpu-1", "-y")
    assert [one.key for one in on_nodes["gpu-1"]] == [f"{KEY}.2"]
    assert nsml("env", "rm", f"{KEY[:12]}.2", check=False).code == 2  # it asks first
    told = nsml("env", "rm", f"{KEY[:12]}.2", "-y").stdout.splitlines()
    assert [line.split()[:2] for line in told[-2:]] == [["gpu-1", "removed"], ["gpu-2", "removed"]]
    assert [one.key for one in on_nodes["gpu-2"]] == [KEY, OTHER]


def test_what_is_used_or_ambiguous_or_not_there_stays(nsml, on_nodes):
    used = nsml("env", "rm", OTHER, "-y", check=False)
    assert (used.code, len(on_nodes["gpu-2"])) == (1, 3)
    assert used.stdout.splitlines()[-1].split()[:2] == ["gpu-2", "kept"]
    assert nsml("env", "rm", "3f", "-y", check=False).code == 2
    for word in ("", "ffff", f"{KEY}.3", "*"):
        assert nsml("env", "rm", word, "-y", check=False).code == 5, word


@pytest.fixture
def two_nodes(state):
    for name in ("gpu-1", "gpu-2"):
        state.nodes.append(nodes_pb2.Node(name=name, state=nodes_pb2.NODE_STATE_READY))
    return state


def test_nodes_build_from_the_files_that_list_packages_and_get_no_others(nsml, two_nodes, project):
    (project / "requirements.txt").write_text("-r more.txt\n")
    (project / "more.txt").write_text("six\n")
    (project / "secret.txt").write_text("mine")
    built = nsml("env", "build", "--all-nodes")
    assert dict(two_nodes.environment_files["gpu-2"].texts) == {
        "requirements.txt": "-r more.txt\n",
        "more.txt": "six\n",
    }
    said = built.stderr.splitlines()
    assert said[:2] == [
        "environment: from requirements.txt (1 package)",
        "building on nodes gpu-1, gpu-2",
    ]
    assert sorted(said[2:]) == sorted(
        line
        for name in ("gpu-1", "gpu-2")
        for line in (
            f"{name}: Installing 1 requirement",
            f"{name}: environment 3f9a0c51d2e4 is built (1 package)",
        )
    )
    rows = [line.split() for line in built.stdout.splitlines()[-2:]]
    assert rows == [[name, "built", "3f9a0c51d2e4", "-"] for name in ("gpu-1", "gpu-2")]
    (project / "main.py").write_text("# /// script\n# dependencies = ['six']\n# ///\n")
    nsml("env", "build", str(project), "--node", "gpu-1", "--refresh")
    assert "main.py" in two_nodes.environment_files["gpu-1"].texts
    assert two_nodes.environment_files["gpu-1"].entry == "main.py"
    assert two_nodes.environment_files["gpu-1"].refresh


def test_a_lock_is_written_and_nodes_that_differ_or_fail_are_named(
    nsml, two_nodes, project, tmp_path
):
    there = resources_pb2.EnvironmentBuild(was_there=True)
    there.lock = f"six==1.17.0 --hash=sha256:{'b' * 64}\n"
    two_nodes.environment_builds["gpu-2"] = there
    place = tmp_path / "locked.txt"
    told = nsml("env", "build", "--all-nodes", "--lock", str(place))
    assert place.read_text() == f"six==1.16.0 --hash=sha256:{'a' * 64}\n"
    assert "gpu-2 has other packages than gpu-1: six 1.17.0 (1.16.0)" in told.stderr
    assert "gpu-2: environment 3f9a0c51d2e4 was there (1 package)" in told.stderr
    printed = nsml("env", "build", "--node", "gpu-2", "--lock", "-").stdout
    assert printed == there.lock
    for_programs = json.loads(nsml("env", "build", "--node", "gpu-2", "--lock", "-", "-j").stdout)
    assert [one["lock"] for one in for_programs["items"]] == [there.lock]
    there.state = resources_pb2.ENVIRONMENT_BUILD_STATE_FAILED
    there.words = "six has no wheel\x1b[2J"
    failed = nsml("env", "build", "--all-nodes", check=False)
    assert failed.code == 9
    assert "gpu-2: failed: six has no wheel" in failed.stderr
    assert "\x1b" not in failed.stderr + failed.stdout
    assert nsml("env", "build", "--node", "gpu-2", check=False).code == 1


def test_a_lock_of_conda_is_written_as_conda_reads_it(nsml, two_nodes, project, tmp_path):
    channel = "https://conda.anaconda.org/conda-forge"
    lock = (
        f"# platform: linux-64\n@EXPLICIT\n{channel}/linux-64/python-3.12.1-0.conda#sha256:{'a' * 64}\n"
        f"{channel}/noarch/six-1.16.0-0.tar.bz2#sha256:{'b' * 64}\n# pip a==1 --hash=sha256:{'c' * 64}\n"
    )
    two_nodes.environment_builds["gpu-1"] = resources_pb2.EnvironmentBuild(lock=lock)
    place = tmp_path / "explicit.txt"
    told = nsml("env", "build", "--node", "gpu-1", "--lock", str(place)).stderr
    assert place.read_text() == lock
    assert "environment 3f9a0c51d2e4 is built (3 packages)" in told
    assert nsml("env", "build", "--node", "gpu-1", "--lock", "-").stdout == lock
    found = json.loads(nsml("env", "build", "--node", "gpu-1", "-j").stdout)["items"][0]
    assert (found["lock"], found["package_count"]) == (lock, 3)
    two_nodes.environment_builds["gpu-1"].lock = f"{lock}-c evil\x1b[2J\n"
    refused = nsml("env", "build", "--node", "gpu-1", "--lock", str(place), check=False)
    assert (refused.code, "a lock cannot be read" in refused.stderr) == (1, True)
    assert place.read_text() == lock


def test_what_no_node_could_build_is_not_sent(nsml, two_nodes, project):
    named = nsml("env", "build", check=False)
    assert (named.code, "--all-nodes" in named.stderr) == (2, True)
    (project / "requirements.txt").write_text("-e .\n")
    assert nsml("env", "build", "--all-nodes", check=False).code == 2
    (project / "requirements.txt").write_text("six\n" * 800_000)
    assert nsml("env", "build", "--all-nodes", check=False).code == 2
    assert not two_nodes.environment_files
    (project / "requirements.txt").unlink()
    assert nsml("env", "build", "nowhere", "--node", "gpu-1", check=False).code == 2
    dry = nsml("env", "build", "--node", "gpu-1", "--dry-run")
    assert (dry.stdout, two_nodes.environment_files) == ("gpu-1\n", {})


def test_files_with_packages_that_no_node_reads_are_named(nsml, two_nodes, project):
    text = "dependencies:\n  - python=3.11\n  - numpy=1.26\n"
    (project / "conda.yml").write_text(text)
    built = nsml("env", "build", "--node", "gpu-1")
    assert "warning: conda.yml is not read, and there is no requirements.txt" in built.stderr
    assert "  try: printf '%s\\n' numpy >> requirements.txt\n" in built.stderr
    assert dict(two_nodes.environment_files["gpu-1"].texts) == {}
    (project / "conda.yml").rename(project / "environment.yml")
    built = nsml("env", "build", "--node", "gpu-2")
    assert "environment: from environment.yml (2 packages)\n" in built.stderr
    assert dict(two_nodes.environment_files["gpu-2"].texts) == {"environment.yml": text}


def test_nodes_build_a_dockerfile_from_the_files_that_a_session_would_have(
    nsml, two_nodes, project
):
    (project / "Dockerfile").write_text("ARG A\nFROM python:3.12\nCOPY . /app\n")
    (project / "tool.sh").write_bytes(b"\xff")
    (project / "tool.sh").chmod(0o755)
    (project / ".nsmlignore").write_text("*.log\n")
    (project / "out.log").write_text("mine")
    words = ["image", "build", str(project), "--build-arg", "A=b", "--node", "gpu-*"]
    built = nsml(*words, "--refresh")
    assert not two_nodes.sessions
    assert [line.split()[:2] for line in built.stdout.splitlines()[-2:]] == [
        ["gpu-1", "built"],
        ["gpu-2", "built"],
    ]
    files = two_nodes.environment_files["gpu-2"]
    assert (files.dockerfile, dict(files.build_arguments), files.refresh) == (
        "Dockerfile",
        {"A": "b"},
        True,
    )
    sent = {one.path: (one.content, one.executable) for one in files.context}
    assert sent["tool.sh"] == (b"\xff", True)
    assert sent["Dockerfile"][1] is False
    assert "out.log" not in sent
    two_nodes.environment_files.clear()
    for wrong, says in (
        (["-f", "other"], "other is not among the files"),
        (["--pod", "a"], "--node and --pod exclude each other"),
        (["-t", "mine"], "images that nodes build have no names"),
    ):
        refused = nsml(*words, *wrong, check=False)
        assert (refused.code, says in refused.stderr) == (2, True), refused.stderr
    (project / "big.bin").write_bytes(b"x" * (4 << 20))
    assert "over 3 MiB" in nsml(*words, check=False).stderr
    assert not two_nodes.environment_files
