"""The flags of `nsml run`, a row each: syntax, requested value, and its forms for people and programs.

A row defines the command-line option, the request's field, the words of `nsml command`, the entry of JSON records, the row
of `nsml diff`, the column of lists and the key of filters. Nothing here loads the contract's code.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from nsml.common.shell import option_words, shell_line
from nsml.common.units import duration_text, exact_size_text, memory_text, thousandths
from nsml.spec import checkpoint_retention, echo, knobs, labels
from nsml.spec.dataset_names import mounted_dataset
from nsml.spec.output_datasets import output_dataset
from nsml.spec.request_limits import (
    LEAST_DISK_BYTES,
    LEAST_MEMORY_BYTES,
    LEAST_SHM_BYTES,
    MOST_PROCESSES,
    MOST_REPLICAS,
    MOST_RETRIES,
)
from nsml.spec.variables import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from google.protobuf.duration_pb2 import Duration

T = TypeVar("T")
DEFAULT_ENTRY: Final = "main.py"
"""The default program."""


class Unreadable(ValueError):
    """An invalid value of a flag, why, and what to try."""

    def __init__(self, message: str, *, why: str, advice: str = "") -> None:
        super().__init__(message)
        self.why, self.advice = why, advice


class Kind:
    """The type of a flag's value and of its field: here a text, "" if nothing is requested.

    `takes`: the type by which the command line parses it; "": any text.
    """

    is_switch = False
    is_repeated = False
    """Whether the flag is repeatable."""
    least = most = 0
    """Range of numbers, for the command line."""
    words: tuple[str, ...] = ()
    """Allowed words."""

    def __init__(self, takes: str = "") -> None:
        self.takes = takes

    def read(self, text: str) -> Any:
        """Parse a text that no type of the command line parses; raises Unreadable."""
        return text

    def check_together(self, values: Sequence[Any]) -> None:
        """Raise Unreadable if the values of a repeated flag contradict each other."""

    def separated(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values of a repeated flag, of which one word may list several."""
        return values

    def put(self, message: Any, field: str, value: Any) -> None:
        """Set the field to a parsed value."""
        if value:
            setattr(message, field, value)

    def clear(self, message: Any, field: str) -> None:
        """Clear the field."""
        message.ClearField(field)

    def typed(self, message: Any, field: str) -> Iterable[str]:
        """Return the flag's values that request the same; none if the flag is not needed."""
        text = self.text(message, field)
        return [text] if text else []

    def text(self, message: Any, field: str) -> str:
        """Return the requested value for people; "" if nothing is requested."""
        text: str = getattr(message, field)
        return text

    def each(self, message: Any, field: str, key: str) -> Mapping[str, str]:
        """Return the same as rows by name; `key` is the flag's name."""
        return {key: self.text(message, field)}

    def filter_texts(self, message: Any, field: str) -> tuple[str, ...]:
        """Return the texts matched by filters."""
        return (self.text(message, field),)

    def raw(self, message: Any, field: str) -> Any:
        """Return the value for programs."""
        return getattr(message, field) or None


class _Whole(Kind):
    """A whole number. `default`: the meaning of 0; None: the node decides."""

    def __init__(self, least: int, most: int, *, default: int | None = None) -> None:
        super().__init__("whole number")
        self.least, self.most, self.default = least, most, default

    def typed(self, message: Any, field: str) -> Iterable[str]:
        number = getattr(message, field)
        return [str(number)] if number > (self.default or 0) else []

    def text(self, message: Any, field: str) -> str:
        number = self.raw(message, field)
        return "" if number is None else str(number)

    def raw(self, message: Any, field: str) -> Any:
        number = getattr(message, field)
        return number or None if self.default is None else max(number, self.default)


class _Thousandths(Kind):
    """Devices or cores. `is_always_said`: 0 is an explicit request, too."""

    def __init__(self, what: str, *, least: int, is_always_said: bool) -> None:
        super().__init__(what)
        self.least, self.is_always_said = least, is_always_said

    def text(self, message: Any, field: str) -> str:
        count = getattr(message, field)
        return thousandths(count) if count or self.is_always_said else ""

    def raw(self, message: Any, field: str) -> Any:
        return getattr(message, field) / 1000


class _Size(Kind):
    """Bytes."""

    def __init__(self, least: int) -> None:
        super().__init__("size")
        self.least = least

    def typed(self, message: Any, field: str) -> Iterable[str]:
        size = getattr(message, field)
        return [exact_size_text(size)] if size else []

    def text(self, message: Any, field: str) -> str:
        size = getattr(message, field)
        return memory_text(size) if size else ""


