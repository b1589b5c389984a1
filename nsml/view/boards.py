"""Boards, their entries and submissions as rows, lines and records, and the texts of states and causes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsml.common.shell import shell_line
from nsml.common.units import (
    ago,
    counted,
    duration_text,
    exact_number_text,
    exact_size_text,
    number_within,
    short_moment,
    whole,
)
from nsml.spec.competition_datasets import EVALUATION
from nsml.v1 import boards_pb2 as pb
from nsml.view.enums import enum_name, enum_word
from nsml.view.ranked_rows import (
    change_column,
    gpu_time_column,
    private_score_column,
    rank_column,
    score_column,
    submitted_column,
    trend_column,
    with_score_texts,
)
from nsml.view.scores import score_text
from nsml.view.sessions import visibility_word
from nsml.view.tables import Column
from nsml.view.times import moment_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from nsml.v1.boards_pb2 import (
        Board,
        BoardEntry,
        BoardSettings,
        Submission,
        SubmissionLimit,
        SubmissionStep,
    )

_DAY_S: Final = 86_400.0
_TITLE_CELLS: Final = 12


# Words of enumerations


def direction_word(direction: int) -> str:
    """`max` or `min`."""
    return "min" if direction == pb.SCORE_DIRECTION_MIN else "max"


def best_per_word(best_per: int) -> str:
    """`none`, `user` or `team`; "" if unset."""
    return enum_word(pb.BestPer, best_per, "BEST_PER_") if best_per else ""


def best_per_named(word: str) -> pb.BestPer:
    """Parse `none`, `user` or `team`; "": unset."""
    values: dict[str, pb.BestPer] = {
        "": pb.BEST_PER_UNSPECIFIED,
        "none": pb.BEST_PER_NONE,
        "user": pb.BEST_PER_USER,
        "team": pb.BEST_PER_TEAM,
    }
    return values[word]


def value_word(value: int) -> str:
    """`best` or `last`; "" if unset."""
    return enum_word(pb.MetricValue, value, "METRIC_VALUE_") if value else ""


def value_named(word: str) -> pb.MetricValue:
    """Parse `best` or `last`; "": unset."""
    values: dict[str, pb.MetricValue] = {
        "": pb.METRIC_VALUE_UNSPECIFIED,
        "best": pb.METRIC_VALUE_BEST,
        "last": pb.METRIC_VALUE_LAST,
    }
    return values[word]


def public_score_word(settings: BoardSettings) -> str:
    """`exact`, `own-best`, `ladder` or `ladder=0.01`."""
    if not settings.public_score:
        return "exact"
    word = enum_word(pb.PublicScore, settings.public_score, "PUBLIC_SCORE_").replace("_", "-")
    if settings.public_score == pb.PUBLIC_SCORE_LADDER and settings.ladder_step:
        return f"{word}={exact_number_text(settings.ladder_step)}"
    return word


def public_score_named(word: str) -> pb.PublicScore:
    """Parse `exact`, `own-best` or `ladder`, without a step."""
    values: dict[str, pb.PublicScore] = {
        "exact": pb.PUBLIC_SCORE_EXACT,
        "own-best": pb.PUBLIC_SCORE_OWN_BEST,
        "ladder": pb.PUBLIC_SCORE_LADDER,
    }
    return values[word]


def kind_word(kind: int) -> str:
    """`sessions` or `dataset`."""
    words: dict[int, str] = {
        pb.BOARD_KIND_METRIC: "sessions",
        pb.BOARD_KIND_DATASET: "dataset",
    }
    return words.get(kind) or enum_word(pb.BoardKind, kind, "BOARD_KIND_")


def is_of_dataset(board: Board) -> bool:
    """Return whether it ranks submissions."""
    return board.kind == pb.BOARD_KIND_DATASET


def full_name(board: Board) -> str:
    """Return `OWNER/NAME`."""
    return f"{board.owner}/{board.name}"


# States and causes


class StateWord(NamedTuple):
    """How a state is shown."""

    glyph: str
    word: str
    colour: str


STATE_WORDS: Mapping[int, StateWord] = {
    pb.SUBMISSION_STATE_QUEUED: StateWord("◌", "Queued", "yellow"),
    pb.SUBMISSION_STATE_PREDICTING: StateWord("●", "Predicting", "cyan"),
    pb.SUBMISSION_STATE_EVALUATING: StateWord("◕", "Evaluating", "cyan"),
    pb.SUBMISSION_STATE_SCORED: StateWord("✔", "Scored", "green"),
    pb.SUBMISSION_STATE_FAILED: StateWord("✗", "Failed", "red"),
}


def state_word(state: int) -> StateWord:
    """Return how a state is shown, also one of a newer control plane."""
    found = STATE_WORDS.get(state)
    word = enum_word(pb.SubmissionState, state, "SUBMISSION_STATE_").capitalize()
    return found or StateWord("?", word, "white")


class CauseWords(NamedTuple):
    """The texts of one cause of a failed submission."""

    short: str
    """After its state: `Failed (out of time)`."""
    what: str
    """What happened, one sentence."""
    advice: str
    """What to do, one sentence, with `_LOOK` and the like for what differs between submissions."""


_LOOK: Final = "{look}"
"""How to see the output of the program."""
_EVALUATION: Final = "{evaluation}"
"""The command that fetches the evaluation of the dataset."""
_INFO: Final = "{info}"
"""The command that shows the dataset's owner the output of the evaluation."""
CAUSE_WORDS: Mapping[str, CauseWords] = {
    "ENDED_EARLY": CauseWords(
        "ended early",
        "the program ended before it called nsml.paused()",
        f"take --mode and --pause as arguments, and call nsml.paused() if --pause is 1, right after nsml.bind; {_LOOK}",
    ),
    "NOT_PAUSED": CauseWords(
        "no nsml.paused()",
        "the program did not call nsml.paused() within 600 seconds",
        "call it before any training, right after nsml.bind",
    ),
    "LOAD_FAILED": CauseWords(
        "load failed", "the bound load function failed on the checkpoint", _LOOK
    ),
    "INFER_FAILED": CauseWords(
        "infer failed",
        "infer or data_loader.py failed on the test inputs",
        _LOOK,
    ),
    "NO_PREDICTION": CauseWords(
        "no prediction",
        "there is no prediction, or it is empty",
        f"have infer return a result for every input; {_LOOK}",
    ),
    "TOO_LARGE": CauseWords(
        "too large",
        "the prediction is larger than the board allows",
        "predict less for each input; nsml board show names the size",
    ),
    "PREDICTION_TIMEOUT": CauseWords(
        "out of time",
        "the prediction took longer than the board allows",
        "predict in larger batches (-b); nsml board show names the time",
    ),
    "MALFORMED": CauseWords(
        "malformed",
        "the prediction does not fit the test set: no regular file, a wrong number of rows, or not finite",
        f"have infer return one prediction for each input; {_LOOK}",
    ),
    "EVALUATION_FAILED": CauseWords(
        "evaluation failed",
        "the dataset's evaluation failed on the prediction",
        f"compare the prediction with what the evaluation reads: {_EVALUATION}; then {_LOOK}; the dataset's owner "
        f"sees why it failed: {_INFO}",
    ),
    "EVALUATION_TIMEOUT": CauseWords(
        "evaluation timeout",
        "the evaluation took longer than the board allows",
        "ask the dataset's owner to raise --evaluate-time",
    ),
    "NOT_FINITE": CauseWords(
        "no finite score",
        "the score is not a finite number",
        f"check the prediction for NaN and infinity: {_LOOK}",
    ),
    "PLATFORM": CauseWords(
        "platform",
        "the platform failed; it does not count for the limit",
        "submit again",
    ),
    "REMOVED": CauseWords(
        "removed",
        "the checkpoint, the session or the dataset version was removed meanwhile",
        "submit a checkpoint that is there: nsml model ls",
    ),
    "STOPPED": CauseWords(
        "stopped",
        "it was stopped, by its user or by the dataset's owner",
        "submit again",
    ),
    "LIMIT_EXCEEDED": CauseWords(
        "over a limit",
        "it ran out of memory, or over another limit of its session",
        f"predict in smaller batches (-b); {_LOOK}",
    ),
}
"""By the contract's name of the cause, without SUBMISSION_CAUSE_."""


