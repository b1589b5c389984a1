"""The recipe of a derived image: the files that a build reads, and the image's key.

A build runs one fixed script as root in a container of the base image; users' input goes in as
files, line by line as validated by `requirements.py`, never into a command line. The machine's
configuration of pip and apt is mounted for the run and is no part of the image.

Packages are installed by the platform's uv, which is mounted, too. It keeps the image's packages if they fit, and
prints the resolution as a lock, if an index has all of it. Where uv does not run (musl, Python before
3.8) pip installs, and there is no lock. uv's cache is the build's own: code of packages runs as root there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nodeagent.engine.images import Mounted
from nodeagent.environments.credentials import key_options
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.hostconfig import (
    PROXIES,
    fetching_variables,
    is_on,
    pip_folder,
    pip_options,
    shareable,
    uv_program,
    with_options_of,
)
from nodeagent.environments.installer import text_without_secrets
from nsml.packages.locks import MOST_LOCK_BYTES, LockRefused, read_lock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodeagent.environments.builds import Say
    from nodeagent.environments.hostconfig import AptConfiguration
    from nsml.packages.requirements import Requirements

PLACE = "/run/nsml-build"
"""The folder of a build's files."""
UNFIT = 75
"""Exit status of a build whose packages conflict with the default ones."""
_LOCK_LINE = b"nsml-lock: "
"""Prefix of the lock's lines in a build's output."""

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
"""Where a mount would hide the image's own files."""
_ALWAYS = {
    "no-input": "true",
    "no-color": "true",
    "progress-bar": "off",
    "disable-pip-version-check": "true",
    "no-cache-dir": "true",
    "root-user-action": "ignore",
    "break-system-packages": "true",
}
"""In a file: an older pip ignores unknown options there, and refuses them on a command line."""

_LONGEST_LINE = 64 << 10
_WAYS_OF_FETCHING = {"trusted-host", "cert", "client-cert", "proxy", "timeout", "retries"}
"""Options of pip that do not affect the packages."""

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
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' && "$here/uv" --version >/dev/null 2>&1; then
        . "$here/uv-environment"
        export UV_CACHE_DIR="$tmp/uv" UV_LINK_MODE=hardlink UV_COMPILE_BYTECODE=1
        # uv does not see what Debian's own packages have
        if [ -z "${NSML_LOCKED-}${NSML_HASHED-}" ] && ! grep -q '://' "$here/packages-of-index.txt" &&
            PIP_CONFIG_FILE=/dev/null PIP_BREAK_SYSTEM_PACKAGES=1 "$python" -m pip install -q --no-index --no-cache-dir \
                -r "$here/packages-of-index.txt" >/dev/null 2>&1; then
            if [ -s "$here/default-lock.txt" ]; then
                sed 's/^/nsml-lock: /' "$here/default-lock.txt"
            else
                echo "note: no lock: the image has all of it"
            fi
            exit 0
        fi
        # by its path: by a name uv looks for a virtual environment only
        python=$("$python" -c 'import sys; print(sys.executable)')
        set -- --python "$python" ${NSML_NO_INDEX:+--no-index}
        wanted="$here/packages-of-index.txt"
        if [ -n "${NSML_LOCKED-}" ]; then
            # a lock may be that of another Python, or have packages that the image is there for
            wanted="$tmp/wanted"
            if [ -s "$here/asked.txt" ]; then
                "$here/uv" pip compile "$@" -q --no-header --no-annotate -c "$here/packages-of-index.txt" \
                    "$here/asked.txt" >"$tmp/needed"
                sed -n 's/^\([A-Za-z0-9._-]\{1,\}\).*/\1/p' "$tmp/needed" >"$tmp/names"
                sed 's/^\([A-Za-z0-9._-]*\).*/\1/' "$here/packages-of-index.txt" >"$tmp/locked"
                lacks=$(grep -vxFf "$tmp/locked" "$tmp/names" || true)
                [ -z "$lacks" ] || fail "the lock does not have what this Python needs: $(echo $lacks)"
                sed 's/.*/^&[^A-Za-z0-9._-]/' "$tmp/names" >"$tmp/patterns"
            fi
            if [ -n "${NSML_KEEPS_ALL-}" ] || ! [ -s "$here/asked.txt" ]; then
                cat "$here/packages-of-index.txt" >"$wanted"
            elif [ -s "$tmp/patterns" ]; then
                grep -f "$tmp/patterns" "$here/packages-of-index.txt" >"$wanted"
            else
                echo "note: nothing to install: this Python needs none of the packages"
                exit 0
            fi
        fi
        if [ -s "$here/default.txt" ]; then
            "$here/uv" pip install "$@" -q --break-system-packages --dry-run -r "$wanted" || exit 75
        fi
        "$here/uv" pip install "$@" --break-system-packages ${NSML_LOCKED:+--no-deps} \
            ${NSML_HASHED:+--require-hashes} -r "$wanted"
        if [ -n "${NSML_LOCKED-}" ]; then
            sed 's/^/nsml-lock: /' "$wanted"
            exit 0
        fi
        "$here/uv" pip freeze -q --python "$python" >"$tmp/have"
        grep -v '^-\|://' "$tmp/have" >"$tmp/versions" || true
        if "$here/uv" pip compile "$@" -q --generate-hashes --no-header --no-annotate \
            -c "$tmp/versions" "$here/packages-of-index.txt" >"$tmp/lock" 2>"$tmp/why"; then
            sed -n 's/^\([A-Za-z0-9._-]*\)\(\[[^]]*\]\)*==\([^ ;]*\).*/\1==\3/p' "$tmp/lock" >"$tmp/locked"
            if ! other=$(grep -vxFf "$tmp/versions" "$tmp/locked"); then
                sed -e ':a' -e '/\\$/{N;s/ *\\\n */ /;ta' -e '}' -e 's/^/nsml-lock: /' "$tmp/lock"
            else
                echo "note: no lock: the image has others than an index:" $other
            fi
        else
            echo "note: no lock: an index does not have all that the image has"
        fi
    else
        [ -z "${NSML_LOCKED-}" ] || fail "uv does not run in the image, which a lock needs"
        echo "note: no lock: uv does not run in the image, and pip installs"
        if [ -s "$here/default.txt" ]; then
            "$python" -m pip install -r "$here/default.txt" -r "$here/requirements.txt" || exit 75
        else
            "$python" -m pip install -r "$here/requirements.txt"
        fi
    fi
