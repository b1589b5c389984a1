"""Map of all devices, readable without colours: a character each, more if there is room. Pure."""

from __future__ import annotations

import string
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.common.text import fit, fit_end, fit_middle, pad, visible, width
from nsml.common.units import ago_within
from nsml.v1 import nodes_pb2
from nsml.view.nodes import NodeDevice, is_free

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsml.v1.nodes_pb2 import Node

MOST_NAME: Final = 40
"""Most cells of a node's name."""
SHORT_NAME: Final = 14
_SHORTER_NAMES: Final = (SHORT_NAME, 10, 7)
"""Lengths to which names are shortened in the middle if whole ones leave too little room, while they stay distinct."""
MOST_CELLS: Final = 16
"""Most cells of a node's devices; if it has more, the last cell is a `+`."""
LETTER, SPACED, VALUE = 1, 2, 4
"""Cells of a device, with its gap: a character, the same with a gap, and the value."""
_HOLDERS: Final = (20, 13, 9, 6)
"""The same with the device's holder below the value."""
_OF_A_SESSION: Final = 9
"""Least cells to show the session, and not its owner."""
_COOL, _HOT_STEP = 30.0, 6.0
_HOUR_S, _DAY_S = 3_600.0, 86_400.0
_HELD_LITTLE: Final = 2
_HOT: Final = 9


class Measure(StrEnum):
    """The value shown in cells."""

    UTILIZATION = "util"
    MEMORY = "mem"
    TEMPERATURE = "temp"
    POWER = "power"
    OWNER = "owner"
    AGE = "age"


class Holder(NamedTuple):
    """The session on a device."""

    owner: str
    since: float
    is_zombie: bool


class Cell(NamedTuple):
    """A device: its character, and its colour by name."""

    letter: str
    colour: str = ""


MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "X": ("node lost", "red"),
    "!": ("errors", "red"),
    "Z": ("zombie", "red"),
    "W": ("withheld", "yellow"),
    "?": ("not measured", "yellow"),
    ".": ("free", ""),
}
"""Characters that replace a level, and their colours."""
_SCALES: Final[Mapping[Measure, str]] = {
    Measure.UTILIZATION: "0-9: tenths of its time",
    Measure.MEMORY: "0-9: tenths of its memory",
    Measure.TEMPERATURE: "0-9: from 30 °C on, 6 degrees each",
    Measure.POWER: "0-9: hundreds of watts",
    Measure.AGE: "held for m minutes, h hours, d days",
}


def owners_of(holders: Mapping[str, Holder]) -> dict[str, str]:
    """Assign each owner a letter: of their name if free, else of the alphabet; `+` if none is left."""
    letters: dict[str, str] = {}
    for owner in sorted({one.owner for one in holders.values()}):
        wanted = [*owner.lower(), *string.ascii_lowercase]
        left = set(string.ascii_lowercase) - {*letters.values()}
        letters[owner] = next((one for one in wanted if one in left), "+")
    return letters


def mark_of(item: NodeDevice, holder: Holder | None) -> str:
    """Return the mark of an unusual or free device; "" for a healthy one in use."""
    sample = item.use.sample
    if item.node.state in {nodes_pb2.NODE_STATE_SILENT, nodes_pb2.NODE_STATE_FENCED}:
        return "X"
    if sample.ecc_uncorrected or sample.last_xid:
        return "!"
    if holder is not None and holder.is_zombie:
        return "Z"
    if item.use.device.withheld or item.node.state == nodes_pb2.NODE_STATE_HELD:
        return "W"
    if is_free(item):
        return "."
    return "" if item.use.HasField("sample") else "?"


def _level(share: float) -> int:
    return min(max(int(10 * share), 0), 9)


def _utilization(item: NodeDevice) -> Cell:
    level = _level(item.use.sample.utilization_percent / 100)
    return Cell(str(level), "yellow" if level < _HELD_LITTLE else "green")


def _memory_share(item: NodeDevice) -> float:
    whole = item.use.device.memory_bytes
    return item.use.sample.memory_used_bytes / whole if whole else 0.0


def _memory(item: NodeDevice) -> Cell:
    return Cell(str(_level(_memory_share(item))), "cyan")