def cause_name(cause: int) -> str:
    """Return `TOO_LARGE`; "" without a cause."""
    return enum_name(pb.SubmissionCause, cause, "SUBMISSION_CAUSE_") if cause else ""


def cause_words(cause: int) -> CauseWords:
    """Return the texts of a cause, also of one added by a newer control plane."""
    unknown = CauseWords("cause unknown", "this version does not know why", _LOOK)
    return CAUSE_WORDS.get(cause_name(cause), unknown)


def advice_text(submission: Submission) -> str:
    """Return what to do about a failed submission, one sentence; "" for others."""
    if submission.state != pb.SUBMISSION_STATE_FAILED:
        return ""
    predict = step_named(submission, "predict")
    if submission.is_test and predict is not None and predict.session:
        look = f"see its output: {shell_line(['nsml', 'logs', predict.session])}"
    else:
        again = shell_line(["nsml", "submit", "-t", submission.session, submission.checkpoint])
        look = f"see its output in a dry run: {again}"
    pull = ["nsml", "dataset", "pull", submission.dataset, "--only", EVALUATION]
    advice = cause_words(submission.cause).advice.replace(_LOOK, look)
    advice = advice.replace(_EVALUATION, shell_line(pull))
    return advice.replace(_INFO, shell_line(["nsml", "submission", "info", submission.id]))