class _Span(Kind):
    """A duration; absent if not requested."""

    def put(self, message: Any, field: str, value: Any) -> None:
        if value is not None:
            getattr(message, field).FromNanoseconds(round(value * 1e9))

    def typed(self, message: Any, field: str) -> Iterable[str]:
        if not message.HasField(field):
            return []
        span: Duration = getattr(message, field)
        return [f"{span.seconds}.{span.nanos:09d}".rstrip("0").rstrip(".") + "s"]

    def text(self, message: Any, field: str) -> str:
        seconds = self.raw(message, field)
        return "" if seconds is None else duration_text(seconds)

    def raw(self, message: Any, field: str) -> Any:
        if not message.HasField(field):
            return None
        span: Duration = getattr(message, field)
        return float(span.seconds + span.nanos / 1e9)


class _Word(Kind):
    """A value of one of the contract's enumerations, as its own word. `default`: the meaning of an unset field."""

    def __init__(self, *words: str, default: str = "") -> None:
        super().__init__("word")
        self.words, self.default = words, default
        self._known: dict[int, str] = {}
        """Cache of words by number."""

    def put(self, message: Any, field: str, value: Any) -> None:
        if value:
            enum = message.DESCRIPTOR.fields_by_name[field].enum_type
            name = f"{enum.name}_{value}".upper()
            setattr(message, field, enum.values_by_name[name].number)

    def typed(self, message: Any, field: str) -> Iterable[str]:
        word = self.word(message, field)
        return [] if word == self.default else [word]

    def text(self, message: Any, field: str) -> str:
        return self.word(message, field)

    def word(self, message: Any, field: str) -> str:
        """Return its word; the number itself if this version has none."""
        number = getattr(message, field)
        if not number:
            return self.default
        if number not in self._known:
            self._known[number] = self._named(message, field, number)
        return self._known[number]

    def _named(self, message: Any, field: str, number: int) -> str:
        enum = message.DESCRIPTOR.fields_by_name[field].enum_type
        known = enum.values_by_number.get(number)
        if known is None:
            return str(number)
        return str(known.name).removeprefix(f"{enum.name}_".upper()).lower()

    def raw(self, message: Any, field: str) -> Any:
        return self.word(message, field) or None


class _Class(_Word):
    """A priority class; `low, preemptible` if the class does not imply preemptible."""

    def text(self, message: Any, field: str) -> str:
        word = self.word(message, field)
        return f"{word}, preemptible" if _says_preemptible(message) else word


class _Launcher(_Word):
    """A launcher; `none` clears that of a repeated session."""

    def put(self, message: Any, field: str, value: Any) -> None:
        super().put(message, field, "" if value == self.default else value)

    def text(self, message: Any, field: str) -> str:
        word = self.word(message, field)
        return "" if word == self.default else word


class _Switch(Kind):
    """On or off."""

    is_switch = True

    def typed(self, message: Any, field: str) -> Iterable[str]:
        return [""] if getattr(message, field) else []

    def raw(self, message: Any, field: str) -> Any:
        return getattr(message, field)


class _Off(_Switch):
    """A switch that is on by default; the field is set if it is off."""

    def put(self, message: Any, field: str, value: Any) -> None:
        if not value:
            setattr(message, field, True)


class _Datasets(Kind):
    """NAME, NAME@VERSION or NAME@TAG; copied and streamed datasets are two flags of one field."""

    is_repeated = True

    def __init__(self, *, streamed: bool) -> None:
        super().__init__("dataset")
        self._streamed = streamed

    def separated(self, values: Sequence[Any]) -> Sequence[Any]:
        """Scripts for NSML name several datasets in one word: `-d train,more`."""
        return [one for value in values for one in value.split(",")]

    def put(self, message: Any, field: str, value: Any) -> None:
        for reference in value:
            named, folder = mounted_dataset(reference)
            getattr(message, field).add(**named._asdict(), streamed=self._streamed, folder=folder)

    def clear(self, message: Any, field: str) -> None:
        datasets = getattr(message, field)
        others = [one for one in datasets if one.streamed != self._streamed]
        del datasets[:]
        datasets.extend(others)

    def typed(self, message: Any, field: str) -> Iterable[str]:
        return [
            f"{one.name}{f'@{which}' if (which := one.version or one.tag) else ''}{_folder(one)}"
            for one in self._own(message, field)
        ]

    def text(self, message: Any, field: str) -> str:
        own = self._own(message, field)
        return " ".join(f"{one.name}@{one.version}{_folder(one)}" for one in own)

    def raw(self, message: Any, field: str) -> Any:
        return [
            {
                "name": one.name,
                "version": one.version,
                "digest": one.digest or None,
                "folder": one.folder or one.name.rpartition("/")[2],
            }
            for one in self._own(message, field)
        ]

    def _own(self, message: Any, field: str) -> list[Any]:
        return [one for one in getattr(message, field) if one.streamed == self._streamed]


