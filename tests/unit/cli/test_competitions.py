"""Competitions at the command line."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from cli.app import App
from cli.completion import names
from cli.main import run
from nsml.common.signed_json import verify
from nsml.v1 import boards_pb2, resources_pb2
from nsml.v1 import competitions_pb2 as pb
from tests.unit.cli.conftest import FixedClock, Stream, write_signed
from tests.unit.nsml.client.contract_competitions import NOW


@pytest.fixture
def cup(state):
    """A competition of lee, whose first phase runs."""
    return state.add_competition("lee/cup", may_change=False)


@pytest.fixture
def lions(cup):
    """The user's team in it."""
    cup.team.CopyFrom(pb.Team(name="lions", members=["kim", "park"], submissions=3))
    return cup.team


@pytest.fixture
def own(state):
    """A competition of the user, with two teams."""
    found = state.add_competition("kim/own")
    for name in ("lions", "tigers"):
        found.teams.add(name=name, members=[f"{name}1"])
    return found


# Organisers


def test_the_template_makes_a_competition(nsml, state, tmp_path):
    file = tmp_path / "new.toml"
    file.write_text(nsml("competition", "template", TZ="Asia/Seoul").stdout)
    result = nsml("competition", "create", "new", str(file))
    assert result.stdout == "kim/new (draft)\n"
    assert "nsml competition open new" in result.stderr
    settings = state.competitions["kim/new"].competition.settings
    assert settings.visibility == resources_pb2.VISIBILITY_PUBLIC
    assert [one.name for one in settings.phases] == ["qualifying", "final"]
    assert settings.phases[0].starts_at.seconds > NOW
    nsml("competition", "open", "new")
    assert state.competitions["kim/new"].competition.state == pb.COMPETITION_STATE_OPEN


def test_a_wrong_file_calls_nobody(nsml, state, tmp_path):
    file = tmp_path / "new.toml"
    file.write_text("titel = 'x'\n")
    result = nsml("competition", "create", "new", str(file), check=False)
    assert (result.code, result.stdout) == (2, "")
    assert "titel: there is no such key; did you mean title?" in result.stderr
    assert "CreateCompetition" not in state.calls
    missing = nsml("competition", "create", "new", str(tmp_path / "none.toml"), check=False)
    assert missing.code == 1
    assert "No such file" in missing.stderr


def test_an_update_replaces_all(nsml, state, own, tmp_path):
    nsml("competition", "update", "own", str(tmp_path / "cup.toml"))
    settings = own.competition.settings
    assert settings.title == "Digits of the spring course"
    assert settings.phases[0].limit.count == 10


def test_a_competition_of_somebody_else_is_not_changed(nsml, cup, tmp_path):
    for words in (
        ["update", "lee/cup", str(tmp_path / "cup.toml")],
        ["open", "lee/cup"],
        ["announce", "lee/cup", "hello"],
        ["close", "lee/cup", "-y"],
    ):
        assert nsml("competition", *words, check=False).code == 4
    assert nsml("competition", "show", "lee/none", check=False).code == 5


def test_opening_names_datasets_with_an_untested_evaluation(nsml, state, own):
    """A dry run is no test: it reads neither the labels nor the public rows of the test set."""
    own.competition.settings.phases[1].dataset = "kim/final"
    session = state.add("kim/digits/3")
    scored = boards_pb2.SUBMISSION_STATE_SCORED
    for dataset, fields in (
        ("kim/digits", {"state": scored}),
        ("kim/final", {"state": scored, "is_test": True}),
        ("kim/final", {"state": boards_pb2.SUBMISSION_STATE_FAILED}),
    ):
        state.add_submission(session, **fields).dataset = dataset
    said = nsml("competition", "open", "own").stderr
    assert said.count("was scored yet") == 1
    assert "note: no submission to kim/final was scored yet: its evaluation is untested\n" in said
    assert "  try: nsml run -d kim/final ... && nsml submit @last\n" in said


def test_closing_a_phase_leaves_the_competition_open(nsml, own):
    asked = nsml("competition", "close", "own", "--phase", "qualifying", "--dry-run")
    assert "would close phase qualifying of kim/own (0 teams): it takes no more" in asked.stderr
    nsml("competition", "close", "own", "--phase", "qualifying", "-y")
    assert own.competition.state == pb.COMPETITION_STATE_OPEN
    assert own.competition.settings.phases[0].ends_at.seconds == NOW
    nsml("competition", "close", "own", "-y")
    assert own.competition.state == pb.COMPETITION_STATE_CLOSED
    assert nsml("competition", "close", "own", "-y", check=False).code == 6