def step_named(submission: Submission, kind: str) -> SubmissionStep | None:
    """Return the last step of this kind, "predict" or "evaluate"."""
    return next((one for one in reversed(submission.steps) if one.kind == kind), None)


def state_text(submission: Submission) -> str:
    """Return glyph, word, and the cause of a failure: `✗ Failed (too large)`."""
    return _state_text(submission.state, submission.cause)


def _state_text(state: int, cause: int) -> str:
    word = state_word(state)
    text = f"{word.glyph} {word.word}"
    return f"{text} ({cause_words(cause).short})" if cause else text


def why_text(submission: Submission) -> str:
    """Return why it failed, one sentence: the platform's, else of its cause; "" for others."""
    if submission.state != pb.SUBMISSION_STATE_FAILED:
        return ""
    return submission.message or cause_words(submission.cause).what


_STEP_WORDS: Final[Mapping[int, tuple[str, str]]] = {
    pb.SUBMISSION_STATE_QUEUED: ("predict", "queued"),
    pb.SUBMISSION_STATE_PREDICTING: ("predict", "predicting"),
    pb.SUBMISSION_STATE_EVALUATING: ("evaluate", "evaluating"),
}


def waiting_text(step: SubmissionStep) -> str:
    """Return why a step waits: `it is queued`, `the platform has a fault, ... (since 11-30 14:03)`; "": it does not."""
    if not step.waiting or not step.HasField("failing_since"):
        return step.waiting
    return f"{step.waiting} ({_since(step)})"


def _since(failing: SubmissionStep | BoardEntry) -> str:
    since = seconds_of(failing.failing_since)
    return f"since {short_moment(since, since)}"


def entry_why(entry: BoardEntry) -> str:
    """Return why an entry has no score, in a sentence; "" where its state says it all."""
    if entry.HasField("failing_since"):
        return f"the platform has a fault, and tries again ({_since(entry)})"
    return cause_words(entry.cause).what if entry.cause else ""


def progress_text(submission: Submission, now: float | None = None) -> str:
    """Return where a submission is and why it waits, in one line; with `now` how long its step has run.

    `predicting for 12s`, `evaluating: waits for a CPU`, `scored`, `failed: the prediction is too large`.
    """
    if submission.state not in _STEP_WORDS:
        why = why_text(submission)
        return f"failed: {why}" if why else state_word(submission.state).word.lower()
    kind, text = _STEP_WORDS[submission.state]
    step = step_named(submission, kind)
    if step is None:
        return text
    if waiting := waiting_text(step):
        return f"{text}: {waiting}"
    if now is not None and step.HasField("started_at"):
        return f"{text} for {duration_text(max(now - seconds_of(step.started_at), 0.0))}"
    return text


def next_text(at: float, now: float) -> str:
    """Return when the next submission is permitted: `next submission possible at 11-30 14:03 (in 12m)`."""
    if at <= now:
        return "next submission possible now"
    return f"next submission possible at {short_moment(at, now)} (in {duration_text(at - now)})"


