"""Sessions as rows, records and words."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from signal import Signals
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from nsml.common.shell import option_words, shell_line
from nsml.common.text import fit, fit_middle, width
from nsml.common.units import (
    ago,
    ago_within,
    begins_as_number,
    counted,
    duration_text,
    memory_text,
    number_text,
    short_moment,
    thousandths,
)
from nsml.spec.dev_sessions import dev_words
from nsml.spec.held_causes import HeldWords, held_words
from nsml.spec.run_flags import (
    DEFAULT_ENTRY,
    FLAGS,
    PRIORITY,
    RESOLVED_FLAGS,
    TIME_LIMIT,
    Flag,
    asked_record,
    asked_words,
)
from nsml.spec.submission_steps import is_step
from nsml.v1 import resources_pb2, sessions_pb2
from nsml.v1.sessions_pb2 import SessionState
from nsml.view.differing_arguments import Differing
from nsml.view.enums import enum_name, enum_word
from nsml.view.metrics import is_set_or_counted
from nsml.view.program_changes import set_words
from nsml.view.progress import progress_record, progress_text, progress_within
from nsml.view.tables import Column
from nsml.view.times import moment_of, seconds_of
from nsml.view.usage import (
    efficiency_text,
    episode_records,
    usage_record,
    use_record,
    waste_text,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nsml.v1.checkpoints_pb2 import Checkpoint
    from nsml.v1.sessions_pb2 import EndedAttempt, Session
    from nsml.view.differing_arguments import Shared

SIMULATED = "simulated"
SIMULATED_SHORT = "sim"
_ASKED = "asked"
_MOST_ATTEMPTS = 3
_TOTAL = "_total"
"""Suffix of a value's name: its total."""
_MORE = " …"
_Option: TypeAlias = "tuple[str, ...]"
"""An option with its values, or a word that is no option."""
_NO_OPTIONS: Mapping[str, Shared[_Option]] = {}
_KEY_CELLS = 6
"""Longest shortened name of a value."""
_LEAST_KEY_CELLS = 4
"""The same if no other value is shown."""
_HELD_CELLS = len("2 sim")
_COMMIT_DIGITS = 12
_ARGS_CELLS = 8
"""Least cells of arguments, and of a summary beside columns of its values."""
_SUMMARY = "summary."
"""Key prefix of columns with one value of summaries."""
_TEXT_CELLS = 24
"""Most cells of a text in a summary."""
_LAST_OUTPUT = "last output: "
"""Prefix of the message of nodes after a failure without an exception."""
_BY_SIGNAL = 128
"""Added to the number of a signal that ended a program."""
_SIGNALS: Mapping[int, str] = {one.value: one.name for one in Signals}
_RUN = ("nsml", "run")
_SHARED = (resources_pb2.VISIBILITY_PUBLIC, resources_pb2.VISIBILITY_TEAM)
_ORDINARY = (sessions_pb2.PRIORITY_UNSPECIFIED, sessions_pb2.PRIORITY_NORMAL)


class StateWord(NamedTuple):
    """A state in its three forms: never by colour alone. The code abbreviates the word."""

    glyph: str
    word: str
    code: str
    colour: str
    """Name of a terminal colour."""


STATE_WORDS: Mapping[int, StateWord] = {
    sessions_pb2.SESSION_STATE_UNSPECIFIED: StateWord(
        glyph="?", word="Unspecified", code="???", colour="white"
    ),
    sessions_pb2.SESSION_STATE_QUEUED: StateWord(
        glyph="◌", word="Queued", code="QUE", colour="yellow"
    ),
    sessions_pb2.SESSION_STATE_PREPARING: StateWord(
        glyph="◔", word="Preparing", code="PRE", colour="cyan"
    ),
    sessions_pb2.SESSION_STATE_RUNNING: StateWord(
        glyph="●", word="Running", code="RUN", colour="green"
    ),
    sessions_pb2.SESSION_STATE_PAUSED: StateWord(
        glyph="‖", word="Paused", code="PAU", colour="cyan"
    ),
    sessions_pb2.SESSION_STATE_UNKNOWN: StateWord(
        glyph="⚠", word="Unknown", code="UNK", colour="yellow"
    ),
    sessions_pb2.SESSION_STATE_STOPPING: StateWord(
        glyph="◐", word="Stopping", code="STP", colour="yellow"
    ),
    sessions_pb2.SESSION_STATE_FINALIZING: StateWord(
        glyph="◕", word="Finalizing", code="FIN", colour="cyan"
    ),
    sessions_pb2.SESSION_STATE_SUCCEEDED: StateWord(
        glyph="✔", word="Succeeded", code="SUC", colour="green"
    ),
    sessions_pb2.SESSION_STATE_FAILED: StateWord(
        glyph="✗", word="Failed", code="FAI", colour="red"
    ),
    sessions_pb2.SESSION_STATE_STOPPED: StateWord(
        glyph="■", word="Stopped", code="STO", colour="white"
    ),
    sessions_pb2.SESSION_STATE_HELD: StateWord(glyph="⊘", word="Held", code="HLD", colour="red"),
}

REQUEUING = StateWord(glyph="◐", word="Requeuing", code="RQU", colour="yellow")
"""STOPPING of a session that saves, exits and is requeued: it does not end."""

