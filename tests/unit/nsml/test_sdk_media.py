"""image, audio, video, text, histogram, embedding, feature_map and table: files and their records."""

from __future__ import annotations

import array
import hashlib
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import wave
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nsml._distributions import histogram
from nsml._frames import parse
from nsml._pictures import grid, pictures_of, png, size_in
from nsml._session import Session
from tests.support.examples import examples

CHANNELS = {0: 1, 2: 3, 6: 4}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """One in which what cannot be shown is a TypeError."""
    made = Session(str(tmp_path), "anna/digits/3")
    made.strictness.strict()
    return made


@pytest.fixture
def lenient(session: Session) -> Session:
    session.strictness.strict(False)
    return session


def shown(folder: Path) -> list[tuple[dict[str, Any], bytes]]:
    """Records of media with their files, each held against its digest."""
    found = []
    for path in sorted(folder.glob("spool/*.records")):
        for _, payload in parse(path.read_bytes())[0]:
            record = json.loads(payload)
            if record["kind"] == "media":
                data = (folder / "media" / record["file"]).read_bytes()
                assert record["file"].startswith(hashlib.sha256(data).hexdigest() + "-")
                assert record["size"] == len(data)
                found.append((record, data))
    return found


def dropped(folder: Path) -> int:
    frames = [parse(path.read_bytes())[0] for path in folder.glob("spool/*.records")]
    records = [json.loads(payload) for frame in frames for _, payload in frame]
    return sum(record["count"] for record in records if record["kind"] == "dropped")


def chunks_of(data: bytes) -> list[tuple[bytes, bytes]]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    found, at = [], 8
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(kind + body)
        found.append((kind, body))
        at += 12 + length
    return found


def pixels(header: bytes, packed: bytes) -> np.ndarray:
    width, height, depth, colour = struct.unpack_from(">IIBB", header)
    assert depth == 8
    rows = np.frombuffer(zlib.decompress(packed), "uint8").reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, CHANNELS[colour])


def opened(data: bytes) -> np.ndarray:
    """The pixels of a PNG that has no filters."""
    chunks = dict(chunks_of(data))
    return pixels(chunks[b"IHDR"], chunks[b"IDAT"])


def drawn(value: Any) -> np.ndarray:
    return opened(png(grid(pictures_of(value))))


class Tensor:
    """What torch gives, as far as it is asked."""

    def __init__(self, values: np.ndarray, *, is_bfloat: bool = False) -> None:
        self._values, self._is_bfloat = values, is_bfloat

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def float(self) -> Tensor:
        return Tensor(self._values.astype("float32"))

    def numpy(self) -> np.ndarray:
        if self._is_bfloat:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._values


class Sparse(Tensor):
    """One of torch that has no numbers to give: sparse, quantized or on `meta`."""

    def numpy(self) -> np.ndarray:
        raise RuntimeError("Cannot access data pointer\n" + "of any backend\n" * 30)

    def float(self) -> Tensor:
        return self.cpu()

    def cpu(self) -> Tensor:
        raise NotImplementedError(
            "Cannot copy out of meta tensor; no data!\nCPU: registered at ..."
        )


@pytest.mark.parametrize(
    "call", ["image", "video", "audio", "histogram", "embedding", "feature_map"]
)
def test_a_tensor_without_numbers_is_refused_in_a_line(session: Session, call: str) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(session.media, call)("val/x", Sparse(np.zeros((2, 2))), 1)
    words = str(caught.value)
    assert words.startswith(f"nsml.{call}: 'val/x': a Sparse that gives no numbers: Cannot copy")
    assert "\n" not in words


