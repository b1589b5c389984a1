"""The filter language: what it takes, and what it says of what it does not understand."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.v1 import sessions_pb2 as pb
from nsml.view.filter_fields import MOST_COLUMNS, Filtered, Sheet
from nsml.view.filtering import LONGEST, Filter, FilterError, complete, completions, states_of

NOW = 1_700_010_000.0


def session(name="kim/mnist/1", state=pb.SESSION_STATE_RUNNING, *, args=(), memo="", **summary):
    found = pb.Session(id=name, name=name, owner=name.split("/")[0], state=state, memo=memo)
    found.spec.resources.gpu_thousandths = 2000
    found.spec.args.extend(args)
    found.created_at.seconds = int(NOW) - 7_200
    found.summary.update(summary)
    return Filtered(found)


ONE = session(
    args=["--lr", "0.02", "--bs=128"], memo="LSTM 둘째 시도", **{"val/acc": 0.99, "loss": 0.1}
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "mnist",
        "MNIST 둘째",
        '"둘째 시도"',
        "state:run",
        "status:running owner:kim id:kim/mnist/1 gpus:2",
        "state:running,pnd",
        "status=running,pnd priority:n*",
        "state:runn",
        "State:Running",
        "Running",
        "state:RUN user:k*",
        "!baseline",
        "-baseline",
        "!state:end,fai",
        "val/acc>0.9",
        "lr>=0.02 lr<=2e-2 lr=0.02 lr==0.02",
        "--lr<1",
        "gpu>=2 gpus=2",
        "age>1h age<1d",
        "nothing | mnist",
        "nothing | state:end | loss<0.2 user:kim",
        "name:*/mnist/?",
        "bs=128",
        "a'b' | lstm",
        "mnist/[1-3]",
        "kim/*",
        "lstm |",
    ],
)
def test_these_take_it(text):
    assert Filter(text).takes(ONE, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "cifar",
        "mnist cifar",
        "!mnist",
        "state:end",
        "user:lee",
        "val/acc<0.9",
        "never-reported>0",
        "!never-reported>0 cifar",
        "lr>0.02",
        "age<1h",
        "mnist !state:run | cifar",
        "user:ki",  # a value is matched whole
        '"mnist 1"',
        "mnist/[2-3]",
        "!k*/1",
        "cifar |",
    ],
)
def test_these_do_not(text):
    assert not Filter(text).takes(ONE, NOW)


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("label:stage", True),
        ("label:st*", True),
        ("label:stage=dev", True),
        ("label:stage=prod,stage=dev", True),
        ('label:note="a b"', True),
        ("label:stage=*", True),
        ("label.stage=dev", True),
        ("label.stage=prod,d?v", True),
        ("label.seed>=3 label.seed<10", True),
        ("label.seed=3", True),
        ("!label:other", True),
        ("label:dev", False),
        ("label:stage=prod", False),
        ("!label.stage=dev", False),
        ("label.stage=prod", False),
        ("label.stage>1", False),
        ("label.seed>3", False),
        ("label.other>0", False),
        ("seed>0", False),
    ],
)
def test_labels_are_found_by_key_by_value_and_as_numbers(text, is_taken):
    one = session()
    one.session.spec.labels.update({"stage": "dev", "seed": "3", "note": "a b"})
    assert Filter(text).takes(one, NOW) is is_taken


def test_a_comparison_of_what_is_not_there_holds_for_nobody_and_its_negation_for_all():
    assert Filter("!never>0").takes(ONE, NOW)
    assert not Filter("step>0").takes(session(step="many"), NOW)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("colour:red", 0, "no key 'colour'"),
        ("mnist state:", 12, "of what"),
        (
            "mnist state:run,bogus",
            12,
            "no state 'bogus'; there are queued .que., preparing .pre., running",
        ),
        ("mnist lr>=", 10, "lr>= what"),
        ("state:run,", 6, "no state ''"),
        ("state=bogus", 6, "no state 'bogus'; there are queued"),
        ("priority:urgent", 9, "no priority 'urgent'; there are idle, low, normal, high"),
        ("lr>many", 3, "'many' is not a number"),
        ("mnist age>soon", 10, "a time such as 2h"),
        ('mnist "two words', 6, "nothing closes"),
        ("x" * (LONGEST + 1), LONGEST, "longer"),
    ],
)
def test_what_says_nothing_is_told_with_its_place(text, place, words):
    with pytest.raises(FilterError, match=words) as failed:
        Filter(text)
    assert failed.value.place == place


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("memo=rq", ["memo:rq"]),
        ("state:done", ["state:succeeded"]),
        ("status=killed", ["state:stopped"]),
        ("owner==kim", ["user:kim"]),
        ("memo>rq", []),
        ("label.stage>rq", []),
        ("lr=rq", []),
        ("stat:run", ["state:run"]),
        ("created:2h", ["age<2h"]),
        ("colour:red", []),
    ],
)
def test_what_may_be_meant_is_told(text, advice):
    with pytest.raises(FilterError) as failed:
        Filter(text)
    assert failed.value.advice == advice
    assert failed.value.text.endswith(f"; try {advice[0]}" if advice else failed.value.message)


@pytest.mark.parametrize(
    ("word", "offered"),
    [
        ("st", ["state:", "status:"]),
        ("status:run", ["status:running"]),
        ("state:run,su", ["state:run,succeeded"]),
        ("user:k", []),
        ("loss", []),
    ],
)
def test_keys_and_states_are_completed(word, offered):
    assert list(completions(word)) == offered


def test_a_state_is_meant_by_all_of_it_or_else_by_how_it_begins():
    def meant(text):
        states = {state: session(state=state) for state in pb.SessionState.values() if state}
        found = [one for one, each in states.items() if Filter(f"state:{text}").takes(each, NOW)]
        return [pb.SessionState.Name(one).removeprefix("SESSION_STATE_") for one in found]

    assert meant("Succeeded") == meant("succ") == meant("end") == meant("e") == ["SUCCEEDED"]
    assert meant("sto") == ["STOPPED"]
    assert sorted(meant("stop")) == ["STOPPED", "STOPPING"]


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("even state:", "even "),
        ("staet:run", ""),
        ("state: even lr>", " even "),
        ('even memo:"two', "even "),
        ("even | colour:red", "even | "),
        ("x" * (LONGEST + 1), "x" * LONGEST),
        ("state:succ", "state:succ"),
    ],
)
def test_terms_that_are_understood_hold_while_another_is_typed(text, rest):
    assert complete(text).text == rest


@given(st.text(alphabet="state:run|<>='\"! ,x", max_size=30))
def test_of_any_text_something_is_understood(text):
    found = complete(text).text
    assert len(found) <= len(text)
    assert complete(found).text == found


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_told(text):
    try:
        taken, place = Filter(text).takes(ONE, NOW), 0
    except FilterError as error:
        taken, place = False, error.place
    assert taken in {True, False}
    assert 0 <= place <= len(text)


def test_among_several_those_are_meant_that_one_of_the_alternatives_takes():
    sheet = Sheet(session(lr=rate) for rate in (0.1, 0.2, 0.3, 0.4))

    def among(text, places=None):
        return list(Filter(text).among(sheet, NOW, places))

    assert among("lr<0.15 | lr>0.25 !lr>0.35 | lr<0.15") == [0, 2]
    assert among("") == [0, 1, 2, 3]
    assert among("|") == among("!never | nowhere") == [0, 1, 2, 3]
    assert among("lr>0.15", [0, 1, 3]) == [1, 3]
    assert among("!lr>0.15", [0, 1, 3]) == [0]


@pytest.mark.parametrize(
    ("text", "takes", "has_steps"),
    [
        ("submission:sub1", True, True),
        ("submission:*", True, True),
        ("submission:sub2", False, True),
        ("type:evaluate", True, True),
        ("type:normal", False, True),
        ("state:run | submission:*", True, True),
        ("!submission:*", False, False),
        ("sub1", False, False),
    ],
)
def test_steps_of_submissions(text, takes, has_steps):
    step = session()
    step.session.spec.stage = pb.SESSION_STAGE_EVALUATE
    step.session.spec.submission_id = "sub1"
    assert Filter(text).takes(step, NOW) is takes
    assert Filter(text).has_steps is has_steps
    assert not Filter("submission:*").takes(ONE, NOW)


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("held_cause:start_failures", True),
        ("held_cause:START*", True),
        ('held_cause:"start failures"', True),
        ("held_cause:node_losses", False),
        ("!held_cause:*", False),
    ],
)
def test_why_it_is_held(text, takes):
    held = session(state=pb.SESSION_STATE_HELD)
    held.session.held_cause = pb.HELD_CAUSE_START_FAILURES
    assert Filter(text).takes(held, NOW) is takes
    assert Filter("!held_cause:*").takes(ONE, NOW)


TERMS = ["mnist", "state:run", "lr>1", "user:lee", "age<1h", "둘째"]
SESSIONS = st.builds(
    session,
    st.sampled_from(["kim/mnist/1", "lee/cifar/2"]),
    st.sampled_from([pb.SESSION_STATE_RUNNING, pb.SESSION_STATE_FAILED]),
    memo=st.sampled_from(["", "둘째 시도"]),
    lr=st.sampled_from([0.1, 3.0]),
)


@given(st.lists(SESSIONS, max_size=8), st.data())
def test_a_sheet_takes_what_each_session_is_taken_for_whatever_was_asked_and_changed_before(
    ones, data
):
    sheet, filling = Sheet(ones), Sheet([]).filling(1)
    for _ in range(data.draw(st.integers(0, 6))):
        step = data.draw(st.sampled_from(["put", "ask", "fill", "on"]))
        if step == "put" and ones:
            place = data.draw(st.integers(0, len(ones) - 1))
            ones[place] = data.draw(SESSIONS)
            sheet.put(place, ones[place])
        elif step == "ask":
            chosen = Filter(data.draw(st.sampled_from(TERMS)))
            expected = [place for place, one in enumerate(ones) if chosen.takes(one, NOW)]
            assert list(chosen.among(sheet, NOW)) == expected
        elif step == "fill":
            filling = sheet.filling(data.draw(st.integers(1, 4)))
        else:
            next(filling, None)
    for text in TERMS:
        expected = [place for place, one in enumerate(ones) if Filter(text).takes(one, NOW)]
        assert list(Filter(text).among(sheet, NOW)) == expected


def test_a_sheet_keeps_a_bounded_number_of_columns():
    sheet = Sheet([session(lr=0.1)])
    for number in range(100):
        assert not Filter(f"never{number}>1").among(sheet, NOW)
    assert len(sheet._columns) == MOST_COLUMNS
    assert list(Filter("lr<1").among(sheet, NOW)) == [0]


@given(st.sampled_from(TERMS))
def test_a_term_and_its_negation_never_agree(term):
    assert Filter(term).takes(ONE, NOW) is not Filter(f"!{term}").takes(ONE, NOW)


def test_hangul_in_pieces_is_the_same_as_whole():
    pieces = unicodedata.normalize("NFD", "둘째")
    assert pieces != "둘째"
    for memo, sought in (("둘째 시도", pieces), (pieces, "둘째")):
        assert Filter(sought).takes(Filtered(pb.Session(memo=memo)), 0.0)


@given(
    st.lists(
        st.sampled_from(
            [
                "state:run",
                "!state:run",
                "state:st",
                "user:kim,lee",
                "user:@me",
                "-user:kim",
                "lr<1",
                "|",
            ]
        ),
        max_size=5,
    ).map(" ".join),
    st.sampled_from(["kim", "lee", "ann"]),
    st.sampled_from([pb.SESSION_STATE_RUNNING, pb.SESSION_STATE_STOPPED]),
)
def test_what_must_be_asked_of_all_leaves_out_nothing_that_is_taken(text, owner, state):
    found = Filter(text, me="ann")
    if found.takes(session(f"{owner}/mnist/1", state), NOW):
        assert owner in (found.required("user") or [owner])
        assert state in (states_of(found.required("state")) or [state])


def test_values_that_are_asked_for_are_told():
    found = Filter("state:end !state:run | dataset:mnist state:fai,pnd")
    assert found.required("state") == ()
    assert found.named("state") == ["end", "fai", "pnd"]
    assert found.named("ds") == ["mnist"]
    assert states_of(Filter("state:st").required("state")) == [
        pb.SESSION_STATE_STOPPING,
        pb.SESSION_STATE_STOPPED,
    ]
    assert states_of([]) == []