def _folder(dataset: Any) -> str:
    return f"={dataset.folder}" if dataset.folder else ""


class _Pairs(Kind):
    """NAME=VALUE, by name."""

    is_repeated = True

    def put(self, message: Any, field: str, value: Any) -> None:
        getattr(message, field).update(dict(value))

    def typed(self, message: Any, field: str) -> Iterable[str]:
        return [f"{name}={value}" for name, value in self.raw(message, field).items()]

    def text(self, message: Any, field: str) -> str:
        return " ".join(self.typed(message, field))

    def each(self, message: Any, field: str, key: str) -> Mapping[str, str]:
        return {f"{key} {name}": value for name, value in self.raw(message, field).items()}

    def raw(self, message: Any, field: str) -> Any:
        return dict(sorted(getattr(message, field).items()))


class _After(Kind):
    """SESSION, SESSION:ok or SESSION:any."""

    is_repeated = True

    def read(self, text: str) -> Any:
        session, colon, condition = text.rpartition(":")
        if not colon:
            session, condition = text, "ok"
        if not session or condition not in {"ok", "any"}:
            raise Unreadable(
                f"{text[:80]!r} does not say after what",
                why="SESSION:ok waits for its success, SESSION:any for its end",
                advice="nsml run --after @last:any ...",
            )
        return session, condition == "any"

    def put(self, message: Any, field: str, value: Any) -> None:
        for session, any_end in value:
            getattr(message, field).add(session=session, any_end=any_end)

    def typed(self, message: Any, field: str) -> Iterable[str]:
        return [
            f"{one.name or one.session}{':any' if one.any_end else ''}"
            for one in getattr(message, field)
        ]

    def text(self, message: Any, field: str) -> str:
        return " ".join(self.typed(message, field))

    def raw(self, message: Any, field: str) -> Any:
        return [
            {"session": one.name or None, "id": one.session, "any_end": one.any_end}
            for one in getattr(message, field)
        ]


class _Knobs(Kind):
    """NAME=VALUE or NAME=VALUE@STEP, by the rules of `nsml.spec.knobs`; entries of one name keep their order."""

    is_repeated = True

    def read(self, text: str) -> Any:
        try:
            return knobs.setting_of(text)
        except ValueError as error:
            message, _, why = str(error).partition(": ")
            raise Unreadable(
                message, why=why, advice="nsml run --set lr=0.003 --set lr=0.001@5000 ..."
            ) from None

    def put(self, message: Any, field: str, value: Any) -> None:
        for name, text, at in value:
            getattr(message, field).add(name=name, value=text, at=at)

    def typed(self, message: Any, field: str) -> Iterable[str]:
        return [
            knobs.setting_word(one.name, one.value, one.at if one.HasField("at") else None)
            for one in getattr(message, field)
        ]

    def text(self, message: Any, field: str) -> str:
        return " ".join(self.typed(message, field))

    def each(self, message: Any, field: str, key: str) -> Mapping[str, str]:
        found: dict[str, list[str]] = {}
        for word in self.typed(message, field):
            name, _, value = word.partition("=")
            found.setdefault(f"{key} {name}", []).append(value)
        return {name: " ".join(values) for name, values in found.items()}

    def raw(self, message: Any, field: str) -> Any:
        return [
            {
                "name": one.name,
                "value": knobs.value_of(one.value),
                "step": one.at if one.HasField("at") else None,
            }
            for one in getattr(message, field)
        ]


class _Texts(Kind):
    """Texts, each once, kept as they are given."""

    is_repeated = True

    def put(self, message: Any, field: str, value: Any) -> None:
        getattr(message, field).extend(dict.fromkeys(value))

    def typed(self, message: Any, field: str) -> Iterable[str]:
        return list(getattr(message, field))

    def text(self, message: Any, field: str) -> str:
        return " ".join(getattr(message, field))

    def raw(self, message: Any, field: str) -> Any:
        return list(getattr(message, field))


class _LogMetrics(_Texts):
    """`auto`, or NAME=PATTERN by the rules of `nsml.log_metrics.patterns`."""

    def read(self, text: str) -> Any:
        self._check([text])
        return text

    def check_together(self, values: Sequence[Any]) -> None:
        self._check(list(dict.fromkeys(values)))

    def _check(self, texts: Sequence[str]) -> None:
        from nsml.log_metrics import patterns  # noqa: PLC0415 - most runs have none

        try:
            patterns.check_all(texts)
        except ValueError as error:
            message, _, why = str(error).partition(": ")
            raise Unreadable(
                message,
                why=why,
                advice=shell_line(["nsml", "run", "--metric", patterns.EXAMPLE]) + " ...",
            ) from None