class TestImages:
    @given(
        st.sampled_from([(2, 3), (2, 3, 1), (2, 3, 3), (5, 2, 4), (3, 5, 7), (1, 5, 7), (4, 2, 2)]),
        st.sampled_from(["uint8", "int64", "float32", "float64", "bool"]),
        st.integers(0, 1000),
    )
    @settings(max_examples=examples(60), deadline=None)
    def test_arrays_and_lists_become_the_same_pixels(
        self, shape: tuple[int, ...], dtype: str, seed: int
    ) -> None:
        values = np.random.default_rng(seed).integers(-20, 300, shape)
        made = (values / 255).astype(dtype) if "float" in dtype else values.astype(dtype)
        seen = drawn(made)
        np.testing.assert_array_equal(seen, drawn(made.tolist()))
        in_front = len(shape) == 3 and shape[2] not in (1, 3, 4)
        expected = made.transpose(1, 2, 0) if in_front else made
        scaled = expected * 255.0 if made.dtype.kind in "fb" else expected.astype("float64")
        expected = np.clip(scaled, 0, 255).reshape(seen.shape)
        assert np.abs(seen - expected).max() <= 0.5001

    def test_a_tensor_has_its_channels_in_front(self) -> None:
        values = np.zeros((3, 2, 3), "float32")
        values[0] = 1
        for tensor in (Tensor(values), Tensor(values, is_bfloat=True)):
            assert (drawn(tensor) == [255, 0, 0]).all()
        assert drawn(values).tolist() == (values * 255).astype(int).tolist()

    @pytest.mark.parametrize(
        ("formats", "shape", "seen"),
        [
            ("HW", (4, 8), (4, 8, 1)),
            ("CHW", (4, 8, 6), (8, 6, 4)),
            ("chw", (3, 8, 4), (8, 4, 3)),
            ("HWC", (3, 8, 4), (3, 8, 4)),
            ("NHW", (4, 8, 6), (2 * 10 - 2, 2 * 8 - 2, 1)),
            ("NHW", (4, 8, 3), (2 * 10 - 2, 2 * 5 - 2, 1)),
            ("NCHW", (4, 3, 8, 4), (2 * 10 - 2, 2 * 6 - 2, 3)),
            ("NHWC", (4, 3, 8, 4), (2 * 5 - 2, 2 * 10 - 2, 4)),
        ],
    )
    @pytest.mark.parametrize("made", [np.asarray, Tensor, np.ndarray.tolist])
    def test_what_the_order_of_dimensions_is_said_to_be(
        self,
        session: Session,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
        formats: str,
        shape: tuple[int, ...],
        seen: tuple[int, ...],
        made: Any,
    ) -> None:
        value = made(np.arange(np.prod(shape), dtype="float64").reshape(shape) / np.prod(shape))
        session.media.image("x", value, dataformats=formats)
        ((_, data),) = shown(tmp_path)
        assert opened(data).shape == seen
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize(
        ("value", "readings"),
        [
            (np.zeros((4, 8, 8)), ("CHW", "NHW")),
            (Tensor(np.zeros((4, 8, 8))), ("CHW", "NHW")),
            (np.zeros((3, 8, 4)), ("HWC", "CHW")),
            (Tensor(np.zeros((3, 8, 4))), ("CHW", "HWC")),
            (np.zeros((2, 3, 8, 4)), ("NHWC", "NCHW")),
            ([np.zeros((4, 8, 8))] * 3, ("CHW", "NHW")),
        ],
    )
    def test_a_shape_that_can_be_read_in_two_ways_is_told_once(
        self,
        session: Session,
        capfd: pytest.CaptureFixture[str],
        value: Any,
        readings: tuple[str, str],
    ) -> None:
        for step in range(3):
            session.media.image("a\nb", value, step)
        (line,) = capfd.readouterr().err.splitlines()
        taken, other = readings
        assert f"is taken as {taken}, and could be {other}" in line
        session.media.image("another", value)
        assert "nsml.image: 'another': " in capfd.readouterr().err
        for clear in (np.zeros((3, 8, 8)), np.zeros((5, 8, 8)), np.zeros((8, 8, 4))):
            session.media.image("clear", clear)
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize(
        ("shape", "formats", "why"),
        [
            ((4, 8, 8), "CHWN", "dataformats is one of HW, HWC, CHW, NHW, NHWC, NCHW, not 'CHWN'"),
            ((4, 8, 8), "HW", "4x8x8 has 3 dimensions, and HW 2"),
            ((4, 8, 8), "HWC", "C is 1, 3 or 4, and of 4x8x8 as HWC it is 8"),
        ],
    )
    def test_an_order_that_does_not_fit_is_refused(
        self, session: Session, shape: tuple[int, ...], formats: str, why: str
    ) -> None:
        with pytest.raises(TypeError, match=re.escape(why)):
            session.media.image("x", np.zeros(shape), dataformats=formats)

    def test_images_in_a_list_are_each_of_the_order(self, session: Session, tmp_path: Path) -> None:
        for formats in ("CHW", "NCHW"):
            session.media.image("x", [np.ones((4, 8, 6))] * 4, dataformats=formats)
        assert [opened(data).shape for _, data in shown(tmp_path)] == [(18, 14, 4)] * 2

    def test_what_is_no_number_is_black(self) -> None:
        values = [[float("nan"), float("inf"), float("-inf")]]
        assert drawn(values).ravel().tolist() == [0, 255, 0]
        assert drawn(np.array(values)).ravel().tolist() == [0, 255, 0]

    def test_a_batch_is_a_grid(self, session: Session, tmp_path: Path) -> None:
        session.media.image("batch", np.ones((70, 4, 5, 3)), 3)
        ((record, data),) = shown(tmp_path)
        assert opened(data).shape == (8 * 6 - 2, 8 * 7 - 2, 3)
        assert record["facts"] == {"width": 54, "height": 46, "images": 64, "left_out": 6}
        mixed = drawn([np.ones((2, 2)), np.zeros((3, 4, 4)), Tensor(np.ones((3, 2, 2)))])
        assert mixed.shape == (2 * 5 - 2, 2 * 6 - 2, 4)
        assert mixed[0, 0].tolist() == [255, 255, 255, 255]

    def test_memory_and_arrays_of_python(self) -> None:
        assert drawn(memoryview(np.full((2, 2), 7, "uint8"))).ravel().tolist() == [7] * 4
        assert drawn([array.array("d", [0.0, 1.0])]).ravel().tolist() == [0, 255]

    def test_an_image_of_pil_saves_itself(self, session: Session, tmp_path: Path) -> None:
        class Image:
            mode, size = "CMYK", (3, 2)

            def getbands(self) -> tuple[str, ...]:
                return tuple(self.mode)

            def convert(self, mode: str) -> Image:
                self.mode = mode
                return self

            def save(self, file: Any, format: str) -> None:  # noqa: A002 - as PIL has it
                file.write(png(pictures_of(np.zeros((2, 3, 3)))[0]))

        session.media.image("pil", Image())
        ((record, data),) = shown(tmp_path)
        assert opened(data).shape == (2, 3, 3)
        assert record["facts"] == {"width": 3, "height": 2}

    def test_encoded_files_are_taken_as_they_are(self, session: Session, tmp_path: Path) -> None:
        jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\0\x11\x08\0\x02\0\x03rest"
        (tmp_path / "a.jpg").write_bytes(jpeg)
        for given_ in (jpeg, bytearray(jpeg), tmp_path / "a.jpg", str(tmp_path / "a.jpg")):
            session.media.image("jpeg", given_)
        found = shown(tmp_path)
        assert [data for _, data in found] == [jpeg] * 4
        assert found[0][0]["content_type"] == "image/jpeg"
        assert found[0][0]["facts"] == {"width": 3, "height": 2}

    @given(st.binary(max_size=60), st.sampled_from([b"", b"\xff\xd8\xff", b"GIF8", b"BM"]))
    def test_sizes_of_any_bytes(self, data: bytes, sign: bytes) -> None:
        size_in(sign + data)

    @pytest.mark.parametrize(
        "value",
        [
            None,
            3,
            "",
            "/nowhere/at/all",
            "\0",
            b"",
            b"GIF",
            {},
            object(),
            [],
            [[]],
            [["a"]],
            [[1, 2], [3]],
            [[None]],
            [[1, [2]]],
            [[10**400, 0.5]],
            np.zeros(3),
            np.zeros((0, 3)),
            np.zeros((2, 2, 2, 2, 2)),
            np.zeros((2, 2), complex),
            np.array([["a"]]),
            np.broadcast_to(np.zeros((1, 1), "uint8"), (1 << 14, 1 << 13)),
        ],
    )
    def test_what_is_no_image_is_refused(self, session: Session, value: Any) -> None:
        with pytest.raises(TypeError):
            session.media.image("x", value)

    def test_feature_maps_are_grey_from_least_to_largest(
        self, session: Session, tmp_path: Path
    ) -> None:
        values = np.stack([np.array([[5.0, 7.0]]), np.array([[-1.0, np.nan]])])
        session.media.feature_map("a", values)
        session.media.feature_map("b", values.tolist())
        session.media.feature_map("c", Tensor(values[None]))
        for record, data in shown(tmp_path):
            assert opened(data)[0, :, 0].tolist() == [0, 255, 0, 0, 0, 255]
            assert record["facts"]["images"] == 2


