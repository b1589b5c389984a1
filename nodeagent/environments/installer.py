"""Makes a virtual environment and installs wheels into it. Runs in a build's sandbox, never in the agent.

`installer.py FOLDER [REQUIREMENTS BASE PREFERRED]`, with the program `uv` beside this file. The packages of BASE are
added if they are compatible with those of REQUIREMENTS, in the versions of the lock PREFERRED if possible.

The sandbox isolates this program from the machine. The rules here are about packages: only wheels, also as
dependencies. uv refuses URLs that packages of an index require, but would fetch any URL that is required by a
wheel named by a URL: such a wheel is checked first.

The environment gets links to the wheels that uv unpacked into its cache; the agent turns them into hard links
(`sealing.py`). Bytecode is compiled once for each unpacked wheel. The resolution is installed and written to
`LOCK` in the environment, as requirements with hashes.

Standard library only. A last line that begins with `nsml: ` is the reason of a failure.
"""

from __future__ import annotations

import collections
import compileall
import contextlib
import os
import platform
import py_compile
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from concurrent.futures import ProcessPoolExecutor
from email.parser import BytesHeaderParser
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, NoReturn

ALL_HASHED = "NSML_REQUIRE_HASHES"
"""Variable: set if every package must be listed with its hashes."""
NO_INDEX = "NSML_NO_INDEX"
"""Variable: set if no index is used, only links; uv has no variable for that."""
LOCK = "requirements.lock"
"""Beside `pyvenv.cfg`: the packages that were installed, in the format of requirements.txt, with hashes."""
_UNPACKED = "archive-v*"
"""Folder in uv's cache with unpacked wheels, a folder each."""
_COMPILERS = 4
_FEW = 100
"""Modules compiled in the time that a process takes to start."""
HASH = re.compile(r"\s--hash[= ](\w+:[0-9a-fA-F]+)")
_BY_URL = re.compile(
    r"Package `([^`]+)` was included as a URL dependency.*?`[^`@]+@ ([^`]+)`", re.DOTALL
)
_SOURCE_ONLY = re.compile(r"Wheels are required for `([^`]+)`")
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REASON = re.compile(r"(?:error|[ ]+cause): (.*)")


class Refused(Exception):
    """Installing failed; the text says why, for the session's user."""


def main() -> int:
    """Run by the arguments; return the exit status."""
    folder, *listed = sys.argv[1:]
    _Builder(symlinks=True).create(folder)
    if not listed:
        return 0
    try:
        _install(folder, *(Path(one).read_text(encoding="utf-8").splitlines() for one in listed))
    except Refused as refused:
        print(f"nsml: {refused}", flush=True)  # noqa: T201 - the build's log
        return 1
    return 0


def _install(
    folder: str, lines: Sequence[str], base: Sequence[str], preferred: Sequence[str]
) -> None:
    """Resolve, write the lock, and install from it. Raises Refused."""
    before = _unpacked()
    try:
        check_named_by_url(folder, lines)
        content = "".join(f"{line}\n" for line in locked(folder, lines, base, preferred))
        install_locked(folder, content)
    finally:
        # also if the build fails: the next one gets unpacked wheels read-only
        new = _unpacked() - before
        _compile(new)
    for wheel in new:
        _link_compiled(wheel, Path(sysconfig.get_path("purelib", vars={"base": folder})))
    lock = Path(folder, LOCK)
    lock.unlink(missing_ok=True)  # a wheel may have put a link there
    lock.write_text(content, encoding="utf-8")


def install_locked(folder: str, content: str) -> None:
    """Install the packages of a lock, and no others. Raises Refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as listed:
        listed.write(content)
        listed.flush()
        uv(["install", "--no-deps", "--require-hashes", "-r", listed.name], folder)


class _Builder(venv.EnvBuilder):
    """Makes an environment at a path that may be a link: it is one in builds without their own root."""

    def ensure_directories(self, env_dir: Any) -> Any:
        """Create the folders at the link's target; return their final names."""
        real = os.path.realpath(env_dir)
        context = super().ensure_directories(real)
        for name, value in vars(context).items():
            if isinstance(value, str) and value.startswith(real):
                setattr(context, name, f"{env_dir}{value.removeprefix(real)}")
        return context