_REQUEUED_BY = "requeued by "
"""Prefix of the reason of an attempt that a user had requeued."""
_LOSES_WORK = frozenset(
    {sessions_pb2.CAUSE_PREEMPTED, sessions_pb2.CAUSE_NODE_LOST, sessions_pb2.CAUSE_LOST_AFTER}
)
"""Causes after which unsaved work is repeated, through no fault of the program."""
AFTER_OTHERS = STATE_WORDS[sessions_pb2.SESSION_STATE_HELD]._replace(
    colour=STATE_WORDS[sessions_pb2.SESSION_STATE_QUEUED].colour
)
"""A session held until others have ended: nothing is wrong with it."""
_DURABLE_WITHIN_S = 30.0
"""Precision of the time when a checkpoint became durable: a shorter loss is not shown."""
WAITING_STATES = frozenset({sessions_pb2.SESSION_STATE_QUEUED, sessions_pb2.SESSION_STATE_HELD})
"""States in which a session holds none of its requested resources."""
_BAD_STATES = frozenset({sessions_pb2.SESSION_STATE_FAILED, sessions_pb2.SESSION_STATE_HELD})
_CAUSE_WORDS: Mapping[int, str] = {
    sessions_pb2.CAUSE_TIME_LIMIT: "time limit",
    sessions_pb2.CAUSE_OUT_OF_MEMORY: "out of memory",
    sessions_pb2.CAUSE_ENVIRONMENT_FAILED: "environment",
    sessions_pb2.CAUSE_DATA_FAILED: "data",
    sessions_pb2.CAUSE_START_FAILED: "did not start",
    sessions_pb2.CAUSE_NODE_LOST: "node lost",
    sessions_pb2.CAUSE_LOST_AFTER: "lost",
    sessions_pb2.CAUSE_GANG_MEMBER_FAILED: "gang member failed",
    sessions_pb2.CAUSE_PREEMPTED: "preempted",
    sessions_pb2.CAUSE_LIMIT_EXCEEDED: "over its limit",
    sessions_pb2.CAUSE_PORT_TAKEN: "port taken",
    sessions_pb2.CAUSE_NODE_REFUSED: "refused by its node",
}


def waits_for_others(session: Session) -> bool:
    """Return whether it is held only until other sessions have ended, without a failure."""
    is_held = session.state == sessions_pb2.SESSION_STATE_HELD
    return is_held and session.held_cause == sessions_pb2.HELD_CAUSE_AFTER


def ended_badly(session: Session) -> bool:
    """Return whether it, or its last attempt, has a bad end to show."""
    return session.state in _BAD_STATES and not waits_for_others(session)


def word_of(session: Session) -> StateWord:
    """Return the displayed state of a session."""
    if waits_for_others(session):
        return AFTER_OTHERS
    is_stopping = session.state == sessions_pb2.SESSION_STATE_STOPPING
    if is_stopping and session.stop.cause == sessions_pb2.CAUSE_PREEMPTED:
        return REQUEUING
    return STATE_WORDS.get(session.state, STATE_WORDS[0])


def state_text(session: Session) -> str:
    """Return glyph, word, cause of a bad end, in a gang its rank, and losses: `✗ Failed (exit 3)`."""
    word = word_of(session)
    text, facts = f"{word.glyph} {word.word}", []
    if waits_for_others(session):
        facts.append(held_words(held_cause_name(session)).short)
    elif ended_badly(session):
        held = words_of_hold(session)
        cause = held.short if held is not None else _CAUSE_WORDS.get(session.end.cause)
        cause = cause or f"exit {session.end.exit_code}"
        which = f", rank {session.end.rank}" if session.spec.replica_count > 1 else ""
        facts.append(f"{cause}{which}")
    if session.lost_checkpoint_count:
        facts.append(f"{counted(session.lost_checkpoint_count, 'checkpoint')} lost")
    return f"{text} ({'; '.join(facts)})" if facts else text


def lost_text(session: Session) -> str:
    """Describe its lost checkpoints, with the command that shows why; usually ""."""
    if not session.lost_checkpoint_count:
        return ""
    return (
        f"{counted(session.lost_checkpoint_count, 'checkpoint')} lost: nsml model ls {session.name}"
    )


def _checkpoints_within(session: Session, _now: float, _cells: int) -> str:
    """Return the number of checkpoints; lost ones are in the state, too."""
    return f"{session.checkpoint_count}{_MORE if session.lost_checkpoint_count else ''}"


def checkpoints_text(session: Session) -> str:
    """Return the numbers of checkpoints and of lost ones: `3 (1 lost)`."""
    lost = session.lost_checkpoint_count
    return f"{session.checkpoint_count} ({lost} lost)" if lost else str(session.checkpoint_count)


IMPORTED_FROM: Final = ("mlflow", "tensorboard", "wandb")
"""In place of the platform of sessions that `nsml import` made; those of platforms are longer."""


def origin_text(session: Session) -> str:
    """Describe its origin: `rerun of kim/mnist/3`; "" without one."""
    if session.HasField("imported"):
        one = session.imported
        if one.platform in IMPORTED_FROM:
            return f"imported from {one.name}" + (f" (owner {one.owner})" if one.owner else "")
        return f"restored from {one.name} of platform {one.platform} (owner {one.owner})"
    if not session.HasField("origin"):
        return ""
    return f"{_origin_word(session)} of {session.origin.name or session.origin.session}"


def initial_text(session: Session) -> str:
    """Return its initial checkpoint: `best of kim/mnist/3`; "" without one."""
    if not session.spec.HasField("initial_checkpoint"):
        return ""
    initial = session.spec.initial_checkpoint
    return f"{initial.name or 'newest'} of {initial.session_name or initial.session}"


_TYPES: Final[Mapping[int, str]] = {
    sessions_pb2.SESSION_STAGE_UNSPECIFIED: "normal",
    sessions_pb2.SESSION_STAGE_PREDICT: "submit",
    sessions_pb2.SESSION_STAGE_PREDICT_TEST: "submit(test)",
    sessions_pb2.SESSION_STAGE_EVALUATE: "evaluate",
    sessions_pb2.SESSION_STAGE_INFER: "infer",
}
"""As NSML named them."""


def type_word(session: Session) -> str:
    """Return what a session is for: `normal`, `submit`, `submit(test)`, `evaluate`, `infer`."""
    stage = session.spec.stage
    return _TYPES.get(stage) or enum_word(sessions_pb2.SessionStage, stage, "SESSION_STAGE_")


def is_listed(session: Session, *, has_predictions: bool = False) -> bool:
    """Return whether lists have a session without being asked for it: not if it is a step of a submission.

    `has_predictions`: those that predict are listed, as in NSML.
    """
    if not is_step(session.spec):
        return True
    return has_predictions and session.spec.stage != sessions_pb2.SESSION_STAGE_EVALUATE


def submission_text(session: Session) -> str:
    """Describe the submission of its step: `7f3a (submit): nsml submission info 7f3a`; "" for others."""
    if not session.spec.submission_id:
        return ""
    show = shell_line(["nsml", "submission", "info", session.spec.submission_id])
    return f"{session.spec.submission_id} ({type_word(session)}): {show}"


