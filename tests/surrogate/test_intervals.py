"""Intervals around predictions: they contain them, widen where nothing was recorded, and give the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.core.schema import Bools, Columns
from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.catalog.kernels import scaling_recipe
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.catalog.recorded_runs import RecordedRuns
from jointopt.jobs.job import Job, Training
from jointopt.surrogate.intervals import (
    ADDED_DOUBTS,
    RESULTS,
    TOP_ONLY,
    MeasuredClocks,
    add_intervals,
    bounds_within_limits,
    clock_doubt,
    doubts,
    nearest_bounds,
    new_kinds,
    open_doubts,
    outside_of_domain,
    physics_errors,
    with_measured_intervals,
    with_new_interval,
    with_time_interval,
    without_doubts,
)


def job(gpu: str = "a100-sxm4-80gb", framework: str = "torchtitan") -> Job:
    cluster = build_cluster({"gpu": gpu, "nodes": 1, "gpus_per_node": 8})
    return Job("j", load_model("llama-3-8b"), Training(4096, 64, framework=load_framework(framework)), cluster)


def columns(clock_mhz: float = 1e4, n: int = 2) -> Columns:
    results: Columns = {name: np.arange(1.0, n + 1) for name in RESULTS}
    return results | {"pp": np.ones(n, np.int64), "stage_clock_mhz": np.full((n, 1), clock_mhz)}


def inside(one: Job, plans: Columns) -> Bools:
    """Whether recorded runs support plans, (n,)."""
    return np.asarray(add_intervals(one, columns(n=len(plans["pp"])) | plans)["in_domain"])


def names(one: Job, plans: Columns | None = None) -> list[str]:
    """The doubts that any of the plans has."""
    return [name for name, of in doubts(one, columns() if plans is None else plans).items() if of.any()]


# Half-widths of logarithms of time under a profile and under none, and factors on these by steps from what is recorded.
LIKE, OTHER, WIDER = (0.2, 0.3), (0.4, 0.6), {"dense": [1.0, 1.5, 2.5, 3.0], "experts": [2.0, 3.0, 4.0, 5.0]}


@pytest.fixture
def few_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if four combinations alone were recorded."""
    rows = [
        ["torchtitan", "ampere", "bf16", "dense", *LIKE, 1, ""],
        ["torchtitan", "hopper", "bf16", "dense", *LIKE, 2, ""],
        ["megatron-lm", "ampere", "fp8", "dense", *LIKE, 1, ""],
        ["generic", "ampere", "bf16", "dense", *OTHER, 1, ""],
    ]
    monkeypatch.setattr("jointopt.surrogate.intervals.recorded_runs", lambda: RecordedRuns.of(rows, WIDER))


def width(found: Columns, name: str) -> float:
    return float(found[f"{name}_high"][0] / found[f"{name}_low"][0])


def times(found: Columns) -> list[float]:
    return [float(found[f"iteration_time_s_{end}"][0] / found["iteration_time_s"][0]) for end in ("low", "high")]


def test_every_result_lies_within_its_interval() -> None:
    found = add_intervals(job(), columns())
    for name in RESULTS:
        assert (found[f"{name}_low"] < found[name]).all()
        assert (found[name] < found[f"{name}_high"]).all()


@pytest.mark.usefixtures("few_recorded")
@pytest.mark.parametrize("name", RESULTS)
def test_a_gpu_or_framework_without_recorded_runs_widens_the_interval(name: str) -> None:
    known = width(add_intervals(job(), columns()), name)
    for unseen in (job(gpu="mi300x"), job(framework="generic")):
        assert width(add_intervals(unseen, columns()), name) > known


def test_a_time_on_cores_is_known_to_an_order_of_magnitude_whatever_was_learned_of_gpus() -> None:
    cores = job(gpu="cpu-core")
    physics = add_intervals(cores, columns())
    learned = with_time_interval(cores, physics, np.full(2, 0.1), np.zeros(2, bool))
    for found in (physics, learned, outside_of_domain(physics)):
        assert (found["iteration_time_s_low"] <= 0.25 * found["iteration_time_s"]).all()
        assert (found["iteration_time_s_high"] >= 4 * found["iteration_time_s"]).all()
    assert not physics["in_domain"].any()


