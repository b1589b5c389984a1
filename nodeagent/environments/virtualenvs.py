"""Python environments of sessions on nodes without containers: each is built once per node.

```
<agent data>/environments/<key>/         (rebuilt: `<key>.2`) a virtual environment, owned by the agent and read-only
<agent data>/environments/<key>.owner    the id of its user; empty: everybody's
<agent data>/environments/<key>.ready    written last, with the time; its mtime is the last use
```

Users' packages are never read here: uv installs wheels only (`installer.py`), in a sandbox (`sandbox.py`),
and the result is checked and sealed without being opened. The mark of a complete environment is beside it,
where no package can write. An environment of one user is never given to another with the same requirements:
an index may serve the packages to that user alone, and packages may have changed it, or the downloads that
it was made from. Only the bare one and that of the default packages are everybody's. A user's environments
share the files of common wheels (`kept.py`). An environment is never the platform's own and has no pip; it
is made with the platform's uv, and of the host's pip configuration only the sources of packages apply.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from nodeagent.environments import conda_installer, installer
from nodeagent.environments.builds import Builds
from nodeagent.environments.conda import MISSING
from nodeagent.environments.credentials import bare_options, bare_proxies, key_options
from nodeagent.environments.errors import EnvironmentFailed
from nodeagent.environments.generations import last_of, next_of
from nodeagent.environments.hostconfig import (
    BUNDLES,
    fetching_variables,
    is_on,
    pip_options,
    shareable,
    uv_program,
    with_options_of,
)
from nodeagent.environments.kept import CONDA
from nodeagent.environments.sandbox import Task, base_python, shared_copy
from nodeagent.folders import flush_filesystem, write_atomically
from nodeagent.runtimes.interface import Mount, PythonEnvironment
from nodeagent.safe_paths import remove_tree
from nsml.common.text import visible
from nsml.common.units import counted
from nsml.packages.locks import MOST_LOCK_BYTES, LockRefused, count_packages, locked, read_lock
from nsml.packages.requirements import name_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from nodeagent.environments.build_queue import Turn, Waits
    from nodeagent.environments.builds import Say
    from nodeagent.environments.conda import Conda
    from nodeagent.environments.downloads import Downloads
    from nodeagent.environments.sandbox import Sandbox
    from nodeagent.machine.accounts import Accounts
    from nsml.packages.requirements import CondaPackages, Requirements

log = structlog.get_logger()

_FORMAT = 6
_BARE_DISK_BYTES = 8 << 20
"""An environment without packages takes some kilobytes: a small disk that is nearly full has room for it."""
_BLOCK = 512
_CONDA_PYTHON = re.compile(r"python-(\d+\.\d+\.[0-9a-z]{1,16})-\w+\.json")
_SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/sbin", "/sys", "/usr")
"""Folders that a build's root always has, or must never have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The contents of an environment: `lines`, and if compatible `base`, without the packages that `lines` name.

    `owner`: the id of its user; "": everybody's. `conda`: packages of conda, to which `lines` are added.
    """

    lines: Sequence[str] = ()
    conda: CondaPackages | None = None
    base: Sequence[str] = ()
    owner: str = ""

    @property
    def has_packages(self) -> bool:
        """Whether anything is installed into it."""
        return bool(self.lines or self.conda)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about an environment, for users.

    `owner`: a user's id; "": everybody's; None: unknown. `size`: bytes on disk; `shared`: the part shared with others
    when it was measured. `built_at`: Unix seconds.
    """

    owner: str | None
    package_count: int
    size: int
    shared: int
    built_at: float