def git_text(session: Session) -> str:
    """Describe the commit of its code: `1a2b3c4d5e6f main, changed`; "" if unknown."""
    if not session.HasField("git"):
        return ""
    git = session.git
    words = " ".join(filter(None, (git.commit[:_COMMIT_DIGITS], git.branch)))
    return f"{words}, changed" if git.dirty else words


def _git(session: Session) -> dict[str, Any] | None:
    if not session.HasField("git"):
        return None
    git = session.git
    return {
        "commit": git.commit,
        "branch": git.branch or None,
        "remote": git.remote or None,
        "dirty": git.dirty if git.HasField("dirty") else None,
    }


def _initial(session: Session) -> dict[str, Any] | None:
    if not session.spec.HasField("initial_checkpoint"):
        return None
    initial = session.spec.initial_checkpoint
    return {
        "name": initial.name,
        "session": initial.session_name or None,
        "id": initial.session,
        "digest": initial.digest or None,
    }


def _origin_word(session: Session) -> str:
    kind = session.origin.kind
    return enum_word(sessions_pb2.OriginKind, kind, "ORIGIN_KIND_") if kind else "made out"


def _origin(session: Session) -> dict[str, Any] | None:
    origin = session.origin
    if not session.HasField("origin"):
        return None
    return {
        "kind": enum_name(sessions_pb2.OriginKind, origin.kind, "ORIGIN_KIND_"),
        "session": origin.name or None,
        "id": origin.session,
    }


def _imported(session: Session) -> dict[str, Any] | None:
    if not session.HasField("imported"):
        return None
    one = session.imported
    return {
        "platform": one.platform,
        "session": one.name,
        "id": one.session_id,
        "owner": one.owner,
        "restored_at": moment_of(one, "restored_at"),
    }


def end_text(session: Session) -> str:
    """Return why it ended badly or is held: the platform's message, else the cause: `exit 137 (SIGKILL)`; "" for others."""
    if not ended_badly(session):
        return ""
    end = session.end
    if is_last_output(session):
        return f"{exit_text(end.exit_code)}: {end.message.removeprefix(_LAST_OUTPUT)}"
    return end.message or _CAUSE_WORDS.get(end.cause) or exit_text(end.exit_code)


def why_text(session: Session) -> str:
    """Return the same after the reason of its hold: `it is held: too many bad attempts ...; no room on its disk`."""
    held = words_of_hold(session)
    hold = f"it is held: {held.why}" if held is not None else ""
    return "; ".join(filter(None, (hold, end_text(session))))


def held_cause_name(session: Session) -> str:
    """Return `START_FAILURES`; "" if it is not held, or its control plane does not report why."""
    cause = session.held_cause
    return enum_name(sessions_pb2.HeldCause, cause, "HELD_CAUSE_") if cause else ""


def words_of_hold(session: Session) -> HeldWords | None:
    """Return the texts on the cause of its hold; None if there is none."""
    name = held_cause_name(session)
    return held_words(name) if name else None


def is_last_output(session: Session) -> bool:
    """Return whether its message is no cause, but the last output of its program."""
    return session.end.message.startswith(_LAST_OUTPUT)


def exit_text(code: int) -> str:
    """Describe an exit code with its signal: `exit 1`, `exit 137 (SIGKILL)`."""
    if (signal := _SIGNALS.get(code - _BY_SIGNAL)) is not None:
        return f"exit {code} ({signal})"
    return f"exit {code}"


def _state_within(session: Session, _now: float, cells: int) -> str:
    """Return the state's word without the cause; else its code, which filters accept, too."""
    word = word_of(session)
    text = f"{word.glyph} {word.word}"
    return text if width(text) <= cells else f"{word.glyph} {word.code}"


def log_of_first(session: Session, *, shown_rank: int = 0) -> str:
    """Return the command that shows why a gang ended badly, if that is in another rank's log."""
    is_bad = ended_badly(session)
    if not is_bad or session.spec.replica_count <= 1 or session.end.rank == shown_rank:
        return ""
    return f"nsml logs {session.name} --rank {session.end.rank}"


def earlier_logs(session: Session, attempt: int = 0) -> str:
    """Describe which attempt a log is of, by default the last, with the command for earlier ones; "" if there are none."""
    attempt = attempt or session.attempt
    before = attempt - 1
    if before < 1:
        return ""
    which = "1" if before == 1 else f"N   with N from 1 to {before}"
    return f"(log of attempt {attempt}; earlier: nsml logs {session.name} --attempt {which})"


def command_words(session: Session) -> list[str]:
    """Return the program's words, as in NSML: only the arguments for an entry, all words for argv, `dev` for interactive sessions."""
    spec = session.spec
    return dev_words(spec.argv, session.command) or list(spec.argv or spec.args)


def summary_text(
    session: Session | Checkpoint, cells: int | None = None, own: Collection[str] = frozenset()
) -> str:
    """Return the last summary report in its order, without `step`: numbers rounded, lists and dicts as counts.

    `epoch` and `epoch_total` are `epoch=3/20`. In lists the number of missing values follows.

    `cells`: as many values as fit, settings and counters last, with names shortened but no number cut; "" if
    not even the first fits. `own`: values with a column of their own, to be left out then.
    """
    pairs = _summary_pairs(session)
    text = ", ".join(key + value for key, value in pairs)
    # Values to compare come before progress and settings.
    pairs.sort(key=lambda pair: (pair[0] == "epoch", is_set_or_counted(pair[0])))
    if left_out := getattr(session, "summary_left_out", 0):
        text += f" … {left_out:,} more"
    if cells is None or width(text) <= cells:
        return text
    return _pairs_within(
        [pair for pair in pairs if pair[0] not in own], cells, has_more=bool(left_out)
    )


def summary_words(session: Session) -> str:
    """Return the known values of a summary, for word search."""
    return ", ".join(key + value for key, value in _summary_pairs(session))


def _summary_pairs(session: Session | Checkpoint) -> list[tuple[str, str]]:
    values = summary_of(session)
    pairs = []
    for key, value in values.items():
        if key in {"step", "walltime"} or (key.endswith(_TOTAL) and key[: -len(_TOTAL)] in values):
            continue
        total = f"/{_short(values[key + _TOTAL])}" if key + _TOTAL in values else ""
        pairs.append((key, f"={_short(value)}{total}"))
    return pairs