# Scores and ranks


def keeps_best_text(submission: Submission) -> str:
    """Return why the score is not this submission's own: it is no improvement; "" for others."""
    if not submission.keeps_best or not submission.HasField("score"):
        return ""
    return f"no new best: your best score remains {score_text(submission.score)}"


def _score(entry: BoardEntry, _now: float) -> str:
    """Return the score, else why there is none."""
    if entry.HasField("score"):
        return score_text(entry.score)
    if entry.submission_id and entry.state and entry.state != pb.SUBMISSION_STATE_SCORED:
        text = _state_text(entry.state, entry.cause)
        return f"{text} (platform fault)" if entry.HasField("failing_since") else text
    return "-"


def _score_within(entry: BoardEntry, now: float, cells: int) -> str:
    if entry.HasField("score"):
        return number_within(entry.score, cells)
    return state_word(entry.state).word if entry.submission_id else _score(entry, now)


def owner_text(entry: BoardEntry) -> str:
    """Return its owner, marked if that is the reader: `kim (you)`."""
    return f"{entry.owner} (you)" if entry.is_own else entry.owner


def interval_text(entry: BoardEntry) -> str:
    """Return the ranks between which it is likely to be: `1-4`; "" if unknown."""
    if not entry.rank_low or not entry.rank_high:
        return ""
    low, high = entry.rank_low, entry.rank_high
    return str(low) if low == high else f"{low}-{high}"


def marks_text(entry: BoardEntry) -> str:
    """Return what the board's owner should look at: `duplicate, unstable`; usually ""."""
    marks = (("duplicate", entry.is_duplicate), ("unstable", entry.is_unstable))
    return ", ".join(word for word, holds in marks if holds)


_SCORE: Column[BoardEntry] = score_column()
_SCORE = _SCORE._replace(
    cell=_score,
    colour=lambda e: "" if e.HasField("score") else state_word(e.state).colour,
    within=_score_within,
    stays=True,
)
COLUMNS: tuple[Column[BoardEntry], ...] = (
    rank_column(),
    change_column(),
    Column(
        key="owner",
        title="Owner",
        cell=lambda e, _: owner_text(e),
        colour=lambda e: "cyan" if e.is_own else "",
        is_name=True,
    ),
    Column(
        key="team",
        title="Team",
        cell=lambda e, _: e.team or "-",
        is_wide=True,
        is_worth=lambda e: bool(e.team),
        shrinks_to=8,
    ),
    _SCORE,
    private_score_column(),
    submitted_column(),
    Column(key="session", title="Session", cell=lambda e, _: e.session, shrinks_to=14),
    Column(
        key="checkpoint",
        title="Model",
        cell=lambda e, _: e.checkpoint or "-",
        is_wide=True,
        is_worth=lambda e: bool(e.checkpoint),
        shrinks_to=6,
        is_optional=True,
    ),
    Column(
        key="args",
        title="Args",
        cell=lambda e, _: e.args,
        tells=lambda e: bool(e.args),
        shrinks_to=10,
        is_optional=True,
    ),
    gpu_time_column(),
    Column(
        key="marks",
        title="Marks",
        cell=lambda e, _: marks_text(e) or "-",
        colour=lambda e: "yellow" if marks_text(e) else "",
        is_wide=True,
        is_worth=lambda e: bool(marks_text(e)),
        is_optional=True,
    ),
    Column(
        key="rank_low",
        title="Rank 95 %",
        cell=lambda e, _: interval_text(e) or "-",
        is_wide=True,
        tells=lambda e: bool(interval_text(e)),
    ),
    Column(
        key="standard_error",
        title="Error",
        cell=lambda e, _: (
            f"±{number_within(e.standard_error, 9)}" if e.HasField("standard_error") else "-"
        ),
        is_wide=True,
        tells=lambda e: e.HasField("standard_error"),
    ),
    Column(
        key="memo",
        title="Memo",
        cell=lambda e, _: e.memo or "-",
        is_wide=True,
        tells=lambda e: bool(e.memo),
        shrinks_to=12,
    ),
    Column(
        key="submission_id",
        title="Submission",
        cell=lambda e, _: e.submission_id or "-",
        is_wide=True,
        tells=lambda e: bool(e.submission_id),
    ),
)
"""Of entries."""

