"""Ignore rules of a folder: the defaults, then `.nsmlignore` in gitignore syntax.

A later pattern wins, so `!pattern` reverts a default. Only the file at the top of the folder is
read. An ignored folder is not entered, as in git. Paths are as returned by the system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsml.common.text_files import decoded, file_content, lines_of
from nsml.content.errors import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pathspec import GitIgnoreSpec

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
.#*
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


class IgnoreRules:
    """Patterns in order.

    Args:
        skips_environments: ignore folders with an environment of Python packages, unless a `!` pattern
            matches.
    """

    def __init__(self, lines: Iterable[str], *, skips_environments: bool = False) -> None:
        self.lines: Sequence[str] = tuple(lines)
        self.skips_environments = skips_environments
        self._fast: GitIgnoreSpec | None = None
        self._exact: GitIgnoreSpec | None = None

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Whether the `/`-separated `path`, relative to the folder's top, is ignored."""
        return self._found(path, is_folder=is_folder) is True

    def keeps(self, path: str, *, is_folder: bool) -> bool:
        """Whether a `!` pattern keeps the path."""
        return self._found(path, is_folder=is_folder) is False

    def _found(self, path: str, *, is_folder: bool) -> bool | None:
        """Whether the last matching pattern ignores it; None without one."""
        if not self.lines:
            return None
        # No pattern has a line break, and `.` in a regular expression matches none.
        path = path.replace("\n", "\0") + ("/" if is_folder else "")
        return self._spec(path).check_file(path).include

    def _spec(self, path: str) -> GitIgnoreSpec:
        from pathspec import GitIgnoreSpec

        if path.isascii() or _is_utf8(path):
            if self._fast is None:
                exact = "simple" if not all(map(_is_utf8, self.lines)) else "best"
                self._fast = GitIgnoreSpec.from_lines(self.lines, backend=exact)
            return self._fast
        if self._exact is None:  # re2 supports UTF-8 only
            self._exact = GitIgnoreSpec.from_lines(self.lines, backend="simple")
        return self._exact


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_patterns(lines: Sequence[str]) -> bool:
    """Whether pathspec accepts the lines: not a bare `!`, a trailing backslash, or `[[:alpha:]]`."""
    import warnings

    from pathspec import GitIgnoreSpec

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backend = "best" if all(map(_is_utf8, lines)) else "simple"
            GitIgnoreSpec.from_lines(lines, backend=backend)
    except Exception:  # noqa: BLE001 - also what the engine of its regular expressions raises
        return False
    return True


def other_tool_rules(lines: Sequence[str]) -> IgnoreRules:
    """Rules from another tool's ignore file, without lines that are invalid here."""
    if not _are_patterns(lines):
        lines = [line for line in lines if _are_patterns([line])]
    return IgnoreRules(lines)


def rules_for(
    folder: Path, *, defaults: str = DEFAULT_CODE_IGNORES, exclude: Iterable[str] = ()
) -> IgnoreRules:
    """Return the rules of `folder`: `defaults`, then its `.nsmlignore`, then `exclude`.

    Environments of Python packages are skipped in code only. Raises Unreadable if the ignore file exists but
    cannot be read, or if it or `exclude` has an invalid pattern.
    """
    try:
        own = lines_of(decoded(file_content(folder / IGNORE_FILE)))
    except FileNotFoundError:
        own = []
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(IGNORE_FILE, f"cannot read {IGNORE_FILE}: {error}") from error
    if any("\0" in line for line in own):
        raise Unreadable(IGNORE_FILE, f"cannot read {IGNORE_FILE}: it is not text")
    for number, line in enumerate(own, 1):
        if not _are_patterns([line]):
            raise Unreadable(
                IGNORE_FILE, f"{IGNORE_FILE}, line {number}: {line!r} is not a pattern"
            )
    exclude = tuple(exclude)
    for line in exclude:
        if not _are_patterns([line]):
            raise Unreadable(".", f"--exclude: {line!r} is not a pattern")
    return IgnoreRules(
        [*defaults.splitlines(), *own, *exclude],
        skips_environments=defaults is DEFAULT_CODE_IGNORES,
    )