def _pairs_within(pairs: Sequence[tuple[str, str]], cells: int, *, has_more: bool) -> str:
    """Return the first pairs that fit, and a mark for further ones: `has_more`, or those that do not fit."""
    text = ""
    for left, (key, value) in enumerate(pairs, start=1 - len(pairs)):
        lead = f"{text}, " if text else ""
        more = width(_MORE) if has_more or left else 0
        room = cells - width(lead) - width(value) - more
        if room < min(width(key), _KEY_CELLS):
            # A single value is more useful than a mark.
            return text + _MORE if text else _value_within(key, value, cells)
        text = f"{lead}{fit_middle(key, room)}{value}"
    return text + _MORE if text and has_more else text


def _value_within(key: str, value: str, cells: int) -> str:
    """Return a value after as much of its name as fits; "" if that is too little to recognize it."""
    room = cells - width(value)
    return f"{fit_middle(key, room)}{value}" if room >= _LEAST_KEY_CELLS else ""


def summary_of(session: Session | Checkpoint) -> dict[str, Any]:
    """Return the values of the last summary report in their order."""
    fields = session.summary.fields
    # Without names from the control plane the order is unknown.
    named = [name for name in session.summary_names if name in fields]
    return {name: plain(fields[name]) for name in dict.fromkeys([*named, *sorted(fields)])}


def _short(value: Any) -> str:
    match value:
        case float():
            return number_text(value)
        case list():
            return f"[{counted(len(value), 'value')}]"
        case dict():
            return f"{{{counted(len(value), 'value')}}}"
        case str():
            return fit(value, _TEXT_CELLS)
        case _:
            return str(value)


def plain(value: Any) -> Any:
    """Convert a google.protobuf.Value to a Python value."""
    match value.WhichOneof("kind"):
        case "number_value":
            return value.number_value
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return {key: plain(item) for key, item in value.struct_value.fields.items()}
        case "list_value":
            return [plain(item) for item in value.list_value.values]
    return None


def stop_text(session: Session, now: float) -> str:
    """Describe why it is being stopped and until when: `gives way to kim/None/3 (high), for 42s more at most`; else ""."""
    if not session.HasField("stop"):
        return ""
    stop = session.stop
    if stop.cause == sessions_pb2.CAUSE_STOP_REQUESTED:
        why = f"stopped by {stop.asked_by}" + (stop.reason and f": {stop.reason}")
    else:
        why = stop.reason or enum_word(sessions_pb2.Cause, stop.cause, "CAUSE_")
    if not stop.HasField("until"):
        return why
    left = seconds_of(stop.until) - now
    return f"{why}, {f'for {duration_text(left)} more at most' if left > 0 else 'ends any moment'}"


def waiting_text(session: Session) -> str:
    """Describe that a session waits, and for what; "" if it does not, or that is unknown."""
    if not session.waiting:
        return ""
    state = enum_word(sessions_pb2.SessionState, session.state, "SESSION_STATE_")
    return f"{session.name} {state}: {session.waiting}"


def _summary(session: Session, now: float) -> str:
    if session.state == sessions_pb2.SESSION_STATE_QUEUED:
        return session.waiting
    if told := stop_text(session, now):
        return told
    if session.waiting:
        return session.waiting
    return "; ".join(filter(None, (end_text(session), summary_text(session)))) or _never_ran(
        session
    )


def _never_ran(session: Session) -> str:
    """Return why it was stopped before it ran, shown nowhere else; else ""."""
    is_one = session.state == sessions_pb2.SESSION_STATE_STOPPED and not session.attempt
    return session.end.message if is_one else ""


def _summary_within(
    session: Session, _now: float, cells: int, own: Collection[str] = frozenset()
) -> str:
    is_told = session.state == sessions_pb2.SESSION_STATE_QUEUED or session.HasField("stop")
    is_told = is_told or any((session.waiting, end_text(session), _never_ran(session)))
    return "" if is_told else summary_text(session, cells, own) or fit(_MORE.strip(), cells)


def _args_within(
    session: Session, _now: float, cells: int, shared: Mapping[str, Shared[_Option]] = _NO_OPTIONS
) -> str:
    """Return the options that fit, each with its value: `--lr 0.1 …`; the most distinguishing first.

    No option is separated from its value, and no number is cut: if the first does not fit, `…`.
    """
    options = _differing_first(session, shared)
    text = ""
    for words in options:
        longer = f"{text} {shell_line(words)}".lstrip()
        if width(longer) + width(_MORE) <= cells:
            text = longer
    if text:
        return text + _MORE
    key, *values = options[0]
    can_be_cut = width(key) + 1 < cells and not any(map(begins_as_number, values))
    return "" if can_be_cut else fit(_MORE.strip(), cells)


def _differing_first(session: Session, shared: Mapping[str, Shared[_Option]]) -> list[list[str]]:
    options = _options(command_words(session))
    if (known := shared.get(_program(session))) is None:
        return options
    return sorted(options, key=lambda words: known.rank(_name(words)))


def _first_option_cells(session: Session, shared: Mapping[str, Shared[_Option]]) -> int:
    options = _differing_first(session, shared)
    more = width(_MORE) if len(options) > 1 else 0
    return width(shell_line(options[0])) + more if options else 0


def _first_value_cells(session: Session, own: Collection[str]) -> int:
    pairs = [pair for pair in _summary_pairs(session) if pair[0] not in own]
    more = width(_MORE) if len(pairs) > 1 or session.summary_left_out else 0
    return width("".join(pairs[0])) + more if pairs else 0


def columns_for(
    sessions: Sequence[Session], columns: Sequence[Column[Session]] | None = None
) -> list[Column[Session]]:
    """Return the columns of a list of sessions: arguments begin with what differs most between those of a program.

    Optional columns are left out before arguments and summaries are cut below their first value.
    """
    shared = _shared_options(sessions)
    args = max((_first_option_cells(one, shared) for one in sessions), default=0)
    columns = columns or COLUMNS
    own = {one.key.removeprefix(_SUMMARY) for one in columns if one.key.startswith(_SUMMARY)}
    values = max((_first_value_cells(one, own) for one in sessions), default=0)
    return [
        one._replace(within=partial(_args_within, shared=shared), shrinks_to=_wanting(one, args))
        if one.within is _args_within
        else one._replace(
            within=partial(_summary_within, own=own),
            shrinks_to=_wanting(one, values),
            least=_ARGS_CELLS if own else one.least,
        )
        if one.within is _summary_within
        # The summary is less important then: the GPUs stay whole.
        else one._replace(least=_HELD_CELLS)
        if own and one.within is _gpus_within
        else one
        for one in columns
    ]