def test_runs_measured_on_cores_narrow_their_interval() -> None:
    cores = job(gpu="cpu-core")
    found = with_time_interval(cores, add_intervals(cores, columns()), np.full(2, 0.1), np.ones(2, bool))
    assert width(found, "iteration_time_s") == pytest.approx(np.exp(0.2))
    far = with_time_interval(cores, add_intervals(cores, columns()), np.full(2, 0.1), np.zeros(2, bool), True)
    assert width(far, "iteration_time_s") == pytest.approx(1.8 / 0.7)


def test_energy_is_less_certain_than_time_and_than_power() -> None:
    found = add_intervals(job(), columns())
    assert width(found, "energy_j") > max(width(found, "iteration_time_s"), width(found, "avg_power_w"))


def test_low_clocks_are_inside_only_where_a_clock_sweep_was_published() -> None:
    low, top = columns(600.0), columns(1e4)
    assert inside(job("a100-sxm4-80gb"), low).all()
    assert inside(job("h100-sxm5-80gb"), top).all()
    assert not inside(job("h100-sxm5-80gb"), low).any()


def test_a_clock_without_a_measured_response_widens_the_interval_by_how_far_it_is_from_the_highest() -> None:
    hopper = job("h100-sxm5-80gb")
    top_mhz = hopper.cluster.gpu.clock_max_mhz
    plans = columns() | {"stage_clock_mhz": np.array([[top_mhz], [top_mhz / 2]])}
    found = with_time_interval(hopper, add_intervals(hopper, plans), np.full(2, 0.1), np.ones(2, bool))
    high = np.log(found["iteration_time_s_high"] / found["iteration_time_s"])
    assert high.tolist() == pytest.approx([0.1, np.hypot(0.1, 0.16 * np.log(2))])


def test_a_step_below_the_highest_clock_is_no_doubt_and_half_of_it_is() -> None:
    plans = columns() | {"stage_clock_mhz": np.array([[1965.0], [990.0]])}
    found = doubts(job("h100-sxm5-80gb"), plans)
    assert found.pop("clock").tolist() == [False, True]
    assert not any(of.any() for of in found.values())


def test_each_reason_why_nothing_recorded_supports_a_job_goes_by_its_name() -> None:
    known, mixtral = job("h100-sxm5-80gb"), load_model("mixtral-8x7b")
    assert names(known) == names(training(framework_release="0.1")) == []
    assert names(job("l40s")) == ["gpu"]
    assert names(job(framework="deepspeed")) == names(job(framework="generic")) == ["framework"]
    assert names(replace(training(dtype="fp16"), model=mixtral)) == ["model"]
    assert names(training(dtype="fp16", lora_dim=16)) == ["adapters"]
    assert names(training(dtype="fp8", framework=load_framework("nemo"), framework_release="99.01")) == ["release"]
    assert doubts(known, columns() | {"cp": np.array([1, 128])})["layout"].tolist() == [False, True]


@pytest.mark.usefixtures("few_recorded")
def test_software_gpu_precision_and_model_that_are_known_apart_and_not_together_are_out_of_domain() -> None:
    known = job()
    apart = replace(known, training=replace(known.training, dtype="fp8"))
    assert (names(known), names(apart)) == ([], ["combination"])
    assert inside(known, columns()).all()
    assert not inside(apart, columns()).any()
    assert names(replace(known, training=replace(known.training, dtype="fp4"))) == ["precision"]  # known nowhere


def test_one_slow_stage_is_enough_to_be_outside() -> None:
    plans = columns(1980.0) | {"stage_clock_mhz": np.array([[1980.0, np.nan], [1980.0, 600.0]])}
    assert inside(job("h100-sxm5-80gb"), plans).tolist() == [True, False]


def test_unknown_clocks_are_outside() -> None:
    known = job("h100-sxm5-80gb")
    blank = replace(known, cluster=replace(known.cluster, gpu=replace(known.cluster.gpu, clock_max_mhz=None)))
    assert not inside(blank, columns()).any()


