"""What a code folder asks for: packages, `nsml_package.txt`, `#nsml:` lines.

Packages are those of one source, the first that lists any: the block of the entry (PEP 723), `setup.py` with
`requirements.txt`, `uv.lock`, `pyproject.toml`, the one other list of requirements.

Nothing of it is executed: `setup.py` is read as a syntax tree (`setup_reader.py`), and every line is matched against
what a line may be before it goes anywhere. What is taken are packages from an index, by name and
version, or by https URL; never folders, repositories or options that change what pip does.

`nsml run` refuses by this rule what no node installs, and each node reads by it what it installs.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from nsml.common.text_files import decoded
from nsml.packages import conda_reader, project_reader
from nsml.packages.conda_reader import name_of_spec
from nsml.packages.retired_names import renamed
from nsml.packages.setup_reader import install_requires
from nsml.spec.images import IMAGE_FILES, RULE, NamesNoImage, asked_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nsml.packages.conda_reader import CondaFile
    from nsml.packages.project_reader import Listed

    ReadConda = Callable[[str], CondaFile]
    """See `conda_reader.read`."""
    ReadProject = Callable[..., Listed]
    """See `project_reader.read`."""
    ReadSetup = Callable[[str], tuple[list[str], list[str]]]
    """From the text of a `setup.py` to the lines that it lists, and notes about what was left out."""
    ReadBytes = Callable[[str], bytes | None]
    """The content of a file of the folder, by its path there; None where there is none."""
    ReadText = Callable[[str], str | None]
    """The text of a file of the folder, by its path there; None where there is none."""

MOST_FILE_BYTES = 1 << 20
_MOST_LOCK_BYTES = 4 << 20
_LOCK: Final = "uv.lock"
_PROJECT: Final = "pyproject.toml"
_LISTS: Final = ("setup.py", "requirements.txt")
CONDA_FILES: Final = ("environment.yml", "environment.yaml")
"""What lists packages of conda; the first that is there."""
_BLOCK: Final = "# /// script"
OTHER_LISTS: Final = re.compile(r"(?:requirements/[\w.-]+|[\w.-]*requirements[\w.-]*)\.(?:txt|in)")
BESIDE: Final = re.compile(r"dev|test|doc|lint|build|ci\b|constraint|optional|extra", re.IGNORECASE)
"""What names lists of packages that a program does not need to run."""
OF_CONDA: Final = {
    "pytorch": "torch",
    **dict.fromkeys(("pytorch-cuda", "cudatoolkit", "nodefaults", "python", "pip"), ""),
}
"""Names that are others on PyPI, or belong to no package there."""
_MAX_DEPTH = 5
_MAX_LINES = 10_000
_MAX_FILES = 100
_MAX_CHARACTERS = 2_000
"""Of one requirement, its hashes aside: patterns take time that grows faster than a line."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[A-Za-z0-9._,\s-]*\])?"
_CLAUSE = r"(?:===?|[<>~!]=|[<>])\s*[^\s;@/,()<>=~]+"
_BY_VERSION = re.compile(
    rf"{_NAME}\s*(?:\(?\s*{_CLAUSE}(?:\s*,\s*{_CLAUSE})*\s*,?\s*\)?)?\s*(?:;.*)?"
)
_BY_WHEEL = re.compile(rf"(?:{_NAME}\s*@\s*)?https://[^\s?#]+\.whl(?:#\S*)?\s*(?:;.*)?")
_BY_ARCHIVE = re.compile(
    rf"(?:{_NAME}\s*@\s*)?https://[^\s?#]+\.(?:whl|zip|tar\.gz|tgz)(?:#\S*)?\s*(?:;.*)?"
)
_PACKAGE = re.compile(
    r"[a-z0-9][a-z0-9+.-]{0,98}[a-z0-9+.](?::[a-z0-9-]{0,20}[a-z0-9])?(?:=[A-Za-z0-9.+~:-]{0,99}[A-Za-z0-9+~])?"
)
"""A Debian package, with an architecture or a version; one with "-" behind it apt would remove."""
_PINNED = re.compile(r"===?\s*[^\s*,=<>!~()]+\s*\)?$")
_INCLUDES = re.compile(r"(?:-r\s*=?\s*|--requirement[\s=]\s*)(\S.*)")
_COMMENT = re.compile(r"(^|\s)#.*")
_NAMED = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)(?![A-Za-z0-9._-]*:)")
_FILE_NAMED = re.compile(r"/([A-Za-z0-9][A-Za-z0-9._]*)-[^/]*\.(?:whl|zip|tar\.gz|tgz)")
_INDEX_OPTIONS = {"-i", "--index-url", "--extra-index-url", "-f", "--find-links"}
_WEB = ("https://", "http://")
_PLAIN_OPTIONS = {"--pre", "--no-index", "--prefer-binary", "--require-hashes"}
_RELEASE = "write the name and version of a release, or the https URL of its wheel"
_SDK = "nsml"
_SDK_REPOSITORY = re.compile(
    r"(?:(?:-e|--editable)[ =])?(?:git|hg|svn|bzr)\+\S*/nsml-local(?:\.git)?(?:@[^\s#]+)?(?:#\S*)?(?: ?;.*)?"
)
"""The stand-in for NAVER's SDK in local runs; the package is called `nsml`, too."""
_NOT_INSTALLED = (
    (
        re.compile("-e|--editable"),
        "nodes install packages of an index, not folders",
        "remove the line: programs find the folder's modules (below src: --env PYTHONPATH=/app/src)",
    ),
    (
        re.compile("-c|--constraint"),
        "constraints files are not read",
        "put the versions into requirements.txt itself",
    ),
    (
        re.compile("-"),
        "options are those that name an index, --pre, --no-index, --prefer-binary and --require-hashes",
        "remove the line",
    ),
    (re.compile(r"(?:.*@ ?)?(?:git|hg|svn|bzr)\+"), "nodes fetch no repositories", _RELEASE),
    (
        re.compile(r"(?:.*@ ?)?(?:file:|[./~\\])|[A-Za-z]:[/\\]"),
        "it is a file or folder, and nodes install packages of an index",
        _RELEASE,
    ),
    (re.compile("(?:.*@ ?)?http:"), "what is fetched by a URL is fetched by https", _RELEASE),
    (
        re.compile(rf"{_NAME}\s*[<>=!~]"),
        "a version has ==, >=, <=, <, >, ~= or != before it, and commas between several",
        "write NAME==VERSION",
    ),
)
"""What begins so; why it is not installed, and what to write in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaPackages:
    """Packages of conda: specs as conda writes them, from channels by their names or URLs.

    `lock`: the lock (`nsml.packages.locks`) that they are installed from, exactly; "": the specs are resolved.
    """

    channels: Sequence[str]
    specs: Sequence[str]
    lock: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What a code folder asks for.

    `lines` are pip's, `packages` apt's, `image` is that of a `#nsml:` line, `notes` say what was
    found and is not honoured, each a sentence for the session's log. `source` says which file `lines` are of, and
    `python` which versions of Python that requires; "": none, and any. `conda` are packages of conda, which `lines` are
    added to.
    """

    lines: Sequence[str] = ()
    conda: CondaPackages | None = None
    packages: Sequence[str] = ()
    image: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    source: str = ""
    python: str = ""

    @property
    def is_of_lists(self) -> bool:
        """Whether its packages are those of requirements.txt and setup.py, or there are none."""
        return set(self.source.split(" and ")) <= {"", *_LISTS}

    @property
    def specs(self) -> Sequence[str]:
        """The packages of conda."""
        return self.conda.specs if self.conda else ()

    @property
    def count(self) -> int:
        """How many packages they name, system packages aside."""
        return len(self.specs) + sum(not line.startswith("-") for line in self.lines)

    def refuses_python(self, *versions: str) -> bool:
        """Whether it can be used with none of these versions of Python."""
        if not self.python:
            return False
        allowed = SpecifierSet(self.python)
        return not any(allowed.contains(one, prereleases=True) for one in versions)

    @property
    def has_own_sources(self) -> bool:
        """Whether packages come from where its writer says, by a URL, not the machine's configuration alone."""
        return any("://" in line for line in self.lines)

    @property
    def are_pinned(self) -> bool:
        """Whether every package that they name is of one version, or of one URL."""
        return not self.loose

    @property
    def loose(self) -> list[str]:
        """The packages that are neither of one version nor of one URL, as they are asked for."""
        named = [line for line in self.lines if not line.startswith("-")]
        return [
            *(line for line in named if not _is_pinned(line)),
            *(one for one in self.packages if "=" not in one),
            *(one for one in self.specs if "==" not in one),
        ]

    @property
    def are_hashed(self) -> bool:
        """Whether every line names the digest of its file: then nothing else is installed."""
        named = [line for line in self.lines if not line.startswith("-")]
        return bool(named) and all("--hash" in line for line in named)

    @property
    def names(self) -> frozenset[str]:
        """The names of the packages in their one form, without versions: `scikit-learn`."""
        specs = (conda_name(name_of_spec(one)) for one in self.specs)
        named = [*map(name_of, self.lines), *specs]
        return frozenset(filter(None, named))


