"""Names under which packages are required that are called otherwise now: `sklearn` is `scikit-learn`."""

from __future__ import annotations

import re
from typing import Final

_NEW: Final = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "opencv": "opencv-python-headless",
    "pil": "pillow",
    "pytorch": "torch",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tensorflow-gpu": "tensorflow",
    "yaml": "pyyaml",
}
"""Nothing is on PyPI by the old name, or a package that says so or only fails."""
_OWN_VERSIONS: Final = {"bs4": r"0\.0\b", "pil": "", "skimage": r"0\.0\b", "sklearn": r"0\.0\b"}
"""Patterns of versions that are of the old name alone."""
_LINE: Final = re.compile(r"([A-Za-z0-9._-]+)\s*(\[[^]]*\])?\s*([^;]*?)\s*(;.*)?")


def renamed(line: str, name: str) -> tuple[str, str]:
    """`line` as it is installed, and a sentence for its writer; "" where nothing is changed.

    `name` is that of its package, in its one form. A line with a URL or with hashes stays as it is.
    """
    new = _NEW.get(name)
    found = _LINE.fullmatch(line)
    if new is None or found is None or "://" in line or "--hash" in line:
        return line, ""
    old, extras, versions, condition = (part or "" for part in found.groups())
    if (own := _OWN_VERSIONS.get(name)) is not None and re.match(rf"\(?\s*===?\s*{own}", versions):
        versions = ""
    note = f"{old} is called {new}, which is installed in its place: write {new}{versions}"
    return f"{new}{extras}{versions}{condition}", note