_NSML_KEYS: Final = ("owner", "score", "submitted_at", "session", "checkpoint", "args")


def columns_for(board: Board, entries: Collection[BoardEntry] = ()) -> list[Column[BoardEntry]]:
    """Return the columns of a board's entries: the score has the board's title, a trend its direction.

    `entries`: those of the table; their scores get enough digits to differ.
    """
    settings = board.settings
    is_min = settings.direction == pb.SCORE_DIRECTION_MIN
    found = []
    for column in COLUMNS:
        if column.key == "score" and settings.metric:
            # A long name of a metric does not widen the table.
            title = settings.metric if len(settings.metric) <= _TITLE_CELLS else "Score"
            found.append(column._replace(title=title))
        else:
            found.append(column)
    trend: Column[BoardEntry] = trend_column(lambda _: is_min)
    return with_score_texts([*found, trend], entries)


def nsml_columns(entries: Collection[BoardEntry] = ()) -> list[Column[BoardEntry]]:
    """Return the columns of `nsml dataset board` for these entries: Owner Score Submitted Session Model Args."""
    by_key = {column.key: column for column in COLUMNS}
    found = [by_key[key]._replace(is_wide=False, is_optional=False) for key in _NSML_KEYS]
    return with_score_texts(found, entries)


# Boards


def _state_of(board: Board) -> str:
    if board.to_reevaluate:
        return f"re-evaluating {board.reevaluated} of {board.to_reevaluate}"
    settings = board.settings
    return "closed" if settings.HasField("is_open") and not settings.is_open else "open"


def reevaluation_text(board: Board) -> str:
    """Return why a re-evaluation waits, for those who may change the board; "": it does not, or there is none."""
    return waiting_text(board.reevaluation_step)


def _title(board: Board) -> str:
    """Return what is ranked: `val/acc max`."""
    metric = board.settings.metric or ("score" if is_of_dataset(board) else "-")
    return f"{metric} {direction_word(board.settings.direction)}"


BOARD_COLUMNS: tuple[Column[Board], ...] = (
    Column(key="name", title="Name", cell=lambda b, _: full_name(b), is_name=True),
    Column(key="kind", title="Of", cell=lambda b, _: kind_word(b.kind)),
    Column(key="metric", title="Ranked by", cell=lambda b, _: _title(b), shrinks_to=12),
    Column(key="entries", title="Entries", cell=lambda b, _: f"{b.entry_count:,}"),
    Column(
        key="state",
        title="State",
        cell=lambda b, _: _state_of(b) if is_of_dataset(b) else "-",
        is_wide=True,
        is_worth=is_of_dataset,
    ),
    Column(
        key="visibility",
        title="Visibility",
        cell=lambda b, _: visibility_word(b.settings.visibility),
        is_optional=True,
    ),
    Column(
        key="description",
        title="Description",
        cell=lambda b, _: b.settings.description or "-",
        tells=lambda b: bool(b.settings.description),
        shrinks_to=12,
        is_optional=True,
    ),
    Column(
        key="created_at",
        title="Created",
        cell=lambda b, now: (
            ago(now - seconds_of(b.created_at)) if b.HasField("created_at") else "-"
        ),
        is_wide=True,
    ),
)


def limit_text(limit: SubmissionLimit) -> str:
    """Return `3 in 1d`, or `none`."""
    if not limit.count:
        return "none"
    return f"{limit.count} in {duration_text(_window_s(limit))}"


def _window_s(limit: SubmissionLimit) -> float:
    return seconds_of(limit.window) if limit.HasField("window") else _DAY_S


def _limit_record(settings: BoardSettings, field: str) -> dict[str, Any] | None:
    limit = getattr(settings, field)
    if not settings.HasField(field) or not limit.count:
        return None
    return {"count": limit.count, "window_s": whole(_window_s(limit))}


def _seconds(settings: BoardSettings, field: str) -> float | int | None:
    return whole(seconds_of(getattr(settings, field))) if settings.HasField(field) else None


