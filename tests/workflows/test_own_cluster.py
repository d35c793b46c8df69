"""A surrogate of one cluster's own runs: trained from one source, used by every verb, and no more than it helps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.core.errors import TableError, UsageError
from jointopt.core.facts import Source
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.report.doubts import reasons_of
from jointopt.report.scores import Retrained
from jointopt.runs.workloads import workloads
from jointopt.surrogate.features import PEAK
from jointopt.surrogate.files import load
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.own_mix import Mix, OwnTarget
from jointopt.surrogate.plan_process import USUAL
from jointopt.surrogate.power import PowerScale
from jointopt.workflows.campaign.candidates import listed_candidates, searched_candidates
from jointopt.workflows.campaign.expectation import EarlierRuns, Outlook, earlier_runs, with_learned_factors
from jointopt.workflows.explain import explain
from jointopt.workflows.page import surrogate_page
from jointopt.workflows.predict import predict
from jointopt.workflows.propose import propose
from jointopt.workflows.retrain import retrain
from jointopt.workflows.select import select

pytestmark = pytest.mark.long  # each trains surrogates

TOP_MHZ = 1410.0


def with_truth(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Times and powers of code paths that the physics does not know, at clocks of all kinds."""
    rng = np.random.default_rng(seed)
    table = table.drop(columns="iteration_time_s").assign(clock_mhz=rng.choice([900.0, 1110.0, TOP_MHZ], len(table)))
    physics = predict(table)
    slow = 1.2 * np.where(table["tp"] >= 2, 1.15, 1.0) * np.where(table["pp"] >= 2, 1.1, 1.0)
    noise = np.exp(0.01 * rng.standard_normal((2, len(table))))
    power = physics["predicted_avg_power_w"] * np.where(table["pp"] >= 2, 1.15, 1.05)
    return table.assign(
        iteration_time_s=physics["predicted_iteration_time_s"] * slow * noise[0], avg_power_w=power * noise[1]
    )


@pytest.fixture(scope="module")
def runs(synthetic_runs) -> pd.DataFrame:
    return with_truth(synthetic_runs("my cluster", rows=40, groups=(64, 128, 256, 512)), 1)


