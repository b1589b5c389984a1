"""Makes a virtual environment and installs wheels into it. Runs in a build's sandbox, never in the agent.

```
installer.py make FOLDER [REQUIREMENTS]    the environment, then `install` in its own interpreter
installer.py install FOLDER REQUIREMENTS   by the pip that lies beside this file
```

The sandbox keeps what happens here from the machine, also where a wheel takes pip over. The rules here are
for the packages' sake: only wheels over http or https, at whatever depth they are required, and from the
folders that the machine's own configuration of pip names (`NSML_LOCAL_SOURCES`); pip's own
`--only-binary :all:` unpacks source archives all the same when a package requires one by URL. A link is
judged before anything is fetched or looked up, so that no answer tells what exists.

Standard library and pip only. A last line that begins with `nsml: ` is the reason of a failure.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import platform
import re
import sys
import tarfile
import venv
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

LOCAL_SOURCES = "NSML_LOCAL_SOURCES"
"""Variable with the folders of the machine that pip may read wheels from, separated as in PATH."""
PLACES = ("Looking in ", "Location ")
"""How pip's lines begin that say where a machine looks for packages, which is nothing of the user's."""
_MOST_TOLD = 4
_NOT_FOUND = re.compile(r"No matching distribution found for ([^;]+)")
_VERSIONS = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
_QUIET = ["--no-input", "--no-color", "--disable-pip-version-check"]
_RUNNING = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"}
)


def main() -> int:
    """Do what the arguments say; the exit status."""
    step, folder, *listed = sys.argv[1:]
    if step == "make":
        _Builder(symlinks=True).create(folder)
        if not listed:
            return 0
        python = f"{folder}/bin/python"
        os.execv(python, [python, "-I", __file__, "install", folder, *listed])  # noqa: S606
    sys.path.insert(0, str(Path(__file__).parent))
    return _install(listed[0])


def _install(listed: str) -> int:
    pip = import_module("pip._internal.cli.main")
    _apply_rules()
    for name in ("cli.req_command", "index.sources"):
        logging.getLogger(f"pip._internal.{name}").addFilter(_is_no_place)
    errors = _Errors()
    logging.getLogger("pip._internal.cli.base_command").addHandler(errors)
    command = ["install", *_QUIET, "--progress-bar", "off"]
    status = pip.main([*command, "--only-binary", ":all:", "-r", listed])
    missing = next(filter(None, map(_NOT_FOUND.search, errors.messages)), None)
    if status and missing:
        reason = _only_source(missing[1].strip(), pip.main)
        if reason:
            print(f"nsml: {reason}", flush=True)  # noqa: T201 - the build's log
    return int(status)


class _Builder(venv.EnvBuilder):
    """Makes an environment at a path that may be a link, as it is without a root of its own."""

    def ensure_directories(self, env_dir: Any) -> Any:
        """The folders where the link leads, under the names that they will keep."""
        real = os.path.realpath(env_dir)
        context = super().ensure_directories(real)
        for name, value in vars(context).items():
            if isinstance(value, str) and value.startswith(real):
                setattr(context, name, f"{env_dir}{value.removeprefix(real)}")
        return context


def _is_no_place(record: logging.LogRecord) -> bool:
    """Whether a line is other than where this machine looks for packages, which is nothing of the user's."""
    text = record.getMessage()
    return not text.startswith(PLACES)