def board_record(board: Board) -> dict[str, Any]:
    """Return all fields of a board in raw values; None: not set."""
    one = board.settings
    return {
        "name": full_name(board),
        "kind": kind_word(board.kind),
        "owner": board.owner,
        "metric": one.metric or None,
        "direction": direction_word(one.direction),
        "filter": one.filter or None,
        "best_per": best_per_word(one.best_per) or None,
        "value": value_word(one.value) or None,
        "public_score": public_score_word(one) if is_of_dataset(board) else None,
        "limit": _limit_record(one, "limit"),
        "failed_limit": _limit_record(one, "failed_limit"),
        "predict_time_s": _seconds(one, "predict_time"),
        "evaluate_time_s": _seconds(one, "evaluate_time"),
        "prediction_bytes": one.prediction_bytes if one.HasField("prediction_bytes") else None,
        "check_every": one.check_every if one.HasField("check_every") else None,
        "is_open": (one.is_open or not one.HasField("is_open")) if is_of_dataset(board) else None,
        "visibility": visibility_word(one.visibility) if one.visibility else None,
        "description": one.description or None,
        "created_at": moment_of(board, "created_at"),
        "entry_count": board.entry_count,
        "evaluation": board.evaluation or None,
        "reevaluated": board.reevaluated,
        "to_reevaluate": board.to_reevaluate,
        "reevaluation_step": (
            _step_record(board.reevaluation_step) if board.HasField("reevaluation_step") else None
        ),
        "may_change": board.may_change,
        "has_private_scores": board.has_private_scores,
    }


def headline(board: Board, per: str = "none") -> str:
    """Return a board in one line: `kim/cifar: acc, max first, 12 entries, the best of each user`.

    `per`: what is listed of these entries, `none`, `user` or `team`; "": as the board does.
    """
    words = [
        f"{board.settings.metric or 'score'}, {direction_word(board.settings.direction)} first",
        counted(board.entry_count, "entry", "entries"),
    ]
    listed = per or best_per_word(board.settings.best_per) or "none"
    if listed != "none":
        words.append(f"the best of each {listed}")
    if is_of_dataset(board) and _state_of(board) != "open":
        waits = reevaluation_text(board)
        words.append(f"{_state_of(board)} ({waits})" if waits else _state_of(board))
    if board.evaluation > 1:
        words.append(f"evaluation {board.evaluation}")
    return f"{full_name(board)}: {', '.join(words)}"


def board_lines(board: Board, limit: str = "") -> list[str]:
    """Describe a board and its settings in a few lines; `limit`: in place of that of a dataset's board."""
    one = board.settings
    rows: list[tuple[str, str]] = [
        ("of", "submissions to the dataset" if is_of_dataset(board) else "sessions"),
        ("ranked by", f"{one.metric or 'score'}, {direction_word(one.direction)} first"),
        ("value", value_word(one.value) and f"the {value_word(one.value)} of each session"),
        ("filter", one.filter),
        ("lists", _per_text(one.best_per)),
    ]
    if is_of_dataset(board):
        rows += _dataset_rows(board, limit)
    rows += [
        ("visibility", visibility_word(one.visibility) if one.visibility else ""),
        ("description", one.description),
        ("entries", f"{board.entry_count:,}"),
    ]
    name = full_name(board)
    return [name, *(f"  {title:{_TITLE_CELLS}}{text}" for title, text in rows if text)]


def _per_text(best_per: int) -> str:
    word = best_per_word(best_per)
    return {"none": "every entry", "": ""}.get(word, f"the best of each {word}")


def _dataset_rows(board: Board, limit: str) -> list[tuple[str, str]]:
    one = board.settings
    times = (("predict", "predict_time"), ("evaluate", "evaluate_time"))
    most = exact_size_text(one.prediction_bytes) if one.prediction_bytes else ""
    return [
        ("scores", public_score_word(one)),
        ("limit", limit or limit_text(one.limit)),
        ("failed", limit_text(one.failed_limit)),
        *(
            (title, f"{duration_text(seconds_of(getattr(one, field)))} at most")
            for title, field in times
            if one.HasField(field)
        ),
        ("prediction", most and f"{most} at most"),
        ("checks", f"1 in {one.check_every} evaluated twice" if one.check_every else ""),
        ("evaluation", str(board.evaluation) if board.evaluation else ""),
        ("state", _state_of(board)),
        ("waits", reevaluation_text(board)),
    ]