@pytest.fixture(scope="module")
def folder(runs: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("own")
    runs.to_csv(out / "runs.csv", index=False)
    (out / "printed.txt").write_text(retrain(tables=[out / "runs.csv"], out=out / "surrogate").text())
    return out / "surrogate"


@pytest.fixture(scope="module")
def new(synthetic_runs) -> pd.DataFrame:
    return with_truth(synthetic_runs("my cluster", rows=40, groups=(1024,), seed=5), 2)


def error(table: pd.DataFrame, of: str = "iteration_time_s", **options: object) -> float:
    found = predict(table.drop(columns=["iteration_time_s", "avg_power_w"]), **options)
    return float((found[f"predicted_{of}"] / table[of] - 1.0).abs().median())


@pytest.fixture(scope="module")
def job() -> Job:
    job = shipped_job("opt-350m-2x4-a100")
    return replace(job, training=replace(job.training, framework=load_framework("megatron-lm")))


def test_the_line_of_a_source_states_what_helped_on_groups_left_out(folder: Path) -> None:
    lines = (folder.parent / "printed.txt").read_text().splitlines()
    named = Source.parse("my cluster|megatron-lm|a100-sxm4-40gb|4")
    first = lines.index(f"{named.to_text()}:")
    assert "% on held-out groups (physics" in lines[first + 1]
    assert lines[first + 2].startswith("  power: scaled physics ")
    (line,) = json.loads((folder / "card.json").read_text())["own"].values()
    assert line.splitlines()[:2] == lines[first : first + 2]


def test_new_runs_of_the_cluster_are_predicted_close_to_their_noise(folder: Path, new: pd.DataFrame) -> None:
    assert error(new) > 0.1
    assert error(new, surrogate=str(folder)) < 0.025
    assert error(new, "avg_power_w") > 0.04
    assert error(new, "avg_power_w", surrogate=str(folder)) < 0.02


def test_a_table_that_names_the_cluster_otherwise_or_not_at_all_is_of_it(folder: Path, new: pd.DataFrame) -> None:
    for table in (new.drop(columns="source"), new.assign(source="production")):
        assert error(table, surrogate=str(folder)) == pytest.approx(error(new, surrogate=str(folder)))


def test_a_job_on_another_gpu_has_one_time_in_every_verb_and_by_every_name(folder: Path, new: pd.DataFrame) -> None:
    one = new.drop(columns=["iteration_time_s", "avg_power_w"]).head(1).assign(gpu="a100-sxm4-80gb", clock_mhz=TOP_MHZ)
    (work,), _ = workloads(one)
    plan = {name: value for name, value in one.iloc[0].items() if name in LAYOUT_COLUMNS}
    explained = explain(work.job, plan | {"clock_mhz": TOP_MHZ}, surrogate=str(folder)).iteration_time_s
    for table in (one, one.drop(columns="source"), one.assign(source="production")):
        found = predict(table, surrogate=str(folder))["predicted_iteration_time_s"].item()
        assert found == pytest.approx(explained, rel=1e-6)
    assert explained > 1.05 * predict(one, surrogate="none")["predicted_iteration_time_s"].item()


def test_a_job_on_another_gpu_reads_which_gpus_were_learned_from_and_what_to_do(folder: Path, job: Job) -> None:
    for gpu, words in (
        ("a100-sxm4-40gb", " (measure some plans with `jointopt validate` and retrain)"),
        ("h100-sxm5-80gb", ", and this job has h100-sxm5-80gb (measure a few plans there with `jointopt validate` and "
         "retrain, or leave --surrogate out)"),
    ):  # fmt: skip
        there = replace(job, cluster=replace(job.cluster, gpu=load_gpu(gpu)))
        (whys,) = reasons_of([{"in_domain": False, "doubts": "unlike_known_runs"}], str(folder), there)
        assert whys == (f"beyond the runs on a100-sxm4-40gb that {folder} learned from{words}",)


def test_what_is_loaded_has_power_and_trees_of_its_own(folder: Path) -> None:
    (own,) = load(folder).own
    assert own.knows_power
    assert own.clocks[0] == pytest.approx(900 / TOP_MHZ)
    assert own.errors["time"] <= own.errors["process"]


def test_predicted_time_falls_and_power_rises_with_the_clock(folder: Path, job: Job) -> None:
    model = JobModel.of(job, str(folder))
    layouts = {name: values[::40] for name, values in enumerate_layouts(job).layouts.items()}
    physics, index = model.cost_model(layouts), np.arange(len(layouts["pp"]))
    found = [physics.evaluate(index, uniform_stage_clocks(layouts["pp"], mhz)) for mhz in np.linspace(700, TOP_MHZ, 12)]
    time_s, power_w = (np.stack([plans[name] for plans in found]) for name in ("iteration_time_s", "avg_power_w"))
    assert (np.diff(time_s, axis=0) <= 1e-9).all()
    assert (np.diff(power_w, axis=0) >= -1e-9).all()


def test_plans_stored_with_a_surrogate_are_compared_by_it_again(folder: Path, job: Job, tmp_path: Path) -> None:
    proposal = propose(job, surrogate=str(folder))
    assert proposal.informed_by == {f"the surrogate {folder}": len(load(folder).residual)}
    proposal.write(tmp_path)
    found = select(str(tmp_path), objective="energy")
    assert found.plans["faster_probability"].max() > 0.5
    document = json.loads((tmp_path / "proposal.json").read_text())
    (tmp_path / "proposal.json").write_text(json.dumps(document | {"informed_by": {"runs.csv": 3}}))
    assert "faster_probability" not in select(str(tmp_path), objective="energy").plans  # those runs are not at hand


def test_plans_that_are_stored_are_predicted_anew_by_another_surrogate(folder: Path, job: Job, tmp_path: Path) -> None:
    for name in ("none", str(folder)):
        propose(job, surrogate=name).write(tmp_path / Path(name).name)
    learned, again = select(str(tmp_path / "surrogate")), select(str(tmp_path / "surrogate"), surrogate=str(folder))
    physics, moved = (select(str(tmp_path / "none"), surrogate=name).plans for name in ("none", str(folder)))
    assert again.row == learned.row
    for name in ("iteration_time_s", "energy_j", "peak_memory_gib", "iteration_time_s_high"):
        np.testing.assert_allclose(again.plans[name], learned.plans[name], rtol=1e-6)
    assert (moved["iteration_time_s"] > 1.05 * physics["iteration_time_s"]).all()
    with pytest.raises(UsageError, match=r"front\.csv states none: give it by --job\."):
        select(str(tmp_path / "none" / "front.csv"), surrogate="none")


def test_propose_and_explain_answer_alike_and_not_as_the_physics_alone(folder: Path, job: Job) -> None:
    front = [propose(job, surrogate=name).to_dict()["front"][0] for name in (str(folder), "none")]
    plan = {name: value for name, value in front[0].items() if name in (*LAYOUT_COLUMNS, "stage_clock_mhz")}
    found = explain(job, plan, surrogate=str(folder)).to_dict()
    for name in ("iteration_time_s", "energy_j"):
        assert found[name] == pytest.approx(front[0][name], rel=1e-3)
    assert front[1]["iteration_time_s"] < 0.95 * front[0]["iteration_time_s"]


def test_explain_names_the_features_that_trees_move_a_plan_by(folder: Path, job: Job) -> None:
    plan = "dp=1 tp=2 pp=4 micro_batch_size=2"
    found = explain(job, plan, surrogate=str(folder))
    (own,) = load(folder).own
    assert len(found.learned) == 2
    physics = explain(job, plan, surrogate="none")
    by = found.avg_power_w / physics.avg_power_w - 1.0
    assert found.learned[1].startswith(f"They move its power by {by:+.1%} at this plan's clocks.")
    assert ("trees give " in found.learned[1]) == (own.power_mix.weight > 0)
    assert found.learned[0].startswith("The cluster's own runs move the physics' time by +")
    assert ("trees give " in found.learned[0]) == (own.time.weight > 0)
    assert found.learned[0][:40] in " ".join(found.text().split())
    assert physics.learned == ()


def test_a_tune_rests_on_the_surrogate_of_its_cluster_from_the_first_run_on(folder: Path, job: Job) -> None:
    rests_on = {}
    for name in (str(folder), "default"):
        model = JobModel.of(job, name)
        candidates = searched_candidates(model)
        earlier = with_learned_factors(EarlierRuns(), model, candidates)
        outlook = Outlook(job, candidates, earlier, USUAL, np.random.default_rng(0))
        rests_on[name] = outlook.after(("iteration_time_s",), np.zeros(0, np.int64), []), earlier, candidates
    found, earlier, candidates = rests_on[str(folder)]
    assert found.basis == "earlier runs of the cluster"
    assert earlier.num_other_runs == 160
    assert "% off" in earlier.why_first
    assert (found.columns["iteration_time_s"] > 1.1 * candidates.predicted["iteration_time_s"]).all()
    assert rests_on["default"][1].why_first == ""
    assert rests_on["default"][1].log_factor_on("energy_j") is None


def test_a_tune_s_first_expectations_are_what_the_surrogate_predicts_of_plans_searched(folder: Path, job: Job) -> None:
    model = JobModel.of(job, str(folder))
    candidates = searched_candidates(model)
    earlier = with_learned_factors(EarlierRuns(), model, candidates)
    outlook = Outlook(job, candidates, earlier, USUAL, np.random.default_rng(0))
    found = outlook.after(("iteration_time_s", "energy_j"), np.zeros(0, np.int64), []).columns
    layouts = {name: candidates.plans[name] for name in LAYOUT_COLUMNS}
    expected = model.cost_model(layouts).evaluate(np.arange(candidates.size), candidates.plans["stage_clock_mhz"])
    for name in ("iteration_time_s", "energy_j"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9)


def test_a_tune_starts_from_the_peak_power_that_the_surrogate_learned(folder: Path, job: Job) -> None:
    wanted = replace(job, objectives=("iteration_time_s", "peak_power_w"))
    surrogate = load(folder)
    own = replace(surrogate.own[0], heat={PEAK: OwnTarget(PowerScale(1.3, 0.03), Mix())})
    model = replace(JobModel.of(wanted, str(folder)), surrogate=replace(surrogate, own=(own,)))
    candidates = searched_candidates(model)
    factor = with_learned_factors(EarlierRuns(), model, candidates).log_factor_on("peak_power_w")
    assert factor is not None
    np.testing.assert_allclose(np.exp(factor), 1.3, rtol=1e-9)
    assert candidates.size == len(factor)
    assert with_learned_factors(EarlierRuns(), JobModel.of(job), candidates).log_factor_on("peak_power_w") is None


def test_a_tune_s_first_expectations_of_listed_rows_of_two_batches_are_those_of_predict(folder, job, new) -> None:
    rows = new.drop(columns=["iteration_time_s", "avg_power_w"]).head(20)
    rows = pd.concat([rows, rows.assign(global_batch_size=2 * rows["global_batch_size"])], ignore_index=True)
    candidates = listed_candidates(rows.to_dict("list"), job)
    earlier = with_learned_factors(EarlierRuns(), JobModel.of(job, str(folder)), candidates)
    expected = predict(candidates.rows, surrogate=str(folder))
    assert len(candidates.jobs) == 2
    for name in ("iteration_time_s", "energy_j", "avg_power_w"):
        found = candidates.predicted[name] * np.exp(earlier.log_factor_on(name))
        np.testing.assert_allclose(found, expected[f"predicted_{name}"], rtol=1e-9)


def test_many_stored_runs_of_other_jobs_move_a_tune_as_they_move_what_propose_predicts(
    runs: pd.DataFrame, new: pd.DataFrame, job: Job
) -> None:
    queried, stored = new.drop(columns=["iteration_time_s", "avg_power_w"]), runs.assign(status="ok")
    candidates = listed_candidates(queried.to_dict("list"), job)
    found, few = (
        with_learned_factors(earlier_runs(candidates.rows, some), JobModel.of(job), candidates)
        for some in (stored, stored.head(40))
    )
    truth = np.log(new["iteration_time_s"] / predict(queried)["predicted_iteration_time_s"])
    assert found.why_first == "as those of propose do"
    assert (few.why_first, few.num_other_runs, found.num_other_runs) == ("", 40, 160)
    time = found.log_factor_on("iteration_time_s")
    assert np.std(truth - time) < 0.5 * np.std(truth)
    power = np.log(new["avg_power_w"] / predict(queried)["predicted_avg_power_w"])
    assert np.median(np.abs(power - found.log_factor_on("avg_power_w"))) < 0.4 * np.median(np.abs(power))
    energy = time + found.log_factor_on("avg_power_w")
    np.testing.assert_allclose(found.log_factor_on("energy_j"), energy)


def test_the_plot_of_importance_has_the_features_of_the_card_the_largest_on_top(folder: Path) -> None:
    (own,) = load(folder).own
    written = Retrained((), pd.DataFrame(), None, (), folder, {own.source: own.importance})
    figure = written.plot()
    assert set(own.importance) == {of for of, mix in own.mixes.items() if mix.weight}
    for bars, (of, features) in zip(figure.data, own.importance.items(), strict=True):
        assert list(bars.y)[::-1] == list(features)
        assert list(bars.x) == sorted(bars.x)
        assert "my cluster" in bars.name
        assert any(f"moves the {of}" in title.text for title in figure.layout.annotations)
    with pytest.raises(UsageError, match="No trees count in"):
        replace(written, importance={}).plot()


def test_report_draws_what_a_surrogate_learned_that_was_trained_before(folder: Path, tmp_path: Path) -> None:
    found = surrogate_page(str(folder))
    assert found is not None
    (own,) = load(folder).own
    drawn = [one["figure"]["data"][0]["y"] for one in found.content["pictures"] if one["id"].startswith("moves")]
    assert drawn == [
        list(features)[: len(names)] for names, features in zip(drawn, own.importance.values(), strict=True)
    ]
    result = CliRunner().invoke(jointopt, ["report", str(folder), "--out", str(tmp_path / "learned.html")])
    assert result.exit_code == 0, result.output
    assert "my cluster" in (tmp_path / "learned.html").read_text()
    assert surrogate_page(str(tmp_path)) is None


def test_a_plot_that_cannot_be_written_is_named_with_its_option(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own,) = load(folder).own
    scores = pd.DataFrame([{"source": "mean", "physics": 0.2, "group out": 0.1}])
    written = Retrained((), scores, None, (), folder, {own.source: own.importance})
    monkeypatch.setattr("jointopt.workflows.retrain.retrain", lambda **_: written)
    for command in (["retrain", "--table", "runs.csv", "--out", "new", "--plot"], ["report", str(folder), "--out"]):
        result = CliRunner().invoke(jointopt, [*command, str(tmp_path / "absent" / "why.html")])
        assert result.exit_code == 2
        place = f"{command[-1]}: {tmp_path}/absent/why.html: No such file or directory"
        assert result.stderr.endswith(f"{place}; expected a folder that exists and can be written.\n")


def test_a_handful_of_one_cluster_s_runs_is_remembered_without_more(runs: pd.DataFrame, tmp_path: Path) -> None:
    runs.head(30).to_csv(tmp_path / "few.csv", index=False)
    retrain(tables=[tmp_path / "few.csv"], out=tmp_path / "out")
    few = load(tmp_path / "out")
    assert few.own == ()
    assert len(few.support) == 30


@pytest.fixture(scope="module")
def few(runs: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A surrogate of thirty runs."""
    out = tmp_path_factory.mktemp("few")
    runs.iloc[::5].head(30).to_csv(out / "few.csv", index=False)
    retrain(tables=[out / "few.csv"], out=out / "surrogate")
    return out / "surrogate"


def test_a_surrogate_of_few_runs_moves_what_tune_expects_as_it_moves_what_propose_predicts(few: Path, job) -> None:
    model = JobModel.of(job, str(few))
    candidates = searched_candidates(model)
    earlier = with_learned_factors(EarlierRuns(), model, candidates)
    layouts = {name: candidates.plans[name] for name in LAYOUT_COLUMNS}
    expected = model.cost_model(layouts).evaluate(np.arange(candidates.size), candidates.plans["stage_clock_mhz"])
    for name in ("iteration_time_s", "energy_j"):
        found = candidates.predicted[name] * np.exp(earlier.log_factor_on(name))
        np.testing.assert_allclose(found, expected[name], rtol=1e-9)
    assert np.log(1.15) < np.median(earlier.log_factor_on("iteration_time_s")) < np.log(1.2 * 1.15 * 1.1)
    assert (earlier.num_other_runs, "groups left out of the surrogate" in earlier.why_first) == (30, True)


def test_measured_runs_of_the_job_itself_leave_a_surrogate_of_few_runs_in_force_and_those_of_others_do_not(
    few: Path, job: Job, runs: pd.DataFrame
) -> None:
    alone = JobModel.of(job, str(few))
    beside = JobModel.of(job, str(few), measured=runs.head(3).drop(columns="source"))
    candidates = searched_candidates(alone)
    found = [with_learned_factors(EarlierRuns(), model, candidates).log_factors for model in (alone, beside)]
    np.testing.assert_allclose(found[0]["iteration_time_s"], found[1]["iteration_time_s"], rtol=1e-9)
    others = runs.tail(3).drop(columns="source").assign(status="ok")
    known = with_learned_factors(earlier_runs(candidates.rows, others), beside, candidates)
    assert (known.num_other_runs, known.why_first, [*known.log_factors]) == (3, "", ["iteration_time_s"])


def test_a_surrogate_for_others_learns_nothing_of_single_clusters(runs: pd.DataFrame, tmp_path: Path) -> None:
    runs.to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(TableError, match="of two sources"):
        retrain(tables=[tmp_path / "runs.csv"], out=tmp_path / "out", for_others=True)
