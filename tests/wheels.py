"""Wheels without an index of packages: what is installed here, packed again."""

from __future__ import annotations

import csv
import io
import zipfile
from importlib.metadata import distribution
from pathlib import Path


def repacked(name: str, folder: Path) -> Path:
    """The wheel in `folder` that an installed package came from; this machine can install it."""
    found = distribution(name)
    # What pip made of it here, such as programs and bytecode, it makes again.
    files = [
        file
        for file in found.files or ()
        if ".." not in file.parts
        and file.suffix != ".pyc"
        and file.name not in {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
    ]
    facts = (found.read_text("WHEEL") or "").splitlines()
    tag = next(line.removeprefix("Tag: ") for line in facts if line.startswith("Tag: "))
    place = folder / f"{found.name.replace('-', '_')}-{found.version}-{tag}.whl"
    record = next(file for file in found.files or () if file.name == "RECORD")
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows(
        [(str(file), "", "") for file in [*files, record]]
    )
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(place, "w") as wheel:
        for file in files:
            wheel.write(str(file.locate()), str(file))
        wheel.writestr(str(record), rows.getvalue())
    return place
