"""Recognises metrics in lines of well-known training programs, without a pattern.

A line counts if it names a known metric (`loss`, `val_acc`, `ppl`) or a step (`step 10`, `Epoch 3/10`).
Servers, installers and tracebacks print `key=value`, too: such lines have neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_VALUES: Final = 64
"""Most values of one line."""
_MOST_PAIRS: Final = 256
"""Most pairs of name and number that are looked at in a line,"""
_AROUND: Final = 160
"""and most characters beside one."""
_MOST_KEY_CHARS: Final = 80

NUMBER: Final = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|NaN|NAN|inf|Inf|INF)"
_SHORT: Final = (
    "nll|acc|acc[15]|top[15]|ppl|mse|mae|f1|auc|fid|wer|cer|iou|bpb|bpc|map50|step|iter|iteration"
)
_MAY_HAVE_VALUES: Final = (
    r"(?i:loss|accuracy|perplexity|rmse|mape|bleu|rouge|auroc|auprc|elbo|psnr|ssim|miou|dice|reward|gnorm|grad_norm"
    r"|learning_rate|val_error|train_error|epoch|episode)"
    rf"|(?:^|[^A-Za-z])(?i:{_SHORT})(?:[^A-Za-z]|$)"
    r"|[a-z](?:Nll|Acc|Ppl|Mse|Mae|Auc|Fid|Wer|Cer|Iou|Bpb|Bpc)(?:[^a-z]|$)|%\|"
)
"""Finds a part of each line with metrics, and of some others: in RE2 syntax, for whole blocks."""

_BEHIND_NUMBER: Final = r"(?=[ \t]?%|(?:ms|us|µs|s|it/s|s/it|x)?(?:[\s,;|)\]}\"'\[(]|\.(?:\s|$)|$))"
_PAIR: Final = re.compile(
    rf"(?<![\w/@.\-?&%$:=+])['\"]?(?P<key>[A-Za-z_][\w/@.\-]{{0,{_MOST_KEY_CHARS - 1}}})['\"]?"
    r"(?P<unit>[ ]?\([\w/%]{1,12}\))?"
    r"(?:[ \t]{0,4}(?P<sign>[=:])(?P<gap>[ \t]{0,16})|[ \t]{1,8})"
    rf"['\"]?(?P<number>{NUMBER})(?:/(?P<of>\d{{1,12}}))?{_BEHIND_NUMBER}"
    r"(?P<meter>[ \t]{0,4}\([ \t]{0,8}[-+.\deE]{1,24}[ \t]{0,4}\))?"
)
_PLACE: Final = r"(?<![\w/.\-?&%@])"
_STEP: Final = re.compile(
    rf"(?i){_PLACE}(?:trainer/)?(?P<word>(?:(?:global|train|training|total)[_ ])?(?:step|iter(?:ation)?)|episode|it|update|batch)"
    r"['\"]?[ \t]{0,2}[=:#]?[ \t]{0,8}['\"]?\[?[ \t]{0,8}(?P<n>\d{1,15})"
    r"(?:[ \t]{0,8}/[ \t]{0,8}(?P<of>\d{1,15}))?(?![\w/]|\.\d)"
)
_EPOCH: Final = re.compile(
    rf"(?i){_PLACE}epoch(?:\(\w{{1,20}}\))?['\"]?[ \t]{{0,2}}[=:#]?[ \t]{{0,8}}['\"]?\[?[ \t]{{0,8}}"
    r"(?P<n>\d{1,9}(?:\.\d{1,20})?)(?:[ \t]{0,4}/[ \t]{0,4}(?P<of>\d{1,9}))?(?![\w/]|\.\d|-\w)"
)
_HAS_EPOCH: Final = re.compile(r"[eE][pP][oO][cC][hH]")
_HEADER: Final = re.compile(
    r"(?i)^\W{0,80}epoch[ :#\[]{0,4}(\d{1,9})(?:[ ]?/[ ]?\d{1,9})?\W{0,200}$"
)
_OF: Final = re.compile(
    r"(?<![\d/:.\-\w])(?P<n>\d{1,12})[ \t]{0,8}/[ \t]{0,8}(?P<of>\d{1,12}|Unknown|\?)(?![\d/:.\-]|[ ]?[kKMGT]?i?B\b)"
)
_AT_FRONT: Final = re.compile(r"^\s{0,20}(?P<n>\d{1,12})/(?P<of>\d{1,12}|Unknown|\?)\s(?!\d+:\d\d)")
_ROUND: Final = re.compile(r"^\s{0,8}\[(\d{1,12})\]\s")
"""Of XGBoost and LightGBM."""
_BAR: Final = re.compile(
    r"(?P<percent>\d{1,3})%\|[^|]{0,400}\|[ \t]{0,4}(?:(?P<n>\d{1,12})/(?P<of>\d{1,12}))?[^\[]{0,40}\[(?P<clock>[\d:]{4,12})<"
)
_CALL: Final = re.compile(r"\b[A-Za-z_]\w*\([A-Za-z_]\w{0,60}=")
"""The text form of an object: `Namespace(lr=0.1, ...)`, which is what a program was given."""
_IMAGE_BUILD: Final = re.compile(r"^Step \d+/\d+ : [A-Z]+\b")
_MOST_KEYS: Final = 4096
_BETWEEN_WORDS: Final = re.compile(r"[_/@.\-]")
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_QUALIFIER: Final = re.compile(
    r"(?<![\w/@.\-])([A-Za-z][A-Za-z_0-9]{0,30}(?:'s)?)[ ]{1,2}$",
)

_UNIT: Final = re.compile(r"^[ ]?(?:%|ms|us|s|it/s|s/it|x)?[ ]{0,8}")


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


_METRICS: Final = _words_of(
    "loss losses nll logloss acc accuracy top1 top5 acc1 acc5 ppl perplexity rmse mse mae mape bleu rouge f1 auc auroc"
    " auprc elbo psnr ssim fid wer cer iou miou dice bpb bpc reward gnorm"
)
"""Words in names that occur in training alone."""
_METRIC_NAMES: Final = frozenset(
    {"grad_norm", "learning_rate", "val_error", "train_error", "map50"}
)
_SETTINGS: Final = _words_of(
    "weight weights coef coeff coefficient fn func function type name threshold target smoothing mode reduction"
    " interval every freq frequency lambda alpha patience"
)
"""Words in names of settings, whatever else is in them."""
_NEVER: Final = _words_of(
    "pid ppid port rank local_rank node_rank world_size uid gid seed version v_num code status exit line id gpu device"
    " node info debug warning warn error critical http https eta host user thread process worker job attempt"
    " year month day hour minute"
)
"""Names that are no metrics, in any line."""
_STEPS: Final = _words_of(
    "step global_step train_step training_step total_step iter iteration global_iter episode it update batch epoch"
    " trainer/global_step"
)
_WEAK: Final = frozenset({"it", "update", "batch"})
"""Steps that other programs print, too."""
_QUALIFIERS: Final = _words_of(
    "train training val valid validation test testing eval evaluation dev lm mlm nsp mean avg average total moving"
    " running learning grad gradient best final global box cls kl policy value actor critic aux reconstruction"
    " generator discriminator teacher student"
)
_OTHER_LOSSES: Final = frozenset({"packet", "packets", "data", "message", "weight", "hair"})
_ACCURACIES: Final = frozenset({"acc", "accuracy", "top1", "top5", "acc1", "acc5"})


class Reading(NamedTuple):
    """The metrics of a line, and its step."""

    step: float | None
    values: dict[str, float]


@dataclass(slots=True)
class State:
    """What earlier lines say of later ones.

    `epoch`: of the last line that consists of one, `first_epoch`: 0 or 1, how the program counts them;
    `bar`: percent and clock of the last bar update that counted.
    """

    epoch: int | None = None
    first_epoch: int | None = None
    bar: str = ""

    def saved(self) -> list[int | str | None]:
        """Return its parts for JSON."""
        return [self.epoch, self.first_epoch, self.bar]

    @classmethod
    def of(cls, saved: Sequence[object]) -> State:
        """Return the state with these parts."""
        epoch, first, bar = saved
        return cls(
            epoch if isinstance(epoch, int) else None,
            first if isinstance(first, int) else None,
            bar if isinstance(bar, str) else "",
        )


def step_of(line: str, state: State) -> float | None:
    """Return the step of a line, for patterns that have no group of it."""
    return _Line(line, state).step()


def read_line(line: str, state: State, *, is_bar: bool) -> Reading | None:
    """Return the metrics of a line, or of a bar update (`is_bar`); None if there are none."""
    has_epoch = _HAS_EPOCH.search(line) is not None
    if has_epoch and (header := _HEADER.match(line)):
        state.epoch = int(header[1])
        _count_from(state, state.epoch)
        return None
    if ("(" in line and _CALL.search(line)) or _IMAGE_BUILD.match(line):
        return None
    return _Line(line, state).read(is_bar=is_bar)


@cache
def may_have_values() -> Any:
    """Return the compiled `_MAY_HAVE_VALUES`."""
    import re2  # noqa: PLC0415 - who requests no metrics does without

    options = re2.Options()
    options.never_nl = options.never_capture = True
    return re2.compile(f"(?m){_MAY_HAVE_VALUES}".encode(), options)


def number_of(text: str) -> float | None:
    """Parse a number as programs print it; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


