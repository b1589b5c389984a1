"""The settings of boards as options of `nsml board create` and `nsml board set`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.arguments import FILTER, SIZE, WholeRange, one_of, visibility_options
from cli.exits import CommandError, ExitCode
from cli.group import DURATION
from nsml.common.shell import shell_word
from nsml.common.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsml.v1.boards_pb2 import BoardSettings, SubmissionLimit

F = TypeVar("F", bound="Callable[..., Any] | click.Command")
_DAY_S = 86_400.0
_MOST = (1 << 32) - 1


def parse_limit(text: str) -> tuple[int, float]:
    """Parse `3/1d` to a number of submissions and its window in seconds; `none` is 0. Raises ValueError."""
    if text == "none":
        return 0, _DAY_S
    count, slash, window = text.partition("/")
    if not re.fullmatch(r"[0-9]{1,9}", count) or not int(count):
        raise ValueError(
            f"{text[:30]!r} is not a number of submissions in a window such as 3/1d; for no limit: none"
        )
    if not slash:
        return int(count), _DAY_S
    seconds = parse_duration(window)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{window[:30]!r} is no window")
    return int(count), seconds


class _Limit(click.ParamType[tuple[int, float]]):
    """A number of submissions in a window: `3/1d`; `none` is 0."""

    name = "limit"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_limit(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _PublicScore(click.ParamType[tuple[str, float | None]]):
    """`exact`, `own-best`, `ladder` or `ladder=STEP`."""

    name = "public score"
    _WORDS = ("exact", "own-best", "ladder")

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float | None]:
        if isinstance(value, tuple):
            return value
        word, equals, step = str(value).partition("=")
        if word not in self._WORDS:
            self.fail(
                f"{word[:30]!r} is not one of {', '.join(self._WORDS)}, ladder=STEP", param, ctx
            )
        if not equals:
            return word, None
        is_number = re.fullmatch(r"[0-9]+(\.[0-9]+)?([eE]-?[0-9]{1,2})?", step)
        if word != "ladder" or not is_number or not 0 < float(step) < float("inf"):
            self.fail(
                f"{str(value)[:30]!r}: a step is a positive number, of ladder alone: ladder=0.001",
                param,
                ctx,
            )
        return word, float(step)


def settings_options(command: F) -> F:
    """Add the options for what both kinds of boards have, and for visibility."""
    options = [
        click.option("--metric", metavar="METRIC", help="Rank by this metric, such as val/acc."),
        one_of(
            "direction",
            max="The greatest score is the best (default).",
            min="The least score is the best.",
        ),
        click.option(
            "--filter",
            "selection",
            type=FILTER,
            metavar="FILTER",
            help="Only sessions that match, as in nsml ps; '': all.",
        ),
        click.option(
            "--per",
            "--by",
            type=click.Choice(["user", "team", "none"]),
            help="List the best of each user or team, or every entry (none).",
        ),
        click.option(
            "--value",
            type=click.Choice(["best", "last"]),
            help="Count the best or the last value that a session reported; default: best.",
        ),
        visibility_options,
        click.option(
            "-m", "--message", "description", metavar="TEXT", help="Text for people, one line."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def dataset_options(command: F) -> F:
    """Add the options of boards of datasets alone."""
    options = [
        one_of("opening", open="Take submissions.", close="Take no submissions."),
        click.option(
            "--limit",
            type=_Limit(),
            metavar="N/TIME",
            help="Submissions of a team, else a user, in a window: 3/1d; none: no limit.",
        ),
        click.option(
            "--failed-limit",
            type=_Limit(),
            metavar="N/TIME",
            help="Submissions that fail by their own code, in a window; none: no limit.",
        ),
        click.option(
            "--public-score",
            type=_PublicScore(),
            metavar="HOW",
            help="What participants see: exact, own-best (a score that is not better shows the best before),"
            " or ladder[=STEP] (it must be better by a step).",
        ),
        click.option(
            "--predict-time",
            type=DURATION,
            metavar="TIME",
            help="The longest prediction, from the call of nsml.paused(); default: 1h.",
        ),
        click.option(
            "--evaluate-time",
            type=DURATION,
            metavar="TIME",
            help="The longest evaluation; default: 10m.",
        ),
        click.option(
            "--prediction-size",
            type=SIZE,
            metavar="SIZE",
            help="The largest prediction; default: 256Mi.",
        ),
        click.option(
            "--check-every",
            type=WholeRange(0, _MOST),
            metavar="N",
            help="Evaluate one in N twice, and mark entries with different scores; 0: none.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def settings_of(given: dict[str, Any]) -> BoardSettings:
    """Return the settings of a command line: only those that were given are set.

    Raises:
        CommandError: the filter is none.
    """
    from nsml.v1 import boards_pb2 as pb
    from nsml.view import boards as view
    from nsml.view.sessions import visibility_named

    if given["selection"]:
        _check_filter(given["selection"])
    settings = pb.BoardSettings(
        metric=given["metric"],
        filter=given["selection"],
        best_per=view.best_per_named(given["per"] or ""),
        value=view.value_named(given["value"] or ""),
        description=given["description"],
        prediction_bytes=given.get("prediction_size"),
        check_every=given.get("check_every"),
    )
    if given["direction"] is not None:
        is_min = given["direction"] == "min"
        settings.direction = pb.SCORE_DIRECTION_MIN if is_min else pb.SCORE_DIRECTION_MAX
    if given["visibility"] is not None:
        settings.visibility = visibility_named(given["visibility"])
    if given.get("opening") is not None:
        settings.is_open = given["opening"] == "open"
    if (public := given.get("public_score")) is not None:
        word, step = public
        settings.public_score = view.public_score_named(word)
        # A ladder without a step is the parameter-free one, also where one was set before.
        settings.ladder_step = step or 0.0
    for field in ("limit", "failed_limit"):
        if (limit := given.get(field)) is not None:
            _set_limit(getattr(settings, field), *limit)
    for field in ("predict_time", "evaluate_time"):
        if (seconds := given.get(field)) is not None:
            getattr(settings, field).FromNanoseconds(round(seconds * 1e9))
    return settings


def _set_limit(limit: SubmissionLimit, count: int, window_s: float) -> None:
    limit.count = count
    limit.window.FromNanoseconds(round(window_s * 1e9))


def _check_filter(text: str) -> None:
    from nsml.view.filtering import Filter, FilterError

    try:
        Filter(text)
    except FilterError as error:
        raise CommandError(
            f"--filter: {error.message}",
            code=ExitCode.USAGE,
            why=f"{text}\n{' ' * error.place}^",
            advice="\n".join(f"--filter {shell_word(one)}" for one in error.advice),
        ) from error