class _BuildArguments(_Pairs):
    """NAME=VALUE by the rules of `nsml.packages.dockerfile`."""

    def read(self, text: str) -> Any:
        name, has_value, value = text.partition("=")
        if not has_value or not name:
            raise Unreadable(
                f"{text[:80]!r} is no build argument",
                why="it takes NAME=VALUE",
                advice="nsml run --dockerfile Dockerfile --build-arg PYTHON=3.12 ...",
            )
        return name, value


class _Variables(_Pairs):
    """Environment variables of the program."""

    def typed(self, message: Any, field: str) -> Iterable[str]:
        # A hidden value is read from the environment of the command.
        return [
            name if value == HIDDEN else f"{name}={value}"
            for name, value in self.raw(message, field).items()
        ]

    def raw(self, message: Any, field: str) -> Any:
        # The choice of loggers has flags of its own.
        return {k: v for k, v in super().raw(message, field).items() if k != echo.VARIABLE}


class _Echo(Kind):
    """Names of libraries, in one of the variables of the program."""

    def read(self, text: str) -> Any:
        try:
            return echo.echo_of(text)
        except ValueError as error:
            message, _, why = str(error).partition(": ")
            raise Unreadable(
                message, why=why, advice="nsml run --echo wandb,tensorboard ..."
            ) from None

    def put(self, message: Any, field: str, value: Any) -> None:
        if value:
            getattr(message, field)[echo.VARIABLE] = value

    def clear(self, message: Any, field: str) -> None:
        getattr(message, field).pop(echo.VARIABLE, None)

    def typed(self, message: Any, field: str) -> Iterable[str]:
        value = self.text(message, field)
        return [value] if value not in {"", HIDDEN, echo.NONE} else []

    def text(self, message: Any, field: str) -> str:
        value: str = getattr(message, field).get(echo.VARIABLE, "")
        return value

    def raw(self, message: Any, field: str) -> Any:
        return self.text(message, field) or None


class _NoEcho(_Echo):
    """A switch for none of them."""

    is_switch = True

    def put(self, message: Any, field: str, value: Any) -> None:
        if value:
            getattr(message, field)[echo.VARIABLE] = echo.NONE

    def clear(self, message: Any, field: str) -> None:
        if self.raw(message, field):
            super().clear(message, field)

    def typed(self, message: Any, field: str) -> Iterable[str]:
        return [""] if self.raw(message, field) else []

    def raw(self, message: Any, field: str) -> Any:
        return self.text(message, field) == echo.NONE


class _Labels(_Pairs):
    """KEY=VALUE by the rules of `nsml.spec.labels`; filters match the key alone, too."""

    def read(self, text: str) -> Any:
        key, has_value, value = text.partition("=")
        if not labels.is_key(key):
            raise Unreadable(f"{key[:80]!r} is not the key of a label", why=labels.KEY_RULE)
        if not has_value:
            raise Unreadable(
                f"label {key} has no value",
                why="it takes KEY=VALUE",
                advice=f"nsml run --label {key}=VALUE ...",
            )
        if why := labels.value_error(value):
            raise Unreadable(f"{value[:80]!r} is not the value of a label", why=f"{key}: {why}")
        return key, value

    def check_together(self, values: Sequence[Any]) -> None:
        known: dict[str, str] = {}
        for key, value in values:
            if known.setdefault(key, value) != value:
                raise Unreadable(
                    f"label {key} is given twice",
                    why=f"as {known[key]!r} and as {value!r}; a key has one value",
                    advice=f"nsml run {shell_line(option_words('--label', f'{key}={value}'))} ...",
                )

    def text(self, message: Any, field: str) -> str:
        # Most sessions have none, and lists call this for many thousands.
        return ", ".join(self.typed(message, field)) if getattr(message, field) else ""

    def filter_texts(self, message: Any, field: str) -> tuple[str, ...]:
        return (*getattr(message, field), *self.typed(message, field))


class _Keep(Kind):
    """Checkpoint retention, by the rules of `nsml.spec.checkpoint_retention`."""

    _canonical = staticmethod(checkpoint_retention.canonical)

    def read(self, text: str) -> Any:
        try:
            return self._canonical(text)
        except ValueError as error:
            raise Unreadable(
                "invalid retention rules",
                why=str(error),
                advice=shell_line(option_words("--keep", checkpoint_retention.EXAMPLE)),
            ) from None


class _KeepAsked(_Keep):
    """The same for a session; the metric may come from its project."""

    _canonical = staticmethod(checkpoint_retention.canonical_request)


class _OutputDatasets(_Texts):
    """NAME, or NAME=FOLDER."""

    def read(self, text: str) -> Any:
        try:
            return str(output_dataset(text))
        except ValueError as error:
            raise Unreadable(
                f"{text[:80]!r} is no output dataset",
                why=str(error),
                advice="nsml run --output-dataset predictions=out/predictions ...",
            ) from None