class RequirementsRefused(ValueError):
    """A file that asks for what is not installed; `why` and `advice` are sentences for its writer."""

    def __init__(self, message: str, why: str = "", advice: str = "") -> None:
        super().__init__(f"{message}: {why}" if why else message)
        self.message = message
        self.why = why
        self.advice = advice


class ImageRefused(RequirementsRefused):
    """A `#nsml:` line that names no image."""


def as_text(name: str, content: bytes) -> str:
    """The text of a file that is read here. Raises RequirementsRefused where it is too long."""
    if len(content) > most_bytes(name):
        raise RequirementsRefused(f"{name} is over {most_bytes(name)} bytes")
    return decoded(content, "replace")


def most_bytes(name: str) -> int:
    """How long a file may be that is read here."""
    return _MOST_LOCK_BYTES if name == _LOCK else MOST_FILE_BYTES


class Readers(NamedTuple):
    """What parses files of users: where the caller has more rights than they, in a sandbox."""

    setup: ReadSetup = install_requires
    project: ReadProject = project_reader.read
    conda: ReadConda = conda_reader.read


HERE: Final = Readers()
"""In this very process."""


def read_requirements(
    text: ReadText,
    *,
    entry: str = "",
    files: Iterable[str] = (),
    may_build: bool = False,
    has_image: bool = False,
    readers: Readers = HERE,
) -> Requirements:
    """Read the files of a code folder. Raises RequirementsRefused.

    Args:
        text: reads one of them.
        entry: the program in Python that is run; "": none.
        files: names of files of the folder, in which lists of requirements are looked for.
        may_build: packages may be built from source where they are installed.
        has_image: it runs in a container, whose image has packages: to that nothing is added from a file with packages
            of conda, and one that cannot be used is a note. An image that the code names is one, too.
        readers: of what is more than lines.
    """
    setup, listed = text("setup.py"), text("requirements.txt")
    image = _image({"setup.py": setup, "requirements.txt": listed})
    found = _Sources(text, may_build=may_build, readers=readers).first(
        entry, setup, listed, files, has_image=has_image or image is not None
    )
    lines, notes = list(found.lines), list(found.notes)
    if len(lines) > _MAX_LINES:
        raise RequirementsRefused(f"over {_MAX_LINES:,} requirements are not installed")
    if len(others := [line for line in lines if name_of(line) != _SDK]) < len(lines):
        lines = others
        notes.append(f"{_SDK} is left out: a session has that of its node")
    for place, line in enumerate(lines):
        lines[place], note = renamed(line, name_of(line))
        notes += [note] if note else []
    return Requirements(
        lines=tuple(dict.fromkeys(lines)),
        packages=_packages(text("nsml_package.txt") or ""),
        image=image,
        notes=tuple(notes),
        source=found.source if lines or found.conda else "",
        python=found.python,
        conda=found.conda,
    )


