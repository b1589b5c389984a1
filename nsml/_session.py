"""`nsml.bind`, `save`, `load`, `paused`, `report` and `infer`, for the session of this process."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import ExitStack, suppress

import nsml
from nsml import constants
from nsml._artifacts import Artifacts
from nsml._checkpoints import Checkpoints
from nsml._copies import copy_file, copy_tree
from nsml._digests import sha256
from nsml._frames import MAX_PAYLOAD
from nsml._leaving import Leaving
from nsml._media import Media
from nsml._model import Model
from nsml._notice import notice
from nsml._path_text import name_text, path_text, recorded_name
from nsml._points import Points
from nsml._progress import ProgressWriter, is_first
from nsml._report import Reporter, encode
from nsml._rights import make_folders, make_unique, remove_tree
from nsml._spool import Spool
from nsml._stages import INFER, stage
from nsml._steps import Progress, read_done, write_done
from nsml._strict import Strictness, comes_from_signal, reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Set, Tuple, Union

    from nsml._checkpoints import Draft
    from nsml._knobs import Knob, Knobs
    from nsml._limits import Watch
    from nsml._presets import Preset

    Function = Callable[..., Any]
    Name = Union[str, int, None]

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
_ENOUGH_BYTES = 1 << 20
_STEPS = "nsml"
"""Origin of progress records of `nsml.steps`."""
_NOTHING_BOUND = "nothing to {0} with: call nsml.bind({0}=...) before nsml.{0}"
_LONGEST_STEP_S = 10.0
"""How long a save on a notice waits for the end of a step of `nsml.steps`; then the next report saves, midway."""
FRAMEWORK_FILE = ".nsml-framework"
"""Beside the files of a checkpoint that a framework has saved: which training of which framework it is of."""
_RESUME_TRIES = 10
"""A minute each, while the agent does not answer: saved progress is worth the wait."""

_LISTEN_S = 0.05
_KEPT_TRIES, _KEPT_EVERY_S = 100, 0.1
_LONGEST_REASON = 500
_MOST_REASONS = 20  # Most logged reasons for lost checkpoints, once each.
_MOST_NAME_BYTES = 512
"""Longest name of a checkpoint: the platform's limit."""
_KEPT_NAME_BYTES = 200
_KEEP_S, _KEEP_AGAIN_S = 5.0, 60.0
"""How long to wait for an agent that does not answer, and then not to ask it."""


