"""Embedding vectors as dots in a plane, by label. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsml.common.text import visible
from nsml.view.plot import BLANK, DOTS, Piece, letter

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_VECTORS: Final = 2_000
"""Most drawn vectors: of more, a sample at equal distances."""
MOST_DIMENSIONS: Final = 256
"""Most dimensions used: the first."""
MOST_LABELS: Final = 6
"""Most labels with a colour and a letter of their own: the most frequent."""
_SAMPLE: Final = 300
_TURNS: Final = 12


@dataclass(frozen=True, slots=True)
class Embedding:
    """Points in a plane, each with the index of its label in `labels`; None: a rare label, or none."""

    places: Sequence[tuple[float, float]]
    numbers: Sequence[int | None]
    labels: Sequence[str]
    vectors: int
    dimensions: int


def embedding(data: bytes) -> Embedding:
    """Project an embedding's content onto its plane of greatest variance; raises ValueError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is no JSON, or too deep") from error
    match value:
        case {"columns": [*names], "data": [*rows]}:
            pass
        case _:
            raise ValueError("it is no embedding")
    has_labels = names[:1] == ["label"]
    step = max(len(rows) // MOST_VECTORS, 1)
    sound = [row for row in rows[::step][:MOST_VECTORS] if _is_sound(row, len(names), has_labels)]
    vectors = [[float(one) for one in row[has_labels:][:MOST_DIMENSIONS]] for row in sound]
    if not vectors or not vectors[0]:
        raise ValueError("it has no vectors of finite numbers")
    said = [visible(str(row[0])) for row in sound] if has_labels else []
    counts: dict[str, int] = {}
    for label in said:
        counts[label] = counts.get(label, 0) + 1
    labels = sorted(sorted(counts, key=lambda one: -counts[one])[:MOST_LABELS])
    number = {label: place for place, label in enumerate(labels)}
    return Embedding(
        places=plane(vectors),
        numbers=[number.get(label) for label in said] or [0] * len(vectors),
        labels=labels,
        vectors=len(rows),
        dimensions=len(names) - has_labels,
    )


def _is_sound(row: Any, size: int, has_labels: bool) -> bool:
    if not isinstance(row, list) or len(row) != size:
        return False
    return all(isinstance(one, int | float) and abs(one) < 1e100 for one in row[has_labels:])


def plane(vectors: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Project vectors onto their first two principal components.

    Vectors of one or two numbers are unchanged.
    """
    if len(vectors[0]) == 1:
        return [(one[0], 0.0) for one in vectors]
    if len(vectors[0]) == 2:
        return [(one[0], one[1]) for one in vectors]
    count = len(vectors)
    most = max((abs(value) for one in vectors for value in one), default=0.0) or 1.0
    scaled = [[value / most for value in one] for one in vectors]
    middle = [math.fsum(values) / count for values in zip(*scaled, strict=True)]
    centred = [[value - mean for value, mean in zip(one, middle, strict=True)] for one in scaled]
    sample = centred[:: max(count // _SAMPLE, 1)]
    first = _direction(sample, [])
    second = _direction(sample, [first])
    return [(_dot(one, first), _dot(one, second)) for one in centred]


def _direction(
    vectors: Sequence[Sequence[float]], others: Sequence[Sequence[float]]
) -> list[float]:
    """Return the direction of greatest variance orthogonal to the others (power iteration)."""
    size = len(vectors[0])
    found = _unit([1.0 + math.sin(1.7 * place) for place in range(size)], others)
    for _ in range(_TURNS):
        weights = [_dot(one, found) for one in vectors]
        turned = [0.0] * size
        for weight, one in zip(weights, vectors, strict=True):
            for place, value in enumerate(one):
                turned[place] += weight * value
        if not any(turned):
            break
        found = _unit(turned, others)
    return found


def _unit(vector: Sequence[float], others: Sequence[Sequence[float]]) -> list[float]:
    for other in others:
        share = _dot(vector, other)
        vector = [value - share * along for value, along in zip(vector, other, strict=True)]
    length = math.sqrt(_dot(vector, vector))
    return [value / length for value in vector] if length > 1e-12 else [0.0] * len(vector)


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(map(float.__mul__, one, other))


def scatter(found: Embedding, *, columns: int, rows: int) -> list[list[Piece]]:
    """Draw dots in cells, with a legend of labels below; a cell has the colour of its last dot."""
    columns, rows = max(columns, 1), max(rows - 1, 1)  # a widget may have no room yet
    spans = [(min(values), max(values)) for values in zip(*found.places, strict=True)]
    masks = [[0] * columns for _ in range(rows)]
    owners: list[list[int | None]] = [[None] * columns for _ in range(rows)]
    for place, number in zip(found.places, found.numbers, strict=True):
        x, y = (
            round((value - low) / (high - low) * (dots - 1)) if high > low else dots // 2
            for value, (low, high), dots in zip(place, spans, (2 * columns, 4 * rows), strict=True)
        )
        y = 4 * rows - 1 - y
        masks[y // 4][x // 2] |= DOTS[y % 4][x % 2]
        owners[y // 4][x // 2] = number
    lines = [
        [Piece(text=chr(BLANK + mask), series=owner) for mask, owner in zip(*pair, strict=True)]
        for pair in zip(masks, owners, strict=True)
    ]
    legend = [
        Piece(text=f"{letter(number)} {label}  ", series=number)
        for number, label in enumerate(found.labels)
    ]
    return [*lines, legend]
