"""The file of settings of a competition: what it says, and how it says what is wrong with it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.competitions.settings_file import parse, read, template, zone_here
from cli.exits import CommandError
from nsml.v1 import boards_pb2, resources_pb2

PHASE = '[[phase]]\nname = "final"\ndataset = "digits"\nstarts = 2027-03-01T09:00:00Z\nends = 2027-03-02T09:00:00Z\n'


def refused(text):
    with pytest.raises(CommandError) as caught:
        parse(text, "cup.toml")
    assert caught.value.code == 2
    assert caught.value.advice
    return f"{caught.value.message}\n{caught.value.why}"


def seconds(text):
    return int(datetime.fromisoformat(text).timestamp())


@pytest.mark.parametrize("zone", ["Asia/Seoul", "America/New_York", "UTC"])
def test_the_template_is_a_competition(zone):
    found = parse(template(date(2027, 2, 28), zone), "cup.toml")
    assert [one.name for one in found.phases] == ["qualifying", "final"]
    assert found.phases[0].ends_at == found.phases[1].starts_at
    assert found.visibility == resources_pb2.VISIBILITY_PUBLIC
    assert "one account a person" in found.description


def test_every_optional_line_of_the_template_is_possible():
    lines = template(date(2027, 2, 28), "UTC").splitlines()
    text = "\n".join(
        line.removeprefix("# ") if line.startswith("# ") and " = " in line else line
        for line in lines
    )
    found = parse(text, "cup.toml")
    assert (found.team_size, found.by_invitation, found.gpu_thousandths) == (4, False, 4000)
    assert found.HasField("mergers_until")
    assert found.phases[0].picks == 2
    assert found.phases[0].public_score == boards_pb2.PUBLIC_SCORE_OWN_BEST


def test_each_key_is_taken():
    found = parse(
        'title = "Cup"\ndescription = "a\\nb"\nby_invitation = true\nteam_size = 3\ngpus = 0.5\nvisibility = "team"\n'
        'mergers_until = "2027-03-01T12:00:00+09:00"\n'
        + PHASE
        + 'limit = "3/12h"\npublic_score = "ladder"\nadvance = 5\npicks = 1\n',
        "cup.toml",
    )
    assert (found.title, found.description, found.by_invitation) == ("Cup", "a\nb", True)
    assert (found.team_size, found.gpu_thousandths) == (3, 500)
    assert found.visibility == resources_pb2.VISIBILITY_TEAM
    assert found.mergers_until.seconds == seconds("2027-03-01T03:00:00+00:00")
    (phase,) = found.phases
    assert (phase.name, phase.dataset, phase.advance, phase.picks) == ("final", "digits", 5, 1)
    assert (phase.limit.count, phase.limit.window.seconds) == (3, 43_200)
    assert phase.public_score == boards_pb2.PUBLIC_SCORE_LADDER


def test_what_is_left_out_is_the_platforms_default():
    found = parse(PHASE, "cup.toml")
    assert not found.visibility
    assert not found.phases[0].HasField("limit")
    assert parse(PHASE + 'limit = "none"', "cup.toml").phases[0].HasField("limit")


@pytest.mark.parametrize(
    ("written", "instant"),
    [
        ("2027-03-01T09:00:00Z", "2027-03-01T09:00:00+00:00"),
        ("2027-03-01T09:00:00+09:00", "2027-03-01T00:00:00+00:00"),
        ("2027-03-01T09:00:00", "2027-03-01T00:00:00+00:00"),
        ('"2027-03-01T09:00"', "2027-03-01T00:00:00+00:00"),
        ("2027-03-01", "2027-02-28T15:00:00+00:00"),
        ('"2027-03-01"', "2027-02-28T15:00:00+00:00"),
    ],
)
def test_a_date_is_an_instant_or_local_in_the_zone(written, instant):
    text = 'zone = "Asia/Seoul"\n' + PHASE.replace("2027-03-01T09:00:00Z", written)
    assert parse(text, "cup.toml").phases[0].starts_at.seconds == seconds(instant)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("titel = 'Cup'\n" + PHASE, "titel: there is no such key; did you mean title?"),
        (PHASE + "limits = '3/1d'", "[[phase]] 1 (final): limits: there is no such key; did you mean limit?"),
        (PHASE + "visibility = 'public'", "(final): visibility: there is no such key: it belongs above the first [[phase]]"),
        ("dataset = 'd'\n" + PHASE, "dataset: there is no such key: it belongs below a line [[phase]]"),
        ("title = 3\n" + PHASE, "title: 3 is not a text in quotes"),
        ("by_invitation = 'yes'\n" + PHASE, "by_invitation: 'yes' is neither true nor false"),
        ("team_size = true\n" + PHASE, "team_size: true is not a whole number"),
        ("team_size = 0\n" + PHASE, "team_size: 0 is not at least 1"),
        ("team_size = 99999999999999999999\n" + PHASE, "team_size: 99999999999999999999 is not at least 1"),
        ("gpus = nan\n" + PHASE, "gpus: nan is no number of GPUs"),
        ("gpus = inf\n" + PHASE, "gpus: inf is no number of GPUs"),
        ("gpus = 0.0001\n" + PHASE, "gpus: 0.0001 is no number of GPUs"),
        ("visibility = 'pubic'\n" + PHASE, "visibility: 'pubic' is not one of private, team, public; did you mean 'public'?"),
        ("zone = 'Asia/Soul'\n" + PHASE, "zone: 'Asia/Soul' is no time zone such as 'Asia/Seoul' or 'UTC'; did you mean 'Asia/Seoul'?"),
        ("zone = '../../etc/passwd'\n" + PHASE, "zone: '../../etc/passwd' is no time zone"),
        ("zone = 9\n" + PHASE, "zone: 9 is no time zone"),
        (PHASE + PHASE, "[[phase]] 2 (final): name: there are two phases 'final'"),
        (PHASE.replace("[[phase]]", "[phase]"), "phase: write [[phase]] with two brackets"),
        ("phase = [1]", "phase: a list: each phase is a table [[phase]]"),
        ("title = 'Cup'", "[[phase]]: a competition has at least one"),
        (PHASE.replace('dataset = "digits"\n', ""), "[[phase]] 1 (final): dataset: is missing"),
        (PHASE + "limit = 3", "(final): limit: 3 is not a text such as"),
        (PHASE + "limit = '0/1d'", "(final): limit: '0/1d' is not a number of submissions"),
        (PHASE + "limit = '3/never'", "(final): limit: 'never' is not a duration"),
        (PHASE + "public_score = 'ladder=0.1'", "(final): public_score: 'ladder=0.1' is not one of"),
        (PHASE.replace("02T09:00:00Z", "01T09:00:00Z"), "(final): ends: it ends before it starts"),
        (PHASE.replace("2027-03-02T09:00:00Z", "2027-03-02"), "(final): ends: 2027-03-02 has no time"),
        (PHASE.replace("2027-03-01T09:00:00Z", "2027-03-01T09:00:00"), "(final): starts: 2027-03-01T09:00:00 has no zone"),
        (PHASE.replace("2027-03-01T09:00:00Z", "09:00:00"), "(final): starts: 09:00:00 is not a date with a time"),
        (PHASE.replace("2027-03-01T09:00:00Z", "'soon'"), "(final): starts: 'soon' is not a date with a time"),
        (PHASE.replace("2027-03-01T09:00:00Z", "0001-01-01T00:00:00Z"), "(final): starts: 0001-01-01T00:00:00+00:00: the year is not in 2000 to 2100"),
        (PHASE.replace('"final"', '"a\\u001bb"'), "name: 'a\\x1bb' is not one line of text"),
        ("x = [", "cup.toml is not TOML"),
    ],
)  # fmt: skip
def test_an_error_names_file_table_and_key(text, said):
    told = refused(text)
    assert told.startswith("cup.toml")
    assert said in told


def test_a_misspelt_key_is_not_also_a_missing_one():
    told = refused(PHASE.replace("starts", "start"))
    assert "start: there is no such key; did you mean starts?" in told
    assert "is missing" not in told


def test_all_errors_are_told_at_once():
    told = refused("team_size = 0\nvisibility = 'x'\n" + PHASE + "picks = 0\n")
    assert told.startswith("cup.toml: 3 errors\n")
    assert len(told.splitlines()) == 4


@pytest.mark.parametrize(
    ("local", "said"),
    [
        ("2027-03-28T02:30:00", "does not exist in Europe/Berlin: clocks are put forward then"),
        ("2027-10-31T02:30:00", "is twice in Europe/Berlin: write 2027-10-31T02:30:00+02:00 or 2027-10-31T02:30:00+01:00"),
    ],
)  # fmt: skip
def test_a_time_that_a_zone_lacks_or_has_twice_is_refused(local, said):
    text = 'zone = "Europe/Berlin"\n' + PHASE.replace("2027-03-01T09:00:00Z", local)
    assert said in refused(text)


@given(st.integers(seconds("2020-01-01T00:00:00+00:00"), seconds("2040-01-01T00:00:00+00:00")))
def test_an_instant_is_the_one_that_was_written(instant):
    at = datetime.fromtimestamp(instant, tz=UTC)
    text = PHASE.replace("2027-03-01T09:00:00Z", at.isoformat()).replace("2027-03-02", "2050-03-02")
    assert parse(text, "x").phases[0].starts_at.seconds == instant


@given(st.text(max_size=60))
def test_any_text_is_settings_or_a_refusal(text):
    with suppress(CommandError):
        parse(text, "cup.toml")


def test_files_that_are_no_text_are_refused(tmp_path):
    file = tmp_path / "cup.toml"
    file.write_bytes(b"title = '\xff'")
    with pytest.raises(CommandError, match="is not UTF-8"):
        read(file)
    file.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(CommandError, match="larger than 1 MiB"):
        read(file)
    file.write_bytes(b"\xef\xbb\xbf" + PHASE.replace("\n", "\r\n").encode())
    assert read(file).phases[0].name == "final"


def test_the_zone_is_that_of_the_machine():
    assert zone_here({"TZ": "Asia/Seoul"}) == "Asia/Seoul"
    assert zone_here({"TZ": ":Europe/Berlin"}) == "Europe/Berlin"
    parse(f'zone = "{zone_here({"TZ": "EST5EDT4,M3"})}"\n' + PHASE, "cup.toml")
