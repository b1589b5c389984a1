"""What a machine's pip and apt are told, read as pip and apt read it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nodeagent.environments.hostconfig import (
    AptConfiguration,
    apt_configuration,
    fetching_variables,
    local_sources,
    pip_options,
    with_options_of,
)
from nodeagent.environments.recipe import PLACE, recipe_key, write_recipe
from nsml.packages.requirements import Requirements


def home(tmp_path: Path, **files: str) -> dict[str, str]:
    """The variables of somebody whose home has these files of pip."""
    names = {"old": ".pip/pip.conf", "own": ".config/pip/pip.conf", "named": "named.conf"}
    for name, text in files.items():
        path = tmp_path / names[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "XDG_CONFIG_DIRS": str(tmp_path)}


@pytest.mark.parametrize(
    ("files", "variables", "options"),
    [
        ({"own": "[global]\ntimeout = 3\n"}, {}, {"timeout": "3"}),
        ({"old": "[global]\ntimeout=1\n", "own": "[global]\ntimeout=2\n"}, {}, {"timeout": "2"}),
        ({"own": "[install]\ntimeout = 4\n[global]\ntimeout = 2\n"}, {}, {"timeout": "4"}),
        (
            {"own": "[global]\nextra_index_url =\n    https://a/simple\n    https://b/simple\n"},
            {},
            {"extra-index-url": "https://a/simple\nhttps://b/simple"},
        ),
        ({"own": "[global]\ntimeout = 2\n"}, {"PIP_DEFAULT_TIMEOUT": "9"}, {"timeout": "9"}),
        ({"own": "[global]\ntarget = /etc\nuser = true\nprefix = /\n"}, {}, {}),
        ({"own": "[download]\nindex-url = https://a\n"}, {}, {}),
        ({}, {"PIP_NO_INDEX": "1"}, {"no-index": "1"}),
        ({"own": "[global]\ntimeout = 2\n"}, {"PIP_CONFIG_FILE": os.devnull}, {}),
    ],
)
def test_options(
    tmp_path: Path, files: dict[str, str], variables: dict[str, str], options: dict[str, str]
) -> None:
    found = pip_options({**home(tmp_path, **files), **variables})
    of_this_machine = pip_options(home(tmp_path / "nobody"))
    assert {k: v for k, v in found.items() if of_this_machine.get(k) != v} == options


def test_a_named_file_stands_above_the_others(tmp_path: Path) -> None:
    environ = home(tmp_path, own="[global]\ntimeout = 2\n", named="[global]\ntimeout = 5\n")
    assert (
        pip_options({**environ, "PIP_CONFIG_FILE": str(tmp_path / "named.conf")})["timeout"] == "5"
    )
    (tmp_path / "named.conf").unlink()
    broken = home(tmp_path, own="no section\n", old="[global]\ntimeout = 7\n")
    assert pip_options(broken)["timeout"] == "7"


def test_uv_is_told_what_pip_is_told_here(tmp_path: Path) -> None:
    authorities = tmp_path / "lab.pem"
    authorities.write_text("CERTIFICATE")
    options = {
        "index-url": "https://kim:pw@lab/simple",
        "extra-index-url": "https://a/simple\nhttps://b/simple",
        "find-links": "https://c/wheels /srv/wheels",
        "trusted-host": "a b:8080",
        "cert": str(authorities),
        "proxy": "http://proxy:3128",
        "timeout": "7.5",
        "retries": "2",
        "pre": "true",
    }
    variables, files = fetching_variables(options, {"https_proxy": "http://other"}, folder="{run}")
    assert files == {"cert.pem": b"CERTIFICATE"}
    told = {name: text for name, text in variables.items() if text != "1"}
    assert {
        "UV_DEFAULT_INDEX": "https://kim:pw@lab/simple",
        "UV_EXTRA_INDEX_URL": "https://a/simple https://b/simple",
        "UV_FIND_LINKS": "https://c/wheels,/srv/wheels",
        "UV_INSECURE_HOST": "a b:8080",
        "SSL_CERT_FILE": "{run}/cert.pem",
        "https_proxy": "http://proxy:3128",
        "UV_HTTP_TIMEOUT": "7",
        "UV_HTTP_RETRIES": "2",
        "UV_PRERELEASE": "allow",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_KEYRING_PROVIDER": "disabled",
    }.items() <= told.items()
    assert variables["UV_NO_CONFIG"] == "1"


def test_options_among_the_lines_stand_above_the_machines(tmp_path: Path) -> None:
    of_host = {"index-url": "https://a", "extra-index-url": "https://b", "timeout": "3"}
    lines = ["-i https://own", "--extra-index-url=https://c", "-f https://d", "--no-index", "--pre"]
    assert with_options_of(lines, of_host) == {
        "index-url": "https://own",
        "extra-index-url": "https://b https://c",
        "find-links": "https://d",
        "timeout": "3",
        "no-index": "1",
        "pre": "1",
    }


def test_local_sources_are_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "simple").mkdir()
    (tmp_path / "wheels").mkdir()
    options = {
        "index-url": f"file://{tmp_path}/simple",
        "extra-index-url": f"https://a/simple file://{tmp_path}/nowhere",
        "find-links": f"{tmp_path}/wheels https://b",
    }
    assert local_sources(options) == [tmp_path / "simple", tmp_path / "wheels"]


def apt_root(tmp_path: Path) -> Path:
    apt = tmp_path / "etc" / "apt"
    (apt / "sources.list.d").mkdir(parents=True)
    (apt / "apt.conf.d").mkdir()
    (tmp_path / "etc" / "os-release").write_text('ID=debian\nVERSION_CODENAME="bookworm"\n')
    (apt / "sources.list").write_text(
        "# comment\n"
        "deb [signed-by=/usr/share/keyrings/lab.gpg] http://mirror.lab/debian bookworm main\n"
        "deb-src http://mirror.lab/debian bookworm main\n"
        "deb http://mirror.lab/debian bookworm-updates main\n"
        "deb https://packages.else/apt cloud-sdk-bookworm main\n"
        "deb https://packages.else/apt trixie main\n"
    )
    (apt / "sources.list.d" / "lab.sources").write_text(
        "Types: deb\nURIs: http://mirror.lab/security\nSuites: bookworm-security\nComponents: main\n"
        "\nTypes: deb\nURIs: https://node.else\nSuites: nodistro\nComponents: main\n"
    )
    (apt / "apt.conf.d" / "80proxy").write_text(
        'Acquire::http::Proxy "http://proxy.lab:3142";\n'
        'DPkg::Post-Invoke {"rm -rf /";};\nAcquire::http::Proxy-Auto-Detect "/usr/bin/evil";\n'
    )
    return tmp_path


def test_the_distributions_own_mirrors_and_proxies(tmp_path: Path) -> None:
    found = apt_configuration(apt_root(tmp_path))
    assert found.release == "debian bookworm"
    (kind, listed), (other, stanzas) = found.sources
    assert (kind, other) == ("list", "sources")
    assert [line.split()[-2] for line in listed.splitlines()] == ["bookworm", "bookworm-updates"]
    assert "bookworm-security" in stanzas
    assert "nodistro" not in stanzas
    assert found.keyrings == ["/usr/share/keyrings/lab.gpg"]
    assert found.settings == 'Acquire::http::Proxy "http://proxy.lab:3142";\n'
    assert apt_configuration(tmp_path / "nowhere").release == ""


def test_a_recipes_files(tmp_path: Path) -> None:
    certificate = tmp_path / "lab.pem"
    certificate.write_text("CERTIFICATE")
    index = tmp_path / "mirror" / "simple"
    index.mkdir(parents=True)
    environ = {
        "PIP_CONFIG_FILE": os.devnull,
        "http_proxy": "http://kim:it's@proxy:1",
    }
    configured = tmp_path / "pip.conf"
    configured.write_text(
        f"[global]\ncert = {certificate}\nindex-url = https://kim:pw@lab/simple\n"
        f"extra-index-url =\n    file://{index}\n    file:///usr/lib/python3/simple\n"
    )
    environ["PIP_CONFIG_FILE"] = str(configured)
    wanted = Requirements(lines=("a==1; python_version > '3'",), packages=("libgl1",))
    folder = tmp_path / "key.build"
    mounts = write_recipe(folder, wanted, environ, apt_configuration(tmp_path / "nowhere"))
    assert (folder / "requirements.txt").read_text() == "a==1; python_version > '3'\n"
    assert (folder / "packages.txt").read_text() == "libgl1\n"
    assert (folder / "cert.pem").read_text() == "CERTIFICATE"
    text = (folder / "pip.conf").read_text()
    assert f"cert = {PLACE}/cert.pem\n" in text
    assert "index-url = https://kim:pw@lab/simple\n" in text
    assert (folder / "pip.conf").stat().st_mode & 0o777 == 0o600
    said = subprocess.run(
        ["sh", "-c", f'. {folder}/environment; echo "$http_proxy"'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said == "http://kim:it's@proxy:1\n"
    targets = [mount.target for mount in mounts]
    assert targets == [PLACE, f"{PLACE}/uv", f"{PLACE}/pip-site/pip", str(tmp_path / "mirror")]


def test_the_key_names_what_would_be_built() -> None:
    def key(**facts: object) -> str:
        given: dict[str, object] = {
            "base_id": "sha256:1",
            "owner": "kim",
            "requirements": Requirements(lines=("a",), packages=("b",)),
            "environ": {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "https://a/simple"},
            "apt": AptConfiguration(
                release="debian bookworm", sources=[("list", "deb http://m/ x")]
            ),
        }
        return recipe_key(**{**given, **facts})  # type: ignore[arg-type]

    others = [
        key(apt=AptConfiguration(release="debian bookworm", sources=[("list", "deb http://n/ x")])),
        key(base_id="sha256:2"),
        key(requirements=Requirements(lines=("b",), packages=("b",))),
        key(requirements=Requirements(lines=("a",))),
        key(requirements=Requirements(packages=("a", "b"))),
        *(
            key(environ={"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"https://{place}/simple"})
            for place in ("b", "b/team@a", "c/team@a")
        ),
    ]
    assert len({key(), *others}) == 9
    secret = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "https://kim:pw@a/simple"}
    assert key(environ=secret) == key()
    fetched = {"PIP_TIMEOUT": "7", "PIP_CERT": "/a.pem", "PIP_PROXY": "http://p"}
    plain = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "https://a/simple"}
    assert key(environ={**plain, **fetched}) == key()
    assert key(owner="lee") == key(), "what the machine's sources have is everybody's"
    for line in ("--extra-index-url https://b/simple", "a @ https://b/a.whl", "https://b/a.whl"):
        own = Requirements(lines=("a", line))
        assert key(requirements=own, owner="lee") != key(requirements=own)
    mirror = [("list", "deb http://kim:pw@m/ x")]
    assert key(apt=AptConfiguration(release="debian bookworm", sources=mirror)) == key()
    noted = Requirements(lines=("a",), packages=("b",), notes=("x",), image="y")
    assert key(requirements=noted) == key()
