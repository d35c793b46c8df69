"""Command lines for Megatron-LM, and its logs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jointopt
from jointopt.core.errors import LauncherError
from jointopt.core.facts import FailureKind
from jointopt.frameworks.logs import read_log, result_columns
from jointopt.jobs.job import Job
from jointopt.measure.framework_launchers import framework_launcher
from jointopt.measure.local import EarlyEnd
from jointopt.measure.slurm import JobEnd, SlurmLauncher
from jointopt.runs.rows import is_bounded
from tests.megatron import megatron_arguments, megatron_program

HERE = Path(__file__).parent
PLAN: dict[str, Any] = {
    "dp": 1, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 2, "sequence_parallel": True,
    "recompute": "none", "zero_stage": 0, "stage_clock_mhz": [1410.0],
}  # fmt: skip
LINE = (
    " [2026-02-06 20:55:0{n}.918469] iteration      {n}/      20 | consumed samples:         9344 | elapsed time per "
    "iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 478.0 | energy per GPU (J/iter/GPU): 1992.5 | power per "
    "GPU (W/GPU): 647.8 | learning rate: 9.568256E-08 | global batch size:    32 | lm loss: 2.401035E+00 | loss scale: "
    "1.0 | grad norm: 1.797 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


@pytest.fixture(scope="module")
def llama() -> Job:
    return jointopt.load_job("llama-3-70b-4x8-h200")


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def test_a_plan_becomes_megatrons_own_flags(llama: Job) -> None:
    plan = PLAN | {"dp": 2, "pp": 4, "vpp": 2, "cp": 2, "zero_stage": 1, "recompute": "full"}
    arguments = megatron_arguments(llama, plan, 20)
    assert option(arguments, "--tensor-model-parallel-size") == "2"
    assert option(arguments, "--pipeline-model-parallel-size") == "4"
    assert option(arguments, "--num-virtual-stages-per-pipeline-rank") == "2"
    assert option(arguments, "--num-query-groups") == str(llama.model.num_query_groups)
    assert {"--sequence-parallel", "--use-distributed-optimizer", "--swiglu", "--bf16", "--mock-data"} <= set(arguments)
    assert option(arguments, "--recompute-granularity") == "full"


def test_a_plain_plan_has_no_flags_for_what_it_does_not_use(llama: Job) -> None:
    arguments = megatron_arguments(llama, PLAN | {"sequence_parallel": False}, 20)
    unused = {"--sequence-parallel", "--use-distributed-optimizer", "--recompute-granularity", "--num-experts"}
    assert not unused & set(arguments)
    assert "--expert-model-parallel-size" not in arguments


def test_a_model_without_dropout_is_trained_without_it(llama: Job) -> None:
    dropping = replace(llama, model=replace(llama.model, dropout=True))
    for name in ("--attention-dropout", "--hidden-dropout"):
        assert option(megatron_arguments(llama, PLAN, 20), name) == "0.0"
        assert name not in megatron_arguments(dropping, PLAN, 20)  # Megatron-LM's own default


def test_experts_have_their_own_width() -> None:
    mixtral = jointopt.load_job("mixtral-8x22b-8x8-h100")
    arguments = megatron_arguments(mixtral, PLAN | {"ep": 4}, 20)
    assert option(arguments, "--num-experts") == "8"
    assert option(arguments, "--moe-ffn-hidden-size") == str(mixtral.model.moe_ffn_hidden_size)
    assert option(arguments, "--expert-model-parallel-size") == "4"


def test_fp16_starts_from_a_loss_scale_that_skips_no_iteration(llama: Job) -> None:
    words = megatron_arguments(replace(llama, training=replace(llama.training, dtype="fp16")), PLAN, 20)
    assert option(words, "--initial-loss-scale") == "4096"
    assert "--initial-loss-scale" not in megatron_arguments(llama, PLAN, 20)


def test_what_megatron_cannot_do_is_refused(llama: Job) -> None:
    with pytest.raises(LauncherError, match="zero_stage 3 with pp > 1"):
        megatron_arguments(llama, PLAN | {"zero_stage": 3, "pp": 2}, 20)
    with pytest.raises(LauncherError, match=r"0\.12 has no --fp4-format"):
        megatron_arguments(replace(llama, training=replace(llama.training, dtype="fp4")), PLAN, 20, "0.12")


NETWORK = """node: NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB
node: NCCL INFO Using network IB
"""


def test_the_first_iterations_are_dropped_and_the_median_counts() -> None:
    text = "".join(LINE.format(n=n, ms=ms) for n, ms in enumerate([9000.0, 812.3, 810.0, 850.0], start=1))
    log = read_log(text, dropped=1)
    assert log.iteration_s == pytest.approx((0.8123, 0.81, 0.85))
    row = result_columns(log, num_gpus=8)
    assert (row["iteration_time_s"], row["energy_j"], row["avg_power_w"]) == pytest.approx((0.8123, 15940, 647.8))


def test_a_row_states_the_version_and_the_fabric_of_its_log(llama: Job) -> None:
    lines = "".join(LINE.format(n=n, ms=800.0) for n in range(1, 20))
    row = megatron_program(HERE).results(llama, HERE, "megatron-core version: 0.16.1\n" + NETWORK + lines)
    assert row is not None
    assert (row["framework_release"], row["fabric"]) == ("0.16.1", "InfiniBand (2 ports)")


def test_a_run_that_skips_every_iteration_is_a_failure_with_that_reason(llama: Job) -> None:
    skipped = LINE.replace("skipped iterations:   0", "skipped iterations:   1")
    log = "".join(skipped.format(n=n, ms=800.0) for n in range(1, 10))
    row = megatron_program(HERE).results(llama, HERE, log)
    assert row is not None
    assert (row["status"], row["failure"].kind) == ("failed", FailureKind.RESULT)
    assert "no iteration counts: 9 iterations in the log, of which 9 skipped for gradients" in row["notes"]


def test_lines_that_are_cut_or_mixed_up_are_left_out() -> None:
    whole = LINE.format(n=2, ms=812.3)
    log = read_log(
        f"\x00\xff iteration 1/ 20 | consumed\n{whole}[rank 3] {whole.replace('2/', '3/')[:60]}\n", dropped=0
    )
    assert log.iteration_s == pytest.approx((0.8123,))


def test_memory_is_that_of_the_fullest_rank() -> None:
    parts = "allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | max reserved: {}\n"
    report = "[Rank {}] (after 2 iterations) memory (MB) | " + parts
    text = LINE.format(n=1, ms=800.0) + report.format(0, 40960.0) + report.format(7, 51200.0)
    assert read_log(text, dropped=0).peak_memory_gib == pytest.approx(50.0)


def test_no_meter_is_no_energy_and_an_empty_log_is_no_measurement() -> None:
    log = read_log(LINE.format(n=1, ms=800.0).replace("1992.5", "0.0"), dropped=0)
    row = result_columns(log, 8)
    assert math.isnan(row["energy_j"])
    assert "energy not measured" in row["notes"]
    with pytest.raises(ValueError, match="0 iterations in the log"):
        read_log("Traceback (most recent call last):", dropped=0)


@pytest.fixture
def small(llama: Job, torch: Any) -> Job:
    return replace(llama, cluster=replace(llama.cluster, nodes=1, gpus_per_node=2))


def run(job: Job, monkeypatch: pytest.MonkeyPatch, how: str, checkout: Path = HERE, **options: Any) -> Any:
    monkeypatch.setenv("MEGATRON_FAKE", how)
    return framework_launcher("megatron", checkout, iterations=4, warmup_iterations=1, **options).run(job, PLAN)


def test_the_emitted_line_runs_and_is_measured(small: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = run(small, monkeypatch, "", logs=tmp_path)
    assert row["status"] == "ok"
    assert row["iteration_time_s"] == pytest.approx(0.8085, abs=0.001)
    assert row["energy_j"] == pytest.approx(2 * 0.6 * 808.5, abs=1.0)
    assert row["peak_memory_gib"] == pytest.approx(41.0)


def run_with_bound(job: Job, monkeypatch: pytest.MonkeyPatch, behind_s: float, limit_s: float) -> Any:
    """A run that prints four iterations, three of them measured, and hangs."""
    monkeypatch.setenv("MEGATRON_FAKE", "hang later")
    launcher = framework_launcher("megatron", HERE, iterations=6, warmup_iterations=1, limit_s=limit_s)
    launcher.behind_s = behind_s
    return launcher.run(job, PLAN)


def test_a_run_whose_log_shows_that_it_is_behind_is_ended_and_its_time_is_a_lower_bound(
    small: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = run_with_bound(small, monkeypatch, 0.5, 120.0)
    assert is_bounded(row)
    assert row["iteration_time_s"] == pytest.approx(0.808)
    assert row["failure"].kind is FailureKind.BEHIND
    assert "each of 3 iterations took 0.808 s or more, beyond 0.5" in row["notes"]


def test_a_run_that_is_not_behind_goes_on(small: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    row = run_with_bound(small, monkeypatch, 0.8085, 12.0)
    assert (row["status"], is_bounded(row)) == ("timeout", False)
    assert "did not end within 12 s" in row["notes"]


def test_a_log_shows_that_a_run_is_behind_only_once_three_measured_iterations_are_whole(
    llama: Job, tmp_path: Path
) -> None:
    program, log = megatron_program(HERE, iterations=9, warmup_iterations=2), tmp_path / "log.txt"
    program.behind_s = 0.5
    lines = [LINE.format(n=n, ms=900.0) for n in range(1, 6)]
    judged = []
    for text in ("", "".join(lines[:4]), "".join(lines)[:-20], "".join(lines)):
        log.write_text(text)
        judged.append(EarlyEnd(program, llama, log).is_due())
    assert judged == [False, False, False, True]


@pytest.mark.parametrize(
    ("behind_s", "third_s", "least_s"), [(0.7, 0.8, 0.8), (0.7, 0.6, None), (0.8, 0.8, None), (0.0, 0.8, None)]
)
def test_a_run_is_behind_where_the_best_of_its_first_three_iterations_is_beyond_the_bound(
    llama: Job, tmp_path: Path, behind_s: float, third_s: float, least_s: float | None
) -> None:
    program = megatron_program(HERE, iterations=9, warmup_iterations=1)
    program.behind_s = behind_s
    assert not EarlyEnd(program, llama, tmp_path / "log.txt").is_due()
    times_ms = 100.0, 900.0, 950.0, 1000.0 * third_s, 300.0
    (tmp_path / "log.txt").write_text("".join(LINE.format(n=n, ms=ms) for n, ms in enumerate(times_ms, 1)))
    early = EarlyEnd(program, llama, tmp_path / "log.txt")
    assert early.is_due() == (least_s is not None)
    assert (early.row or {}).get("iteration_time_s") == least_s


def test_a_checkout_may_be_named_from_where_one_stands(small: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE.parent)
    row = run(small, monkeypatch, "", checkout=Path(HERE.name))
    assert row["status"] == "ok", row["notes"]


@pytest.mark.parametrize(("how", "limit_s", "status"), [("oom", 60.0, "oom"), ("hang", 10.0, "timeout")])
def test_a_run_that_fails_says_how(
    small: Job, monkeypatch: pytest.MonkeyPatch, how: str, limit_s: float, status: str, tmp_path: Path
) -> None:
    row = run(small, monkeypatch, how, limit_s=limit_s, logs=tmp_path)
    assert (row["status"], math.isnan(row["iteration_time_s"])) == (status, True)
    assert row["notes"].endswith(f"; log: {next(tmp_path.glob('*.log'))}")


def test_a_folder_without_megatron_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match=r"holds no pretrain_gpt.py; expected a checkout"):
        framework_launcher("megatron", tmp_path)


def test_without_a_folder_for_its_log_no_run_starts(
    small: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(LauncherError, match=r"taken.* cannot be written: .*let TMPDIR or --logs name a folder"):
        run(small, monkeypatch, "", logs=tmp_path / "taken")


def test_on_a_cluster_it_has_the_environment_that_it_needs(llama: Job, tmp_path: Path) -> None:
    words = megatron_program(HERE).words(llama, PLAN, tmp_path)
    assert words[:3] == ["env", "CUDA_DEVICE_MAX_CONNECTIONS=1", "OMP_NUM_THREADS=1"]


def test_what_many_ranks_print_at_the_end_hides_no_iteration(llama: Job, tmp_path: Path) -> None:
    text = "".join(LINE.format(n=n, ms=800.0) for n in range(1, 5))
    (tmp_path / "log.txt").write_text(text + "[rank7]: Warning: destroy_process_group was not called\n" * 2000)
    launcher = SlurmLauncher(tmp_path, checkout=HERE, meter=False, warmup_iterations=1)
    row = launcher.row(llama, PLAN, tmp_path, JobEnd(None, (0, 60)))
    assert (row["status"], row["iteration_time_s"]) == ("ok", pytest.approx(0.8))


def test_a_failed_run_on_a_cluster_names_its_log(llama: Job, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("ValueError: bad flag\n")
    launcher = SlurmLauncher(tmp_path, checkout=HERE, meter=False)
    row = launcher.row(llama, PLAN, tmp_path, JobEnd(None, (1, 60)))
    assert row["notes"] == f"exit code 1: ValueError: bad flag; log: {tmp_path / 'log.txt'}"
