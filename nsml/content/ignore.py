"""Which files of a folder are left out: `.nsmlignore` in gitignore syntax, after the defaults.

A later pattern wins, so a project takes a default back with `!pattern`. Only the file at the top of
the folder is read. A folder that is left out is not entered, as in git.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nsml.content.errors import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

IGNORE_FILE = ".nsmlignore"

# What `nsml run --show-default-nsmlignore` prints.
DEFAULT_CODE_IGNORES = """\
# version control
.git/
.hg/
.svn/
# Python
__pycache__/
*.py[cod]
*.egg-info/
.eggs/
.ipynb_checkpoints/
.mypy_cache/
.pytest_cache/
.ruff_cache/
.tox/
.venv/
venv/
# editors and desktops
.idea/
.vscode/
.DS_Store
Thumbs.db
*.swp
*~
# variables of programs, secrets among them: nsml run --env-file .env
.env
.env.*
!.env.example
!.env.sample
!.env.template
# nsml
.nsml/
"""

DEFAULT_DATASET_IGNORES = """\
.git/
.DS_Store
Thumbs.db
"""


class _Spec(Protocol):
    def match_file(self, file: str) -> bool: ...


class IgnoreRules:
    """Patterns in order; `ignores` says whether a path of the folder is left out."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines: Sequence[str] = tuple(lines)
        self._spec: _Spec | None = None

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Whether the `/`-separated `path`, relative to the folder's top, is left out."""
        if not self.lines:
            return False
        if self._spec is None:
            from pathspec import GitIgnoreSpec

            self._spec = GitIgnoreSpec.from_lines(self.lines)
        return self._spec.match_file(path + "/" if is_folder else path)


def rules_for(
    folder: Path, *, defaults: str = DEFAULT_CODE_IGNORES, exclude: Iterable[str] = ()
) -> IgnoreRules:
    """The rules of `folder`: `defaults`, then its `.nsmlignore`, then `exclude`.

    Raises Unreadable when the ignore file is there but cannot be read as UTF-8 text.
    """
    try:
        own = (folder / IGNORE_FILE).read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        own = []
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(IGNORE_FILE, f"cannot read {IGNORE_FILE}: {error}") from error
    return IgnoreRules([*defaults.splitlines(), *own, *exclude])
