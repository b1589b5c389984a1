"""Images from Dockerfiles: each step in a container of its own, under the limits of all builds.

The engine's own builders are not used: they run steps with more rights and with the runtime settings of images (all
GPUs, for example), fetch URLs themselves, and share their cache of steps among all users. A step here runs like the
installation of requirements (`run_build`): no privileges, no way to new ones, no mounts, the network of builds. Its
result is an image, cached under a hash of all its inputs and its user.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import shlex
import stat
import tarfile
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nodeagent.engine.containers import remove_container
from nodeagent.engine.engine_health import facts_of
from nodeagent.engine.images import created_container, is_engine_variable, packed_folder
from nodeagent.environments.errors import EnvironmentCancelled, EnvironmentFailed
from nodeagent.safe_paths import open_folder
from nsml.common.units import size_text
from nsml.packages.dockerfile import (
    MOST_BYTES,
    DockerfileRefused,
    declared,
    environment_pairs,
    expand,
    folder_of,
    program_of,
    read_dockerfile,
    shell_of,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from io import BufferedReader

    from nodeagent.engine.client import Engine
    from nodeagent.engine.images import StoredImage
    from nodeagent.environments.builds import Say
    from nsml.packages.dockerfile import Copied, Dockerfile, Step

_STAGED = "/run/nsml-copied"
"""Where the files of a COPY are in its container until its program copies them to the target."""
_IGNORES = ".dockerignore"
_USER = re.compile(r"[A-Za-z0-9_.-]{1,64}(?::[A-Za-z0-9_.-]{1,64})?")
_GLOB = re.compile(
    r"\\(?P<escaped>.)|(?P<star>\*+)|\[(?P<set>\^?(?:\\.|[^]\\])+)\]|(?P<one>.)", re.DOTALL
)
_OF_SET = re.compile(r"(-)|\\?(.)", re.DOTALL)
_SPECIAL = re.compile(r"[*?\[\]\\]")
_MOST_FILES = 200_000
_MOST_PATTERNS = 1_000
_MOST_FOLDER_BYTES = 4096
"""Linux's limit for paths."""
_FOLDER_BIT = 1 << 31
_LINK_BIT = 1 << 27
"""As in Go's file modes."""
_SHELL = ("/bin/sh", "-c")
_MAKE = 'mkdir -p -- "$1"'
_COPY = f"""\
set -e
target=$1 kind=$2 owner=$3 mode=$4
cd {_STAGED}
[ ! -d folders ] || kind=folder
[ "$kind" = folder ] && made=$target || made=$(dirname -- "$target")
mkdir -p -- "$made"
chown -R -h -- "$owner" .
[ -z "$mode" ] || chmod -R -- "$mode" .
[ "$kind" = folder ] && target=${{target%/}}/
for one in files/* files/.[!.]* files/..?* folders/*/* folders/*/.[!.]* folders/*/..?*; do
    [ -e "$one" ] || [ -L "$one" ] || continue
    cp -a -- "$one" "$target"
done
cd /
rm -rf -- {_STAGED}
"""
"""Run in the container, where links of the image resolve as for its programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A Dockerfile by its path in `folder`, which its user may change meanwhile, and values of its ARGs."""

    folder: Path
    path: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    def read(self) -> Dockerfile:
        """The Dockerfile. Raises EnvironmentFailed."""
        try:
            content = self.file(self.path, MOST_BYTES).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise EnvironmentFailed(f"{self.path} is not text in UTF-8") from None
        try:
            return read_dockerfile(content, self.arguments)
        except DockerfileRefused as error:
            raise refused(self.path, error) from None

    def file(self, path: str, most: int) -> bytes:
        """A file of the folder. Raises EnvironmentFailed."""
        parts = path.split("/")
        try:
            with (
                open_folder(self.folder, tuple(parts[:-1])) as folder,
                open(_opened(parts[-1], folder), "rb") as file,
            ):
                content = file.read(most + 1)
        except (OSError, ValueError):
            raise EnvironmentFailed(f"the code has no file {path[:200]}") from None
        if len(content) > most:
            raise EnvironmentFailed(f"{path[:200]} has over {size_text(most)}")
        return content


def refused(path: str, error: DockerfileRefused) -> EnvironmentFailed:
    """The error for a Dockerfile that a node does not build."""
    return EnvironmentFailed(f"{path}, {error}" + (f": {error.why}" if error.why else ""))


