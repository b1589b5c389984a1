"""How the list of sessions is shown, and which command lists the same."""

from hypothesis import given
from hypothesis import strategies as st

from nsml.client.streams import ENDED_STATES
from nsml.v1 import sessions_pb2 as pb
from nsml.view.sessions import STATE_WORDS
from nsml.view.tables import lay_out
from tui.listing import (
    By,
    Group,
    Listing,
    arranged,
    columns_of,
    command_of,
    grouped,
    title_of,
)
from tui.model import Row


def row(number, **summary):
    found = pb.Session(id=f"s{number}", name=f"kim/mnist/{number}")
    found.created_at.seconds = number
    found.summary.update(summary)
    return Row(found)


def test_sessions_without_what_is_sorted_by_are_last_and_new_values_count():
    rows = [row(3), row(2, loss=0.5), row(1, loss=0.7)]
    down = Listing(sort="summary.loss")

    def numbers(listing):
        return [one.session.id for one in arranged(rows, listing, 0.0)]

    assert numbers(Listing()) == ["s3", "s2", "s1"]
    assert numbers(Listing(is_down=False)) == ["s1", "s2", "s3"]
    assert numbers(down) == ["s1", "s2", "s3"]
    changed = pb.Session()
    changed.CopyFrom(rows[1].session)
    changed.summary.update({"loss": 0.9})
    rows[1].take(changed)
    assert numbers(down) == ["s2", "s1", "s3"]


def test_the_column_that_is_sorted_by_is_there_and_marked():
    assert not any("▾" in one.title for one in columns_of(Listing()))
    titles = [one.title for one in columns_of(Listing(sort="summary.loss"))]
    assert titles[:2] == ["Name", "loss▾"]
    [state] = [
        one for one in columns_of(Listing(sort="state", is_down=False)) if one.key == "state"
    ]
    assert state.title == "Status▴"
    assert state.title_within(4) == "St…▴"


def test_what_is_sorted_by_is_whole_however_narrow_the_terminal_is():
    one = pb.Session(name="kim/mnist/1", memo="with ferns of 9", checkpoint_count=123_456_789)
    one.spec.args.extend(["--lr", "0.1", "--batch", "512"])
    one.created_at.seconds, now = 1_000, 9_000.0
    one.summary.update({"train/loss": 0.00012345678, "val/acc": 0.1})
    for key, said in (
        ("memo", "with ferns of 9"),
        ("args", "lr=0.1 batch=512"),
        ("created", "2 hours ago"),
        ("checkpoints", "123456789"),
        ("summary.train/loss", "0.0001235"),
    ):
        columns = columns_of(Listing(sort=key, is_down=False))
        columns = [each for each in columns if not each.is_wide]
        layout = lay_out(columns, [one], now=now, room=50)
        assert said in layout.row(one, now)
        assert sum(layout.widths) + 2 * (len(layout.widths) - 1) <= 50


def test_that_gpus_are_simulated_is_said_in_few_words_as_the_first_line_says_it_in_full():
    one = pb.Session(simulated=True)
    one.spec.resources.gpu_thousandths = 2000
    for listing in (Listing(), Listing(columns=("gpus",))):
        [gpus] = [each for each in columns_of(listing) if each.key == "gpus"]
        assert gpus.cell(one, 0.0) == "2 sim"


def test_chosen_columns_stand_in_their_order_with_the_name_always():
    found = columns_of(Listing(columns=("state", "arg.lr", "gone"), filter="x"))
    assert [one.key for one in found] == ["name", "state", "arg.lr"]
    assert not any(one.is_optional for one in found)


def test_the_command_of_a_list_says_what_it_lacks():
    assert command_of(Listing()) == ("nsml ps -a", "")
    known = Listing(filter="state:run user:kim lstm", with_ended=False, is_mine=True)
    assert command_of(known) == ("nsml ps --mine --filter 'state:run user:kim lstm'", "")
    beyond = Listing(filter="loss<0.3 | -x", columns=("state", "arg.lr"), is_down=False)
    assert command_of(beyond) == (
        "nsml ps -a --filter 'loss<0.3 | -x' --sort created --fields name,state,arg.lr",
        "",
    )
    down = Listing(sort="summary.loss", by=By.USER, columns=("name", "arg.a,b"))
    assert command_of(down) == (
        "nsml ps -a --sort -summary.loss --fields name",
        "columns with a comma in their name and groups",
    )


def test_columns_have_names_for_people():
    assert [title_of(key) for key in ("state", "summary.val/acc", "arg.lr")] == [
        "Status",
        "val/acc  (summary)",
        "lr  (argument)",
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(sorted(STATE_WORDS)), st.integers(0, 4))
    ),
    st.sets(st.sampled_from("abc")),
)
def test_every_session_is_in_its_group_in_its_order_and_counted_once(some, folded):
    rows = []
    for number, (project, state, gpus) in enumerate(some):
        one = row(number)
        one.session.project, one.session.state = project, state
        one.session.spec.resources.gpu_thousandths = gpus * 1000
        rows.append(one)
    items = grouped(rows, Listing(by=By.PROJECT, folded=tuple(folded)))
    groups = [item for item in items if isinstance(item, Group)]
    assert [group.name for group in groups] == sorted({project for project, *_ in some})
    for group in groups:
        own = [one.session for one in rows if one.session.project == group.name]
        assert group.running + group.waiting + group.ended == len(own)
        assert group.ended == sum(one.state in ENDED_STATES for one in own)
    listed = []
    for group in groups:
        own = [one.session for one in rows if one.session.project == group.name]
        listed += [group, *([] if group.name in folded else own)]
    assert items == listed


def test_the_line_of_a_group_says_what_it_holds():
    rows = [row(1), row(2)]
    for one in rows:
        one.session.owner, one.session.state = "kim", pb.SESSION_STATE_RUNNING
        one.session.spec.resources.gpu_thousandths = 500
    [group, *_] = grouped(rows, Listing(by=By.USER))
    assert group.text == "▾ kim   2 running · holds 1 GPU"
