"""``watch`` on simulated logs of each kind of slow rank (`tests.rank_logs`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import UsageError
from jointopt.jobs.jobfile import load_job
from jointopt.workflows.watch import watch
from tests.rank_logs import COMPUTE_KINDS, Run


def rows_of(run: Run, folder: Path, *dropped: str) -> Path:
    file = folder / "ranks.csv"
    run.frame().drop(columns=[*dropped]).to_csv(file, index=False)
    return file


def save_rows(time_s: np.ndarray, file: Path, iteration_time: bool = False) -> None:
    rows = pd.DataFrame(time_s).rename_axis("iteration").melt(var_name="rank", value_name="time_s", ignore_index=False)
    rows["iteration_time_s"] = rows.groupby("iteration")["time_s"].max() if iteration_time else np.nan
    rows.to_csv(file)


@pytest.mark.parametrize("kind", [*COMPUTE_KINDS, "link"])
def test_the_slow_rank_its_kind_and_its_first_iteration_are_named(tmp_path: Path, kind: str) -> None:
    run = Run(11, kind, dp=4, pp=4)
    found = watch(rows_of(run, tmp_path), f"dp={run.dp} pp={run.pp}", gpus_per_node=4).slow
    assert [one.kind for one in found] == [kind]
    assert found[0].rank in run.slow_ranks
    assert set(found[0].ranks) == run.slow_ranks
    assert abs(found[0].since_iteration - run.since) <= 3
    assert found[0].noticed_iteration <= run.since + 20


def test_where_clocks_of_peers_are_not_known_its_own_before_tell_the_kind(tmp_path: Path) -> None:
    run = Run(11, "heat", dp=4, pp=4)
    frame = run.frame()
    frame.loc[frame["rank"] != run.victim, ["clock_mhz", "temperature_c"]] = np.nan
    frame.to_csv(tmp_path / "ranks.csv", index=False)
    assert [one.kind for one in watch(tmp_path / "ranks.csv", "dp=4 pp=4").slow] == ["heat"]


def test_a_run_in_which_no_rank_is_slow_is_told_so(tmp_path: Path) -> None:
    found = watch(rows_of(Run(2, iterations=400), tmp_path), "dp=4 pp=2")
    assert found.slow == ()
    assert "no rank is slow" in found.text()


def test_stages_follow_from_the_timers_of_megatrons_log_and_the_cost_from_its_iterations(tmp_path: Path) -> None:
    run, file = Run(5, "heat", slower=0.1, dp=4, pp=4), tmp_path / "train.log"
    file.write_text(run.megatron_log())
    (one,) = watch(file).slow
    assert (one.rank, one.stage, one.kind) == (run.victim, run.victim // run.dp, "unknown")
    seconds = Run(5, "heat", slower=0.1, dp=4, pp=4).timers()["iteration_time_s"][:, 0]
    assert one.cost_s == pytest.approx(np.median(seconds[60:]) - np.median(seconds[40:60]), abs=0.005)


def test_an_interleaved_schedule_does_not_tell_its_stages_by_timers(tmp_path: Path) -> None:
    run = Run(5, "heat", slower=0.1, dp=4, pp=4)
    (tmp_path / "train.log").write_text(run.megatron_log().replace("forward-recv", "forward-send-forward-recv"))
    with pytest.raises(UsageError, match="give --plan"):
        watch(tmp_path / "train.log")
    assert [one.rank for one in watch(tmp_path / "train.log", "dp=4 pp=4").slow] == [run.victim]


def test_ranks_that_wait_for_each_other_are_told_apart_by_their_clocks_alone(tmp_path: Path) -> None:
    run = Run(4, "clock", dp=8, pp=1)
    frame = run.frame()
    group = run.victim // 2 * 2
    wide = frame.pivot(index="iteration", columns="rank", values="time_s")
    for rank in (group, group + 1):  # of one tensor group: both take as long as the slower one
        frame.loc[frame["rank"] == rank, "time_s"] = wide[[group, group + 1]].max(axis=1).to_numpy()
    for columns, ranks in ((frame, (run.victim,)), (frame.drop(columns="clock_mhz"), (group, group + 1))):
        columns.to_csv(tmp_path / "ranks.csv", index=False)
        (one,) = watch(tmp_path / "ranks.csv", "dp=4 tp=2").slow
        assert one.ranks == ranks


def test_a_log_of_iterations_alone_tells_since_when_a_run_is_slower_and_of_no_rank(tmp_path: Path) -> None:
    lines = [f" iteration {i:8d}/ 500 | elapsed time per iteration (ms): {900 + 3 * (i % 5) + 50 * (i > 70)} | "
             "lm loss: 2.5E+00 | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
             for i in range(1, 121)]  # fmt: skip
    (tmp_path / "train.log").write_text("".join(lines))
    (one,) = watch(tmp_path / "train.log").slow
    assert (one.rank, one.kind, one.since_iteration) == (None, "unknown", 71)
    assert one.cost_s == pytest.approx(0.05, abs=0.003)


def test_a_log_of_throughput_needs_the_job_for_times(tmp_path: Path) -> None:
    lines = [f"[rank0]:2026-08-01 10:00:{i % 60:02d},000 - root - INFO - step: {i}  loss:  7.0  memory: 50.00GiB(60%)  "
             f"tps: {6000 - 500 * (i > 80):,}  tflops: 300.00  mfu: 40.00%\n" for i in range(1, 141)]  # fmt: skip
    (tmp_path / "rank0.log").write_text("".join(lines))
    with pytest.raises(UsageError, match="--job JOB"):
        watch(tmp_path / "rank0.log")
    (one,) = watch(tmp_path / "rank0.log", job=load_job("llama-3-8b-1x8-h100")).slow
    assert (one.rank, one.since_iteration) == (None, 81)
    assert one.cost_s == pytest.approx(128 * 8192 / 8 * (1 / 5500 - 1 / 6000), rel=1e-3)


@pytest.mark.parametrize(
    ("slower", "alone_s", "iteration_time"),
    [({3: 1.1, 4: 1.1, 5: 1.1, 6: 1.1}, [0.02] * 4, False), ({2: 1.1, 5: 1.05}, [0.02, 0.01], False),
     ({2: 1.1, 5: 1.05}, [0.02, 0.01], True), ({2: 1.1}, [0.02], True)],
)  # fmt: skip
def test_ranks_slow_together_cost_what_mending_all_gives_back_and_each_what_it_would_alone(
    tmp_path: Path, slower: dict[int, float], alone_s: list[float], iteration_time: bool
) -> None:
    time_s = 0.2 * np.exp(np.random.default_rng(0).normal(0, 0.002, (120, 8)))
    for rank, factor in slower.items():
        time_s[50 + 5 * rank :, rank] *= factor
    save_rows(time_s, tmp_path / "ranks.csv", iteration_time)
    found = watch(tmp_path / "ranks.csv")
    assert [one.cost_s for one in found.slow] == pytest.approx(alone_s, abs=0.001)
    assert found.cost_s == pytest.approx(0.02, abs=0.001)
    assert ("does not add up" in found.text()) == (len(slower) > 1)


def test_ranks_of_a_pipeline_slow_together_cost_what_its_iterations_became_longer_by(tmp_path: Path) -> None:
    run = Run(3, "host", slower=0.1, dp=4, pp=4, gpus_per_node=2)  # of a stage that is not the busiest
    frame = run.frame()
    seconds = frame.groupby("iteration")["iteration_time_s"].first().to_numpy()
    frame.to_csv(tmp_path / "ranks.csv", index=False)
    found = watch(tmp_path / "ranks.csv", "dp=4 pp=4")  # whose nodes are not known
    assert {one.rank for one in found.slow} == run.slow_ranks
    assert found.cost_s == pytest.approx(np.median(seconds[60:]) - np.median(seconds[40:60]), abs=0.003)


@pytest.mark.parametrize(("factor", "doubt"), [(1.0, False), (1e3, True), (1e-3, True)])
def test_times_far_off_what_is_predicted_of_the_job_raise_a_doubt_of_their_unit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, factor: float, doubt: bool
) -> None:
    save_rows(np.full((30, 8), 13.0 * factor), tmp_path / "ranks.csv")
    watch(tmp_path / "ranks.csv", job=load_job("llama-3-8b-1x8-h100"))
    assert ("are the times in seconds" in caplog.text) == doubt


def test_ranks_without_a_stage_are_taken_as_alike_and_that_is_named(tmp_path: Path) -> None:
    run = Run(6, "power", dp=8, pp=1)
    found = watch(rows_of(run, tmp_path, "to_next_s", "to_previous_s"), job=load_job("llama-3-8b-1x8-h100"))
    assert [one.rank for one in found.slow] == [run.victim]
    assert "all ranks do the same work" in str(found.assumed[0]) or "stage is not given" in str(found.assumed[0])
    assert found.gpu_hours_per_day == pytest.approx(8 * 24 * found.cost_s / found.iteration_time_s)
    assert found.wasted_kw > 0


def test_logs_that_tell_no_times_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("nothing here\n")
    for plan, words in ((None, "tells no times"), ("dp=2", "tells no times")):
        with pytest.raises(UsageError, match=words):
            watch(tmp_path / "train.log", plan)
    with pytest.raises(UsageError, match="cannot be read"):
        watch(tmp_path / "missing.log")
    with pytest.raises(UsageError, match="has 16 ranks and the logs have 8"):
        watch(rows_of(Run(0), tmp_path), "dp=16")
    with pytest.raises(UsageError, match="has 32 GPUs and the logs have 8"):
        watch(rows_of(Run(0), tmp_path), job=load_job("llama-3-70b-4x8-h200"))
