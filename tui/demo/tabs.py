"""Checkpoints, media, usage and code of the demo's sessions: all made up from the session and the time."""

from __future__ import annotations

import json
import math
import random
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from nsml.common.units import parse_duration
from nsml.content.manifest import Entry
from nsml.v1.checkpoints_pb2 import (
    CHECKPOINT_STATE_DURABLE,
    CHECKPOINT_STATE_SAVED,
    Checkpoint,
)
from nsml.v1.media_pb2 import MEDIA_STATE_DURABLE, MEDIA_STATE_SAVED, Media
from nsml.v1.sessions_pb2 import ReportedConfig
from nsml.v1.telemetry_pb2 import ReadTelemetryResponse
from tui.demo.machines import figures_of
from tui.demo.scenery import NODES
from tui.demo.scripted_session import stamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tui.demo.scripted_session import ScriptedSession

Colour: TypeAlias = "tuple[int, int, int]"

SAVES_EVERY_S: Final = 900.0
SHOWS_EVERY_S: Final = 300.0
DURABLE_AFTER_S: Final = 20.0
CELLS: Final = 240
_TILE: Final = 32
_TILES: Final = (4, 2)
_SORTS: Final = ("oak", "beech", "alder", "rowan")
_SHOWN: Final[Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    "leaves": (
        ("samples", "image", "image/png"),
        ("val/confusion", "image", "image/png"),
        ("features", "embedding", "application/json"),
    ),
    "tales": (("told", "text", "text/plain"), ("lengths", "table", "application/json")),
    "waves": (
        ("spectrum", "image", "image/png"),
        ("weights", "histogram", "application/json"),
        ("denoised", "audio", "audio/wav"),
    ),
    "maze": (("map", "image", "image/png"), ("episode", "video", "video/mp4")),
}
"""By dataset: name, kind and media type of its programs' media."""
_TALE: Final = (
    "Once there was a hedge that had never been cut. It grew along the road and over it, and those",
    "who came by had to stoop; the tall ones said so to one another, the small ones never noticed.",
    "In spring a wren looked for a place. Here, said the hedge, nobody will find you. That, said the",
    "wren, is what every hedge says. It stayed, and for a while it was quiet on that side of the road.",
)


def config(part: ScriptedSession) -> ReportedConfig:
    """Return what its program reported to W&B: only the one that pretrains does."""
    found = ReportedConfig()
    if part.program.dataset == "tales":
        optimizer = {"name": "adamw", "betas": [0.9, 0.95], "weight_decay": 0.1}
        values = {"optimizer": optimizer, "precision": "bf16", "seq_len": 4096}
        found.runs.add(origin="wandb", json=json.dumps(values))
    return found


