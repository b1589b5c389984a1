"""Types of arguments: sessions, datasets, sizes, GPUs, variables; with completion."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.app import App
from cli.exits import CommandError, ExitCode
from cli.group import AGE, GRACE, TIME_LIMIT_SPAN, BadValue, near, to_try
from nsml.common.shell import shell_split, shell_word
from nsml.common.units import memory_text, parse_size, thousandths
from nsml.spec import run_flags, variables
from nsml.spec.dataset_names import DatasetName, dataset_name
from nsml.spec.request_limits import LEAST_MEMORY_BYTES, meant_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from click.shell_completion import CompletionItem

    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session

F = TypeVar("F", bound="Callable[..., Any] | click.Command")
_DIGITS_OF_THOUSANDTHS, _MOST_DIGITS, _MOST_SHOWN = 3, 6, 20
_MOST_FILE_BYTES = 1 << 20
_MOST_BYTES, _MOST_COUNT = (1 << 63) - 1, (1 << 31) - 1
"""Limits of the request's fields; the platform checks its own limits."""
_NAME_RULE = "a name has letters, digits and _, and does not begin with a digit"
_RESERVED = "every program gets it, and relies on what it says"
_OPTION_INSTEAD = {"NSML_ECHO": "nsml run --no-echo\nnsml run --echo wandb,tensorboard"}
"""Options that set a reserved variable."""
_LINE_RULE = "a line is NAME=VALUE, # a comment, or empty; a value of several lines is none"
_FIRST_YEAR, _LAST_YEAR = 1971, 2200
_AT_ONCE = 8
"""Sessions requested at a time."""
_GLOB = re.compile(r"[*?\[]")


class _Completed(click.ParamType[str]):
    """A name of a resource on the platform."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names with this prefix."""
        del param
        from cli.completion import names

        app = ctx.find_object(App)
        return names(app, self.name, incomplete) if isinstance(app, App) else []


class _Filter(click.ParamType[str]):
    """Words of the filter language; completes keys and states."""

    name = "filter"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the last word to keys, or to states after `state:`."""
        del ctx, param
        from click.shell_completion import CompletionItem

        from nsml.view.filtering import completions

        before, _, last = incomplete.rpartition(" ")
        lead = f"{before} " if before else ""
        return [CompletionItem(lead + one) for one in completions(last)]


FILTER = _Filter()


class _Size(click.ParamType[int]):
    name = "size"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = value if isinstance(value, int) else parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size > _MOST_BYTES:
            self.fail(f"{value} is more than any machine has", param, ctx)
        if not size:
            self.fail(f"{value} is no size: leave it out for the default", param, ctx)
        if size < self._least:
            advice = meant_words(size) if str(value).isdecimal() else "name more, such as 512M"
            self.fail(
                f"{value} is too small, the minimum is {memory_text(self._least)}; {advice}",
                param,
                ctx,
            )
        return size


class WholeRange(click.IntRange):
    """A whole number within bounds; the type's name is used in errors."""

    name = "whole number"

    def __init__(
        self,
        least: int | None = None,
        most: int | None = None,
        *,
        platform_most: int | None = None,
        instead: str = "",
    ) -> None:
        """`platform_most`: the platform's maximum, which it checks itself for all numbers that fit a request.

        `instead`: advice for a word such as `all`.
        """
        super().__init__(least, most)
        self._platform_most = platform_most
        self._instead = instead

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; BadValue if it is out of bounds, or too large for a request."""
        least, most = int(self.min or 0), int(self.max or _MOST_COUNT)
        text = str(value)[:_MOST_SHOWN]
        try:
            number = int(value)
        except ValueError as error:
            found = re.fullmatch(r"(-?\d{1,9})\.\d+", str(value), re.ASCII)
            below = int(found[1]) if found else most
            nearest = [one for one in (below, below + 1) if found and least <= one <= most]
            advice = self._instead if str(value).isalpha() else ""
            raise BadValue(
                f"{text!r} is not a whole number", param, ctx, nearest=nearest, advice=advice
            ) from error
        if number < least:
            raise BadValue(
                f"{text} is too small: the minimum is {least}", param, ctx, nearest=[least]
            )
        if number > _MOST_COUNT:
            raise BadValue(
                f"{text} is more than there can be",
                param,
                ctx,
                why=f"{self._platform_most} is the most" if self._platform_most else "",
                nearest=filter(None, [self._platform_most]),
            )
        if number > most:
            raise BadValue(f"{text} is too much: {most} is the most", param, ctx, nearest=[most])
        return number


class _Number(click.types.FloatParamType):
    """Any number; sets the name used in errors."""

    name = "number"


class _Thousandths(click.ParamType[int]):
    """A number of devices or cores, as thousandths."""

    def __init__(self, what: str, *, shares_one: bool, least: int = 0) -> None:
        self.name = what
        self._shares_one = shares_one
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not re.fullmatch(r"\d+(\.\d+)?", str(value), re.ASCII):
            is_below = re.fullmatch(r"-\d+(\.\d+)?", str(value), re.ASCII)
            nearest = [] if not is_below else [0] if not self._least else []
            words = "is less than none" if is_below else "is not a number such as 2 or 0.5"
            raise BadValue(f"{str(value)!r} {words}", param, ctx, nearest=nearest)
        whole, _, part = str(value).partition(".")
        part = part.rstrip("0")
        if len(whole) > _MOST_DIGITS:
            self.fail(f"{value} is more than any machine has", param, ctx)
        count = int(whole) * 1000 + int(part[:_DIGITS_OF_THOUSANDTHS].ljust(3, "0") or 0)
        if self._shares_one and count >= 1000 and part:
            below = count // 1000
            raise BadValue(
                f"{value}: above one, only whole GPUs; {below} or {below + 1}?",
                param,
                ctx,
                nearest=[below, below + 1],
            )
        if len(part) > _DIGITS_OF_THOUSANDTHS:
            raise BadValue(
                f"{value} is finer than a thousandth",
                param,
                ctx,
                nearest=[thousandths(max(count, 1))],
            )
        if count < self._least:
            self.fail(f"{value} is none: leave it out for the default", param, ctx)
        return count


class _TimeLimit(click.ParamType[float]):
    """Seconds; 0 is refused: no limit means no flag."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = TIME_LIMIT_SPAN.convert(value, param, ctx)
        if not seconds:
            self.fail(f"{value} is no time: leave it out for no limit", param, ctx)
        return seconds


