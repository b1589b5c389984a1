"""The prediction of a submission: what the dataset owner's data loader makes of the program's `infer`.

`DATASET_PATH/data_loader.py` is the owner's, never the program's own copy. It has `feed_infer(output_file, infer_func)`,
which writes the file in any format, or `test_data_loader(root_path)`, whose data goes to `infer` and comes back as
`[(probability, prediction), ...]`, one line each.
"""

from __future__ import annotations

import os
import reprlib
import stat
import sys
import tempfile
import time
from contextlib import suppress
from itertools import islice

import nsml
from nsml import _small_sets, constants
from nsml._agent import AgentAwayError, NotHandedOutError
from nsml._endings import end
from nsml._limits import Watch, number, predict_s, too_large
from nsml._rights import remove_tree
from nsml._stages import PREDICT_TEST
from nsml.spec.submission_exits import (
    INFER_FAILED,
    LOAD_FAILED,
    MALFORMED,
    NO_PREDICTION,
    PLATFORM_FAILED,
    PREDICTION,
    TOO_LARGE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, NoReturn

    Infer = Callable[..., Any]

_MOST_BYTES = 1 << 30
_FEW = 10
"""Items of a test submission whose dataset has no small test set."""
_LOADER = "data_loader.py"
_MODULE = "_nsml_data_loader"
"""No name of the program's: its own `data_loader` may be loaded, and stays what it is."""
_NOTHING = "output result of inference is nothing"
_LOAD_FAILED = "Error: Error occurred while loading model"
_INFER_FAILED = (
    "An error occurred somewhere in your code. You can check error 'nsml submit --test'."
)
_INFER_FAILED_IN_TEST = "An error occurred somewhere in your code: its traceback is above."
"""In the log of `nsml submit --test` itself."""
_NO_SMALL_SET = (
    "The dataset has no test_submit, a small open test set, so that a dry run has none of what is in test. Its "
    "data_loader.py asks for a file that is not there: nsml submit without -t has the whole test set."
)
_NOT_HANDED_OUT = "the platform did not hand out the checkpoint: this is no fault of the program"
_NOT_TAKEN = "the platform did not take the prediction: this is no fault of the program"


class _RefusedError(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def predict(
    stage: str,
    watch: Watch,
    load: Callable[[], None],
    infer: Infer,
    keep: Callable[[str, str], None],
) -> NoReturn:
    """Load, predict, save the file as the artifact `PREDICTION`, and end the process, always.

    Args:
        stage: PREDICT or PREDICT_TEST of `nsml._stages`.
        watch: enforces the limits.
        load: loads the submitted checkpoint.
        infer: the program's function.
        keep: saves a file as an artifact. Raises OSError, ValueError.
    """
    limit_s = predict_s()
    watch.predicting(limit_s)
    code, why = 0, ""
    failed: Any = None
    folders: List[str] = []
    try:
        code, why = LOAD_FAILED, _LOAD_FAILED
        began = time.monotonic()
        load()
        _say(f".load nsml model takes {time.monotonic() - began} seconds")
        code = INFER_FAILED
        why = _INFER_FAILED_IN_TEST if stage == PREDICT_TEST else _INFER_FAILED
        _say(f".Infer test set. The inference should be completed within {limit_s:g} seconds.")
        began = time.monotonic()
        file = _predicted(stage, watch, infer, folders)
        _say(f".Infer test set takes {time.monotonic() - began} seconds")
        code, why = PLATFORM_FAILED, _NOT_TAKEN
        keep(PREDICTION, file)
        code, why = 0, ""
    except _RefusedError as error:
        code, why = error.code, str(error)
    except (AgentAwayError, NotHandedOutError) as error:
        failed = error
        if code == LOAD_FAILED:
            code, why = PLATFORM_FAILED, _NOT_HANDED_OUT
    except BaseException as error:  # also exit() in the program's functions
        failed = error
        if isinstance(error, FileNotFoundError) and _lacks_test_set(stage):
            why = _NO_SMALL_SET
    finally:  # whatever a signal handler of the program raises
        try:
            for folder in [*folders, *_small_sets.made]:
                remove_tree(folder)
        finally:
            end(code, why, failed)


def _predicted(stage: str, watch: Watch, infer: Infer, folders: List[str]) -> str:
    """Return the path of the prediction, a regular file. Raises whatever the functions raise, and _RefusedError.

    `folders`: receives the temporary folders that it makes.
    """
    most_bytes = int(number("NSML_PREDICTION_BYTES", _MOST_BYTES))
    file = os.path.join(_temporary(folders), PREDICTION)
    watch.writing(file, most_bytes)
    given = constants.DATASET_PATH
    dataset = given if isinstance(given, str) else given[0]
    if not dataset:
        raise _RefusedError(INFER_FAILED, "there is no dataset to predict for")
    test = os.environ.get("NSML_TEST_FOLDER") or "test"
    folder = _small_sets.with_test(dataset, test)
    if not os.path.isfile(os.path.join(folder, _LOADER)):
        raise _RefusedError(INFER_FAILED, f"the dataset has no {_LOADER}, which its owner writes")
    _enter(folder)
    module = _loaded(folder)
    feed = getattr(module, "feed_infer", None)
    if callable(feed):
        try:
            feed(file, infer)
        except AssertionError as error:
            if str(error) == _NOTHING:
                raise _RefusedError(NO_PREDICTION, f"AssertionError: {_NOTHING}") from error
            raise
    else:
        is_whole = stage != PREDICT_TEST or test != "test"
        data = _test_data(module, folder)
        data = data if is_whole else _first(data)
        rows = _inferred(infer, data)
        if _is_sliced(data) and not isinstance(data, tuple) and len(rows) != len(data):
            # Some datasets have several rows for an input: whether it fits is for the evaluation to say.
            _say(f"infer returned {len(rows)} predictions for {len(data)} inputs")
        _write(file, rows)
    _check(file, most_bytes)
    watch.lift()
    return file


def _lacks_test_set(stage: str) -> bool:
    """Return whether this is a dry run without any test set: neither a small one nor an open one."""
    given = constants.DATASET_PATH
    dataset = given if isinstance(given, str) else given[0]
    return stage == PREDICT_TEST and not os.path.lexists(os.path.join(dataset, "test"))


def _temporary(folders: List[str]) -> str:
    folders.append(tempfile.mkdtemp(prefix="nsml-"))
    return folders[-1]


def _enter(folder: str) -> None:
    """Let the dataset be the only one, as a text: owners join it with `test`."""
    given = constants.DATASET_NAME
    name = given if isinstance(given, str) else given[0]
    os.environ["NSML_DATASET_PATH"], os.environ["NSML_DATASET_NAME"] = folder, name
    for module in (nsml, constants):
        vars(module).update(DATASET_PATH=folder, DATASET_NAME=name)


def _loaded(folder: str) -> Any:
    """Run the owner's module; modules beside it are found before the program's."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(_MODULE, os.path.join(folder, _LOADER))
    if spec is None or spec.loader is None:
        raise ImportError(f"{_LOADER} cannot be loaded")
    module = module_from_spec(spec)
    sys.modules[_MODULE] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
        sys.path.append(folder)
    return module


def _test_data(module: Any, folder: str) -> Any:
    load = getattr(module, "test_data_loader", None)
    if not callable(load):
        why = f"{_LOADER} of the dataset has neither feed_infer nor test_data_loader"
        raise _RefusedError(INFER_FAILED, why)
    try:
        return load(folder)
    except OSError as error:
        # Most owners join `test` themselves; some expect it.
        try:
            return load(os.path.join(folder, "test"))
        except OSError:
            raise error from None


def _inferred(infer: Infer, data: Any) -> List[Any]:
    if isinstance(data, tuple):
        return _rows(infer(*data))
    size = int(number("NSML_BATCH", 0))
    if not (size and _is_sliced(data)):
        return _rows(infer(data))
    found: List[Any] = []
    for start in range(0, len(data), size):
        found += _rows(infer(data[start : start + size]))
    return found


def _rows(result: Any) -> List[Any]:
    """Return the predictions of `[(probability, prediction), ...]`. Raises TypeError for anything else, as NSML."""
    if not hasattr(result, "__next__"):
        len(result)
    return [_prediction(one) for one in result]


def _prediction(pair: Any) -> Any:
    if not isinstance(pair, (str, bytes)):  # of "cat" it would be "a"
        with suppress(TypeError, LookupError):
            return pair[1]
    raise TypeError(
        "infer has to return a list of pairs, (probability, prediction) for each input, such as [(1.0, 3.2), ...]: "
        f"it returned {reprlib.repr(pair)} in place of a pair"
    )


def _write(file: str, rows: List[Any]) -> None:
    with open(file, "w", encoding="utf-8", errors="surrogateescape") as written:
        written.writelines(f"{row}\n" for row in rows)


def _first(data: Any) -> Any:
    if isinstance(data, tuple):
        return tuple(_first(one) for one in data)
    if hasattr(data, "__next__"):
        return list(islice(data, _FEW))
    return data[:_FEW] if _is_sliced(data) else data


def _is_sliced(data: Any) -> bool:
    """Return whether it is a list, an array or a table: parts of it are data, too."""
    if isinstance(data, (str, bytes, dict)) or not hasattr(data, "__len__"):
        return False
    try:
        data[:0]
    except Exception:
        return False
    return True


def _check(file: str, most_bytes: int) -> None:
    """Raise _RefusedError unless it is a regular file with bytes within the limit."""
    try:
        facts = os.lstat(file)
    except FileNotFoundError:
        raise _RefusedError(NO_PREDICTION, "no prediction was written") from None
    if not stat.S_ISREG(facts.st_mode):
        raise _RefusedError(MALFORMED, "the prediction is no regular file")
    if facts.st_size > most_bytes:
        raise _RefusedError(TOO_LARGE, too_large(most_bytes))
    if not facts.st_size:
        raise _RefusedError(NO_PREDICTION, f"AssertionError: {_NOTHING}")


def _say(text: str) -> None:
    with suppress(Exception):  # the program may have closed its output
        print(text, flush=True)