@pytest.mark.parametrize("beyond", [{"seq_length": 4_000_000}, {"dtype": "fp4"}])
def test_a_workload_that_no_recorded_run_spans_is_out_of_domain(beyond: dict[str, Any]) -> None:
    known = job()
    assert inside(known, columns()).all()
    assert not inside(replace(known, training=replace(known.training, **beyond)), columns()).any()
    assert not inside(replace(known, model=load_model("mixtral-8x7b")), columns()).any()
    assert not inside(known, columns() | {"cp": np.full(2, 128)}).any()


@pytest.mark.usefixtures("few_recorded")
@pytest.mark.parametrize("learned", [False, True])
def test_each_step_from_recorded_runs_widens_the_interval_of_time(learned: bool) -> None:
    def factor(gpu: str = "a100-sxm4-80gb", framework: str = "torchtitan", model: Any = (), **changed: Any) -> float:
        one = job(gpu, framework)
        one = replace(one, training=replace(one.training, **changed), model=replace(one.model, **dict(model)))
        found = add_intervals(one, columns())
        found = with_time_interval(one, found, np.full(2, 0.1), np.zeros(2, bool)) if learned else found
        below, above = np.log(times(found)) / [-LIKE[0], LIKE[1]]
        assert below == pytest.approx(above)
        return float(below)

    long, block = {"seq_length": 4_000_000}, {"block": "feed_forward"}
    assert factor() == factor("h100-sxm5-80gb") == pytest.approx(1.0)
    one_step = factor("a40"), factor("mi300x"), factor(**long), factor(dtype="fp8"), factor(dtype="fp4")
    assert one_step == pytest.approx([1.5] * 5)
    assert (factor("a40", **long), factor(model=block)) == pytest.approx((2.5, 2.5))
    assert (factor("a40", model=block), factor("a40", model=block, **long)) == pytest.approx((3.0, 3.0))
    assert factor(framework="generic") == factor(framework="deepspeed") == pytest.approx(OTHER[0] / LIKE[0])
    assert factor("a40", "generic") == pytest.approx(1.5 * OTHER[0] / LIKE[0])
    assert factor(model=vars(load_model("mixtral-8x7b"))) == pytest.approx(3.0)  # one step, of experts


@pytest.mark.usefixtures("few_recorded")
def test_bounds_of_new_sources_widen_for_what_no_recorded_run_is_like_alone() -> None:
    def of(one: Job, below: float = 0.1, above: float = 0.2) -> list[float]:
        halves = np.full(2, below), np.full(2, above)
        return np.log(times(with_new_interval(one, add_intervals(one, columns()), halves))).tolist()

    known = job()
    assert of(known) == pytest.approx([-0.1, 0.2])
    assert of(job(framework="generic")) == pytest.approx([-0.4, 0.6])
    assert of(job("a40", framework="generic")) == pytest.approx([-0.6, 0.9])
    assert of(job("a40")) == pytest.approx([-0.3, 0.45])
    assert of(job("a40"), 0.5, 0.7) == pytest.approx([-0.5, 0.7])
    assert of(replace(known, model=load_model("mixtral-8x7b"))) == pytest.approx([-0.6, 0.9])
    assert of(job("cpu-core", framework="generic")) == pytest.approx(np.log([0.25, 8.0]))


@pytest.mark.usefixtures("few_recorded")
def test_the_interval_widens_by_the_plan_that_is_in_doubt_alone() -> None:
    found = add_intervals(job(), columns() | {"cp": np.array([1, 128]), "micro_batch_size": np.array([1, 128])})
    assert found["in_domain"].tolist() == [True, False]
    high = np.log(found["iteration_time_s_high"] / found["iteration_time_s"])
    assert high.tolist() == pytest.approx([0.3, 1.5 * 0.3])


KNOWN = {"iteration_time_s": np.exp([-0.2, 0.3]), "avg_power_w": (0.90, 1.16), "peak_memory_gib": (0.72, 1.28)}
UNKNOWN = {"iteration_time_s": np.exp([-0.4, 0.6]), "avg_power_w": (0.75, 1.25), "peak_memory_gib": (0.60, 1.50)}