class _Moment(click.ParamType["datetime | timedelta"]):
    """A time, in the user's zone by default, or an age."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | timedelta:
        from datetime import datetime, timedelta

        from nsml.common.time_zone import typed

        if isinstance(value, (datetime, timedelta)):
            return value
        text = str(value).strip()
        app = ctx.find_object(App) if ctx is not None else None
        try:
            at = typed(text, now=app.clock.time() if app is not None else None)
        except ValueError:
            if not re.match(r"\d{4}-|\d+:", text, re.ASCII):
                try:
                    return timedelta(seconds=AGE.convert(text, param, ctx))
                except BadValue as error:
                    if error.why or error.nearest:
                        raise
            raise BadValue(
                f"{text[:_MOST_SHOWN]!r} is not a time",
                param,
                ctx,
                why="a time is 10m or 2h for so long ago, 09:30 for today, or 2026-12-01T09:30 in local time, or with +09:00 behind it",
            ) from None
        if not _FIRST_YEAR <= at.year <= _LAST_YEAR:
            self.fail(f"nothing was printed in the year {at.year}", param, ctx)
        return at


class _Variable(click.ParamType[tuple[str, str]]):
    """NAME=VALUE, or NAME alone for its value in this environment."""

    name = "k=v"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, found, text = str(value).partition("=")
        if not name:
            raise BadValue(
                "there is no name before the =" if found else "it names no variable",
                param,
                ctx,
                why="it takes NAME=VALUE, or NAME alone for a variable that is set here",
                advice="nsml run --env NAME=VALUE",
            )
        if not variables.is_name(name):
            raise BadValue(
                f"{name[:80]!r} is not the name of a variable", param, ctx, why=_NAME_RULE
            )
        if variables.is_reserved(name):
            raise BadValue(
                f"{name} is set by the platform",
                param,
                ctx,
                why=_RESERVED,
                advice=_OPTION_INSTEAD.get(name, "another name"),
            )
        if found:
            return name, self._checked(name, text, param, ctx)
        app = ctx.find_object(App) if ctx is not None else None
        if app is None or name not in app.environ:
            raise BadValue(
                f"{name} is not set here, and no value was given",
                param,
                ctx,
                why="NAME alone takes the variable as it is here; only exported ones are seen",
                advice=f"nsml run --env {name}=VALUE\nexport {name}    and the same again",
            )
        return name, self._checked(name, app.environ[name], param, ctx)

    def _checked(
        self, name: str, text: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the value, never shown in messages."""
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise BadValue(f"the value of {name} is not UTF-8", param, ctx)
        return text


