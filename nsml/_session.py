"""`nsml.bind`, `save`, `load`, `paused`, `report` and `infer`, for the session this process is in."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import suppress

import nsml
from nsml import constants
from nsml._checkpoints import Checkpoints, remove_tree
from nsml._frames import MAX_PAYLOAD
from nsml._leaving import Leaving
from nsml._media import Media
from nsml._model import Model
from nsml._notice import notice
from nsml._report import Reporter, encode
from nsml._spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

    from nsml._checkpoints import Draft

    Function = Callable[..., Any]
    Name = Union[str, int, None]

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
_ENOUGH_BYTES = 1 << 20
_RESUME_TRIES = 10
"""A minute each, for an agent that does not answer: what was saved is worth waiting for."""


class Session:
    """The calls of one process.

    Args:
        run_dir: the folder that the node agent shares with the program; "" outside of a session,
            where reports go nowhere and checkpoints to `.nsml/checkpoints` of the current folder.
        name: USER/DATASET/N.
    """

    def __init__(self, run_dir: str, name: str) -> None:
        self._run_dir = run_dir
        self._name = name
        root = run_dir or os.path.abspath(".nsml")
        self.spool = Spool(os.path.join(run_dir, "spool") if run_dir else None)
        self.reporter = Reporter(self.spool)
        self.media = Media(self.spool, run_dir)
        self._checkpoints = Checkpoints(os.path.join(root, "checkpoints"))
        self._model = Model()
        self._saved_at = nsml._IMPORTED_AT  # noqa: SLF001 - the package's own start
        self._unnamed: Set[str] = set()  # names of this second that were found for who gave none
        self._saves = 0  # calls of save functions that have not returned
        self._resumes_from = os.environ.get("NSML_RESUME", "") if run_dir else ""
        self._has_resumed = False
        self._leaving = Leaving(run_dir)
        if run_dir:
            self.reporter.safe_point = self._safe_point

    def bind(
        self,
        /,
        save: Optional[Function] = None,
        load: Optional[Function] = None,
        infer: Optional[Function] = None,
        **kwargs: Any,
    ) -> None:
        """Register what saves, loads and infers; the last call counts.

        In an attempt after the first the checkpoint to go on from is loaded at once, where there is one.

        Args:
            save: `save(path, **kwargs)` writes files below the folder `path`.
            load: `load(path, **kwargs)` reads them.
            infer: `infer(data)` answers with predictions.
            **kwargs: handed to `save` and `load`, all but `use_nsml_legacy`. Without functions they
                are what is saved: torch and keras models, optimizers, anything that can be pickled.
        """
        is_legacy = kwargs.pop("use_nsml_legacy", True) is not False
        self._model = Model(save, load, infer, kwargs, is_legacy=is_legacy)
        if self._run_dir:
            self._leaving.claim()
            self._leaving.can_resume(self._model.can_save, self._model.can_load)
            self._resume()

    def save(
        self,
        checkpoint: Name = None,
        save_fn: Optional[Function] = None,
        *,
        iteration: Name = None,
    ) -> None:
        """Save a checkpoint under a name; the same name overwrites.

        Without a name it is the time in seconds, with `-2` and so on behind it where that is taken.

        What the save function raises passes through, but for a full or broken disk: then the
        checkpoint is lost, the log says so and training goes on. Where the session is to give way, the
        program ends once it has saved.

        Raises:
            RuntimeError: there is nothing to save with.
        """
        if save_fn is None and not self._model.can_save:
            self._nothing_bound("save")
            return
        name = _name(checkpoint if checkpoint is not None else iteration) or self._fresh_name()
        if self._save(name, save_fn) and not self._saves and self._leaving.unanswered() is not None:
            self._saved_on_notice(name)

    def _fresh_name(self) -> str:
        """A name that no checkpoint of this session has: several may be saved in one second."""
        second = str(int(time.time()))
        name, number = second, 1
        while name in self._unnamed or self._checkpoints.newest(name) is not None:
            number += 1
            name = f"{second}-{number}"
        if number == 1:
            self._unnamed.clear()  # of another second
        self._unnamed.add(name)
        return name

    def should_stop(self) -> bool:
        """Whether the session is to give way: save with `nsml.save`, which then ends the program.

        For loops that must save in a way of their own; what is bound is saved without asking.
        """
        notice = self._leaving.notice()
        return notice is not None and notice.goes

    def load(
        self,
        checkpoint: Name = None,
        load_fn: Optional[Function] = None,
        session: Optional[str] = None,
        *,
        iteration: Name = None,
    ) -> None:
        """Load a checkpoint of this session, or of `session` (USER/DATASET/N).

        Raises:
            KeyError: there is no such checkpoint, or not for this user.
            TimeoutError: it is not here and the node agent cannot be reached.
            RuntimeError: there is nothing to load with.
        """
        wanted = checkpoint if checkpoint is not None else iteration
        if wanted is None:
            raise TypeError("nsml.load needs the name of a checkpoint")
        name = _name(wanted)
        if load_fn is None and not self._model.can_load:
            self._nothing_bound("load")
            return
        folder = None
        if not session or session == self._name:
            folder = self._checkpoints.newest(name)
        if folder is not None:
            self._model.load(folder, load_fn)
        elif not self._run_dir:
            raise _no_model(session or self._name, name)
        else:
            self._load_from_afar(name, load_fn, session)

    def paused(self, scope: Optional[Dict[str, Any]] = None) -> None:
        """Load the checkpoint that `--iteration` names, and go on: how a fork or a resume begins.

        Raises:
            NotImplementedError: the session was started to be evaluated (`nsml submit`).
        """
        if scope is not None:
            self.reporter.scope = scope
        print("Paused.", flush=True)
        self._resume()  # what an earlier attempt saved is newer than what it began with
        if self._has_resumed:
            return
        iteration = _argument("--iteration", sys.argv[1:])
        if iteration is None:
            if not self._run_dir:
                return
            raise NotImplementedError(
                "UNSUPPORTED: nsml.paused() without --iteration means nsml submit or nsml infer, "
                "which this version cannot do yet"
            )
        self._record_state("PAUSED")
        self.load(iteration)
        self._record_state("RUNNING")

    def infer(self, data: Any, **kwargs: Any) -> Any:
        """What the bound infer function answers for `data`."""
        return self._model.infer(data, **kwargs)

    def _safe_point(self, now: float) -> None:
        """Between two steps of the training: the moment to save on a notice, and to leave."""
        if not self._leaving.is_time(now) or self._saves:
            return
        if self._leaving.unanswered() is None or not (_is_first() and self._model.can_save):
            return
        name = f"attempt-{os.environ.get('NSML_ATTEMPT', '1')}"
        try:
            is_saved = self._save(name, None)
        except Exception as error:
            self._leaving.answered()
            notice(f"could not save on notice, training goes on until SIGTERM: {error!r}")
            return
        if is_saved:
            self._saved_on_notice(name)

    def _saved_on_notice(self, name: str) -> None:
        said = self._leaving.unanswered()
        if said is None:
            return
        self._leaving.answered()
        notice(f"saved checkpoint {name} on notice: {said.reason}")
        if said.goes:
            self._leaving.leave(name)

    def _resume(self) -> None:
        """Load what an earlier attempt saved last, once; where that fails the program begins anew."""
        name = self._resumes_from
        if not name or self._has_resumed or not self._model.can_load:
            return
        for tries_left in range(_RESUME_TRIES, 0, -1):
            try:
                self.load(name)
            except TimeoutError:
                if tries_left == 1:
                    raise
            except Exception as error:
                notice(f"could not go on from checkpoint {name}: {error!r}")
                return
            else:
                break
        self._has_resumed = True
        notice(f"goes on from checkpoint {name}")

    def _save(self, name: str, save_fn: Optional[Function]) -> bool:
        """Save; False when the disk refused."""
        try:
            draft = self._checkpoints.begin()
        except OSError as error:
            self._lost(name, error)
            return False
        self._saves += 1
        try:
            self._model.save(draft.model, save_fn)
        except BaseException as error:
            is_full = self._is_disk_full(error)
            draft.discard()
            if not is_full:
                raise
            self._lost(name, error)
            return False
        finally:
            self._saves -= 1
        return self._commit(draft, name)

    def _commit(self, draft: Draft, name: str) -> bool:
        if draft.is_empty():
            notice(f"the save function wrote no files below the folder it was given ({name})")
        try:
            folder, files = draft.commit(name)
        except OSError as error:
            draft.discard()
            self._lost(name, error)
            return False
        now = time.monotonic()
        elapsed, self._saved_at = now - self._saved_at, now
        if not self._run_dir:
            self._checkpoints.keep_newest(name)
            return True
        self.spool.append(self._checkpoint_record(name, folder, files, elapsed), must_arrive=True)
        return True

    def _checkpoint_record(
        self, name: str, folder: str, files: List[Tuple[str, int]], elapsed: float
    ) -> bytes:
        record = {
            "kind": "checkpoint",
            "time": time.time(),
            "name": name,
            "folder": folder,
            "files": files,
            "size": sum(size for _, size in files),
            "elapsed": elapsed,
        }
        summary = self.reporter.last()
        step = summary.get("step")
        with suppress(TypeError):  # what was reported may have changed since
            payload = encode({**record, "summary": summary, "step": step})
            if len(payload) <= MAX_PAYLOAD:
                return payload
        return encode({**record, "summary": {}, "step": step})

    def _load_from_afar(
        self, name: str, load_fn: Optional[Function], session: Optional[str]
    ) -> None:
        import tempfile

        from nsml._agent import AgentRefusedError, request

        loads = os.path.join(self._run_dir, "loads")
        os.makedirs(loads, mode=0o700, exist_ok=True)
        place = tempfile.mkdtemp(dir=loads)
        target = f"loads/{os.path.basename(place)}/model"
        try:
            message = {"op": "load", "checkpoint": name, "session": session, "target": target}
            answer = request(self._run_dir, message)
            folder = os.path.join(self._run_dir, str(answer.get("folder") or target))
            self._model.load(folder, load_fn)
        except AgentRefusedError as error:
            if error.code != "NOT_FOUND":
                raise RuntimeError(f"nsml.load({name!r}): {error.code}: {error}") from None
            raise _no_model(session or self._name, name) from None
        finally:
            remove_tree(place)

    def _record_state(self, state: str) -> None:
        record = {"kind": "state", "time": time.time(), "state": state}
        self.spool.append(encode(record), must_arrive=True)

    def _nothing_bound(self, verb: str) -> None:
        text = f"nothing to {verb} with: call nsml.bind({verb}=...) before nsml.{verb}"
        if self._run_dir:
            raise RuntimeError(text)
        # Programs bind only `if IS_ON_NSML` and save without asking.
        notice(text)

    def _lost(self, name: str, error: BaseException) -> None:
        text = f"checkpoint {name} is lost, training goes on: {error}"
        notice(text)
        if self._run_dir:
            self.spool.drop(text)

    def _is_disk_full(self, error: BaseException) -> bool:
        """Whether a save failed for the disk's sake; torch says so in a RuntimeError of its own."""
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            return True
        if not isinstance(error, (OSError, RuntimeError)) or not hasattr(os, "statvfs"):
            return False
        try:
            space = os.statvfs(self._checkpoints.root)
        except OSError:
            return True
        return space.f_bavail * space.f_frsize < _ENOUGH_BYTES


