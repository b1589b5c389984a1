"""Dockerfiles: read, checked and expanded; nothing is run here.

Both ends read them by one rule: `nsml run` before it sends anything, and the node that builds. Instructions are those of
Docker's reference, https://docs.docker.com/reference/dockerfile/. What would let a build reach beyond its container is
refused by name: secrets, binds and ssh of `RUN --mount`, other networks or rights, and files that the engine itself would
fetch (`ADD https://...`). BuildKit builds none of them (docs/decisions/0006-dockerfiles-without-buildkit.md): what only it
knows is refused, too, unless the image comes out the same without it.
"""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from nsml.spec.images import is_reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

NAME: Final = "Dockerfile"
"""Where it is looked for."""
MOST_BYTES: Final = 64 << 10
MOST_STEPS: Final = 127
"""As many layers as engines stack."""
MOST_STAGES: Final = 16
MOST_ARGUMENTS: Final = 64
MOST_ARGUMENT_CHARACTERS: Final = 4096
MOST_NAME_CHARACTERS: Final = 128
MOST_PATH_CHARACTERS: Final = 1024
MOST_EXPANDED_CHARACTERS: Final = 64 << 10
"""Of one instruction with its variables replaced: each may name all that came before, many times."""
MOST_VARIABLE_CHARACTERS: Final = 512 << 10
"""Of all names and values that a stage has; Linux starts programs with little more."""

