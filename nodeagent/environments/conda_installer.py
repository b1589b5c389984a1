"""Makes an environment of conda packages with micromamba, and adds pip packages with uv. Runs in a build's sandbox, never in the agent.

`conda_installer.py FOLDER RUN`, with the programs `micromamba` and `uv` and `installer.py` beside this file. RUN has
`channels.json` (URLs by name), `specs.txt`, `requirements.txt` and `lock.txt`, which is empty if the specs are to be resolved.

Scripts of packages run here, so a build has nothing that its user may not have: no credentials of the machine.

micromamba copies files, since links between mounts are impossible, and scripts must not change files of other
environments. Files that equal those of the package cache become links to them at the end, and the agent turns these into
hard links (`sealing.py`). The lock is `installer.LOCK` in the environment.

Standard library only. A last line that begins with `nsml: ` is the reason of a failure.
"""

from __future__ import annotations

import collections
import contextlib
import filecmp
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

if __name__ != "__main__":
    from nodeagent.environments import installer
else:
    sys.path.insert(0, str(Path(__file__).parent))
    installer = importlib.import_module("installer")

PACKAGES = "CONDA_PKGS_DIRS"
"""Variable with the folder of the package cache, also read by micromamba."""
ALIAS = "https://conda.anaconda.org/"
EXPLICIT = "@EXPLICIT"
PIP = "# pip "
"""As in `nsml.packages.locks`."""
_INDEXES = "cache"
"""Folder of channel indexes in micromamba's package cache; moved beside that between builds."""
_INFO = Path("info", "repodata_record.json")
"""The last file written to an unpacked package."""
_MOST_LINES = 20_000
"""Of micromamba's output: an environment has fewer packages."""
_REASON = re.compile(r"(?:critical|error)\s+libmamba (.*)")
_ADDED = re.compile(r" \+ (?P<name>\S+?)==(?P<version>[^\s(]+)(?: \(from (?P<url>\S+)\))?")


def main() -> int:
    """Run by the arguments; return the exit status."""
    folder, run = Path(sys.argv[1]), Path(sys.argv[2])
    packages = Path(os.environ[PACKAGES])
    packages.mkdir(parents=True, exist_ok=True)
    indexes = packages.with_name(f"{packages.name}-{_INDEXES}")
    with contextlib.suppress(OSError):
        indexes.rename(packages / _INDEXES)
    before = {one.name for one in _unpacked(packages)}
    try:
        _install(folder, run)
        _link_shared(folder, packages)
    except installer.Refused as refused:
        print(f"nsml: {refused}", flush=True)  # noqa: T201 - the build's log
        return 1
    finally:
        # also if the build fails: the next one gets unpacked packages read-only
        with contextlib.suppress(OSError):
            (packages / _INDEXES).rename(indexes)
        _tidy(packages, before)
    return 0