class _Line:
    """One line, taken apart."""

    def __init__(self, line: str, state: State) -> None:
        self._line = line
        self._state = state
        self._bar = _BAR.search(line) if "%|" in line else None
        self._epoch = _EPOCH.search(line) if _HAS_EPOCH.search(line) else None
        self._step = _STEP.search(line)
        self._taken: list[tuple[int, int]] = [
            one.span() for one in (self._epoch, self._step) if one is not None
        ]
        if self._epoch is not None and self._epoch["n"].isdecimal():
            _count_from(state, int(self._epoch["n"]))

    def read(self, *, is_bar: bool) -> Reading | None:
        """Return its metrics."""
        values = self._values()
        if not values:
            return None
        if self._bar is not None and is_bar and not self._takes_update(self._bar):
            return None
        return Reading(self.step(), values)

    def _takes_update(self, bar: re.Match[str]) -> bool:
        """Whether an update counts: one of each percent, and of each second of the bar's clock."""
        before, now = self._state.bar, f"{bar['percent']} {bar['clock']}"
        self._state.bar = now
        return now != before

    def step(self) -> float | None:
        """Return its step."""
        step, epoch = self._step, self._epoch
        if step is not None and not (step["of"] is None and self._is_weak()):
            return self._within_epoch(step["n"], step["of"])
        place = self._progress()
        if place is not None:
            return self._within_epoch(place["n"], place["of"])
        if found := _ROUND.match(self._line):
            return float(found[1])
        if step is not None:
            return float(step["n"])
        return float(epoch["n"]) if epoch is not None else None

    def _progress(self) -> re.Match[str] | None:
        """Return the `n/of` of the line that says how far the program is."""
        if self._bar is not None and self._bar["n"]:
            return self._bar
        if self._epoch is None:
            found = _AT_FRONT.match(self._line)
            if found is not None or self._state.epoch is None:
                return found
        begin = self._epoch.end() if self._epoch is not None else 0
        near = islice(_OF.finditer(self._line, begin), _MOST_PAIRS)
        return next((one for one in near if self._is_progress(one)), None)

    def _is_weak(self) -> bool:
        return self._step is not None and self._step["word"].lower() in _WEAK

    def _is_progress(self, found: re.Match[str]) -> bool:
        """Whether `n/of` is the progress of the program: nothing that was already read as something else."""
        if any(low < found.end() and found.start() < high for low, high in self._taken):
            return False
        return found["of"].isdecimal() is False or 1 < int(found["of"]) >= int(found["n"])

    def _within_epoch(self, n: str, of: str | None) -> float:
        """Return the step counted from the first epoch on, if the steps of one are known."""
        count = int(n)
        if of is None or not of.isdecimal():
            return float(count)
        epoch, first = self._state.epoch, self._state.first_epoch or 0
        if self._epoch is not None:
            epoch = int(self._epoch["n"]) if self._epoch["n"].isdecimal() else None
        return float(max((epoch or 0) - first, 0) * int(of) + count if epoch is not None else count)

    def _values(self) -> dict[str, float]:
        """Return its values by name, if it is a line of training."""
        begin = self._bar.end() if self._bar is not None else 0
        found = list(islice(_PAIR.finditer(self._line, begin), _MOST_PAIRS))
        is_step = self._epoch is not None or (self._step is not None and not self._is_weak())
        keys = [one["key"] for one in found]
        has_metric = any(map(_is_metric, keys))
        if not (is_step or has_metric or self._bar is not None):
            return {}
        values: dict[str, float] = {}
        for pair in found:
            if len(values) >= MOST_VALUES:
                break
            if not self._is_value(pair, is_step=is_step):
                continue
            value = number_of(pair["number"])
            if value is None:
                continue
            if pair["of"] is not None:
                self._taken.append(pair.span())
                if not (_words(pair["key"]) & _ACCURACIES and int(pair["of"])):
                    continue
                value /= int(pair["of"])
            values.setdefault(self._name(pair), value)
        if values.keys() <= {"epoch", "Epoch"}:
            return {}
        if not has_metric and not is_step and self._bar is None:
            return {}
        return values

    def _is_value(self, pair: re.Match[str], *, is_step: bool) -> bool:
        key = pair["key"].strip("-.")
        small = key.lower()
        words = _words(key)
        if (
            small in _NEVER
            or "id" in words
            or words & _SETTINGS
            or small.startswith(("max_", "num_"))
        ):
            return False
        if (
            small in _STEPS
            and not pair["unit"]
            and not (small == "epoch" and self._step is not None and pair["sign"])
        ):
            return False
        if self._is_other_loss(pair):
            return False
        is_metric = _is_metric(key)
        if pair["sign"] is None:
            return is_metric or pair["meter"] is not None or (is_step and self._is_field(pair))
        if pair["sign"] == ":" and not pair["gap"]:
            return is_metric
        return True

    def _before(self, pair: re.Match[str]) -> str:
        return self._line[max(pair.start() - _AROUND, 0) : pair.start()]

    def _is_other_loss(self, pair: re.Match[str]) -> bool:
        if "loss" not in pair["key"].lower():
            return False
        before = self._before(pair).split()
        return bool(before) and before[-1].lower() in _OTHER_LOSSES

    def _is_field(self, pair: re.Match[str]) -> bool:
        """Whether a pair without a sign fills a field of its own."""
        before = self._before(pair).rstrip(" ")
        after = _UNIT.sub("", self._line[pair.end() : pair.end() + _AROUND], count=1)
        return before[-1:] in {",", "|", ";", "\t", ""} and after[:1] in {",", "|", ";", "\t", ""}

    def _name(self, pair: re.Match[str]) -> str:
        """Return the name of a value, with the words before it that belong to it."""
        before = self._before(pair)
        words = [pair["key"].rstrip("-.")]
        field = before.rpartition("|")[2] if "|" in before else None
        if field is not None and re.fullmatch(r"[ ]{0,4}(?:[A-Za-z][\w/\-]{0,30}[ ]){1,4}", field):
            words = [*field.split(), *words]
        else:
            while len(words) < 4 and (found := _QUALIFIER.search(before)):
                word = found[1].removesuffix("'s")
                if word.lower() not in _QUALIFIERS and not re.fullmatch(
                    r"(?:valid|val|test|eval|train)\w*", word
                ):
                    break
                words.insert(0, word)
                before = before[: found.start()]
        return "_".join(words)


def _count_from(state: State, epoch: int) -> None:
    """Note the first epoch: later ones are counted from it."""
    if state.first_epoch is None or epoch == 0:
        state.first_epoch = min(epoch, 1)


@lru_cache(_MOST_KEYS)
def _words(key: str) -> frozenset[str]:
    """Return the words of a name in lower case, and the whole name."""
    return frozenset(word.lower() for word in _parts(key))


def _parts(key: str) -> Iterator[str]:
    yield key
    for part in _BETWEEN_WORDS.split(key):
        yield part
        yield from _WORDS.findall(part)


@lru_cache(_MOST_KEYS)
def _is_metric(key: str) -> bool:
    words = _words(key)
    return bool(words & _METRICS or key.lower() in _METRIC_NAMES) and not words & _SETTINGS
