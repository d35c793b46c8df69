"""``jointopt predict``."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt


@pytest.fixture
def table(synthetic_runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Recorded runs, also in ``runs.csv`` of the working folder."""
    monkeypatch.chdir(tmp_path)
    runs = synthetic_runs().assign(mine=range(20))
    runs.to_csv("runs.csv", index=False)
    return runs


def run(*arguments: object) -> Result:
    return CliRunner().invoke(jointopt, ["predict", *map(str, arguments)])


def error(path: str) -> float:
    read = pd.read_csv(path)
    return float((read["predicted_iteration_time_s"] / read["iteration_time_s"] - 1).abs().median())


def test_the_settings_that_move_a_table_most_are_named_with_how_to_state_them(table: pd.DataFrame) -> None:
    said = " ".join(run("runs.csv", "--out", "out.csv", "--surrogate", "none").stderr.split())
    cells = pd.read_csv("out.csv")["hangs_on"].fillna("").str.split()
    first = cells[cells.str.len() > 0].str[0].mode()[0]
    assert "settings left open, which a column of that name states" in said
    assert f"{first} ({sum(first in cell[:2] for cell in cells)} rows)" in said
    table.assign(dp_overlap=True, tp_overlap=True, attention="flash2").to_csv("runs.csv", index=False)
    assert "left open" not in run("runs.csv", "--out", "out.csv", "--surrogate", "none").stderr


def test_predictions_are_added_and_rows_and_columns_stay(table):
    result = run("runs.csv", "--out", "out.csv")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert "20 rows written to out.csv" in result.stderr
    written = pd.read_csv("out.csv")
    assert written.columns.tolist()[: table.shape[1]] == table.columns.tolist()
    assert written["mine"].tolist() == list(range(20))
    names = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")
    wanted = {f"predicted_{name}{side}" for name in names for side in ("", "_low", "_high")}
    assert wanted | {"predicted_fits", "in_domain", "assumed", "violations"} <= set(written)
    assert written["in_domain"].dtype == written["predicted_fits"].dtype == bool


def test_every_row_has_its_throughput(table):
    run("runs.csv", "--out", "out.csv")
    found = pd.read_csv("out.csv")
    tokens = found["global_batch_size"] * found["seq_length"]
    per_gpu = tokens / found["predicted_iteration_time_s"] / found["num_gpus"]
    assert found["tokens_per_s_per_gpu"].tolist() == pytest.approx(per_gpu.tolist())
    assert found["tokens_per_j"].tolist() == pytest.approx((tokens / found["predicted_energy_j"]).tolist())
    assert (found["model_tflops_per_gpu"] / found["mfu"]).round(3).nunique() <= found["gpu"].nunique() * 2
    assert found["mfu"].between(0.0, 1.0).all()


def test_a_plan_that_the_framework_cannot_start_has_the_names_of_its_rules(table):
    table.assign(framework="nanotron", pp=2, dp=1, tp=1, cp=1, num_gpus=2, vpp=[1, 2] * 10).to_csv("p.csv", index=False)
    assert run("p.csv", "--out", "out.csv").exit_code == 0
    found = pd.read_csv("out.csv", keep_default_na=False)["violations"]
    assert set(found[::2]) == {""}
    assert all("interleaving" in names.split(";") for names in found[1::2])


def test_measured_runs_bring_the_error_down(table):
    table.groupby("group").head(3).to_csv("measured.csv", index=False)
    run("runs.csv", "--out", "before.csv")
    assert run("runs.csv", "--measured", "measured.csv", "--out", "after.csv").exit_code == 0
    assert error("before.csv") == pytest.approx(0.23, abs=0.04)
    assert error("after.csv") < 0.05


@pytest.mark.parametrize("options", [(), ("--measured", "runs.csv")])
def test_power_and_energy_of_hardware_without_a_power_model_stay_blank(table, options):
    table.assign(gpu="cpu-core").drop(columns="iteration_time_s").to_csv("cores.csv", index=False)
    result = run("cores.csv", *options, "--out", "out.csv")
    assert result.exit_code == 0, result.stderr
    assert "nan" not in Path("out.csv").read_text(encoding="utf-8")
    written = pd.read_csv("out.csv")
    assert written[[c for c in written if "energy" in c or "power" in c]].isna().all(axis=None)
    assert (written["predicted_iteration_time_s_low"] < written["predicted_iteration_time_s"]).all()


