"""How a derived image is made: the files that a build reads, and the key of what it makes.

A build runs one fixed script as root in a container of the base image; what users wrote goes in as
files, line by line as `requirements.py` let it through, never into a command line. The machine's
configuration of pip and apt is mounted for the run and is no part of the image.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.engine.images import Mounted
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.hostconfig import (
    PROXIES,
    pip_folder,
    pip_options,
    shareable,
    text_without_secrets,
    without_secrets,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.environments.hostconfig import AptConfiguration
    from nsml.packages.requirements import Requirements

PLACE = "/run/nsml-build"
"""Where a build finds its files."""

_SYSTEM = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
)
"""Where a mount would hide what the image itself has."""
_ALWAYS = {
    "no-input": "true",
    "no-color": "true",
    "progress-bar": "off",
    "disable-pip-version-check": "true",
    "no-cache-dir": "true",
    "root-user-action": "ignore",
    "break-system-packages": "true",
}
"""What an older pip does not know it passes by in a file, and refuses on a command line."""

_WAYS_OF_FETCHING = {"trusted-host", "cert", "client-cert", "proxy", "timeout", "retries"}
"""Options of pip that change nothing of what comes."""

SCRIPT = r"""#!/bin/sh
# Runs as root in a container of the base image, once: what it changes is the new image.
set -eu
umask 022
cd /
here=/run/nsml-build
fail() { echo "nsml: $1" >&2; exit 1; }
say_how_many() {
    count=$(($(wc -l <"$1")))
    if [ "$count" -eq 1 ]; then echo "Installing 1 $2"; else echo "Installing $count ${2}s"; fi
}
. "$here/environment"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
export TMPDIR="$tmp" HOME="$tmp"

