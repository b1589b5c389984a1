"""What `micromamba.py` makes an executable of: the command lines of micromamba that nsml uses, carried out by rattler."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import zipfile
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

_UNSOLVED = "Could not solve for environment specs"


def main() -> None:
    """Do what the arguments say, and end: rattler's threads may crash the interpreter where it ends by itself."""
    try:
        if sys.argv[1:] == ["--version"]:
            print("@VERSION@")
        elif sys.argv[1:2] == ["create"]:
            _create(_parsed(sys.argv[2:]))
        elif sys.argv[1:3] == ["env", "export"]:
            _export(_parsed(sys.argv[3:]))
        else:
            _fail("The following arguments were not expected", status=109)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _parsed(words: list[str]) -> argparse.Namespace:
    known = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    known.add_argument("--root-prefix", required=True)
    known.add_argument("--prefix", required=True, type=Path)
    known.add_argument("-c", "--channel", action="append")
    known.add_argument("--file", type=Path)
    for flag in ("--yes", "--no-rc", "--always-copy", "--override-channels", "--explicit"):
        known.add_argument(flag, action="store_true")
    return known.parse_args(words)


def _create(asked: argparse.Namespace) -> None:
    if any(asked.prefix.iterdir()):
        _fail("Non-conda folder exists at prefix - aborting.")
    packages = Path(os.environ["CONDA_PKGS_DIRS"])
    lines = asked.file.read_text().splitlines()
    hashes = {}
    if "@EXPLICIT" in lines:
        files = [one.partition("#sha256:") for one in lines if one[:1] not in {"@", "#"}]
        hashes = {url: digest for url, _, digest in files}
        lines = [_exactly(url.rpartition("/")[2]) for url in hashes]
    _load_rattler()
    records = asyncio.run(_installed(lines, asked, packages, hashes))
    for file in asked.prefix.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_nlink > 1:
            shutil.copy2(file, f"{file}.copy")
            Path(f"{file}.copy").replace(file)
    for record in records:
        place = packages / record["name_of_folder"]
        noted = place / "info" / "repodata_record.json"
        if not noted.exists():
            noted.write_text(json.dumps(record))
            # newer versions have a folder for each channel
            below = packages / record["url"].rpartition("/")[0].replace("://", "/")
            below.mkdir(parents=True, exist_ok=True)
            place.rename(below / place.name)
    print(f"Transaction finished: {len(records)} packages")


def _load_rattler() -> None:
    """Have rattler imported from this file; its library, of 80 MB, is loaded from memory and never written to a disk."""
    memory = os.memfd_create("rattler")
    with zipfile.ZipFile(sys.argv[0]) as archive, os.fdopen(memory, "wb", closefd=False) as file:
        (library,) = (one for one in archive.namelist() if one.endswith(".so"))
        file.write(archive.read(library))
    path = f"/proc/self/fd/{memory}"
    loader = ExtensionFileLoader("rattler.rattler", path)
    spec = spec_from_file_location("rattler.rattler", path, loader=loader)

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> ModuleSpec | None:
            return spec if name == "rattler.rattler" else None

    sys.meta_path.insert(0, Finder)


def _exactly(file: str) -> str:
    name, version, build = file.removesuffix(".tar.bz2").removesuffix(".conda").rsplit("-", 2)
    return f"{name}=={version}={build}"


async def _installed(
    lines: list[str], asked: argparse.Namespace, packages: Path, hashes: dict[str, str]
) -> list[dict[str, Any]]:
    import rattler  # noqa: PLC0415
    from rattler.exceptions import SolverError  # noqa: PLC0415

    try:
        specs = [rattler.MatchSpec(one) for one in lines]
        found = await rattler.solve(asked.channel, specs, platforms=["linux-64", "noarch"])
    except SolverError as error:
        why = str(error).rpartition("because of: ")[2].strip()
        _fail(_UNSOLVED, f"error    libmamba {_UNSOLVED}\n    {why}\n")
    for one in found:
        if hashes and one.sha256.hex() != hashes.get(str(one.url)):
            _fail(f"Package {one.file_name} does not have the SHA-256 of the file")
    await rattler.install(
        found, asked.prefix, cache_dir=packages, execute_link_scripts=True, show_progress=False
    )
    return [
        {
            "name": one.name.normalized,
            "url": str(one.url),
            "sha256": one.sha256.hex(),
            "name_of_folder": one.file_name.removesuffix(".tar.bz2").removesuffix(".conda"),
        }
        for one in found
    ]


def _export(asked: argparse.Namespace) -> None:
    records = {}
    for path in sorted((asked.prefix / "conda-meta").glob("*.json")):
        record = json.loads(path.read_text())
        records[record["name"]] = record
    ordered: list[str] = []

    def add(name: str) -> None:
        if name in records and records[name]["url"] not in ordered:
            for one in records[name]["depends"]:
                add(one.split()[0])
            ordered.append(records[name]["url"])

    for name in records:
        add(name)
    print("# This file may be used to create an environment using:")
    print("# $ conda create --name <env> --file <this file>")
    print("# platform: linux-64\n@EXPLICIT")
    for url in ordered:
        print(f"{url}#{'0' * 32}")


def _fail(why: str, before: str = "", *, status: int = 1) -> NoReturn:
    sys.stderr.write(f"{before}critical libmamba {why}\n")
    sys.stderr.flush()
    os._exit(status)


main()