class _Found(NamedTuple):
    """What a source lists."""

    source: str = ""
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()
    python: str = ""
    conda: CondaPackages | None = None


class _Sources:
    """Reads the files that may list packages, one after the other until one does."""

    def __init__(self, text: ReadText, *, may_build: bool, readers: Readers) -> None:
        self._text = text
        self._may_build = may_build
        self._readers = readers

    def first(
        self,
        entry: str,
        setup: str | None,
        listed: str | None,
        files: Iterable[str],
        *,
        has_image: bool,
    ) -> _Found:
        """The first source with packages; nothing but notes where there is none."""
        notes: list[str] = []
        readers: tuple[Callable[[], _Found], ...] = (
            lambda: self._of_script(entry),
            lambda: self._of_lists(setup, listed),
            self._of_lock,
            self._of_project,
            lambda: self._of_other_list(files),
            self._of_conda_in_image if has_image else self._of_conda,
        )
        for read in readers:
            found = read()
            notes += found.notes
            if found.lines or found.conda:
                return found._replace(notes=notes)
        return _Found(notes=notes)

    def _of_script(self, entry: str) -> _Found:
        try:
            text = self._text(entry) if entry.endswith((".py", ".pyw")) else None
        except RequirementsRefused:  # a long program
            return _Found()
        if text is None or _BLOCK not in text:
            return _Found()
        found = self._readers.project("script", text)
        return self._checked(f"the script block of {entry}", found)

    def _of_lists(self, setup: str | None, listed: str | None) -> _Found:
        lines: list[str] = []
        notes: list[str] = []
        sources: list[str] = []
        if setup is not None:
            named, notes = self._readers.setup(setup)
            lines += [_checked(line, "setup.py", may_build=self._may_build) for line in named]
            sources += ["setup.py"] if named else []
        if listed is not None:
            more = _Listed(self._text, may_build=self._may_build).lines(
                "requirements.txt", listed, _MAX_DEPTH
            )
            lines += more
            sources += ["requirements.txt"] if more else []
        return _Found(" and ".join(sources), lines, notes)

    def _of_lock(self) -> _Found:
        text = self._text(_LOCK)
        if text is None:
            return _Found()
        found = self._readers.project("lock", text, self._text(_PROJECT) or "")
        return self._checked(_LOCK, found)

    def _of_project(self) -> _Found:
        text = self._text(_PROJECT)
        if text is None:
            return _Found()
        return self._checked(_PROJECT, self._readers.project("project", text))

    def _of_other_list(self, files: Iterable[str]) -> _Found:
        """Of the only list under another name."""
        some = [name for name in files if "/" not in name and is_other_list(name)]
        text = self._text(some[0]) if len(some) == 1 else None
        if text is None:
            return _Found()
        listed = _Listed(self._text, may_build=self._may_build)
        return _Found(some[0], listed.lines(some[0], text, _MAX_DEPTH))

    def _of_conda_in_image(self) -> _Found:
        """Packages of pip alone are added to those of an image."""
        try:
            found = self._of_conda()
        except RequirementsRefused as error:
            return _Found(
                notes=[f"not used, since containers have the packages of their image: {error}"]
            )
        if found.conda is None:
            return found
        note = f"{found.source} is not built: containers have the packages of their image"
        return _Found(notes=[note])

    def _of_conda(self) -> _Found:
        name, text = next(
            ((one, text) for one in CONDA_FILES if (text := self._text(one)) is not None), ("", "")
        )
        if not name:
            return _Found()
        found = self._readers.conda(text)
        if found.refused:
            raise RequirementsRefused(
                f"the packages of {name} cannot be read",
                found.refused,
                f"list the packages in requirements.txt, or leave the file out: echo {name} >> .nsmlignore",
            )
        # never in containers, which alone build packages of pip from source
        lines = [_checked(line, name, may_build=False) for line in found.pip]
        if len(found.specs) > _MAX_LINES:
            raise RequirementsRefused(f"over {_MAX_LINES:,} packages of conda are not installed")
        conda = CondaPackages(channels=found.channels, specs=found.specs) if found.specs else None
        notes = found.notes if lines or conda else ()
        return _Found(name, lines, notes, conda=conda)

    def _checked(self, source: str, found: Listed) -> _Found:
        if found.refused:
            raise RequirementsRefused(f"the packages of {source} cannot be read", found.refused)
        if found.python and not _is_range(found.python):
            raise RequirementsRefused(
                f"{source}: requires-python {found.python[:80]!r} is no range of versions"
            )
        lines = [_checked(line, source, may_build=self._may_build) for line in found.lines]
        return _Found(source, lines, found.notes, found.python)