if [ -s "$here/packages.txt" ]; then
    command -v apt-get >/dev/null 2>&1 ||
        fail "the image has no apt-get: nsml_package.txt needs an image of Debian or Ubuntu"
    export DEBIAN_FRONTEND=noninteractive APT_CONFIG="$here/apt.conf"
    # names are names: without the last, one with a dot or a plus that is no package's is a pattern
    set -- -q -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 -o APT::Cmd::Pattern-Only=true
    if [ -s "$here/release" ] && [ -r /etc/os-release ] &&
        [ "$(. /etc/os-release; echo "${ID-} ${VERSION_CODENAME-}")" = "$(cat "$here/release")" ]; then
        # the machine's mirrors, and what the image itself has beside its distribution
        mkdir "$tmp/parts"
        for file in /etc/apt/sources.list.d/*; do
            case "$file" in
                */debian.sources | */ubuntu.sources) ;;
                *.list | *.sources) cp "$file" "$tmp/parts/" ;;
            esac
        done
        cp "$here"/mirrors/* "$tmp/parts/"
        set -- "$@" -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$tmp/parts"
    fi
    say_how_many "$here/packages.txt" "system package"
    apt-get "$@" update
    xargs -a "$here/packages.txt" apt-get "$@" install -y --no-install-recommends --
    apt-get clean
    rm -rf /var/lib/apt/lists/*
fi

if [ -s "$here/requirements.txt" ]; then
    python=
    for name in python python3; do
        if command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3,))'; then
            python=$name
            break
        fi
    done
    [ -n "$python" ] || fail "the image has no Python 3, which requirements need: name one that has it"
    export PIP_CONFIG_FILE="$here/pip.conf"
    if ! "$python" -m pip --version >/dev/null 2>&1 &&
        ! "$python" -m ensurepip --default-pip >/dev/null 2>&1; then
        export PYTHONPATH="$here/pip-site" PYTHONDONTWRITEBYTECODE=1
        "$python" -m pip --version >/dev/null 2>&1 ||
            fail "the image's $("$python" --version) has no pip, and the platform's does not run on it"
    fi
    say_how_many "$here/requirements.txt" requirement
    "$python" -m pip install -r "$here/requirements.txt"
fi
"""


def recipe_key(
    *,
    base_id: str,
    requirements: Requirements,
    environ: Mapping[str, str],
    apt: AptConfiguration,
    owner: str,
) -> str:
    """Names what would be built: the base, the lines in their order, and where they come from.

    Agents of one engine share what they build, and users too, who get the same from the machine's own
    sources; what came from sources that its `owner` named is the owner's, since they may have let nobody
    else have it.
    """
    options = without_secrets(pip_options(environ))
    sources = {name: options[name] for name in options if name not in _WAYS_OF_FETCHING}
    mirrors = [apt.release, *(text_without_secrets(text) for _, text in apt.sources)]
    content = [
        *(SCRIPT, base_id),
        *(list(requirements.packages), list(requirements.lines)),
        sources if requirements.lines else {},
        mirrors if requirements.packages else [],
        owner if requirements.has_own_sources else "",
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def write_recipe(
    folder: Path, requirements: Requirements, environ: Mapping[str, str], apt: AptConfiguration
) -> list[Mounted]:
    """Write the files of a build below `folder`; what the build is to mount.

    Raises EnvironmentFailed when the machine's configuration cannot be given to a container.
    """
    if folder.exists():
        shutil.rmtree(folder)
    # Open below, since apt fetches as a user of its own; nobody else passes the agent's folders.
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    for part in ("mirrors", "pip-site", "pip-site/pip"):
        (folder / part).mkdir()
        (folder / part).chmod(0o755)
    options = pip_options(environ)
    for name in ("cert", "client-cert"):
        if name in options:
            options[name] = _given(folder, Path(options[name]), f"{name}.pem")
    _write(folder / "build.sh", SCRIPT)
    _write(folder / "environment", _exports(environ), mode=0o600)
    _write(folder / "packages.txt", _lines(requirements.packages))
    _write(folder / "requirements.txt", _lines(requirements.lines))
    _write(folder / "pip.conf", _section({**options, **_ALWAYS}), mode=0o600)
    _write(folder / "release", apt.release if apt.sources else "")
    _write(folder / "apt.conf", apt.settings, mode=0o600)
    for number, (suffix, text) in enumerate(apt.sources):
        _write(folder / "mirrors" / f"nsml-host-{number}.{suffix}", _with_keys(folder, text, apt))
    mounts = [Mounted(source=str(folder), target=PLACE)]
    if requirements.lines:
        mounts.append(Mounted(source=str(pip_folder()), target=f"{PLACE}/pip-site/pip"))
        mounts += [
            Mounted(source=str(path), target=str(path)) for path in shareable(options, hides=_hides)
        ]
    return mounts


def _with_keys(folder: Path, sources: str, apt: AptConfiguration) -> str:
    """`sources` with the keyrings that they name as files of the build."""
    for path in apt.keyrings:
        if path in sources:
            given = _given(folder, Path(path), f"key-{Path(path).name}")
            sources = sources.replace(path, given)
    return sources


def _hides(place: Path) -> bool:
    text = str(place)
    return text == "/" or any(text == part or text.startswith(f"{part}/") for part in _SYSTEM)


def _given(folder: Path, source: Path, name: str) -> str:
    """Copy a file of the machine's configuration; its path in the build."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise EnvironmentFailed(
            f"this machine's pip or apt is configured with {source}, which cannot be read:"
            f" {error.strerror}"
        ) from None
    (folder / name).write_bytes(content)
    (folder / name).chmod(0o644)
    return f"{PLACE}/{name}"


def _exports(environ: Mapping[str, str]) -> str:
    names = [name for low in PROXIES for name in (low, low.upper()) if environ.get(name)]
    return "".join(f"export {name}={shlex.quote(environ[name])}\n" for name in names)


def _section(options: Mapping[str, str]) -> str:
    # further lines of a value are indented
    lines = [f"{name} = {value}".replace("\n", "\n    ") for name, value in options.items()]
    return "[global]\n" + "".join(f"{line}\n" for line in lines)


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, not a path
        os.fchmod(descriptor, mode)
        file.write(text)