fi
"""


@dataclass(frozen=True, slots=True)
class LockUse:
    """Which packages of a lock are installed: those that the lines `asked` need in the image, or all.

    The build fails if these lines need others, too.
    """

    asked: Sequence[str]
    keeps_all: bool


def recipe_key(
    *,
    base_id: str,
    requirements: Requirements,
    environ: Mapping[str, str],
    apt: AptConfiguration,
    owner: str,
    lock: LockUse | None = None,
) -> str:
    """Hash of the image's inputs: the base, the ordered lines, and the sources of packages.

    Agents of one engine share images, and users share those with packages from the machine's own
    sources; images with sources that `owner` named are the owner's alone, since these may serve
    nobody else.
    """
    options = key_options(pip_options(environ))
    sources = {name: options[name] for name in options if name not in _WAYS_OF_FETCHING}
    mirrors = [apt.release, *(text_without_secrets(text) for _, text in apt.sources)]
    content = [
        *(SCRIPT, base_id),
        *(list(requirements.packages), list(requirements.lines)),
        sources if requirements.lines else {},
        mirrors if requirements.packages else [],
        owner if requirements.has_own_sources else "",
        None if lock is None else [list(lock.asked), lock.keeps_all],
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def write_recipe(
    folder: Path,
    requirements: Requirements,
    environ: Mapping[str, str],
    apt: AptConfiguration,
    *,
    lock: LockUse | None = None,
    default: Sequence[str] = (),
    default_lock: str = "",
) -> list[Mounted]:
    """Write the files of a build below `folder`; return its mounts. With `lock` the requirements are a whole lock.

    `default`: lines of the image's packages that must be compatible with the requirements, else the build ends with
    UNFIT; `default_lock` is the image's lock, also the result's if the requirements add nothing.

    Raises EnvironmentFailed if the machine's configuration cannot be given to a container.
    """
    if folder.exists():
        shutil.rmtree(folder)
    # Readable, since apt fetches as a user of its own; the agent's folders above keep others out.
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
    _write(folder / "default.txt", _lines(default))
    _write(folder / "default-lock.txt", default_lock)
    _write(folder / "pip.conf", _section({**options, **_ALWAYS}), mode=0o600)
    _write(folder / "release", apt.release if apt.sources else "")
    _write(folder / "apt.conf", apt.settings, mode=0o600)
    for number, (suffix, text) in enumerate(apt.sources):
        _write(folder / "mirrors" / f"nsml-host-{number}.{suffix}", _with_keys(folder, text, apt))
    mounts = [Mounted(source=str(folder), target=PLACE)]
    if requirements.lines:
        _write_for_uv(folder, [*default, *requirements.lines], environ, lock)
        mounts.append(Mounted(source=str(uv_program()), target=f"{PLACE}/uv"))
        mounts.append(Mounted(source=str(pip_folder()), target=f"{PLACE}/pip-site/pip"))
        mounts += [
            Mounted(source=str(path), target=str(path)) for path in shareable(options, hides=_hides)
        ]
    return mounts


def _write_for_uv(
    folder: Path, lines: Sequence[str], environ: Mapping[str, str], lock: LockUse | None
) -> None:
    """Write uv's requirements, and its configuration as variables."""
    named = [line for line in lines if not line.startswith("-")]
    options = with_options_of(
        [line for line in lines if line.startswith("-")], pip_options(environ)
    )
    variables, files = fetching_variables(options, environ, folder=PLACE)
    if "SSL_CERT_FILE" not in variables:
        variables.pop("UV_SYSTEM_CERTS", None)  # an image may have none
    for option, every, some in (
        ("only-binary", "UV_NO_BUILD", "UV_NO_BUILD_PACKAGE"),
        ("no-binary", "UV_NO_BINARY", "UV_NO_BINARY_PACKAGE"),
    ):
        match options.get(option, ":none:"):
            case ":none:":
                pass
            case ":all:":
                variables[every] = "1"
            case packages:
                variables[some] = packages.replace(",", " ")
    is_hashed = is_on(options.get("require-hashes", "")) or any("--hash" in one for one in named)
    for variable, is_so in (
        ("NSML_LOCKED", lock is not None),
        ("NSML_KEEPS_ALL", lock is not None and lock.keeps_all),
        ("NSML_HASHED", is_hashed),
        ("NSML_NO_INDEX", is_on(options.get("no-index", ""))),
    ):
        if is_so:
            variables[variable] = "1"
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o644)
    _write(folder / "uv", "", mode=0o755)  # the mount's target must exist
    _write(folder / "packages-of-index.txt", _lines(named))
    asked = () if lock is None else [line for line in lock.asked if not line.startswith("-")]
    _write(folder / "asked.txt", _lines(asked))
    exports = "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())
    _write(folder / "uv-environment", exports, mode=0o600)