def is_other_list(name: str) -> bool:
    """Whether a file is a list of what a program needs, under another name than requirements.txt."""
    return (
        name != "requirements.txt"
        and OTHER_LISTS.fullmatch(name) is not None
        and not BESIDE.search(name.removesuffix(".txt"))
    )


def conda_name(name: str) -> str:
    """What a package of conda is called on PyPI, by its name in conda; "" where it is none of Python there."""
    return OF_CONDA.get(name, canonical(name))


def _is_range(python: str) -> bool:
    try:
        SpecifierSet(python)
    except InvalidSpecifier:
        return False
    return True


def _is_pinned(line: str) -> bool:
    """Whether a line with a package is of one version or URL, its conditions and hashes aside."""
    asked = re.sub(r"\s--hash[= ]\S+", "", line).partition(";")[0].strip()
    return "://" in asked or _PINNED.search(asked) is not None


def name_of(requirement: str) -> str:
    """The name of the package of a line in its one form; "" of an option, or of a URL without a name."""
    if named := _NAMED.match(requirement):
        return canonical(named[1])
    found = _FILE_NAMED.search(requirement)
    return canonical(found[1]) if found else ""


def canonical(name: str) -> str:
    """The one form of all names of a package: `Scikit_Learn` and `scikit-learn` are the same."""
    return re.sub(r"[-_.]+", "-", name).lower().strip("-")