def test_closing_names_the_phases_that_are_not_held(nsml, own):
    asked = nsml("competition", "close", "own", "--dry-run").stderr
    assert "it takes no more submissions, for good; not held: final" in asked
    for one in own.competition.settings.phases:
        one.is_not_held = True
    closed = nsml("competition", "close", "own", "-y").stderr
    assert "closed kim/own" in closed
    assert "standings" not in closed
    assert "not held" in nsml("competition", "phases", "own").stdout
    assert "not held" in nsml("competition", "standings", "own", "--phase", "final").stderr


def test_a_page_has_an_address_that_signs_in(nsml, state, cup):
    shown = nsml("competition", "page", "lee/cup")
    assert shown.stdout == "https://nsml.example/competitions/lee/cup?ticket=T\n"
    assert "within a minute" in shown.stderr
    assert json.loads(nsml("competition", "page", "lee/cup", "-j").stdout)["url"].endswith("=T")
    assert nsml("competition", "page", "lee/none", check=False).code == 5


def test_an_open_one_is_not_removed(nsml, state, own):
    assert nsml("competition", "rm", "own", "-y", check=False).code == 6
    assert "kim/own" in state.competitions


def test_a_disqualification_has_a_reason_and_can_be_taken_back(nsml, own):
    for words in (
        ["--disqualify", "lions"],
        ["--reason", "x"],
        ["--readmit", "a", "--disqualify", "b"],
    ):
        assert nsml("competition", "teams", "own", *words, check=False).code == 2
    nsml("competition", "teams", "own", "--disqualify", "lions", "--reason", "two accounts", "-y")
    assert own.teams[0].disqualified == "two accounts"
    listed = nsml("competition", "teams", "own").stdout
    assert "two accounts" in listed
    nsml("competition", "teams", "own", "--readmit", "lions")
    assert not own.teams[0].disqualified
    wrong = nsml("competition", "teams", "own", "--readmit", "bears", check=False)
    assert wrong.code == 5


def test_a_baseline_has_a_label_until_it_is_removed(nsml, state, own):
    nsml("competition", "baseline", "own", "sub1", "--label", "Linear")
    assert state.baselines == {"sub1": "Linear"}
    nsml("competition", "baseline", "own", "sub1", "--remove")
    assert state.baselines == {"sub1": ""}
    for words in ([], ["--label", ""], ["--label", "x", "--remove"]):
        assert nsml("competition", "baseline", "own", "sub1", *words, check=False).code == 2


def test_an_announcement_is_an_argument_or_stdin(nsml, own):
    nsml("competition", "announce", "own", "The final starts at 9:00")
    nsml("competition", "announce", "own", "-", stdin="two\nlines\n")
    assert [one.text for one in own.announcements] == ["The final starts at 9:00", "two\nlines"]
    assert nsml("competition", "announce", "own", " ", check=False).code == 2


def test_winners_of_the_last_final_phase_are_run_again(nsml, state, own):
    own.competition.settings.phases[0].is_final = True
    result = nsml("competition", "rerun", "own")
    assert "started 3 re-runs of qualifying" in result.stderr
    nsml("competition", "rerun", "own", "--phase", "final", "--teams", "5")
    assert [(one.phase, one.teams) for one in state.reruns] == [("qualifying", 3), ("final", 5)]


def test_statistics_are_the_organisers(nsml, cup, own):
    own.statistics.add(
        phase="qualifying", users=87, models=48_820, mean_models=561.15, most_models=9_000,
        under_five=12, submissions=200, mean_submissions=4.5, most_submissions=40, gpu_seconds=7_200,
    )  # fmt: skip
    shown = nsml("competition", "show", "own", "--statistics").stdout.splitlines()
    assert shown[0] == "Models"
    assert shown[3].split() == ["qualifying", "87", "48,820", "561.1", "9,000", "12"]
    assert shown[5] == "Submissions"
    assert shown[8].split() == ["qualifying", "200", "4.5", "40", "2h"]
    assert shown[0] in nsml("competition", "show", "own").stdout.splitlines()
    found = json.loads(nsml("competition", "show", "own", "--statistics", "-j").stdout)
    assert found["items"][0]["models"] == 48_820
    fields = nsml("competition", "show", "own", "--statistics", "--fields", "phase,users").stdout
    assert fields.splitlines()[-1].split() == ["qualifying", "87"]
    assert nsml("competition", "show", "lee/cup", "--statistics", check=False).code == 4