class Environments:
    """The node's environments below `folder`, built in `sandbox`. Blocking; safe for concurrent threads and processes.

    `accounts` keeps a user's environments from the programs of others, where users have accounts here. `default`:
    the lines for code that names no packages, also added to the lines of other code. `conda` builds packages of
    conda; without it they are refused.
    """

    def __init__(
        self,
        folder: Path,
        sandbox: Sandbox,
        downloads: Downloads,
        accounts: Accounts | None = None,
        default: Sequence[str] = (),
        *,
        conda: Conda | None = None,
    ) -> None:
        self.folder = folder
        self._conda = conda
        self._default = default
        self._sandbox = sandbox
        self._downloads = downloads
        self._accounts = accounts
        self._builds = Builds(folder)
        self._measured: dict[str, Facts] = {}

    @property
    def builds_conda(self) -> bool:
        """Whether conda packages can be installed."""
        return self._conda is not None

    def key(self, requirements: Requirements, owner: str) -> str:
        """Hash of the environment's inputs: the interpreter, pip's sources, the ordered lines, and the owner."""
        return _key(self._wanted(requirements, owner))

    def _wanted(self, requirements: Requirements, owner: str) -> _Wanted:
        if requirements.conda:
            conda = self._conda_packages(requirements.conda)
            return _Wanted(lines=requirements.lines, conda=conda, owner=owner)
        if requirements.lines:
            return _Wanted(lines=requirements.lines, base=self._default, owner=owner)
        return _Wanted(lines=self._default)

    def provide(
        self,
        requirements: Requirements,
        say: Say,
        cancelled: threading.Event | None = None,
        *,
        owner: str,
        lock: str = "",
        waits: Waits = lambda _: None,
        use: Callable[[str], object] = lambda _: None,
        built_after: float = 0.0,
        built: Callable[[float], object] = lambda _: None,
    ) -> PythonEnvironment:
        """The environment for `requirements`, built on first use; marks its use.

        With a `lock` it has exactly the lock's packages. Without lock and requirements it is that of the node's default packages, or the bare one if these cannot be installed. One built before `built_after` is rebuilt, beside the old one. `built` gets the build time. Both are Unix seconds.

        `owner` is the user's id; a build starts with this user's downloads. `say` gets output for the
        session's log, `waits` why the build waits, `use` the key before anybody could remove it. Raises
        EnvironmentFailed with the last lines of output, EnvironmentCancelled soon after `cancelled` is set, and
        AccountsError and OSError where this machine lacks something.
        """
        provide = partial(
            self._provide,
            say=say,
            cancelled=cancelled,
            asks=owner,
            waits=waits,
            use=use,
            built=built,
        )
        if lock:
            wanted = self._wanted(requirements, owner)
            if self._has(wanted, lock):
                found = provide(wanted, built_after=0.0)
                if lock_of(found.folder) == lock:  # it was not removed meanwhile
                    return found
            return provide(self._locked(requirements, lock, owner), built_after=built_after)
        if requirements.lines or requirements.conda or not self._default:
            return provide(self._wanted(requirements, owner), built_after=built_after)
        try:
            # no user may have it rebuilt for all others
            return provide(self._wanted(requirements, owner), built_after=0.0)
        except EnvironmentFailed as error:
            say(f"nsml: note: without the node's default packages: {error}\n".encode())
            return provide(_Wanted(), built_after=0.0)

    def build_default(self, say: Say, cancelled: threading.Event, *, built_after: float) -> None:
        """Build the environment of the default packages before anybody waits for it. Raises as `provide`."""
        self._provide(
            _Wanted(lines=self._default),
            say=say,
            cancelled=cancelled,
            asks="",
            waits=lambda _: None,
            use=lambda _: None,
            built=lambda _: None,
            built_after=built_after,
        )

    def _provide(
        self,
        wanted: _Wanted,
        *,
        say: Say,
        cancelled: threading.Event | None,
        asks: str,
        waits: Waits,
        use: Callable[[str], object],
        built: Callable[[float], object],
        built_after: float,
    ) -> PythonEnvironment:
        key = self._current(_key(wanted), built_after)
        place = self.folder / key
        ready = self._ready(key)
        limits = self._sandbox.limits
        disk_bytes = limits.disk_bytes if wanted.has_packages else _BARE_DISK_BYTES
        with self._sandbox.queue.ticket(
            asks, memory_bytes=limits.memory_bytes, disk_bytes=disk_bytes, waits=waits
        ) as ticket:
            self._builds.provide(
                key,
                is_there=ready.exists,
                build=lambda tell: self._build(
                    place, wanted, tell, cancelled, turn=ticket.granted()
                ),
                say=say,
                use=lambda: use(key),
                cancelled=cancelled,
                ticket=ticket,
            )
        os.utime(ready)
        built(self._built_at(key))
        self._keep_private(place, wanted)  # also if an agent of another level built it
        return PythonEnvironment(folder=place, base_prefix=Path(sys.base_prefix))

    def _current(self, key: str, built_after: float) -> str:
        """The generation to use: the last one, or the next if that is too old or missing."""
        last = last_of(key, (mark.stem for mark in self.folder.glob(f"{key}*.ready")))
        is_good = last is not None and self._built_at(last) >= built_after
        return last if last is not None and is_good else next_of(key, last)

    def _locked(self, requirements: Requirements, lock: str, owner: str) -> _Wanted:
        """Raises EnvironmentFailed if the lock does not fit the requirements."""
        try:
            found = locked(requirements, lock, self._default)
            conda = self._conda_packages(found.conda) if found.conda else None
            return _Wanted(lines=found.lines, conda=conda, owner=owner)
        except LockRefused as error:
            raise EnvironmentFailed(f"the lock of its packages cannot be used: {error}") from None

    def _conda_packages(self, wanted: CondaPackages) -> CondaPackages:
        """`wanted` with this node's channels. Raises EnvironmentFailed if it builds no conda packages."""
        if self._conda is None:
            raise EnvironmentFailed(MISSING)
        return self._conda.replaced(wanted)

    def lacking_defaults(self, lock: str) -> Sequence[str]:
        """Names of the node's default packages that are not in a lock."""
        names = {name_of(line) for line in self._default if not line.startswith("-")}
        return sorted(names - {one.name for one in read_lock(lock)})

    def _has(self, wanted: _Wanted, lock: str) -> bool:
        """Whether the current environment for `wanted` has exactly this lock."""
        return lock_of(self.folder / self._current(_key(wanted), 0.0)) == lock

    def _built_at(self, key: str) -> float:
        """When it was built: Unix seconds; 0: unknown."""
        with suppress(OSError):
            # empty if an earlier version built it
            if said := self._ready(key).read_text():
                return float(said)
            return (self.folder / key).stat().st_mtime
        return 0.0

    def stored(self) -> dict[str, float]:
        """When each was last used: Unix seconds by key."""
        found = {}
        for key, ready in [
            *(
                (mark.parent.name, mark) for mark in self.folder.glob("*/ready")
            ),  # of earlier agents
            *((mark.stem, mark) for mark in self.folder.glob("*.ready")),
        ]:
            with suppress(FileNotFoundError):
                found[key] = ready.lstat().st_mtime
        return found

    def owner(self, key: str) -> str | None:
        """Its owner: see Facts."""
        with suppress(OSError):
            return self._owner(key).read_text()
        return None

    def facts(self, key: str) -> Facts:
        """Its facts. Reads all of its folders once: a built environment never changes."""
        known, built_at = self._measured.get(key), self._built_at(key)
        if known is None or known.built_at != built_at:
            known = self._measured[key] = self._measure(key, built_at)
        return known

    def _measure(self, key: str, built_at: float) -> Facts:
        size = shared = 0
        for folder, _, files in os.walk(self.folder / key):
            for name in files:
                with suppress(OSError):
                    found = os.lstat(f"{folder}/{name}")
                    size += found.st_blocks * _BLOCK
                    shared += found.st_blocks * _BLOCK if found.st_nlink > 1 else 0
        return Facts(
            owner=self.owner(key),
            package_count=count_packages(lock_of(self.folder / key)),
            size=size,
            shared=shared,
            built_at=built_at,
        )

    def touch(self, key: str) -> None:
        """Mark it used."""
        for ready in (self._ready(key), self.folder / key / "ready"):
            with suppress(OSError):
                os.utime(ready, follow_symlinks=False)

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove it unless it is used or being built; whether it is gone."""
        place = self.folder / key
        with self._builds.unused(key) as is_free:
            if not is_free or is_used():
                return False
            self._ready(key).unlink(missing_ok=True)
            self._owner(key).unlink(missing_ok=True)
            remove_tree(place)
            self._builds.forget(key)
            self._measured.pop(key, None)
        return True

    def _keep_private(self, place: Path, wanted: _Wanted) -> None:
        if wanted.owner and self._accounts is not None:
            self._accounts.keep_private(place, wanted.owner)

    def _ready(self, key: str) -> Path:
        return self.folder / f"{key}.ready"

    def _owner(self, key: str) -> Path:
        return self.folder / f"{key}.owner"

    def _build(
        self,
        place: Path,
        wanted: _Wanted,
        say: Say,
        cancelled: threading.Event | None,
        *,
        turn: Turn,
    ) -> None:
        if wanted.has_packages:
            specs = wanted.conda.specs if wanted.conda else ()
            count = len(wanted.lines) + len(specs)
            say(f"Installing {counted(count, 'requirement')}\n".encode())
        try:
            task = self._task(place, wanted)
            self._sandbox.make(
                place,
                task,
                say,
                cancelled,
                turn=turn,
                sealed=lambda made: self._keep_private(made, wanted),
            )
            # after a power loss the mark must not exist without the files before it
            flush_filesystem(place)
            _warn_of_unreadable_lock(place, say)
            write_atomically(self._owner(place.name), wanted.owner.encode())
            write_atomically(self._ready(place.name), f"{time.time():.3f}".encode())
        except BaseException:
            with suppress(OSError):
                remove_tree(place)
            raise

    def _conda_task(self, place: Path, wanted: _Wanted, packages: CondaPackages) -> Task:
        """Scripts of packages run in it: it gets no credentials of the machine."""
        if self._conda is None:
            raise EnvironmentFailed(MISSING)
        programs = {
            "conda_installer.py": Path(conda_installer.__file__),
            "installer.py": Path(installer.__file__),
            "micromamba": self._conda.program,
            "uv": uv_program(),
        }
        kit = shared_copy(self._sandbox.folder, "conda", programs)
        of_host = bare_options(pip_options(os.environ))
        options = with_options_of(_options(wanted.lines), of_host)
        environ = {name: os.environ[name] for name in BUNDLES if name in os.environ}
        environ |= bare_proxies(os.environ)
        variables, files = fetching_variables(options, environ, folder="{run}")
        if is_on(options.get("no-index", "")):
            variables[installer.NO_INDEX] = "1"
        if "SSL_CERT_FILE" in variables:
            variables["REQUESTS_CA_BUNDLE"] = variables["SSL_CERT_FILE"]  # micromamba's name for it
        folders = [*shareable(of_host, hides=_hides), *self._conda.folders()]
        return Task(
            argv=[str(base_python()), "-I", str(kit / "conda_installer.py"), str(place), "{run}"],
            mounts=[
                Mount(source=kit, target=str(kit)),
                *(Mount(source=one, target=str(one)) for one in dict.fromkeys(folders)),
            ],
            kept=self._downloads.of(wanted.owner),
            files={
                **files,
                **self._conda.files(packages),
                "requirements.txt": _packages(wanted.lines),
            },
            variables={
                **variables,
                "UV_CACHE_DIR": "{kept}",
                "UV_COMPILE_BYTECODE": "1",
                conda_installer.PACKAGES: f"{{kept}}/{CONDA}",
            },
        )

    def _task(self, place: Path, wanted: _Wanted) -> Task:
        if wanted.conda:
            return self._conda_task(place, wanted, wanted.conda)
        programs = {"installer.py": Path(installer.__file__)}
        if wanted.lines:
            kit = shared_copy(self._sandbox.folder, "uv", programs | {"uv": uv_program()})
        else:  # without uv: 40 MB, unused here
            kit = shared_copy(self._sandbox.folder, "kit", programs)
        argv = [str(base_python()), "-I", str(kit / "installer.py"), str(place)]
        mounts = [Mount(source=kit, target=str(kit))]
        if not wanted.lines:
            return Task(argv=argv, mounts=mounts)
        of_host = pip_options(os.environ)
        named = {name_of(line) for line in wanted.lines}
        base = [line for line in wanted.base if name_of(line) not in named or line.startswith("-")]
        options = with_options_of(_options([*base, *wanted.lines]), of_host)
        variables, files = fetching_variables(options, os.environ, folder="{run}")
        for option, variable in (
            ("require-hashes", installer.ALL_HASHED),
            ("no-index", installer.NO_INDEX),
        ):
            if is_on(options.get(option, "")):
                variables[variable] = "1"
        listed = {"requirements.txt": _packages(wanted.lines), "base.txt": _packages(base)}
        return Task(
            argv=[*argv, "{run}/requirements.txt", "{run}/base.txt", "{run}/preferred.txt"],
            mounts=[
                *mounts,
                *(Mount(source=one, target=str(one)) for one in shareable(of_host, hides=_hides)),
            ],
            kept=self._downloads.of(wanted.owner),
            kept_by_all=self._downloads.of("") if wanted.owner and self._default else None,
            files={**files, **listed, "preferred.txt": self._preferred() if base else b""},
            variables={**variables, "UV_CACHE_DIR": "{kept}"},
        )

    def _preferred(self) -> bytes:
        """The lock of the default packages: preferred versions beside other packages."""
        key = self._current(_key(_Wanted(lines=self._default)), 0.0)
        with suppress(OSError):
            return (self.folder / key / installer.LOCK).read_bytes()
        return b""


def lock_of(environment: Path) -> str:
    """The lock of an environment; "" if it is missing or invalid."""
    with suppress(OSError, ValueError):
        return _read_lock_file(environment)
    return ""


def _read_lock_file(environment: Path) -> str:
    """Raises OSError, and ValueError for an invalid lock."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(environment / installer.LOCK, flags)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
        content = file.read(MOST_LOCK_BYTES + 1).decode()
    read_lock(content)
    return content