@pytest.mark.usefixtures("few_recorded")
@pytest.mark.parametrize(
    ("gpu", "framework", "bounds"),
    [
        ("a100-sxm4-80gb", "torchtitan", KNOWN),
        ("h100-sxm5-80gb", "torchtitan", KNOWN | {"avg_power_w": UNKNOWN["avg_power_w"]}),  # no response to clocks
        ("a100-sxm4-80gb", "megatron-lm", UNKNOWN | {"iteration_time_s": np.exp([-0.3, 0.45])}),  # of other precision
        ("a100-sxm4-80gb", "generic", UNKNOWN),
        ("cpu-core", "generic", UNKNOWN | {"iteration_time_s": (0.25, 8.0)}),
    ],
)
def test_the_intervals_of_the_physics_are_its_errors_on_recorded_runs(gpu: str, framework: str, bounds: Any) -> None:
    found = add_intervals(job(gpu, framework), columns(clock_mhz=1e5))
    for name, (low, high) in bounds.items():
        assert found[f"{name}_low"] == pytest.approx(low * found[name])
        assert found[f"{name}_high"] == pytest.approx(high * found[name])
    (low, high), (p_low, p_high) = bounds["iteration_time_s"], bounds["avg_power_w"]
    assert found["energy_j_low"] == pytest.approx(found["energy_j"] * np.exp(-np.hypot(np.log(low), np.log(p_low))))
    assert found["energy_j_high"] == pytest.approx(found["energy_j"] * np.exp(np.hypot(np.log(high), np.log(p_high))))


@pytest.mark.usefixtures("few_recorded")
def test_at_half_the_clock_the_doubt_of_its_response_adds_to_time_in_squares() -> None:
    one = job("h100-sxm5-80gb")
    found = add_intervals(one, columns(clock_mhz=0.5 * float(one.cluster.gpu.clock_max_mhz or 0.0)))
    low, high = (np.hypot(np.log(bound), 0.16 * np.log(2.0)) for bound in KNOWN["iteration_time_s"])
    assert found["iteration_time_s_low"] == pytest.approx(found["iteration_time_s"] * np.exp(-low))
    assert found["iteration_time_s_high"] == pytest.approx(found["iteration_time_s"] * np.exp(high))
    assert found["peak_memory_gib_high"] == pytest.approx(1.5 * found["peak_memory_gib"])
    assert not found["in_domain"].any()


def test_measured_power_has_an_interval_of_its_own() -> None:
    found = with_measured_intervals(job(), add_intervals(job(), columns()), {"avg_power_w": 0.1})
    assert np.log(found["avg_power_w_low"] / found["avg_power_w"]) == pytest.approx(-0.1)
    assert np.log(found["avg_power_w_high"] / found["avg_power_w"]) == pytest.approx(0.1)


def h100(clock_mhz: float, measured: MeasuredClocks) -> tuple[float, bool]:
    """Doubt of a plan at one clock of 1,980 MHz without a published response, and whether it is remarked on."""
    one, clocks = job(gpu="h100-sxm5-80gb"), columns(clock_mhz)
    half, _ = clock_doubt(one, clocks["stage_clock_mhz"], measured)
    return float(half[0]), bool(doubts(one, clocks, measured)["clock"][0])


def test_a_clock_more_than_a_twentieth_above_all_that_were_measured_is_not_in_domain_and_widens_the_interval() -> None:
    low = MeasuredClocks(0.68, 0.75)  # 1,346 to 1,485 MHz
    assert h100(1980.0, low) == (pytest.approx(0.16 * np.log(1 / 0.75)), True)
    assert h100(1600.0, low) == (pytest.approx(0.16 * np.log(1600 / 1485)), True)
    assert h100(1550.0, low) == h100(1400.0, low) == (0.0, False)
    assert h100(1980.0, MeasuredClocks()) == h100(1980.0, MeasuredClocks(0.6, 0.985)) == (0.0, False)


