"""Records what TensorBoard's events show: scalars as metrics, images and the like as media, hyperparameters as configuration."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nsml._echo._event_files import EventValue
    from nsml._echo._sink import Sink

ORIGIN = "tensorboard"


def record(sink: Sink, one: EventValue, prefix: str) -> None:
    """Record one value of an event."""
    if one.kind == "scalar":
        values = {one.tag: one.value}
        sink.metrics(ORIGIN, values, one.step, prefix=prefix, time=one.time or None)
    elif one.kind == "hparams":
        sink.config(ORIGIN, one.value, run=prefix[:-1])
    elif one.kind in _MEDIA:
        _MEDIA[one.kind](sink, sink.media_name(one.tag, prefix), one.value, one.step)


def _image(sink: Sink, name: str, value: Any, step: int) -> None:
    sink.media.image(name, bytes(value), step)


def _audio(sink: Sink, name: str, value: Any, step: int) -> None:
    sink.media.audio(name, bytes(value), step)


def _text(sink: Sink, name: str, value: Any, step: int) -> None:
    sink.media.text(name, value, step)


def _histogram(sink: Sink, name: str, value: Any, step: int) -> None:
    edges, counts = value
    sink.media.histogram(name, counts, step, edges=edges)


def _pr_curve(sink: Sink, name: str, value: Any, step: int) -> None:
    sink.media.table(name, value, step, columns=("precision", "recall"))


_MEDIA = {
    "image": _image,
    "audio": _audio,
    "text": _text,
    "histogram": _histogram,
    "pr_curve": _pr_curve,
}