def _wanting(one: Column[Session], cells: int) -> int:
    """Return a column's least width: enough to show something, within reason."""
    return max(one.shrinks_to or 0, min(cells, _TEXT_CELLS))


def _shared_options(sessions: Sequence[Session]) -> dict[str, Shared[_Option]]:
    """Return by program the options shared by its sessions, and those that differ."""
    found: dict[str, Differing[_Option]] = {}
    for session in sessions:
        given: dict[str, _Option] = {}
        for words in _options(command_words(session)):
            name = _name(words)
            given[name] = (*given.get(name, ()), *words)
        found.setdefault(_program(session), Differing()).add(given)
    return {program: one.shared for program, one in found.items()}


def _name(words: Sequence[str]) -> str:
    """Return the name of an option, with or without its value in the same word."""
    return words[0].partition("=")[0]


def _program(session: Session) -> str:
    return command_words(session)[0] if session.spec.argv else session.spec.entry


def _options(words: Sequence[str]) -> list[list[str]]:
    """Group the words of a command: values with their option."""
    found: list[list[str]] = []
    for word in words:
        if found and not word.startswith("-") and found[-1][0].startswith("-"):
            found[-1].append(word)
        else:
            found.append([word])
    return found


def held_text(session: Session, now: float, *, simulated: str = SIMULATED) -> str:
    """Describe its GPUs, whether simulated, and their use: `2 simulated (idle 12m)`; if it waits `2 asked`."""
    return " ".join(_gpu_parts(session, now, simulated))


def _only_asks(session: Session) -> bool:
    """Return whether it requests GPUs, and holds none."""
    return session.state in WAITING_STATES and session.spec.resources.gpu_thousandths > 0


def _gpu_parts(session: Session, now: float, simulated: str) -> list[str]:
    text = thousandths(session.spec.resources.gpu_thousandths)
    if session.spec.replica_count > 1:
        text = f"{session.spec.replica_count}x{text}"
    if _only_asks(session):
        return [text, _ASKED]
    waste = waste_text(session.episodes, now)
    parts = (text, simulated if session.simulated else "", f"({waste})" if waste else "")
    return [part for part in parts if part]


def _gpus_within(session: Session, now: float, cells: int) -> str:
    """Return the number of GPUs with as much detail as fits: `2 sim (idle 12m)`, `2 sim …`, `2`; `2?` if only requested."""
    parts = _gpu_parts(session, now, SIMULATED_SHORT)
    if _only_asks(session):
        forms = (" ".join(parts), f"{parts[0]}?")
        return next((form for form in forms if width(form) <= cells), "")
    for count in range(len(parts), 0, -1):
        text = " ".join(parts[:count])
        for more in ("" if count == len(parts) else _MORE, ""):
            if width(text + more) <= cells:
                return text + more
    return ""


def _each(session: Session) -> resources_pb2.Resources:
    """Return the resources of each replica; before placement the requested ones, 0 for the default."""
    return session.replicas[0].resources if session.replicas else session.spec.resources


def _cpus(session: Session, _now: float) -> str:
    cpus = _each(session).cpu_thousandths
    return thousandths(cpus) if cpus else "-"


def _memory(session: Session, _now: float) -> str:
    memory = _each(session).memory_bytes
    return memory_text(memory) if memory else "-"


def _running_for(session: Session, now: float) -> str:
    ran = ran_s(session, now)
    return "-" if ran is None else ran_text(ran)


def ran_text(ran_s: float) -> str:
    """Format a run time: `41s`; `<1s` for anything shorter."""
    return "<1s" if 0 < ran_s < 1 else duration_text(ran_s)


def ran_s(session: Session, now: float) -> float | None:
    """Return the run time of its programs in seconds, without the time between attempts; None if they never ran.

    The wait before the current attempt is included until it ends: its placement time is not reported.
    """
    if not session.HasField("started_at"):
        return None
    end = seconds_of(session.ended_at) if session.HasField("ended_at") else now
    attempts = session.attempts
    is_waiting = session.state in WAITING_STATES
    if attempts and (is_waiting or (session.HasField("ended_at") and not session.replicas)):
        end = seconds_of(attempts[-1].ended_at)
    between = sum(
        max(seconds_of(later.placed_at) - seconds_of(earlier.ended_at), 0.0)
        for earlier, later in pairwise(attempts)
    )
    return max(end - seconds_of(session.started_at) - between, 0.0)


def _limit(session: Session, _now: float) -> str:
    return TIME_LIMIT.text(session.spec, "time_limit") or "-"


def _created(session: Session, now: float) -> str:
    if not session.HasField("created_at"):
        return "Not created yet"
    return ago(now - seconds_of(session.created_at))


def _nodes(session: Session, _now: float) -> str:
    return ",".join(dict.fromkeys(replica.node for replica in session.replicas)) or "-"


def _saved(session: Session, now: float) -> str:
    """Return when it saved last, and whether it could resume from that elsewhere."""
    if not session.HasField("progress"):
        return "-"
    progress = session.progress
    if not progress.HasField("saved_at"):
        # The checkpoints are of an earlier attempt, or the time is not reported yet.
        return "not yet" if session.checkpoint_count else "never"
    when = ago(now - seconds_of(progress.saved_at))
    return when if progress.resumable else f"{when}, not resumable"


def placed_text(session: Session) -> str:
    """Return its nodes, with those chosen for their data: `b near its data`."""
    near = {replica.node for replica in session.replicas if replica.near_data}
    nodes = dict.fromkeys(replica.node for replica in session.replicas)
    return ", ".join(f"{node} near its data" if node in near else node for node in nodes)


def lock_text(session: Session) -> str:
    """Describe its installed packages: `42 packages, lock 3f9a0c51d2e4`; "" if unknown."""
    if not session.HasField("environment_lock"):
        return ""
    lock = session.environment_lock
    return f"{counted(lock.package_count, 'package')}, lock {lock.digest[:12]}"


def images_text(session: Session) -> str:
    """Return the images of its containers, by digest: `python@sha256:...`; "" if there are none."""
    return ", ".join(dict.fromkeys(one.image for one in session.replicas if one.image))


