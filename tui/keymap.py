"""Key bindings: `keymap.toml` beside config.toml, and its format.

    preset = "vim"

    [sessions]
    filter = "ctrl+f"
    compare = ["x", "f5"]

`nsml-tui --keys` prints the ids: table and key, or both joined by a dot. The file overrides the preset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, Final

from textual.binding import Binding
from textual.keys import (
    REPLACED_KEYS,
    Keys,
    _character_to_key,
    format_key,
    key_to_character,
)  # what Textual makes of "/"
from textual.screen import ModalScreen, Screen

from nsml.common.text import visible
from nsml.common.text_files import toml_of

if TYPE_CHECKING:
    from textual.dom import DOMNode

FILE_NAME: Final = "keymap.toml"
_BACK: Final = "escape,ctrl+g"
PRESETS: Final[Mapping[str, Mapping[str, str]]] = {
    "default": {},
    "vim": {
        "table.page-down": "pagedown,ctrl+f,ctrl+d",
        "table.page-up": "pageup,ctrl+b,ctrl+u",
        "diff.page-down": "pagedown,ctrl+f,ctrl+d",
        "diff.page-up": "pageup,ctrl+b,ctrl+u",
        "text.page-down": "pagedown,ctrl+f,ctrl+d",
        "text.page-up": "pageup,ctrl+b,ctrl+u",
        # Removal must not be on a scrolling key.
        "sessions.remove": "ctrl+x",
        "session.remove": "ctrl+x",
    },
    "emacs": {
        "app.palette": "alt+x",
        "table.down": "down,ctrl+n",
        "table.up": "up,ctrl+p",
        "table.page-down": "pagedown,ctrl+v",
        "table.page-up": "pageup,alt+v",
        "diff.down": "down,ctrl+n",
        "diff.up": "up,ctrl+p",
        "text.down": "down,ctrl+n",
        "text.up": "up,ctrl+p",
        "sessions.filter": "slash,ctrl+s",
        "list.filter": "slash,ctrl+s",
        "log.search": "slash,ctrl+s",
        "sessions.back": _BACK,
        "list.back": _BACK,
        "charts.back": _BACK,
        "ask.leave": _BACK,
        "help.leave": f"{_BACK},q,question_mark",
    },
}
_MODIFIERS: Final = frozenset({"ctrl", "alt", "shift", "super", "hyper", "meta"})
_NAMES: Final = frozenset(key.value for key in Keys) | REPLACED_KEYS.keys()


class KeymapError(Exception):
    """An invalid keymap file; `advice` says what to do."""

    def __init__(self, message: str, *, advice: str = "nsml-tui --keys") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


def parts() -> dict[type[DOMNode], tuple[Binding, ...]]:
    """Return all parts of the dashboard with bindings, inherited ones included."""
    from textual.dom import DOMNode

    from tui import app, screens  # noqa: F401 - what is imported is found

    for module in walk_packages(screens.__path__, f"{screens.__name__}."):
        import_module(module.name)

    found: dict[type[DOMNode], tuple[Binding, ...]] = {}
    left: list[type[DOMNode]] = [DOMNode]
    while left:
        for part in left.pop().__subclasses__():
            left.append(part)
            if part.__module__.startswith("tui.") and part not in found:
                every = part._merged_bindings  # noqa: SLF001 - as Textual merges them
                keys = every.key_to_bindings if every is not None else {}
                found[part] = tuple(one for bindings in keys.values() for one in bindings)
    return {part: bindings for part, bindings in found.items() if bindings}


def table(keymap: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return id, keys and text of every binding."""
    found: dict[str, tuple[list[str], str]] = {}
    for bindings in parts().values():
        for one in bindings:
            if one.id is not None:
                keys = found.setdefault(one.id, ([], one.description))[0]
                keys += [one.key] if one.key not in keys else []
    return sorted(
        (name, ",".join(map(_typed, (keymap.get(name) or ",".join(keys)).split(","))), what)
        for name, (keys, what) in found.items()
    )