class _Errors(logging.Handler):
    """Remembers pip's errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _apply_rules() -> None:
    """Have this pip fetch wheels only, and run nothing. Raises AttributeError for a pip of other insides."""
    prepare = import_module("pip._internal.operations.prepare")
    fetcher = import_module("pip._internal.network.session").PipSession
    preparer = prepare.RequirementPreparer
    send, prepare_linked = fetcher.send, preparer.prepare_linked_requirement

    def sent(session: Any, request: Any, *given: Any, **named: Any) -> Any:
        if not _may_fetch(str(request.url)):
            _refuse(f"{_bare(request.url)} is not fetched: only http and https are")
        return send(session, request, *given, **named)

    def prepared(self: Any, requirement: Any, *given: Any, **named: Any) -> Any:
        link = requirement.link
        if link is not None and not (link.is_wheel and _may_fetch(link.url_without_fragment)):
            _refuse(
                f"{requirement.name or 'a package'} is required from {_bare(link.url_without_fragment)}:"
                " a node without containers installs wheels only, over http or https, because it does not"
                " run code of packages to install them"
            )
        return prepare_linked(self, requirement, *given, **named)

    fetcher.send = sent
    preparer.prepare_linked_requirement = prepared
    preparer.prepare_editable_requirement = _refuse_source
    # what the two above have not seen, in a pip that goes another way
    for name in ("unpack_file", "unpack_vcs_link"):
        getattr(prepare, name)
        setattr(prepare, name, _refuse_source)
    tarfile.open = tarfile.TarFile.open = _refuse_source  # type: ignore[method-assign]
    sys.addaudithook(_refuse_programs)


def _may_fetch(url: str) -> bool:
    """Whether a URL is of the network, or in a folder that the machine's own configuration names."""
    parts = urlsplit(url)
    if parts.scheme in {"http", "https"}:
        return True
    places = [place for place in os.environ.get(LOCAL_SOURCES, "").split(os.pathsep) if place]
    path = os.path.realpath(unquote(parts.path))
    is_local = parts.scheme == "file" and parts.netloc in {"", "localhost"}
    return is_local and any(
        path == place or path.startswith(f"{place}/") for place in map(os.path.realpath, places)
    )


def _refuse(message: str) -> NoReturn:
    raise import_module("pip._internal.exceptions").InstallationError(message)


def _refuse_source(*_given: object, **_named: object) -> NoReturn:
    _refuse("a node without containers does not run code of packages to install them")


def _refuse_programs(event: str, _arguments: tuple[Any, ...]) -> None:
    if event in _RUNNING:
        raise PermissionError("a node does not run code of packages to install them")


def _bare(url: object) -> str:
    """A URL for people: without a user's name and password, and not too long."""
    return re.sub(r"://[^/@\s]*@", "://", str(url))[:200]


def _only_source(asked: str, pip: Callable[[list[str]], int]) -> str:
    """Why a package that pip did not find cannot be had, where its indexes have it as source; else ""."""
    packaging = import_module("pip._vendor.packaging.requirements")
    try:
        wanted = packaging.Requirement(asked)
    except packaging.InvalidRequirement:
        return ""
    source = _versions(wanted.name, "--no-binary", pip)
    if not any(wanted.specifier.contains(one, prereleases=True) for one in source):
        return ""
    wheels = _versions(wanted.name, "--only-binary", pip)
    return (
        f"{wanted.name}{wanted.specifier} has no wheel for Python {platform.python_version()} on this"
        " machine, only source, and a node without containers does not run code of packages to build"
        f" them: {_instead(wheels)} a node with containers (--image), which builds them"
    )


def _versions(name: str, which: str, pip: Callable[[list[str]], int]) -> list[str]:
    """The versions that pip finds in its indexes as source or as wheels, newest first; [] for none."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        status = pip(["index", "versions", name, which, ":all:", *_QUIET])
    found = _VERSIONS.search(said.getvalue())
    return [] if status or found is None else [one.strip() for one in found[1].split(",")]


def _instead(wheels: list[str]) -> str:
    """What to ask for in place of source: "ask for a version that has wheels (2.1, 2.0), or for"."""
    if not wheels:
        return "no version of it has wheels: ask for"
    told = ", ".join(wheels[:_MOST_TOLD])
    if len(wheels) > _MOST_TOLD:
        told += f" ... {wheels[-1]}"
    return f"ask for a version that has wheels ({told}), or for"


if __name__ == "__main__":
    sys.exit(main())
