"""The functions and objects that a program bound, called as in every generation of NSML."""

from __future__ import annotations

import errno
import os

import nsml
from nsml._steps import FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    Function = Callable[..., Any]

_TAKES_ANY_KEYWORD = 0x08  # inspect.CO_VARKEYWORDS; inspect itself takes long to import


class Model:
    """Arguments of one `nsml.bind`.

    Args:
        save: called as `save(path, **objects)`; None saves the objects themselves.
        load: the same for loading.
        infer: called with the data.
        objects: the other keywords of `bind`.
        is_legacy: whether a checkpoint of one file may be passed as that file.
    """

    def __init__(
        self,
        save: Optional[Function] = None,
        load: Optional[Function] = None,
        infer: Optional[Function] = None,
        objects: Optional[Dict[str, Any]] = None,
        *,
        is_legacy: bool = True,
    ) -> None:
        self._save = save
        self._load = load
        self._infer = infer
        self._objects = objects or {}
        if self._objects and (save is None or load is None):
            # Not at its first use: a signal handler that saves meanwhile would find half a module, and another
            # thread's fork a lock that is never released.
            with nsml._loading:  # noqa: SLF001 - the package's own lock
                from nsml import _objects
            self._own = _objects
        self._is_legacy = is_legacy

    @property
    def objects(self) -> Dict[str, Any]:
        """The objects passed to the functions, by name."""
        return self._objects

    @property
    def can_save(self) -> bool:
        """Whether a function or an object is bound to save."""
        return self._save is not None or bool(self._objects)

    @property
    def has_save_function(self) -> bool:
        """Whether the program's own function saves."""
        return self._save is not None

    @property
    def can_load(self) -> bool:
        """Whether a function or an object is bound to load."""
        return self._load is not None or bool(self._objects)

    def save(self, folder: str, function: Optional[Function] = None) -> None:
        """Save with `function`, the bound one or the default one to the existing `folder`.

        Code of 2018 uses the path as a file name: if that fails because it is a folder,
        the function is called again with a free path in that folder.
        """
        function = function or self._save
        if function is None:
            self._own.save(folder, self._objects)
            return
        try:
            _call(function, folder, self._objects)
        except (OSError, RuntimeError) as error:
            if not _means_folder(error, folder):
                raise
            _call(function, os.path.join(folder, "model"), self._objects)

    def load(self, folder: str, function: Optional[Function] = None) -> None:
        """Load with `function`, the bound one or the default one from `folder`.

        If that fails and the folder has exactly one file, legacy code gets that file's path.
        """
        function = function or self._load
        if function is None:
            self._own.load(folder, self._objects)
            return
        try:
            _call(function, folder, self._objects)
        except Exception as error:
            file = _only_file(folder) if self._is_legacy else None
            if file is None:
                raise
            try:
                _call(function, file, self._objects)
            except OSError:
                # Code for folders fails with a file for an unrelated reason: raise its first error.
                if isinstance(error, OSError):
                    raise
                raise error from None

    def infer(self, *data: Any, **kwargs: Any) -> Any:
        """Return the result of the bound function.

        Raises:
            RuntimeError: none is bound.
        """
        if self._infer is None:
            raise RuntimeError("nothing to infer with: call nsml.bind(infer=...) before")
        return self._infer(*data, **kwargs)


def _call(function: Function, path: str, objects: Dict[str, Any]) -> None:
    """Call with the path and the `objects` that the function has parameters for."""
    code = getattr(function, "__code__", None)
    if code is not None and not code.co_flags & _TAKES_ANY_KEYWORD:
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        objects = {name: value for name, value in objects.items() if name in names}
    function(path, **objects)


def _means_folder(error: Exception, folder: str) -> bool:
    """Return whether a save failed because its path is a folder; torch and HDF5 report it only in the message."""
    if not os.path.isdir(folder) or os.listdir(folder):
        return False
    if isinstance(error, OSError) and error.errno == errno.EISDIR:
        return True
    words = str(error).lower()
    return "is a directory" in words or "cannot be opened" in words


def _only_file(folder: str) -> Optional[str]:
    files = [
        os.path.join(base, name)
        for base, _, names in os.walk(folder)
        for name in names
        if name != FILE
    ]
    return files[0] if len(files) == 1 else None