class _Secrets(Kind):
    """NAME, or NAME=VARIABLE."""

    is_repeated = True

    def put(self, message: Any, field: str, value: Any) -> None:
        for name, variable in dict.fromkeys(value):
            getattr(message, field).add(name=name, variable=variable)

    def typed(self, message: Any, field: str) -> Iterable[str]:
        return [
            one.name if one.variable == one.name else f"{one.name}={one.variable}"
            for one in getattr(message, field)
        ]

    def each(self, message: Any, field: str, key: str) -> Mapping[str, str]:
        return {f"{key} {one.variable}": one.name for one in getattr(message, field)}

    def raw(self, message: Any, field: str) -> Any:
        return [{"name": one.name, "variable": one.variable} for one in getattr(message, field)]


class Flag(NamedTuple):
    """A flag of `run`."""

    names: tuple[str, ...]
    """Names on the command line; `nsml command` writes the first."""
    kind: Kind
    help: str
    field: str = ""
    """Field of CreateSessionRequest, and of Session: `spec.gpu_model`; "": command line only."""
    metavar: str | None = None
    default: Any = None
    """The command line's default."""
    shows_default: bool = False
    long: str = ""
    """Name that `nsml command` writes in place of the first one."""
    record: str = ""
    """JSON key; "": it has none of its own."""
    compared: str = ""
    """Row title in comparisons of sessions."""
    title: str = ""
    """Column title in lists."""
    cells: int | None = None
    """Width to which that column may be cut."""
    filtered: str = ""
    """Key of filters."""
    status_title: str = ""
    """Line title in the status of one session; "": it has no line."""
    is_once: bool = False
    """Whether it is about the submission, not the session: a repeated run sets it anew."""
    applies_to: Callable[[Any], bool] | None = None
    """Given a session: whether repeating its command needs the flag, if its field alone does not decide."""

    @property
    def parameter(self) -> str:
        """The command's parameter name."""
        first = next(name for name in self.names if name.startswith("--"))
        return first.partition("/")[0][2:].replace("-", "_")

    def words(self, session: Any) -> Iterator[str]:
        """Yield the words that request the same."""
        if self.applies_to is not None and not self.applies_to(session):
            return
        flag = self.long or self.names[0].rpartition("/")[2]
        long = next((name for name in self.names if name.startswith("--")), flag)
        for value in self.kind.typed(*self.place(session)):
            yield from [flag] if self.kind.is_switch else option_words(flag, value, long=long)

    def put(self, request: Any, value: Any) -> None:
        """Set the field to a parsed value."""
        self.kind.put(*self.place(request), value)

    def text(self, session: Any) -> str:
        """Return the requested value for people; "" if nothing is requested."""
        return self.kind.text(*self.place(session))

    def each(self, session: Any) -> Mapping[str, str]:
        """Return its rows in a comparison."""
        return self.kind.each(*self.place(session), self.compared)

    def raw(self, session: Any) -> Any:
        """Return the requested value for programs."""
        return self.kind.raw(*self.place(session))

    def reading(self, what: Callable[[Any, str], T]) -> Callable[[Any], T]:
        """Return `what`, a method of its kind, as a fast function of many thousands of sessions."""
        outer, _, field = self.field.rpartition(".")
        if not outer:
            return lambda session: what(session, field)
        holder = attrgetter(outer)
        return lambda session: what(holder(session), field)

    def place(self, message: Any) -> tuple[Any, str]:
        """Return the message with its field, and the field's name."""
        *outer, field = self.field.split(".")
        for name in outer:
            message = getattr(message, name)
        return message, field


def _says_preemptible(spec: Any) -> bool:
    """Whether `preemptible` is not implied by the class."""
    return spec.preemptible and PRIORITY.word(spec, "priority") != "idle"


PRIORITY: Final = _Class("idle", "low", "normal", "high", default="normal")
"""Priority classes, lowest first."""
NETWORK: Final = _Word("own", "host", "none")
"""Network modes of a session."""
LAUNCHER: Final = _Launcher(
    "none", "torchrun", "accelerate", "deepspeed", "mpirun", "ray", "jax", default="none"
)
"""What starts the processes of an entry."""
KEEP: Final = _Keep("checkpoints")
TIME_LIMIT: Final = _Span("time limit")
IDLE_LIMIT: Final = _Span("idle limit")