def _typed(key: str) -> str:
    """Return a key as typed, `%`, if it is a character usable in a list; else its name."""
    letter = format_key(key)
    is_sign = len(letter) == 1 and letter.isascii() and letter not in {" ", ",", "+"}
    return letter if is_sign else key


def read(path: Path, parts: Mapping[type[DOMNode], tuple[Binding, ...]]) -> dict[str, str]:
    """Return the keymap by id; empty if there is no file.

    Args:
        path: the file.
        parts: all parts with bindings, inherited ones included.

    Raises:
        KeymapError: the file is unreadable or invalid.
    """
    try:
        tree = toml_of(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KeymapError(f"cannot read {path}: {error.strerror}", advice="") from error
    except (ValueError, RecursionError) as error:  # huge numbers and deep nesting, too
        raise KeymapError(f"{path} is not sound TOML: {error}", advice="") from error
    preset = tree.pop("preset", "default")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise KeymapError(f"{path}: preset: one of {', '.join(PRESETS)}", advice="")
    ids = {binding.id for bindings in parts.values() for binding in bindings if binding.id}
    said = {}
    for name, value in _flat(tree):
        if name not in ids:
            near = get_close_matches(name, sorted(ids), n=1)
            advice = f"{near[0]} is one: nsml-tui --keys" if near else "nsml-tui --keys"
            raise KeymapError(f"{path}: {visible(name)}: there is no such id", advice=advice)
        said[name] = ",".join(_keys(path, name, value))
    keymap = {name: keys for name, keys in PRESETS[preset].items() if name in ids} | said
    if clash := clashing(parts, keymap):
        raise KeymapError(f"{path}: {clash}")
    return keymap


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{above}.{key}" if above else key
        if isinstance(value, dict):
            yield from _flat(value, name)
        else:
            yield name, value


def _keys(path: Path, name: str, value: Any) -> Iterator[str]:
    keys = (
        value if isinstance(value, list) else value.split(",") if isinstance(value, str) else None
    )
    if not keys or not all(isinstance(key, str) and key.strip() for key in keys):
        raise KeymapError(f'{path}: {name}: a key, "ctrl+f", or several, ["f", "f5"]', advice="")
    for key in keys:
        known = normal(key.strip())
        if known is None:
            raise KeymapError(f"{path}: {name}: there is no key {key.strip()!r}")
        yield known


def normal(key: str) -> str | None:
    """Return Textual's name of a key; None: no such key."""
    *modifiers, name = key.split("+") if len(key) > 1 else [key]
    if not name or not _MODIFIERS.issuperset(modifiers):
        return None
    if len(name) == 1:
        if not name.isprintable() or (modifiers and name.isupper()):
            return None
        name = _character_to_key(name)
    full = "+".join([*modifiers, name])
    is_known = full in _NAMES or name in _NAMES or key_to_character(name) is not None
    return full if is_known else None


def clashing(parts: Mapping[type[DOMNode], tuple[Binding, ...]], keymap: Mapping[str, str]) -> str:
    """Describe a key with two meanings in one place; "" if there is none.

    A place is a part with what it inherits; for a screen also the app, which receives keys the screen does not handle.
    Conflicts that exist without the keymap are allowed.
    """
    from tui.app import Dashboard

    for part, bindings in parts.items():
        here = bindings
        if issubclass(part, Screen) and not issubclass(part, ModalScreen):
            here = (*bindings, *parts.get(Dashboard, ()))
        before = {pair for pair, _ in _shared(here, {})}
        for pair, key in _shared(here, keymap):
            if pair not in before:
                first, second = sorted(pair)
                return f"{key}: both {first} and {second} where {part.__name__} is"
    return ""


def _shared(
    bindings: tuple[Binding, ...], keymap: Mapping[str, str]
) -> Iterator[tuple[frozenset[str], str]]:
    found: dict[str, str] = {}
    for binding in bindings:
        name = binding.id or binding.description or binding.action
        for key in keymap.get(binding.id or "", binding.key).split(","):
            other = found.setdefault(key, name)
            if other != name:
                yield frozenset({other, name}), key