class Session:
    """The API of one process.

    Args:
        run_dir: the folder shared by the node agent and the program; "" outside of a session,
            where reports are dropped and checkpoints are in `.nsml/checkpoints` of the current folder.
        name: USER/DATASET/N.
    """

    def __init__(self, run_dir: str, name: str) -> None:
        self._run_dir = run_dir
        self._name = name
        root = run_dir or os.path.abspath(".nsml")
        self.spool = Spool(os.path.join(run_dir, "spool") if run_dir else None)
        self._stage = stage(run_dir)
        self.strictness = Strictness(is_on=not run_dir)
        # In a stage the program is not to be trained: what it reports on the way to `paused` is dropped.
        reports = Spool(None) if self._stage else self.spool
        self.reporter = Reporter(reports, self.strictness)
        self.media = Media(reports, "" if self._stage else run_dir, self.strictness)
        self._checkpoints = Checkpoints(os.path.join(root, "checkpoints"))
        self._artifacts = Artifacts(run_dir, root, self._checkpoints, self._keep_artifact)
        self._loads = os.path.join(root, "loads")
        self._kept_from = 0.0  # when the agent is next asked to take over files
        self._model = Model()
        self._saved_at = nsml._IMPORTED_AT  # noqa: SLF001 - the package's own start
        self._unnamed: Set[str] = set()  # names chosen for unnamed checkpoints of this second
        self._reasons: Set[str] = set()  # logged reasons for lost checkpoints
        self._saves = 0  # active calls of save functions
        self.resumes_from = os.environ.get("NSML_RESUME", "") if run_dir else ""
        """The name of the checkpoint to resume from, "" without one."""
        self._has_resumed = False
        self.leaving = Leaving(run_dir)
        self.progress_writer = ProgressWriter(reports)
        """The one of this process, for all that know how far its training is."""
        self.progress = Progress(self._loop_begins, self._step_ended)
        self._watch: Optional[Watch] = None
        if self._stage and self._stage != INFER:
            from nsml._limits import Watch

            self._watch = Watch(run_dir)
        self._knobs: Optional[Knobs] = None
        self._declared: Dict[str, Knob] = {}
        self.points = Points(run_dir, lambda: self.reporter.scope, self)  # type: ignore[arg-type] # a Program
        if run_dir:
            self.reporter.safe_point = self._reported
            self.progress.step_begins = self._step_begins
            self.progress.progressed = self._progressed
            self.progress.loop_ended = self._loop_ended
            if os.environ.get("NSML_KNOBS") or self.points.are_knobs_set():
                self.points.follow()

    def bind(
        self,
        /,
        save: Optional[Function] = None,
        load: Optional[Function] = None,
        infer: Optional[Function] = None,
        **kwargs: Any,
    ) -> None:
        """Register functions that save, load and infer; the last call counts.

        The checkpoint to resume from, if there is one, is loaded at once.

        Args:
            save: `save(path, **kwargs)` writes files below the folder `path`.
            load: `load(path, **kwargs)` reads them.
            infer: `infer(data)` returns predictions.
            **kwargs: passed to `save` and `load`, except `use_nsml_legacy`. Without functions they
                are saved themselves: torch and keras models, optimizers, anything that can be pickled.
        """
        is_legacy = kwargs.pop("use_nsml_legacy", True) is not False
        self._model = Model(save, load, infer, kwargs, is_legacy=is_legacy)
        if self._run_dir:
            self.leaving.claim()
            self.leaving.can_resume(self._model.can_save, self._model.can_load)
            self.points.look_from_torch(counts=True)
        if self._knobs is not None:
            self._knobs.bind(kwargs)
        if self._run_dir and not self._stage:
            self._resume()

    def knob(
        self,
        name: str,
        default: Any,
        *,
        min: Optional[float] = None,  # noqa: A002 - as people write it
        max: Optional[float] = None,  # noqa: A002
        choices: Any = None,
        help: str = "",  # noqa: A002, ARG002
    ) -> Any:
        """Return the current value of a knob, which `nsml set` changes while the program runs.

        The first call declares it. Call it at each step, where the value is used: it is a safe point, and takes about
        0.4 microseconds.

        Args:
            name: 1 to 64 of A-Z a-z 0-9 _ . - /
            default: a float, int, bool or text of at most 256 characters; values have its type.
            min: smallest allowed number.
            max: largest allowed number.
            choices: all allowed values.
            help: for readers of the program.

        Raises:
            TypeError, ValueError: at the first call: invalid or contradictory arguments.
        """
        knob = self._declared.get(name)
        if knob is None:
            knob = self._declare(name, (default, min, max, choices))
            if knob is None:
                return default
        else:
            given = knob.given
            is_same = given[0] is default and given[1] is min and given[2] is max
            if not ((is_same and given[3] is choices) or knob.is_told):
                self._compare(knob, (default, min, max, choices))
        knob.is_read = True
        self.points.look()
        knob.is_read = True
        return knob.value

    def _declare(self, name: str, given: Tuple[Any, Any, Any, Any]) -> Optional[Knob]:
        try:
            knobs = self.knobs()
        except (ImportError, AttributeError):
            return None  # a signal handler, during the first call of the interrupted thread
        self.points.look_from_torch(counts=True)
        knob = knobs.declare(name, given)
        self._declared = knobs.declared
        return knob

    def _compare(self, knob: Knob, given: Tuple[Any, Any, Any, Any]) -> None:
        if not knob.is_given(given):
            self.knobs().hint(knob)

    def knobs(self) -> Knobs:
        """Return all knobs of this process; loads them at the first call."""
        if self._knobs is None:
            with nsml._loading:  # noqa: SLF001 - the package's own lock
                from nsml._knobs import Knobs
                from nsml._presets import parse_presets

                given = os.environ.get("NSML_KNOBS", "") if self._run_dir else ""
                try:
                    presets = parse_presets(given) if given else []
                    presets += self.set_after(0)
                except ValueError as error:
                    notice(f"what knobs are to be set to cannot be read: {reason(error)}")
                    presets = []
                if self._knobs is None:
                    knobs = Knobs(presets, notice)
                    self._knobs = knobs
                    knobs.bind(self._model.objects)
                    if presets:
                        self._say_unused_at_exit(knobs)
        return self._knobs

    def _say_unused_at_exit(self, knobs: Knobs) -> None:
        """Report mistyped names at the end of the program."""
        import atexit

        pid = os.getpid()

        def say() -> None:
            unused = knobs.unused_presets()
            if unused and os.getpid() == pid:
                notice(
                    f"no knob of the program was called {', '.join(unused)}: what it was to be was not used"
                )

        atexit.register(say)

    def knob_table(self) -> Dict[str, Dict[str, Any]]:
        """Return all knobs with their current state: declared ones, and numbers of bound optimizers.

        Each has `value`, `default`, `min`, `max`, `choices` and `step`: of the last change, or None.
        """
        return self.knobs().table()

    def save(
        self,
        checkpoint: Name = None,
        save_fn: Optional[Function] = None,
        *,
        iteration: Name = None,
    ) -> None:
        """Save a checkpoint under a name; the same name overwrites.

        The default name is the time in seconds, with a suffix `-2` and so on if that is taken.

        Exceptions of the program's own save function pass through, except for a full or broken disk.
        Any other failure is logged, the checkpoint is lost and training continues. If
        the session should save and exit, the program exits after saving.

        Raises:
            RuntimeError: nothing is bound to save with, after `nsml.strict()`.
        """
        if not _may_be_called(save_fn):
            kind = type(save_fn).__name__
            self._cannot(f"nsml.save: save_fn is no function ({kind}): it is not used")
            save_fn = None
        if self._stage:
            return
        name = self._name_of(checkpoint if checkpoint is not None else iteration)
        if save_fn is None and not self._model.can_save:
            self._nothing_to_save(name)
            return
        if self._save(name, save_fn) and not self._saves:
            self.points.look()
            if self.leaving.unanswered() is not None:
                self.saved_on_notice(name)

    def artifact(self, name: Name, path: Any) -> None:
        """Save a file or a folder as the next version of a name, unless it equals the previous one.

        After the return the originals may be changed or removed. Anything but regular files and folders, also links,
        is skipped and logged. A failure is logged, the artifact is lost and training
        continues.

        Raises:
            OSError, TypeError, ValueError: in strict mode, if it cannot be saved.
        """
        if self._stage:
            return
        try:
            text = _artifact_name(name)
        except Exception as error:
            if comes_from_signal(error) or self.strictness.is_on:
                raise
            notice(f"an artifact is lost, training goes on: {reason(error)}")
            return
        try:
            self._artifacts.save(text, path)
        except (OSError, TypeError, ValueError, RecursionError) as error:
            if comes_from_signal(error):
                raise
            is_disks = isinstance(error, OSError) and error.errno in _DISK_ERRORS
            if self.strictness.is_on and not is_disks:
                raise
            notice(f"artifact {text} is lost, training goes on: {reason(error)}")
            self.spool.append(self._artifacts.lost_record(text, reason(error)), must_arrive=True)
        self.points.look()

    def _keep_artifact(self, name: str, folder: str, files: List[Tuple[str, int]]) -> None:
        """Hand the files over to the agent. Raises ValueError: too many files for a record."""
        self._hand_over(folder)
        seal = ""
        with suppress(OSError):  # gone already: the agent will report it
            seal = self._checkpoints.seal(folder, files)
        step = self.reporter.last().get("step")
        record = self._artifacts.record(name, folder, files, seal, step)
        self.spool.append(record, must_arrive=True)

    @property
    def has_bound(self) -> bool:
        """Whether the program has bound what saves or loads."""
        return self._model.can_save or self._model.can_load

    def keep(self, name: str, path: str, marker: bytes, step: Any, summary: Dict[str, Any]) -> bool:
        """Copy a file or folder that a framework has saved; it becomes a checkpoint. Return False if it is lost.

        Args:
            name: of the checkpoint.
            path: of the file, or of the folder, whose files it gets.
            marker: the content of `FRAMEWORK_FILE` beside the files.
            step: of the training.
            summary: values at this step.
        """

        def copy(folder: str) -> None:
            if os.path.isdir(path):
                os.rmdir(folder)
                copy_tree(path, folder)
            else:
                copy_file(path, os.path.join(folder, os.path.basename(path)))
            with open(os.path.join(folder, FRAMEWORK_FILE), "wb") as file:
                file.write(marker)

        try:
            return self._save(_name(name), copy, facts={"step": step, "summary": summary})
        except Exception as error:
            if comes_from_signal(error):
                raise
            self._lost(name, error)
            return False

    def _name_of(self, checkpoint: Name) -> str:
        """Return the name of a new checkpoint; an unreadable name must not lose the checkpoint."""
        try:
            return _name(checkpoint) or self._fresh_name()
        except Exception as error:
            if comes_from_signal(error):
                raise
            name = self._fresh_name()
            kind = type(checkpoint).__name__
            self._cannot(f"nsml.save: {kind} is no name ({reason(error)}): it is saved as {name}")
            return name

    def _fresh_name(self) -> str:
        """Return a name not used by a checkpoint of this session: several may be saved in one second."""
        second = str(int(time.time()))
        name, number = second, 1
        while name in self._unnamed or self._is_saved(name):
            number += 1
            name = f"{second}-{number}"
        if number == 1:
            self._unnamed.clear()  # of an earlier second
        self._unnamed.add(name)
        return name

    def _is_saved(self, name: str) -> bool:
        try:
            return self._checkpoints.newest(name) is not None
        except OSError:  # an unreadable folder: the save reports it
            return False

    def should_stop(self) -> bool:
        """Return whether the session should save and exit: call `nsml.save`, which then ends the program.

        For loops with their own way to save; what is bound is saved automatically.
        """
        notice = self.leaving.notice()
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
            KeyError: there is no such checkpoint, or it is hidden from this user.
            TimeoutError: it is not on this node and the node agent is unreachable.
            RuntimeError: nothing is bound to load with.
        """
        wanted = checkpoint if checkpoint is not None else iteration
        if wanted is None:
            raise TypeError("nsml.load needs the name of a checkpoint")
        self._load(_name(wanted), load_fn, session)

    def _load(
        self,
        name: str,
        load_fn: Optional[Function] = None,
        session: Optional[str] = None,
        *,
        is_resuming: bool = False,
    ) -> List[int]:
        """Load by the recorded name; return the done steps of the checkpoint."""
        if load_fn is None and not self._model.can_load:
            if self._run_dir:
                raise RuntimeError(_NOTHING_BOUND.format("load"))
            notice(_NOTHING_BOUND.format("load"))
            return []
        folder = None
        if not session or session == self._name:
            folder = self._checkpoints.newest(name)
        if folder is not None and self._checkpoints.is_changed(folder):
            notice(f"checkpoint {name} was changed since it was saved: its files here are not used")
            folder = None
        if folder is not None:
            # The saved one may be the only copy: a load function may change its own.
            with ExitStack() as stack:
                try:
                    copy = stack.enter_context(self._checkpoints.lent(folder, self._loads))
                except FileNotFoundError:  # the platform removes it at this moment
                    copy = ""
                if copy:
                    done, made = read_done(copy, remove=True)
                    self._model.load(copy, load_fn)
            if copy:
                self._knobs_loaded(made)
                return done
        if not self._run_dir:
            raise _no_model(session or self._name, name)
        return self._load_from_afar(name, load_fn, session, is_resuming=is_resuming)

    def paused(self, scope: Optional[Dict[str, Any]] = None) -> None:
        """Load the checkpoint of `--iteration`, and continue: the start of a fork or a resume.

        In a session of `nsml submit` it loads the submitted checkpoint, predicts, and ends the process: it never returns.
        In one of `nsml infer` it loads the checkpoint, and then only evaluates what `nsml exec` asks.

        Raises:
            RuntimeError: neither is the case, nor is there an `--iteration`.
        """
        if scope is not None:
            self.reporter.scope = scope
        if self._watch is not None:
            self._watch.paused()
        print("Paused.", flush=True)
        if self._stage:
            self._serve()
        self._resume()  # an earlier attempt's checkpoint is newer than the initial one
        if self._has_resumed:
            return
        iteration = _argument("--iteration", sys.argv[1:])
        if iteration is None:
            if not self._run_dir:
                return
            raise RuntimeError(
                "nsml.paused() has nothing to load: nsml fork, nsml submit and nsml infer start a program with --pause 1"
            )
        self._record_state("PAUSED")
        self.progress.resume(self._load(recorded_name(iteration)))
        self._record_state("RUNNING")

    def start_stage(self) -> None:
        """Limit the time until `paused`, if this session predicts."""
        if self._watch is not None:
            self._watch.start()

    def _serve(self) -> NoReturn:
        """Predict for a submission, or wait for inputs. Ends the process, or raises what the program's `load` raises."""
        if self._watch is None:
            self._record_state("PAUSED")
            self.load_initial()
            self._record_state("RUNNING")
            print("Ready: nsml exec SESSION 'nsml.infer(...)'", flush=True)
            while True:  # until the session is stopped
                self.points.look()
                time.sleep(_LISTEN_S)
        from nsml._predictions import predict

        predict(self._stage, self._watch, self.load_initial, self._model.infer, self.keep_file)

    def load_initial(self, load_fn: Optional[Function] = None) -> None:
        """Load the session's checkpoint with this function, which may move its copy, or with the bound one.

        Raises KeyError without one.
        """
        if not self.resumes_from:
            raise KeyError("the session has no checkpoint")
        for tries_left in range(_RESUME_TRIES, 0, -1):
            try:
                self._load(self.resumes_from, load_fn, is_resuming=True)
            except TimeoutError:
                if tries_left == 1:
                    raise
            else:
                return

    def keep_file(self, name: str, path: str) -> None:
        """Save an artifact that must not be lost. Raises OSError, TypeError, ValueError."""
        self._artifacts.save(name, path)
        for _ in range(_KEPT_TRIES):
            self.spool.settle()
            if not self.spool.is_waiting:
                return
            time.sleep(_KEPT_EVERY_S)
        raise OSError(errno.ENOSPC, "the record of an artifact cannot be written")

    def fetch_artifact(self, name: str) -> Tuple[str, str]:
        """Fetch the newest artifact of a name among all sessions of this user; return its folder, and its session.

        The folder above it is the caller's to remove.

        Raises:
            KeyError: there is none.
            OSError: it could not be fetched.
        """
        from nsml._agent import AgentRefusedError, request

        make_folders(self._loads)
        place = make_unique(self._loads)
        target = f"loads/{os.path.basename(place)}/model"
        try:
            answer = request(self._run_dir, {"op": "artifact", "name": name, "target": target})
        except AgentRefusedError as error:
            remove_tree(place)
            if error.code in ("NOT_FOUND", "UNSUPPORTED"):
                raise KeyError(name) from None
            raise OSError(f"{error.code}: {error}") from None
        folder = os.path.join(self._run_dir, str(answer.get("folder") or target))
        return folder, str(answer.get("session", ""))

    def cache(
        self,
        preprocess_fn: Function,
        output_path: Union[str, Sequence[str]] = ("./processed",),
        **kwargs: Any,
    ) -> None:
        """Call `preprocess_fn(output_path=[...], **kwargs)`, which writes these files and folders, or restore them.

        They are restored from an earlier session of the same user, if the source of the function, its arguments and the
        versions of the session's datasets are the same. Functions that it calls are not looked at: if one changes,
        change an argument. All processes of a replica may call it: the first one runs the function. Outside of a
        session it always runs.
        """
        given = output_path if isinstance(output_path, str) else list(output_path)

        def run() -> None:
            preprocess_fn(output_path=given, **kwargs)

        if not self._run_dir:
            run()
            return
        from nsml._caches import cached

        paths = [given] if isinstance(given, str) else [str(path) for path in given]
        of, may_save = (preprocess_fn, kwargs), not self._stage
        cached(run, paths, of=of, run_dir=self._run_dir, session=self, may_save=may_save)

    def visdom(self, visdom: Any = None, **kwargs: Any) -> Any:
        """Return a `visdom.Visdom` that never ends training.

        A session has no Visdom server to post to. Unless `server` names one, the windows are written to a file, the
        artifact `visdom` of the session from its end on: `visdom.Visdom().replay_log(FILE)` shows them. Outside of a
        session it is `visdom.Visdom(**kwargs)`.

        Args:
            visdom: the module.
            **kwargs: of its class.

        Raises:
            TypeError: no module was given.
        """
        if not hasattr(visdom, "Visdom"):
            raise TypeError("nsml.Visdom needs the module: nsml.Visdom(visdom=visdom)")
        if not self._run_dir:
            return visdom.Visdom(**kwargs)
        from nsml._windows import session_visdom

        return session_visdom(visdom.Visdom, kwargs, self.artifact)

    def infer(self, data: Any, **kwargs: Any) -> Any:
        """Return the result of the bound infer function for `data`."""
        return self._model.infer(data, **kwargs)

    def _loop_begins(self) -> None:
        if self.resumes_from and not self._has_resumed:
            notice(
                f"nsml.steps counts from its first step: checkpoint {self.resumes_from} is not loaded; "
                "call nsml.bind(save=..., load=...) before it, in each replica"
            )

    def _step_begins(self, step: int) -> None:
        if self.leaving.is_trainer():
            self.points.tick("steps", step)
        else:
            self.points.look()

    def _step_ended(self) -> None:
        if self._run_dir:
            self.points.look_from_torch()
            self.points.look()
            self._answer_notice(time.time(), is_between=True)

    def _progressed(self, done: int, of: int) -> None:
        self.progress_writer.write(done, of, "steps", _STEPS)

    def _loop_ended(self, done: int, of: int) -> None:
        self.progress_writer.finish(done, of, "steps", _STEPS)

    def _reported(self, now: float, step: Any) -> None:
        """Handle the end of a report."""
        self.points.look_from_torch()
        if type(step) is int and self.leaving.is_trainer():
            self.points.tick("report", step)
        else:
            self.points.look()
        self._answer_notice(now)

    def _answer_notice(self, now: float, *, is_between: bool = False) -> None:
        """Save on a notice, and exit, when possible: between two steps, at the end of a report, in a pause."""
        leaving = self.leaving
        if self._stage or self._saves or not (leaving.is_waiting or leaving.is_time(now)):
            return
        if leaving.unanswered() is None or not (is_first() and self._model.can_save):
            return
        is_midway = self.progress.is_in_step and not is_between
        if is_midway and leaving.waited_s() < _LONGEST_STEP_S:
            return  # the step, with all its reports, ends soon
        name = f"attempt-{os.environ.get('NSML_ATTEMPT', '1')}"
        try:
            is_saved = self._save(name, None, is_midway=is_midway)
        except Exception as error:
            leaving.answered()
            notice(
                f"could not save on notice, training goes on until SIGTERM: {_error_text(error)}"
            )
            return
        if is_saved:
            self.saved_on_notice(name)

    # Methods of `nsml._live.Program`, for changes to the running program.

    def set_after(self, number: int) -> List[Preset]:
        """Return what later changes set in this attempt. Raises ValueError if that cannot be read."""
        if not self._run_dir:
            return []
        from nsml._presets import set_after

        return set_after(self.points.knobs_file, number)

    def is_training(self) -> bool:
        """Return whether the calling thread is the training thread."""
        return self.leaving.is_trainer()

    def can_load(self) -> bool:
        """Return whether a checkpoint can be loaded."""
        return self._model.can_load

    def load_now(self, checkpoint: str, session: str) -> None:
        """Load a checkpoint during training."""
        self._load(checkpoint, None, session or None)

    def says_state(self, state: str) -> None:
        """Record PAUSED or RUNNING."""
        self._record_state(state)

    def save_on_notice(self) -> None:
        """Save if requested by the platform, though the program is not at a point for it."""
        self._answer_notice(time.time())

    def saved_on_notice(self, name: str) -> None:
        """Record that a notice was answered by this checkpoint, and leave if it asks for that. Raises SystemExit."""
        said = self.leaving.unanswered()
        if said is None:
            return
        self.leaving.answered()
        notice(f"saved checkpoint {name} on notice: {said.reason}")
        if said.goes:
            self.leaving.leave(name)

    def _resume(self) -> None:
        """Load the last checkpoint of an earlier attempt, or the session's initial one, once.

        On failure a later attempt starts anew; the first one ends: the initial checkpoint was an explicit request.
        """
        name = self.resumes_from
        if not name or self._has_resumed or not self._model.can_load:
            return
        for tries_left in range(_RESUME_TRIES, 0, -1):
            try:
                self.progress.resume(self._load(name, is_resuming=True))
            except TimeoutError:
                if tries_left == 1:
                    raise
            except Exception as error:
                if os.environ.get("NSML_ATTEMPT") == "1":
                    raise
                notice(f"could not go on from checkpoint {name}: {_error_text(error)}")
                return
            else:
                break
        self._has_resumed = True
        notice(f"goes on from checkpoint {name}")

    def _save(
        self,
        name: str,
        save_fn: Optional[Function],
        *,
        is_midway: bool = False,
        facts: Optional[Dict[str, Any]] = None,
    ) -> bool:
        """Save; return False if the disk is full or broken.

        `facts`: step and summary of the record, if not those of the last report.
        """
        try:
            draft = self._checkpoints.begin()
        except OSError as error:
            self._lost(name, error)
            return False
        try:
            if self._write(draft, name, save_fn):
                return self._commit(draft, name, self.progress.done(is_midway=is_midway), facts)
        except BaseException:  # of the program's function, or of a signal handler at any moment
            draft.discard()
            raise
        return False

    def _write(self, draft: Draft, name: str, save_fn: Optional[Function]) -> bool:
        """Write the files; return False if the disk is full or broken, or an object cannot be saved."""
        self._saves += 1
        try:
            self._model.save(draft.model, save_fn)
        except BaseException as error:
            is_lost = self._is_disk_full(error) or self._is_ours(error, save_fn)
            draft.discard()
            if not is_lost:
                raise
            self._lost(name, error)
            return False
        finally:
            self._saves -= 1
        return True

    def _commit(
        self, draft: Draft, name: str, done: List[int], facts: Optional[Dict[str, Any]]
    ) -> bool:
        try:
            draft.settle()
            if draft.is_empty():
                notice(f"the save function wrote no files below the folder it was given ({name})")
            made = self._knobs.made() if self._knobs is not None else {}
            if any(done) or made:
                write_done(draft.model, done, made)
            folder, files = draft.commit(name)
        except OSError as error:
            draft.discard()
            self._lost(name, error)
            return False
        if self._run_dir:
            self._hand_over(folder)
        seal = ""
        with suppress(OSError):  # gone already: the agent will report it
            seal = self._checkpoints.seal(folder, files)
        now = time.monotonic()
        elapsed, self._saved_at = now - self._saved_at, now
        if not self._run_dir:
            self._checkpoints.keep_newest(name)
            return True
        record = self._checkpoint_record(name, folder, files, seal, elapsed, facts=facts)
        self.spool.append(record, must_arrive=True)
        return True

    def _hand_over(self, folder: str) -> None:
        """Let the agent take ownership of the files, if it can; else they are only sealed.

        An unreachable agent does it when it reads the record.
        """
        if time.monotonic() < self._kept_from:
            return
        from nsml._agent import AgentRefusedError, ask_once

        try:
            ask_once(self._run_dir, {"op": "keep", "folder": folder}, timeout_s=_KEEP_S)
        except AgentRefusedError as error:
            if error.code == "UNSUPPORTED":  # it has no root
                self._kept_from = float("inf")
        except (ConnectionError, FileNotFoundError):
            pass
        except (OSError, ValueError):
            self._kept_from = time.monotonic() + _KEEP_AGAIN_S

    def _checkpoint_record(
        self,
        name: str,
        folder: str,
        files: List[Tuple[str, int]],
        seal: str,
        elapsed: float,
        *,
        facts: Optional[Dict[str, Any]],
    ) -> bytes:
        record = {
            "kind": "checkpoint",
            "time": time.time(),
            "name": name,
            "folder": folder,
            "files": [(path_text(path), size) for path, size in files],
            "seal": seal,
            "size": sum(size for _, size in files),
            "elapsed": elapsed,
        }
        if facts is None:
            summary = self.reporter.last()
            step = summary.get("step")
        else:
            summary, step = facts["summary"], facts["step"]
        with suppress(TypeError):  # reported values may have changed since
            payload = encode({**record, "summary": summary, "step": step})
            if len(payload) <= MAX_PAYLOAD:
                return payload
        return encode({**record, "summary": {}, "step": step})

    def _knobs_loaded(self, made: Dict[str, Any]) -> None:
        if self._knobs is not None:
            self._knobs.loaded(made)

    def _load_from_afar(
        self,
        name: str,
        load_fn: Optional[Function],
        session: Optional[str],
        *,
        is_resuming: bool = False,
    ) -> List[int]:
        from nsml._agent import AgentRefusedError, NotHandedOutError, request

        make_folders(self._loads)
        place = make_unique(self._loads)
        target = f"loads/{os.path.basename(place)}/model"
        try:
            message: Dict[str, Any] = {
                "op": "load",
                "checkpoint": name,
                "session": session,
                "target": target,
            }
            if is_resuming:
                message["resume"] = True
            answer = request(self._run_dir, message)
            folder = os.path.join(self._run_dir, str(answer.get("folder") or target))
            done, made = read_done(folder, remove=True)
            self._model.load(folder, load_fn)
            self._knobs_loaded(made)
        except AgentRefusedError as error:
            if error.code != "NOT_FOUND":
                why = f"nsml.load({name!r}): {error.code}: {error}"
                raise NotHandedOutError(why) from None
            raise _no_model(session or self._name, name) from None
        else:
            return done
        finally:
            remove_tree(place)

    def _record_state(self, state: str) -> None:
        record = {"kind": "state", "time": time.time(), "state": state}
        self.spool.append(encode(record), must_arrive=True)

    def _nothing_to_save(self, name: str) -> None:
        text = _NOTHING_BOUND.format("save")
        if not self._run_dir:  # programs bind only `if IS_ON_NSML` and save without asking
            notice(text)
        elif self.strictness.is_on:
            raise RuntimeError(text)
        else:
            self._lost(name, text)

    def _cannot(self, text: str) -> None:
        """Handle a call with an invalid argument."""
        if self.strictness.is_on:
            raise TypeError(text)
        notice(text)

    def _is_ours(self, error: BaseException, save_fn: Optional[Function]) -> bool:
        """Return whether an error comes from saving bound objects, and not from a function of the program."""
        if self.strictness.is_on or not isinstance(error, Exception) or comes_from_signal(error):
            return False
        return save_fn is None and not self._model.has_save_function

    def _lost(self, name: str, error: Union[BaseException, str]) -> None:
        why = error if isinstance(error, str) else reason(error)
        if why not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)  # later ones with this reason are only in nsml model ls
            notice(f"checkpoint {name} is lost, training goes on: {why}")
        if self._run_dir:
            record = {"kind": "checkpoint", "time": time.time(), "name": name, "folder": ""}
            lost = {"files": [], "size": 0, "lost": why[:_LONGEST_REASON]}
            self.spool.append(encode({**record, **lost}), must_arrive=True)

    def _is_disk_full(self, error: BaseException) -> bool:
        """Return whether a save failed because of the disk; torch raises its own RuntimeError then."""
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
    """Return the recorded form of a name; a long one is truncated, with a digest."""
    name = "" if checkpoint is None else name_text(str(checkpoint))
    raw = name.encode()
    if len(raw) <= _MOST_NAME_BYTES:
        return name
    return f"{raw[:_KEPT_NAME_BYTES].decode(errors='ignore')}~{sha256(raw).hexdigest()[:32]}"