def locked(
    folder: str,
    lines: Sequence[str],
    base: Sequence[str] = (),
    preferred: Sequence[str] = (),
    options: Sequence[str] = (),
) -> list[str]:
    """The packages that the lines resolve to, a line with hashes each; `options`: further ones of `uv pip compile`.

    Raises Refused, also if lines have hashes and a package has none.
    """
    given: dict[str, list[str]] = {}
    for line in lines:
        if found := HASH.findall(line):  # a package may have a line for each of its markers
            given.setdefault(canonical(line), []).extend(found)
    is_hashed = bool(given) or bool(os.environ.get(ALL_HASHED))
    resolved = _resolved(folder, lines, () if is_hashed else base, preferred, options)
    named = {_url(line) for line in (*lines, *base)}
    locked = []
    for line in resolved:
        name, url = canonical(line), _url(line)
        if url and url not in named:
            _refuse_link(name, url)
        if is_hashed and name not in given:
            raise Refused(
                f"{name} is required, and listed without --hash: where one package has hashes, all must"
                " have them"
            )
        what = HASH.sub("", line).strip()
        hashes = given.get(name) or HASH.findall(line)
        locked.append(" ".join([what, *(f"--hash={one}" for one in hashes)]))
    return locked


def _resolved(
    folder: str,
    lines: Sequence[str],
    base: Sequence[str],
    preferred: Sequence[str],
    options: Sequence[str],
) -> list[str]:
    """Resolve `lines` to packages with hashes, together with `base` if they are compatible."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as lock:
        command = ["compile", "--generate-hashes", "--no-header", "--no-annotate", *options, "-"]
        if base:
            lock.write("".join(f"{line}\n" for line in preferred))
            lock.flush()
            try:
                said = uv([*command, "-o", lock.name], folder, [*lines, *base])
            except Refused as refused:
                print(f"note: without the node's default packages: {refused}", flush=True)  # noqa: T201
                said = uv(command, folder, lines)
        else:
            said = uv(command, folder, lines)
    return said.replace("\\\n", "").splitlines()


def check_named_by_url(folder: str, lines: Sequence[str]) -> None:
    """Raises Refused if a wheel named by a URL requires another URL that is not named."""
    direct = [line for line in lines if "://" in line.partition(";")[0]]
    if not direct:
        return
    named = {_url(line) for line in direct}
    with tempfile.TemporaryDirectory() as target:
        uv(["install", "--no-deps", "--target", target, "--quiet", "-r", "-"], folder, direct)
        for path in Path(target).glob("*.dist-info/METADATA"):
            metadata = BytesHeaderParser().parsebytes(path.read_bytes())
            for required in metadata.get_all("Requires-Dist", []):
                asked, _, condition = required.partition(";")
                name, at, url = asked.partition("@")
                if at and bare(url.strip()) not in named and "extra" not in condition:
                    _refuse_link(name.strip(), url.strip())


def _compile(wheels: Iterable[Path]) -> None:
    """Compile their modules, skipping those for another Python and templates."""
    modules = [str(module) for wheel in wheels for module in wheel.rglob("*.py")]
    compiled = partial(
        compileall.compile_file,
        quiet=2,
        # sources never change, and links have other times than the wheel's files
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    workers = min(len(os.sched_getaffinity(0)), _COMPILERS, len(modules) // _FEW)
    if workers < 2:
        collections.deque(map(compiled, modules), maxlen=0)
        return
    with ProcessPoolExecutor(workers) as pool:
        collections.deque(pool.map(compiled, modules, chunksize=_FEW // 4), maxlen=0)


def _link_compiled(wheel: Path, packages: Path) -> None:
    """Link this wheel's bytecode to its modules in `packages`, as uv does if the bytecode exists before."""
    for compiled in wheel.rglob("__pycache__/*.pyc"):
        link = packages / compiled.relative_to(wheel)
        module = link.parent.with_name(f"{link.name.partition('.')[0]}.py")
        if module.is_symlink() and not link.is_symlink():
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(compiled)


def _unpacked() -> set[Path]:
    return set(Path(os.environ["UV_CACHE_DIR"]).glob(f"{_UNPACKED}/*"))


def uv(command: Sequence[str], folder: str, lines: Sequence[str] = ()) -> str:
    """The output of `uv pip`, whose messages go to the log. Raises Refused."""
    return uv_run(command, folder, lines).stdout