def _name(checkpoint: Name) -> str:
    name = "" if checkpoint is None else str(checkpoint)
    return name.encode("utf-8", "replace").decode()


def _is_first() -> bool:
    """Whether this process is the one of its gang that saves.

    A launcher that starts one for each device numbers them in RANK (torchrun, accelerate) or, within
    its node, in LOCAL_RANK alone (Lightning).
    """
    rank = os.environ.get("RANK")
    ranks = [rank] if rank else [os.environ.get("NSML_RANK"), os.environ.get("LOCAL_RANK")]
    return all(rank in (None, "", "0") for rank in ranks)


def _no_model(session: str, name: str) -> KeyError:
    return KeyError(f"No model: {session}/nsml_model/{name},")


def _argument(flag: str, arguments: List[str]) -> Optional[str]:
    """The value of `--flag VALUE` or `--flag=VALUE`, the last one as argparse takes it."""
    value = None
    for position, argument in enumerate(arguments):
        if argument == flag and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(flag + "="):
            value = argument[len(flag) + 1 :]
    return value


_SESSION = Session(os.environ.get("NSML_RUN_DIR", ""), constants.SESSION_NAME)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SESSION.spool.after_fork)

bind = _SESSION.bind
save = _SESSION.save
load = _SESSION.load
paused = _SESSION.paused
report = _SESSION.reporter.report
infer = _SESSION.infer
should_stop = _SESSION.should_stop
image = _SESSION.media.image
audio = _SESSION.media.audio
video = _SESSION.media.video
text = _SESSION.media.text
histogram = _SESSION.media.histogram
embedding = _SESSION.media.embedding
feature_map = _SESSION.media.feature_map
table = _SESSION.media.table
