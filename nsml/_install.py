"""Installs the SDK for user code: the few files that training imports, and a hook that makes them win."""

from __future__ import annotations

import hashlib
import os
import py_compile
from importlib.util import cache_from_source
from pathlib import Path

_PACKAGE = Path(__file__).parent
_NOT_FOR_USER_CODE = {"_install.py", "_sitecustomize.py"}


def sdk_files() -> dict[str, bytes]:
    """Return the content of every file of the SDK by relative path."""
    names = {"__init__.py", "constants.py", "encoder.py", "decoder.py", "evaluation.py"}
    names |= {"spec/__init__.py", "spec/submission_exits.py"}
    names |= {path.name for path in _PACKAGE.glob("_*.py")} - _NOT_FOR_USER_CODE
    names |= {f"_echo/{path.name}" for path in (_PACKAGE / "_echo").glob("*.py")}
    files = {f"nsml/{name}": (_PACKAGE / name).read_bytes() for name in sorted(names)}
    files["sitecustomize.py"] = (_PACKAGE / "_sitecustomize.py").read_bytes()
    return files


def sdk_digest() -> str:
    """Return a name for exactly this SDK, 16 hex digits.

    A running program imports parts of the SDK as needed, so a newer SDK belongs in another
    folder, never over one in use.
    """
    digest = hashlib.sha256()
    for path, content in sdk_files().items():
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def write_sdk(target: Path) -> None:
    """Write the SDK to `target`, to be the first entry of the program's PYTHONPATH.

    It is compiled for this interpreter, because user code often sees the folder read-only and would
    compile it at each start; other interpreters work too.

    Idempotent, and a file is never seen in part: several agents may do it at once.

    Raises:
        OSError: the folder cannot be written.
    """
    for path, content in sdk_files().items():
        place = target / path
        compiled = Path(cache_from_source(str(place)))
        is_current = place.is_file() and place.read_bytes() == content
        if not is_current:
            place.parent.mkdir(parents=True, exist_ok=True)
            draft = place.with_name(f".{place.name}.{os.getpid()}.tmp")
            draft.write_bytes(content)
            compiled.unlink(missing_ok=True)
            draft.replace(place)
        if not (is_current and compiled.is_file()):
            py_compile.compile(
                str(place),
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
