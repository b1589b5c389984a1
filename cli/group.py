"""Commands with global flags and suggestions, imported on use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from cli.app import App, Format
from nsml.common.shell import option_words
from nsml.common.units import duration_text, lacks_unit, meant_duration, parse_duration
from nsml.spec.request_limits import LONGEST_GRACE_S, LONGEST_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_END = "--"
_SESSIONS = "SESSION..."
"""The metavar of arguments that take several sessions."""
_ALIKE = 0.7
"""Minimum similarity of suggested commands and options: at 0.6 `down` is suggested for `download`, and `--rm` for `--from`."""
_SAME_VERBS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("all", "list", "ls"), ("ls", "get")),
    **dict.fromkeys(("delete", "del", "remove", "prune"), ("rm", "remove")),
    **dict.fromkeys(("show", "describe", "inspect", "get", "cat"), ("info", "get", "ls")),
    **dict.fromkeys(("add", "create", "new", "put", "upload"), ("push", "create", "add", "set")),
    **dict.fromkeys(("download", "fetch", "cp"), ("pull",)),
    **dict.fromkeys(("switch", "select"), ("use",)),
    **dict.fromkeys(("leaderboard", "ranking", "ranks", "scores", "watch"), ("standings", "show")),
}
"""Verbs of other programs, and their counterparts in groups of commands here."""
_SAME_OPTIONS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("--comment", "--job-name", "--name", "--tag", "-J"), ("--memo",)),
    **dict.fromkeys(("--constraint", "--gpu-type"), ("--gpu-model",)),
    "--cpus-per-task": ("--cpus",),
    **dict.fromkeys(("--data", "--mount", "--volume", "-v"), ("--dataset",)),
    **dict.fromkeys(("--gpus-per-node", "--gpus-per-task", "--gres"), ("--gpus",)),
    **dict.fromkeys(("--limit", "--lines", "--max"), ("--tail", "--last")),
    **dict.fromkeys(("--long", "-l"), ("-o wide",)),
    **dict.fromkeys(("--mem", "--mem-per-cpu", "--mem-per-gpu"), ("--memory",)),
    **dict.fromkeys(("--ntasks", "-N"), ("--nodes",)),
    **dict.fromkeys(("--partition", "-p"), ("--pod", "--port")),
    "--qos": ("--priority",),
    "--status": ("--state",),
    **dict.fromkeys(("--time", "-t"), ("--time-limit",)),
    **dict.fromkeys(("--query", "--where"), ("--filter",)),
}
"""Options of Slurm, Docker and others, and the options here with that effect."""
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


def the_app(context: click.Context) -> App:
    """Return the App of a click context."""
    found: Any = context.find_object(App)
    if not isinstance(found, App):
        raise TypeError("commands run inside cli.main")
    return found


pass_app = click.make_pass_decorator(App)


def set_flag(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that stores a flag; the one nearest to the command wins."""

    def note(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None and value is not False and value != ():
            setattr(the_app(context).flags, name, value)

    return note


_LONGEST_S = 100 * 365 * 86_400.0


class _Duration(click.ParamType[float]):
    """Seconds. A number alone is refused if it could mean hours; the error suggests it with each of `units`."""

    name = "duration"

    def __init__(self, units: str = "", *, longest_s: float = 0.0) -> None:
        """`longest_s`: the platform's maximum; 0: it varies."""
        self._units = units
        self._longest = duration_text(longest_s) if longest_s else ""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = (
                float(value) if isinstance(value, (int, float)) else parse_duration(str(value))
            )
        except ValueError as error:
            meant = meant_duration(str(value))
            raise BadValue(str(error), param, ctx, nearest=[meant] if meant else []) from error
        if seconds > _LONGEST_S:
            raise BadValue(
                f"{str(value)[:20]} is longer than a hundred years",
                param,
                ctx,
                why=f"{self._longest} is the longest" if self._longest else "",
                nearest=filter(None, [self._longest]),
            )
        if self._units and seconds and lacks_unit(str(value)):
            number = str(value).strip()
            raise BadValue(
                f"{number} lacks its unit",
                param,
                ctx,
                why="a time is in s, m, h, d or w",
                nearest=[f"{number}{unit}" for unit in self._units],
            )
        return seconds


DURATION = _Duration()
TIME_LIMIT_SPAN = _Duration("hms", longest_s=LONGEST_S)
GRACE = _Duration(longest_s=LONGEST_GRACE_S)
LIFETIME = _Duration("dhm")
AGE = _Duration("smh")


def _split(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    fields = tuple(filter(None, (part.strip() for part in (value or "").split(","))))
    set_flag("fields")(context, parameter, fields)


def _json(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    set_flag("output")(context, parameter, Format.JSON if value else None)


def _format(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    set_flag("output")(context, parameter, Format(value) if value else None)


def _no_header(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        the_app(context).flags.has_header = False


def _utc(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from nsml.common.time_zone import use_utc

        use_utc()


def _option(*names: str, to: Any, **settings: Any) -> click.Option:
    callback = set_flag(to) if isinstance(to, str) else to
    return click.Option(list(names), expose_value=False, callback=callback, **settings)


def global_options() -> list[click.Parameter]:
    """Return the flags of every command, accepted before or after it."""
    return [
        _option("--context", to="context", metavar="NAME", help="Use this platform."),
        _option(
            "--utc",
            to=_utc,
            is_flag=True,
            is_eager=True,  # before times are read
            help="Type and show times in UTC, not in local time.",
        ),
        _option("--no-color", to="is_colourless", is_flag=True, help="Print no colours."),
        _option(
            "-q", "--quiet", to="is_quiet", is_flag=True, help="Print only results and errors."
        ),
        _option("--debug", to="is_debug", is_flag=True, help="Show a traceback with errors."),
        _option("-y", "--yes", to="says_yes", is_flag=True, help="Do not ask."),
        _option("--no-input", to="takes_no_input", is_flag=True, help="Never ask: fail instead."),
        _option(
            "--timeout",
            to="timeout_s",
            type=DURATION,
            metavar="TIME",
            help="Give up after this total time (exit code 8).",
        ),
    ]


def output_options() -> list[click.Parameter]:
    """Return the flags of commands that read."""
    return [
        _option(
            "-o",
            "--output",
            to=_format,
            type=click.Choice([item.value for item in Format]),
            help="Output format.",
        ),
        _option("-j", "--json", "--json-return", to=_json, is_flag=True, help="Same as -o json."),
        _option(
            "--fields", to=_split, metavar="A,B", help="Print only these fields, in this order."
        ),
        _option("--no-header", to=_no_header, is_flag=True, help="Omit the header line."),
    ]


def json_flag(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-j` to a command with its own `-o`."""
    decorated: Callable[..., Any] = click.option(
        "-j",
        "--json",
        "--json-return",
        is_flag=True,
        expose_value=False,
        callback=_json,
        help="Print the result as JSON.",
    )(command)
    return decorated


class Command(click.Command):
    """A command with examples, the global flags, and, when it reads, the output flags."""

    def __init__(self, *args: Any, examples: Sequence[str], reads: bool = False, **kw: Any) -> None:
        kw.setdefault("context_settings", HELP_NAMES)
        super().__init__(*args, **kw)
        self.examples = examples
        self._hidden = global_options()
        taken = {name for option in self.params for name in option.opts}
        # A command's own short flag (rm -f, model ls -n) wins over a global one of that name.
        self._hidden = [item for item in self._hidden if not taken & set(item.opts)]
        if reads:
            self.params = [*self.params, *output_options()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; errors on misplaced arguments advise the intended line."""
        words = ctx.meta[_WORDS] = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if isinstance(error.param, click.Argument):
                _add_meant(ctx, words, error)
            raise
        except click.BadOptionUsage as error:
            error.ctx = error.ctx or ctx  # click does not name the command of the option
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke as click does; errors of the platform get the same advice."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            _add_meant(ctx, ctx.meta[_WORDS], error)
            raise

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own options, the global ones, and --help."""
        *own, help_option = super().get_params(ctx)
        return [*own, *self._hidden, help_option]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples first, then its own options; the global ones have their own topic."""
        with formatter.section("Examples"):
            formatter.write_text("\b\n" + "\n".join(self.examples))
        shown = [item for item in self.get_params(ctx) if item not in self._hidden]
        options = [item for item in shown if isinstance(item, click.Option)]
        rows = [row for item in options if (row := item.get_help_record(ctx)) is not None]
        with formatter.section("Options"):
            formatter.write_dl(rows)
        formatter.write_paragraph()
        formatter.write_text("Global flags: nsml help flags.")
        if any(str(item.metavar).startswith("SESSION") for item in shown):
            formatter.write_text("How to name a session: nsml help references.")


_WORDS = "nsml.words"
"""Key in a context's meta: the words after the command."""


def _add_meant(ctx: click.Context, words: Sequence[str], error: Exception) -> None:
    """Replace an error's advice by the intended line, if an argument is misplaced: the original advice would mislead."""
    from cli.exits import ExitCode
    from cli.misplaced import meant

    if getattr(error, "code", None) is ExitCode.INTERRUPTED:
        return  # the advice for interrupts does not depend on the arguments
    message = getattr(error, "message", "")
    if isinstance(message, str) and message and (line := meant(ctx, words, message)):
        error.advice = line  # type: ignore[attr-defined]  # of click's errors BadValue has it


class Typed(NamedTuple):
    """An option or operand of a command line, and the words to repeat it."""

    option: click.Option | None
    words: Sequence[str]


class SplitCommand(Command):
    """A command that passes on every word after `--` unchanged.

    `ctx.meta["words"]` are these words, None without `--`; `ctx.meta["typed"]` are the ones before, as `Typed`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove the words after `--` before options are parsed."""
        left = iter(args)
        typed = list(_typed(self.get_params(ctx), left))
        is_split = bool(typed) and typed[-1].words == [_END]
        words = list(left)
        ctx.meta["typed"] = typed[:-1] if is_split else typed
        ctx.meta["words"] = words if is_split else None
        before = args[: len(args) - len(words) - 1] if is_split else args
        return super().parse_args(ctx, before)


class ProgramCommand(Command):
    """A command whose second argument is a program: as in ssh, options after that word are the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `--` before the program if it is missing."""
        left = iter(args)
        arguments = 0
        for one in _typed(self.get_params(ctx), left):
            arguments += one.option is None and not one.words[0].startswith("-")
            if arguments > 1:
                program = [*one.words, *left]
                return super().parse_args(ctx, [*args[: -len(program)], _END, *program])
        return super().parse_args(ctx, args)


class WrappingCommand(Command):
    """A command that runs another program: all words after the first argument belong to that program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `--` after the first argument: later options are not ours."""
        left = iter(args)
        for one in _typed(self.get_params(ctx), left):
            if one.option is None and one.words != [_END] and not one.words[0].startswith("-"):
                rest = list(left)
                return super().parse_args(ctx, [*args[: len(args) - len(rest)], _END, *rest])
        return super().parse_args(ctx, args)


def _typed(params: Iterable[click.Parameter], left: Iterator[str]) -> Iterator[Typed]:
    """Parse a line as click does, up to `--`, which is then the last operand."""
    options = {
        name: param
        for param in params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }
    for word in left:
        if word == _END:
            yield Typed(None, [_END])
            return
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            option = options.get(name)
            if option is None or option.is_flag:
                yield Typed(option, [word])
            else:
                yield _with_value(option, name, value if equals else next(left, ""))
        elif word.startswith("-") and word != "-":
            yield from _short(options, word[1:], left)
        else:
            yield Typed(None, [word])


def _short(
    options: Mapping[str, click.Option], letters: str, left: Iterator[str]
) -> Iterator[Typed]:
    """Parse the options of `-fg2`."""
    for at, letter in enumerate(letters, start=1):
        flag = f"-{letter}"
        option = options.get(flag)
        if option is not None and not option.is_flag:
            yield _with_value(option, flag, letters[at:] or next(left, ""))
            return
        yield Typed(option, [flag])


def _with_value(option: click.Option, flag: str, value: str) -> Typed:
    return Typed(option, option_words(flag, value, long=long_name(option)))


def long_name(option: click.Option) -> str:
    """Return its `--name`, else its first name."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])


def command(
    name: str,
    *,
    examples: Sequence[str],
    reads: bool = False,
    cls: type[Command] = Command,
    **settings: Any,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a command; its docstring is the help text."""
    return click.command(name, cls=cls, examples=examples, reads=reads, **settings)


class Group(click.Group):
    """A group that suggests similar commands, and prints its help if run alone."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        kw.setdefault("context_settings", HELP_NAMES)
        super().__init__(*args, **kw)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Print the help if there are no arguments; that is no error."""
        try:
            return super().parse_args(ctx, args or ["--help"])
        except click.BadOptionUsage as error:
            error.ctx = error.ctx or ctx
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; raise a usage error with the nearest names if there is none."""
        name = args[0]
        found = self.get_command(ctx, name)
        if found is None and not ctx.resilient_parsing:
            raise NoSuchCommand(name, self.suggested(name, ctx), ctx, args[1:])
        return name, found, args[1:]

    def suggested(self, name: str, ctx: click.Context) -> Sequence[str]:
        """Return similar commands for an unknown name."""
        known = self.list_commands(ctx)
        meant = [one for one in _SAME_VERBS.get(name, ()) if one in known]
        return meant[:1] or near(name, known, alike=_ALIKE)


class NoSuchCommand(click.UsageError):
    """A misspelt command."""

    def __init__(
        self, name: str, nearest: Sequence[str], ctx: click.Context, rest: Sequence[str]
    ) -> None:
        from nsml.common.shell import shell_line

        meant = f"; did you mean {' or '.join(repr(item) for item in nearest)}?" if nearest else ""
        super().__init__(f"no such command: {name!r}{meant}", ctx)
        self.advice = "\n".join(f"{ctx.command_path} {shell_line([one, *rest])}" for one in nearest)
        if not nearest and _is_of_root(name, ctx):  # `nsml competition submit`
            self.advice = f"{shell_line([str(ctx.find_root().info_name), name])} --help"


def _is_of_root(name: str, ctx: click.Context) -> bool:
    """Return whether a command that a group does not have is one outside of all groups."""
    root = ctx.find_root()
    if ctx is root or not isinstance(root.command, click.Group):
        return False
    return root.command.get_command(root, name) is not None


def near(word: str, known: Sequence[str], *, alike: float = 0.6) -> list[str]:
    """Return the known words most similar to `word`, the nearest first: for `loss` also train/loss.

    `alike`: the minimum ratio of `difflib`, 0 to 1.
    """
    import difflib

    nearest = [one for one in known if one.endswith(f"/{word}")]
    nearest += difflib.get_close_matches(word, known, n=2, cutoff=alike)
    return [*dict.fromkeys(nearest)][:2]


def to_try(command: str, names: Iterable[str]) -> str:
    """Return a line for each name: the command with it, quoted for a shell, as names are not trusted."""
    from nsml.common.shell import shell_word

    return "\n".join(f"{command} {shell_word(one)}" for one in names)


class LazyGroup(Group):
    """A group whose commands are stored as `module:attribute` until used."""

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, tuple[str, str]]],
        synonyms: Mapping[str, Sequence[str]] | None = None,
        unlisted: Mapping[str, str] | None = None,
        **kw: Any,
    ) -> None:
        """`sections`: title to {command: (target, one line of help)}.

        `synonyms`: commands of other programs, to the names here: suggested, never run.
        `unlisted`: commands that run, and are not in the help text: to their targets.
        """
        super().__init__(*args, **kw)
        self._sections = sections
        self._synonyms = synonyms or {}
        self._lazy = {name: entry for part in sections.values() for name, entry in part.items()}
        self._unlisted = unlisted or {}

    def suggested(self, name: str, ctx: click.Context) -> Sequence[str]:
        """Look up synonyms first: `squeue` is more similar to `requeue` than to `ps`."""
        return self._synonyms.get(name) or super().suggested(name, ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of the help text."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return the command."""
        target = self._lazy[cmd_name][0] if cmd_name in self._lazy else self._unlisted.get(cmd_name)
        if target is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = target.partition(":")
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands from one-line texts, without imports."""
        del ctx
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])


class BadValue(click.BadParameter):
    """An invalid value of an option or argument: what, why, and what to try."""

    def __init__(
        self,
        message: str,
        param: click.Parameter | None,
        ctx: click.Context | None,
        *,
        why: str = "",
        advice: str = "",
        nearest: Iterable[object] = (),
    ) -> None:
        """`nearest`: valid values that may be intended."""
        super().__init__(message, ctx, param)
        self.why = why
        self.nearest = [str(one) for one in nearest]
        self.advice = advice


class Refused(click.Option):
    """An option of other programs that has no effect: refused, or accepted with a note; neither shown nor suggested."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        kw.update(hidden=True, expose_value=False)
        super().__init__(*args, **kw)


def suggestions(wrong: click.NoSuchOption) -> list[str]:
    """Return similar options, the nearest first."""
    if wrong.ctx is None:
        return []
    params = wrong.ctx.command.get_params(wrong.ctx)
    name = wrong.option_name
    if name in {"-a", "--all"} and any(one.metavar == _SESSIONS for one in params):
        return ["'*'"]
    # Compared without dashes: else any two short options are similar.
    offered = {
        name.lstrip("-"): name
        for option in params
        if isinstance(option, click.Option) and not isinstance(option, Refused)
        for name in (*option.opts, *option.secondary_opts)
    }
    there = offered.values()
    same = [one for one in _SAME_OPTIONS.get(name, ()) if one.split()[0] in there]
    return same[:1] or [offered[one] for one in near(name.lstrip("-"), list(offered), alike=_ALIKE)]


def explained(
    *flags: str, message: str, why: str = "", advice: str = "", is_flag: bool = False
) -> Callable[[Any], Any]:
    """Add a flag of NSML that cannot be followed here: refused, with the reason and what to do instead."""

    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value not in {None, False}:
            raise BadValue(message, parameter, context, why=why, advice=advice)

    return _refused(flags, is_flag=is_flag, callback=refuse)


def needless(*flags: str, why: str, is_flag: bool = True) -> Callable[[Any], Any]:
    """Add a flag of NSML that changes nothing here: accepted, with a note why."""

    def note(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value not in {None, False} and not context.resilient_parsing:
            the_app(context).say(f"note: {flags[-1]} changes nothing: {why}")

    return _refused(flags, is_flag=is_flag, callback=note)


def _refused(
    flags: Sequence[str], *, is_flag: bool, callback: Callable[..., None]
) -> Callable[[Any], Any]:
    return click.option(
        *flags,
        f"_{flags[-1].strip('-').replace('-', '_')}",
        is_flag=is_flag,
        default=None,
        cls=Refused,
        callback=callback,
    )


def not_there_yet(*flags: str, is_flag: bool = False) -> Callable[[Any], Any]:
    """Add NSML's flags that are not supported yet: refused, never ignored."""

    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value not in {None, False}:
            meant = suggestions(click.NoSuchOption(flags[0], ctx=context))
            advice = "\n".join(f"{context.command_path} {one} ..." for one in meant)
            raise BadValue("not supported yet", parameter, context, advice=advice)

    return _refused(flags, is_flag=is_flag, callback=refuse)