def saved(part: ScriptedSession, origin: float, now: float) -> list[Checkpoint]:
    """Its checkpoints, oldest first."""
    found = []
    for number in range(1, int(part.ran_s(now) // SAVES_EVERY_S) + 1):
        report = int(number * SAVES_EVERY_S / part.program.every_s)
        ran_s = number * SAVES_EVERY_S
        is_new = now - part.started - ran_s < DURABLE_AFTER_S
        one = Checkpoint(
            name=f"step-{report * part.program.steps}",
            session=part.name,
            state=CHECKPOINT_STATE_SAVED if is_new else CHECKPOINT_STATE_DURABLE,
            digest="" if is_new else f"{zlib.crc32(f'{part.id} {number}'.encode()):08x}" * 8,
            size_bytes=(90 + 13 * part.gpus) * 1024**2 + part.number,
            file_count=2,
            elapsed_s=SAVES_EVERY_S,
            step=report * part.program.steps,
        )
        one.summary.update({name: part.value(name, report) for name in part.program.metrics})
        stamp(one.saved_at, origin + part.started + ran_s)
        found.append(one)
    return found


def telemetry(
    part: ScriptedSession,
    origin: float,
    now: float,
    span: str,
) -> ReadTelemetryResponse:
    """Usage of its devices and processes."""
    answer = ReadTelemetryResponse()
    until = min(now, part.stopped)
    since = max(until - parse_duration(span), part.placed) if span else part.placed
    if until <= since:
        return answer
    stamp(answer.since, origin + since)
    stamp(answer.until, origin + until)
    # Middles of cells that do not move as time passes.
    each = max((until - since) / CELLS, 1.0)
    first = math.ceil(since / each)
    moments = [each * place for place in range(first, math.floor(until / each) + 1)]
    for node, devices in part.places:
        for device in devices:
            _series(
                answer,
                origin,
                {at: figures_of(node, device, part, at) for at in moments},
                node=NODES[node],
                device_uuid=f"GPU-demo-{node}-{device}",
                device_index=device,
                thousandths=1000,
                attempt=1,
                simulated=True,
            )
    for rank, (node, _) in enumerate(part.places):
        used = {at: _taken(part, rank, at) for at in moments if part.started <= at}
        _series(answer, origin, used, node=NODES[node], rank=rank, attempt=1)
    return answer


def _series(
    answer: ReadTelemetryResponse,
    origin: float,
    told: Mapping[float, Mapping[str, float]],
    **facts: Any,
) -> None:
    series = answer.series.add(at=[origin + at for at in told], **facts)
    for name in next(iter(told.values()), {}):
        values = [each[name] for each in told.values()]
        series.figures.add(name=name, least=values, most=values, mean=values)


def _taken(part: ScriptedSession, rank: int, at: float) -> dict[str, float]:
    swing = math.sin(at / 40 + part.number + rank)
    return {
        "cpu_cores": 3.4 * part.gpus + 0.9 * swing,
        "memory_used_bytes": (11 * part.gpus + 2 * min((at - part.started) / 600, 3)) * 1024.0**3,
        "process_count": 2 + 4 * part.gpus,
    }


# Its code


def code(part: ScriptedSession) -> dict[str, list[str]]:
    """The lines of each file, by path."""
    program = part.program
    names = ", ".join(
        f"{name.replace('/', '_')}={name.replace('/', '_')}" for name in program.metrics
    )
    options = [word.lstrip("-") for word in program.args.split() if word.startswith("--")]
    return {
        ".nsmlignore": ["*.pyc", "wandb/", "checkpoints/"],
        "README.md": [f"# {program.dataset}", "", f"    nsml run -d {program.dataset} -e {program.entry}"],
        f"configs/{program.dataset}.toml": [f'dataset = "{program.dataset}"', f"every = {program.steps}"],
        program.entry: [
            '"""Made up for the demo."""',
            "",
            "import argparse",
            "",
            "import nsml",
            "from model import Net, batches",
            "",
            "parser = argparse.ArgumentParser()",
            *(f'parser.add_argument("--{name}", type=float)' for name in options),
            "args = parser.parse_args()",
            "",
            f'net = Net("/data/{program.dataset}")',
            f"for step, batch in enumerate(batches(net), {program.steps}):",
            f"\t{names.split('=')[0]} = net.learn(batch)",
            f"\tnsml.report(step=step, {names})",
            f"\tif step % {int(SAVES_EVERY_S / program.every_s) * program.steps} == 0:",
            "\t\tnsml.save(step)",
        ],
        "model.py": ['"""The network."""', "", "class Net:", f"\tlayers = {4 + 2 * part.gpus}"],
        "requirements.txt": ["torch>=2.4", "fern>=8", "numpy"],
    }  # fmt: skip


def files(part: ScriptedSession) -> list[Entry]:
    """Its packed files."""
    return [
        Entry(path=path, mode=0o644, size=len("\n".join(lines)) + 1, chunks=())
        for path, lines in sorted(code(part).items())
    ]


# Its media


def shown(part: ScriptedSession, origin: float, now: float) -> list[Media]:
    """Its media, oldest first."""
    found = []
    for number in range(1, int(part.ran_s(now) // SHOWS_EVERY_S) + 1):
        ran_s = number * SHOWS_EVERY_S
        is_new = now - part.started - ran_s < DURABLE_AFTER_S
        for name, kind, content_type in _SHOWN[part.program.dataset]:
            data = content(part, f"1.0.{name}-{number}") or b"\0" * 90_000
            one = Media(
                name=name,
                kind=kind,
                state=MEDIA_STATE_SAVED if is_new else MEDIA_STATE_DURABLE,
                step=int(ran_s / part.program.every_s) * part.program.steps,
                attempt=1,
                content_type=content_type,
                size_bytes=len(data),
                root="" if is_new else "demo",
                file=f"{name}-{number}",
            )
            one.facts.update(_FACTS.get(kind, {}))
            stamp(one.time, origin + part.started + ran_s)
            found.append(one)
    return found


_FACTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "audio": {"seconds": 4, "sample_rate": 16_000, "channels": 1},
    "video": {"frames": 96, "fps": 24},
    "embedding": {"rows": 240, "dimensions": 8},
}


def content(part: ScriptedSession, what: str) -> bytes | None:
    """Content of a media file, by its key; None if there is none."""
    file = what.split(".", 2)[-1]
    name, _, number = file.rpartition("-")
    kinds = {known: kind for known, kind, _ in _SHOWN[part.program.dataset]}
    if name not in kinds or not number.isdecimal():
        return None
    done = min(int(number) * SHOWS_EVERY_S / max(part.runs_s, 1.0), 1.0)
    chance = random.Random(zlib.crc32(f"{part.number} {file}".encode()))  # noqa: S311 - a story
    make = _MADE.get(kinds[name])
    return None if make is None else make(name, done, chance)


def _text(_name: str, done: float, chance: random.Random) -> bytes:
    told = " ".join(_TALE).split()
    kept = [word if chance.random() < 0.3 + 0.7 * done else "..." for word in told]
    return "\n".join(" ".join(kept[at : at + 16]) for at in range(0, len(kept), 16)).encode()


def _table(_name: str, done: float, _chance: random.Random) -> bytes:
    rows = [[word, len(word), round(done * len(word), 2)] for word in _TALE[0].split()]
    return json.dumps({"columns": ["word", "letters", "learned"], "data": rows}).encode()


def _histogram(_name: str, done: float, _chance: random.Random) -> bytes:
    bell = [math.exp(-(((place - 16) / (3 + 6 * done)) ** 2)) for place in range(32)]
    edges = [round(0.05 * (place - 16), 2) for place in range(33)]
    return json.dumps({"edges": edges, "counts": [int(900 * one) for one in bell]}).encode()


def _embedding(_name: str, done: float, chance: random.Random) -> bytes:
    data = {"columns": ["label", *"01234567"], "data": _vectors(done, chance)}
    return json.dumps(data).encode()


def _vectors(done: float, chance: random.Random) -> list[list[Any]]:
    """Four sorts that separate as they are learned."""
    found: list[list[Any]] = []
    for place in range(240):
        sort = place % len(_SORTS)
        middle = [math.cos(1.3 * sort * (1 + axis) + axis) for axis in range(8)]
        spread = 1.5 - 1.2 * done
        found.append(
            [_SORTS[sort], *(round(4 * done * m + chance.gauss(0, spread), 4) for m in middle)]
        )
    return found  # fmt: skip


def _image(name: str, done: float, chance: random.Random) -> bytes:
    if name == "val/confusion":
        return _png(80, 80, lambda x, y: _confused(x // 8, y // 8, done))
    if name == "spectrum":
        return _png(128, 64, lambda x, y: _spectrum(x, y, done))
    if name == "map":
        walls = [[chance.random() < 0.3 for _ in range(24)] for _ in range(12)]
        return _png(96, 48, lambda x, y: _walked(x, y, walls, done))
    noise = [chance.randrange(-90, 90) for _ in range(4096)]
    width, height = (_TILE * count for count in _TILES)
    return _png(width, height, lambda x, y: _leaf(x, y, done, noise[(x * 67 + y * 131) % 4096]))


def _leaf(x: int, y: int, done: float, noise: int) -> Colour:
    """One of eight leaves, out of the noise."""
    sort = x // _TILE + _TILES[0] * (y // _TILE)
    u, v = (x % _TILE) / _TILE - 0.5, (y % _TILE) / _TILE - 0.5
    turn = 0.4 * sort
    along = u * math.cos(turn) + v * math.sin(turn)
    across = v * math.cos(turn) - u * math.sin(turn)
    is_leaf = abs(across) < 0.26 * math.cos(3.3 * along) and abs(along) < 0.47
    is_vein = abs(across) < 0.02 or abs(abs(across) - 0.5 * (along * 6 % 1) / 3) < 0.012
    inside = (60 + 14 * sort, 150 - 6 * sort, 50)
    clean = (235, 232, 220) if not is_leaf else (205, 220, 150) if is_vein else inside
    red, green, blue = (round(one * done**0.5 + (128 + noise) * (1 - done**0.5)) for one in clean)
    return _bounded(red, green, blue)


def _confused(column: int, row: int, done: float) -> Colour:
    is_right = column == row
    share = (0.1 + 0.85 * done) if is_right else 0.5 * (1 - done) * ((column * 7 + row * 3) % 5) / 5
    return _bounded(round(30 + 225 * share), round(30 + 180 * share), round(90 + 40 * share))


def _spectrum(x: int, y: int, done: float) -> Colour:
    loud = sum(
        math.exp(-(((y - 12 * k - 6 * math.sin(x / 9 + k)) / 2.5) ** 2)) for k in range(1, 5)
    )
    loud += (1 - done) * (((x * 31 + y * 17) % 97) / 97) * 0.6
    return _bounded(round(250 * loud), round(120 * loud * loud), round(60 + 80 * (1 - loud)))


def _walked(x: int, y: int, walls: list[list[bool]], done: float) -> Colour:
    is_wall = walls[y // 4][x // 4]
    way = 24 + 18 * math.sin(x / 11)
    is_way = abs(y - way) < 1.5 and x < 96 * done
    return (240, 180, 40) if is_way else (70, 70, 90) if is_wall else (215, 215, 205)


def _bounded(red: int, green: int, blue: int) -> Colour:
    return min(max(red, 0), 255), min(max(green, 0), 255), min(max(blue, 0), 255)


def _png(width: int, height: int, pixel: Callable[[int, int], Colour]) -> bytes:
    """Encode these pixels."""

    def lines() -> Iterator[bytes]:
        for y in range(height):
            yield b"\0" + bytes(value for x in range(width) for value in pixel(x, y))

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(lines()))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


_MADE: Final[Mapping[str, Callable[[str, float, random.Random], bytes]]] = {
    "image": _image,
    "text": _text,
    "table": _table,
    "histogram": _histogram,
    "embedding": _embedding,
}