def _image(texts: dict[str, str | None]) -> str | None:
    try:
        return asked_image(
            (name, text) for name in IMAGE_FILES if (text := texts[name]) is not None
        )
    except NamesNoImage as error:
        raise ImageRefused(
            str(error),
            RULE,
            "correct the line, such as: #nsml: pytorch/pytorch:2.4.0\n"
            "nsml run --image NAME    and no such line",
        ) from None


def _packages(listed: str) -> tuple[str, ...]:
    packages = []
    for raw in listed.splitlines():
        line = _COMMENT.sub("", raw).strip()
        if line and not _PACKAGE.fullmatch(line):
            raise RequirementsRefused(
                f"nsml_package.txt: {line[:80]!r} is not the name of a Debian package",
                "one a line, such as libgl1",
            )
        if line:
            packages.append(line)
    return tuple(dict.fromkeys(packages))


class _Listed:
    """Reads requirements files of a code folder: a bounded number, however they include one another."""

    def __init__(self, text: ReadText, *, may_build: bool) -> None:
        self._text = text
        self._may_build = may_build
        self._files = 0

    def lines(self, name: str, text: str, depth: int) -> list[str]:
        """The lines of one file, those of files that it includes in their place."""
        self._files += 1
        if depth == 0 or self._files > _MAX_FILES:
            raise RequirementsRefused(f"{name}: files include one another too deeply")
        lines: list[str] = []
        for line in _joined(text):
            included = _INCLUDES.fullmatch(line)
            if included:
                lines += self._included(name, included[1].strip("'\""), depth)
            else:
                lines.append(_checked(line, name, may_build=self._may_build))
            if len(lines) > _MAX_LINES:
                raise RequirementsRefused(f"{name}: over {_MAX_LINES:,} lines are not installed")
        return lines

    def _included(self, by: str, named: str, depth: int) -> list[str]:
        """The lines of a file, which is named from the folder of the one that names it, as for pip."""
        name = posixpath.normpath(posixpath.join(posixpath.dirname(by), named))
        if name.startswith(("/", "../")) or name == ".." or "://" in named:
            raise RequirementsRefused(
                f"{by}: -r {named}: leads out of the folder of the code",
                "nothing else is sent",
                f"copy it into the folder, and name it so: -r {posixpath.basename(named)}",
            )
        text = self._text(name)
        if text is None:
            raise RequirementsRefused(
                f"{by}: -r {named}: there is no such file",
                "",
                f"add the file {name}, or remove the line",
            )
        return self.lines(name, text, depth - 1)