FLAGS: Final = (
    Flag(
        ("-d", "--dataset"),
        _Datasets(streamed=False),
        "Mount it at /data/NAME; NAME@3 is version 3, NAME@TAG a tag, NAME@3=OLD at /data/OLD; repeatable, or A,B.",
        field="spec.datasets",
        metavar="DATASET",
        record="datasets",
        compared="datasets",
    ),
    Flag(
        ("--stream",),
        _Datasets(streamed=True),
        "As -d, but read it over S3 (s3://NAME/) without fetching it to the node.",
        field="spec.datasets",
        metavar="DATASET",
        record="streamed_datasets",
        compared="streamed datasets",
    ),
    Flag(
        ("--allow-changed",),
        _Switch(),
        "Start although files of a dataset in place have changed since it was added.",
        field="spec.allow_changed_data",
        record="allow_changed_data",
        compared="allow-changed",
    ),
    Flag(
        ("-g", "--gpus"),
        _Thousandths("gpus", least=0, is_always_said=True),
        "GPUs of each replica; 0 for none, 0.5 for half of one.",
        field="spec.resources.gpu_thousandths",
        metavar="N",
        default="1",
        shows_default=True,
        record="gpus",
        compared="gpus",
        filtered="gpu",
    ),
    Flag(
        ("--gpu-model",),
        Kind("model"),
        "Only GPUs of this model: A100, A100-80GB; A100|H100: any of these.",
        field="spec.gpu_model",
        metavar="NAME",
        record="gpu_model",
        compared="gpu-model",
        title="GPU model",
        filtered="model",
    ),
    Flag(
        ("-c", "--cpus"),
        _Thousandths("cpus", least=1, is_always_said=False),
        "Cores; default: the GPUs' share.",
        field="spec.resources.cpu_thousandths",
        metavar="N",
        compared="cpus",
    ),
    Flag(
        ("--memory",),
        _Size(LEAST_MEMORY_BYTES),
        "Such as 24G; default: the GPUs' share.",
        field="spec.resources.memory_bytes",
        metavar="SIZE",
        compared="memory",
    ),
    Flag(
        ("--shm-size",),
        _Size(LEAST_SHM_BYTES),
        "Shared memory (in /dev/shm), part of the memory; default: 1G.",
        field="spec.limits.shm_bytes",
        metavar="SIZE",
        record="limits.shm_bytes",
    ),
    Flag(
        ("--disk",),
        _Size(LEAST_DISK_BYTES),
        "What it may write; default: the node's setting.",
        field="spec.limits.disk_bytes",
        metavar="SIZE",
        record="limits.disk_bytes",
    ),
    Flag(
        ("--processes",),
        _Whole(1, MOST_PROCESSES),
        "Processes and threads; default: the node's setting, 4096 or more.",
        field="spec.limits.process_count",
        metavar="N",
        record="limits.processes",
    ),
    Flag(("-e", "--entry"), Kind(), f"The program; default {DEFAULT_ENTRY}.", metavar="FILE"),
    Flag(("-a", "--args"), Kind(), "Its arguments.", metavar="ARGS", default=""),
    Flag(
        ("--launch",),
        LAUNCHER,
        "Start the entry's processes on each replica with it, one for each GPU: no addresses to write. ray: a cluster; jax:"
        " one process each. Default: none, Python alone.",
        field="spec.launcher",
        record="launcher",
        compared="launch",
        status_title="launcher",
    ),
    Flag(
        ("-m", "--memo"),
        Kind(),
        "Memo: a text of your own.",
        field="memo",
        metavar="TEXT",
        default="",
        is_once=True,
    ),
    Flag(
        ("--label",),
        _Labels("label"),
        "A label of your own, for filters and columns; repeatable.",
        field="spec.labels",
        metavar="KEY=VALUE",
        record="labels",
        compared="label",
        title="Labels",
        cells=12,
        filtered="label",
        status_title="labels",
    ),
    Flag(
        ("--set",),
        _Knobs("knob"),
        "A value for a knob of the program (nsml.knob), from a step on; repeatable.",
        field="spec.knobs",
        metavar="NAME=VALUE[@STEP]",
        record="knobs",
        compared="set",
    ),
    Flag(
        ("--metric",),
        _LogMetrics("metric out of the log"),
        "Report numbers that it prints: auto recognises usual lines, PATTERN is RE2 with a group around the number; repeatable.",
        field="spec.log_metrics",
        metavar="auto|NAME=PATTERN",
        record="log_metrics",
        compared="metric",
        status_title="metrics from log",
    ),
    Flag(
        ("--echo",),
        _Echo("libraries"),
        f"Only these loggers of other libraries report to nsml, too: {', '.join(echo.ORIGINS)}. Default: all.",
        field="spec.environment",
        metavar="NAMES",
        record="echo",
        compared="echo",
        status_title="echo",
    ),
    Flag(
        ("--no-echo",),
        _NoEcho(),
        "None of them does.",
        field="spec.environment",
    ),
    Flag(
        ("--after",),
        _After("after"),
        "Queue it once SESSION has succeeded (:any: has ended); repeatable.",
        field="spec.after",
        metavar="SESSION[:ok|any]",
        record="after",
        status_title="after",
        is_once=True,
    ),
    Flag(
        ("-n", "--nodes", "--replicas"),
        _Whole(1, MOST_REPLICAS, default=1),
        "Replicas of a gang: all start together or none.",
        field="spec.replica_count",
        metavar="N",
        default=1,
        long="--nodes",
        record="replica_count",
        compared="nodes",
    ),
    Flag(
        ("--env",),
        _Variables("variable"),
        "A variable of the program; K alone: as it is here; repeatable.",
        field="spec.environment",
        metavar="K[=V]",
        record="environment",
        compared="env",
    ),
    Flag(
        ("--env-file",),
        _Variables("file of variables"),
        "Variables from K=V lines; --env wins; repeatable.",
        metavar="FILE",
    ),
    Flag(
        ("--secret",),
        _Secrets("secret"),
        "A secret (nsml secret set) as a variable; repeatable.",
        field="spec.secrets",
        metavar="NAME[=VARIABLE]",
        record="secrets",
        compared="secret",
    ),
    Flag(
        ("--image",),
        Kind("image"),
        "Container image; only nodes that run containers take it.",
        field="spec.image",
        metavar="IMAGE",
        record="image",
        compared="image",
    ),
    Flag(
        ("--dockerfile",),
        Kind(),
        "Build the image from this Dockerfile of the folder, on the node; no other image is used.",
        field="spec.dockerfile",
        metavar="FILE",
        record="dockerfile",
        compared="dockerfile",
        status_title="Dockerfile",
    ),
    Flag(
        ("--build-arg",),
        _BuildArguments("build argument"),
        "Value of an ARG of the Dockerfile, nothing secret; repeatable.",
        field="spec.build_arguments",
        metavar="NAME=VALUE",
        record="build_arguments",
        compared="build-arg",
    ),
    Flag(
        ("--refresh",),
        _Switch(),
        "Pull the image and build what the requirements ask for anew, instead of using what nodes have.",
        field="spec.refresh_environment",
        is_once=True,
    ),
    Flag(
        ("--time-limit",),
        TIME_LIMIT,
        "End each attempt after this long: 90s, 30m, 2h, 1d.",
        field="spec.time_limit",
        metavar="TIME",
        record="time_limit_s",
    ),
    Flag(
        ("--idle-limit",),
        IDLE_LIMIT,
        "Stop it when for this long nobody is connected and its GPUs and CPUs do nothing: 30m, 2h.",
        field="spec.idle_limit",
        metavar="TIME",
        record="idle_limit_s",
        status_title="idle limit",
    ),
    Flag(
        ("--grace",),
        _Span("grace"),
        "Between SIGTERM and SIGKILL.",
        field="spec.grace",
        metavar="TIME",
        record="grace_s",
    ),
    Flag(
        ("--retry",),
        _Whole(0, MOST_RETRIES, default=0),
        "Place it anew after a lost node or GPU, or its time limit if it saved.",
        field="spec.retry_count",
        metavar="N",
        default=0,
        record="retry_count",
    ),
    Flag(
        ("--keep",),
        _KeepAsked("checkpoints"),
        "Durable checkpoints to keep: 'best:3:val/acc:max last:2', or all. Default: the project's setting, which also has the"
        " metric of 'best:3'.",
        field="spec.keep_checkpoints",
        metavar="RULES",
        record="keep_checkpoints",
        compared="keep",
        status_title="checkpoints",
    ),
    Flag(
        ("--output-dataset",),
        _OutputDatasets("output dataset"),
        "If it succeeds, make its folder NAME, or FOLDER, a version of your dataset NAME; repeatable.",
        field="spec.output_datasets",
        metavar="NAME[=FOLDER]",
        record="output_datasets",
        compared="output datasets",
        status_title="output datasets",
    ),
    Flag(
        ("--keep-files",),
        _Switch(),
        "Keep the new and changed files of its working folder (nsml download), up to 1 GiB, as long as the session;"
        " without it 100 MiB, for 14 days.",
        field="spec.keep_files",
        record="keep_files",
        compared="keep files",
    ),
    Flag(
        ("--no-keep-files",),
        _Switch(),
        "Keep no files of its working folder.",
        field="spec.no_keep_files",
        record="no_keep_files",
        compared="no keep files",
    ),
    Flag(
        ("--pod",),
        Kind("pod"),
        "Only nodes of this pod.",
        field="spec.pod",
        metavar="NAME",
        record="pod",
        compared="pod",
        title="Pod",
        filtered="pod",
    ),
    Flag(
        ("--network",),
        NETWORK,
        "host: the node's network, where the node allows it; own: one of its own; none: nothing outside is reached. Default: the node's setting.",
        field="spec.network",
        record="network",
        compared="network",
        title="Network",
    ),
    Flag(
        ("--priority",),
        PRIORITY,
        "Its class in the queue; idle: uses spare GPUs, preempted first. Default: normal.",
        field="spec.priority",
        record="priority",
        compared="priority",
        filtered="priority",
    ),
    Flag(
        ("--preemptible",),
        _Switch(),
        "Allow preemption without a checkpoint.",
        field="spec.preemptible",
        record="preemptible",
        applies_to=lambda session: _says_preemptible(session.spec),
    ),
    Flag(
        ("--project",),
        Kind("project"),
        "The project that it counts for; default: your own.",
        field="project",
        metavar="NAME",
        applies_to=lambda session: session.project != session.owner,
    ),
    Flag(
        ("--queue/--no-queue",),
        _Off(),
        "Wait where nothing is free (default), or be refused.",
        field="spec.no_queue",
        default=True,
        is_once=True,
    ),
)