class Context:
    """The files of a folder that a Dockerfile may copy: `.dockerignore` excludes others.

    Reading them may take long: each method raises EnvironmentCancelled soon after `cancelled` is set.

    Raises:
        EnvironmentFailed: too many files or patterns.
    """

    def __init__(self, recipe: Recipe, cancelled: threading.Event) -> None:
        self.folder = recipe.folder
        self._recipe = recipe
        self._cancelled = cancelled
        ignores = [f"{recipe.path}{_IGNORES}", _IGNORES]
        self._ignored = _ignores(next((t for t in map(self._text, ignores) if t is not None), ""))
        self.files = sorted(self._found())
        self._digests: dict[str, str] = {}

    def digest(self) -> str:
        """Hash all paths, modes and contents."""
        whole = hashlib.sha256()
        for path in self.files:
            whole.update(f"{path}\0{self.file_digest(path)}\0".encode(errors="surrogateescape"))
        return whole.hexdigest()

    def file_digest(self, path: str) -> str:
        """Hash the mode and content of a file."""
        if path not in self._digests:
            content = hashlib.sha256()
            with self.opened(path) as file:
                is_program = os.fstat(file.fileno()).st_mode & 0o100
                while piece := file.read(1 << 20):
                    self._look()
                    content.update(piece)
            self._digests[path] = f"{'x' if is_program else '-'}{content.hexdigest()}"
        return self._digests[path]

    def opened(self, path: str) -> BufferedReader:
        """Open a file, following no links."""
        self._look()
        *folders, name = path.split("/")
        with open_folder(self.folder, tuple(folders)) as folder:
            return open(_opened(name, folder), "rb")

    def matching(self, source: str) -> list[tuple[str, str]]:
        """The files matching a source of a COPY: each path, and its path below the target."""
        source = posixpath.normpath("/" + source).lstrip("/")
        if not source:
            return [(path, path) for path in self.files]
        names = [_glob(part) for part in source.split("/")]
        found = []
        for path in self.files:
            self._look()
            parts = path.split("/")
            if len(parts) < len(names) or not all(map(re.Pattern.fullmatch, names, parts)):
                continue
            # a folder's contents, or the file itself
            below = parts[len(names) :] or parts[-1:]
            found.append((path, "/".join(below)))
        return found

    def is_one_file(self, source: str) -> bool:
        """Whether a source is exactly one file of the folder."""
        return posixpath.normpath("/" + source).lstrip("/") in self.files

    def _found(self) -> Iterator[str]:
        has_exceptions = not all(one.leaves_out for one in self._ignored)
        seen = 0
        for base, folders, files in os.walk(self.folder):
            below = Path(base).relative_to(self.folder).as_posix()
            prefix = "" if below == "." else f"{below}/"
            if not has_exceptions:
                folders[:] = (name for name in folders if not self._is_ignored(prefix + name))
            seen += len(files)
            if seen > _MOST_FILES:
                raise EnvironmentFailed(
                    f"the folder has over {_MOST_FILES} files: .nsmlignore leaves out others"
                )
            for name in files:
                is_file = stat.S_ISREG(os.lstat(f"{base}/{name}").st_mode)
                if is_file and not self._is_ignored(prefix + name):
                    yield prefix + name

    def _is_ignored(self, path: str) -> bool:
        """As in Docker: the last pattern that matches the file, or a folder above it, decides."""
        self._look()
        fits = (one.leaves_out for one in reversed(self._ignored) if one.path.match(path))
        return next(fits, False)

    def _look(self) -> None:
        if self._cancelled.is_set():
            raise EnvironmentCancelled

    def _text(self, path: str) -> str | None:
        if not (self.folder / path).is_file():
            return None
        return self._recipe.file(path, MOST_BYTES).decode("utf-8-sig", errors="surrogateescape")


class _Pattern(NamedTuple):
    """A line of a `.dockerignore`; `path` matches a path, or a folder above."""

    path: re.Pattern[str]
    leaves_out: bool


def _ignores(text: str) -> list[_Pattern]:
    """The patterns of a `.dockerignore`, anchored at the top. Raises EnvironmentFailed."""
    lines = []
    for line in text.split("\n"):
        pattern = line.strip()
        if not pattern or line.startswith("#"):
            continue
        leaves_out = not pattern.startswith("!")
        path = posixpath.normpath(pattern.removeprefix("!").strip()).lstrip("/")
        names = _names(path)
        if path and names[0] not in {".", ".."}:  # as in Docker, these match nothing
            lines.append(_Pattern(_path_pattern(names), leaves_out))
    if len(lines) > _MOST_PATTERNS:
        raise EnvironmentFailed(f"{_IGNORES} has over {_MOST_PATTERNS} patterns")
    return lines


