"""A whole run with its failures: the parts of its time, its policies, and what published runs came to."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jointopt
from jointopt.core.errors import InfeasibleError, JobError, UsageError
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.jobfile import load_job
from jointopt.report.effective_time import Goodput
from jointopt.workflows.goodput import goodput

LLAMA = "tp=8 pp=16 dp=128 mbs=1 zero_stage=1 recompute=full"
SMALL = "tp=2 dp=4 zero_stage=0 mbs=1"
WRITES = {"reliability__checkpoint_write_s": 300}
SLOW = {"reliability__restart_s": 86_400, "reliability__detection_s": 86_400}
DOCUMENT = {
    "time_to_train_s", "useful_energy_j", "effective_time_ratio", "lost", "checkpoint_interval_s", "spares", "p10",
    "p50", "p90", "policy",
}  # fmt: skip


LOGS = [Path(__file__).parents[1] / "data" / "failures" / f"megatron-{n}.log" for n in (3, 1, 2)]


def llama(tokens: float = 6e12, **reliability: Any) -> Goodput:
    changes = {f"reliability.{key}": value for key, value in reliability.items()}
    job = load_job("llama-3-405b-2048x8-h100", {"training.run_tokens": tokens} | changes)
    return goodput(job, LLAMA, surrogate="none")


def small(simulate: int = 0, logs: Any = (), plan: str = SMALL, **changes: Any) -> Goodput:
    often = {"training.run_tokens": 1e11, "reliability.failures_per_gpu_hour": 0.01, "reliability.checkpoint_s": 20}
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return goodput(
        load_job("llama-3-8b-1x8-h100", often | changes), plan, logs=logs, simulate=simulate, surrogate="none"
    )


def test_the_run_of_llama_3_was_effective_for_more_than_its_published_90_percent() -> None:
    assumed = {"detection_s": 60, "restart_s": 300, "checkpoint_s": 10}
    for found in (llama(**assumed), llama()):  # failures are those of its table; without any word, a faster checkpoint
        assert found.failure_s == pytest.approx(54 * 86_400 / 419, rel=0.002)
        assert read_yaml("reliability.yaml")["published"]["llama-3-405b"][0] < found.chosen.effective_time_ratio < 0.97


def test_the_document_has_the_keys_of_the_contract_and_its_shares_add_up() -> None:
    found = llama(spares=8, policy=["restart", "drop_replica"]).to_dict()
    assert found.keys() >= DOCUMENT
    assert list(found["lost"]) == ["work", "checkpoint", "restart", "idle", "degraded"]
    for one in (found, *found["policies"]):
        assert one["effective_time_ratio"] + sum(one["lost"].values()) == pytest.approx(1.0, abs=1e-12)
        assert one["p10"] < one["p50"] < one["p90"]
    assert "simulated" not in found


def test_simulated_runs_agree_and_give_the_spread() -> None:
    alone, found = small(), small(simulate=2_000).to_dict()
    assert found["simulated"]["effective_time_ratio"] == pytest.approx(alone.chosen.effective_time_ratio, rel=0.005)
    assert 0.0 < found["simulated"]["standard_error"] < 0.001
    assert found["distribution"] == "simulated"
    assert found["p90"] == pytest.approx(alone.chosen.p90, rel=0.01)


def test_of_several_policies_the_one_of_least_time_is_chosen() -> None:
    found = small(reliability__spares=0, reliability__policy=["restart", "drop_replica", "nonuniform_tp"])
    times = {one.policy: one.time_to_train_s for one in found.outcomes}
    assert times["nonuniform_tp"] < times["drop_replica"] < times["restart"]
    assert found.chosen.policy == "nonuniform_tp"
    assert found.chosen.lost["idle"] < 0.01 < found.outcomes[0].lost["idle"]
    assert found.outcomes[0].lost["degraded"] == 0.0


def test_nothing_rolls_back_where_another_replica_holds_the_state() -> None:
    found = small(reliability__policy=["restart", "spare"])
    restart, spare = found.outcomes
    assert (restart.rolls_back, spare.rolls_back) == (True, False)
    assert spare.lost["work"] < 0.02 * restart.lost["work"]
    assert goodput(found.job, "dp=8 zero_stage=1 mbs=1", surrogate="none").outcomes[1].rolls_back


def test_spares_and_faster_restarts_are_worth_what_they_save() -> None:
    one, two = (small(reliability__spares=count, cluster__nodes=1) for count in (0, 1))
    assert one.worth["spare_s"] == pytest.approx(one.chosen.time_to_train_s - two.chosen.time_to_train_s)
    assert one.worth["spare_money"] is None
    faster = small(reliability__spares=0, reliability__restart_s=240)
    assert one.worth["restart_minute_s"] == pytest.approx(one.chosen.time_to_train_s - faster.chosen.time_to_train_s)


def test_spares_cost_power_and_money() -> None:
    prices = {"cluster__price_per_gpu_hour": 2.0, "cluster__price_per_kwh": 0.1}
    none, one = small(**prices), small(**prices, reliability__spares=1, reliability__repair_s=1)
    seconds = one.chosen.time_to_train_s
    more_j = one.chosen.useful_energy_j - none.chosen.useful_energy_j
    assert more_j == pytest.approx(8 * float(one.job.cluster.gpu.idle_w or 0) * seconds, rel=0.01)
    assert one.chosen.money > 16 * 2.0 * seconds / 3600  # type: ignore[operator]
    assert small().chosen.money is None


def test_a_stated_interval_is_kept_and_the_best_one_is_at_least_an_iteration() -> None:
    assert small(reliability__checkpoint_interval_s=900).interval_s == 900.0
    found = small(reliability__checkpoint_s=0)
    assert found.interval_s == found.explained.iteration_time_s


def test_the_plan_is_by_default_the_one_that_propose_recommends() -> None:
    job = load_job("opt-350m-2x4-a100", {"training.run_tokens": 1e11})
    found = jointopt.goodput(job, surrogate="none")
    assert found.explained.plan["dp"] == jointopt.propose(job, surrogate="none").recommended.plan["dp"]


def test_logs_stand_in_for_what_the_job_leaves_open_and_say_so() -> None:
    found = small(logs=LOGS, reliability__failures_per_gpu_hour=None, reliability__checkpoint_s=None)
    assert found.reliability.restart_s == 330.0
    assert found.reliability.checkpoint_s == 13.0
    origins = {one.key: str(one) for one in found.assumed}
    assert "measured in megatron-3.log, megatron-1.log, megatron-2.log" in origins["reliability.restart_s"]
    assert "by Jeffreys' prior" in origins["reliability.failures_per_gpu_hour"]
    stated = small(logs=LOGS, reliability__restart_s=100).reliability
    assert (stated.restart_s, stated.checkpoint_s, stated.detection_s) == (100.0, 20.0, 47.5)


def test_what_happened_stands_beside_what_should_have_and_what_the_model_makes_of_it() -> None:
    found = small(logs=LOGS).to_dict()["measured"]
    assert (found["failures"], found["lost_iterations"], found["prior"]) == (2, 80, "Jeffreys")
    assert found["failures_per_gpu_hour_low"] < found["failures_per_gpu_hour"] < found["failures_per_gpu_hour_high"]
    assert found["expected"]["failures"] == pytest.approx(0.01 * found["node_hours"] * 8)
    assert found["expected"]["effective_time_ratio"] == pytest.approx(small().chosen.effective_time_ratio)
    assert found["modelled_effective_time_ratio"] == pytest.approx(found["effective_time_ratio"], abs=0.08)
    assert "measured" not in small().to_dict()


def test_the_model_explains_a_long_log_of_random_failures(tmp_path: Path) -> None:
    rng, now, saved, lines = np.random.default_rng(3), 1.77e9, 0, []
    for _ in range(80):
        fails, at = now + rng.exponential(3_600.0), saved
        lines += [f"loading checkpoint from /ckpt at iteration {saved}"] * bool(lines)
        while (now := now + 60.0 + 15.0 * (at > saved and at % 100 == 0)) < fails:
            at, saved = at + 10, at if at % 100 == 0 else saved
            stamp = datetime.fromtimestamp(now).isoformat(" ", "milliseconds")
            lines.append(f"[{stamp}] iteration {at}/ 90000 | elapsed time per iteration (ms): 6000.0 | lm loss: 3.1 |")
            lines += [f"saving checkpoint at iteration {at} to /ckpt"] * (at % 100 == 0)
        now = fails + 240.0
    (tmp_path / "long.log").write_text("\n".join(lines))
    found = small(logs=tmp_path / "long.log").measured
    assert found is not None
    assert found.history.failures == 78  # one of 80 starts ended before it logged an iteration
    assert found.rate.low < 1.0 / 8.0 < found.rate.high  # one an hour on eight GPUs
    assert found.history.checkpoint_s == pytest.approx(15.0, abs=0.1)
    assert found.modelled_ratio == pytest.approx(found.history.effective_time_ratio, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weibull_shape": 0.7}, "Weibull failures"),
        ({"rack_failure_share": 0.1, "rack_nodes": 1, "spares": 0}, "rack failures"),
        ({"lemon_node_share": 1, "lemon_failure_factor": 5, "lemon_failures": 2}, "lemon nodes that are replaced"),
    ],
)  # fmt: skip
def test_where_no_formula_holds_simulated_runs_answer_with_their_error(changes: dict[str, Any], reason: str) -> None:
    found = small(**{f"reliability__{name}": value for name, value in changes.items()})
    assert found.simulated is not None
    assert found.simulated.reason == reason
    assert found.chosen.effective_time_ratio == pytest.approx(found.simulated.effective_time_ratio)
    assert found.simulated.standard_error < 0.002
    assert "simulated runs in place of a formula" in found.text()


def test_without_such_failures_the_formula_answers() -> None:
    share_0 = {"rack_failure_share": 0, "lemon_node_share": 0, "weibull_shape": 1}
    found, plain = small(**{f"reliability__{name}": value for name, value in share_0.items()}), small()
    assert found.simulated is None
    assert found.chosen == plain.chosen


def test_planned_stops_take_their_time_as_restarts_do() -> None:
    plain = small().chosen
    stopped = small(simulate=200, reliability__planned_stops_per_day=2, reliability__planned_stop_s=4320)
    assert stopped.chosen.effective_time_ratio == pytest.approx(0.9 * plain.effective_time_ratio)
    assert stopped.chosen.lost["restart"] == pytest.approx(0.9 * plain.lost["restart"] + 0.1)
    assert sum(stopped.chosen.lost.values()) + stopped.chosen.effective_time_ratio == pytest.approx(1.0)
    assert stopped.simulated.effective_time_ratio == pytest.approx(0.9 * plain.effective_time_ratio, rel=0.01)  # type: ignore[union-attr]


def test_an_asynchronous_checkpoint_is_written_by_the_bytes_and_the_rate_that_are_left() -> None:
    rolls_back, slow = "dp=8 zero_stage=1 mbs=1", {"reliability__storage_gbytes_per_s": 0.5}
    written = small(plan=rolls_back, reliability__checkpoint_s=None, **slow).reliability.checkpoint_s
    found = small(plan=rolls_back, reliability__checkpoint_s=1, **slow)
    assert found.reliability.checkpoint_write_s == pytest.approx(written - 1.0)  # type: ignore[operator]
    assert found.interval_s >= found.reliability.checkpoint_write_s  # type: ignore[operator]
    whole = small(plan=rolls_back, reliability__checkpoint_s=1)
    assert whole.reliability.checkpoint_write_s == 0.0
    assert found.chosen.lost["work"] > whole.chosen.lost["work"]


def test_the_storage_of_all_nodes_bounds_a_checkpoint_as_that_of_each_does() -> None:
    both = {"reliability__checkpoint_s": None, "reliability__storage_gbytes_per_s": 2}
    node, total = small(**both), small(**both, reliability__storage_total_gbytes_per_s=1)
    assert total.reliability.checkpoint_s == pytest.approx(2.0 * float(node.reliability.checkpoint_s or 0.0))
    alone = small(reliability__checkpoint_s=None, reliability__storage_total_gbytes_per_s=1)
    assert alone.reliability.checkpoint_s == total.reliability.checkpoint_s


def test_every_change_that_helps_saves_time() -> None:
    worth = small(reliability__spares=0).worth
    names = ("restart_minute", "detection_minute", "checkpoint_half", "failures_half", "spare")
    assert all((worth[f"{name}_s"] or 0.0) > 0.0 for name in names)
    assert worth["detection_minute_s"] == pytest.approx(worth["restart_minute_s"])


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"reliability__checkpoint_interval_s": 60} | WRITES, JobError, "takes 300 s to be written after it"),
        ({"logs": ["none.log"]}, UsageError, "none.log cannot be read: No such file or directory."),
        ({"training__run_tokens": None}, JobError, "training.run_tokens is missing; expected the tokens"),
        ({"reliability__checkpoint_interval_s": 1e7}, JobError, "choose a shorter interval"),
        ({"reliability__failures_per_gpu_hour": 0.1} | SLOW, InfeasibleError, "The run does not end: it fails"),
        ({"simulate": 1}, UsageError, "simulate must be a number of runs from 2"),
        ({"simulate": 1_000_000, "training__run_tokens": 1e14}, UsageError, "take too long to simulate"),
    ],
)  # fmt: skip
def test_runs_that_cannot_be_are_refused_in_a_sentence(changes: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error) as refused:
        small(**changes)
    assert words in str(refused.value)