# Participants


def test_who_has_no_team_is_told_how_to_join(nsml, cup):
    shown = nsml("competition", "show", "lee/cup").stdout
    assert "your team    none" in shown
    assert "nsml competition join lee/cup  take part" in shown
    nsml("competition", "join", "lee/cup", "--team", "lions")
    assert cup.team.name == "lions"
    assert nsml("competition", "join", "lee/cup", check=False).code == 6


def test_who_is_invited_is_told_the_team(nsml, cup):
    cup.invitations.append("tigers")
    cup.competition.settings.by_invitation = True
    found = json.loads(nsml("competition", "show", "lee/cup", "-j").stdout)
    assert found["next"] == ["nsml competition join lee/cup --team tigers"]


def test_a_participant_sees_time_limit_rank_and_what_to_type(nsml, state, cup, lions):
    cup.competition.team_count = 17
    lions.submissions_left = 7
    state.add_standing("lee/cup", "tigers", 0.95)
    state.add_standing("lee/cup", "lions", 0.9, is_own=True)
    cup.announcements.add(text="Be fair\nand quick").at.seconds = NOW - 600
    shown = nsml("competition", "show", "lee/cup", "--utc").stdout
    assert "state        open: qualifying, 2d left (until 11-17 22:13Z)" in shown
    assert "limit        10 in 1d, of a team" in shown
    assert "your team    lions: kim, park" in shown
    assert "submitted    3 in this phase (failed ones do not count), 7 left now\n" in shown
    assert "rank         2 of 17, score 0.9" in shown
    assert "  11-15 22:03Z  Be fair\n    and quick\n" in shown
    assert "nsml run -d kim/digits ..." in shown
    assert "nsml submit SESSION [CHECKPOINT]" in shown
    assert "nsml submit -t SESSION" in shown
    found = json.loads(nsml("competition", "show", "lee/cup", "-j").stdout)
    assert (found["rank"], found["score"], found["team"]["submissions"]) == (2, 0.9, 3)


def test_who_may_not_submit_is_told_why_and_when(nsml, cup, lions):
    cup.why_not = "your team's limit is reached"
    lions.next_at.seconds = NOW + 720
    shown = nsml("competition", "show", "lee/cup", "--utc").stdout
    assert "next         next submission possible at 11-15 22:25Z (in 12m)" in shown
    assert "nsml submit" not in shown
    lions.ClearField("next_at")
    cup.why_not = "your team is not among the first 2"
    assert (
        "submitting   your team is not among the first 2"
        in nsml("competition", "show", "lee/cup").stdout
    )


def test_a_draft_and_one_that_begins_later_have_no_standings_to_show(nsml, state, cup, lions):
    for phase in cup.competition.settings.phases:
        phase.starts_at.seconds += 100 * 86_400
        phase.ends_at.seconds += 100 * 86_400
    cup.competition.phase = ""
    shown = nsml("competition", "show", "lee/cup").stdout
    assert "open: qualifying starts in 99d" in shown
    assert "ListStandings" not in state.calls


def test_a_team_is_left_by_who_has_one(nsml, cup, lions):
    asked = nsml("competition", "leave", "lee/cup", "--dry-run").stderr
    assert "would leave the team lions of lee/cup\n" in asked
    nsml("competition", "leave", "lee/cup", "-y")
    assert not cup.HasField("team")
    assert nsml("competition", "leave", "lee/cup", "-y", check=False).code == 6


def test_users_are_invited_into_the_team_or_the_competition(nsml, state, cup, lions, own):
    output = nsml("competition", "invite", "lee/cup", "lee", "moon").stderr
    assert "they join with: nsml competition join lee/cup --team lions\n" in output
    output = nsml("competition", "invite", "own", "moon", "--into-competition").stderr
    assert "they join with: nsml competition join kim/own\n" in output
    assert [(list(one.users), one.into_competition) for one in state.invited] == [
        (["lee", "moon"], False), (["moon"], True)
    ]  # fmt: skip
    assert nsml("competition", "invite", "lee/cup", check=False).code == 2


def test_a_merger_is_asked_for_and_agreed_to(nsml, state, cup, lions):
    asked = nsml("competition", "merge", "lee/cup", "tigers", "-y")
    assert "nsml competition merge lee/cup lions" in asked.stderr
    lions.merge_requests.append("tigers")
    assert "tigers asks to merge" in nsml("competition", "show", "lee/cup").stdout
    done = nsml("competition", "merge", "lee/cup", "tigers", "--name", "cats", "-y")
    assert done.stderr == "merged into team cats\n"
    assert done.stdout == "team cats: kim, park\n"