def _temperature(item: NodeDevice) -> Cell:
    degrees = item.use.sample.temperature_celsius
    level = _level((degrees - _COOL) / _HOT_STEP / 10)
    return Cell(str(level), "red" if level >= _HOT else "cyan")


def _power(item: NodeDevice) -> Cell:
    return Cell(str(_level(item.use.sample.power_watts / 1_000)), "cyan")


_VALUES: Final[Mapping[Measure, tuple[Callable[[NodeDevice], float], str]]] = {
    Measure.UTILIZATION: (lambda item: item.use.sample.utilization_percent, "%"),
    Measure.MEMORY: (lambda item: 100 * _memory_share(item), "%"),
    Measure.TEMPERATURE: (lambda item: item.use.sample.temperature_celsius, "°C"),
    Measure.POWER: (lambda item: item.use.sample.power_watts, " W"),
}
"""The measured value, and its unit."""
_UNITS: Final[Mapping[Measure, str]] = {
    Measure.UTILIZATION: "percent of its time",
    Measure.MEMORY: "percent of its memory",
    Measure.TEMPERATURE: "°C",
    Measure.POWER: "watts",
    Measure.AGE: "for how long it is held",
}
_LEVELS: Final[Mapping[Measure, Callable[[NodeDevice], Cell]]] = {
    Measure.UTILIZATION: _utilization,
    Measure.MEMORY: _memory,
    Measure.TEMPERATURE: _temperature,
    Measure.POWER: _power,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """The contents of cells at a time.

    Attributes:
        holders: sessions on devices, by name.
        letters: by owner.
    """

    measure: Measure
    now: float
    holders: Mapping[str, Holder]
    letters: Mapping[str, str]

    def cell(self, item: NodeDevice) -> Cell:
        """Return the cell of a device."""
        holder = self._holder(item)
        mark = mark_of(item, holder)
        if mark and not (mark == "?" and self.measure not in _LEVELS):
            return Cell(mark, MARKS[mark][1])
        if self.measure in _LEVELS:
            return _LEVELS[self.measure](item)
        if holder is None:
            return Cell("?", "yellow")
        if self.measure is Measure.OWNER:
            return Cell(self.letters.get(holder.owner, "+"), "cyan")
        held_s = self.now - holder.since
        return Cell("m" if held_s < _HOUR_S else "h" if held_s < _DAY_S else "d", "cyan")

    def lines(self, node: Node, each: int) -> list[list[Cell]]:
        """Return the cells of a node's devices, as lines of a map with `each` characters per device."""
        every = [NodeDevice(node=node, use=use) for use in node.devices]
        more = len(every) > MOST_CELLS
        shown = every[: MOST_CELLS - 1] if more else every
        rows = [[self._sized(item, each) for item in shown]]
        if each in _HOLDERS:
            rows.append([Cell(pad(self._who(item, each - 1), each)) for item in shown])
        if more:
            rows[0].append(Cell(pad("+", each)))
        return rows

    def _sized(self, item: NodeDevice, each: int) -> Cell:
        letter, colour = self.cell(item)
        if each <= SPACED:
            return Cell(pad(letter, each), colour)
        if letter in MARKS:
            words = MARKS[letter][0]
            text = words if each in _HOLDERS and width(words) < each else letter
        else:
            text = self._value(item, letter, each)
        if each == VALUE:
            return Cell(text.rjust(each - 1) + " ", colour)
        return Cell(pad(fit(text, each - 1), each), colour)

    def _value(self, item: NodeDevice, letter: str, each: int) -> str:
        if self.measure in _VALUES:
            value, unit = _VALUES[self.measure]
            text = f"{value(item):.0f}"
            return text + unit if width(text + unit) < each and each > VALUE else text
        holder = self._holder(item)
        if holder is None or (self.measure is Measure.OWNER and each == VALUE):
            return letter
        if self.measure is Measure.OWNER:
            return visible(holder.owner)
        return _held_for(self.now - holder.since)

    def _who(self, item: NodeDevice, cells: int) -> str:
        """Return the session on a device, and the number of others; in a narrow cell its owner."""
        names = [visible(name) for name in item.use.sessions if name]
        if not names:
            return fit("others", cells) if item.use.sessions else ""
        if cells < _OF_A_SESSION - 1:
            holder = self._holder(item)
            if holder is None:
                return fit(names[0].partition("/")[0], cells)
            is_said = self.measure is Measure.OWNER
            return fit(
                _held_for(self.now - holder.since) if is_said else visible(holder.owner), cells
            )
        more = f" +{len(item.use.sessions) - 1}" if len(item.use.sessions) > 1 else ""
        return fit_middle(names[0], cells - len(more)) + more

    def _holder(self, item: NodeDevice) -> Holder | None:
        known = (self.holders[name] for name in item.use.sessions if name in self.holders)
        return next(known, None)

    def legend(self, each: int = LETTER) -> str:
        """Explain a map with `each` characters per device."""
        if self.measure is Measure.OWNER and each <= VALUE:
            owners = ", ".join(f"{letter} {owner}" for owner, letter in self.letters.items())
            scale = owners or "no GPU is held"
        elif self.measure is Measure.OWNER:
            scale = "who holds it"
        else:
            scale = (_SCALES if each <= SPACED else _UNITS)[self.measure]
        marks = "  ".join(f"{mark} {words}" for mark, (words, _) in MARKS.items())
        return f"{self.measure.value}  {scale}   {marks}"


def _held_for(seconds: float) -> str:
    return ago_within(seconds, 3)


class Titles(NamedTuple):
    """Display names of nodes: without the common domain, and shortened at the start or in the middle."""

    cells: int
    domain: int = 0
    """Letters removed at the end of each name."""
    is_by_end: bool = False

    def of(self, name: str) -> str:
        """Return the display name."""
        own = visible(name)[: -self.domain or None]
        return (fit_end if self.is_by_end else fit_middle)(own, self.cells)


class Grid(NamedTuple):
    """Layout of nodes: nodes per line, name width, devices per node, and cells per device."""

    across: int
    titles: Titles
    devices: int
    each: int = LETTER

    @property
    def cells(self) -> int:
        """Width of a node, with the gap after it."""
        return self.titles.cells + 1 + self.devices * self.each + 2

    @property
    def lines(self) -> int:
        """Lines per node: if it has two, an empty one follows."""
        return 3 if self.each in _HOLDERS else 1

    def height(self, count: int) -> int:
        """Return the lines needed for `count` nodes."""
        return -(-count // self.across) * self.lines - (self.lines > 1)

    def title(self, node: Node) -> str:
        """Return the name of a node, padded to its cells."""
        return pad(fit(self.titles.of(node.name), self.titles.cells), self.titles.cells)


def grid_of(nodes: Sequence[Node], room: int, height: int = 0) -> Grid:
    """Return the most detailed grid that fits: whole names first, then large cells. If none fits, the smallest, to be scrolled.

    `room`, `height`: available cells and lines.
    """
    most = max(max((min(len(node.devices), MOST_CELLS) for node in nodes), default=0), 1)

    def grid(titles: Titles, each: int) -> Grid:
        one = Grid(1, titles, most, each)
        return one._replace(across=max(room // one.cells, 1))

    every = _titles([node.name for node in nodes])
    for titles in every:
        for each in (*_HOLDERS, VALUE, SPACED, LETTER):
            found = grid(titles, each)
            if found.cells <= room and found.height(len(nodes)) <= height:
                return found
    usual = next((one for one in every if one.cells <= SHORT_NAME), every[-1])
    return grid(usual, LETTER)


def _titles(names: Sequence[str]) -> list[Titles]:
    """Return title layouts with distinct names, the longest first."""

    def longest(domain: int) -> int:
        taken = (width(visible(name)[: -domain or None]) for name in names)
        return min(max(taken, default=1), MOST_NAME)

    found = [Titles(longest(0))]
    domains = {name.partition(".")[2] for name in map(visible, names)}
    domain = max(map(len, domains), default=0) + 1
    if len(names) > 1 and len(domains) == 1 and domain > 1:
        found.append(Titles(longest(domain), domain))
    for cells in _SHORTER_NAMES:
        kinds = (Titles(cells, found[-1].domain, is_by_end) for is_by_end in (True, False))
        told = (one for one in kinds if len(set(map(one.of, names))) == len(set(names)))
        if cells < found[-1].cells and (one := next(told, None)) is not None:
            found.append(one)
    return found