def uv_run(
    command: Sequence[str], folder: str, lines: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """As `uv`, with its messages (`stderr`)."""
    uv = str(Path(__file__).with_name("uv"))
    python = f"{folder}/bin/python"
    options = [
        "--python",
        python,
        "--no-build",
        *(["--no-index"] if os.environ.get(NO_INDEX) else []),
    ]
    done = subprocess.run(
        [uv, "pip", command[0], *options, *command[1:]],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )
    said = text_without_secrets(done.stderr)
    shown = [line for line in said.splitlines() if line and not line.startswith("Using Python")]
    print("\n".join(shown), end="\n" if shown else "", flush=True)  # noqa: T201 - the build's log
    if done.returncode:
        raise Refused(_why(said, folder, lines) or no_reason("uv", done.returncode, shown))
    return done


def _why(said: str, folder: str, lines: Sequence[str]) -> str:
    """On one line, why uv failed; "" where it names no error."""
    if by_url := _BY_URL.search(said):
        return _of_link(by_url[1], by_url[2])
    if (source := _SOURCE_ONLY.search(said)) and (why := _only_source(source[1], folder, lines)):
        return why
    reasons: list[str] = []
    for line in said.splitlines():
        if found := _REASON.fullmatch(line):
            reasons.append(found[1])
        elif reasons and line.startswith("  "):
            reasons[-1] += f" {line.strip()}"
        elif reasons:
            break
    return ": ".join(reasons)


def no_reason(program: str, status: int, said: Sequence[str]) -> str:
    """On one line, that a program failed without an error message, and what to do."""
    how = f"ended with exit code {status}" if status > 0 else f"was killed by signal {-status}"
    last = next((line.strip() for line in reversed(said) if line.strip()), "")
    shown = f"its last line is {last[:300]!r}" if last else "it printed nothing"
    return (
        f"{program}, which installs the packages, {how} without an error message ({shown}): try again, and tell an"
        " administrator if it fails again"
    )


def _only_source(name: str, folder: str, lines: Sequence[str]) -> str:
    """Why a package without wheels is not installed."""
    asked = next((line.partition(";")[0] for line in lines if canonical(line) == name), name)
    asked = "".join(HASH.sub("", asked).split())
    instead = "no version of it has wheels: ask for"
    if asked != name:
        with contextlib.suppress(Refused):
            found = uv(
                ["compile", "--no-deps", "--no-header", "--no-annotate", "-q", "-"], folder, [name]
            )
            version = found.strip().rpartition("==")[2]
            instead = f"ask for a version that has wheels ({version}), or for"
    return (
        f"{asked} has no wheel for Python {platform.python_version()} on this machine, only source, and a"
        " node without containers does not run code of packages to build them:"
        f" {instead} a node with containers (--image), which builds them"
    )


def _refuse_link(name: str, url: str) -> NoReturn:
    raise Refused(_of_link(name, url))


def _of_link(name: str, url: str) -> str:
    """Why a URL that a package requires is not installed."""
    link = bare(url)
    if link.startswith("https://") and urlsplit(link).path.endswith(".whl"):
        return (
            f"{name} is required from {link} by another package: to install it, add the line"
            f" {name} @ {link} to requirements.txt"
        )
    return (
        f"{name} is required from {link}: a node without containers installs wheels only, over http or"
        " https, because it does not run code of packages to install them"
    )


def _url(line: str) -> str:
    """The URL in a line, without hashes and conditions."""
    found = re.search(r"\w+://\S+", line)
    return bare(found[0].rstrip(";")) if found else ""


def bare(url: object) -> str:
    """A URL for messages: without user name, password and fragment, and cut."""
    return text_without_secrets(str(url)).partition("#")[0][:200]


def text_without_secrets(text: str) -> str:
    """`text` without user names and passwords in URLs anywhere in it."""
    return re.sub(r"://[^/\s]*@", "://", text)


def canonical(line: str) -> str:
    """The normalized name of the package of a line; "" if it names none."""
    found = _NAMED.match(line)
    if found is None or line.startswith("http"):
        wheel = re.search(r"/([A-Za-z0-9._]+)-[^/]*\.whl", line)
        return re.sub(r"[-_.]+", "-", wheel[1]).lower() if wheel else ""
    return re.sub(r"[-_.]+", "-", found[0]).lower()


if __name__ == "__main__":
    sys.exit(main())