def test_no_power_in_an_interval_is_above_the_limit_of_a_gpu_and_energy_goes_with_it() -> None:
    # 400 W of an A100: 1.15 times 380 W is above it, 1.15 times 300 W is not, and 410 W is its own bound
    plans = columns(n=3) | {"avg_power_w": np.array([380.0, 300.0, 410.0])}
    found = add_intervals(job(), plans)
    free = add_intervals(job(), plans | {"avg_power_w": np.full(3, 300.0)})
    high = float(free["avg_power_w_high"][0])
    assert found["avg_power_w_high"] == pytest.approx([400.0, high, 410.0])
    time = float(np.log(times(found)[1]))
    power = np.log([400.0 / 380.0, high / 300.0, 1.0])
    assert found["energy_j_high"] == pytest.approx(found["energy_j"] * np.exp(np.hypot(time, power)))
    assert found["energy_j_low"] == pytest.approx(free["energy_j_low"])


def test_the_limit_of_a_plan_bounds_its_power_where_it_is_below_the_clusters() -> None:
    found = add_intervals(job(), columns() | {"avg_power_w": np.full(2, 290.0)})
    held = bounds_within_limits(job(), found | {"power_limit_w": np.array([300.0, np.nan])})
    assert held["avg_power_w_high"] == pytest.approx([300.0, found["avg_power_w_high"][1]])
    assert held["energy_j_high"][0] < found["energy_j_high"][0]


def training(**fields: Any) -> Job:
    """The H100 job in other words of its training."""
    one = job("h100-sxm5-80gb")
    return replace(one, training=replace(one.training, **fields))


