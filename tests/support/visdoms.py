"""An environment with the real visdom, as an operator prepares one, for tests."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import platformdirs
import pytest

_PACKAGES: Final = ("visdom==0.3.0", "tornado<6.6")

# What visdom loads at its first start from the networks that publish npm's packages, and its name for each.
_SCRIPTS: Final = {
    "jquery@3.1.1": {"dist/jquery.min.js": "js/jquery.min.js"},
    "bootstrap@3.3.7": {
        "dist/js/bootstrap.min.js": "js/bootstrap.min.js",
        "dist/css/bootstrap.min.css": "css/bootstrap.min.css",
        "dist/fonts/glyphicons-halflings-regular.woff2": "fonts/glyphicons-halflings-regular.woff2",
    },
    "react@16.2.0": {"umd/react.production.min.js": "js/react-react.min.js"},
    "react-dom@16.2.0": {"umd/react-dom.production.min.js": "js/react-dom.min.js"},
    "react-resizable@3.1.3": {"css/styles.css": "css/react-resizable-styles.css"},
    "react-grid-layout@2.2.3": {"css/styles.css": "css/react-grid-layout-styles.css"},
    "layout-bin-packer@1.4.0": {"dist/layout-bin-packer.js": "js/layout_bin_packer.js"},
    "plotly.js-dist-min@2.11.1": {"plotly.min.js": "js/plotly-plotly.min.js"},
    "d3@3.5.17": {"d3.min.js": "js/d3.v3.min.js"},
    "d3-selection-multi@1.0.1": {"build/d3-selection-multi.js": "js/d3-selection-multi.v1.js"},
    "save-svg-as-png@1.4.17": {"lib/saveSvgAsPng.js": "js/saveSvgAsPng.js"},
    "mathjax@3.2.2": {"es5/tex-mml-svg.js": "js/mathjax/3.2.2/es5/tex-mml-svg.js"},
}


def required_visdom() -> Path:
    """The interpreter of an environment with visdom, made once and kept; skips where it cannot be made."""
    folder = Path(platformdirs.user_cache_dir("nsml-tests")) / "visdom-0.3.0"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder)
            (folder / "complete").touch()
    return folder / "bin/python"


def _make(folder: Path) -> None:
    base = next(_pythons(), "")
    if not base:
        pytest.skip("visdom needs Python 3.12 or newer, and there is none")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, which brings visdom's scripts")
    _run(base, "-m", "venv", str(folder))
    python = str(folder / "bin/python")
    _run(python, "-m", "pip", "install", "--quiet", *_PACKAGES)
    where = "import importlib.util as u; print(u.find_spec('visdom').submodule_search_locations[0])"
    static = Path(_run(python, "-c", where).strip()) / "static"
    packed = folder / "packed"
    packed.mkdir()
    names = _run("npm", "pack", "--json", "--pack-destination", str(packed), *_SCRIPTS)
    for one in json.loads(names):
        files = _SCRIPTS[one["id"]]
        with tarfile.open(packed / one["filename"]) as archive:
            for name, place in files.items():
                content = archive.extractfile(f"package/{name}")
                assert content is not None
                (static / place).parent.mkdir(parents=True, exist_ok=True)
                (static / place).write_bytes(content.read())
    shutil.rmtree(packed)


def _pythons() -> Iterator[str]:
    """Those of 3.12 or newer: on PATH, or of pyenv."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [f"python3.{minor}" for minor in (12, 13, 14)] + ["python3"]
    for place in (
        *places,
        *(str(one / "bin/python") for one in sorted(versions.glob("3.1[2-9].*"))),
    ):
        test = "import ensurepip, sys; sys.exit(sys.version_info < (3, 12))"
        try:
            done = subprocess.run([place, "-c", test], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            yield place


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        pytest.skip(f"visdom's environment cannot be made: {' '.join(argv[:3])}: {last}")
    return done.stdout
