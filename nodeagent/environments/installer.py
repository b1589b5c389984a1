"""Makes a virtual environment and installs wheels into it. Runs in a build's sandbox, never in the agent.

`installer.py FOLDER [REQUIREMENTS BASE PREFERRED]`, with the program `uv` beside this file. The packages of BASE are
added where they can be had beside those of REQUIREMENTS, in the versions of the lock PREFERRED if possible.

The sandbox keeps what happens here from the machine. The rules here are for the packages' sake: only wheels, at
whatever depth they are required. uv refuses URLs that packages of an index require. What a wheel that was named by
a URL requires it would fetch, whatever it is: such a wheel is looked at first.

The environment gets links to the wheels that uv unpacked into its cache; the agent makes hard links of them
(`sealing.py`). Bytecode is compiled once for each unpacked wheel. What was resolved is written to `LOCK` in the
environment, as requirements with hashes, and installed from there.

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
"""Variable that is set where every package must be listed with its hashes."""
NO_INDEX = "NSML_NO_INDEX"
"""Variable that is set where no index is asked, only links; uv has none of its own for that."""
LOCK = "requirements.lock"
"""Beside `pyvenv.cfg`: the packages that were installed, in the format of requirements.txt, with hashes."""
_UNPACKED = "archive-v*"
"""Where in its cache uv keeps unpacked wheels, a folder each."""
_COMPILERS = 4
_FEW = 100
"""Modules that are compiled before another process has begun."""
HASH = re.compile(r"\s--hash[= ](\w+:[0-9a-fA-F]+)")
_BY_URL = re.compile(
    r"Package `([^`]+)` was included as a URL dependency.*?`[^`@]+@ ([^`]+)`", re.DOTALL
)
_SOURCE_ONLY = re.compile(r"Wheels are required for `([^`]+)`")
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REASON = re.compile(r"(?:error|[ ]+cause): (.*)")


class Refused(Exception):
    """What is not installed; the text says why, for the session's user."""


def main() -> int:
    """Do what the arguments say; the exit status."""
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
        # also of a build that fails: the next one only reads what this one unpacked
        new = _unpacked() - before
        _compile(new)
    for wheel in new:
        _link_compiled(wheel, Path(sysconfig.get_path("purelib", vars={"base": folder})))
    lock = Path(folder, LOCK)
    lock.unlink(missing_ok=True)  # no wheel may have put a link there
    lock.write_text(content, encoding="utf-8")


def install_locked(folder: str, content: str) -> None:
    """Install the packages of a lock, and no others. Raises Refused."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as listed:
        listed.write(content)
        listed.flush()
        uv(["install", "--no-deps", "--require-hashes", "-r", listed.name], folder)


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


def locked(
    folder: str,
    lines: Sequence[str],
    base: Sequence[str] = (),
    preferred: Sequence[str] = (),
    options: Sequence[str] = (),
) -> list[str]:
    """The packages that the lines lead to, a line with hashes each; `options` are further ones of `uv pip compile`.

    Raises Refused, also where its writer's own hashes do not name all of them.
    """
    given: dict[str, list[str]] = {}
    for line in lines:
        if found := HASH.findall(line):  # a package may be there once for each of its markers
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
    """The packages with hashes that `lines` lead to, with those of `base` if both can be had."""
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
    """Raises Refused where a wheel that is named by a URL requires what is not named so itself."""
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
    """Compile their modules; those of another Python, or for templates, stay as they are."""
    modules = [str(module) for wheel in wheels for module in wheel.rglob("*.py")]
    compiled = partial(
        compileall.compile_file,
        quiet=2,
        # nobody changes the source, and the times of links are not those of the wheel
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    workers = min(len(os.sched_getaffinity(0)), _COMPILERS, len(modules) // _FEW)
    if workers < 2:
        collections.deque(map(compiled, modules), maxlen=0)
        return
    with ProcessPoolExecutor(workers) as pool:
        collections.deque(pool.map(compiled, modules, chunksize=_FEW // 4), maxlen=0)


def _link_compiled(wheel: Path, packages: Path) -> None:
    """Give the modules in `packages` that are of this wheel their bytecode, as uv does where it is there before."""
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
    """The same with its messages (`stderr`)."""
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
    """Why a package that has no wheels cannot be had."""
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
    """Why what a package requires by a URL is not installed."""
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
    """A URL for people: without a user's name and password, and not too long."""
    return text_without_secrets(str(url)).partition("#")[0][:200]


def text_without_secrets(text: str) -> str:
    """`text` without user names and passwords in URLs, wherever they stand in it."""
    return re.sub(r"://[^/\s]*@", "://", text)


def canonical(line: str) -> str:
    """The name of the package of a line, in its one form; "" where it names none."""
    found = _NAMED.match(line)
    if found is None or line.startswith("http"):
        wheel = re.search(r"/([A-Za-z0-9._]+)-[^/]*\.whl", line)
        return re.sub(r"[-_.]+", "-", wheel[1]).lower() if wheel else ""
    return re.sub(r"[-_.]+", "-", found[0]).lower()


if __name__ == "__main__":
    sys.exit(main())
