"""The table of layouts: one block per layout, and what the next one does otherwise."""

from jointopt.report.plans import LayoutSummary, layout_lines, step
from jointopt.report.tables import plan_entries


def layout(make_front, rank=1, near=0, on_front=2, **time_s) -> LayoutSummary:
    return LayoutSummary(rank, tuple(plan_entries(make_front(3, pp=rank))), time_s, on_front, near)


def test_a_step_names_the_parts_that_make_the_difference_the_largest_first(make_front):
    before = layout(make_front, compute=8.0, bubble=2.5, dp_comm=0.1, other=0.0)
    after = layout(make_front, compute=8.0, bubble=0.4, dp_comm=0.5, other=0.001)
    assert step(before, after) == "less bubble, 2.100 s; more gradient traffic, 400.0 ms"
    assert step(before, before) == "the same parts of time, within 0.2 %"


def test_parts_that_differ_by_less_than_a_five_hundredth_of_all_of_the_time_are_not_named(make_front):
    # of 2 s 4 ms: 3 ms are less, though more than that of either part
    before = layout(make_front, compute=1.0, bubble=1.0)
    assert step(before, layout(make_front, compute=1.0, bubble=1.003)).startswith("the same parts")
    assert step(before, layout(make_front, compute=1.0, bubble=1.005)) == "more bubble, 5.000 ms"


def test_a_layout_is_printed_once_with_three_plans_and_a_line_on_the_step(make_front):
    many = [layout(make_front, 1, 4, compute=1.0), layout(make_front, 2, 0, 0, compute=0.8, bubble=0.3)]
    lines, plans = layout_lines([], many)
    assert len(plans) == 6
    assert [line.split()[0] for line in lines if line[:1] in "12"] == ["1", "2"]
    text = "\n".join(lines)
    assert "4 more of these degrees within 1%." in text
    assert "than the one above: more bubble, 300.0 ms; less compute, 200.0 ms; none of it on the front." in text
    assert max(map(len, lines)) <= 100