def driver_versions(session: Session) -> list[str]:
    """Return the distinct drivers of the GPUs that it holds or held; see `driver_text`."""
    every = {driver_text(device) for one in session.replicas for device in one.devices}
    return sorted(every - {""})


def driver_text(device: resources_pb2.Device) -> str:
    """Return the driver of a GPU: `550.54.14 (CUDA 12.4)`; "" if unknown."""
    cuda = device.cuda_version and f" (CUDA {device.cuda_version})"
    return device.driver_version and f"{device.driver_version}{cuda}"


def python_versions(session: Session) -> list[str]:
    """Return the distinct Python versions from its nodes; while it is requeued, of its last attempt."""
    if not session.replicas and session.attempts:
        return list(session.attempts[-1].python_versions)
    return sorted({one.python_version for one in session.replicas} - {""})


def attempt_lines(session: Session) -> list[str]:
    """Describe the last attempts that did not end the session, a line each: `attempt 1: vm for 3s; preempted: ...`."""
    return [attempt_line(session, one) for one in earlier_attempts(session)[-_MOST_ATTEMPTS:]]


def earlier_attempts(session: Session) -> list[EndedAttempt]:
    """Return the attempts that did not end the session."""
    # If it ended in the queue it has no replica: its last attempt ended before.
    own = session.attempt if session.end.cause and session.replicas else 0
    return [one for one in session.attempts if one.number != own]


def attempt_line(session: Session, one: EndedAttempt) -> str:
    """Return `attempt 1: vm for 1h2m, 2 x NVIDIA A100, low priority; preempted: ...; saved until 11-23 14:02, 12m of work lost`."""
    words = cause_word(one.cause)
    why = f"{words}: {one.reason}" if one.reason else words
    if one.cause == sessions_pb2.CAUSE_PREEMPTED and one.reason.startswith(_REQUEUED_BY):
        why = one.reason
    took = duration_text(seconds_of(one.ended_at) - seconds_of(one.placed_at))
    held = [f"{', '.join(one.nodes)} for {took}", *_models(one)]
    if session.spec.priority:
        held.append(f"{PRIORITY.word(session.spec, 'priority')} priority")
    return "; ".join(
        filter(None, (f"attempt {one.number}: {', '.join(held)}", why, _saved_words(one)))
    )


def _models(one: EndedAttempt) -> list[str]:
    """Return the GPUs of an attempt, and its versions: `2 x NVIDIA A100`, `driver 550.54.14`, `Python 3.12.4`."""
    held = sorted(one.gpu_models.items())
    return [
        *(f"{thousandths(count)} x {model or 'GPU'}" for model, count in held),
        *(f"driver {version}" for version in one.driver_versions),
        *(f"Python {version}" for version in one.python_versions),
    ]


def _saved_words(one: EndedAttempt) -> str:
    """Describe the saved part of its work: `saved until 11-23 14:02, 12m of work lost`."""
    is_loss = one.cause in _LOSES_WORK
    if not one.HasField("durable_until"):
        # Records without models are older, and lack the time even if something was saved.
        return "nothing saved" if is_loss and one.gpu_models else ""
    until, ended = seconds_of(one.durable_until), seconds_of(one.ended_at)
    words = f"saved until {short_moment(until, ended)}"
    # The precision of that time.
    if is_loss and ended - until >= _DURABLE_WITHIN_S:
        words += f", {duration_text(ended - until)} of work lost"
    return words


def cause_word(cause: int) -> str:
    """Return the cause of an end in a word or two."""
    return _CAUSE_WORDS.get(cause) or enum_word(sessions_pb2.Cause, cause, "CAUSE_")


def _created_within(session: Session, now: float, cells: int) -> str:
    is_there = session.HasField("created_at")
    return ago_within(now - seconds_of(session.created_at), cells) if is_there else ""


def _absolute(field: str) -> Any:
    def cell(session: Session, now: float) -> str:
        if not session.HasField(field):
            return "-"
        return short_moment(seconds_of(getattr(session, field)), now)

    return cell


def _never(_session: Session) -> bool:
    """For columns shown only by --fields, or only in the other width."""
    return False


def _is_under_way(session: Session) -> bool:
    """Return whether its training is in progress: how far ended sessions came is shown beside others, and in wide lists."""
    return session.HasField("training") and not session.HasField("ended_at")


def _asked_column(flag: Flag) -> Column[Session]:
    """Return the column of a flag that few sessions use."""
    text = flag.reading(flag.kind.text)
    return Column(
        key=flag.record,
        title=flag.title,
        cell=lambda s, _: text(s) or "-",
        is_wide=True,
        is_worth=lambda s: text(s) != "",
        is_optional=True,
        shrinks_to=flag.cells,
    )