def _install(folder: Path, run: Path) -> None:
    channels = json.loads((run / "channels.json").read_text(encoding="utf-8"))
    given = (run / "lock.txt").read_text(encoding="utf-8")
    listed = run / "specs.txt"
    if given:
        files = [one for one in given.splitlines() if one.startswith(ALIAS)]
        fetched = [_place(one, channels) for one in files]
        listed.write_text("\n".join([EXPLICIT, *fetched, ""]), encoding="utf-8")
    options = [word for url in channels.values() for word in ("-c", url)]
    _micromamba(
        "create",
        *("--yes", "--no-rc", "--always-copy", "--override-channels", *options),
        *("--prefix", str(folder), "--file", str(listed)),
    )
    if not os.access(folder / "bin" / "python", os.X_OK):
        raise installer.Refused("no package has Python: add python to the list of packages")
    conda = _explicit(folder, channels)
    if given and sorted(conda[2:]) != sorted(files):
        raise installer.Refused("micromamba installed other packages than those of the lock")
    lines = (run / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pip = lines if given or not lines else _resolved(str(folder), lines)
    if pip:
        installer.install_locked(str(folder), "".join(f"{one}\n" for one in pip))
    content = given or "".join(f"{one}\n" for one in (*conda, *(f"{PIP}{one}" for one in pip)))
    lock = folder / installer.LOCK
    lock.unlink(missing_ok=True)
    lock.write_text(content, encoding="utf-8")


def _micromamba(*words: str, is_shown: bool = True) -> list[str]:
    """The last lines of its output, which is also logged at once if `is_shown`. Raises Refused."""
    program = Path(__file__).with_name("micromamba")
    root = Path(os.environ["TMPDIR"], "micromamba")
    said: collections.deque[str] = collections.deque(maxlen=_MOST_LINES)
    with subprocess.Popen(
        [str(program), *words, "--root-prefix", str(root)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as running:
        for line in running.stdout or ():
            said.append(line.rstrip("\n"))
            if is_shown:
                print(said[-1], flush=True)  # noqa: T201 - the build's log
    if running.returncode:
        raise installer.Refused(
            _why(said) or installer.no_reason("micromamba", running.returncode, said)
        )
    return [*said]


def _why(said: Iterable[str]) -> str:
    """On one line, why micromamba failed: the first error, with its explanation; "" if it names none."""
    lines = [*said]
    found = [place for place, line in enumerate(lines) if _REASON.match(line)]
    if not found:
        return ""
    reasons: list[str] = []
    for line in lines[found[0] :]:
        another = _REASON.match(line)
        if another and reasons:
            break
        reasons.append(another[1] if another else line.strip())
    return " ".join(filter(None, reasons))[:1_000]


def _explicit(folder: Path, channels: Mapping[str, str]) -> list[str]:
    """The lines of an explicit file: installed packages in an installable order, with their SHA-256."""
    records = {}
    for path in (folder / "conda-meta").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        records[_file(record["url"])] = record
    exported = _micromamba("env", "export", "--explicit", "--prefix", str(folder), is_shown=False)
    platforms = [one for one in exported if one.startswith("# platform: ")]
    lines = [*platforms[:1], EXPLICIT]
    for line in exported:
        if not line.startswith(("https://", "file://")):
            continue
        record = records.pop(_file(line.partition("#")[0]), None)
        if record is None:
            raise installer.Refused(f"micromamba lists {line[:200]}, which is not installed")
        if not record.get("sha256"):
            raise installer.Refused(f"the channel of {record['name']} gives no SHA-256 of it")
        lines.append(f"{_alias(record['url'], channels)}#sha256:{record['sha256']}")
    return lines


def _file(url: str) -> str:
    """The end of a URL, which identifies a package's file: its platform and its name."""
    return "/".join(url.split("/")[-2:])


def _alias(url: str, channels: Mapping[str, str]) -> str:
    """The URL of a file for a lock, by the name of its channel. Raises Refused."""
    for name, place in channels.items():
        if url.startswith(f"{place}/"):
            return f"{ALIAS}{name}{url.removeprefix(place)}"
    raise installer.Refused(f"{installer.bare(url)} is of no channel that is named")


def _place(line: str, channels: Mapping[str, str]) -> str:
    """This node's URL for a file of a lock. Raises Refused."""
    for name, place in channels.items():
        rest = line.removeprefix(f"{ALIAS}{name}/")
        if rest != line and rest.count("/") == 1:
            return f"{place}/{rest}"
    raise installer.Refused(f"{line[:200]} is of no channel that the code names")


def _resolved(folder: str, lines: Sequence[str]) -> list[str]:
    """The pip packages that the lines resolve to, a line with hashes each, except fitting ones from conda."""
    installer.check_named_by_url(folder, lines)
    said = installer.uv_run(["install", "--dry-run", "-r", "-"], folder, lines).stderr
    hashes = {installer.canonical(line): installer.HASH.findall(line) for line in lines}
    added = []
    for line in said.splitlines():
        if found := _ADDED.fullmatch(line):
            what = (
                f"{found['name']} @ {found['url']}"
                if found["url"]
                else f"{found['name']}=={found['version']}"
            )
            given = hashes.get(installer.canonical(found["name"]), [])
            added.append(" ".join([what, *(f"--hash={one}" for one in given)]))
    if not added:
        return []
    of_conda = Path(folder).glob("lib/python3*/site-packages/*.*-info")
    kept = {installer.canonical(one.name.partition("-")[0]) for one in of_conda}
    kept -= {installer.canonical(one) for one in added}
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as excluded:
        excluded.write("".join(f"{one}\n" for one in sorted(filter(None, kept))))
        excluded.flush()
        return installer.locked(folder, added, options=["--excludes", excluded.name])


def _link_shared(folder: Path, packages: Path) -> None:
    """Replace files of the environment by links to equal ones in the package cache."""
    unpacked = {one.name: one for one in _unpacked(packages)}
    sites = next(iter(folder.glob("lib/python3*/site-packages")), folder / "site-packages")
    for record in (folder / "conda-meta").glob("*.json"):
        package = unpacked.get(record.stem)
        if package is None:
            continue
        for file in package.rglob("*"):
            place = file.relative_to(package)
            if place.parts[0] == "info" or file.name == "RECORD" or not _is_plain(file):
                continue
            if place.parts[0] == "site-packages":  # of packages for every Python
                here = sites.joinpath(*place.parts[1:])
            elif place.parts[0] == "python-scripts":
                here = folder.joinpath("bin", *place.parts[1:])
            else:
                here = folder / place
            if _is_plain(here) and filecmp.cmp(here, file, shallow=False):
                here.unlink()
                here.symlink_to(packages / package.name / place)


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink() and file.stat().st_size > 0


def _unpacked(folder: Path) -> Iterator[Path]:
    """The unpacked packages of a cache, also in micromamba's folders for channels."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            if (entry / _INFO).is_file():
                yield entry
            elif entry.name != _INDEXES:
                yield from _unpacked(entry)


def _tidy(packages: Path, before: set[str]) -> None:
    """Reduce the cache to unpacked packages side by side, where micromamba finds them, too."""
    for package in list(_unpacked(packages)):
        target = packages / package.name
        if package != target and not target.exists():
            package.rename(target)
        if package.name not in before:
            _part(target)
    for entry in packages.iterdir():
        if not (entry / _INFO).is_file():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _part(package: Path) -> None:
    """Replace hard links in a new package by separate files: archives may contain hard links."""
    for file in package.rglob("*"):
        if not file.is_symlink() and file.is_file() and file.stat().st_nlink > 1:
            copy = file.with_name(f"{file.name}.nsml")
            shutil.copy2(file, copy)
            copy.replace(file)


if __name__ == "__main__":
    sys.exit(main())
