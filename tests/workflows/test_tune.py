"""The loop: what is run, what is learned, what is kept, and why it stops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from jointopt.core.errors import LauncherError
from jointopt.core.schema import LAYOUT_COLUMNS, SPLIT_COLUMNS
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.measure.replay import ReplayLauncher
from jointopt.report.tables import plan_entries
from jointopt.runs.store import Store
from jointopt.search.pareto import non_dominated
from jointopt.surrogate.plan_process import USUAL
from jointopt.workflows.campaign.candidates import listed_candidates, searched_candidates
from jointopt.workflows.campaign.expectation import EarlierRuns, Outlook
from jointopt.workflows.campaign.stopping import hypervolumes, set_bounds
from jointopt.workflows.propose import propose
from jointopt.workflows.tune import tune

SMALL = {
    "model": "llama-3-8b",
    "training": {"seq_length": 4096, "global_batch_size": 32},
    "cluster": {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8},
}


@pytest.fixture
def timed(job: Job) -> Job:
    return replace(job, objectives=("iteration_time_s",))


class Interrupted(ReplayLauncher):
    """Someone presses Ctrl-C in the third run."""

    runs = 0

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        self.runs += 1
        if self.runs == 3:
            raise KeyboardInterrupt
        return super().run(job, plan)


class Simulated:
    """A launcher that can run every plan: one time per layout, and energy where wanted."""

    name = "simulated"

    def __init__(self, energy: bool = False) -> None:
        self.energy = energy

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        time = 1.0 + 0.1 * plan["tp"] + 0.2 * plan["pp"] + 100.0 / float(str(plan["stage_clock_mhz"]).split(";")[0])
        return {"status": "ok", "iteration_time_s": time, "energy_j": 3.0 / time if self.energy else None}


class EndingEarly(Simulated):
    """Ends runs that are behind, as its row states, and records the bounds that it was given."""

    behind_s = 0.0

    def __init__(self, energy: bool = False) -> None:
        super().__init__(energy)
        self.launched: list[tuple[float, float]] = []

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        row = super().run(job, plan)
        self.launched.append((self.behind_s, row["iteration_time_s"]))
        return dict(row) | ({"status": "timeout"} if 0.0 < self.behind_s < row["iteration_time_s"] else {})


def test_a_run_is_ended_where_it_takes_half_as_long_again_as_the_best() -> None:
    job, launcher = parse_job(SMALL, "small", Path()), EndingEarly()
    tune(replace(job, objectives=("iteration_time_s",)), launcher, 6)
    best = [min(time for _, time in launcher.launched[:n]) for n in range(1, 6)]
    assert [behind for behind, _ in launcher.launched] == pytest.approx([0.0, *(1.5 * value for value in best)])


def test_where_energy_counts_a_launcher_without_a_meter_ends_what_idle_gpus_would_make_as_far_behind() -> None:
    job, launcher = parse_job(SMALL, "small", Path()), EndingEarly(energy=True)
    tune(job, launcher, 3)
    idle_w = job.cluster.num_gpus * job.cluster.gpu.power.static_w
    (_, first_s), (behind, _), _ = launcher.launched
    assert behind == pytest.approx(1.5 * max(first_s, 3.0 / first_s / idle_w))


class Metering(EndingEarly):
    """Ends runs by the energy that it meters, too."""

    behind_both: tuple[tuple[float, float], ...] = ()

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        self.bounds = [*getattr(self, "bounds", []), self.behind_both]
        return super().run(job, plan)


def test_a_launcher_with_a_meter_ends_what_is_half_behind_a_measured_run_in_time_and_energy() -> None:
    job, launcher = parse_job(SMALL, "small", Path()), Metering(energy=True)
    tune(job, launcher, 3)
    (_, first_s), (_, second_s), _ = launcher.launched
    assert {behind for behind, _ in launcher.launched} == {0.0}
    fronts = [np.array(sorted((1.5 * time, 4.5 / time) for time in ran)) for ran in ({first_s}, {first_s, second_s})]
    assert launcher.bounds[0] == ()
    for bounds, front_so_far in zip(launcher.bounds[1:], fronts, strict=True):  # no run beats another in both
        assert np.array(bounds) == pytest.approx(front_so_far)


@pytest.mark.parametrize("names", [("iteration_time_s", "energy_j", "peak_memory_gib"), ("peak_power_w",)])
def test_nothing_is_ended_for_objectives_other_than_time_and_energy(names: tuple[str, ...]) -> None:
    job, launcher = parse_job(SMALL, "small", Path()), Metering(energy=True)
    launcher.behind_s, launcher.behind_both = 1.0, ((1.0, 1.0),)
    set_bounds(launcher, job, {name: np.array([2.0, 3.0]) for name in names})
    assert (launcher.behind_s, launcher.behind_both) == (0.0, ())


def test_a_run_without_a_meter_is_behind_in_energy_where_all_gpus_at_rest_would_have_drawn_that_much() -> None:
    # a run that took as much as all GPUs at rest in 40 s: half as much again lasts 60 s, far beyond 1.5 times its 1 s
    job, launcher = parse_job(SMALL, "small", Path()), EndingEarly(energy=True)
    at_rest_w = job.cluster.num_gpus * job.cluster.gpu.power.static_w
    set_bounds(launcher, job, {"iteration_time_s": np.array([1.0]), "energy_j": np.array([40.0 * at_rest_w])})
    assert job.cluster.num_gpus > 1
    assert launcher.behind_s == pytest.approx(60.0)


def test_energy_alone_ends_a_run_whatever_its_time() -> None:
    launcher = Metering(energy=True)
    set_bounds(launcher, parse_job(SMALL, "small", Path()), {"energy_j": np.array([5.0, 4.0])})
    assert launcher.behind_both == ((0.0, 6.0),)


def test_a_run_that_was_ended_early_is_no_result_and_teaches_what_is_slow_and_what_fits(make_runs, timed: Job) -> None:
    candidates = listed_candidates(ReplayLauncher(make_runs()).candidates(timed), timed)
    # in so much less memory that the first plan may fit or not, as before any run of it
    candidates = replace(candidates, log_load=candidates.log_load - candidates.log_load[0])
    outlook = Outlook(timed, candidates, EarlierRuns(), USUAL, np.random.default_rng(0))
    time_s = float(candidates.predicted["iteration_time_s"][0])
    behind = {"status": "timeout", "iteration_time_s": 2.0 * time_s}
    bounded, unbounded = (
        outlook.after(timed.objectives, np.array([0]), [row]) for row in (behind, {"status": "timeout"})
    )
    assert (bounded.columns["iteration_time_s"] > 1.2 * unbounded.columns["iteration_time_s"]).all()
    assert (bounded.columns["probability_fits"] > unbounded.columns["probability_fits"]).all()


def test_the_energy_of_a_run_that_was_ended_early_is_a_lower_bound_that_teaches_as_its_time_does() -> None:
    job = parse_job(SMALL, "small", Path())
    candidates = searched_candidates(job)
    outlook = Outlook(job, candidates, EarlierRuns(), USUAL, np.random.default_rng(0))
    energy_j = float(candidates.predicted["energy_j"][0])
    row = {"status": "timeout", "iteration_time_s": float(candidates.predicted["iteration_time_s"][0])}
    bounded, unbounded, small = (
        outlook.after(("energy_j",), np.array([0]), [row | more])
        for more in ({"energy_j": 2.0 * energy_j}, {}, {"energy_j": 0.5 * energy_j})
    )
    assert (bounded.columns["energy_j"] > 1.2 * unbounded.columns["energy_j"]).all()
    # half of what was expected teaches next to nothing, where a measured half would move all by a third
    assert small.columns["energy_j"] == pytest.approx(unbounded.columns["energy_j"], rel=0.1)


def test_a_plan_fits_as_probably_as_in_memory_and_within_each_bound_of_the_job(make_runs, timed: Job) -> None:
    candidates = listed_candidates(ReplayLauncher(make_runs()).candidates(timed), timed)
    bound_s = float(np.median(candidates.predicted["iteration_time_s"]))
    bounded = replace(timed, constraints=replace(timed.constraints, iteration_time_s=bound_s))
    free, held = (
        Outlook(job, candidates, EarlierRuns(), USUAL, np.random.default_rng(0)).after(timed.objectives, none, [])
        for job, none in ((timed, np.array([], int)), (bounded, np.array([], int)))
    )
    time_s, high_s = (held.columns[f"iteration_time_s{end}"] for end in ("", "_high"))
    kept = ndtr(np.log(bound_s / time_s) / (np.log(high_s / time_s) / 1.6448536))
    assert held.columns["probability_fits"] == pytest.approx(free.columns["probability_fits"] * kept)
    assert held.columns["iteration_time_s_low"] * high_s == pytest.approx(time_s**2)
    assert held.draws["fits"].mean(axis=1) == pytest.approx(held.columns["probability_fits"], abs=0.15)


def test_every_run_is_another_plan_and_the_first_is_expected_to_fit(make_runs, timed: Job) -> None:
    tuned = tune(timed, "replay", 3, table=make_runs())
    plans = [tuple(run.plan[name] for name in LAYOUT_COLUMNS) for run in tuned.runs]
    assert len(set(plans)) == len(plans) == 3
    assert tuned.runs[0].status == "ok"
    assert [run.round for run in tuned.runs] == [1, 2, 3]


@pytest.mark.parametrize("goals", [("iteration_time_s",), ("iteration_time_s", "energy_j")])
def test_the_first_run_is_the_first_plan_that_propose_prints(goals: tuple[str, ...]) -> None:
    job = replace(parse_job(SMALL, "small", Path()), objectives=goals)
    first = plan_entries(propose(job).front, [0])[0]
    run = tune(job, Simulated(energy=True), 1).runs[0]
    assert {name: run.plan[name] for name in (*LAYOUT_COLUMNS, "stage_clock_mhz")} == {
        name: first[name] for name in (*LAYOUT_COLUMNS, "stage_clock_mhz")
    }


def test_a_tune_that_goes_on_does_not_begin_anew_with_the_first_plan_of_the_proposal(url: str) -> None:
    job = replace(parse_job(SMALL, "small", Path()), objectives=("iteration_time_s",))
    first = tune(job, Simulated(), 1, storage=url).runs[0]
    again = tune(job, Simulated(), 1, storage=url).runs
    assert [run.round for run in again] == [0, 1]
    assert again[1].plan != first.plan == again[0].plan


def test_plans_chosen_together_split_the_gpus_differently_unless_asked_otherwise() -> None:
    few = SMALL | {"search": {"pp": [1, 8], "cp": [1], "tp": [1]}}
    apart, alike = (tune(parse_job(few, "few", None), Simulated(True), 2, batch=2, alike=a) for a in (False, True))
    splits = [{tuple(run.plan[name] for name in SPLIT_COLUMNS) for run in found.runs} for found in (apart, alike)]
    assert [len(found) for found in splits] == [2, 1]
    assert [any("--alike" in note for note in found.notes) for found in (apart, alike)] == [True, False]


def test_of_plans_that_are_likely_to_fit_the_most_promising_runs_however_close_it_is(make_runs, timed: Job) -> None:
    candidates = listed_candidates(ReplayLauncher(make_runs()).candidates(timed), timed)
    close = replace(candidates, log_load=np.full(candidates.size, candidates.log_load.max()))
    outlook = Outlook(timed, close, EarlierRuns(), USUAL, np.random.default_rng(0))
    found = outlook.after(timed.objectives, np.array([], int), [])
    assert (found.kept == 1.0).all()
    assert (found.columns["probability_fits"] < 1.0).all()


def test_the_budget_stops_the_loop_and_so_does_a_table_without_more(make_runs, timed: Job) -> None:
    runs = make_runs().query("status == 'ok'")
    assert tune(timed, "replay", 2, table=runs).stopped == "budget"
    few = tune(timed, "replay", 9, table=runs.head(2))
    assert (few.stopped, len(few.runs)) == ("exhausted", 2)


def test_hopeless_plans_are_left_and_the_loop_converges(make_runs, timed: Job) -> None:
    tuned = tune(timed, "replay", 10, table=make_runs())
    assert tuned.stopped == "converged"
    assert min(run.result("iteration_time_s") for run in tuned.runs) == make_runs()["iteration_time_s"].min()
    assert tuned.next_run is not None
    assert tuned.next_run["worth"] < tuned.next_run["cost"]
    assert f"{tuned.next_run['cost']:.3g}"[:4] in tuned.reason
    assert tuned.reason in tuned.notes


def test_the_shorter_the_training_the_fewer_runs_it_pays_for(make_runs, timed: Job) -> None:
    tokens = timed.training.global_batch_size * timed.training.seq_length
    counts = [
        len(tune(replace(timed, training=replace(timed.training, run_tokens=iterations * tokens)), "replay", 10,
                 table=make_runs()).runs)
        for iterations in (10, 10**3, 10**5)
    ]  # fmt: skip
    assert counts[0] == 1  # a run takes longer than the training
    assert counts[0] < counts[1] <= counts[2] <= 10


def test_an_oom_is_a_run_without_results(make_runs, timed: Job) -> None:
    runs = make_runs(status="oom", iteration_time_s=np.nan)
    tuned = tune(timed, "replay", 3, table=runs)
    assert {run.status for run in tuned.runs} == {"oom"}
    assert tuned.front == ()
    assert tuned.hypervolume == (0.0, 0.0, 0.0)


def test_predictions_are_of_the_software_that_a_table_states(make_runs, timed: Job) -> None:
    by_framework = {name: tune(timed, "replay", 1, table=make_runs(framework=name)) for name in ("nanotron", "generic")}
    first = [tuned.runs[0].predicted["iteration_time_s"] for tuned in by_framework.values()]
    assert first[0] != first[1]


def test_energy_counts_only_where_it_is_measured(make_runs, job: Job) -> None:
    assert tune(job, "replay", 3, table=make_runs()).objectives == ("iteration_time_s",)
    both = make_runs(energy_j=np.arange(10.0) + 1.0)
    assert tune(job, "replay", 3, table=both).objectives == job.objectives


def test_an_objective_that_no_run_measures_is_left_out_and_noted_once(make_runs, job: Job, url: str) -> None:
    thrifty = replace(job, objectives=("energy_j",))
    tuned = tune(thrifty, "replay", 4, table=make_runs(), storage=url)
    assert tuned.objectives == ("iteration_time_s",)
    assert [tuned.runs[i].result("iteration_time_s") for i in tuned.front] == [
        min(run.result("iteration_time_s") for run in tuned.runs if run.status == "ok")
    ]
    assert [note for note in tuned.notes if "energy_j is left out, since no run measures it" in note]
    assert len(tuned.notes) == 1


def test_a_constraint_that_no_run_can_be_held_to_is_noted_once(make_runs, timed: Job) -> None:
    bound = replace(timed, constraints=replace(timed.constraints, energy_j=5.0))
    tuned = tune(bound, "replay", 3, table=make_runs())
    noted = [note for note in tuned.notes if "constraint energy_j cannot be checked" in note]
    assert (len(noted), len(tuned.front)) == (1, 1)


def test_every_run_is_stored_before_the_next(make_runs, timed: Job, url: str) -> None:
    tuned = tune(timed, Interrupted(make_runs()), 9, storage=url)
    stored = Store(url).read()
    assert tuned.stopped == "interrupted"
    assert len(tuned.runs) == len(stored) == 2
    assert stored["iteration_time_s"].tolist() == [run.result("iteration_time_s") for run in tuned.runs]


def test_plans_that_the_store_has_measured_are_known_and_not_run_again(make_runs, timed: Job, url: str) -> None:
    tune(timed, "replay", 2, table=make_runs(), storage=url)
    again = tune(timed, "replay", 2, table=make_runs(), storage=url)
    plans = [tuple(run.plan[name] for name in LAYOUT_COLUMNS) for run in again.runs]
    assert [run.round for run in again.runs] == [0, 0, 1, 2]
    assert len(set(plans)) == 4
    assert len(Store(url).read()) == 4
    assert "2 plans of this job were measured before" in again.notes[0]


def test_runs_of_another_job_on_the_cluster_are_known_and_those_of_another_gpu_are_not(
    make_runs, timed: Job, tmp_path
) -> None:
    other = make_runs(global_batch_size=512, group="other", iteration_time_s=80.0).query("status == 'ok'")
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("same", "foreign")]
    for url, gpu in zip(urls, (other["gpu"].iloc[0], "h100-sxm5-80gb"), strict=True):
        Store(url).add(other.assign(gpu=gpu), "by hand")
    same, foreign = (tune(timed, "replay", 1, table=make_runs(), storage=url) for url in urls)
    assert same.notes[0].startswith("5 earlier runs on this kind of cluster")
    assert foreign.notes == ()


def test_from_six_runs_on_what_predicts_them_best_is_used(make_runs, timed: Job) -> None:
    candidates = listed_candidates(ReplayLauncher(make_runs()).candidates(timed), timed)
    index = np.arange(candidates.size)
    truth = candidates.predicted["iteration_time_s"] * np.exp(np.linspace(-0.9, 0.9, candidates.size) ** 3)
    rows = [{"status": "ok", "iteration_time_s": value} for value in truth]
    known = {"iteration_time_s": np.log(truth / candidates.predicted["iteration_time_s"])}
    earlier = EarlierRuns(log_factors=known, num_other_runs=9)
    outlook = Outlook(timed, candidates, earlier, USUAL, np.random.default_rng(0))
    assert outlook.after(timed.objectives, index[:3], rows[:3]).basis == "the runs of this job"
    assert outlook.after(timed.objectives, index[:7], rows[:7]).basis == "earlier runs of the cluster"


def test_a_run_beyond_a_bound_of_the_job_is_never_the_best(make_runs, job: Job) -> None:
    bound = replace(job, constraints=replace(job.constraints, energy_j=5.0))
    runs = make_runs(energy_j=np.arange(10.0)[::-1] + 1.0)
    tuned = tune(replace(bound, objectives=("iteration_time_s",)), "replay", 10, table=runs)
    broken = [bool(run.broken) for run in tuned.runs]
    assert any(broken)
    assert all(run.broken == ("energy_j",) for run in tuned.runs if run.result("energy_j") > 5.0)
    assert tuned.front
    assert not any(broken[i] for i in tuned.front)


def test_plans_of_a_batch_share_a_round(make_runs, timed: Job) -> None:
    tuned = tune(timed, "replay", 5, table=make_runs(), batch=2)
    assert [run.round for run in tuned.runs] == [1, 1, 2, 2, 3][: len(tuned.runs)]


def test_a_table_of_another_job_cannot_be_tuned(make_runs, timed: Job) -> None:
    with pytest.raises(LauncherError, match="seq_length"):
        tune(timed, "replay", 3, table=make_runs(seq_length=1024))


def test_without_a_list_the_plans_are_those_of_the_jobs_space() -> None:
    job = parse_job(SMALL, "small", Path())
    tuned = tune(job, Simulated(energy=True), 4)
    assert tuned.candidates > 50
    assert tuned.objectives == job.objectives
    assert len(tuned.front) >= 1
    assert tuned.runs[0].row["num_gpus"] == 8


def test_volume_never_falls_and_a_failure_adds_none() -> None:
    values = np.array([[2.0, 3.0], [np.nan, np.nan], [1.0, 4.0], [3.0, 5.0]])
    volume = hypervolumes(values)
    assert volume[0] == volume[1] < volume[2] == volume[3] < 1.0
    assert non_dominated(values).tolist() == [2, 0]


def test_the_volume_of_one_objective_is_the_way_from_the_reference_to_the_best() -> None:
    np.testing.assert_allclose(
        hypervolumes(np.array([[10.0], [5.0], [8.0]])), [1 - 1 / 1.1, 1 - 0.5 / 1.1, 1 - 0.5 / 1.1]
    )
