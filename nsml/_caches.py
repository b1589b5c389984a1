"""`nsml.cache`: files that a function wrote, restored in later sessions of the same user.

They are an artifact named after a digest of the function's source, its arguments, and the versions of the session's
datasets, so that a change of any of them runs the function again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager, suppress

from nsml._copies import copy_file
from nsml._digests import sha256
from nsml._notice import notice
from nsml._rights import make_folder, make_folders, remove_tree
from nsml._strict import comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Tuple

    class Artifacts(Protocol):
        """What is needed of a session."""

        def fetch_artifact(self, name: str) -> Tuple[str, str]:
            """Return a temporary folder with the newest artifact of a name, and its session. Raises LookupError, OSError."""

        def keep_file(self, name: str, path: str) -> None:
            """Save an artifact. Raises OSError, ValueError."""


_NAME = "nsml.cache/"
_PATHS = "paths.json"


def cached(
    run: Callable[[], Any],
    paths: List[str],
    *,
    of: Tuple[Callable[..., Any], Dict[str, Any]],
    run_dir: str,
    session: Artifacts,
    may_save: bool,
) -> None:
    """Restore `paths`, or `run` and save them. Raises whatever `run` raises; without a cache it only takes longer.

    `of`: the function that `run` calls, and its arguments.
    """
    try:
        key = _key(*of, paths)
    except Exception as error:
        if comes_from_signal(error):
            raise
        notice(f"nsml.cache runs its function each time: {reason(error)}")
        run()
        return
    with _alone(os.path.join(run_dir, f"cache-{key[:16]}")) as is_done:
        if is_done():
            return  # by another process of this replica
        if not _restored(key, paths, session):
            run()
            if may_save:
                _save(key, paths, session)
        with suppress(OSError):
            open(os.path.join(run_dir, f"cache-{key[:16]}.done"), "wb").close()


def _key(function: Callable[..., Any], arguments: Dict[str, Any], paths: List[str]) -> str:
    """Return the digest. Raises whatever stands against one."""
    import inspect
    import pickle

    if getattr(function, "__closure__", None):
        raise ValueError("its function uses variables of the function around it")
    datasets = os.environ.get("NSML_DATASET_DIGEST", "")
    if os.environ.get("NSML_DATASET_NAME") and not datasets:
        raise ValueError("this agent does not say which version of the dataset is used")
    facts = [
        inspect.getsource(function),
        pickle.dumps(sorted(arguments.items()), 4).hex(),
        datasets,
        sys.version_info[:2],
        paths,
    ]
    return sha256(json.dumps(facts).encode()).hexdigest()


@contextmanager
def _alone(path: str) -> Iterator[Callable[[], bool]]:
    """Wait for other processes of this replica that do the same; yield whether one has done it."""
    file = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        with suppress(ImportError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield lambda: os.path.exists(f"{path}.done")
    finally:
        os.close(file)


def _restored(key: str, paths: List[str], session: Artifacts) -> bool:
    folder = ""
    try:
        folder, source = session.fetch_artifact(_NAME + key)
        with open(os.path.join(folder, _PATHS), encoding="utf-8") as file:
            are_folders: List[Optional[bool]] = json.load(file)
        for number, (path, is_folder) in enumerate(zip(paths, are_folders)):
            _put(os.path.join(folder, str(number)), path, is_folder)
    except LookupError:
        return False
    except Exception as error:
        if comes_from_signal(error):
            raise
        notice(f"nsml.cache runs its function, nothing could be restored: {reason(error)}")
        return False
    finally:
        if folder:
            remove_tree(os.path.dirname(folder))
    notice(f"nsml.cache: {', '.join(paths)} as in {source}, the function did not run")
    return True


def _put(source: str, path: str, is_folder: Optional[bool]) -> None:
    """Move files to where the function writes them; what is there already stays, unless it has the same name."""
    if is_folder is None:
        return  # the function did not write it
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    if not is_folder:
        shutil.move(source, path)
        return
    if not os.path.isdir(source):
        os.makedirs(path, exist_ok=True)  # it was empty
    elif os.path.exists(path):
        shutil.copytree(source, path, dirs_exist_ok=True)
    else:
        shutil.move(source, path)


def _save(key: str, paths: List[str], session: Artifacts) -> None:
    folder = tempfile.mkdtemp(prefix="nsml-")
    try:
        for number, path in enumerate(paths):
            _take(path, os.path.join(folder, str(number)))
        with open(os.path.join(folder, _PATHS), "w", encoding="utf-8") as file:
            json.dump(
                [os.path.isdir(path) if os.path.exists(path) else None for path in paths], file
            )
        session.keep_file(_NAME + key, folder)
    except Exception as error:
        if comes_from_signal(error):
            raise
        notice(f"nsml.cache: the files are not kept for later sessions: {reason(error)}")
    finally:
        remove_tree(folder)


def _take(path: str, there: str) -> None:
    """Give a file, or the files of a folder, another name, or copy them where that cannot be."""
    if os.path.isfile(path):
        _link(path, there)
        return
    if not os.path.isdir(path):
        return
    make_folder(there)
    for base, _, names in os.walk(path):
        target = os.path.normpath(os.path.join(there, os.path.relpath(base, path)))
        make_folders(target)
        for name in names:
            source = os.path.join(base, name)
            if os.path.isfile(source) and not os.path.islink(source):
                _link(source, os.path.join(target, name))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        copy_file(source, target)