class _Read(click.ParamType[Any]):
    """Parses values with a flag's kind."""

    def __init__(self, kind: run_flags.Kind) -> None:
        self.name = kind.takes
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._kind.read(value)
        except run_flags.Unreadable as error:
            raise BadValue(str(error), param, ctx, why=error.why, advice=error.advice) from error


class _ReadOrNone(_Read):
    """The same; `none` becomes "", the empty value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "" if value == "none" else super().convert(value, param, ctx)


class _VariablesFile(click.ParamType[tuple[str, dict[str, str]]]):
    """A file of variables: its name and its contents."""

    name = "file"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, dict[str, str]]:
        if isinstance(value, tuple):
            return value
        try:
            with Path(value).open("rb") as file:
                content = file.read(_MOST_FILE_BYTES + 1)
        except OSError as error:
            raise BadValue(
                f"cannot read {str(value)!r}: {error.strerror}" if value else "it names no file",
                param,
                ctx,
                why=f"looked in {Path.cwd()}",
                advice=to_try("nsml run --env-file", _files_of_variables()),
            ) from error
        if len(content) > _MOST_FILE_BYTES:
            raise BadValue(
                f"{value} is larger than any file of variables",
                param,
                ctx,
                why=f"they may have {variables.MOST_BYTES >> 10} KiB in all",
                advice="nsml dataset push NAME PATH    for data",
            )
        try:
            return str(value), variables.parse_file(content)
        except variables.FileRefused as error:
            where = f"{value}, line {error.line}" if error.line else str(value)
            raise BadValue(f"{where}: {error}", param, ctx, why=_LINE_RULE) from error


def _files_of_variables() -> list[str]:
    """Return up to 3 files of this folder that look like variables: .env, .env.local, train.env."""
    here = (path for pattern in (".env*", "*.env") for path in Path().glob(pattern))
    return sorted({path.name for path in here if path.is_file()})[:3]


class _SecretUse(click.ParamType[tuple[str, str]]):
    """NAME=VARIABLE, or NAME alone for the variable of that name."""

    name = "name"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, found, variable = str(value).partition("=")
        variable = variable if found else name
        for word in (name, variable):
            if not variables.is_name(word):
                # Not shown: it may be a value, if this was mistaken for --env.
                raise BadValue(
                    "it takes NAME or NAME=VARIABLE, never a value",
                    param,
                    ctx,
                    why="NAME is a secret of yours; VARIABLE, where the program looks for it",
                    advice="nsml secret ls\nnsml secret set NAME",
                )
        if variables.is_reserved(variable):
            raise BadValue(
                f"{variable} is set by the platform",
                param,
                ctx,
                why=_RESERVED,
                advice=f"nsml run --secret {name}=ANOTHER_NAME",
            )
        return name, variable


class _Image(_Completed):
    """An image reference; `advice` is for invalid ones."""

    def __init__(self, advice: str) -> None:
        super().__init__("image")
        self._advice = advice

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from nsml.spec.images import RULE, is_reference, why_never_pulled

        is_image = is_reference(str(value))
        if why := why_never_pulled(str(value)) if is_image else RULE:
            raise BadValue(
                f"image {str(value)[:80]!r} cannot be used"
                if is_image
                else f"{str(value)[:80]!r} is not the name of an image",
                param,
                ctx,
                why=why,
                advice=self._advice,
            )
        return str(value)


class _ModelName(_Completed):
    """A GPU model of the platform, by its common name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.search(r"[^\s_-]", str(value)):
            raise BadValue(
                f"{str(value)!r} is not the name of a GPU model",
                param,
                ctx,
                why="part of a name is enough, such as A100 or A100-80GB",
                advice="nsml gpustat",
            )
        return str(value)