@pytest.fixture
def without_flash3(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no recorded run had that kernel."""
    monkeypatch.setitem(physics_errors(), "attentions", ["flash2"])


@pytest.mark.usefixtures("without_flash3")
def test_attention_that_no_recorded_run_had_is_a_doubt_by_its_kernel_and_by_its_form() -> None:
    known = training(attention="flash2")
    assert inside(known, columns()).all()
    assert doubts(training(attention="flash3"), columns())["attention"].all()
    shapes = {"kv_lora_rank": 512}, {"window_size": 1024}
    for shape in shapes:
        model = replace(known.model, **shape)
        assert doubts(replace(known, model=model), columns())["form"].all(), shape
        assert not doubts(replace(known, model=replace(model, block="feed_forward")), columns())["form"].any()
    alibi = replace(known, model=replace(known.model, position_embedding="alibi"))  # of llm-foundry's runs
    assert not doubts(alibi, columns())["form"].any()
    whole = replace(known, model=replace(known.model, window_size=4096))  # all of the sequence
    assert not doubts(whole, columns())["form"].any()


def test_a_precision_is_ambiguous_where_its_word_is_none_and_a_recipe_where_no_run_had_it() -> None:
    blank = training(dtype="fp8")
    assert not doubts(blank, columns())["ambiguous"].any()  # recorded runs state no recipe either
    assert doubts(training(dtype_assumed=True), columns())["ambiguous"].all()
    for name, recorded in (("tensorwise", True), ("blockwise", False)):
        stated = training(dtype="fp8", fp8_recipe=scaling_recipe(name, blank.cluster.gpu))
        assert doubts(stated, columns())["recipe"].any() != recorded


@pytest.mark.usefixtures("without_flash3")
def test_runs_of_a_cluster_leave_open_what_none_of_them_had() -> None:
    plain, other = training(attention="flash2"), training(attention="flash3")
    assert new_kinds(other, [plain]) == {"attention"}
    assert new_kinds(other, [plain, other]) == new_kinds(other, []) == frozenset()
    alibi = replace(plain, model=replace(plain.model, position_embedding="alibi"))
    assert new_kinds(alibi, [plain]) == {"form"}
    for one, supports in ((plain, True), (other, False)):
        found = open_doubts(one, columns(), True, new=new_kinds(one, [plain]))
        assert without_doubts(found).all() == without_doubts(found, ADDED_DOUBTS).all() == supports
    assert list(open_doubts(other, columns(), True, new=new_kinds(other, [plain]))) == [
        "link", "attention", "network", "clock",
    ]  # fmt: skip


@pytest.mark.usefixtures("few_recorded")
@pytest.mark.parametrize(("network", "high"), [(0.0, 0.3), (0.4, 0.5)])
def test_an_assumed_network_adds_to_the_upper_end_in_squares(network: float, high: float) -> None:
    known, bounds, doubt = training(), (np.full(2, 0.2), np.full(2, 0.3)), np.full(2, network)
    found = with_new_interval(known, add_intervals(known, columns()), bounds, network=doubt)
    assert np.log(times(found)) == pytest.approx([-0.2, high])
    alone = add_intervals(known, columns(), network=doubt)
    known_low, known_high = np.log(KNOWN["iteration_time_s"])
    assert np.log(times(alone)) == pytest.approx([known_low, np.hypot(known_high, network)])
    assert width(alone, "peak_memory_gib") == pytest.approx(1.28 / 0.72)  # whatever the network
    assert alone["in_domain"].all() == (not network)


def test_doubts_of_an_assumed_network_and_of_a_clock_add_in_squares() -> None:
    one, low, clock = job(gpu="h100-sxm5-80gb"), columns(600.0), 0.16 * np.log(1980 / 600)
    sources, network = (np.full(2, 0.9), np.full(2, 1.2)), np.full(2, 0.3)
    found = with_new_interval(one, add_intervals(one, low), sources, TOP_ONLY, network)
    assert -np.log(times(found)[0]) >= np.hypot(0.9, clock) - 1e-9
    assert np.log(times(found)[1]) == pytest.approx(np.sqrt(1.2**2 + clock**2 + 0.3**2))


def test_of_two_intervals_of_one_plan_the_nearer_ends_count() -> None:
    one = training()
    wide, skew = (
        with_new_interval(one, add_intervals(one, columns()), (np.full(2, low), np.full(2, high)))
        for low, high in ((0.3, 0.3), (0.2, 0.4))
    )
    both = nearest_bounds(wide, skew)
    assert np.log(times(both)) == pytest.approx([-0.2, 0.3])
    assert (both["energy_j_low"] == skew["energy_j_low"]).all()
    assert (both["energy_j_high"] == wide["energy_j_high"]).all()


@pytest.mark.parametrize(("link", "gbytes", "doubted"), [
    ("inter_node_gbytes_per_s", 200.0, True), ("inter_node_gbytes_per_s", 100.0, False),  # 25 in the reference system
    ("intra_node_gbytes_per_s", 2400.0, True), ("intra_node_gbytes_per_s", 600.0, False),  # 300
])  # fmt: skip
def test_a_link_stated_in_bits_is_doubted_and_one_of_the_next_generation_is_not(
    link: str, gbytes: float, doubted: bool
) -> None:
    two = build_cluster({"gpu": "a100-sxm4-80gb", "nodes": 2, "gpus_per_node": 8, link: gbytes})
    there = replace(job(), cluster=two)
    assert [name for name, of in doubts(there, columns()).items() if of.any()] == ["link"] * doubted
    assert open_doubts(there, columns(), True)["link"].any() == doubted  # runs have no say in it


def test_one_node_and_cores_have_no_network_whose_unit_could_be_wrong() -> None:
    cores = build_cluster({"gpu": "cpu-core", "nodes": 1, "gpus_per_node": 8, "intra_node_gbytes_per_s": 20})
    assert not doubts(replace(job(), cluster=cores), columns())["link"].any()
    one = build_cluster({"gpu": "a100-sxm4-80gb", "nodes": 1, "gpus_per_node": 8, "inter_node_gbytes_per_s": 200})
    assert not doubts(replace(job(), cluster=one), columns())["link"].any()


@pytest.mark.parametrize(("tf32", "doubted"), [(True, False), (False, True)])
def test_no_recorded_run_multiplies_on_fp32_cores(tf32: bool, doubted: bool) -> None:
    one = job()
    training = replace(one.training, dtype="fp32", framework=replace(one.training.framework, tf32=tf32))
    assert doubts(replace(one, training=training), columns())["precision"].tolist() == [doubted] * 2
