"""What stands above a table."""

from tui.widgets.table import with_sign


def test_titles_say_how_many_columns_have_no_room_and_are_not_cut_for_that():
    assert with_sign("  Name  Summary    ", 3, 24) == "  Name  Summary       +3"
    assert with_sign("  Name  Summary", 3, 18) == "  Name  Summary +3"
    assert with_sign("  Name  Summary", 12, 18) == "  Name  Summary  +"
    assert with_sign("  Name  Summary", 12, 15) == "  Name  Summa…+"