def entry_record(entry: BoardEntry) -> dict[str, Any]:
    """Return all fields of an entry in raw values; None: none, unknown, or not for the caller."""
    of_dataset = bool(entry.submission_id)
    state = enum_name(pb.SubmissionState, entry.state, "SUBMISSION_STATE_")
    return {
        "rank": entry.rank or None,
        "rank_before": entry.rank_before or None,
        "owner": entry.owner,
        "team": entry.team or None,
        "score": whole(entry.score) if entry.HasField("score") else None,
        "private_score": whole(entry.private_score) if entry.HasField("private_score") else None,
        "standard_error": entry.standard_error if entry.HasField("standard_error") else None,
        "rank_low": entry.rank_low or None,
        "rank_high": entry.rank_high or None,
        "submitted_at": moment_of(entry, "submitted_at"),
        "session": entry.session or None,
        "session_id": entry.session_id or None,
        "checkpoint": entry.checkpoint or None,
        "args": entry.args,
        "submission_id": entry.submission_id or None,
        "state": state if of_dataset else None,
        "cause": cause_name(entry.cause) or None,
        "gpu_seconds": entry.gpu_seconds,
        "is_own": entry.is_own,
        "trend": [whole(one) for one in entry.trend],
        "memo": entry.memo,
        "is_duplicate": entry.is_duplicate,
        "is_unstable": entry.is_unstable,
        "failing_since": moment_of(entry, "failing_since"),
    }


def nsml_record(entry: BoardEntry) -> dict[str, Any]:
    """Return an entry as `nsml dataset board -j` had it, and its rank and state."""
    whole_record = entry_record(entry)
    keys = ("owner", "score", "submitted_at", "session", "checkpoint", "args")
    return {key: whole_record[key] for key in (*keys, "rank", "team", "state", "submission_id")}


# Submissions


_SUBMISSION_COLUMNS: tuple[Column[Submission], ...] = (
    Column(key="id", title="Id", cell=lambda s, _: s.id),
    Column(key="dataset", title="Dataset", cell=lambda s, _: s.dataset, shrinks_to=10),
    Column(
        key="owner",
        title="Owner",
        cell=lambda s, _: s.owner,
        is_wide=True,
        is_optional=True,
    ),
    Column(
        key="team",
        title="Team",
        cell=lambda s, _: s.team or "-",
        is_wide=True,
        tells=lambda s: bool(s.team),
        is_optional=True,
    ),
    Column(key="session", title="Session", cell=lambda s, _: s.session, is_name=True),
    Column(key="checkpoint", title="Model", cell=lambda s, _: s.checkpoint or "-", shrinks_to=6),
    Column(
        key="state",
        title="State",
        cell=lambda s, _: state_text(s),
        colour=lambda s: state_word(s.state).colour,
        shrinks_to=12,
        stays=True,
    ),
    score_column(),
    private_score_column(),
    Column(key="rank", title="Rank", cell=lambda s, _: str(s.rank) if s.rank else "-"),
    submitted_column(),
    Column(
        key="is_test",
        title="Type",
        cell=lambda s, _: "dry run" if s.is_test else "submit",
        is_wide=True,
        is_worth=lambda s: s.is_test,
        is_optional=True,
    ),
)


def submission_columns(submissions: Collection[Submission] = ()) -> list[Column[Submission]]:
    """Return the columns of a list of these submissions."""
    return with_score_texts(_SUBMISSION_COLUMNS, submissions)