class _PodName(_Completed):
    """A pod of the platform."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value).strip():
            self.fail("it names no pod: leave it out for any", param, ctx)
        return str(value)


class _Bound(click.ParamType[int]):
    """A limit on concurrent use; `none` is 0."""

    def __init__(self, of: click.ParamType[int]) -> None:
        self.name = of.name
        self._of = of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "none":
            return 0
        if isinstance(value, str) and re.fullmatch(r"0+(\.0*)?", value):
            self.fail(f"{value} would let nothing start; for no limit: none", param, ctx)
        return self._of.convert(value, param, ctx)


class _OneOf(click.Choice[str]):
    """One of some words; errors suggest the nearest."""

    name = "word"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            known = [str(one) for one in self.choices]
            raise BadValue(
                f"{str(value)[:80]!r} is not one of {', '.join(known)}",
                param,
                ctx,
                nearest=near(str(value).lower(), known)[:1],
            ) from error


PRIORITY = _OneOf(run_flags.PRIORITY.words, case_sensitive=False)
NETWORK = _OneOf(run_flags.NETWORK.words, case_sensitive=False)

SESSION = _Completed("session")
DATASET = _Completed("dataset")
NODE = _Completed("node")
PROJECT = _Completed("project")
BOARD = _Completed("board")
SUBMISSION = _Completed("submission")
COMPETITION = _Completed("competition")
GPU_MODEL = _ModelName("model")
POD = _PodName("pod")
NUMBER = _Number()
SIZE = _Size()
MEMORY = _Size(least=LEAST_MEMORY_BYTES)
MOMENT = _Moment()
GPUS = _Thousandths("gpus", shares_one=True)
CPUS = _Thousandths("cpus", shares_one=False, least=1)
GPU_BOUND = _Bound(_Thousandths("gpus", shares_one=False, least=1))
CPU_BOUND = _Bound(CPUS)
SIZE_BOUND = _Bound(MEMORY)
KEPT_BOUND = _Bound(SIZE)
SESSION_BOUND = _Bound(WholeRange(1))
TIME_LIMIT = _TimeLimit()
VARIABLE = _Variable()
IMAGE = _Image("nsml run    without --image, for what the code or the node names")
IMAGE_ON_NODES = _Image("nsml image ls")
VARIABLES_FILE = _VariablesFile()
SECRET_USE = _SecretUse()

KEEP = _ReadOrNone(run_flags.KEEP)

_TYPES: Mapping[str, click.ParamType[Any]] = {
    "cpus": CPUS,
    "dataset": DATASET,
    "file of variables": VARIABLES_FILE,
    "gpus": GPUS,
    "grace": GRACE,
    "image": IMAGE,
    "model": GPU_MODEL,
    "pod": POD,
    "project": PROJECT,
    "secret": SECRET_USE,
    "time limit": TIME_LIMIT,
    "idle limit": TIME_LIMIT,
    "variable": VARIABLE,
}
"""Parameter types of `run` flags, by the kind of value."""


def flag_options(command: F, *, shows_defaults: bool = True, **names: Sequence[str]) -> F:
    """Add the flags of `run` that are listed in `nsml.spec.run_flags`.

    `names`: other flag names for a parameter. Without `shows_defaults` help omits the defaults: they come from
    another session.
    """
    for flag in reversed(run_flags.FLAGS):
        command = click.option(
            *names.get(flag.parameter, flag.names),
            flag.parameter,
            type=_type_of(flag.kind),
            is_flag=flag.kind.is_switch,
            multiple=flag.kind.is_repeated,
            callback=_checked_together(flag.kind) if flag.kind.is_repeated else None,
            default=flag.default,
            show_default=flag.shows_default and shows_defaults,
            metavar=flag.metavar,
            help=flag.help,
        )(command)
    return command


def _checked_together(kind: run_flags.Kind) -> Callable[..., Any]:
    def check(ctx: click.Context, param: click.Parameter, values: Sequence[Any]) -> Sequence[Any]:
        values = kind.separated(values)
        try:
            kind.check_together(values)
        except run_flags.Unreadable as error:
            raise BadValue(str(error), param, ctx, why=error.why, advice=error.advice) from error
        return values

    return check


def _type_of(kind: run_flags.Kind) -> click.ParamType[Any] | None:
    match kind.takes:
        case "":
            return None
        case "whole number":
            return WholeRange(kind.least, platform_most=kind.most)
        case "size":
            return _Size(kind.least)
        case "word":
            return _OneOf(kind.words, case_sensitive=False)
        case known:
            return _TYPES.get(known) or _Read(kind)


def visibility_options(command: F) -> F:
    """Add the flags of `visibility`: None if none is set."""
    return one_of(
        "visibility",
        public="Everybody sees it.",
        team="Your team sees it.",
        private="Only you see it (default).",
    )(command)


def one_of(name: str, **flags: str) -> Callable[[F], F]:
    """Add exclusive flags, word to help: the chosen word is the parameter `name`, else None."""

    def note(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
        before = context.params.setdefault(name, None)
        if not is_given:
            return
        if before is not None:
            raise click.UsageError(
                f"--{before} and --{parameter.name} exclude one another", context
            )
        context.params[name] = parameter.name

    def add(command: F) -> F:
        for word, text in reversed(flags.items()):
            option = click.option(
                f"--{word}", is_flag=True, expose_value=False, callback=note, help=text
            )
            command = option(command)
        return command

    return add


def shell_words(flag: str, text: str) -> list[str]:
    """Split the value of `flag` as a shell does; click.UsageError for an open quotation."""
    try:
        return shell_split(text)
    except ValueError as error:
        raise click.UsageError(f"{flag}: {error} in {text!r}") from error


def option_names(words: Iterable[str]) -> frozenset[str]:
    """Return the long options among arguments of a program: `--lr` of `--lr=0.1`."""
    names = (word.partition("=")[0] for word in words if word.startswith("--"))
    return frozenset(name for name in names if len(name) > 2)


def split_dataset(reference: str) -> DatasetName:
    """Parse NAME, NAME@VERSION or NAME@TAG. Raises click.UsageError or CommandError."""
    name, _, version = reference.partition("@")
    tag = re.fullmatch("(.+):v?([0-9]{1,10}|latest)", name)
    if tag or re.fullmatch("[vV][0-9]{1,10}|latest", version):
        of, which = (tag[1], tag[2]) if tag else (name, version.lstrip("vV"))
        raise CommandError(
            f"{reference[:80]!r} is not a dataset name",
            code=ExitCode.USAGE,
            why="a version is named with @ and its number, and the newest one without",
            advice=shell_word(of if which == "latest" else f"{of}@{which}"),
        )
    try:
        return dataset_name(reference)
    except ValueError:
        raise click.UsageError(
            f"{reference[:80]}: after @ comes a version from 1 on, or a tag"
        ) from None


def session_argument(name: str = "session", **settings: Any) -> Callable[[F], F]:
    """Add an argument for one session."""
    return click.argument(
        name, type=SESSION, metavar=settings.pop("metavar", "SESSION"), **settings
    )


def sessions_argument() -> Callable[[F], F]:
    """Add an argument for several session references, globs, or `-` for names on stdin."""
    return click.argument("references", type=SESSION, metavar="SESSION...", nargs=-1, required=True)


def is_glob(reference: str) -> bool:
    """Return whether a reference is a glob over names."""
    return _GLOB.search(reference) is not None


def given_references(app: App, references: Sequence[str]) -> list[str]:
    """Replace `-` by the first words of stdin's lines; duplicates are dropped."""
    found: list[str] = []
    for reference in references:
        if reference == "-":
            found += [line.split()[0] for line in app.stdin if line.strip()]
        else:
            found.append(reference)
    if not found:
        raise CommandError("no sessions on stdin", code=ExitCode.USAGE)
    return list(dict.fromkeys(found))