def test_picks_replace_earlier_ones(nsml, state, lions):
    nsml("competition", "pick", "lee/cup", "sub1", "sub2")
    nsml("competition", "pick", "lee/cup", "--none", "--phase", "final")
    assert [(list(one.submissions), one.phase) for one in state.picks] == [
        (["sub1", "sub2"], ""), ([], "final")
    ]  # fmt: skip
    for words in ([], ["sub1", "--none"]):
        assert nsml("competition", "pick", "lee/cup", *words, check=False).code == 2
    assert len(state.picks) == 2


def test_a_participant_sees_the_own_team_alone(nsml, cup, lions):
    found = json.loads(nsml("competition", "teams", "lee/cup", "-j").stdout)
    assert [one["name"] for one in found["items"]] == ["lions"]


def test_a_submission_names_its_team(nsml, state):
    session = state.add("kim/digits/3")
    state.checkpoints[session.id] = []
    made = state.add_submission(session, team="lions", state=boards_pb2.SUBMISSION_STATE_SCORED)
    assert "by          kim (lions)" in nsml("submission", "info", made.id).stdout


# Standings


@pytest.fixture
def standings(state, cup):
    state.add_standing("lee/cup", "tigers", 0.95, rank_before=2, goes_on=True)
    state.add_standing("lee/cup", "bears", 0.93, rank_before=1)
    state.add_standing("lee/cup", "lions", 0.9, is_own=True)
    state.add_standing("lee/cup", "Linear", 0.5, rank=0, is_baseline=True)
    state.add_standing("lee/cup", "cheats", 0.99, rank=0, disqualified="two accounts")


def test_standings_have_marks_and_no_rank_for_baselines(nsml, standings):
    rows = [
        line.split() for line in nsml("competition", "standings", "lee/cup").stdout.splitlines()
    ]
    assert rows[2][:3] == ["1", "+1", "tigers"]
    assert rows[3][:3] == ["2", "-1", "bears"]
    assert rows[4][:4] == ["3", "new", "lions", "(you)"]
    assert rows[5][:3] == ["-", "Linear", "(baseline)"]
    assert rows[6][:3] == ["-", "cheats", "(disqualified)"]


def test_the_first_and_the_own_row(nsml, standings):
    found = json.loads(nsml("competition", "standings", "lee/cup", "-n", "1", "-j").stdout)
    assert [one["team"] for one in found["items"]] == ["tigers", "lions"]
    assert (found["competition"], found["phase"]) == ("lee/cup", "qualifying")
    assert found["is_final"] is False


def test_private_standings_are_the_organisers(nsml, standings, own):
    assert nsml("competition", "standings", "lee/cup", "--private", check=False).code == 4
    assert nsml("competition", "standings", "own", "--private").code == 0
    assert nsml("competition", "standings", "own", "--private", "-w", check=False).code == 2


def test_final_standings_say_so(nsml, cup, standings):
    cup.competition.settings.phases[0].is_final = True
    assert "final standings" in nsml("competition", "standings", "lee/cup").stderr


class Until(Stream):
    """Interrupts the command once a text was written."""

    def __init__(self, text):
        super().__init__()
        self.text = text

    def write(self, text):
        written = super().write(text)
        self.flush()
        if self.text in self.raw_bytes.decode():
            raise KeyboardInterrupt
        return written


class RealClock(FixedClock):
    async def sleep(self, seconds):
        await asyncio.sleep(seconds)


def test_a_watch_writes_a_line_for_each_change(environ, state, standings):
    out = Until("late")
    app = App(environ=environ, stdout=out, stderr=Stream(), stdin=Stream(), given_clock=RealClock())

    def change():
        with state.changed:
            assert state.changed.wait_for(lambda: state.standings_sent, 60)
        state.add_standing("lee/cup", "late", 0.1)

    thread = threading.Thread(target=change)
    thread.start()
    code = run(["competition", "standings", "lee/cup", "-w", "-o", "jsonl"], app)
    thread.join()
    assert code == 130
    lines = [json.loads(line) for line in out.raw_bytes.decode().splitlines()]
    assert lines[-1]["team"] == "late"
    assert [one["team"] for one in lines].count("tigers") == 1