def _names(path: str) -> list[str]:
    """The globs of a pattern's path components; `**` stands for any folders. Raises EnvironmentFailed."""
    names: list[str] = []
    *_, last = parts = path.split("/")
    for part in parts:
        name = part
        if name.startswith("**") and name != "**":
            # Docker: `**.pyc` is any path with this suffix; `**a*` a name with this prefix
            is_end = not names and not _SPECIAL.search(path[2:])
            names.append("**")
            name = f"*{name[2:]}" if is_end else name[2:]
        if name != "**" and "**" in (name.rstrip("*") if part is last else name):
            raise EnvironmentFailed(
                f"{_IGNORES}: {path[:200]!r} has ** within a name, which a node does not read"
            )
        names.append(name)
    return names


def _path_pattern(names: Sequence[str]) -> re.Pattern[str]:
    """Regex of paths that begin with these names.

    Names between two `**` match equally many folders anywhere, so their first match is the best: each place is
    tried once, and a path takes at most as many steps as the product of its and the pattern's length.
    """
    names = [name for before, name in pairwise(["", *names]) if (before, name) != ("**", "**")]
    parts: list[list[str]] = [[]]
    for name in names:
        if name == "**":
            parts.append([])
        else:
            parts[-1].append(_name_pattern(name))
    first, *others = ("/".join(part) for part in parts)
    found = [first] if first else []
    found += [f"(?>(?:[^/]*+/)*?{part})" if part else "" for part in others]
    return re.compile("/".join(found), re.DOTALL)


def _glob(part: str) -> re.Pattern[str]:
    return re.compile(_name_pattern(part), re.DOTALL)


def _name_pattern(glob: str) -> str:
    r"""Regex of one whole name, in Go's syntax: `[^a]`, and `\` escapes. Stars do not backtrack, so none is slow.

    Raises EnvironmentFailed.
    """
    fixed = [""]
    for one in _GLOB.finditer(glob):
        if one["star"]:
            fixed.append("")
        elif one["set"]:
            fixed[-1] += _set_pattern(one["set"])
        elif one["one"] == "?":
            fixed[-1] += "[^/]"
        else:
            fixed[-1] += re.escape(one["escaped"] or one["one"])
    first, *others = fixed
    stars = [f"(?>[^/]*?{part})" for part in others[:-1]]
    end = f"[^/]*{others[-1]}" if others else ""
    return f"(?>{first}{''.join(stars)}{end}(?![^/]))"


def _set_pattern(content: str) -> str:
    """Regex of one character. Raises EnvironmentFailed."""
    inner = content.removeprefix("^")
    whole = "".join(one[1] or re.escape(one[2]) for one in _OF_SET.finditer(inner))
    pattern = f"(?!/)[{'^' if inner != content else ''}{whole}]"
    try:
        re.compile(pattern)
    except re.error:
        raise EnvironmentFailed(f"[{content[:80]}] is not a set of characters") from None
    return pattern


def _opened(name: str, folder: int) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("not a file")
    return descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """How to run a step: its container's program, environment and user, and a callback to add files.

    `shown`: its line of the file; "": it is not in the file, and is not reported.
    """

    argv: Sequence[str]
    shown: str
    environment: Mapping[str, str]
    user: str = "0:0"
    fill: Callable[[str], object] = lambda _: None


class Layers(Protocol):
    """Images of steps."""

    def step(self, key: str, base: StoredImage, run: StepRun, /) -> StoredImage:
        """The image of a step on `base`, cached under its key or built. Raises EnvironmentFailed, EngineError."""
        ...

    def put(self, container: str, folder: str, pieces: Iterable[bytes], /) -> None:
        """Unpack an archive in a folder of a step's container."""
        ...

    def look(self) -> None:
        """Raise if the build must end."""
        ...


@dataclass(slots=True)
class _Stage:
    """The state of a stage: its image, and its steps' settings."""

    image: StoredImage
    key: str
    environment: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    shell: Sequence[str] = _SHELL

    @property
    def variables(self) -> dict[str, str]:
        return {**self.arguments, **self.environment}


def build_key(
    recipe: Recipe, bases: Mapping[str, StoredImage], context: Context, *, owner: str
) -> str:
    """Hash of all inputs of an image from a Dockerfile, and its owner."""
    text = recipe.file(recipe.path, MOST_BYTES).decode(errors="replace")
    images = sorted((name, image.id) for name, image in bases.items())
    return _key(owner, text, sorted(recipe.arguments.items()), images, context.digest())