def glob_forms(glob: str) -> list[str]:
    """Return the globs over full names that a typed one may mean: as it is, and as a short form (`None/[3-9]`)."""
    # A glob with a leading * covers both.
    return [glob] if glob.startswith("*") else [glob, f"*/{glob}"]


async def expand(client: Client, references: Sequence[str]) -> list[str]:
    """Replace every glob by the matching full names; duplicates are dropped.

    For commands that read: a glob matches all sessions visible to the user, and as a short form their own. Commands
    that change something use `cli.sessions.targets`. Raises CommandError (NOT_FOUND) for a glob without matches.
    """
    from nsml.v1.sessions_pb2 import SessionFilter

    names: list[str] = []
    for reference in references:
        if not is_glob(reference):
            names.append(reference)
            continue
        full, *short = glob_forms(reference)
        chosen = [SessionFilter(name_glob=full, include_ended=True)]
        chosen += [
            SessionFilter(name_glob=one, owners=["@me"], include_ended=True) for one in short
        ]
        fitting = [
            one.name for each in chosen async for one in client.sessions.every(each, short=True)
        ]
        if not fitting:
            raise CommandError(
                f"no session fits {reference!r}",
                code=ExitCode.NOT_FOUND,
                advice="nsml ps -a",
            )
        names += fitting
    return list(dict.fromkeys(names))


async def sessions_of(client: Client, references: Sequence[str]) -> list[Session]:
    """Return the sessions of the references and globs, in full; see `expand`."""
    from nsml.common.concurrency import each_at_once

    return await each_at_once(await expand(client, references), client.sessions.get, most=_AT_ONCE)
