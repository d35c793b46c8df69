"""``jointopt exec --watch`` on a program that writes the times of its ranks, over stand-in GPUs one of which is hot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt as commands
from jointopt.runs.store import Store
from tests.cli.test_exec_follow import JOB

TRAIN = Path(__file__).parents[1] / "stand_in" / "train_ranks.py"


@pytest.fixture
def words(driver, tmp_path: Path) -> list[str]:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "plan.json").write_text(json.dumps({"dp": 4, "tp": 1, "pp": 1, "clock_mhz": 1980}))
    return ["exec", "--plan", f"{tmp_path}/plan.json", "--watch", f"{tmp_path}/ranks.csv",
            "--metrics", f"{tmp_path}/run.prom"]  # fmt: skip


def here(driver, folder: Path, words: list[str], iterations: int = 200) -> Result:
    return CliRunner().invoke(commands, [*words, "--", sys.executable, str(TRAIN), str(folder), str(driver.folder),
                                         str(iterations)])  # fmt: skip


def test_a_hot_gpu_is_told_once_with_its_rank_and_kind_and_counted_in_the_metrics(driver, tmp_path, words) -> None:
    ran = here(driver, tmp_path, words)
    assert ran.exit_code == 0, ran.stderr
    assert ran.stderr.count("Rank 3 is slow since iteration 40: heat") == 1
    assert " is slow since" not in ran.stderr.replace("Rank 3 is slow since", "")
    assert "jointopt_slow_ranks 1" in (tmp_path / "run.prom").read_text()
    assert 'jointopt_iteration_time_seconds{kind="measured"} 1.1' in (tmp_path / "run.prom").read_text()


def test_rebalance_lowers_the_clocks_of_those_that_wait_alone_and_puts_all_back(driver, tmp_path, words) -> None:
    ran = here(driver, tmp_path, [*words, "--job", f"{tmp_path}/job.yaml", "--rebalance"])
    assert ran.exit_code == 0, ran.stderr
    assert ran.stderr.count("Rebalanced: hold the stages of replica 3 at 1980 MHz") == 1
    later = [call.split() for call in driver.calls()[4:] if call.startswith("lock")]
    assert {gpu for _, gpu, _ in later} == {"0", "1", "2"}
    assert all(int(mhz) < 1980 for _, _, mhz in later)
    assert driver.held() == {}


def test_what_was_measured_between_changes_of_clocks_is_stored_and_read_by_propose(
    driver, tmp_path, words, url
) -> None:
    (tmp_path / "limit").write_text("time_s,limit_kw\n0,99\n5,2.5\n60,99\n")
    more = ["--job", f"{tmp_path}/job.yaml", "--follow", f"{tmp_path}/limit", "--storage", url]
    ran = here(driver, tmp_path, [*words, *more], 300)
    assert ran.exit_code == 0, ran.stderr
    rows = Store(url).read()
    assert len(rows) == 2
    first, second = rows.sort_values("avg_power_w", ascending=False).itertuples()
    assert first.stage_clock_mhz == "1980"
    assert float(second.stage_clock_mhz) < 1980
    assert first.energy_j == pytest.approx(4 * first.avg_power_w * first.iteration_time_s)
    assert first.iteration_time_s == pytest.approx(1.0, abs=0.2)


def test_a_log_of_iterations_alone_tells_their_time(driver, tmp_path, words) -> None:
    lines = "".join(f"step {i} loss 2.5 time 0.{400 + i}\\n" for i in range(1, 9))
    ran = CliRunner().invoke(commands, [*words, "--", "sh", "-c", f"printf '{lines}' > {tmp_path}/ranks.csv; sleep 3"])
    assert ran.exit_code == 0, ran.stderr
    figures = (tmp_path / "run.prom").read_text()
    assert 'jointopt_iteration_time_seconds{kind="measured"} 0.405' in figures
    assert "jointopt_slow_ranks 0" in figures


def test_a_log_that_is_missing_or_tells_nothing_ends_no_program(driver, tmp_path, words) -> None:
    (tmp_path / "ranks.csv").write_text("iteration,rank\n1,2\n")
    for log in (tmp_path / "ranks.csv", tmp_path / "missing.log"):
        ran = CliRunner().invoke(commands, [*words[:4], str(log), "--", "sleep", "2.5"])
        assert ran.exit_code == 0
    refused = here(driver, tmp_path, [*words, "--rebalance"])
    assert (refused.exit_code, "--rebalance needs --watch and --job" in refused.stderr) == (2, True)