def _joined(text: str) -> Iterator[str]:
    """The lines of a file as pip reads them: without comments, and those that end in a backslash with the next."""
    begun = ""
    for raw in text.splitlines():
        is_comment = raw.lstrip().startswith("#")
        if raw.endswith("\\") and not is_comment:
            begun += raw.rstrip("\\") + " "
            continue
        line = _COMMENT.sub("", begun + ("" if is_comment else raw)).strip()
        begun = ""
        if line:
            yield line
    if last := _COMMENT.sub("", begun).strip():
        yield last


def _checked(line: str, file: str, *, may_build: bool) -> str:
    """`line`, when it asks for packages from an index; else raises RequirementsRefused."""
    line = line.strip()
    if len(line.splitlines()) > 1 or "${" in line:
        # pip would read the second line as an option, and send variables of the agent to an index
        raise RequirementsRefused(f"{file}: {line[:200]!r} has a line break or names a variable")
    # in single spaces, which patterns can divide in one way only
    requirement = " ".join(re.sub(r"\s--hash[= ]\S+", "", line).split())
    if len(requirement) > _MAX_CHARACTERS:
        raise RequirementsRefused(
            f"{file}: {requirement[:80]!r}... is not installed: it has over {_MAX_CHARACTERS:,} characters"
        )
    if name_of(requirement) in {_SDK, f"{_SDK}-local"} or _SDK_REPOSITORY.fullmatch(requirement):
        return _SDK
    # pip reads what begins with - behind a package as options, of the whole file
    has_options = re.search(r"\s-", requirement) is not None
    by_url = _BY_ARCHIVE if may_build else _BY_WHEEL
    is_package = _BY_VERSION.fullmatch(requirement) or by_url.fullmatch(requirement)
    if is_package and not has_options:
        return line
    try:
        option, *values = shlex.split(
            requirement.replace("=", " ", 1) if requirement.startswith("--") else requirement
        )
    except ValueError:
        option, values = "", []
    if option in _PLAIN_OPTIONS and not values:
        return line
    if option in _INDEX_OPTIONS and len(values) == 1 and values[0].startswith(_WEB):
        return line
    here = "" if may_build else " here"
    raise RequirementsRefused(
        f"{file}: {line[:200]!r} is not installed{here}",
        *_why_not(requirement, may_build=may_build),
    )


def _why_not(requirement: str, *, may_build: bool) -> tuple[str, str]:
    """Why a line is not installed, and what to write in its place."""
    for pattern, why, advice in _NOT_INSTALLED:
        if pattern.match(requirement):
            return why, advice
    if may_build:
        return (
            "only packages, by name and version or by https URL, and options that name an index",
            "",
        )
    wheels = "only wheels, by name and version or by https URL, because a node without containers"
    return f"{wheels} does not run code of packages to install them", ""