_ASKED: Final = tuple(flag for flag in FLAGS if flag.field)
RESOLVED_FLAGS: Final = {
    name: flag
    for flag in FLAGS
    if isinstance(flag.kind, (_Datasets, _After))
    for name in flag.names
}
"""Flags whose values the platform resolves at submission, by all their names."""


def put_all(request: Any, given: Mapping[str, Any]) -> None:
    """Set all fields of a request; `given`: values by parameter name."""
    for flag in _ASKED:
        flag.put(request, given[flag.parameter])


def put_again(request: Any, session: Any, given: Mapping[str, Any], typed: Collection[str]) -> None:
    """Copy a session's request, with changes; variables and labels are merged one by one.

    `typed`: the changed parameters in `given`. Flags about the original submission alone are not copied.
    """
    request.spec.CopyFrom(session.spec)
    for flag in _ASKED:
        message, field = flag.place(request)
        if flag.parameter in typed:
            if not isinstance(flag.kind, _Pairs):
                flag.kind.clear(message, field)
            flag.put(request, given[flag.parameter])
        elif flag.is_once or (flag.applies_to is not None and not flag.applies_to(session)):
            message.ClearField(field)
        elif message is request:
            setattr(message, field, getattr(session, field))
    _fit_together(request.spec, given, typed)


