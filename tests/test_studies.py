"""Redrawn figures of papers: their programs run, and print what their README states."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from jointopt.jobs.jobfile import load_job, shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.runs.table import checked_results
from jointopt.studies import figure, figures
from jointopt.studies.blocks import BLOCKS
from jointopt.studies.evidence import NOMINAL, outcomes
from jointopt.studies.statements import charllm, charllm_plans
from jointopt.surrogate.intervals import physics_errors
from jointopt.workflows.predict import predict

STUDIES = Path(__file__).parents[1] / "studies"


@pytest.mark.services  # seconds of work each, beside tests that wait
@pytest.mark.parametrize("study", sorted(path.parent.name for path in STUDIES.glob("*/study.py")))
def test_a_figure_s_program_writes_its_table_and_plot_as_its_readme_shows_them(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["study.py", "--out", str(tmp_path)])
    runpy.run_path(str(STUDIES / study / "study.py"), run_name="__main__")
    written = pd.read_csv(tmp_path / "table.csv")
    assert 10_000 < (tmp_path / "figure.png").stat().st_size < 150_000
    assert (STUDIES / study / "figure.png").stat().st_size > 10_000
    readme = (STUDIES / study / "README.md").read_text(encoding="utf-8")
    header = "| " + " | ".join(written.columns) + " |"
    assert "(figure.png)" in readme
    assert header in readme
    assert f"make study NAME={study}" in readme


def test_every_figure_is_as_wide_as_a_page_shows_it_and_marks_its_lines_by_more_than_their_colour() -> None:
    for file in STUDIES.glob("*/figure.png"):
        assert 700 <= int.from_bytes(file.read_bytes()[16:20], "big") <= 900, file
    styles = list(figure.STYLE["axes.prop_cycle"])
    assert len({one["marker"] for one in styles}) == len({one["color"] for one in styles}) == len(figure.COLOURS)


def test_layers_taken_from_hot_stages_cost_gpt3_efficiency_and_bring_its_stages_closer() -> None:
    even, moved = (charllm._in_air(15.0, NOMINAL, (4, 5, 6, 7), layers) for layers in ("", ";".join(["13;11"] * 4)))
    assert moved.gap_k < even.gap_k
    assert 0.90 < moved.efficiency / even.efficiency < 1.0  # 13 layers where 12 are even
    cool = charllm._in_air(0.0, NOMINAL)
    assert even.seconds > cool.seconds
    assert cool.efficiency == pytest.approx(1.0 / (cool.seconds * cool.joules))


def test_what_a_doubling_of_nodes_adds_is_clear_of_zero_and_far_from_what_scale_up_would_need() -> None:
    nodes = physics_errors()["nodes"]
    low, high = nodes["interval"]
    assert 0.0 < low < nodes["per_doubling"] < high
    few, many = charllm_plans.beside("gpt3-175b", charllm.FAST, NOMINAL)
    assert many.iteration_time_s * (1.0 + high) < 0.75 * few.iteration_time_s


def test_one_port_a_node_is_the_reading_whose_hours_are_nearest_to_those_that_the_harness_expects() -> None:
    ports = {1: None, 2: 3.125, 8: charllm.FAST}  # of 100 Gb/s a node of eight, and GB/s per GPU
    found = {count: charllm_plans.hours(link, NOMINAL) for count, link in ports.items()}
    off = {count: np.abs(np.log(np.divide(each, (10.0, 36.0, 24.0)))).max() for count, each in found.items()}
    assert off[1] < 0.25 < off[2] < off[8]
    assert charllm_plans.harness_job("gpt3-175b", "h200").cluster.inter_node_gbytes_per_s == 12.5 / 8


def test_tensor_active_is_the_same_operations_over_fewer_cycles_and_less_than_sm_active() -> None:
    job, plan = shipped_job("opt-350m-2x4-a100"), "dp=8 micro_batch_size=4 stage_clock_mhz={}"
    found = outcomes(job, [plan.format(mhz) for mhz in (1410, 810)])
    cycles = [one.tensor_active * one.iteration_time_s * one.clock_mhz for one in found]
    assert cycles[0] == pytest.approx(cycles[1])
    model, length = job.model, job.training.seq_length
    each = 6.0 * model.parameters + 12.0 * model.num_layers * model.hidden_size * length  # of a token, with its scores
    done = each * job.training.global_batch_size * length / 8
    assert done == pytest.approx(312e12 * cycles[0] / 1410, rel=0.1)
    assert all(one.tensor_active < one.sm_active <= one.gpu_utilization for one in found)


@pytest.mark.parametrize("block", ["feed-forward", "attention"])
def test_a_job_of_a_block_has_the_flops_of_its_bare_products(block: str) -> None:
    job = load_job(STUDIES / "rack-scale-jobs" / f"{block}.yaml")
    plan = parse_plan("dp=4 overlap=none", job)
    costs = CostModel(job, plan.layouts).groups[0]
    forward = costs.forward_flops[0, 0] * costs.num_micro_batches[0] * 4
    products = sum(product.flops for product in BLOCKS[block](job.training.global_batch_size))
    assert forward == pytest.approx(products)


@pytest.fixture
def truths(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES / "learning"))
    return importlib.import_module("truths")


@pytest.mark.parametrize("truth", ["T", "C", "S"])
def test_made_up_runs_are_sound_rows_that_the_physics_misses_by_less_than_half(truth: str, truths: ModuleType) -> None:
    table = truths.table(truth, 20, seed=1, clocks=True)
    assert checked_results(table)[1] == []
    found = predict(table.drop(columns=["iteration_time_s", "status"]))
    off = (found["predicted_iteration_time_s"] / table["iteration_time_s"] - 1.0).to_numpy(float)
    assert 0.05 < np.median(np.abs(off)) < 0.5
    assert table.equals(truths.table(truth, 20, seed=1, clocks=True))


@pytest.mark.parametrize(("depth", "count"), [(1, 4), (2, 2), (4, 8), (4, 60)])
def test_the_simulator_s_pipeline_of_equal_stages_has_the_bubble_of_1f1b(
    depth: int, count: int, truths: ModuleType
) -> None:
    assert truths._events([[1.0, 2.0]] * depth, count, 0.0) == pytest.approx(3.0 * (count + depth - 1))


@pytest.mark.services
def test_learning_curves_have_every_learner_and_a_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from jointopt.studies.learning import learn

    given = ["--rows", "60", "--seeds", "1", "--truths", "T", "--made-up-only", "--plot", str(tmp_path / "curves.png")]
    learn.main(given)
    lines = capsys.readouterr().out.splitlines()
    assert all(name in lines[1] for name in learn.LEARNERS)
    assert {line.split()[0] for line in lines[2:]} == {"T"}
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert list(pd.read_csv(tmp_path / "curves.csv")["rows"]) == [60, 60]


def test_the_curves_of_learning_go_to_ten_thousand_runs_and_are_those_of_the_readme() -> None:
    found = pd.read_csv(STUDIES / "learning" / "curves.csv")
    readme = (STUDIES / "learning" / "README.md").read_text(encoding="utf-8")
    assert set(found["truth"]) == {"T", "S", "nanotron"}
    assert found["rows"].max() == 10_000
    kinds = {"random runs": "random", "unseen models": "models"}
    for row in found.to_dict("records"):
        errors = " | ".join(f"{error:.1f}" for error in list(row.values())[3:])
        assert f"| {row['truth']}, {kinds[row['left out']]} | {row['rows']:,} | {errors} |" in readme


def test_a_learner_computed_alone_joins_the_figures_of_the_others(tmp_path: Path) -> None:
    from jointopt.studies.learning.learn import KEYS, beside_others

    every = pd.read_csv(STUDIES / "learning" / "curves.csv")
    every.drop(columns="trees with the process").to_csv(tmp_path / "curves.csv", index=False)
    alone = every[[*KEYS, "trees with the process"]]
    pd.testing.assert_frame_equal(beside_others(alone, tmp_path / "curves.csv"), every)
    assert beside_others(alone, tmp_path / "none.csv") is alone


def test_trees_with_the_process_follow_it_where_it_is_right_and_learn_from_what_it_says_of_other_models() -> None:
    from jointopt.studies.learning.learn import with_process
    from jointopt.surrogate.kernel import Runs

    hidden = np.random.default_rng(0).uniform(-0.5, 0.5, 300)  # told by the group alone, which no tree sees
    group = np.array([f"model {i % 6}|{value}" for i, value in enumerate(hidden)])
    known = Runs(np.zeros((300, 2)), {"log2_tp": np.arange(300.0) % 4}, np.full(300, "lab"), group)

    def process(rows: np.ndarray, new: Runs) -> np.ndarray:
        models = [{name.split("|")[0] for name in names} for names in (group[rows], new.group)]
        assert not models[0] & models[1]
        return np.array([float(name.split("|")[1]) for name in new.group])

    answers = with_process(process, known, hidden)(known, hidden)
    assert np.abs(answers - hidden).max() < 0.05


def test_without_the_recorded_runs_the_study_of_learning_warns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from jointopt.studies.learning import learn

    monkeypatch.setattr(learn, "RECORDED", tmp_path / "none.csv")
    monkeypatch.setattr(learn, "curves", lambda name, *_: pd.DataFrame({"truth": [name]}))
    learn.main(["--rows", "10", "--truths", "T"])
    assert "No recorded cluster: there is no" in capsys.readouterr().err


@pytest.fixture
def joint_or_not(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES / "joint-or-not"))
    return importlib.import_module("joint_or_not")


def test_the_jobs_of_joint_or_not_are_two_hundred_and_all_are_sound(joint_or_not: ModuleType) -> None:
    cases = list(joint_or_not.cases())
    assert sum(len(case["deadlines"]) for case in cases) == 200
    jobs = [joint_or_not.job_of(case, None) for case in cases]
    assert len({job.model.name for job in jobs}) > 10
    assert len({job.cluster.gpu.id for job in jobs}) > 15


def test_a_case_is_searched_freely_and_then_within_its_deadline(joint_or_not: ModuleType) -> None:
    free, hurried = joint_or_not.rows_of(next(iter(joint_or_not.cases())))
    assert (free["deadline"], hurried["deadline"]) == (None, 1.05)
    assert 0.0 <= hurried["slower_by"] <= 0.05
    assert min(free["energy_saving"], hurried["energy_saving"]) >= 0.0
    assert hurried["feasible_layouts"] == free["feasible_layouts"]


def test_the_table_and_plot_of_joint_or_not_are_those_of_its_rows(joint_or_not: ModuleType, tmp_path: Path) -> None:
    found = pd.read_csv(STUDIES / "joint-or-not" / "results.csv")
    shares = joint_or_not.by_property(found)
    written = (STUDIES / "joint-or-not" / "table.csv").read_text()
    assert written == f"{shares.to_csv(index=False)}\n{joint_or_not.by_cell(found).to_csv()}"
    joint_or_not.draw(found, tmp_path / "drawn.png")
    assert 10_000 < (tmp_path / "drawn.png").stat().st_size < 150_000


@pytest.fixture
def run_or_iteration(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES / "run-or-iteration"))
    return importlib.import_module("run_or_iteration")


def test_the_table_plot_and_figures_of_run_or_iteration_are_those_of_its_rows(
    run_or_iteration: ModuleType, tmp_path: Path
) -> None:
    found = pd.read_csv(STUDIES / "run-or-iteration" / "results.csv")
    written = (STUDIES / "run-or-iteration" / "table.csv").read_text()
    assert written == run_or_iteration.by_property(found).to_csv(index=False)
    assert len(found) == sum(len(case["failing"]) for case in run_or_iteration.cases()) == 200
    run_or_iteration.draw(found, tmp_path / "drawn.png")
    assert 10_000 < (tmp_path / "drawn.png").stat().st_size < 150_000
    recorded = figures.read()["run-or-iteration"]["figures"]
    assert recorded == {name: round(value, 6) for name, value in run_or_iteration.summary(found).items()}


def test_a_job_of_run_or_iteration_comes_to_its_recorded_rows_today(run_or_iteration: ModuleType) -> None:
    case = next(case for case in run_or_iteration.cases() if (case["model"], case["nodes"]) == ("llama-3-8b", 16))
    recorded = pd.read_csv(STUDIES / "run-or-iteration" / "results.csv").query("model == 'llama-3-8b' and gpus == 128")
    for now, (_, row) in zip(run_or_iteration.rows_of(case), recorded.iterrows(), strict=True):
        assert now["behind"] == pytest.approx(row["behind"], abs=5e-5), f"run {run_or_iteration.COMMAND}"
        assert now["run_effective_time_ratio"] == pytest.approx(row["run_effective_time_ratio"], abs=5e-5)


@pytest.fixture
def follow_day(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(STUDIES / "follow"))
    return importlib.import_module("follow_day")


def test_the_table_plot_and_figures_of_a_day_are_those_of_its_rows(follow_day: ModuleType, tmp_path: Path) -> None:
    found, prices = (pd.read_csv(STUDIES / "follow" / f"{name}.csv") for name in ("results", "prices"))
    table = follow_day.table_of(found.fillna({"clocks_mhz": ""}))
    assert (STUDIES / "follow" / "table.csv").read_text() == table.to_csv(index=False)
    follow_day.draw(found, tmp_path / "day.png")
    assert 10_000 < (tmp_path / "day.png").stat().st_size < 150_000
    assert figures.read()["follow"]["figures"] == follow_day.summary(table, prices)
    assert len(prices) == len(follow_day.DAY["tokens_percent"])


def test_every_way_of_a_day_keeps_the_limit_of_the_site_with_its_high_end(follow_day: ModuleType) -> None:
    found = pd.read_csv(STUDIES / "follow" / "results.csv")
    for fails, day in ((False, "limits"), (True, "a node breaks")):
        for step in follow_day.steps(fails).itertuples():
            here = found[(found["day"] == day) & (found["from_h"] <= step.from_h) & (found["to_h"] > step.from_h)]
            drawn_kw = here.groupby("way")["power_kw_high"].sum()
            assert set(drawn_kw.index) == set(follow_day.WAYS)
            assert drawn_kw.max() <= step.limit_kw + 1e-3


@pytest.mark.long
def test_a_day_comes_to_its_recorded_rows_today(follow_day: ModuleType) -> None:
    recorded = pd.read_csv(STUDIES / "follow" / "results.csv").query("day == 'a node breaks' and way == 'followed'")
    now = pd.DataFrame(follow_day.rows_of(follow_day.Site(), "followed", fails=True))
    for column in ("from_h", "power_kw_high", "tokens_%"):
        assert now[column].tolist() == pytest.approx(recorded[column].tolist(), abs=5e-4), f"run {follow_day.COMMAND}"
