"""Which packages a program imports, as far as its text says: read as a syntax tree, never run."""

from __future__ import annotations

import ast
import posixpath
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.packages.distributions import missing_package

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from nsml.packages.requirements import ReadBytes

_MOST_FILES: Final = 500
_CATCHES: Final = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_CHECKED_ONLY: Final = "TYPE_CHECKING"
_ASKS: Final = {"version_info", "platform", "find_spec", "name", "system"}
"""What a condition names that decides whether there is a module: `sys.version_info`, `os.name`, ..."""
_NAME_OF_MODULE: Final = -1
"""In place of a level: what may be a module or a name in one, which is followed in the folder alone."""
_PROVIDED: Final = sys.stdlib_module_names | {
    *("nsml", "pip", "setuptools", "pkg_resources", "__future__", "__main__"),
    # of the standard library of some Python that a node may have
    *("asynchat", "asyncore", "cgi", "crypt", "distutils", "imp", "smtpd", "telnetlib", "tomllib"),
}
_MODULES: Final = (".py", ".pyx", ".so", ".pyd")


class Import(NamedTuple):
    """A module of another package: its dotted name, and where it is imported first."""

    module: str
    file: str
    line: int


def foreign_imports(
    entries: Sequence[str], paths: Collection[str], read: ReadBytes
) -> Sequence[Import]:
    """The modules that programs of a folder import, themselves or through its other files, and that are not there.

    Left out are modules of the standard library and of the folder, and imports that the program can do without:
    below `try` with `except ImportError`, or below a condition such as `TYPE_CHECKING`.

    Args:
        entries: the programs, of `paths`.
        paths: all files of the folder.
        read: the content of a file; None where it cannot be read.
    """
    own = {part.partition(".")[0] for path in paths for part in _module_parts(path)}
    found: dict[str, Import] = {}
    pending, seen = list(entries), set(entries)
    while pending and len(seen) <= _MOST_FILES:
        file = pending.pop(0)
        places = dict.fromkeys([posixpath.dirname(entries[0]), ""])
        for module, line, level in _imports(read(file) or b""):
            top = module.partition(".")[0]
            if not level and top not in _PROVIDED and top not in own:
                found.setdefault(module, Import(module, file, line))
            for path in _files_of(module, level, file, places):
                if path in paths and path not in seen:
                    seen.add(path)
                    pending.append(path)
    return tuple(found.values())


def missing_imports(
    imports: Sequence[Import], required: Collection[str]
) -> dict[str, list[Import]]:
    """The packages that no requirement brings, by the name to install, each with the imports that need it."""
    missing: dict[str, list[Import]] = {}
    for one in imports:
        package = missing_package(one.module, required)
        if package:
            missing.setdefault(package, []).append(one)
    return missing


def _module_parts(path: str) -> list[str]:
    return path.split("/") if path.endswith(_MODULES) else []


def _files_of(module: str, level: int, file: str, places: Collection[str]) -> Iterator[str]:
    """Where the modules on the way to `module` would be, of what the folder may hold."""
    if level > 0:
        base = posixpath.dirname(file)
        for _ in range(level - 1):
            base = posixpath.dirname(base)
        places = [base]
    parts = module.split(".") if module else []
    for place in places:
        for depth in range(0 if level > 0 else 1, len(parts) + 1):
            path = posixpath.join(place, *parts[:depth])
            yield posixpath.join(path, "__init__.py")
            yield f"{path}.py"


def _imports(source: bytes) -> Iterator[tuple[str, int, int]]:
    """Dotted name, line and level of each import that the program cannot do without."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        match node:
            case ast.Import():
                yield from ((alias.name, node.lineno, 0) for alias in node.names)
            case ast.ImportFrom():
                yield from _imported_from(node)
            case ast.Try() | ast.TryStar() if any(map(_catches, node.handlers)):
                pending += [*reversed([*node.orelse, *node.finalbody])]
            case ast.If() if _CHECKED_ONLY in _names(node.test):
                pending += reversed(node.orelse)
            case ast.If() if not _ASKS.isdisjoint(_names(node.test)):
                pass
            case ast.With() if any(map(_suppresses, node.items)):
                pass
            case _:
                pending += reversed([*ast.iter_child_nodes(node)])


def _imported_from(node: ast.ImportFrom) -> Iterator[tuple[str, int, int]]:
    module = node.module or ""
    if module:
        yield module, node.lineno, node.level
    # A name may be a module, too: `from . import model`.
    for alias in node.names:
        name = f"{module}.{alias.name}" if module else alias.name
        yield name, node.lineno, node.level or _NAME_OF_MODULE


def _catches(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or not _CATCHES.isdisjoint(_names(handler.type))


def _suppresses(item: ast.withitem) -> bool:
    names = _names(item.context_expr)
    return "suppress" in names and not _CATCHES.isdisjoint(names)


def _names(expression: ast.expr) -> set[str]:
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(expression)
        if isinstance(node, ast.Name | ast.Attribute)
    }
