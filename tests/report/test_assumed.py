from jointopt.report.assumed import MOST_LINES, assumptions, by_topic


def test_what_was_not_given_is_one_sentence_with_the_values() -> None:
    said = by_topic(["pp is not given; 1 is assumed", "pue is not given; 1.58 is assumed (a survey)"])
    assert said == ["not given: pp 1, pue 1.58"]


def test_remarks_on_the_gpu_that_stands_in_are_counted_not_listed() -> None:
    said = by_topic(["h200-x: wait_w of the A100", "h200-x: active_w", "h100-x: constants are those of h200-x"])
    assert said == ["h100-x: constants are those of h200-x; 2 of these are assumed there too"]


def test_kernels_of_the_gpu_are_one_sentence_and_other_topics_keep_theirs() -> None:
    said = by_topic(["matrix products of l40s: a", "collectives of l40s: b", "network: not measured here"])
    assert said == ["kernels of l40s: matrix products: a; collectives: b", "network: not measured here"]


def test_many_assumptions_stay_few_lines() -> None:
    lines = assumptions([f"topic {i}: {'word ' * 30}" for i in range(20)])
    assert len(lines) == MOST_LINES + 1
    assert "--json" in lines[-1]