class LockTaken:
    """Passes output on in whole lines, without those of the lock, which are collected in `lock`."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._rest = b""
        self._lines: list[bytes] = []
        self._size = 0

    def __call__(self, piece: bytes) -> None:
        """Take a piece of output."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(_LOCK_LINE):
                self._say(line + b"\n")
            elif self._size <= MOST_LOCK_BYTES:
                self._lines.append(line.removeprefix(_LOCK_LINE))
                self._size += len(line)
        is_of_lock = self._rest.startswith(_LOCK_LINE)
        if len(self._rest) > (MOST_LOCK_BYTES if is_of_lock else _LONGEST_LINE):
            # no package has so long a line
            self._size += MOST_LOCK_BYTES if is_of_lock else 0
            self.end()

    def end(self) -> None:
        """Flush the last line."""
        if self._rest:
            self._say(self._rest)
        self._rest = b""

    @property
    def lock(self) -> str:
        """The packages with hashes; "" where there is no lock."""
        if self._size > MOST_LOCK_BYTES:
            return ""
        content = b"".join(b"%s\n" % line for line in self._lines).decode(errors="replace")
        try:
            read_lock(content)
        except LockRefused:
            return ""
        return content


def _with_keys(folder: Path, sources: str, apt: AptConfiguration) -> str:
    """`sources`, with their keyrings' paths replaced by copies in the build."""
    for path in apt.keyrings:
        if path in sources:
            given = _given(folder, Path(path), f"key-{Path(path).name}")
            sources = sources.replace(path, given)
    return sources


def _hides(place: Path) -> bool:
    text = str(place)
    return text == "/" or any(text == part or text.startswith(f"{part}/") for part in _SYSTEM)


def _given(folder: Path, source: Path, name: str) -> str:
    """Copy a file of the machine's configuration; return its path in the build."""
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
