"""Each figure stands under its own header, in the unit that the header names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jointopt.jobs.catalog.clusters import load_cluster
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.report import listing, tables
from jointopt.report.plans import SITE_FIGURES, site_table
from jointopt.report.scaled import Pick, Scaled, Size, kept_probability, size_table
from jointopt.workflows.propose import propose

FIGURES = [  # name, value, header, cell
    ("iteration_time_s", 2.0, "time s", "2.000"), ("energy_j", 9000.0, "energy kJ", "9.000"),
    ("avg_power_w", 321.4, "power W/GPU", "321"), ("power_w", 322.4, "power W/GPU", "322"),
    ("peak_power_w", 398.0, "peak W/GPU", "398"), ("peak_memory_gib", 65.44, "mem GiB", "65.4"),
    ("tokens_per_s", 98765.4, "tok/s", "98,765"), ("tokens_per_s_per_gpu", 1234.6, "tok/s /GPU", "1,235"),
    ("mfu", 0.4321, "MFU %", "43.2"), ("efficiency", 0.934, "scaling %", "93"),
    ("cluster_power_kw", 1234.4, "site kW", "1,234"), ("money", 75834.6, "cost", "75,835"),
    ("run_time_s", 2 * 86400.0, "run days", "2.000"), ("run_energy_j", 7.2e9, "energy MWh", "2.000"),
    ("clock_mhz", 1410.0, "clock MHz", "1410"), ("busy_s", 0.5, "busy ms", "500.0"),
    ("idle_s", 0.25, "idle ms", "250.0"), ("time_to_train_s", 2 * 86400.0, "train days", "2.000"),
    ("useful_energy_j", 7.2e9, "in all MWh", "2.000"), ("effective_time_ratio", 0.94567, "useful %", "94.57"),
    ("checkpoint_interval_s", 30.0, "save every s", "30.00"), ("spares", 2.0, "spare nodes", "2"),
    ("temperature_c", 71.24, "hottest °C", "71.2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "header", "cell"), FIGURES)
def test_a_figure_has_its_header_its_unit_and_its_decimals(name: str, value: float, header: str, cell: str) -> None:
    column = tables.figure_column(name, [{name: value}])
    assert (column.header.replace("\n", " "), list(column.cells)) == (header, [cell])
    assert {one for one, *_ in FIGURES} == set(tables.FIGURE_FORMATS)


@pytest.mark.parametrize(("value", "units", "words"), [
    (2.0, tables.CARBON_UNITS, "2.000 kg"), (2e3, tables.CARBON_UNITS, "2.000 t"),
    (2e-3, tables.CARBON_UNITS, "2.000 g"),
    (7.2e9, tables.RUN_ENERGY_UNITS, "2.000 MWh"), (7.2e12, tables.RUN_ENERGY_UNITS, "2.000 GWh"),
    (7200.0, tables.RUN_TIME_UNITS, "2.000 h"), (2e6, tables.ENERGY_UNITS, "2.000 MJ"),
    (2e3, tables.COUNT_UNITS, "2.000 thousand"),
    (2e6, tables.SITE_POWER_UNITS, "2.000 MW"), (2e6, tables.MESSAGE_UNITS, "2.000 MB"),
])  # fmt: skip
def test_a_quantity_is_in_the_largest_unit_of_which_it_has_one(value: float, units: Any, words: str) -> None:
    assert tables.quantity(value, units) == words


def test_power_cost_and_gpu_cost_stand_under_their_own_headers(job: Job) -> None:
    priced = replace(job, cluster=replace(job.cluster, price_per_kwh=0.25, price_per_gpu_hour=2.0, currency="EUR"))
    *_, first, second, _, cells = site_table(priced, ["="], [1.0], [9000.0])
    assert first.split() == ["power", "energy", "power", "GPUs"]
    assert second.split() == ["kW", "kJ", "cost", "cost"]
    assert cells.split() == ["=", "14.40", "14.40", "0.00100", "0.00444"]


def test_what_a_site_pays_has_one_header_for_the_iteration_and_one_for_the_run() -> None:
    heads = {name: (head.replace("\n", " "), on_page) for name, (head, on_page, _) in SITE_FIGURES.items()}
    assert heads["cost"] == ("power cost", "electricity")
    assert heads["gpu_cost"] == ("GPUs cost", "GPUs")
    assert heads["carbon_kg"] == ("CO2", "CO2")
    assert heads["run_gpu_hours"] == ("GPU-hours", "run: GPU-hours")
    for name in ("cost", "gpu_cost", "carbon_kg", "facility_energy_j"):
        assert heads[f"run_{name}"] == (heads[name][0], f"run: {heads[name][1]}")
    assert SITE_FIGURES["facility_energy_j"][2] is tables.ENERGY_UNITS
    assert SITE_FIGURES["run_facility_energy_j"][2] is tables.RUN_ENERGY_UNITS


def test_the_page_has_each_figure_of_a_plan_under_its_head() -> None:
    job = shipped_job("llama-3-8b-1x8-h100")
    site = replace(job.cluster, price_per_kwh=0.25, price_per_gpu_hour=2.0, currency="EUR")
    proposal = propose(replace(job, cluster=site), trials=0)
    entry, content = proposal.to_dict()["front"][0], proposal.report().page.content
    shown = dict(zip(content["plans"]["head"], content["plans"]["rows"][0], strict=True))
    assert shown["W/GPU"] == f"{entry['avg_power_w']:.0f}"
    assert shown["memory"] == f"{entry['peak_memory_gib']:.2f} GiB"
    assert shown["MFU"] == f"{entry['mfu']:.1%}"
    assert (shown["fits"], shown["time"][-2:], shown["energy"][-2:]) == (f"{entry['fit_probability']:.2f}", " s", "kJ")
    paid = dict(zip(content["costs"]["head"], content["costs"]["rows"][0], strict=True))
    assert paid["electricity"] == f"{tables.figure(entry['cost'])} EUR"
    assert paid["GPUs"] == f"{tables.figure(entry['gpu_cost'])} EUR"
    cards, plan = {head: value for head, value, _ in content["cards"]}, proposal.recommended.predicted
    assert cards["Memory"] == f"{plan['peak_memory_gib']:.2f} GiB"
    assert cards["Energy against the fastest plan at the top clock"] == f"{plan['energy_vs_first_percent']:+z.1f} %"
    split = dict(zip(content["layouts"]["head"], content["layouts"]["rows"][0], strict=True))
    times = [float(split[name].split()[0]) for name in ("fastest", "knee", "least energy")]
    assert times == sorted(set(times))


def test_a_link_of_the_catalogue_is_the_one_that_its_header_names() -> None:
    row = {"gpu": "x", "intra_node_gbytes_per_s": 450.0, "inter_node_gbytes_per_s": 50.0}
    first, second, cells = listing.listing_text([row]).splitlines()
    assert first.split() == ["gpu", "in", "node", "network"]
    assert (second.split(), cells.split()) == (["GB/s", "GB/s"], ["x", "450", "50"])
    listed = next(row for row in listing.listing("clusters") if row["gpu"].startswith("h100"))
    cluster = load_cluster(listed["cluster"])
    assert listed["intra_node_gbytes_per_s"] == cluster.intra_node_gbytes_per_s
    assert listed["inter_node_gbytes_per_s"] == cluster.inter_node_gbytes_per_s


def test_a_gpu_of_the_catalogue_has_its_own_rates_and_clocks() -> None:
    row = next(row for row in listing.listing("gpus") if row["gpu"] == "h100-sxm5-80gb")
    gpu = load_gpu("h100-sxm5-80gb")
    for dtype in ("bf16", "fp16", "fp8"):
        assert row[f"{dtype}_tflops"] == gpu.peak_tflops[dtype]
    shown = {"gpu": "x"} | {name: row[name] for name in ("clock_min_mhz", "clock_max_mhz", "memory_gib")}
    first, second, cells = listing.listing_text([shown]).splitlines()
    assert (first.split(), second.split()) == (["gpu", "lowest", "highest", "memory"], ["MHz", "MHz", "GiB"])
    assert cells.split() == ["x", *(f"{value:g}" for value in (gpu.clock_min_mhz, gpu.clock_max_mhz, gpu.memory_gib))]


PLAN: dict[str, Any] = {
    "dp": 8, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "iteration_time_s": 2.0, "iteration_time_s_low": 1.8,
    "iteration_time_s_high": 2.4, "energy_j": 9000.0, "energy_j_low": 8000.0, "energy_j_high": 10000.0,
    "tokens_per_s": 12345.0, "mfu": 0.4, "cluster_power_kw": 12.0, "avg_power_w": 500.0, "micro_batch_size": 1,
    "recompute": "none", "zero_stage": 1, "stage_clock_mhz": [1410.0],
}  # fmt: skip


def run_of(job: Job, tokens: int | None) -> Job:
    priced = replace(job.cluster, price_per_gpu_hour=2.0, currency="EUR")
    return replace(job, cluster=priced, training=replace(job.training, run_tokens=tokens))


def test_a_run_of_clusters_is_in_days_of_24_hours_and_its_saving_stands_before_its_time(job: Job) -> None:
    iterations = 86400 // 2 * 5
    size = Size(run_of(job, iterations * 256 * 2048), (PLAN, PLAN | {"energy_j": 7200.0, "iteration_time_s": 2.6}))
    first, second, cells = size_table([size])
    assert first.split()[-3:] == ["cost", "least", "at"]
    assert second.split()[-4:] == ["energy", "%", "time", "%"]
    days, *_, saved, later = cells.split()[-5:]
    assert (days, saved, later) == ("5.000", "-20.0", "+30.0")
    assert "days" in second.split()


def test_of_deadline_and_budget_the_less_likely_is_stated(job: Job) -> None:
    one = run_of(job, 86400 // 2 * 5 * 256 * 2048)  # 5 days, 4.5 to 6
    loose = kept_probability(one, Pick(0, PLAN, "time", {"deadline_days": 6.0}))
    tight = kept_probability(one, Pick(0, PLAN, "time", {"budget": 5 * 24 * 8 * 2.0}))
    assert (loose, tight) == (pytest.approx(0.95, abs=1e-3), pytest.approx(0.5, abs=1e-3))
    assert kept_probability(one, Pick(0, PLAN, "time", {"deadline_days": 6.0, "budget": 1920.0})) == tight
    assert kept_probability(one, Pick(0, PLAN, "time", {"deadline_days": 4.5})) == pytest.approx(0.05, abs=1e-3)


def test_a_pick_without_a_run_is_in_hours_per_billion_tokens(job: Job) -> None:
    hours = 2.0 * 1e9 / (256 * 2048) / 3600
    text = Scaled((Size(run_of(job, None), (PLAN,)),), ((0, PLAN),), Pick(0, PLAN, "time", {"site_kw": 20.0})).text()
    assert f"{hours:.3g} h per billion tokens (90 %: {0.9 * hours:.3g} to {1.2 * hours:.3g})" in " ".join(text.split())
