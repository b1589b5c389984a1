"""A stand-in for micromamba, and channels of conda: neither can be fetched everywhere that tests run.

`make_micromamba` writes one executable file, as micromamba is one. It knows the command lines that nsml uses, and ends as
micromamba does; what solves, fetches and installs is rattler (py-rattler), from any channel. `make_package` adds to one.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path

from nodeagent.environments.sandbox import base_python

VERSION = "2.2.0"
PLATFORM = "linux-64"


def make_micromamba(place: Path, version: str = VERSION) -> Path:
    """Write the program, which needs no file beside it."""
    found = distribution("py-rattler")
    with place.open("wb") as file:
        file.write(f"#!{base_python()} -I\n".encode())
        with zipfile.ZipFile(file, "a", zipfile.ZIP_STORED) as archive:
            files = [one for one in found.files or () if one.parts[0] == "rattler"]
            for folder in sorted({str(one.parent) for one in files if one.suffix == ".py"}):
                # In an archive a folder without __init__.py is a package only if it has an entry.
                archive.mkdir(folder)
            for one in files:
                if one.suffix != ".pyc":
                    archive.write(str(one.locate()), str(one))
            program = Path(__file__).with_name("micromamba_program.py").read_text()
            archive.writestr("__main__.py", program.replace("@VERSION@", version))
    place.chmod(0o755)
    return place


def make_python(channel: Path) -> None:
    """A package `python` that leads to the one of this machine: its script links it, as scripts of packages do."""
    version = ".".join(map(str, sys.version_info[:3]))
    python = base_python()
    make_package(
        channel,
        "python",
        version,
        {
            "pyvenv.cfg": f"home = {python.parent}\nversion = {version}\n".encode(),
            "bin/.python-post-link.sh": f'ln -s {python} "$PREFIX/bin/python"\n'.encode(),
        },
        subdir=PLATFORM,
    )


def make_package(
    channel: Path,
    name: str,
    version: str = "1.0",
    files: Mapping[str, bytes] | None = None,
    *,
    depends: Sequence[str] = (),
    subdir: str = "noarch",
) -> Path:
    """Add a package to a channel, for every Python in `noarch`."""
    for folder in (PLATFORM, "noarch"):
        (channel / folder).mkdir(parents=True, exist_ok=True)
    files = files or {}
    noarch = {"noarch": "python"} if subdir == "noarch" else {}
    facts = {"name": name, "version": version, "build": "0", "build_number": 0, **noarch}
    index = {**facts, "depends": list(depends), "subdir": subdir}
    paths = [
        {
            "_path": path,
            "path_type": "hardlink",
            "sha256": _sha256(data),
            "size_in_bytes": len(data),
        }
        for path, data in files.items()
    ]
    link = {"noarch": {"type": "python"}, "package_metadata_version": 1}
    content = {
        "info/index.json": json.dumps(index).encode(),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
        **({"info/link.json": json.dumps(link).encode()} if noarch else {}),
        **files,
    }
    place = channel / subdir / f"{name}-{version}-0.tar.bz2"
    with tarfile.open(place, "w:bz2") as archive:
        for path, data in content.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755 if path.startswith("bin/") else 0o644
            archive.addfile(entry, io.BytesIO(data))
    data = place.read_bytes()
    record = {**index, "sha256": _sha256(data), "size": len(data)}
    for folder in (PLATFORM, "noarch"):
        listed = channel / folder / "repodata.json"
        tree = json.loads(listed.read_text()) if listed.exists() else {"packages": {}}
        if folder == subdir:
            tree["packages"][place.name] = record
        listed.write_text(json.dumps({"info": {"subdir": folder}, "packages.conda": {}, **tree}))
    return place


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