def _fit_together(spec: Any, given: Mapping[str, Any], typed: Collection[str]) -> None:
    """Drop values that depended on, or contradict, changed ones."""
    if "retry" in typed:
        spec.ClearField("lost_after")  # a default that depends on the retries
    spec.ClearField("keep_files_by_default")  # a default that depends on the submission
    for one, other in (("keep_files", "no_keep_files"), ("no_keep_files", "keep_files")):
        if one in typed and other not in typed:
            spec.ClearField(other)
    if "gpus" in typed and not given["gpus"] and "gpu_model" not in typed:
        spec.ClearField("gpu_model")
    # The changed flag decides how a dataset is read.
    if "stream" in typed and "dataset" not in typed:
        _drop_datasets(spec, given["stream"], streamed=False)
    elif "dataset" in typed and "stream" not in typed:
        _drop_datasets(spec, given["dataset"], streamed=True)
    # The changed flag decides whether a variable is a value or a secret.
    if "secret" in typed and "env" not in typed:
        for one in spec.secrets:
            spec.environment.pop(one.variable or one.name, None)
    elif "env" in typed and "secret" not in typed:
        kept = [one for one in spec.secrets if (one.variable or one.name) not in dict(given["env"])]
        del spec.secrets[:]
        spec.secrets.extend(kept)


def _drop_datasets(spec: Any, references: Iterable[str], *, streamed: bool) -> None:
    """Remove datasets with this `streamed` from the folders of `references`, in any version."""
    asked = [mounted_dataset(one) for one in references]
    places = {one.folder or one.dataset.name.rpartition("/")[2] for one in asked}
    kept = [
        one
        for one in spec.datasets
        if one.streamed != streamed or (one.folder or one.name.rpartition("/")[2]) not in places
    ]
    del spec.datasets[:]
    spec.datasets.extend(kept)


def asked_words(session: Any) -> list[str]:
    """Return the flags that request the same."""
    return [word for flag in _ASKED for word in flag.words(session)]


def asked_record(session: Any) -> dict[str, Any]:
    """Return the requested values in raw form."""
    found: dict[str, Any] = {}
    for flag in _ASKED:
        outer, _, key = flag.record.rpartition(".")
        if key:
            (found.setdefault(outer, {}) if outer else found)[key] = flag.raw(session)
    return found


def asked_rows(session: Any) -> dict[str, str]:
    """Return the requested values as rows of a comparison: kinds with names of their own last."""
    compared = [flag for flag in _ASKED if flag.compared]
    rows: dict[str, str] = {}
    for flag in sorted(compared, key=lambda flag: isinstance(flag.kind, (_Pairs, _Secrets))):
        rows |= flag.each(session)
    return rows
