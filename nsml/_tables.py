"""Rows of cells from lists, dicts, columns, data frames and arrays."""

from __future__ import annotations

from nsml._arrays import flat, is_array, is_tensor, shape_of, unwrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    Rows = List[List[Any]]

MOST_ROWS = 10_000
MOST_COLUMNS = 1_000
_MOST_CELL_CHARS = 1_000


def rows_of(value: Any, columns: Optional[Sequence[str]]) -> Tuple[List[str], Rows, int]:
    """Return the names of the columns, the first rows, and the number of all rows.

    Raises:
        TypeError: the value is no table, or rows and columns do not fit.
    """
    if hasattr(value, "to_dict") and hasattr(value, "columns"):  # a data frame
        total = len(value)
        names, rows = _by_column({name: value[name][:MOST_ROWS] for name in value.columns})
    elif isinstance(value, dict):
        names, rows = _by_column(value)
        total = len(_listed(next(iter(value.values()), ())))
    else:
        if is_array(value) or is_tensor(value):
            value = unwrapped(value)
            if len(shape_of(value)) != 2:
                raise TypeError("a table of an array has rows and columns")
        if not hasattr(value, "__iter__"):
            raise TypeError(
                "a table is rows of cells, dicts, a dict of columns or a data frame, "
                f"not an object of type {type(value).__name__}"
            )
        given = _listed(value)
        total = len(given)
        names, rows = _by_row(given[:MOST_ROWS], columns)
    if columns is not None:
        if len(columns) != len(names):
            raise TypeError(f"{len(columns)} names for {len(names)} columns")
        names = [str(name) for name in columns]
    if len(names) > MOST_COLUMNS:
        raise TypeError(f"{len(names)} columns are more than the {MOST_COLUMNS} taken")
    if any(len(row) != len(names) for row in rows):
        raise TypeError("the rows of a table have as many cells as it has columns")
    cells = [[_cell(cell) for cell in row] for row in rows]
    return [name[:_MOST_CELL_CHARS] for name in names], cells, total


def vectors_of(value: Any, labels: Any) -> Tuple[List[str], Rows, int]:
    """The same for NxD numbers: a column each, after one of labels, if any.

    Raises:
        TypeError: the value is no such array, or the numbers of labels and vectors differ.
    """
    value = unwrapped(value)
    shape = shape_of(value)
    if len(shape) != 2:
        raise TypeError(f"an embedding is NxD, not {'x'.join(map(str, shape)) or 'a number'}")
    if shape[1] > MOST_COLUMNS:
        raise TypeError(f"{shape[1]} dimensions are more than the {MOST_COLUMNS} taken")
    rows = [[_cell(entry) for entry in flat(row)] for row in value[:MOST_ROWS]]
    columns = [str(number) for number in range(shape[1])]
    if labels is not None:
        named = [_cell(label) for label in _listed(labels)]
        if len(named) != shape[0]:
            raise TypeError(f"{len(named)} labels for {shape[0]} vectors")
        columns.insert(0, "label")
        rows = [[label, *row] for label, row in zip(named, rows)]
    return columns, rows, shape[0]


def _by_column(value: Dict[Any, Any]) -> Tuple[List[str], Rows]:
    columns = [_listed(cells) for cells in value.values()]
    if len({len(cells) for cells in columns}) > 1:
        raise TypeError("the columns of a table are of one length")
    rows = [list(row) for _, row in zip(range(MOST_ROWS), zip(*columns))]
    return [str(name) for name in value], rows


def _by_row(given: List[Any], columns: Optional[Sequence[str]]) -> Tuple[List[str], Rows]:
    if given and all(isinstance(row, dict) for row in given):
        names = list(dict.fromkeys(str(name) for row in given for name in row))
        return names, [_ordered(row, names) for row in given]
    if any(isinstance(row, (str, bytes, dict)) or not hasattr(row, "__len__") for row in given):
        raise TypeError("the rows of a table are lists or dicts")
    rows = [_listed(row) for row in given]
    width = len(rows[0]) if rows else len(columns or ())
    return [str(number) for number in range(width)], rows


def _ordered(row: Dict[Any, Any], names: Sequence[str]) -> List[Any]:
    by_name = {str(name): cell for name, cell in row.items()}
    return [by_name.get(name) for name in names]


def _listed(value: Any) -> List[Any]:
    if is_tensor(value):
        value = unwrapped(value)
    if not isinstance(value, (list, tuple)) and hasattr(value, "tolist"):
        value = value.tolist()
    return list(value)


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_MOST_CELL_CHARS]
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value
    if hasattr(value, "item"):
        try:
            return _cell(value.item())
        except (TypeError, ValueError, RuntimeError, RecursionError):
            pass
    return str(value)[:_MOST_CELL_CHARS]