def _warn_of_unreadable_lock(environment: Path, say: Say) -> None:
    """Log why a new environment has no lock though its build left one, for the agent and the session."""
    try:
        _read_lock_file(environment)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        log.warning("environment.lock_refused", key=environment.name, reason=str(error))
        say(f"nsml: note: no lock of these packages is kept: {visible(str(error))}\n".encode())


def python_version_of(environment: Path) -> str:
    """The Python version of an environment; "" if unknown. Blocking.

    This node's, unless it has one from conda: its packages' record is trusted if it looks like a version.
    """
    if not (environment / "conda-meta").is_dir():
        return platform.python_version()
    names = (path.name for path in (environment / "conda-meta").glob("python-*.json"))
    return next((found[1] for name in names if (found := _CONDA_PYTHON.fullmatch(name))), "")


def _key(wanted: _Wanted) -> str:
    host = key_options(pip_options(os.environ))
    content: list[object] = [
        *(_FORMAT, platform.python_version(), sys.base_prefix, host),
        *(wanted.owner, list(wanted.lines), list(wanted.base)),
    ]
    if wanted.conda:
        content += [list(wanted.conda.channels), list(wanted.conda.specs), wanted.conda.lock]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _options(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.startswith("-")]


def _packages(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines if not line.startswith("-")).encode()


def _hides(place: Path) -> bool:
    """Whether mounting the folder would hide a build's own root, or add what it must not have."""
    text = str(place)
    return text == "/" or any(text == part or text.startswith(f"{part}/") for part in _SYSTEM)