def test_a_folder_is_a_surrogate_too(table, trained):
    assert run("runs.csv", "--surrogate", trained, "--out", "out.csv").exit_code == 0
    assert np.isfinite(pd.read_csv("out.csv")["predicted_iteration_time_s"]).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpu": "rtx-1"}, "Nothing can be learned from measured.csv: .*row 1: The GPU 'rtx-1' is not in the cat"),
        ({"tp": "two"}, "Nothing can be learned from measured.csv: row 1 .*tp must be a whole number"),
        ({"iteration_time_s": None}, r"Nothing .* measured.csv: no row that can be predicted has a result \(iter.*oom"),
        ({"iteration_time_s": "2 s"}, "Row 1 of measured.csv: iteration_time_s must be a number"),
    ],
)
def test_measured_runs_of_which_none_can_be_priced_are_one_sentence(table, change, words):
    table.assign(**change).to_csv("measured.csv", index=False)
    result = run("runs.csv", "--measured", "measured.csv", "--out", "out.csv")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert re.search(words, result.stderr)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"gpu": "h100-sxm5-80gb", "framework": "torchtitan"},
            r"20 of 20 .* \(torchtitan on 4 x h100-sxm5-80gb\): nothing was learned from them",
        ),
        ({"status": "failed", "iteration_time_s": 1e18},
         "measured.csv: 20 rows with an impossible iteration_time_s .* got 1e.18"),
    ],
)  # fmt: skip
def test_measured_runs_that_do_not_apply_to_the_table_are_reported(table, change, words):
    run("runs.csv", "--out", "before.csv")
    table.assign(**change).to_csv("measured.csv", index=False)
    result = run("runs.csv", "--measured", "measured.csv", "--out", "out.csv")
    assert result.exit_code == 0
    assert re.search(words, result.stderr.splitlines()[0])
    assert Path("out.csv").read_bytes() == Path("before.csv").read_bytes()


def test_measured_runs_on_another_gpu_alone_count_in_part_and_a_sentence_states_it(table):
    run("runs.csv", "--out", "before.csv")
    table.assign(gpu="h100-sxm5-80gb", iteration_time_s=0.8 * table["iteration_time_s"]).to_csv("kin.csv", index=False)
    result = run("runs.csv", "--measured", "kin.csv", "--out", "out.csv")
    assert "on 4 x h100-sxm5-80gb): they correct its rows in part." in result.stderr
    assert Path("out.csv").read_bytes() != Path("before.csv").read_bytes()
    assert "in part" not in run("runs.csv", "--measured", "runs.csv", "--out", "out.csv").stderr


def test_a_measured_run_that_cannot_be_priced_is_named_and_the_others_count(table):
    table.assign(gpu=["rtx-1", *table["gpu"].tolist()[1:]]).to_csv("measured.csv", index=False)
    result = run("runs.csv", "--measured", "measured.csv", "--out", "out.csv")
    assert "measured.csv: 1 of 20 measured runs teaches nothing (row 1): The GPU 'rtx-1'" in result.stderr
    assert error("out.csv") < 0.05


def test_rows_that_are_not_predicted_are_reported_with_their_reason(table):
    table.assign(clock_mhz=[3000.0] * 2 + [1410.0] * 18).to_csv("fast.csv", index=False)
    result = run("fast.csv", "--out", "out.csv")
    assert result.stderr.startswith("2 rows not predicted (row 1): expected clock_mhz to be from 210 to 1410 MHz")
    assert pd.read_csv("out.csv")["predicted_energy_j"].isna().sum() == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs.csv", "--surrogate", "defualt"), "did you mean 'default'"),
        (("runs.csv", "--surrogate", "."), "holds no surrogate"),
        (("runs.csv", "--measured", "missing.csv"), "missing.csv"),
        (("missing.csv",), "missing.csv"),
        (("runs.csv", "--out", "no/such/folder.csv"), "no/such"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_code_2(table, arguments, words):
    result = run(*arguments, *(() if "--out" in arguments else ("--out", "out.csv")))
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not Path("out.csv").exists()


def test_with_a_pue_the_energy_at_the_meter_is_a_column_and_grows_with_it(table):
    for pue in (1.0, 1.5):
        assert run("runs.csv", "--out", f"{pue}.csv", "--pue", pue).exit_code == 0
    low, high = (pd.read_csv(f"{pue}.csv").predicted_facility_energy_j for pue in (1.0, 1.5))
    assert high.to_numpy() == pytest.approx(1.5 * low.to_numpy())
    assert (low > pd.read_csv("1.0.csv").predicted_energy_j).all()
    assert run("runs.csv", "--out", "plain.csv").exit_code == 0
    assert "predicted_facility_energy_j" not in pd.read_csv("plain.csv")


def test_a_result_beyond_its_gpu_is_warned_of_and_still_predicted(table):
    table.assign(peak_memory_gib=81.0, gpu="a100-sxm4-80gb").to_csv("full.csv", index=False)
    result = run("full.csv", "--out", "out.csv")
    assert result.exit_code == 0, result.stderr
    assert "20 rows whose peak_memory_gib is doubtful" in result.stderr
    assert "is it in GB, not GiB?" in result.stderr
    assert pd.read_csv("out.csv").predicted_iteration_time_s.notna().all()