COLUMNS: tuple[Column[Session], ...] = (
    Column(key="name", title="Name", cell=lambda s, _: s.name, is_name=True),
    # -o wide has the time instead.
    Column(
        key="created",
        title="Created",
        cell=_created,
        tells=_never,
        is_optional=True,
        shrinks_to=7,
        within=_created_within,
    ),
    Column(
        key="args",
        title="Args",
        cell=lambda s, _: shell_line(command_words(s)),
        tells=lambda s: bool(command_words(s)),
        shrinks_to=10,
        least=_ARGS_CELLS,
        within=_args_within,
    ),
    Column(
        key="state",
        title="Status",
        cell=lambda s, _: state_text(s),
        colour=lambda s: word_of(s).colour,
        shrinks_to=12,
        within=_state_within,
        stays=True,
    ),
    Column(
        key="running",
        title="Ran for",
        cell=_running_for,
        tells=lambda s: s.HasField("started_at"),
    ),
    Column(
        key="progress",
        title="Progress",
        cell=lambda s, now: progress_text(s, now) or "-",
        is_wide=True,
        is_worth=_is_under_way,
        tells=lambda s: s.HasField("training"),
        shrinks_to=8,
        least=8,
        within=progress_within,
    ),
    Column(key="gpus", title="GPUs", cell=held_text, shrinks_to=9, within=_gpus_within),
    Column(
        key="summary",
        title="Summary",
        cell=_summary,
        tells=lambda s: bool(_summary(s, 0)),
        shrinks_to=20,
        least=14,
        within=_summary_within,
        goes_first=True,
    ),
    Column(
        key="memo",
        title="Memo",
        cell=lambda s, _: s.memo,
        tells=lambda s: bool(s.memo),
        shrinks_to=12,
        is_optional=True,
    ),
    Column(
        key="checkpoints",
        title="# of Models",
        cell=lambda s, _: checkpoints_text(s),
        tells=lambda s: s.checkpoint_count > 0 or s.lost_checkpoint_count > 0,
        is_optional=True,
        shrinks_to=6,
        least=6,
        title_within=lambda _: "Models",
        within=_checkpoints_within,
    ),
    Column(
        key="type",
        title="Type",
        cell=lambda s, _: type_word(s),
        is_wide=True,
        is_worth=lambda s: s.spec.stage != sessions_pb2.SESSION_STAGE_UNSPECIFIED,
        is_optional=True,
    ),
    Column(
        key="priority",
        title="Priority",
        cell=lambda s, _: priority_word(s),
        is_wide=True,
        is_worth=lambda s: s.spec.priority not in _ORDINARY or s.spec.preemptible,
        is_optional=True,
    ),
    Column(
        key="project",
        title="Project",
        cell=lambda s, _: s.project or "-",
        is_wide=True,
        is_worth=lambda s: s.project not in {"", s.owner},
        is_optional=True,
    ),
    *(_asked_column(flag) for flag in FLAGS if flag.title),
    Column(
        key="time_limit",
        title="Limit",
        cell=_limit,
        is_wide=True,
        is_worth=lambda s: s.spec.HasField("time_limit"),
        is_optional=True,
    ),
    Column(
        key="retries",
        title="Retries",
        cell=lambda s, _: str(s.spec.retry_count),
        is_wide=True,
        tells=lambda s: s.spec.retry_count > 0,
    ),
    Column(
        key="image",
        title="Image",
        cell=lambda s, _: images_text(s) or "-",
        is_wide=True,
        tells=lambda s: bool(images_text(s)),
    ),
    Column(key="nodes", title="Nodes", cell=_nodes, is_wide=True, tells=lambda s: bool(s.replicas)),
    Column(
        key="cpus",
        title="CPUs",
        cell=_cpus,
        is_wide=True,
        tells=lambda s: s.spec.resources.cpu_thousandths > 0,
    ),
    Column(
        key="memory",
        title="Memory",
        cell=_memory,
        is_wide=True,
        tells=lambda s: s.spec.resources.memory_bytes > 0,
    ),
    Column(
        key="attempt",
        title="Attempt",
        cell=lambda s, _: str(s.attempt),
        is_wide=True,
        tells=lambda s: s.attempt > 1,
    ),
    Column(
        key="efficiency",
        title="Efficiency",
        cell=lambda s, _: efficiency_text(s.usage),
        is_wide=True,
        tells=lambda s: s.usage.HasField("utilization_percent"),
        is_optional=True,
    ),
    Column(
        key="saved",
        title="Saved",
        cell=_saved,
        is_wide=True,
        is_worth=lambda s: s.HasField("progress"),
        is_optional=True,
    ),
    # The name begins with it.
    Column(key="owner", title="Owner", cell=lambda s, _: s.owner, is_wide=True, tells=_never),
    Column(
        key="visibility",
        title="Visibility",
        cell=lambda s, _: visibility_word(s.visibility),
        is_wide=True,
        tells=lambda s: s.visibility in _SHARED,
    ),
    Column(key="created_at", title="Created at", cell=_absolute("created_at"), is_wide=True),
    Column(
        key="ended_at",
        title="Ended at",
        cell=_absolute("ended_at"),
        is_wide=True,
        tells=lambda s: s.HasField("ended_at"),
    ),
    Column(
        key="git",
        title="Git",
        cell=lambda s, _: git_text(s),
        is_wide=True,
        tells=lambda s: s.HasField("git"),
    ),
    Column(key="id", title="Id", cell=lambda s, _: s.id, is_wide=True, tells=_never),
)


def visibility_word(visibility: int) -> str:
    """`private`, `team` or `public`."""
    return enum_word(resources_pb2.Visibility, visibility, "VISIBILITY_")


def visibility_named(word: str) -> resources_pb2.Visibility:
    """Parse `private`, `team` or `public`."""
    values: dict[str, resources_pb2.Visibility] = {
        "private": resources_pb2.VISIBILITY_PRIVATE,
        "team": resources_pb2.VISIBILITY_TEAM,
        "public": resources_pb2.VISIBILITY_PUBLIC,
    }
    return values[word]


def priority_word(session: Session) -> str:
    """Return `idle`, `low`, `normal` or `high`; `low, preemptible` if the class does not imply it."""
    return PRIORITY.text(session.spec, "priority")


def priority_named(word: str) -> sessions_pb2.Priority:
    """Parse `idle`, `low`, `normal` or `high`; "": the default."""
    values: dict[str, sessions_pb2.Priority] = {
        "": sessions_pb2.PRIORITY_UNSPECIFIED,
        "idle": sessions_pb2.PRIORITY_IDLE,
        "low": sessions_pb2.PRIORITY_LOW,
        "normal": sessions_pb2.PRIORITY_NORMAL,
        "high": sessions_pb2.PRIORITY_HIGH,
    }
    return values[word]


def network_word(number: int) -> str:
    """Return `own`, `host` or `none`; "" if not requested."""
    return enum_word(resources_pb2.Network, number, "NETWORK_") if number else ""


def network_named(word: str) -> resources_pb2.Network:
    """Parse `own`, `host` or `none`; "": any."""
    values: dict[str, resources_pb2.Network] = {
        "": resources_pb2.NETWORK_UNSPECIFIED,
        "own": resources_pb2.NETWORK_OWN,
        "host": resources_pb2.NETWORK_HOST,
        "none": resources_pb2.NETWORK_NONE,
    }
    return values[word]


