"""Checkpoints that a framework saves in its own way become the session's, and are handed back to it at resume.

A hook on a framework makes one `FrameworkCheckpoints` for each training (each call of `fit`, `train`), in every process
of it and in the same order, and then calls:

1. `restored(parent)` before the framework looks for a checkpoint: where the one to resume from is, if there is one;
2. `begins()` when training begins: the platform knows from then on that the session can be preempted without a loss;
3. `should_save(step)` at the end of each step: whether to save now, in all processes alike;
4. `keep(path, name, step, summary)` after each save: it may end the program (SystemExit);
5. `ends()`.

Programs that call `nsml.bind` save and load themselves: then nothing is done here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager, suppress

from nsml._copies import copy_file, copy_tree
from nsml._echo._hooks import title
from nsml._leaving import EXIT_CODE
from nsml._notice import notice
from nsml._progress import is_first
from nsml._rights import create, make_folders, make_unique, remove_tree
from nsml._session import FRAMEWORK_FILE
from nsml._strict import comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, Optional

    from nsml._session import Session

_FOLDER = os.path.join("echo", "restored")
_FOUND = "found.json"
_MOST_BYTES = 64 << 10
_OTHERS_S = 60.0
"""How long the first process waits for the others' files of a checkpoint."""
_OUTCOME_S = 900.0
"""How long the others wait for the first process to copy a checkpoint, before they leave."""
_LOOK_EVERY_S = 0.02


class Ranks:
    """The processes of one training: the number of this one, and the store of torch.distributed that they share.

    Args:
        rank: 0 for the process that saves.
        size: how many there are.
        store: None for a single process.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: Any = None) -> None:
        self.rank = rank
        self.size = size
        self.store = store

    @classmethod
    def current(cls) -> Optional[Ranks]:
        """Return those of this process; None if there are others with which it cannot agree."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            size = distributed.get_world_size()
            if size == 1:
                return cls()
            default = sys.modules["torch.distributed.distributed_c10d"]
            return cls(distributed.get_rank(), size, default._get_default_store())  # noqa: SLF001 - no public one
        sizes = (os.environ.get(name) or "1" for name in ("WORLD_SIZE", "NSML_WORLD_SIZE"))
        return cls() if all(size == "1" for size in sizes) else None