class DockerfileBuild:
    """One build.

    Args:
        bases: the images that it names, by name.
        owner: a user's id: only this user's steps are reused.
        name: of the container to copy files from.
    """

    def __init__(
        self,
        recipe: Recipe,
        dockerfile: Dockerfile,
        context: Context,
        bases: Mapping[str, StoredImage],
        layers: Layers,
        *,
        engine: Engine,
        owner: str,
        name: str,
        mark: str,
        say: Say,
    ) -> None:
        self._recipe = recipe
        self._file = dockerfile
        self._context = context
        self._bases = bases
        self._layers = layers
        self._engine = engine
        self._owner = owner
        self._name = name
        self._mark = mark
        self._say = say
        self._count = sum(len(one.steps) + 1 for one in dockerfile.stages)
        self._done = 0
        self._stages: list[_Stage] = []

    def run(self) -> StoredImage:
        """Build it; return the last stage's image. Raises EnvironmentFailed, EngineError, and errors of its layers."""
        for number, stage in enumerate(self._file.stages):
            before = None if stage.follows is None else self._stages[stage.follows]
            if before is None:
                image = self._bases[stage.image]
                mine = _Stage(image, _key(self._owner, image.id), dict(image.environment))
                if image.user and _USER.fullmatch(image.user):
                    mine.user = image.user
                if image.folder.startswith("/"):
                    mine.folder = image.folder
            else:
                mine = replace(before, environment=dict(before.environment), arguments={})
            self._stages.append(mine)
            self._tell(f"FROM {stage.image or f'stage {stage.follows}'}")
            for step in stage.steps:
                try:
                    self._take(step, number, mine)
                except DockerfileRefused as error:
                    raise refused(self._recipe.path, error) from None
                except EnvironmentFailed as error:
                    where = f"{self._recipe.path}, line {step.line}, {step.shown}"
                    raise EnvironmentFailed(f"{where}: {error}") from None
        last = self._stages[-1]
        if last.environment != dict(last.image.environment):
            self._step(last, "ENV", StepRun(argv=["true"], shown="", environment={}))
        return last.image

    def _tell(self, shown: str) -> None:
        self._done += 1
        self._say(f"Step {self._done}/{self._count}: {shown}\n".encode(errors="replace"))

    def _take(self, step: Step, number: int, stage: _Stage) -> None:
        self._tell(step.shown)
        match step.word:
            case "ARG":
                outer = dict(self._file.globals)
                stage.arguments |= declared(step, stage.variables, self._file.arguments, outer)
            case "ENV":
                stage.environment |= environment_pairs(step, stage.variables)
            case "SHELL":
                stage.shell = shell_of(step)
            case "USER":
                user = expand(step.text, stage.variables, step.line)
                if not _USER.fullmatch(user):
                    raise DockerfileRefused(step.line, f"{user[:80]!r} is no user")
                stage.user = user
            case "WORKDIR":
                folder = folder_of(expand(step.text, stage.variables, step.line), stage.folder)
                if len(folder.encode(errors="replace")) > _MOST_FOLDER_BYTES:
                    raise DockerfileRefused(step.line, "the path of its folder is too long")
                stage.folder = folder
                run = StepRun(argv=[*_SHELL, _MAKE, "sh", folder], shown=step.shown, environment={})
                self._step(stage, ["WORKDIR", folder], run)
            case "RUN":
                self._run(step, stage)
            case "COPY" | "ADD":
                copied = self._file.copied(step, number, stage.variables)
                self._copy(step, copied, stage)

    def _run(self, step: Step, stage: _Stage) -> None:
        variables = stage.variables
        argv = program_of(step, stage.shell)
        if not argv:
            raise DockerfileRefused(step.line, "RUN has no program")
        # variables that the engine's own programs act on are set by the step's first program
        inside = "".join(
            f"export {name}={shlex.quote(value)}; "
            for name, value in variables.items()
            if is_engine_variable(name)
        )
        enter = f'{inside}cd -- "$0" && exec "$@"'
        run = StepRun(
            argv=[*_SHELL, enter, stage.folder, *argv],
            shown=step.shown,
            environment={n: v for n, v in variables.items() if not is_engine_variable(n)},
            user=stage.user,
        )
        self._step(stage, ["RUN", argv, variables, stage.user, stage.folder], run)

    def _copy(self, step: Step, copied: Copied, stage: _Stage) -> None:
        target = folder_of(copied.target, stage.folder)
        is_folder = copied.target.endswith(("/", "/.")) or copied.target in {".", ".."}
        if copied.origin is None:
            files: dict[str, str] = {}
            for source in copied.sources:
                found = self._context.matching(source)
                if not found:
                    raise EnvironmentFailed(
                        f"{source[:200]} is not in the folder, or left out of it"
                    )
                files |= {below: path for path, below in found}
            is_folder = (
                is_folder
                or len(copied.sources) > 1
                or not self._context.is_one_file(copied.sources[0])
            )
            content = [[b, self._context.file_digest(path)] for b, path in sorted(files.items())]

            def fill(container: str) -> None:
                self._layers.put(container, "/", self._packed(files))

        else:
            origin = (
                self._bases[copied.origin]
                if isinstance(copied.origin, str)
                else self._stages[copied.origin].image
            )
            is_folder = is_folder or len(copied.sources) > 1
            sources = [posixpath.normpath("/" + one.lstrip("/")) for one in copied.sources]
            if any(re.search(r"[*?\[]", one) or one == "/" for one in sources):
                raise DockerfileRefused(step.line, "--from copies files and folders by name")
            content = [[origin.id, one] for one in sources]

            def fill(container: str) -> None:
                for source in sources:
                    self._put_from(origin, source, container)

        kind = "folder" if is_folder else "file"
        owner = copied.owner or "0:0"
        run = StepRun(
            argv=[*_SHELL, _COPY, "sh", target, kind, owner, copied.mode],
            shown=step.shown,
            environment={},
            fill=fill,
        )
        self._step(stage, ["COPY", content, target, kind, owner, copied.mode], run)

    def _step(self, stage: _Stage, what: object, run: StepRun) -> None:
        key = _key(stage.key, what, sorted(stage.environment.items()))
        base = replace(stage.image, environment=dict(stage.environment))
        stage.image = self._layers.step(key, base, run)
        stage.key = key

    def _packed(self, files: Mapping[str, str]) -> Iterator[bytes]:
        """An archive of files of the folder, by target path."""
        yield from _folders(_STAGED, f"{_STAGED}/files", end=False)
        made: set[str] = set()
        for below, path in sorted(files.items()):
            parts = below.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                if (folder := "/".join(parts[:depth])) not in made:
                    made.add(folder)
                    yield _entry(f"{_STAGED}/files/{folder}", kind=tarfile.DIRTYPE, mode=0o755)
            with self._context.opened(path) as file:
                facts = os.fstat(file.fileno())
                mode = 0o755 if facts.st_mode & 0o100 else 0o644
                yield _entry(f"{_STAGED}/files/{below}", size=facts.st_size, mode=mode)
                left = facts.st_size
                while left and (piece := file.read(min(left, 1 << 20))):
                    left -= len(piece)
                    yield piece
                if left:
                    raise EnvironmentFailed(f"{path[:200]} changed while it was read")
                yield b"\0" * (-facts.st_size % tarfile.BLOCKSIZE)
        yield b"\0" * (2 * tarfile.BLOCKSIZE)

    def _put_from(self, origin: StoredImage, source: str, container: str) -> None:
        """Copy a file or a folder from another image, as the engine packs it."""
        made = created_container(self._engine, origin, name=self._name, mark=self._mark)
        try:
            facts = facts_of(self._engine, made, source)
            if facts is not None and facts["mode"] & _LINK_BIT:
                source = facts["linkTarget"]
                facts = facts_of(self._engine, made, source)
            if facts is None:
                raise EnvironmentFailed(
                    f"{source[:200]} is not in the image that it is copied from"
                )
            into = f"{_STAGED}/{'folders' if facts['mode'] & _FOLDER_BIT else 'files'}"
            self._layers.put(container, "/", _folders(_STAGED, into))
            pieces = packed_folder(self._engine, made, source, self._layers.look)
            self._layers.put(container, into, pieces)
        finally:
            remove_container(self._engine, self._name)


def _folders(*paths: str, end: bool = True) -> Iterator[bytes]:
    """An archive of empty folders."""
    for folder in paths:
        yield _entry(folder, kind=tarfile.DIRTYPE, mode=0o755)
    if end:
        yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _entry(path: str, *, size: int = 0, mode: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.size, entry.mode, entry.type = size, mode, kind
    return entry.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape")


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(["dockerfile", 1, *parts]).encode()).hexdigest()[:32]