class TestFilms:
    def test_frames_become_an_animated_png(self, session: Session, tmp_path: Path) -> None:
        frames = np.arange(5 * 2 * 3 * 3, dtype="uint8").reshape(5, 2, 3, 3)
        session.media.video("v", frames, 1, fps=25)
        session.media.video("list", list(frames))
        session.media.video("grey", frames[..., 0])
        for record, data in shown(tmp_path):
            chunks = chunks_of(data)
            header = chunks[0][1]
            seen = [pixels(header, body) for kind, body in chunks if kind == b"IDAT"]
            seen += [pixels(header, body[4:]) for kind, body in chunks if kind == b"fdAT"]
            wanted = frames if record["name"] != "grey" else frames[..., :1]
            np.testing.assert_array_equal(np.stack(seen), wanted)
            numbers = [
                struct.unpack_from(">I", body)[0]
                for kind, body in chunks
                if kind in {b"fcTL", b"fdAT"}
            ]
            assert numbers == list(range(9))
            assert record["facts"]["frames"] == 5

    def test_encoded_films_and_what_is_none(self, session: Session, tmp_path: Path) -> None:
        session.media.video("mp4", b"\0\0\0\x18ftypmp42")
        session.media.video("gif", b"GIF89a\x01\0\x02\0")
        assert [one["content_type"] for one, _ in shown(tmp_path)] == ["video/mp4", "image/gif"]
        for value in (b"RIFF", np.zeros((2, 2)), np.zeros((1025, 1, 1)), [np.zeros((2, 2)), [[1]]]):
            with pytest.raises(TypeError):
                session.media.video("x", value)
        with pytest.raises(TypeError):
            session.media.video("x", np.zeros((2, 2, 2)), fps=0)