def _artifact_name(name: Name) -> str:
    """Return the recorded form of a name. Raises ValueError if it is empty."""
    text = _name(name)
    if not text:
        raise ValueError("an artifact needs a name")
    return text


def _error_text(error: Exception) -> str:
    """Return an error's type and text, whatever its own methods raise."""
    return f"{type(error).__name__}: {reason(error)}"


def _may_be_called(function: Any) -> bool:
    return function is None or callable(function)


def _no_model(session: str, name: str) -> KeyError:
    return KeyError(f"No model: {session}/nsml_model/{name},")


def _argument(flag: str, arguments: List[str]) -> Optional[str]:
    """Return the value of `--flag VALUE` or `--flag=VALUE`; the last one counts, as in argparse."""
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
    os.register_at_fork(after_in_child=_SESSION.points.after_fork)
_SESSION.start_stage()

bind = _SESSION.bind
save = _SESSION.save
artifact = _SESSION.artifact
keep_file = _SESSION.keep_file
cache = _SESSION.cache
Visdom = _SESSION.visdom
load = _SESSION.load
paused = _SESSION.paused
report = _SESSION.reporter.report
infer = _SESSION.infer
knob = _SESSION.knob
knobs = _SESSION.knob_table
should_stop = _SESSION.should_stop
step = _SESSION.points.step
steps = _SESSION.progress.steps
strict = _SESSION.strictness.strict
image = _SESSION.media.image
audio = _SESSION.media.audio
video = _SESSION.media.video
text = _SESSION.media.text
histogram = _SESSION.media.histogram
embedding = _SESSION.media.embedding
feature_map = _SESSION.media.feature_map
table = _SESSION.media.table
