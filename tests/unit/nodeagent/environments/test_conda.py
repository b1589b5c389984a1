"""Environments of conda packages, built in the real sandbox; `tests/support/micromamba.py` takes the place of micromamba."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from nodeagent.config import Settings
from nodeagent.environments.conda import Unusable, are_channels, find_conda
from nodeagent.environments.downloads import Downloads
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.virtualenvs import Environments, lock_of, python_version_of
from nodeagent.runtimes.interface import Isolation
from nodeagent.wiring import _conda
from nsml.packages.locks import read_lock
from nsml.packages.requirements import CondaPackages, Requirements
from tests.support.micromamba import make_micromamba, make_package, make_python
from tests.support.sandboxes import isolation_here, sandbox_here
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.skipif(
    isolation_here().level is not Isolation.NAMESPACE,
    reason="builds have no root of their own on this machine",
)
GREETING = {
    "site-packages/greeting.py": b"TEXT = 'hello'\n",
    "site-packages/greeting-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
}
SECRET = "https://kim:hunter2@index.example/simple"
SPIES = b'env >"$PREFIX/seen"; echo "says $PKG_NAME"; ls "$PREFIX/../.." >>"$PREFIX/seen"\n'


@pytest.fixture(scope="module")
def micromamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_micromamba(tmp_path_factory.mktemp("bin") / "micromamba")


@pytest.fixture
def channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A channel, and a host whose pip has no index but a folder."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    place = tmp_path / "channel"
    make_python(place)
    make_package(place, "greeting", files=GREETING, depends=["python"])
    return place


Provide = Callable[..., tuple[Path, str]]


@pytest.fixture
def provide(tmp_path: Path, channel: Path, micromamba: Path) -> Provide:
    """Makes an environment; its folder, and what the build said."""
    channels = {
        "conda-forge": channel.as_uri(),
        "gone": (tmp_path / "gone").as_uri(),
        "away": "https://127.0.0.1:9/away",
    }
    conda = find_conda(str(micromamba), channels)
    environments = Environments(
        tmp_path / "environments", sandbox_here(), Downloads(tmp_path / "downloads"), conda=conda
    )

    def made(
        *specs: str,
        pip: tuple[str, ...] = (),
        channels: tuple[str, ...] = ("conda-forge",),
        **more: Any,
    ) -> tuple[Path, str]:
        said = bytearray()
        wanted = Requirements(lines=pip, conda=CondaPackages(channels=channels, specs=specs))
        folder = environments.provide(wanted, said.extend, **{"owner": "kim", **more}).folder
        return folder, said.decode()

    return made


def run(environment: Path, text: str) -> str:
    command = [str(environment / "bin" / "python"), "-c", text]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def module(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3*/site-packages/greeting.py")
    return found


def test_packages_of_conda_and_of_pip_are_installed_shared_and_locked(
    tmp_path: Path, channel: Path, provide: Provide
) -> None:
    first, _ = provide("greeting")
    assert run(first, "import greeting; print(greeting.TEXT)") == "hello"
    [package] = (first / "conda-meta").glob("python-*.json")
    assert python_version_of(first) == package.name.split("-")[1]
    make_wheel(tmp_path / "wheels", "needed", "TEXT = 'old'")
    make_wheel(tmp_path / "wheels", "greeting", "TEXT = 'of pip'")
    make_wheel(
        tmp_path / "wheels", "extra", needs="Requires-Dist: needed\nRequires-Dist: greeting\n"
    )
    second, _ = provide("python", "conda-forge::greeting", pip=("extra",))
    both = "import extra, greeting, needed; print(greeting.TEXT, needed.TEXT)"
    assert run(second, both) == "hello old", "what conda has is kept"
    shared = module(first).stat()
    assert module(second).stat().st_ino == shared.st_ino
    assert (shared.st_uid, shared.st_mode & 0o7222) == (os.geteuid(), 0)
    lock = lock_of(second)
    assert lock.startswith(
        "# platform: linux-64\n@EXPLICIT\nhttps://conda.anaconda.org/conda-forge/"
    )
    assert channel.as_uri() not in lock, "which says nothing about this node"
    assert [one.name for one in read_lock(lock)] == ["python", "greeting", "extra", "needed"]

    make_package(channel, "greeting", "2.0", GREETING, depends=["python"])
    make_wheel(tmp_path / "wheels", "needed", "TEXT = 'new'", version="2.0")
    wanted = {"pip": ("extra",), "owner": "lee"}
    fork, _ = provide("python", "conda-forge::greeting", **wanted, lock=lock)
    assert (run(fork, both), lock_of(fork)) == ("hello old", lock)
    assert module(fork).stat().st_ino != shared.st_ino, "no other user's files"


def test_names_that_are_one_on_pypi_are_locked_as_two(channel: Path, provide: Provide) -> None:
    """As conda-forge has them: the one with the dash requires the other, which has the module."""
    make_package(channel, "typing_extensions", files=GREETING, depends=["python"])
    make_package(channel, "typing-extensions", depends=["typing_extensions"])
    made, said = provide("typing-extensions")
    assert "no lock" not in said
    names = [one.name for one in read_lock(lock_of(made))]
    assert names == ["python", "typing-extensions", "typing-extensions"]
    fork, _ = provide("typing-extensions", owner="lee", lock=lock_of(made))
    assert lock_of(fork) == lock_of(made)


def test_a_lock_that_is_refused_is_told(channel: Path, provide: Provide) -> None:
    make_package(channel, f"a{'b' * 140}", depends=["python"])
    with capture_logs() as logged:
        made, said = provide(f"a{'b' * 140}")
    assert lock_of(made) == ""
    assert "nsml: note: no lock of these packages is kept: 'https://conda.anaconda" in said
    assert [one["event"] for one in logged] == ["environment.lock_refused"]


def test_scripts_of_packages_see_no_credentials_and_no_folder_of_the_agent(
    tmp_path: Path, channel: Path, provide: Provide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", SECRET)
    monkeypatch.setenv("https_proxy", "kim:hunter2/hunter2@proxy.example:3128")
    monkeypatch.setenv("AGENT_TOKEN", "hunter2")
    make_package(
        channel,
        "spy",
        files={"bin/.spy-post-link.sh": SPIES},
        depends=["python"],
        subdir="linux-64",
    )
    environment, _ = provide("spy")
    seen = (environment / "seen").read_text()
    assert "index.example" in seen
    assert "\nhttps_proxy=proxy.example:3128\n" in seen
    assert "hunter2" not in seen
    assert "downloads" not in seen.splitlines(), "what lies beside the environment"
    assert (tmp_path / "downloads").is_dir()


def test_channels_of_anaconda_are_taken_from_conda_forge(
    tmp_path: Path, channel: Path, micromamba: Path, provide: Provide
) -> None:
    url = "https://repo.anaconda.com/pkgs/main"
    made, _ = provide(f"{url}::greeting", "pkgs/r::python", channels=("defaults", "pkgs/main"))
    lock = lock_of(made)
    assert {one.channel for one in read_lock(lock)} == {"conda-forge"}
    assert lock_of(provide("greeting", channels=("defaults",), lock=lock)[0]) == lock
    with pytest.raises(EnvironmentFailed, match="channel bioconda is not allowed"):
        provide("greeting", channels=("defaults", "bioconda"))
    place = {"conda-forge": channel.as_uri(), "main": f"{url}/"}
    licensed = find_conda(str(micromamba), place)
    assert licensed is not None
    wanted = CondaPackages(channels=("main", "defaults", url), specs=(f"{url}::x", "r::y", "z"))
    found = licensed.replaced(wanted)
    assert found.channels == ("main", "conda-forge", url), "a channel that the node has is used"
    assert found.specs == (f"{url}::x", "conda-forge::y", "z")
    assert list(licensed.places(found)) == ["main", "conda-forge"]


@pytest.mark.parametrize(
    ("specs", "more", "why"),
    [
        (
            ("absent",),
            {},
            "Could not solve for environment specs No candidates were found for absent",
        ),
        pytest.param(
            ("greeting==9",), {}, "Could not solve for environment specs", marks=pytest.mark.variant
        ),
        (
            ("x",),
            {"channels": ("bioconda",)},
            "channel bioconda is not allowed on this node, which allows conda-forge, gone, away: take its packages",
        ),
        (("bioconda::x",), {}, "channel bioconda is not allowed"),
        (
            ("x",),
            {"channels": ("gone",)},
            "this node has no folder .*gone, which is to have channel gone",
        ),
        (
            ("x",),
            {"channels": ("away",)},
            "micromamba, which installs the packages, ended with exit code 1 without an error message .its last",
        ),
        (("x",), {"channels": ("https://evil.example/c",)}, "is not allowed on this node"),
        (("greeting",), {"pip": ("absent",)}, "absent was not found"),
        (("alone",), {}, "no package has Python: add python"),
    ],
)
def test_what_cannot_be_built_says_why(
    channel: Path, provide: Provide, specs: tuple[str, ...], more: dict[str, Any], why: str
) -> None:
    make_package(channel, "alone", files={"bin/alone": b""}, subdir="linux-64")
    with pytest.raises(EnvironmentFailed, match=why):
        provide(*specs, **more)


def test_a_lock_is_held_to_its_hashes_and_to_the_channels_of_the_code(
    channel: Path, provide: Provide
) -> None:
    lock = lock_of(provide("greeting")[0])
    other = make_package(channel, "greeting", files={**GREETING, "x": b"evil"}, depends=["python"])
    assert other.exists()
    for wrong, why in {
        lock: "does not have the SHA-256",
        lock.replace(
            "/conda-forge/", "/evil/"
        ): "the lock names channel evil, and the code does not",
        lock.replace("@EXPLICIT", "x"): "its second line is not",
        "greeting==1.0 --hash=sha256:" + "0" * 64 + "\n": "it is of conda and the code is not",
    }.items():
        with pytest.raises(EnvironmentFailed, match=why):
            provide("greeting", lock=wrong, owner="lee")


def test_without_micromamba_it_is_refused_in_words(tmp_path: Path) -> None:
    environments = Environments(
        tmp_path / "environments", sandbox_here(), Downloads(tmp_path / "downloads")
    )
    assert not environments.builds_conda
    wanted = Requirements(conda=CondaPackages(channels=("conda-forge",), specs=("x",)))
    for lock in ("", "greeting==1.0 --hash=sha256:" + "0" * 64 + "\n"):
        with pytest.raises(EnvironmentFailed, match="this node has no micromamba, which environ"):
            environments.provide(wanted, lambda _: None, owner="kim", lock=lock)


def test_which_micromamba_is_used(
    tmp_path: Path, micromamba: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_conda("", {}) is None
    monkeypatch.setenv("PATH", str(micromamba.parent))
    found = find_conda("", {})
    assert found is not None
    assert found.program == micromamba


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 2.1.1", "is of version '2.1.1': 2.2 or newer is needed"),
        ("exit 3", "--version ended with exit code 3"),
        ("kill -9 $$", "--version was killed by signal 9"),
        ("", "is of version ''"),
        ("printf '\\377\\000 2.2'", "is of version"),
        ("sleep 1000 & sleep 1000", "--version does not end: it was killed"),
        ("exec >&-; sleep 1000", "--version does not end: it was killed"),
        ("exec yes", "--version does not end: it was killed"),
        ("#", "does not run"),
    ],
)
def test_a_node_whose_micromamba_does_not_work_is_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    if "sleep" in script:  # others end by themselves, also on a slow machine
        monkeypatch.setattr("nodeagent.environments.conda._ANSWERS_WITHIN_S", 0.5)
    program = tmp_path / "micromamba"
    program.write_text(f"#!/bin/sh\n{script}\n" if script != "#" else "#!/absent\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(Unusable, match=why):
        find_conda("", {})
    for setting in (program, None):
        settings = Settings(node="n", server="unix:/x", data=tmp_path, micromamba=setting)
        with capture_logs() as logs:
            assert _conda(settings, Isolation.NAMESPACE) is None
        [line] = logs
        assert (line["event"], why in line["reason"]) == ("conda.unusable", True)


@pytest.mark.parametrize(
    ("name", "place", "is_one"),
    [
        ("conda-forge", "https://mirror.lab/conda-forge", True),
        ("lab/label/main", "file:///srv/conda", True),
        ("conda-forge", "http://mirror.lab/conda-forge", False),
        ("conda-forge", "https://kim:pw@mirror.lab/c", False),
        ("a/../b", "https://mirror.lab/c", False),
        ("-c", "https://mirror.lab/c", False),
        ("c", "file://host/c", False),
    ],
)
def test_channels_of_the_setting(name: str, place: str, is_one: bool) -> None:
    assert are_channels({name: place}) is is_one