def record(session: Session) -> dict[str, Any]:
    """Return all fields of a session in raw values: bytes, seconds, RFC 3339, full names.

    `cpus` and `memory_bytes` are of each replica: None if the default was requested and no node
    has granted it yet.
    """
    from nsml.view.reported_config import record as config_record

    spec, each = session.spec, _each(session)
    return {
        "name": session.name,
        "id": session.id,
        "state": enum_name(SessionState, session.state, "SESSION_STATE_"),
        "waiting": session.waiting or None,
        "held_cause": held_cause_name(session) or None,
        "type": type_word(session),
        "submission": session.spec.submission_id or None,
        "origin": _origin(session),
        "imported": _imported(session),
        "initial_checkpoint": _initial(session),
        "git": _git(session),
        "made_datasets": [f"{one.name}@{one.version}" for one in session.made_datasets],
        "stop": _stop(session),
        "owner": session.owner,
        "project": session.project,
        "team": session.team or None,
        "visibility": visibility_word(session.visibility),
        "entry": spec.entry or None,
        "args": list(spec.args),
        "argv": list(spec.argv),
        **asked_record(session),
        "cpus": each.cpu_thousandths / 1000 or None,
        "memory_bytes": each.memory_bytes or None,
        "attempt": session.attempt,
        "resumable": session.progress.resumable,
        "saved_at": moment_of(session.progress, "saved_at"),
        "avoids": list(session.avoids),
        "attempts": [
            {
                "number": one.number,
                "cause": enum_name(sessions_pb2.Cause, one.cause, "CAUSE_"),
                "reason": one.reason or None,
                "placed_at": moment_of(one, "placed_at"),
                "ended_at": moment_of(one, "ended_at"),
                "nodes": list(one.nodes),
                "priority": PRIORITY.word(spec, "priority") if spec.priority else None,
                "gpu_models": {
                    model: count / 1000 for model, count in sorted(one.gpu_models.items())
                },
                "driver_versions": list(one.driver_versions),
                "python_versions": list(one.python_versions),
                "durable_until": moment_of(one, "durable_until"),
            }
            for one in session.attempts
        ],
        "replicas": [
            {
                "rank": replica.rank,
                "node": replica.node,
                "near_data": replica.near_data,
                "image": replica.image or None,
                "python_version": replica.python_version or None,
                "cpus": replica.resources.cpu_thousandths / 1000,
                "memory_bytes": replica.resources.memory_bytes,
                "use": use_record(replica),
                "devices": [
                    {
                        "uuid": d.uuid,
                        "index": d.index,
                        "model": d.model,
                        "simulated": d.simulated,
                        "driver_version": d.driver_version or None,
                        "cuda_version": d.cuda_version or None,
                    }
                    for d in replica.devices
                ],
            }
            for replica in session.replicas
        ],
        "created_at": moment_of(session, "created_at"),
        "started_at": moment_of(session, "started_at"),
        "ended_at": moment_of(session, "ended_at"),
        "end": _end(session),
        "progress": progress_record(session),
        "summary": summary_of(session),
        "summary_left_out": session.summary_left_out,
        "checkpoint_count": session.checkpoint_count,
        "lost_checkpoint_count": session.lost_checkpoint_count,
        "memo": session.memo,
        "simulated": session.simulated,
        "bundle_digest": spec.bundle_digest or None,
        "environment_lock": (
            {
                "digest": session.environment_lock.digest,
                "package_count": session.environment_lock.package_count,
            }
            if session.HasField("environment_lock")
            else None
        ),
        "reported_config": config_record(session),
        "command": list(session.command),
        "usage": usage_record(session.usage) if session.HasField("usage") else None,
        "episodes": episode_records(session.episodes),
    }


def _stop(session: Session) -> dict[str, Any] | None:
    if not session.HasField("stop"):
        return None
    stop = session.stop
    return {
        "cause": enum_name(sessions_pb2.Cause, stop.cause, "CAUSE_"),
        "reason": stop.reason or None,
        "asked_by": stop.asked_by or None,
        "until": moment_of(stop, "until"),
    }


def _end(session: Session) -> dict[str, Any] | None:
    if not session.HasField("end"):
        return None
    return {
        "cause": enum_name(sessions_pb2.Cause, session.end.cause, "CAUSE_"),
        "exit_code": session.end.exit_code,
        "rank": session.end.rank,
        "message": session.end.message,
    }


def _behind_set(session: Session) -> int:
    """Return where to insert further `--set` in its command line: after its own, since later ones win, and before the program's words."""
    place, left = len(_RUN), len(session.spec.knobs)
    for number, word in enumerate(session.command):
        if left and word == "--set":
            place, left = number + 2, left - 1
    return place


def _resolved_words(session: Session, words: list[str]) -> list[str]:
    """Return the command with references resolved as at its submission: versions of datasets, sessions in --after.

    A tag or `@last` may mean something else by now; an ended session is left out.
    """
    end = words.index("--") if "--" in words else len(words)
    made: list[str] = []
    said: set[str] = set()
    left = iter(words[:end])
    for word in left:
        # A value that looks like an option was recorded in one word with its flag.
        flag = RESOLVED_FLAGS.get(word)
        if flag is None:
            made.append(word)
            continue
        next(left, "")
        if flag.parameter not in said:
            made += flag.words(session)
        said.add(flag.parameter)
    return made + words[end:]


def repeat_words(session: Session) -> list[str]:
    """Return the command line that repeats a session: the submitter's own, else one made from the spec.

    A session made from another's record is named itself: the other may be removed. Those of a sweep keep their typed command.

    Raises:
        ValueError: the session comes from a list, with a truncated command, or without early changes.
    """
    if session.left_out_bytes:
        raise ValueError(f"{session.name}: the end of its command is not here")
    shared = [f"--{visibility_word(session.visibility)}"] if session.visibility in _SHARED else []
    shared += set_words(session.changes)
    if session.HasField("origin") and session.origin.kind != sessions_pb2.ORIGIN_KIND_SWEEP:
        memo = option_words("-m", session.memo, long="--memo") if session.memo else []
        return ["nsml", "run", "--rerun", session.name, *memo, *shared]
    if session.command:
        place = _behind_set(session)
        words = list(session.command)
        words[place:place] = set_words(session.changes)
        return _resolved_words(session, words)
    spec = session.spec
    words = ["nsml", "run", *asked_words(session), *shared]
    if spec.argv:
        words += [] if spec.bundle_digest else ["--no-code"]
        return [*words, "--argv", "--", *spec.argv]
    words += option_words("-e", spec.entry or DEFAULT_ENTRY, long="--entry")
    return [*words, "--", *spec.args] if spec.args else words
