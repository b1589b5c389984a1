"""What `nsml exec` evaluates: whatever it does, the thread that trains goes on as it was."""

from __future__ import annotations

import signal
import sys
import threading
import time

import pytest

from nsml._expressions import MOST_BYTES, Evaluator

LIMIT_S = 30.0
SHORT_S = 0.2
"""For what has to be interrupted."""


class Optimizer:
    def __init__(self):
        self.rate = 0.1


@pytest.fixture
def evaluator():
    return Evaluator()


def evaluated(evaluator, text, limit_s=LIMIT_S, **names):
    streams = sys.stdout, sys.stderr
    answer = evaluator.evaluate(text, names, limit_s)
    assert (sys.stdout, sys.stderr) == streams
    return answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loss * 2", "1.0"),
        ("[x for x in range(3) if x < limit]", "[0, 1]"),
        ("sorted(names, key=lambda one: -len(one) * limit)", "['abc', 'b']"),
        ("import math\nmath.floor(loss)", "0"),
        ("b = loss\nb", "0.5"),
        ("b = loss", None),
        ("None", None),
        ("  loss  ", "0.5"),
        ("'\\ud800'", "'\\ud800'"),
    ],
)
def test_the_value_of_the_last_line_is_what_comes(evaluator, text, value):
    answer = evaluated(evaluator, text, loss=0.5, limit=2, names=["b", "abc"])
    assert (answer["value"], answer["error"], answer["is_late"]) == (value, "", False)


def test_objects_are_changed_and_names_are_ones_own(evaluator):
    optimizer, loss = Optimizer(), 0.5
    text = "optimizer.rate = 0.3; loss = 7; seen = 1; globals()[1] = 2"
    hides = evaluated(evaluator, text, optimizer=optimizer, loss=loss)["hides"]
    assert (optimizer.rate, loss, hides) == (0.3, 0.5, ["loss"])
    again = evaluated(evaluator, "loss, seen", loss=loss)
    assert (again["value"], again["hides"]) == ("(7, 1)", [])
    evaluated(evaluator, "globals().clear()", loss=loss)
    assert evaluated(evaluator, "loss", loss=loss)["value"] == "0.5"


def test_what_it_prints_is_apart_from_what_the_program_prints(evaluator, capsys):
    at_work, is_over = threading.Event(), threading.Event()

    def work():
        at_work.wait(LIMIT_S)
        print("of the program")
        is_over.set()

    other = threading.Thread(target=work)
    other.start()
    text = (
        "import sys\nprint('seen')\nsys.stderr.write('said\\n')\n"
        f"at_work.set()\nis_over.wait({LIMIT_S})\nNone"
    )
    answer = evaluated(evaluator, text, at_work=at_work, is_over=is_over)
    other.join()
    assert answer["output"] == "seen\nsaid\n"
    assert capsys.readouterr().out == "of the program\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1/0", "ZeroDivisionError"),
        ("x = (", "SyntaxError"),
        ("a\0b", "null bytes"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("exit()", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): f()\nf()", "RecursionError"),
        ("class E(Exception):\n def __str__(self): raise self\nraise E", "E"),
        ("class R:\n def __repr__(self): raise BaseException\nR()", "BaseException"),
        (
            "class M(type):\n def __getattribute__(c, n): 1/0\nclass E(Exception, metaclass=M): pass\nraise E",
            "E",
        ),
        ("(" * 500 + ")" * 500, "Error"),
    ],
)
def test_what_it_raises_is_told_and_goes_nowhere(evaluator, text, error):
    answer = evaluated(evaluator, text)
    assert error in answer["error"]
    assert answer["value"] is None
    assert "nsml/_expressions" not in answer["error"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("class R:\n def __repr__(self): return S('x')\nR()", "x"),
        ("import sys\nsys.stdout.write(S('x'))", "1"),
        ("print(S('x'))", None),
        ("raise ValueError(S('x'))", None),
        ("class E(Exception): pass\nE.__name__ = S('x')\nraise E", None),
        (
            "class K:\n def __hash__(self): return hash('loss')\n __eq__ = end\nglobals()[K()] = 1",
            None,
        ),
    ],
)
def test_none_of_its_methods_is_called_in_the_thread_that_waits(evaluator, text, value):
    hostile = (
        "def end(*_): raise SystemExit\n"
        "class S(str):\n __getitem__ = __len__ = encode = __eq__ = __hash__ = end\n"
    )
    assert evaluated(evaluator, hostile + text, loss=0.5)["value"] == value
    for text in ("loss", "loss"):
        assert evaluated(evaluator, text, loss=0.5)["is_late"] is False


