"""`nsml.image` and the like: each value becomes a file beside the spool, and a record that names it.

The record is sent like all reports; the file is sent by the node agent, which then removes it.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from functools import wraps
from itertools import count

from nsml._digests import sha256
from nsml._notice import notice
from nsml._path_text import name_text
from nsml._report import _shown, encode, no_step, step_of
from nsml._rights import create, make_folders
from nsml._strict import Strictness, comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Sequence, Set, Tuple, TypeVar

    from nsml._spool import Spool

    Facts = Dict[str, Any]
    Call = TypeVar("Call", bound=Callable[..., None])

FOLDER = "media"
MOST_BYTES = 64 << 20
"""Largest file."""
MOST_IN_ALL = 16 << 30
MOST_FILES = 20_000
MOST_NAME_CHARS = 512
MOST_CAPTION_CHARS = 2_000
_BEGINNING_CHARS = 200
_MOST_WARNED = 100
"""Most warnings of one process."""

_SIGNS = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"BM", 0, "image/bmp"),
    (b"WAVE", 8, "audio/wav"),
    (b"OggS", 0, "audio/ogg"),
    (b"fLaC", 0, "audio/flac"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"\xff\xf3", 0, "audio/mpeg"),
    (b"ftyp", 4, "video/mp4"),
    (b"\x1a\x45\xdf\xa3", 0, "video/webm"),
    (b"AVI ", 8, "video/x-msvideo"),
)
_ALSO_VIDEO = ("image/gif", "image/png", "image/webp")


def _named(call: Call) -> Call:
    """Log values that cannot be shown, once each, or raise TypeError in strict mode."""

    @wraps(call)
    def told(self: Media, /, *given: Any, **named: Any) -> None:
        try:
            call(self, *given, **named)
        except Exception as error:
            if comes_from_signal(error):
                raise
            self._refuse(call.__name__, given[0] if given else named.get("name"), error)

    return told  # type: ignore[return-value]


class Media:
    """Media of one process.

    Args:
        spool: receives the records.
        run_dir: the files are in a subfolder; "" outside of a session, where values are only
            validated.
        strictness: whether a value that cannot be shown raises TypeError.
    """

    def __init__(self, spool: Spool, run_dir: str, strictness: Optional[Strictness] = None) -> None:
        self._spool = spool
        self._strictness = strictness or Strictness(is_on=not run_dir)
        self._folder = os.path.join(run_dir, FOLDER) if run_dir else ""
        self._most_files = _setting("NSML_MEDIA_FILES", MOST_FILES)
        self._most_bytes = _setting("NSML_MEDIA_BYTES", MOST_IN_ALL)
        self._warned: Set[str] = set()
        self._numbers = count(1)
        self._files = 0
        self._bytes = 0

    @_named
    def image(
        self,
        /,
        name: str,
        value: Any,
        step: Any = None,
        *,
        dataformats: str = "",
        caption: str = "",
    ) -> None:
        """Show an image, or several in a grid of at most 64.

        If the shape of an array is ambiguous, the first matching order is used: HWC, CHW, NHW (for tensors of torch
        CHW, HWC, NHW), with a warning in the log once per name: 4x8x8 is RGBA or four grey images.
        `dataformats` sets the order.

        Args:
            name: like a metric's: `val/samples`.
            value: an array, tensor or nested list (HxW, HxWxC or CxHxW, with N first for several; C is
                1, 3 or 4; floats from 0 to 1 or integers from 0 to 255), an image of PIL, or an
                encoded file as bytes or path.
            step: the x axis.
            dataformats: the order of the dimensions, as in TensorBoard: HW, HWC, CHW, NHW, NHWC
                or NCHW; for a list of arrays, the order of each.
            caption: a line below the image.

        Raises:
            TypeError: the value is none of these.
        """
        from nsml import _pictures

        def doubt(text: str) -> None:
            self._warn(f"shape {name}", f"nsml.image: {_shown(str(name))}: {text}")

        if (data := _encoded(value)) is not None:
            kind = _recognised(data, "image/")
            self._show("image", name, step, caption, kind, data, _pictures.size_in(data) or {})
            return
        if _is_pil(value):
            data, facts = _saved_by_pil(value)
        else:
            pictures = _pictures.pictures_of(value, str(dataformats), doubt)
            shown = pictures[: _pictures.MOST_IN_GRID]
            whole = _pictures.grid(shown)
            data, facts = _pictures.png(whole), {"width": whole.width, "height": whole.height}
            if len(pictures) > 1:
                facts.update(images=len(shown), left_out=len(pictures) - len(shown))
        self._show("image", name, step, caption, "image/png", data, facts)

    @_named
    def feature_map(self, /, name: str, value: Any, step: Any = None, *, caption: str = "") -> None:
        """Show the channels of CxHxW (of NxCxHxW: of the first), at most 64, as a grid in grey.

        Each channel is scaled from its own minimum to its maximum.

        Raises:
            TypeError: the value is no array of that shape.
        """
        from nsml import _pictures

        maps = _pictures.maps_of(value)
        whole = _pictures.grid(maps)
        facts = {"width": whole.width, "height": whole.height, "images": len(maps)}
        self._show("feature_map", name, step, caption, "image/png", _pictures.png(whole), facts)

    @_named
    def video(
        self, /, name: str, value: Any, step: Any = None, *, fps: float = 10.0, caption: str = ""
    ) -> None:
        """Show a video: an encoded file as bytes or path, or frames (TxHxWxC, TxCxHxW, TxHxW).

        Frames become an animated PNG, which browsers play; at most 1,024 of equal size.

        Raises:
            TypeError: the value is none of these.
        """
        from nsml import _pictures

        if (data := _encoded(value)) is not None:
            kind = _recognised(data, "video/", _ALSO_VIDEO)
            self._show("video", name, step, caption, kind, data, _pictures.size_in(data) or {})
            return
        if not (isinstance(fps, (int, float)) and 0.01 <= fps <= 1000):
            raise TypeError(f"fps is from 0.01 to 1000, not {fps!r}")
        frames = _pictures.frames_of(value)
        facts = {
            "width": frames[0].width,
            "height": frames[0].height,
            "frames": len(frames),
            "fps": fps,
        }
        data = _pictures.animated_png(frames, float(fps))
        self._show("video", name, step, caption, "image/apng", data, facts)

    @_named
    def audio(
        self,
        /,
        name: str,
        value: Any,
        step: Any = None,
        *,
        sample_rate: int = 44_100,
        caption: str = "",
    ) -> None:
        """Record audio: samples of one channel, or of several (NxC or CxN, at most 8).

        Floats from -1 to 1 or 16-bit integers become WAV; an encoded file is given as bytes or path.

        Raises:
            TypeError: the value is none of these.
        """
        from nsml import _sounds

        if (data := _encoded(value)) is not None:
            self._show("audio", name, step, caption, _recognised(data, "audio/"), data, {})
            return
        data, facts = _sounds.wav(value, sample_rate)
        self._show("audio", name, step, caption, "audio/wav", data, facts)

    @_named
    def text(self, /, name: str, value: str, step: Any = None, *, caption: str = "") -> None:
        """Show a text.

        Raises:
            TypeError: the value is no text.
        """
        if not isinstance(value, str):
            raise TypeError(f"a text is a str, not an object of type {type(value).__name__}")
        data = value.encode("utf-8", "replace")
        facts = {"characters": len(value), "beginning": value[:_BEGINNING_CHARS]}
        self._show("text", name, step, caption, "text/plain; charset=utf-8", data, facts)

    @_named
    def histogram(
        self,
        /,
        name: str,
        value: Any,
        step: Any = None,
        *,
        bins: int = 64,
        edges: Any = None,
        caption: str = "",
    ) -> None:
        """Show a distribution: an array of values, or counts and their edges.

        Values are counted in `bins` of equal width, 1 to 4,096; with `edges` the value is the counts between them.

        Raises:
            TypeError: the value has no numbers, or edges do not fit.
        """
        from nsml import _distributions

        data, facts = _distributions.histogram(value, bins, edges)
        self._show("histogram", name, step, caption, "application/json", _json(data), facts)

    @_named
    def embedding(
        self, /, name: str, value: Any, step: Any = None, *, labels: Any = None, caption: str = ""
    ) -> None:
        """Show vectors: NxD, with an optional label each; the first 10,000.

        Raises:
            TypeError: the value is no such array, or the numbers of labels and vectors differ.
        """
        from nsml._tables import vectors_of

        columns, rows, count = vectors_of(value, labels)
        dimensions = len(columns) - (labels is not None)
        data = {"columns": columns, "data": rows}
        facts = {"rows": len(rows), "dimensions": dimensions, "left_out": count - len(rows)}
        self._show("embedding", name, step, caption, "application/json", _json(data), facts)

    @_named
    def table(
        self,
        /,
        name: str,
        value: Any,
        step: Any = None,
        *,
        columns: Optional[Sequence[str]] = None,
        caption: str = "",
    ) -> None:
        """Show rows: lists of cells, dicts, a dict of columns, a data frame; the first 10,000.

        Cells are text, numbers, booleans or None; other values are shown as text.

        Raises:
            TypeError: the value is no table, or rows and columns do not fit.
        """
        from nsml._tables import rows_of

        names, rows, total = rows_of(value, columns)
        data = {"columns": names, "data": rows}
        facts = {"rows": len(rows), "columns": len(names), "left_out": total - len(rows)}
        self._show("table", name, step, caption, "application/json", _json(data), facts)

    def _show(  # noqa: PLR0917 - as a record has them
        self,
        kind: str,
        name: str,
        step: Any,
        caption: str,
        content_type: str,
        data: bytes,
        facts: Facts,
    ) -> None:
        """Write file and record of one call."""
        name = name_text(str(name))
        if not 0 < len(name) <= MOST_NAME_CHARS:
            has = f"1 to {MOST_NAME_CHARS} characters, and this one {len(name):,}"
            raise TypeError(f"a name has {has}")
        number = step_of(step)
        record = {
            "kind": "media",
            "time": time.time(),
            "step": number,
            "name": name,
            "type": kind,
            "content_type": content_type,
            "size": len(data),
            "caption": str(caption)[:MOST_CAPTION_CHARS],
            "facts": facts,
        }
        encode(record)
        if self._folder:
            self._keep(record, data)
        if number is None and step is not None:
            if self._strictness.is_on:
                raise TypeError(no_step(step))
            self._warn("step", f"nsml.{kind}: {no_step(step)}")

    def _keep(self, record: Dict[str, Any], data: bytes) -> None:
        """Write the file and then its record; failures are counted and logged."""
        kind, name = record["type"], record["name"]
        refusal = self._refusal(len(data))
        if not refusal:
            try:
                record["file"] = self._written(data)
            except OSError as error:
                refusal = str(error)
        if refusal:
            notice(f"{kind} {name} is lost, training goes on: {refusal}")
            self._spool.drop(f"{kind} {name}: {refusal}")
            return
        self._files += 1
        self._bytes += len(data)
        self._spool.append(encode(record), must_arrive=True)

    def _refuse(self, call: str, name: Any, error: Exception) -> None:
        """Raise for a value that cannot be shown, or log it."""
        try:
            shown = "a value without a name" if name is None else _shown(str(name))
        except Exception:  # its name cannot be read either
            shown = "a value"
        why = reason(error).replace(f"{type(self).__name__}.{call}()", f"nsml.{call}()")
        if self._strictness.is_on:
            raise TypeError(f"nsml.{call}: {shown}: {why}") from error
        self._warn(f"{call} {shown}", f"nsml.{call}: {shown} is not recorded: {why}")

    def _warn(self, topic: str, text: str) -> None:
        """Log a warning, once per topic."""
        if topic not in self._warned and len(self._warned) < _MOST_WARNED:
            self._warned.add(topic)
            notice(text)

    def _refusal(self, size: int) -> str:
        if size > MOST_BYTES:
            return f"{size} bytes are more than the {MOST_BYTES} that one file may have"
        if self._files >= self._most_files:
            return f"{self._most_files} files are what one process may show (NSML_MEDIA_FILES)"
        if self._bytes + size > self._most_bytes:
            return f"{self._most_bytes} bytes are what one process may show (NSML_MEDIA_BYTES)"
        return ""

    def _written(self, data: bytes) -> str:
        """Write the bytes atomically, to a new unique name with their digest."""
        unique = f"{os.getpid():x}-{next(self._numbers):x}-{time.time_ns():x}"
        name = f"{sha256(data).hexdigest()}-{unique}"
        draft = os.path.join(self._folder, f".tmp-{unique}")
        make_folders(self._folder)
        try:
            with open(create(draft), "wb") as file:
                file.write(data)
            os.rename(draft, os.path.join(self._folder, name))
        except OSError:
            with suppress(OSError):
                os.unlink(draft)
            raise
        return name


def _setting(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default


def _encoded(value: Any) -> Optional[bytes]:
    """Return the content of a file given as bytes or path; None for any other value.

    Raises:
        TypeError: it cannot be read, or is too large.
    """
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if not isinstance(value, (str, os.PathLike)):
        return None
    try:
        with open(value, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise TypeError(f"cannot read {os.fspath(value)!r}: {error}") from error
    return data


def _recognised(data: bytes, family: str, also: Tuple[str, ...] = ()) -> str:
    for sign, at, kind in _SIGNS:
        if data[at : at + len(sign)] == sign and (kind.startswith(family) or kind in also):
            return kind
    raise TypeError(f"the bytes are no {family[:-1]} of a format that is known")


def _is_pil(value: Any) -> bool:
    return hasattr(value, "save") and hasattr(value, "mode") and hasattr(value, "getbands")


def _saved_by_pil(value: Any) -> Tuple[bytes, Facts]:
    from io import BytesIO

    if value.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        value = value.convert("RGB")
    written = BytesIO()
    try:
        value.save(written, format="PNG")
    except (OSError, ValueError) as error:
        raise TypeError(f"PIL cannot write the image: {error}") from error
    width, height = value.size
    return written.getvalue(), {"width": width, "height": height}


def _json(value: Any) -> bytes:
    try:
        return encode(value)
    except TypeError:
        return json.dumps(value, default=str).encode()