def test_a_watch_for_people_writes_rows_that_look_different_in_columns(environ, state, standings):
    out = Until("late")
    app = App(environ=environ, stdout=out, stderr=Stream(), stdin=Stream(), given_clock=RealClock())

    def change():
        with state.changed:
            assert state.changed.wait_for(lambda: state.standings_sent, 60)
        state.standings["lee/cup"][0].trend.append(0.5)
        state.add_standing("lee/cup", "late", 0.1)

    thread = threading.Thread(target=change)
    thread.start()
    assert run(["competition", "standings", "lee/cup", "-w"], app) == 130
    thread.join()
    header, _rule, *rows = out.raw_bytes.decode().splitlines()
    [late] = [one for one in rows if "late" in one]
    assert late.index("late") == header.index("Team")
    assert sum("tigers" in one for one in rows) == 1


def test_a_watch_writes_the_titles_again_if_other_columns_are_shown(environ, state, cup):
    state.add_standing("lee/cup", "tigers", 0.9, rank_before=1)
    out = Until("late")
    app = App(environ=environ, stdout=out, stderr=Stream(), stdin=Stream(), given_clock=RealClock())

    def change():
        with state.changed:
            assert state.changed.wait_for(lambda: state.standings_sent, 60)
        state.add_standing("lee/cup", "late", 0.1)

    thread = threading.Thread(target=change)
    thread.start()
    assert run(["competition", "standings", "lee/cup", "-w"], app) == 130
    thread.join()
    lines = out.raw_bytes.decode().splitlines()
    titles = [one.split()[:3] for one in lines if one.startswith("Rank")]
    assert titles == [["Rank", "Team", "Members"], ["Rank", "±", "Team"]]
    assert sum("tigers" in one for one in lines) == 1


# Signed files


def test_an_export_is_verified_and_a_changed_one_is_not(nsml, state, own, tmp_path):
    state.sign = write_signed(tmp_path).sign_digest
    file, ca = tmp_path / "own.json", tmp_path / "ca.pem"
    result = nsml("competition", "export", "own", "-o", str(file))
    assert f"nsml competition verify {file}" in result.stderr
    assert verify(file, ca.read_bytes())["teams"] == [{"name": "löwen"}]
    checked = nsml("competition", "verify", str(file), "--ca", str(ca))
    assert "is valid: kim/own, 1 team, 2 submissions" in checked.stdout
    assert nsml("competition", "export", "own").stdout.startswith('{"document":')
    file.write_bytes(file.read_bytes().replace(b"sub2", b"sub3"))
    changed = nsml("competition", "verify", str(file), "--ca", str(ca), check=False)
    assert (changed.code, changed.stdout) == (1, "")
    assert "it was changed, or is not of the platform of this certificate" in changed.stderr


def test_a_broken_export_leaves_no_file(nsml, state, own, tmp_path):
    state.breaks_export = True
    file = tmp_path / "own.json"
    file.write_text("before")
    assert nsml("competition", "export", "own", "-o", str(file), check=False).code == 3
    assert file.read_text() == "before"
    assert [one.name for one in tmp_path.glob(".nsml-*")] == []


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (b"", 1, "it is not a signed export"),
        (b'{"document":\n{}\n,"signature":{}}\n', 1, "its signature cannot be read"),
    ],
)
def test_what_is_no_export_is_not_valid(nsml, tmp_path, data, code, said):
    write_signed(tmp_path)
    (tmp_path / "x.json").write_bytes(data)
    words = ["competition", "verify", str(tmp_path / "x.json"), "--ca", str(tmp_path / "ca.pem")]
    result = nsml(*words, check=False)
    assert result.code == code
    assert said in result.stderr


def test_a_certificate_is_needed_and_checked(nsml, tmp_path):
    write_signed(tmp_path, {"format": "other"})
    file = str(tmp_path / "cup.json")
    without = nsml("competition", "verify", file, check=False)
    assert without.code == 2
    assert "--ca FILE" in without.stderr
    no_pem = nsml("competition", "verify", file, "--ca", str(tmp_path / "cup.toml"), check=False)
    assert no_pem.code == 2
    other = nsml("competition", "verify", file, "--ca", str(tmp_path / "ca.pem"), check=False)
    assert other.code == 1
    assert "no competition that this version knows" in other.stderr


# Completion


def test_names_of_competitions_are_completed(environ, cup, own):
    app = App(
        environ=environ, stdout=Stream(), stderr=Stream(), stdin=Stream(), given_clock=FixedClock()
    )
    assert [one.value for one in names(app, "competition", "")] == [
        "cup",
        "own",
        "lee/cup",
        "kim/own",
    ]