_UNUSED = frozenset(
    {"CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "VOLUME"}
)
"""Of these a session uses nothing, whichever image has them."""
_USED = frozenset({"FROM", "RUN", "COPY", "ADD", "ENV", "ARG", "WORKDIR", "USER", "SHELL"})
_FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "FROM": frozenset({"platform"}),
    "RUN": frozenset({"mount"}),
    "COPY": frozenset({"from", "chown", "chmod", "link"}),
    "ADD": frozenset({"chown", "chmod", "link"}),
}
_FLAG = re.compile(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNUSABLE = re.compile(r"[\0\ud800-\udfff]")
_NUMBER = re.compile(r"[0-9]{1,3}")
_STAGE = re.compile(r"[a-z][a-z0-9-_.]*")
_ARCHIVE = re.compile(r"\.(?:tar(?:\.\w+)?|tgz|tbz2?|txz)$", re.IGNORECASE)
_HEREDOC = re.compile(r"(?<!<)<<-?\s*[\"']?[A-Za-z_]")
_DIRECTIVE = re.compile(r"#\s*([a-z]+)\s*=\s*(\S+)", re.IGNORECASE)
_FRONTEND = re.compile(
    r"(?:docker\.io/)?docker/dockerfile(?::(?:latest|1(?:\.[0-9]+){0,2}))?(?:@sha256:[0-9a-f]{64})?"
)
"""Those of `# syntax=` whose language this is."""
_OF_PLATFORM = frozenset(
    f"{which}{what}"
    for which in ("BUILD", "TARGET")
    for what in ("PLATFORM", "OS", "ARCH", "VARIANT")
)
"""ARGs that BuildKit gives values by itself."""
_WORD = re.compile(
    r"(?:'[^']*(?:'|\Z)|\"(?:\\.|[^\"\\])*(?:\"|\\?\Z)|\\(?:.|\Z)|[^\s'\"\\])+", re.DOTALL
)
"""One of several, as it is written: spaces in quotes are a part of it."""
_SHOWN_VARIABLE = re.compile(r"\$\{[^}\s]*\}?")
_SPECIAL = frozenset("@*#?-$!")
"""What shells have as names of one character; here they have no value."""
_MOST_NESTED = 8
_NO_CACHE_MOUNTS = (
    "RUN --mount=type=cache is left out: a step is kept whole, under all that it is made of"
)
_NO_PLATFORM = "FROM --platform is left out: images are those of the node's platform"


class DockerfileRefused(ValueError):
    """A Dockerfile that is not built; `line` counts from 1 (0: none), `why` says what to do instead."""

    def __init__(self, line: int, message: str, why: str = "") -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line, self.why = line, why


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction. `text` is what follows its flags, unexpanded; `shown` is it as it was written."""

    line: int
    word: str
    text: str
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """One line for logs and errors."""
        flags = "".join(f" --{name}={value}" for name, value in self.flags.items())
        whole = " ".join(f"{self.word}{flags} {self.text}".split())
        return whole if len(whole) <= 120 else f"{whole[:117]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What follows one FROM. `image` is the reference of its base, unless that is the stage `follows`."""

    image: str = ""
    follows: int | None = None
    steps: Sequence[Step] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a COPY or ADD asks for: `origin` is the number of a stage, the name of an image, or None: the folder."""

    sources: Sequence[str]
    target: str
    origin: int | str | None
    owner: str = ""
    mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    """A Dockerfile that may be built. `arguments` are values of its ARGs; `globals` those before the first FROM."""

    stages: Sequence[Stage]
    names: Mapping[str, int]
    arguments: Mapping[str, str]
    globals: Mapping[str, str]
    notes: Sequence[str] = ()

    @property
    def images(self) -> list[str]:
        """The images that it builds upon or copies from, each once."""
        found = [stage.image for stage in self.stages if stage.image]
        origins = [
            self.origin(step, number)
            for number, stage in enumerate(self.stages)
            for step in stage.steps
        ]
        return list(dict.fromkeys([*found, *(one for one in origins if isinstance(one, str))]))

    def origin(self, step: Step, number: int) -> int | str | None:
        """Where a step of a stage copies from. Raises DockerfileRefused."""
        name = step.flags.get("from", "")
        if not name:
            return None
        earlier = int(name) if _NUMBER.fullmatch(name) else self.names.get(name.lower())
        if earlier is not None:
            if earlier >= number:
                raise DockerfileRefused(step.line, f"stage {name} comes later, or not at all")
            return earlier
        if not is_reference(name):
            raise DockerfileRefused(step.line, f"{name[:80]!r} is neither a stage nor an image")
        return name

    def copied(self, step: Step, number: int, variables: Mapping[str, str]) -> Copied:
        """What a COPY or ADD asks for. Raises DockerfileRefused."""
        listed = _json_list(step.text)
        parts = (
            split_words(step.text, variables, step.line)
            if listed is None
            else expand_each(listed, variables, step.line)
        )
        if len(parts) < 2:
            raise DockerfileRefused(step.line, f"{step.word} has sources and a target")
        *sources, target = parts
        for source in sources:
            if "://" in source or source.startswith("git@"):
                raise DockerfileRefused(
                    step.line,
                    "ADD fetches nothing from addresses here",
                    "RUN with curl or wget does, within the network of builds",
                )
            if step.word == "ADD" and _ARCHIVE.search(source):
                raise DockerfileRefused(
                    step.line, "ADD unpacks no archives here", "COPY it, and RUN tar -xf"
                )
        owner = expand(step.flags.get("chown", ""), variables, step.line)
        mode = expand(step.flags.get("chmod", ""), variables, step.line)
        if owner and re.fullmatch(r"[A-Za-z0-9_.-]+(?::[A-Za-z0-9_.-]+)?", owner) is None:
            raise DockerfileRefused(step.line, f"{owner[:80]!r} is no owner")
        if mode and re.fullmatch(r"[0-7]{3,4}|[ugoarwxXst+=,-]{2,40}", mode) is None:
            raise DockerfileRefused(step.line, f"{mode[:80]!r} is no mode")
        return Copied(
            sources=sources,
            target=target,
            origin=self.origin(step, number),
            owner=owner,
            mode=mode,
        )


def is_path(path: str) -> bool:
    """Whether it is the path of a file in a folder of code: relative, nothing of it `..`."""
    parts = path.split("/")
    is_plain = all(part not in {"", ".", ".."} and part.isprintable() for part in parts)
    return is_plain and "\\" not in path and len(path) <= MOST_PATH_CHARACTERS


def arguments_error(arguments: Mapping[str, str]) -> str:
    """Why values of ARGs are not taken; "": they are."""
    if len(arguments) > MOST_ARGUMENTS:
        return f"at most {MOST_ARGUMENTS}"
    for name, value in arguments.items():
        if not _NAME.fullmatch(name) or len(name) > MOST_NAME_CHARACTERS:
            return f"{name[:80]!r} is no name of a variable"
        if len(value) > MOST_ARGUMENT_CHARACTERS or "\0" in value:
            return f"{name} has over {MOST_ARGUMENT_CHARACTERS} characters, or a NUL"
    return ""


def read_dockerfile(text: str, arguments: Mapping[str, str] | None = None) -> Dockerfile:
    """Read one; `arguments` are the values of `--build-arg`. Raises DockerfileRefused."""
    given = dict(arguments or {})
    if len(text.encode(errors="surrogatepass")) > MOST_BYTES:
        raise DockerfileRefused(0, f"it has over {MOST_BYTES >> 10} KiB")
    if "\0" in text:
        raise DockerfileRefused(0, "it has a NUL")
    steps = [_step(line, said) for line, said in _instructions(text)]
    if len(steps) > MOST_STEPS:
        raise DockerfileRefused(steps[MOST_STEPS].line, f"over {MOST_STEPS} instructions")
    first = next((at for at, one in enumerate(steps) if one.word == "FROM"), len(steps))
    before: dict[str, str] = {}
    for step in steps[:first]:
        if step.word != "ARG":
            raise DockerfileRefused(step.line, "it begins with FROM")
        before |= declared(step, before, given)
    _check_variables(steps, {**before, **given})
    stages, names = _stages(steps[first:], before)
    taken = {name for one in steps if one.word == "ARG" for name in _arguments(one)}
    if unknown := sorted(given.keys() - taken):
        raise DockerfileRefused(0, f"it has no ARG {unknown[0][:80]}")
    notes = {"mount": _NO_CACHE_MOUNTS, "platform": _NO_PLATFORM}
    made = Dockerfile(
        stages=stages,
        names=names,
        arguments=given,
        globals=before,
        notes=[text for flag, text in notes.items() if any(flag in one.flags for one in steps)],
    )
    for number, stage in enumerate(stages):
        for step in stage.steps:
            made.origin(step, number)
            if step.word in {"COPY", "ADD"} and "$" not in step.text:
                made.copied(step, number, {})
    return made


def _stages(
    steps: Sequence[Step], variables: Mapping[str, str]
) -> tuple[list[Stage], dict[str, int]]:
    """The stages, and the numbers of those with a name."""
    stages: list[Stage] = []
    names: dict[str, int] = {}
    for step in steps:
        if step.word != "FROM":
            stages[-1] = replace(stages[-1], steps=(*stages[-1].steps, step))
            continue
        stage, alias = _stage(step, variables, names)
        if alias:
            names[alias] = len(stages)
        stages.append(stage)
    if not stages:
        raise DockerfileRefused(0, "it has no FROM")
    if len(stages) > MOST_STAGES:
        raise DockerfileRefused(0, f"over {MOST_STAGES} stages")
    return stages, names


def _arguments(step: Step) -> dict[str, str | None]:
    """What an ARG names, with the default of each as it is written; None: it has none."""
    found: dict[str, str | None] = {}
    for word in _words(step.text):
        written, has_default, default = word.partition("=")
        name = expand(written, {}, step.line)
        if not _NAME.fullmatch(name):
            raise DockerfileRefused(step.line, f"ARG {name[:80]!r} is no name of a variable")
        found[name] = default if has_default else None
    return found


def declared(
    step: Step,
    variables: Mapping[str, str],
    given: Mapping[str, str],
    outer: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """What an ARG adds to the variables: what was given, else its default, else that of the ARG before FROM.

    Raises DockerfileRefused.
    """
    added: dict[str, str] = {}
    for name, default in _arguments(step).items():
        if name in given:
            added[name] = given[name]
        elif default is not None:
            added[name] = expand(default, variables, step.line)
        elif outer and name in outer:
            added[name] = outer[name]
    return _fitting(step, variables, added)


def environment_pairs(step: Step, variables: Mapping[str, str]) -> dict[str, str]:
    """What an ENV sets: `NAME=VALUE ...`, or as long ago `NAME VALUE`. Raises DockerfileRefused."""
    written = (text for pair in _pairs(step) for text in pair)
    texts = iter(expand_each(written, variables, step.line))
    found = dict(zip(texts, texts, strict=True))
    for name in found:
        if not _NAME.fullmatch(name):
            raise DockerfileRefused(step.line, f"ENV {name[:80]!r} is no name of a variable")
    return _fitting(step, variables, found)


def _pairs(step: Step) -> list[tuple[str, ...]]:
    """Names and values as an ENV has them written."""
    words = _words(step.text)
    is_old = "=" not in words[0]
    pairs = [step.text.split(None, 1)] if is_old else [word.split("=", 1) for word in words]
    if any(len(pair) != 2 for pair in pairs):
        raise DockerfileRefused(step.line, "ENV has NAME=VALUE")
    return [tuple(pair) for pair in pairs]


def _fitting(step: Step, variables: Mapping[str, str], added: dict[str, str]) -> dict[str, str]:
    """What is added to a stage's variables, where there is room."""
    whole = {**variables, **added}
    if sum(len(name) + len(value) for name, value in whole.items()) > MOST_VARIABLE_CHARACTERS:
        most = f"{MOST_VARIABLE_CHARACTERS >> 10} Ki"
        raise DockerfileRefused(step.line, f"its variables have over {most} characters")
    return added


def program_of(step: Step, shell: Sequence[str]) -> list[str]:
    """The argv of a RUN, or the list of a SHELL."""
    listed = _json_list(step.text)
    return [*shell, step.text] if listed is None else listed


def shell_of(step: Step) -> list[str]:
    """What a SHELL sets. Raises DockerfileRefused."""
    listed = _json_list(step.text)
    if not listed:
        raise DockerfileRefused(step.line, 'SHELL has a list: ["/bin/bash", "-c"]')
    return listed


def folder_of(text: str, before: str) -> str:
    """The folder that a WORKDIR leads to, from the one before."""
    return posixpath.normpath(posixpath.join(before, text)).replace("//", "/")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variable:
    """Of a text: `how` is "", "-", "+" or "?", with a colon before it where an empty value counts as none."""

    name: str
    how: str = ""
    other: Sequence[str | _Variable] = ()


def expand(text: str, variables: Mapping[str, str], line: int = 0) -> str:
    """Quotes and backslashes taken away, and variables replaced but in single quotes, as Docker does.

    `$NAME`, `${NAME}`, `${NAME:-OTHER}`, `${NAME:+OTHER}`, `${NAME:?WHY}` and these without the colon.
    Raises DockerfileRefused for `line` where the text is no such, or comes out too long, before it is put together.
    """
    return _joined([text], variables, line)[0]


def expand_each(texts: Iterable[str], variables: Mapping[str, str], line: int = 0) -> list[str]:
    """Each expanded, all of them together at most as long as one may be."""
    return _joined(texts, variables, line)


def split_words(text: str, variables: Mapping[str, str], line: int = 0) -> list[str]:
    """The words between spaces, each expanded: no value becomes several words. Raises as `expand`."""
    return _joined(_words(text), variables, line)


def _words(text: str) -> list[str]:
    """Unexpanded."""
    return _WORD.findall(text)


def _joined(texts: Iterable[str], variables: Mapping[str, str], line: int) -> list[str]:
    words, size = [], 0
    for text in texts:
        pieces: list[str] = []
        for piece in _values(_Reader(text, line).pieces(), variables, line):
            size += len(piece)
            if size > MOST_EXPANDED_CHARACTERS:
                most = f"{MOST_EXPANDED_CHARACTERS >> 10} Ki"
                raise DockerfileRefused(line, f"with its variables it has over {most} characters")
            pieces.append(piece)
        words.append("".join(pieces))
    return words


def _values(
    pieces: Iterable[str | _Variable], variables: Mapping[str, str], line: int
) -> Iterator[str]:
    """The pieces of the text that these come to, one at a time: each may be long."""
    for piece in pieces:
        if isinstance(piece, str):
            yield piece
            continue
        value = variables.get(piece.name)
        is_there = bool(value) if piece.how.startswith(":") else value is not None
        match piece.how[-1:]:
            case "-" if not is_there:
                yield from _values(piece.other, variables, line)
            case "+":
                yield from _values(piece.other if is_there else (), variables, line)
            case "?" if not is_there:
                raise DockerfileRefused(line, f"{piece.name[:80]} has no value, which it needs")
            case _:
                yield value or ""


class _Reader:
    """Reads a text of an instruction from its beginning; `line` is for errors."""

    def __init__(self, text: str, line: int) -> None:
        self._text = text
        self._line = line
        self._at = 0

    def pieces(self, end: str = "", nested: int = 0) -> list[str | _Variable]:
        """All up to the character `end`, which is passed by, or to the end of the text."""
        if nested > _MOST_NESTED:
            raise self._refused(f"over {_MOST_NESTED} variables in one another")
        found: list[str | _Variable] = []
        while (one := self._next()) != end:
            match one:
                case "":
                    raise self._refused("a ${ has no }" if end == "}" else "a quote is not closed")
                case "$":
                    found.append(self._dollar(nested))
                case "'" if end != '"':
                    found.append(self._single())
                case '"':
                    found += self.pieces('"', nested)
                case "\\" if end != '"' or self._peek() in {"", '"', "$", "\\"}:
                    found.append(self._next())
                case _:
                    found.append(one)
        return found

    def _next(self) -> str:
        one = self._peek()
        self._at += len(one)
        return one

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _single(self) -> str:
        began, ended = self._at, self._text.find("'", self._at)
        if ended < 0:
            raise self._refused("a quote is not closed")
        self._at = ended + 1
        return self._text[began:ended]

    def _dollar(self, nested: int) -> str | _Variable:
        began = self._at - 1
        if self._peek() != "{":
            name = self._name()
            return _Variable(name=name) if name else "$"
        self._at += 1
        name, how = self._name(), self._next()
        if name and how == "}":
            return _Variable(name=name)
        if how == ":":
            how += self._next()
        if not name or how not in {"-", "+", "?", ":-", ":+", ":?"}:
            shown = _SHOWN_VARIABLE.match(self._text, began)
            raise DockerfileRefused(
                self._line,
                f"{'${' if shown is None else shown[0][:80]} is not replaced here",
                "${NAME}, ${NAME:-OTHER} and ${NAME:+OTHER} are",
            )
        return _Variable(name=name, how=how, other=self.pieces("}", nested + 1))

    def _name(self) -> str:
        """The name of a variable here; "" where there is none."""
        one = self._peek()
        if one in _SPECIAL:
            return self._next()
        is_part = str.isdigit if one.isdigit() else _is_of_name
        began = self._at
        while is_part(self._peek()):
            self._at += 1
        return self._text[began : self._at]

    def _refused(self, why: str) -> DockerfileRefused:
        return DockerfileRefused(self._line, f"{why} in {self._text[:80]!r}")


def _is_of_name(one: str) -> bool:
    return one.isalnum() or one == "_"


def _instructions(text: str) -> Iterable[tuple[int, str]]:
    """Each instruction on one line, with the number of its first: continuations joined, comments left out."""
    joined, began = "", 0
    is_head = True
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        stripped = line.strip()
        if is_head and (directive := _DIRECTIVE.fullmatch(stripped)):
            _check_directive(number, directive[1].lower(), directive[2])
            continue
        is_head = False
        if not stripped or stripped.startswith("#"):
            continue
        if not joined:
            began = number
        body = line.rstrip()
        if body.endswith("\\") and not body.endswith("\\\\"):
            joined += body[:-1]
            continue
        yield began, (joined + body).strip()
        joined = ""
    if joined.strip():
        yield began, joined.strip()


def _check_directive(line: int, name: str, value: str) -> None:
    if name == "escape" and value != "\\":
        raise DockerfileRefused(line, "another escape character is not supported")
    if name == "syntax" and not _FRONTEND.fullmatch(value):
        raise DockerfileRefused(
            line,
            f"syntax={value[:80]} is not built",
            "nodes build the language of docker/dockerfile:1, and run no other frontend of BuildKit",
        )


def _check_variables(steps: Iterable[Step], known: Mapping[str, str]) -> None:
    """Raise DockerfileRefused for variables that would silently come out empty, or cannot be replaced."""
    for step in steps:
        for name, default in (_arguments(step) if step.word == "ARG" else {}).items():
            if name in _OF_PLATFORM and default is None and name not in known:
                raise DockerfileRefused(
                    step.line,
                    f"ARG {name} has no value here, as BuildKit would give it",
                    f"--build-arg {name}=... gives it one",
                )
        for text in (*_expanded(step), *step.flags.values()):
            _Reader(text, step.line).pieces()


def _expanded(step: Step) -> list[str]:
    """The texts of an instruction whose variables the build replaces, each as it is given to `expand`."""
    if step.word in {"RUN", "SHELL"} | _UNUSED:
        return []
    if step.word == "ENV":
        return [text for pair in _pairs(step) for text in pair]
    if step.word in {"WORKDIR", "USER"}:
        return [step.text]
    listed = _json_list(step.text) if step.word in {"COPY", "ADD"} else None
    return _words(step.text) if listed is None else listed


def _step(line: int, said: str) -> Step:
    word, _, rest = said.partition(" ")
    if "\t" in word:
        word, _, rest = said.partition("\t")
    word, rest = word.upper(), rest.strip()
    if word == "ONBUILD":
        raise DockerfileRefused(line, "ONBUILD is not used here")
    if word not in _USED | _UNUSED:
        raise DockerfileRefused(line, f"{word[:40]!r} is no instruction")
    if not rest:
        raise DockerfileRefused(line, f"{word} says nothing")
    flags: dict[str, str] = {}
    while word in _FLAGS and (found := _FLAG.match(rest)):
        name, value = found[1], found[2] or ""
        _check_flag(line, word, name, value)
        flags[name], rest = value, rest[found.end() :]
    if word in {"RUN", "COPY", "ADD"} and _HEREDOC.search(rest):
        raise DockerfileRefused(
            line, "here-documents are not supported", "join the lines with && \\, or COPY a script"
        )
    return Step(line=line, word=word, text=rest, flags=flags)


def _check_flag(line: int, word: str, name: str, value: str) -> None:
    if name not in _FLAGS[word]:
        raise DockerfileRefused(line, f"{word} --{name} is not allowed")
    if name == "mount" and "type=cache" not in value.split(","):
        raise DockerfileRefused(
            line,
            f"RUN --mount={value[:80]} is not allowed",
            "builds have no secrets and nothing of the node; COPY takes files of the folder",
        )
    if name == "from" and "$" in value:
        raise DockerfileRefused(line, "--from names a stage or an image, without variables")


def _stage(step: Step, variables: Mapping[str, str], names: Mapping[str, int]) -> tuple[Stage, str]:
    words = split_words(step.text, variables, step.line)
    alias = ""
    if len(words) == 3 and words[1].upper() == "AS":
        alias = words[2].lower()
        if not _STAGE.fullmatch(alias):
            raise DockerfileRefused(step.line, f"{alias[:80]!r} is no name of a stage")
    elif len(words) != 1:
        raise DockerfileRefused(step.line, "FROM has an image, and AS NAME")
    name = words[0]
    if name.lower() in names:
        return Stage(follows=names[name.lower()]), alias
    if name == "scratch":
        raise DockerfileRefused(
            step.line, "FROM scratch is not built here", "sessions need an image with /bin/sh"
        )
    if not is_reference(name):
        raise DockerfileRefused(step.line, f"{name[:80]!r} is not the name of an image")
    return Stage(image=name), alias


def _json_list(text: str) -> list[str] | None:
    """A list of texts; None of what is none, which is a command line then."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(found, list) and all(isinstance(one, str) for one in found)
    # escapes of JSON make what neither a program nor a message can have
    return found if is_list and not any(_UNUSABLE.search(one) for one in found) else None