class TestSounds:
    @pytest.mark.parametrize(
        ("value", "channels", "samples"),
        [
            ([0.0, 1.0, -1.0, 2.0, float("nan")], 1, [0, 32767, -32767, 32767, 0]),
            (np.array([0.0, 1.0, -1.0, 2.0, np.nan]), 1, [0, 32767, -32767, 32767, 0]),
            ([1, -40_000], 1, [1, -32768]),
            (np.array([1, -3], "int16"), 1, [1, -3]),
            (np.array([128, 255], "uint8"), 1, [0, 32512]),
            (np.array([1 << 16, -1 << 16], "int32"), 1, [1, -1]),
            (np.array([[1, 2, 3], [4, 5, 6]], "int16"), 2, [1, 4, 2, 5, 3, 6]),
            ([[1, 2, 3], [4, 5, 6]], 2, [1, 4, 2, 5, 3, 6]),
            ([[1, 4], [2, 5], [3, 6]], 2, [1, 4, 2, 5, 3, 6]),
        ],
    )
    def test_samples_become_wav(
        self, session: Session, tmp_path: Path, value: Any, channels: int, samples: list[int]
    ) -> None:
        session.media.audio("a", value, sample_rate=8000)
        ((record, data),) = shown(tmp_path)
        with wave.open(io.BytesIO(data)) as file:
            assert file.getparams()[:4] == (channels, 2, 8000, len(samples) // channels)
            read = np.frombuffer(file.readframes(99), "<i2").tolist()
        assert read == samples
        assert record["facts"]["channels"] == channels

    @pytest.mark.parametrize(
        "value", [3, "x", b"x", [["a"]], np.zeros((9, 9)), np.zeros((2, 2, 2))]
    )
    def test_what_is_no_sound_is_refused(self, session: Session, value: Any) -> None:
        with pytest.raises(TypeError):
            session.media.audio("x", value)
        with pytest.raises(TypeError):
            session.media.audio("x", [0.0], sample_rate=0)


class TestNumbers:
    @given(st.lists(st.floats() | st.integers(-(10**18), 10**18), max_size=50), st.integers(1, 70))
    @example([1e308, -1.6965397022934737e308], 3)
    @example([1e308, -7.976931348623158e307], 1)
    @settings(deadline=None)
    def test_histograms_by_hand_and_by_numpy_are_one(self, values: list[float], bins: int) -> None:
        values = [float(value) for value in values]
        by_hand, facts = histogram(values, bins, None)
        with np.errstate(all="ignore"):
            by_numpy, others = histogram(np.array(values, "float64"), bins, None)
        assert by_hand == by_numpy
        finite = [value for value in values if np.isfinite(value)]
        assert facts["count"] == others["count"] == sum(by_hand["counts"]) == len(finite)
        assert facts["not_finite"] == others["not_finite"] == len(values) - len(finite)
        if finite:
            edges = by_hand["edges"]
            assert len(edges) == len(by_hand["counts"]) + 1
            assert edges == sorted(edges)
            assert edges[0] <= min(finite) <= max(finite) <= edges[-1]

    @pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
    def test_a_matrix_has_numbers_too(self) -> None:
        made, facts = histogram(np.asmatrix([[1.0, 2.0], [2.0, 5.0]]), 4, None)
        assert (made["counts"], facts["count"]) == ([1, 2, 0, 1], 4)

    def test_histograms_agree_with_numpys(self) -> None:
        values = np.random.default_rng(1).normal(size=1000)
        made, _ = histogram(values, 64, None)
        counts, edges = np.histogram(values, 64)
        np.testing.assert_allclose(made["edges"], edges, atol=1e-12)
        assert made["counts"] == counts.tolist()
        given_, _ = histogram(counts, 64, edges)
        assert given_["counts"] == counts.tolist()

    @pytest.mark.parametrize("value", ["x", None, ["a"], [10**400], np.array(["a"]), object()])
    def test_what_holds_no_numbers_is_refused(self, session: Session, value: Any) -> None:
        with pytest.raises(TypeError):
            session.media.histogram("x", value)

    def test_histograms_that_do_not_fit_are_refused(self, session: Session) -> None:
        for bins in (0, -1, 4097, 1.5, True):
            with pytest.raises(TypeError):
                session.media.histogram("x", [1], bins=bins)  # type: ignore[arg-type]
        for edges in ([1], [2, 1], [0, float("nan")]):
            with pytest.raises(TypeError):
                session.media.histogram("x", [1], edges=edges)


class TestTables:
    @pytest.mark.parametrize(
        ("value", "columns", "names", "rows"),
        [
            ([[1, "x"], [2.5, None]], None, ["0", "1"], [[1, "x"], [2.5, None]]),
            ([[1, 2]], ["a", "b"], ["a", "b"], [[1, 2]]),
            ([{"a": 1}, {"b": True}], None, ["a", "b"], [[1, None], [None, True]]),
            ({"a": [1, 2], "b": np.array([3, 4])}, None, ["a", "b"], [[1, 3], [2, 4]]),
            (np.eye(2), None, ["0", "1"], [[1, 0], [0, 1]]),
            ([[np.float32(1.5), 10**30]], None, ["0", "1"], [[1.5, str(10**30)]]),
            ([], ["a"], ["a"], []),
        ],
    )
    def test_rows_and_columns(
        self, session: Session, tmp_path: Path, value: Any, columns: Any, names: Any, rows: Any
    ) -> None:
        session.media.table("t", value, 1, columns=columns)
        ((record, data),) = shown(tmp_path)
        assert json.loads(data) == {"columns": names, "data": rows}
        assert record["facts"] == {"rows": len(rows), "columns": len(names), "left_out": 0}

    def test_only_so_many_rows(self, session: Session, tmp_path: Path) -> None:
        session.media.table("t", {"a": range(10_001)})
        session.media.embedding("e", np.zeros((10_001, 2)), labels=range(10_001))
        for record, data in shown(tmp_path):
            assert len(json.loads(data)["data"]) == 10_000
            assert record["facts"]["left_out"] == 1

    @pytest.mark.parametrize(
        ("value", "columns"),
        [
            (3, None),
            ("ab", None),
            (["ab"], None),
            ([[1], [1, 2]], None),
            ([[1]], ["a", "b"]),
            ({"a": [1], "b": [1, 2]}, None),
            (np.zeros(3), None),
            ([[0] * 1001], None),
            ([{"a": 1}, [1]], None),
        ],
    )
    def test_what_is_no_table_is_refused(self, session: Session, value: Any, columns: Any) -> None:
        with pytest.raises(TypeError):
            session.media.table("x", value, columns=columns)

    def test_embeddings(self, session: Session, tmp_path: Path) -> None:
        session.media.embedding("e", Tensor(np.array([[1, 2.5]])), labels=np.array(["p"]))
        ((record, data),) = shown(tmp_path)
        assert json.loads(data) == {"columns": ["label", "0", "1"], "data": [["p", 1, 2.5]]}
        assert record["facts"]["dimensions"] == 2
        for value, labels in (([1, 2], None), ([[1]], ["a", "b"]), ([[0] * 1001], None)):
            with pytest.raises(TypeError):
                session.media.embedding("x", value, labels=labels)


class TestKeeping:
    def test_texts_of_any_letters(self, session: Session, tmp_path: Path) -> None:
        session.media.text("a\0\ud800", "x\ud800\0y", np.int64(3), caption="c" * 3000)
        ((record, data),) = shown(tmp_path)
        assert (data, record["step"], len(record["caption"])) == (b"x?\0y", 3, 2000)
        for value in (3, b"x"):
            with pytest.raises(TypeError, match=r"nsml\.text: 'a': a text is a str"):
                session.media.text("a", value)  # type: ignore[arg-type]

    def test_what_cannot_be_kept_under_its_name_is_told_once_and_costs_no_training(
        self, lenient: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for _ in range(2):
            lenient.media.text("n" * 600, "x")
            lenient.media.text("", "x")
            lenient.media.text("a", "x", "one")
        assert [(record["name"], record["step"]) for record, _ in shown(tmp_path)] == [
            ("a", None)
        ] * 2
        name, none, step = capsys.readouterr().err.splitlines()
        assert "is not recorded: a name has 1 to 512 characters, and this one 600" in name
        assert "'' is not recorded" in none
        assert "nsml.text: 'one' is no step" in step

    def test_what_cannot_be_shown_is_named_once_and_ends_no_training(
        self, lenient: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Hostile:
            shape = (2, 2)

            def __getattr__(self, name: str) -> Any:
                raise RuntimeError(f"no {name} today")

            def __str__(self) -> str:
                raise ValueError("no text either")

        calls = (
            "image",
            "video",
            "audio",
            "histogram",
            "embedding",
            "feature_map",
            "table",
            "text",
        )
        for _ in range(2):
            for call in calls:
                getattr(lenient.media, call)("val/x", Hostile(), 1)
                getattr(lenient.media, call)()
                getattr(lenient.media, call)(Hostile(), "x", 1, wrong=2)
        lenient.media.text("after", "x")
        assert [record["name"] for record, _ in shown(tmp_path)] == ["after"]
        said = capsys.readouterr().err.splitlines()
        assert len(said) == len(set(said)) == 3 * len(calls)
        assert all(f"nsml.{call}: 'val/x' is not recorded: " in "\n".join(said) for call in calls)

    def test_what_a_signal_handler_raises_reaches_the_program(self, lenient: Session) -> None:
        class TimesUpError(Exception):
            pass

        def times_up(*_: object) -> None:
            raise TimesUpError

        class Slow:
            def item(self) -> float:
                signal.raise_signal(signal.SIGUSR1)
                return 1.0

            detach = item

        before = signal.signal(signal.SIGUSR1, times_up)
        try:
            for call in (
                lenient.media.image,
                lambda name, value: lenient.reporter.report(loss=value),
            ):
                with pytest.raises(TimesUpError):
                    call("x", Slow())
        finally:
            signal.signal(signal.SIGUSR1, before)

    @pytest.mark.parametrize(
        ("call", "value", "said"),
        [
            ("table", 3, "rows of cells, dicts, a dict of columns or a data frame, not an object"),
            ("image", np.zeros(3), "an image is HxW, .*: not 3"),
            ("histogram", "x", "no array"),
            ("audio", np.zeros((2, 2, 2)), "audio is N"),
        ],
    )
    def test_a_value_that_does_not_fit_is_refused_with_the_call_and_the_name(
        self, session: Session, call: str, value: Any, said: str
    ) -> None:
        with pytest.raises(TypeError, match=rf"^nsml\.{call}: 'val/x': .*{said}"):
            getattr(session.media, call)("val/x", value)
        with pytest.raises(TypeError, match=rf"^nsml\.{call}: .*'value'"):
            getattr(session.media, call)(3)
        with pytest.raises(
            TypeError, match=r"^nsml\.text: 'a': an object of type object is no step"
        ):
            session.media.text("a", "x", object())

    def test_the_same_again_is_another_file(self, session: Session, tmp_path: Path) -> None:
        for _ in range(3):
            session.media.text("a", "same")
        assert len({record["file"] for record, _ in shown(tmp_path)}) == 3

    def test_a_disk_that_refuses_costs_no_training(
        self, session: Session, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "media").write_text("in the way")
        session.media.text("a", "x")
        (tmp_path / "media").unlink()
        session.media.text("b", "y")
        assert [record["name"] for record, _ in shown(tmp_path)] == ["b"]
        assert dropped(tmp_path) == 1
        assert "text a is lost, training goes on" in capfd.readouterr().err

    def test_only_so_much(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv("NSML_MEDIA_FILES", "3")
        monkeypatch.setenv("NSML_MEDIA_BYTES", "10")
        session = Session(str(tmp_path), "anna/digits/3")
        for text in ("123456", "too long", "1", "2", "one too many"):
            session.media.text("a", text)
        assert [data for _, data in shown(tmp_path)] == [b"123456", b"1", b"2"]
        session.media.video("v", b"\0\0\0\x18ftyp" + bytes(64 << 20))
        session.reporter.report(a=1)
        assert dropped(tmp_path) == 3
        said = capfd.readouterr().err
        assert "NSML_MEDIA_FILES" in said
        assert "NSML_MEDIA_BYTES" in said

    def test_processes_after_a_fork(self, tmp_path: Path) -> None:
        program = (
            "import os, nsml\nnsml.text('a', 'x')\n"
            "if os.fork() == 0:\n    nsml.text('b', 'x')\n    os._exit(0)\nos.wait()\n"
        )
        environment = {**os.environ, "NSML_RUN_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
        assert sorted(record["name"] for record, _ in shown(tmp_path)) == ["a", "b"]

    def test_outside_of_a_session_values_are_looked_at_and_go_nowhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        session = Session("", "")
        session.media.image("a", [[1]])
        with pytest.raises(TypeError):
            session.media.image("a", [["b"]])
        assert list(tmp_path.iterdir()) == []

    def test_nothing_is_imported_for_it(self, tmp_path: Path) -> None:
        program = (
            "import sys, nsml\nnsml.image('a', [[1, 2]])\nnsml.histogram('h', [1, 2])\n"
            "nsml.audio('s', [0.0])\nnsml.table('t', [[1]])\n"
            "print([m for m in ('numpy', 'PIL', 'torch', 'typing', 'grpc') if m in sys.modules])"
        )
        environment = {**os.environ, "NSML_RUN_DIR": str(tmp_path)}
        command = [sys.executable, "-S", "-c", program]
        environment["PYTHONPATH"] = str(Path(__file__).parents[3])
        done = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == "[]"