def test_what_is_let_go_of_ends_in_its_thread(evaluator):
    ended_in = []

    class Made:
        def __del__(self):
            ended_in.append(threading.current_thread().name)

    evaluated(evaluator, "a = make(); b = make(); make()", make=Made)
    evaluated(evaluator, "del a; b = 1", make=Made)
    assert ended_in == ["nsml exec"] * 3


def test_no_statement_of_this_package_applies_to_it(evaluator):
    text = "def f(x: int): pass\nf.__annotations__['x'] is int"
    assert evaluated(evaluator, text)["value"] == "True"


def test_what_others_print_meanwhile_goes_where_it_would(evaluator, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    printed = []

    def work():
        print("nowhere", flush=True)
        printed.append(True)

    def wait():
        other = threading.Thread(target=work)
        other.start()
        other.join()

    evaluated(evaluator, "wait()", wait=wait)
    assert printed


def test_a_stream_that_is_kept_keeps_nothing(evaluator, capsys):
    kept = []
    evaluated(evaluator, "import sys\nkept.append(sys.stdout)", kept=kept)
    for _ in range(10):  # the number of the thread is given again
        other = threading.Thread(target=kept[0].write, args=("said\n",))
        other.start()
        other.join()
    assert capsys.readouterr().out == "said\n" * 10


@pytest.mark.parametrize("text", ["sys.stdout = None", "sys.stderr = 1/0", "sys.stdout.close()"])
def test_the_streams_are_as_they_were(evaluator, text):
    evaluated(evaluator, f"import sys\n{text}")
    print("still there")


@pytest.mark.parametrize(
    "text",
    [
        "while True: pass",
        "while True: print('x' * 1000)",
        "import time\nwhile True: time.sleep(0.01)",
        "while True:\n try: 1/0\n except Exception: pass",
    ],
)
def test_what_does_not_end_is_interrupted(evaluator, monkeypatch, text):
    monkeypatch.setattr("nsml._expressions._ENDS_WITHIN_S", 30.0)  # on a busy machine
    answer = evaluated(evaluator, text, SHORT_S)
    assert (answer["is_late"], answer["error"], answer["value"]) == (True, "", None)
    assert len(answer["output"]) <= MOST_BYTES
    assert evaluated(evaluator, "1")["value"] == "1"


def test_after_an_interruption_the_interpreter_looks_for_no_other(evaluator):
    """Else a traced program would hang in its next call, on Python 3.11."""
    for _ in range(20):
        evaluated(evaluator, "while True: pass", 0.01)
    before, calls = sys.gettrace(), []
    sys.settrace(lambda *_: calls.append(1))
    try:
        evaluator.after_fork()
    finally:
        sys.settrace(before)
    assert calls


def test_what_does_not_stop_is_left_behind_alone(evaluator):
    text = (
        "while not end.is_set():\n try:\n  while not end.is_set(): end.wait(0.01)\n"
        " except BaseException: pass"
    )
    end = threading.Event()
    answer = evaluated(evaluator, text, SHORT_S, end=end)
    assert answer["is_late"]
    assert "goes on" in answer["error"]
    try:
        assert "still runs" in evaluated(evaluator, "1")["error"]
    finally:
        end.set()
    give_up_at = time.monotonic() + LIMIT_S
    while evaluated(evaluator, "1")["error"]:
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


@pytest.mark.parametrize(
    "text", ["'x' * (1 << 20)", "print('é' * (1 << 20))", "raise ValueError('x' * (1 << 20))"]
)
def test_no_text_is_longer_than_there_is_room(evaluator, text):
    answer = evaluated(evaluator, text)
    assert answer["is_cut"]
    for part in ("value", "output", "error"):
        assert len((answer[part] or "").encode()) <= MOST_BYTES


def test_a_signal_reaches_the_program_while_it_waits(evaluator):
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    def goes_on():
        return evaluated(evaluator, "1")["error"]

    before = signal.signal(signal.SIGUSR1, stop)
    end = threading.Event()
    try:
        text = (
            "import os, signal, time\nos.kill(os.getpid(), signal.SIGUSR1)\n"
            "while not end.is_set():\n try:\n  while not end.wait(0.01): pass\n except BaseException: raised.set()"
        )
        raised = threading.Event()
        streams = sys.stdout, sys.stderr
        with pytest.raises(Stop):
            evaluator.evaluate(text, {"end": end, "raised": raised}, LIMIT_S)
        assert (sys.stdout, sys.stderr) == streams
        assert raised.wait(LIMIT_S)
        assert "still runs" in goes_on()
    finally:
        end.set()
        signal.signal(signal.SIGUSR1, before)
    give_up_at = time.monotonic() + LIMIT_S
    while goes_on():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
