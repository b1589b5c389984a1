"""Names are a grammar, and nothing that could be a path or a trick fits it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain import names
from controlplane.domain.errors import InvalidRequest
from nsml.spec.dataset_names import is_dataset_name

TRICKS = [
    "",
    "../x",
    "..\\x",
    "/abs",
    "%2e%2e%2f",
    "..;/",
    "a\0b",
    "....//",
    "~root",
    "C:\\",
    "x" * 300,
    "a\u2215b",
    "a\u202eb",
    "-rf",
    "a\nb",
    "a b",
    ".hidden",
    "é",
]


@pytest.mark.parametrize(
    "check", [names.check_user, names.check_project, names.check_dataset, names.check_node]
)
@pytest.mark.parametrize("text", TRICKS)
def test_tricks_are_no_names(check, text):
    with pytest.raises(InvalidRequest):
        check(text)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (names.check_user, "kim"),
        (names.check_user, "nsml_team-2"),
        (names.check_user, "first.last"),
        (names.check_user, "a" * 32),
        (names.check_project, "v.2_b"),
        (names.check_project, "vision-2"),
        (names.check_dataset, "mnist"),
        (names.check_dataset, "KIN_phase1.v2"),
        (names.check_node, "gpu-014"),
        (names.check_request_id, "a1.B_2-c"),
        (names.check_digest, "0" * 64),
    ],
)
def test_good_names_pass_unchanged(check, text):
    assert check(text) == text


@pytest.mark.parametrize("text", ["a..b", "a.", ".a", "1.a", "a/.b", "a" * 33, "a.b\n"])
@pytest.mark.parametrize("check", [names.check_user, names.check_project])
def test_a_dot_stands_between_letters_alone(check, text):
    with pytest.raises(InvalidRequest):
        check(text)


def test_a_refusal_says_what_was_to_be_named():
    with pytest.raises(InvalidRequest, match="'Vision' is not a project name"):
        names.check_project("Vision")


def is_allowed(text):
    try:
        return names.check_dataset(text) == text
    except InvalidRequest:
        return False


@pytest.mark.parametrize(
    "text", [*TRICKS, "None", "None2", "xNone", "none", "a..b", "a.", "a_-b", "0", "a\n", "a" * 65]
)
def test_both_ends_mean_the_same_by_a_dataset_name(text):
    assert is_dataset_name(text) == is_allowed(text)


@given(st.text(alphabet="aZ9._-/ \n", max_size=66))
def test_both_ends_mean_the_same_by_any_dataset_name(text):
    assert is_dataset_name(text) == is_allowed(text)


def test_the_word_for_no_dataset_is_allowed():
    assert not is_allowed("None")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kim/mnist/12", names.SessionReference(name="kim/mnist/12")),
        ("mnist/12", names.SessionReference(dataset="mnist", number=12)),
        ("12", names.SessionReference(number=12)),
        ("@last", names.SessionReference(recent=1)),
        ("@3", names.SessionReference(recent=3)),
        ("sabcdefgh234567ab", names.SessionReference(id="sabcdefgh234567ab")),
    ],
)
def test_references(text, expected):
    assert names.parse_reference(text) == expected


def test_a_reference_longer_than_any_name_is_none():
    with pytest.raises(InvalidRequest):
        names.parse_reference("x" * names.LONGEST_REFERENCE + "/mnist/12")


def test_one_counts_a_thousand_sessions_back_and_no_further():
    assert names.parse_reference("@1000").recent == names.FURTHEST_BACK
    with pytest.raises(InvalidRequest, match="@1001") as caught:
        names.parse_reference("@1001")
    assert "@1000" in caught.value.why
    assert "nsml ps -a" in caught.value.attempt


@given(st.text())
def test_any_text_is_a_reference_or_refused(text):
    try:
        reference = names.parse_reference(text)
    except InvalidRequest:
        return
    given_fields = [reference.id, reference.name, reference.number, reference.recent]
    assert sum(1 for field in given_fields if field) == 1


@pytest.mark.parametrize(
    ("text", "advice"), [("last", "@last"), ("@latest", "@last"), ("mnist", "USER/DATASET/N")]
)
def test_the_last_session_is_named_where_it_is_meant(text, advice):
    with pytest.raises(InvalidRequest) as refused:
        names.parse_reference(text)
    assert refused.value.attempt.startswith(advice)
