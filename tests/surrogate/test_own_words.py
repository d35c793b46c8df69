"""What was learned from a cluster's own runs in words, whose sums are right."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import CONSTANTS, KERNEL_SHAPES, OCCUPANCY
from jointopt.physics.sensitivities import SHARES
from jointopt.surrogate.features import PEAK, RISE
from jointopt.surrogate.job_model import _GROUPS, group_words, learned_sentence, target_sentences
from jointopt.surrogate.kernel import FEATURES, Runs
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.own_mix import Mix, OwnTarget, at_clock, feature_words, inputs
from jointopt.surrogate.power import PowerScale
from jointopt.surrogate.trees import fit_trees

NAMES = ("log2_pp", "log2_tp", "recompute")


def runs(count: int = 200, seed: int = 0) -> Runs:
    rng = np.random.default_rng(seed)
    features = {name: rng.integers(0, 4, count).astype(float) for name in sorted({*FEATURES, *NAMES})}
    features["recompute"] %= 3  # none, selective, full
    return Runs(rng.uniform(0, 0.3, (count, 3)), features, np.full(count, "lab|megatron-lm|h100-sxm5-80gb|8"),
                np.full(count, "m|64"))  # fmt: skip


def own(shift: float = 0.15) -> OwnRuns:
    """Trees of runs that take 1.16 times as long, more with tp 8 and less with recomputation."""
    known, columns = runs(), inputs(runs(), NAMES)
    slow = shift + 0.1 * (known.features["log2_tp"] == 3) - 0.05 * known.features["recompute"]
    return OwnRuns(str(known.source[0]), time=Mix(fit_trees(columns, slow), 0.75, False, NAMES))


def percents(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([+-][0-9.]+)%", text)]


def test_contributions_and_what_all_runs_have_add_up_to_what_trees_predict_even_outside_of_training() -> None:
    trees, far = own().time.trees, inputs(runs(50, 1), NAMES)
    assert trees is not None
    far[::2] += 0.02  # some beyond the range of training
    np.testing.assert_allclose(trees.contributions(far).sum(axis=1), trees.predict(far), atol=1e-6)


def sentence(one: Runs) -> str:
    return learned_sentence(own(), 0.2, 0.2, one)


@pytest.mark.parametrize("row", range(0, 40, 5))
def test_the_sentence_has_the_whole_share_of_the_trees_and_parts_that_add_up_to_it(row: int) -> None:
    trees, one = own().time.trees, runs().take(np.array([row]))
    assert trees is not None
    share = 75.0 * trees.predict(inputs(one, NAMES))[0]
    of_all, whole, *parts = percents(sentence(one))
    assert (of_all, whole) == pytest.approx((22.1, 100 * np.expm1(share / 100)), abs=0.051)
    assert 100 * np.log1p(np.array(parts) / 100).sum() == pytest.approx(share, abs=0.2)


def test_reasons_name_what_of_the_plan_made_the_runs_slower_and_faster() -> None:
    known = runs()
    tp, recompute = (known.features[name] for name in ("log2_tp", "recompute"))
    for rows, slower, reason in (
        ((tp == 3) & (recompute == 1), "+", "tp 8"), ((tp < 3) & (recompute == 2), "-", "recompute full"),
    ):  # fmt: skip
        words = sentence(known.take(np.flatnonzero(rows)[:1]))
        assert re.search(rf"\{slower}[0-9.]+% for {reason}", words)
    assert "common to all of these runs" in sentence(known.take(np.array([0])))


def test_slopes_add_what_they_give_of_each_feature_to_that_of_the_trees() -> None:
    known = runs()
    trees = own().time.trees
    mix = Mix(trees, 0.5, True, NAMES, {"log2_tp": (0.1, 1.5, 0.0, 2.0)})
    names, added = mix.contributions(known)
    np.testing.assert_allclose(added.sum(axis=1), mix(np.zeros(len(known)), known), atol=1e-6)
    bare = replace(mix, slopes={}).contributions(known)[1]
    tp = np.minimum(known.features["log2_tp"], 2.0)
    np.testing.assert_allclose((added - bare)[:, names.index("log2_tp")], 0.5 * 0.1 * (tp - 1.5), atol=1e-6)


def test_the_sentence_states_the_factor_at_the_plan_s_clocks_where_it_differs_from_that_at_the_top() -> None:
    low = learned_sentence(OwnRuns("lab"), np.log(1.304), np.log(1.268), runs(1))
    assert low.endswith("time by +30.4% at the top clock and +26.8% at this plan's.")
    assert learned_sentence(OwnRuns("lab"), 0.1, 0.1, runs(1)).endswith("time by +10.5%.")


@pytest.mark.parametrize(
    ("group", "values", "words"),
    [
        ("tp", {"log2_tp": 3.0, "log2_hidden": 12.0}, "tp 8 at hidden 4,096"), ("tp", {"log2_tp": 3.0}, "tp 8"),
        ("pp", {"log2_pp": 2.0, "log2_vpp": 1.0, "share_bubble": 0.1}, "pp 4 with vpp 2"),
        ("host", {"share_host": 0.124}, "host 12% of the time"),
        ("recompute", {"recompute": 1.0}, "recompute selective"),
        ("micro_batch_size", {"log2_micro_batch_size": 1.0, "log2_seq_length": 13.0},
         "micro_batch_size 2 at seq_length 8,192"),
        ("clock", {"clock": 0.6}, "clock 60% of the top"), ("ep", {}, "ep"),
        ("fan_speed", {"fan_speed": 3.0}, "fan speed"),
    ],
)  # fmt: skip
def test_a_group_of_features_is_named_in_the_words_of_a_plan(group: str, values: dict[str, float], words: str) -> None:
    assert group_words(group, values) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("share_bubble", "bubble fraction"), ("communication", "communication/compute ratio"), ("clock", "SM clock"),
        ("share_tp_comm", "tp communication, share of time"), ("log2_tp", "tp"), ("recompute", "recompute"),
        ("sensitivity to inter_node", "sensitivity to inter_node"),
    ],
)  # fmt: skip
def test_cards_and_plots_name_features_as_engineers_do(name: str, words: str) -> None:
    assert feature_words(name) == words


def test_every_feature_and_constant_is_of_one_group() -> None:
    features = [name for names in _GROUPS.values() for name in names]
    assert len(features) == len(set(features))
    assert {*CONSTANTS, *FEATURES, *(f"share_{part}" for part in SHARES), *OCCUPANCY, *KERNEL_SHAPES} - {
        *features
    } == set()


def own_heat(weight: float = 0.75) -> OwnRuns:
    """Runs that draw 1.1 times the power, more with tp 8, whose peaks end at 1.05 of a limit of 500 W."""
    known, columns = runs(), inputs(runs(), NAMES)
    more = 0.15 + 0.1 * (known.features["log2_tp"] == 3)
    mix = Mix(fit_trees(columns, more), weight, True, NAMES)
    heat = {PEAK: OwnTarget(PowerScale(1.3, 0.05), Mix(), 1.05), RISE: OwnTarget(PowerScale(0.9, 0.05), Mix())}
    power = {"power": PowerScale(1.1, 0.05), "power_mix": mix, "power_limit_w": 500.0}
    return OwnRuns(str(known.source[0]), **power, heat=heat)


def moved(own: OwnRuns, one: Runs, power_w: float, peak_w: float) -> tuple[str, ...]:
    """Sentences on a plan of such power and peak by the physics, of 40 K over the air."""
    values = {"power": np.array([power_w]), PEAK: np.array([peak_w]), RISE: np.array([40.0])}
    clocks = own.power_clocks
    swept = {name: np.tile(values[name], (len(clocks), 1)) for name in own.targets}
    lines = {name: of.line(one, swept[name], clocks) for name, of in own.targets.items()}
    return target_sentences(own, one, lines, swept, values)


def test_power_its_peak_and_temperature_have_a_sentence_each_with_the_trees_reasons_where_they_count() -> None:
    one = runs().take(np.flatnonzero(runs().features["log2_tp"] == 3)[:1])
    power, peak, rise = moved(own_heat(), one, 300.0, 350.0)
    share = 0.75 * own_heat().power_mix.trees.predict(inputs(one, NAMES))[0]
    expected = f"They move its power by {1.1 * np.exp(share) - 1:+.1%} at this plan's clocks. Of this, trees give "
    assert power.startswith(f"{expected}{np.expm1(share):+.1%}: ")
    assert re.search(r"\+[0-9.]+% for tp 8", power)
    assert peak == "They move its peak power by +30.0% at this plan's clocks."
    assert rise == "They move its temperature above the air by -10.0% at this plan's clocks."


def test_power_and_peaks_that_would_exceed_their_limit_are_moved_up_to_it() -> None:
    power, peak, rise = moved(own_heat(0.0), runs(1), 480.0, 500.0)
    held = "at this plan's clocks, where the power limit ends it."
    assert power == f"They move its power by +4.2% {held}"  # 500 / 480
    assert peak == f"They move its peak power by +5.0% {held}"
    assert "limit" not in rise
    assert moved(replace(own_heat(), power=PowerScale(), heat={}), runs(1), 480.0, 500.0) == ()


def test_reasons_of_a_sweep_are_means_over_its_clocks_that_add_up_to_the_trees_share() -> None:
    known = replace(runs(), features=dict(runs().features) | {"clock": np.linspace(0.5, 1.0, 200)})
    names = (*NAMES, "clock")
    target = 0.4 * (known.features["clock"] - 0.75) + 0.1 * (known.features["log2_tp"] == 3)
    mix = Mix(fit_trees(inputs(known, names), target), 1.0, True, names)
    own = OwnRuns(str(known.source[0]), power=PowerScale(1.0, 0.05), power_mix=mix, clocks=(0.6, 1.0))
    one = known.take(np.flatnonzero(known.features["log2_tp"] == 3)[:1])
    (power,) = moved(own, one, 300.0, 350.0)
    swept = [mix.trees.predict(inputs(at_clock(one, share), names))[0] for share in own.power_clocks]
    _, whole, *parts = percents(power)
    assert whole == pytest.approx(100 * np.expm1(np.mean(swept)), abs=0.051)
    assert 100 * np.log1p(np.array(parts) / 100).sum() == pytest.approx(100 * np.mean(swept), abs=0.2)