class FrameworkCheckpoints:
    """The checkpoints of one training in this process.

    Several processes agree on the step of a save on notice through the store of torch.distributed: the first one writes
    there, in one step, that all save in the next one. No process can end that step before all have begun it, since their
    gradients are averaged in each step. So nobody waits, and none of it is a collective operation.

    Args:
        origin: the framework: one of NSML_ECHO's names.
        session: default: of this process.
    """

    _trainings: Dict[str, int] = {}  # noqa: RUF012 - of the process

    def __init__(self, origin: str, session: Optional[Session] = None) -> None:
        if session is None:
            from nsml import _session

            session = _session._SESSION  # noqa: SLF001 - of the same package
        self._session = session
        self._origin = origin
        self.number = self._trainings[origin] = self._trainings.get(origin, 0) + 1
        """Which training of the program it is, from 1."""
        self._ranks = Ranks()
        self._is_on = self._is_resumable = self._is_told = False
        self._at = -1
        self._goes = False
        self._waits_for_others = True

    @property
    def is_on(self) -> bool:
        """Whether checkpoints of this training are kept."""
        return self._is_on and not self._session.has_bound

    # Resuming.

    def restored(self, parent: Optional[str] = "", *, otherwise: str = "") -> Optional[str]:
        """Return the path of the file or folder to resume from, None if there is none for this training.

        Processes of one replica share it. It has the name that the framework gave it. Whatever goes wrong is logged.

        Args:
            parent: the folder to put it in, unless something of its name is there; None: where it was saved; default:
                one of the run folder.
            otherwise: name of the checkpoint of this session to resume from if nothing can resume from the last one.
        """
        name = self._session.resumes_from
        if not name or self._session.has_bound:
            return None
        place = os.path.join(os.environ["NSML_RUN_DIR"], _FOLDER)
        make_folders(place)
        with _locked(os.path.join(place, "lock")):
            found = _read(os.path.join(place, _FOUND))
            attempt = f"{os.environ.get('NSML_ATTEMPT', '')} {name} {otherwise}".rstrip()
            is_gone = "path" in found and not os.path.exists(found["path"])
            if found.get("attempt") != attempt or is_gone:  # gone: the program was started again
                found = {**self._fetch(place, otherwise), "attempt": attempt}
                _write(os.path.join(place, _FOUND), found)
            if found.get("origin") != self._origin:
                return None
            name = str(found.get("name") or name)
            if found.get("training") != self.number:
                if self.number < int(found.get("training") or 0):
                    self._say(
                        f"its training number {self.number} begins anew: checkpoint {name} is of "
                        f"number {found.get('training')}"
                    )
                return None
            path = str(found.get("path", ""))
            if parent is None:
                parent = str(found.get("folder", ""))
            if parent and path and os.path.dirname(path) == place:
                path = found["path"] = _moved(path, os.path.abspath(parent))
                _write(os.path.join(place, _FOUND), found)
        if not path or not os.path.exists(path):
            return None
        self._say(f"goes on from checkpoint {name}")
        return path

    def another(self, name: str, target: str) -> bool:
        """Put another checkpoint of this session at the new path `target`; return whether it could be had.

        For one that the restored one refers to, such as the best so far.
        """
        place = os.path.join(os.environ["NSML_RUN_DIR"], _FOLDER)

        def take(folder: str) -> None:
            marker = _read(os.path.join(folder, FRAMEWORK_FILE))
            os.unlink(os.path.join(folder, FRAMEWORK_FILE))
            make_folders(os.path.dirname(target))
            entry = os.path.basename(str(marker.get("entry") or ""))
            move(os.path.join(folder, entry) if marker.get("is_file") else folder, target)

        try:
            with _locked(os.path.join(place, "lock")):
                if not os.path.exists(target):
                    self._session.load(name, take)
        except Exception as error:
            if comes_from_signal(error):
                raise
            return False
        return True

    def _fetch(self, place: str, otherwise: str) -> Dict[str, Any]:
        """Put the checkpoint of `NSML_RESUME` below `place`, or else that of the name `otherwise`.

        Return its marker with its `name` and `path`, {} if it is no framework's.
        """
        found: Dict[str, Any] = {}

        def take(folder: str) -> None:
            marker = _read(os.path.join(folder, FRAMEWORK_FILE))
            if not marker:
                return
            if not marker.get("is_resumable"):
                raise LookupError("not all that is needed for that was saved")
            os.unlink(os.path.join(folder, FRAMEWORK_FILE))
            entry = os.path.basename(str(marker.get("entry") or "checkpoint"))
            path = os.path.join(place, entry)
            if marker.get("is_file"):
                os.rename(os.path.join(folder, entry), path)
            else:
                move(folder, path)
            found.update(marker, path=path)

        name = self._session.resumes_from
        why = self._failure(self._session.load_initial, take)
        if not found and otherwise not in ("", name):
            name = otherwise
            self._failure(self._session.load, name, take)
        if found:
            found["name"] = name
        elif why:
            self._say(f"could not go on from checkpoint {self._session.resumes_from}: {why}")
        return found

    @staticmethod
    def _failure(call: Callable[..., None], *args: Any) -> str:
        """Call; return why it failed, "" if it did not."""
        try:
            call(*args)
        except Exception as error:
            if comes_from_signal(error):
                raise
            return reason(error)
        return ""

    # Saving.

    def begins(self, *, is_resumable: bool = True, is_told: bool = True) -> None:
        """Keep checkpoints from now on, and tell the platform that the training can be resumed.

        Args:
            is_resumable: whether the framework can go on from what it saves; else it is kept for `nsml model` alone.
            is_told: whether the platform may preempt the session because of that.
        """
        if self._session.has_bound:
            return
        ranks = Ranks.current()
        if ranks is None and not is_resumable:  # nothing to agree on
            ranks = Ranks(0 if is_first() else 1)
        if ranks is None:
            self._say(
                "its checkpoints are not kept: several processes train, and torch.distributed is not initialized"
            )
            return
        self._ranks = ranks
        self._is_on = True
        self._is_resumable = is_resumable
        self._is_told = is_resumable and is_told
        if not self._is_told:
            return
        self._session.leaving.claim()
        self._session.leaving.can_resume(save=True, load=True)

    def ends(self) -> None:
        """Take that back: nothing more is saved."""
        if self.is_on and self._is_told:
            self._session.leaving.can_resume(save=False, load=True)
        self._is_on = False

    def should_save(self, step: int) -> bool:
        """Return whether the framework is to save at the end of this step, in all processes at the same one.

        Args:
            step: of the training, counted alike in all processes.
        """
        if not (self._is_told and self.is_on):
            return False
        leaving, store = self._session.leaving, self._ranks.store
        if store is None:
            return leaving.unanswered() is not None
        key = f"{self._prefix}/at"
        if self._ranks.rank:
            if store.check([key]):
                at, _, goes = store.get(key).decode().partition(" ")
                self._at, self._goes = int(at), goes == "goes"
        elif self._at < step:
            said = leaving.unanswered()
            if said is not None:
                self._at, self._goes = step + 1, said.goes
                store.set(key, f"{self._at} {'goes' if said.goes else 'stays'}")
                store.get(key)  # set returns before the store has it
        return self._at == step

    def keep(
        self,
        path: str,
        name: str,
        step: Any,
        summary: Dict[str, Any],
        *,
        waits: bool = True,
        is_resumable: bool = True,
    ) -> None:
        """Make a file or folder a checkpoint of the session, by a copy, which shares blocks if the file system can.

        Leaves the program if the platform asked for that. All processes call this, after all of their files of it
        are written.

        Args:
            path: of the file or folder, in the first process at least.
            name: for `nsml model`.
            step: of the training.
            summary: values at this step, for `nsml model ls`.
            waits: whether all processes call this; else only the first may be saving.
            is_resumable: whether the training can go on from it; else it has weights alone, say.

        Raises:
            SystemExit: it is saved, and the program is to leave.
        """
        if not self.is_on:
            return
        leaving, store = self._session.leaving, self._ranks.store
        if self._ranks.rank and not waits:
            return
        outcome = f"{self._prefix}/outcome/{step}"
        if store is not None and waits:
            written = f"{self._prefix}/written/{step}"
            store.add(written, 1)
            if self._ranks.rank:
                if self._at == step and self._goes:
                    self._leave_with_first(outcome)
                return
            self._wait_for_others(written)
        is_going = store is not None and self._at == step and self._goes
        result = "stays"
        try:
            marker = self._marker(path, is_resumable=self._is_resumable and is_resumable)
            is_kept = self._session.keep(name, path, marker, step, summary)
            if not (self._is_told and is_resumable) or leaving.unanswered() is None:
                return
            if store is not None and self._at != step:
                return
            if is_kept:
                result = "left"  # unless the notice is only to save
                self._session.saved_on_notice(name)
            else:
                leaving.answered()
                notice("could not save on notice, training goes on until SIGTERM")
            result = "stays"
        finally:
            if is_going:
                with suppress(Exception):  # the others go on without
                    store.set(outcome, result)

    @property
    def _prefix(self) -> str:
        return f"nsml/{self._origin}/{self.number}"

    def _marker(self, path: str, *, is_resumable: bool) -> bytes:
        facts = {
            "origin": self._origin,
            "training": self.number,
            "folder": os.path.dirname(os.path.abspath(path)),
            "entry": os.path.basename(os.path.normpath(path)),
            "is_file": not os.path.isdir(path),
            "is_resumable": is_resumable,
        }
        return json.dumps(facts).encode()

    def _wait_for_others(self, written: str) -> None:
        """Wait until the files of all processes are there; once without success is enough."""
        until = time.monotonic() + _OTHERS_S
        while self._waits_for_others and self._ranks.store.add(written, 0) < self._ranks.size:
            if time.monotonic() >= until:
                self._waits_for_others = False
                self._say("not all processes said that their part of a checkpoint is written")
            time.sleep(_LOOK_EVERY_S)
        with suppress(Exception):  # not all stores can
            self._ranks.store.delete_key(written)

    def _leave_with_first(self, outcome: str) -> None:
        """Leave after the first process. Raises SystemExit, unless that one stays."""
        until = time.monotonic() + _OUTCOME_S
        try:
            while not self._ranks.store.check([outcome]):
                if time.monotonic() >= until:
                    return
                time.sleep(_LOOK_EVERY_S)
            has_left = self._ranks.store.get(outcome) == b"left"
        except RuntimeError:  # the store was the first process's own
            has_left = True
        if has_left:
            raise SystemExit(EXIT_CODE)

    def _say(self, text: str) -> None:
        if self._ranks.rank == 0 and os.environ.get("LOCAL_RANK", "0") == "0":
            notice(f"{title(self._origin)}: {text}")


def _moved(path: str, parent: str) -> str:
    """Move a file or folder into `parent` if nothing of its name is there; return where it is. Raises nothing."""
    target = os.path.join(parent, os.path.basename(path))
    try:
        make_folders(parent)
        if not os.path.lexists(target):
            move(path, target)
            return target
    except OSError as error:
        notice(f"{target} could not be written: {reason(error)}")
    return path


def move(path: str, target: str) -> None:
    """Move a file or folder to the new path `target`, also to another file system. Raises OSError."""
    with suppress(OSError):
        os.rename(path, target)
        return
    draft = make_unique(os.path.dirname(target))
    try:
        copy = os.path.join(draft, "copy")
        if os.path.isdir(path):
            copy_tree(path, copy)
        else:
            copy_file(path, copy)
        os.rename(copy, target)
    finally:
        remove_tree(draft)
    if os.path.isdir(path):
        remove_tree(path)
    else:
        os.unlink(path)


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold a lock among the processes of the replica."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _read(path: str) -> Dict[str, Any]:
    """Read a JSON object, {} if there is none."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: str, content: Dict[str, Any]) -> None:
    """Write a JSON object. Raises OSError."""
    staged = f"{path}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(staged)
    with open(create(staged), "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(staged, path)
