"""Facts of NSML's SDK, as programs knew them: run by each supported Python, each fact in a process of its own.

`python sdk_facts.py RESULTS NAME...` writes {name: error, or ""} as JSON. The SDK is on PYTHONPATH, as in a session.
Only the standard library of Python 3.8 is used.
"""

import json
import os
import sys
import traceback

NAME = os.environ.get("NSML_SESSION_NAME", "")


def records(kind):
    """The records of this process of a kind, oldest first."""
    from nsml._frames import parse

    found = []
    folder = os.path.join("run", "spool")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for name in sorted(one for one in names if one.endswith(".records")):
        with open(os.path.join(folder, name), "rb") as file:
            for _, payload in parse(file.read())[0]:
                record = json.loads(payload.decode())
                if record["kind"] == kind:
                    found.append(record)
    return found


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def read(path):
    with open(path) as file:
        return file.read()


def saving(text="1", name="model"):
    def save(folder):
        write(os.path.join(folder, name), text)

    return save


def raises(kind, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError("%s was not raised" % kind.__name__)


def bind_by_position():
    seen = []
    nsml.bind(saving(), lambda folder: seen.append("load"), lambda data: data + 1)
    nsml.save(1)
    nsml.load(1)
    assert seen == ["load"]
    assert nsml.infer(1) == 2


def last_bind_counts():
    nsml.bind(saving("first"), seen_first)
    nsml.bind(saving("second"), lambda folder: SEEN.append(read(os.path.join(folder, "model"))))
    nsml.save("best")
    nsml.load("best")
    assert SEEN == ["second"]


SEEN = []


def seen_first(folder):
    SEEN.append("first")


def bind_keywords_are_passed_on():
    seen = []

    def save(folder, *arguments, **named):
        seen.append(("save", arguments, named))

    def load(folder, real=False):
        seen.append(("load", (), {"real": real}))

    nsml.bind(save, load, real=True)
    nsml.save(1)
    nsml.load(1)
    assert seen == [("save", (), {"real": True}), ("load", (), {"real": True})]


def legacy_flag_stays():
    seen = []
    nsml.bind(save=lambda folder, **named: seen.append(named), use_nsml_legacy=False)
    nsml.save(1)
    assert seen == [{}]


class Model:
    def __init__(self, value):
        self.value = value


def objects_without_functions():
    model = Model(3)
    nsml.bind(model=model)
    nsml.save("best")
    model.value = 4
    nsml.load("best")
    assert model.value == 3


def functions_of_one_argument():
    seen = []

    def save(path):
        seen.append(path)

    def load(path):
        seen.append(path)

    nsml.bind(save=save, load=load)
    nsml.save(1)
    nsml.load(1)
    assert len(seen) == 2


def names_of_saves():
    nsml.bind(saving(), lambda folder: None)
    nsml.save(17143)
    nsml.save("epoch_3")
    nsml.save(checkpoint="best")
    nsml.save(iteration="ckpt_5")
    names = [one["name"] for one in records("checkpoint")]
    assert names == ["17143", "epoch_3", "best", "ckpt_5"], names
    nsml.load("17143")


def save_without_a_name():
    import time

    before = int(time.time())
    nsml.bind(saving())
    nsml.save()
    (saved,) = records("checkpoint")
    assert before <= int(saved["name"]) <= time.time()


def save_function_of_the_call():
    seen = []
    nsml.bind(saving("bound"), lambda folder: seen.append(read(os.path.join(folder, "model"))))
    nsml.save("best", saving("given"))
    nsml.load("best")
    assert seen == ["given"]


def same_name_overwrites():
    seen = []
    nsml.bind(saving("1"), lambda folder: seen.append(read(os.path.join(folder, "model"))))
    nsml.save("best")
    nsml.save("best", save_fn=saving("2"))
    nsml.load("best")
    assert seen == ["2"]


def load_after_save():
    seen = []
    nsml.bind(saving("now"), lambda folder: seen.append(read(os.path.join(folder, "model"))))
    nsml.save(1)
    nsml.load(1)
    assert seen == ["now"]


def keywords_of_load():
    seen = []
    nsml.bind(saving(), lambda folder: seen.append("bound"))
    nsml.save(4)
    nsml.load(checkpoint="4")
    nsml.load(iteration=4)
    nsml.load("4", load_fn=lambda folder: seen.append("given"))
    assert seen == ["bound", "bound", "given"]


def load_of_a_session():
    seen = []
    nsml.bind(saving(), lambda folder: seen.append(1))
    nsml.save("4")
    nsml.load(checkpoint="4", session=NAME)
    assert seen == [1]


def missing_is_a_key_error():
    os.environ["NSML_RUN_DIR"] = ""  # without an agent to ask for checkpoints that are elsewhere
    from nsml._session import Session

    session = Session("", NAME)
    session.bind(saving(), lambda folder: None)
    error = raises(KeyError, session.load, "gone")
    assert error.args == ("No model: %s/nsml_model/gone," % NAME,), error.args


def folders_are_new():
    seen = []
    nsml.bind(seen.append, seen.append)
    nsml.save(1)
    nsml.load(1)
    nsml.load(1)
    assert len(set(seen)) == 3, seen


def only_files_below_are_kept():
    found = []

    def save(folder):
        write(os.path.join(folder, "kept"), "1")
        write("beside", "1")

    def load(folder):
        for _, _, names in os.walk(folder):
            found.extend(names)

    nsml.bind(save, load)
    nsml.save(1)
    nsml.load(1)
    assert found == ["kept"]


def path_as_a_file():
    seen = []

    def load(path):
        seen.append(read(path))

    nsml.bind(lambda path: write(path, "weights"), load)
    nsml.save("best")
    nsml.load("best")
    assert seen == ["weights"]


def path_as_a_folder_to_make():
    seen = []

    def save(path):
        os.makedirs(path, exist_ok=True)
        write(os.path.join(path, "a"), "1")
        write(os.path.join(path, "b"), "2")

    nsml.bind(save, lambda path: seen.extend(sorted(os.listdir(path))))
    nsml.save(1)
    nsml.load(1)
    assert seen == ["a", "b"]


def load_of_the_only_file():
    seen = []
    nsml.bind(saving("weights"), lambda path: seen.append(read(path)))
    nsml.save(1)
    nsml.load(1)
    assert seen == ["weights"]


def load_of_the_folder():
    seen = []
    nsml.bind(saving(), lambda path: seen.append(os.path.isdir(path)), use_nsml_legacy=False)
    nsml.save(1)
    nsml.load(1)
    assert seen == [True]
    nsml.bind(saving(), read, use_nsml_legacy=False)
    raises(IsADirectoryError, nsml.load, 1)


def printed(function, *arguments, **named):
    """What the function writes to standard output."""
    import contextlib
    import io

    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        function(*arguments, **named)
    return written.getvalue()


def paused_is_printed():
    os.environ["NSML_RUN_DIR"] = ""
    from nsml._session import Session

    assert printed(Session("", NAME).paused, scope=locals()) == "Paused.\n"


def paused_returns_in_a_fork():
    seen = []
    nsml.bind(saving(), lambda path: seen.append("loaded"))
    nsml.save("best")
    sys.argv += ["--pause", "1", "--iteration", "best"]
    assert printed(nsml.paused, scope=locals()) == "Paused.\n"
    assert seen == ["loaded"]
    assert [one["state"] for one in records("state")] == ["PAUSED", "RUNNING"]


def report_is_recorded():
    nsml.report(**{"summary": True, "step": 3, "scope": locals(), "loss": 0.5})
    (record,) = records("metric")
    assert record["step"] == 3
    assert record["summary"] is True
    assert record["values"] == {"loss": 0.5}, record


def report_with_false():
    nsml.report(False, step=1, loss=0.5)
    (record,) = records("metric")
    assert not record.get("summary")


def names_of_metrics():
    nsml.report(step=1, train__loss=1.0, **{"val/acc:top1": 2.0, "loss@std": 0.1})
    (record,) = records("metric")
    assert sorted(record["values"]) == ["loss@std", "train/loss", "val/acc:top1"], record


def walltime_is_the_clocks():
    import time

    before = time.time()
    nsml.report(step=1, loss=1.0, walltime=3.0)
    (record,) = records("metric")
    assert before <= record["time"] <= time.time()
    assert record["values"].get("walltime", record["time"]) >= before


def values_that_are_no_numbers():
    nsml.report(step=1, wrong=object(), loss=1.0)
    (record,) = records("metric")
    assert list(record["values"]) == ["loss"], record
    with nsml.strict():
        raises(TypeError, nsml.report, step=2, wrong=object())


class Scalar:
    """As float32 of numpy, or a tensor of torch, behaves."""

    shape = ()

    def __float__(self):
        return 0.25

    def item(self):
        return 0.25


def numbers_of_other_libraries():
    nsml.report(step=1, loss=Scalar())
    (record,) = records("metric")
    assert record["values"] == {"loss": 0.25}, record


def summary_of_a_checkpoint():
    nsml.bind(saving())
    nsml.report(step=1, loss=2.0, summary=True)
    nsml.report(step=7, loss=0.5)
    nsml.save("best")
    (record,) = records("checkpoint")
    assert record["summary"] == {"step": 7, "loss": 0.5}, record
    assert record["step"] == 7


def infer_calls_the_function():
    nsml.bind(infer=lambda data, **named: (data, named))
    assert nsml.infer([1], top=3) == ([1], {"top": 3})


def copy_in_place():
    target = {"a": 1}
    nsml.copy({"b": 2}, target)
    assert target == {"a": 1, "b": 2}
    model = Model(1)
    nsml.copy(source=Model(5), target=model)
    assert model.value == 5
    raises(TypeError, nsml.copy, [1], [2])


def cache_calls_the_function():
    seen = []

    def preprocess(output_path, data):
        seen.append(data)
        for path in output_path:
            write(path, "1")

    nsml.cache(preprocess, output_path=["./a", "./b"], data=[1])
    assert seen == [[1]]
    assert os.path.exists("a")
    assert os.path.exists("b")


def visdom_is_the_programs_own():
    class Visdom:
        def __init__(self, use_incoming_socket=True, **named):
            self.use_incoming_socket = use_incoming_socket

        def _send(self, message, **named):
            return "sent"

    class Module:
        pass

    Module.Visdom = Visdom
    made = nsml.Visdom(visdom=Module, use_incoming_socket=False)
    assert isinstance(made, Visdom)
    assert made.use_incoming_socket is False


CONSTANTS = (
    *("IS_ON_NSML", "HAS_DATASET", "DATASET_PATH", "DATASET_NAME", "GPU_NUM", "SESSION_NAME"),
    *("SESSION_ID", "IS_DATASET", "NSML_NFS_OUTPUT", "PARALLEL_WORLD", "PARALLEL_PORTS", "MY_RANK"),
)


def constants_in_both_modules():
    from nsml import constants

    for name in CONSTANTS:
        assert getattr(nsml, name) == getattr(constants, name), name
    assert nsml.IS_ON_NSML is True
    assert nsml.SESSION_NAME == NAME


def empty_modules():
    import nsml.decoder
    import nsml.encoder

    assert nsml.encoder
    assert nsml.decoder


def anew(**environment):
    """The constants of a process with this environment."""
    import importlib

    from nsml import constants

    os.environ.update(environment)
    return importlib.reload(constants)


def paths_of_datasets():
    assert anew(NSML_DATASET_PATH="/data/a").DATASET_PATH == "/data/a"
    both = anew(NSML_DATASET_PATH="/data/a:/data/b", NSML_DATASET_NAME="a:b")
    assert both.DATASET_PATH[0] == "/data/a"
    assert both.DATASET_NAME == ["a", "b"]
    assert both.HAS_DATASET


def number_of_gpus():
    assert not anew(NSML_GPU_NUM="0").GPU_NUM
    assert int(anew(NSML_GPU_NUM="2").GPU_NUM) == 2


def constants_outside():
    names = ("NSML_RUN_DIR", "NSML_SESSION_NAME", "NSML_GPU_NUM", "NSML_DATASET_PATH")
    outside = anew(**dict.fromkeys(names, ""))
    assert outside.IS_ON_NSML is False
    assert outside.HAS_DATASET is False
    assert (outside.DATASET_PATH, outside.SESSION_NAME, outside.GPU_NUM) == ("", "", 0)


def older_name_of_has_dataset():
    constants = anew(NSML_DATASET_PATH="/data/a")
    assert constants.IS_DATASET is constants.HAS_DATASET is True


def no_shared_folder():
    assert nsml.NSML_NFS_OUTPUT == ""


def local_stub_loses():
    assert not os.path.samefile(os.path.dirname(nsml.__file__), "nsml")
    assert "stub" in read("nsml/__init__.py")


def metric_api():
    from urllib.request import Request, urlopen

    address = os.environ["NSML_METRIC_API"]
    urlopen(Request(address, method="DELETE"), timeout=10).close()
    body = json.dumps({"@step": 3, "@epoch": 1, "@time": 1.0, "loss": 0.5}).encode()
    urlopen(Request(address, data=body), timeout=10).close()
    last = records("metric")[-1]
    assert last["step"] == 3, last
    assert last["values"]["loss"] == 0.5, last


LOADER = """
import os
def test_data_loader(root_path):
    with open(os.path.join(root_path, "test", "test_data")) as file:
        return {data}
"""
FEEDS = """
import os
from nsml.constants import DATASET_PATH
def feed_infer(output_file, infer_func):
    with open(output_file, "w") as file:
        file.write(str(infer_func(os.path.join(DATASET_PATH, "test"))))
    if os.stat(output_file).st_size == 0:
        raise AssertionError("output result of inference is nothing")
"""


def of_stage(stage, data="file.read().split()", loader=LOADER, folder="test"):
    """Mark a fact of a session of a submission: `data` is what the loader returns, `folder` has the test set."""

    def mark(fact):
        fact.stage, fact.loader, fact.folder = stage, loader.replace("{data}", data), folder
        return fact

    return mark


def prepare(fact):
    """Make checkpoint and dataset of a submission, and its environment."""
    data = os.path.abspath("data/digits")
    os.makedirs(os.path.join(data, fact.folder))
    os.makedirs("run/checkpoints/1-best/model")
    write("run/checkpoints/1-best/model/weight", "7")
    write(
        os.path.join(data, fact.folder, "test_data"), "".join("row%d\n" % one for one in range(25))
    )
    write(os.path.join(data, "data_loader.py"), fact.loader)
    write("data_loader.py", "raise SystemExit('the copy of the project')\n")
    os.environ.update(
        NSML_STAGE=fact.stage,
        NSML_TEST_FOLDER=fact.folder,
        NSML_RESUME="best",
        NSML_ATTEMPT="1",
        NSML_DATASET_PATH=data,
        NSML_DATASET_NAME="digits",
    )


def submitted(load=None, infer=None, before=lambda: None):
    """Run a program of a submission in a child; its exit code, output, and prediction or None."""
    child = os.fork()
    if not child:
        out = os.open("output", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        loaded = []
        nsml.bind(
            save=saving(),
            load=load or (lambda path: loaded.append(read(os.path.join(path, "weight")))),
            infer=infer or (lambda data: [(0.5, one + loaded[0]) for one in data]),
        )
        before()
        nsml.paused(scope=locals())
        os._exit(99)
    code = os.waitpid(child, 0)[1] >> 8
    kept = records("artifact")
    path = os.path.join("run/checkpoints", kept[0]["folder"], "prediction") if kept else ""
    return code, read("output"), read(path) if path else None


@of_stage("predict")
def submission_ends():
    code, said, made = submitted()
    assert code == 0, said
    assert said.startswith("Paused.\n.load nsml model takes "), said
    assert made.splitlines()[:2] == ["row07", "row17"]


@of_stage("predict")
def save_before_paused():
    code, said, made = submitted(before=lambda: nsml.save("best"))
    assert (code, made.splitlines()[0]) == (0, "row07"), said
    assert records("checkpoint") == []


@of_stage("predict")
def lines_of_predictions():
    code, said, made = submitted(infer=lambda data: [(0.1, {"a": len(one)}) for one in data[:2]])
    assert (code, made) == (0, "{'a': 4}\n{'a': 4}\n"), said


@of_stage("predict", data="(file.read().split(), ['references'])")
def two_arguments_of_infer():
    code, said, made = submitted(infer=lambda queries, others: [(0, others[0])])
    assert (code, made) == (0, "references\n"), said


@of_stage("predict", loader=FEEDS)
def owners_feed():
    code, said, made = submitted(infer=lambda path: {"rows": len(read(path + "/test_data"))})
    assert (code, made) == (0, "{'rows': 140}"), said


@of_stage("predict")
def owners_loader_counts():
    code, said, _ = submitted()
    assert code == 0, said
    assert "the copy of the project" not in said


@of_stage("predict", loader=FEEDS)
def one_dataset_in_a_submission():
    nsml.constants.DATASET_PATH = nsml.DATASET_PATH = [nsml.DATASET_PATH, "/data/other"]
    code, said, made = submitted(infer=lambda path: nsml.DATASET_PATH)
    assert code == 0, said
    assert made == os.environ["NSML_DATASET_PATH"]


@of_stage("predict", loader=FEEDS)
def empty_predictions():
    code, said, made = submitted(infer=lambda path: "")
    assert (code, made) == (83, None), said
    assert "output result of inference is nothing" in said


@of_stage("predict")
def load_that_fails():
    code, said, made = submitted(load=lambda path: read("gone"))
    assert (code, made) == (81, None), said
    assert "Error: Error occurred while loading model" in said


@of_stage("predict")
def infer_that_fails():
    code, said, made = submitted(infer=lambda data: data["gone"])
    assert (code, made) == (82, None), said
    told = "An error occurred somewhere in your code. You can check error 'nsml submit --test'."
    assert told in said


@of_stage("predict")
def infer_of_nothing():
    code, said, made = submitted(infer=lambda data: None)
    assert (code, made) == (82, None), said
    assert "TypeError: object of type 'NoneType' has no len()" in said


@of_stage("predict-test")
def rows_of_a_dry_run():
    code, said, made = submitted()
    assert code == 0, said
    assert len(made.splitlines()) == 10


@of_stage("predict-test", data="[]", folder="test_submit")
def small_set_is_test():
    taken = nsml.DATASET_PATH
    code, said, made = submitted(infer=lambda _: [(1, read(taken + "/test/test_data").split()[-1])])
    assert (code, made) == (0, "row24\n"), said


def main():
    """Run each fact in a child with a folder and an SDK of its own, and write the results."""
    global nsml
    results = {}
    for name in sys.argv[2:]:
        folder = os.path.abspath(name)
        os.makedirs(os.path.join(folder, "nsml"))
        os.makedirs(os.path.join(folder, "run"))
        write(os.path.join(folder, "nsml", "__init__.py"), "raise SystemExit('a stub')\n")
        said = os.path.join(folder, "error")
        child = os.fork()
        if not child:
            try:
                os.chdir(folder)
                sys.path.insert(0, folder)
                os.environ["NSML_RUN_DIR"] = os.path.join(folder, "run")
                if hasattr(globals()[name], "stage"):
                    prepare(globals()[name])
                import nsml

                globals()[name]()
            except BaseException:
                write(said, traceback.format_exc())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        results[name] = read(said) if os.path.exists(said) else ""
    write(sys.argv[1], json.dumps(results))


if __name__ == "__main__":
    main()