def submission_record(submission: Submission, *, team_rank: int | None = None) -> dict[str, Any]:
    """Return all fields of a submission in raw values; None: none, or not for the caller.

    `team_rank`: of its team in its competition, where that was asked for.
    """
    one = submission
    return {
        "id": one.id,
        "dataset": one.dataset,
        "dataset_version": one.dataset_version or None,
        "owner": one.owner,
        "team": one.team or None,
        "session": one.session,
        "session_id": one.session_id,
        "checkpoint": one.checkpoint,
        "is_test": one.is_test,
        "state": enum_name(pb.SubmissionState, one.state, "SUBMISSION_STATE_"),
        "cause": cause_name(one.cause) or None,
        "message": why_text(one) or None,
        "advice": advice_text(one) or None,
        "submitted_at": moment_of(one, "submitted_at"),
        "ended_at": moment_of(one, "ended_at"),
        "steps": [_step_record(step) for step in one.steps],
        "score": whole(one.score) if one.HasField("score") else None,
        "keeps_best": one.keeps_best,
        "private_score": whole(one.private_score) if one.HasField("private_score") else None,
        "rank": one.rank or None,
        "competition": one.competition or None,
        "team_rank": team_rank,
        "evaluation": one.evaluation or None,
        "evaluation_output": one.evaluation_output or None,
        "next_at": moment_of(one, "next_at"),
    }


def _step_record(step: SubmissionStep) -> dict[str, Any]:
    return {
        "kind": step.kind,
        "session": step.session or None,
        "started_at": moment_of(step, "started_at"),
        "ended_at": moment_of(step, "ended_at"),
        "waiting": step.waiting or None,
        "failing_since": moment_of(step, "failing_since"),
    }


def submission_lines(submission: Submission, now: float) -> list[str]:
    """Describe a submission: where it is, its score, or why it failed and what to do."""
    one = submission
    version = f"@{one.dataset_version}" if one.dataset_version else ""
    rows = [
        ("dataset", f"{one.dataset}{version}"),
        ("model", f"{one.checkpoint} of {one.session}"),
        ("by", f"{one.owner} ({one.team})" if one.team else one.owner),
        ("in", one.competition),
        ("type", "dry run: not on the board" if one.is_test else ""),
        ("state", state_text(one)),
        ("now", progress_text(one, now) if one.state in _STEP_WORDS else ""),
        ("why", why_text(one)),
        ("do", advice_text(one)),
        ("score", score_text(one.score) if one.HasField("score") else ""),
        ("", keeps_best_text(one)),
        ("private", score_text(one.private_score) if one.HasField("private_score") else ""),
        ("rank", str(one.rank) if one.rank else ""),
        ("submitted", _moment_text(one, "submitted_at", now)),
        ("ended", _moment_text(one, "ended_at", now)),
        *(row for step in one.steps for row in _step_rows(one, step, now)),
        ("next", next_text(seconds_of(one.next_at), now) if one.HasField("next_at") else ""),
    ]
    lines = [f"{one.id} {one.session} {one.checkpoint}".rstrip()]
    lines += [f"  {title:{_TITLE_CELLS}}{text}" for title, text in rows if text]
    lines += [f"  | {line}" for line in one.evaluation_output.splitlines()]
    return lines


def _moment_text(submission: Submission, field: str, now: float) -> str:
    if not submission.HasField(field):
        return ""
    at = seconds_of(getattr(submission, field))
    return f"{short_moment(at, now, has_seconds=True)}, {ago(now - at)}"


def _step_rows(
    submission: Submission, step: SubmissionStep, now: float
) -> Iterator[tuple[str, str]]:
    """Yield a step; while it runs, and where it failed, also the command that shows its log."""
    yield step.kind, _step_text(step, now)
    # Nobody reads what a prediction on hidden inputs wrote; the session of a step that succeeded is soon removed.
    is_sealed = step.kind == "predict" and not submission.is_test
    is_over = step.HasField("ended_at")
    has_failed = submission.state == pb.SUBMISSION_STATE_FAILED and step == submission.steps[-1]
    is_there = step.session and step.HasField("started_at") and (has_failed or not is_over)
    if is_there and not is_sealed:
        yield "", shell_line(["nsml", "logs", step.session])


def _step_text(step: SubmissionStep, now: float) -> str:
    """Return `kim/mnist/5, ran for 12s`."""
    words = [step.session] if step.session else []
    if step.HasField("started_at"):
        end = seconds_of(step.ended_at) if step.HasField("ended_at") else now
        verb = "ran for" if step.HasField("ended_at") else "runs for"
        words.append(f"{verb} {duration_text(max(end - seconds_of(step.started_at), 0.0))}")
    if step.HasField("failing_since") or not step.HasField("started_at"):
        words.append(waiting_text(step))
    return ", ".join(filter(None, words))
