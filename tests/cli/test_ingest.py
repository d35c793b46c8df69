"""``jointopt ingest`` as people run it."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from jointopt.runs.store import Store

GOOD = "dp,tp,num_gpus,status,iteration_time_s,notes\n1,2,2,ok,1.5,fast\n1,2,2,oom,,\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ingest(text: str, *options: str) -> Result:
    Path("runs.csv").write_text(text)
    return CliRunner().invoke(jointopt, ["ingest", "runs.csv", *options])


def test_runs_are_added_once_and_counted(folder: Path) -> None:
    first, second = ingest(GOOD), ingest(GOOD + "1,2,2,ok,1.6,slow\n")
    assert (first.exit_code, first.stdout, first.stderr) == (
        0,
        "2 rows added, 0 known already, 0 refused.\n",
        "runs.csv, 2 rows name no GPU (column gpu): kept, but never learned from.\n",
    )
    assert (second.exit_code, second.stdout) == (0, "1 row added, 2 known already, 0 refused.\n")
    assert Store("sqlite:///jointopt.db").read().origin.tolist() == [str(folder / "runs.csv")] * 3


def test_a_bad_row_is_named_and_the_good_ones_are_kept(folder: Path) -> None:
    done = ingest(GOOD + "1,2,4,fine,1.5,x\n1,2\n", "--storage", "sqlite:///other.db")
    assert done.exit_code == 2
    assert done.stdout == "2 rows added, 0 known already, 2 refused.\n"
    first, second, _ = done.stderr.splitlines()
    assert first.startswith(
        "runs.csv, line 4, column status: expected one of ok, oom, failed, timeout, or blank, got 'fi"
    )
    assert second == "runs.csv, line 5, column tp: expected 6 cells as in the header, got 2."
    assert len(Store("sqlite:///other.db").read()) == 2
    assert not Path("jointopt.db").exists()


def test_a_clock_that_the_gpu_does_not_have_is_named_with_line_and_column(folder: Path) -> None:
    done = ingest("gpu,clock_mhz,iteration_time_s\na40,1740,1.5\na40,1980,1.4\n")
    assert (done.exit_code, done.stdout) == (2, "1 row added, 0 known already, 1 refused.\n")
    assert done.stderr == (
        "runs.csv, line 3, column clock_mhz: expected clock_mhz to be from 210 to 1740 MHz on this GPU, "
        "got clock_mhz=1980 gpu=a40.\n"
    )


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        ("", (), "the file is empty"),
        ("a,b\n1,2\n", (), "runs.csv: the table has no column of a measurement table"),
        ("dp,dp\n1,2\n", (), "more than once"),
        (GOOD, ("--storage", "sqlite:////no/such/folder/x.db"), "unable to open database file"),
    ],
)
def test_what_cannot_be_read_or_kept_is_one_line(
    folder: Path, text: str, options: tuple[str, ...], complaint: str
) -> None:
    done = ingest(text, *options)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert complaint in done.stderr


def test_a_directory_and_a_missing_file_are_one_line(folder: Path) -> None:
    for name, complaint in ((".", "is a directory"), ("missing.csv", "No such file")):
        done = CliRunner().invoke(jointopt, ["ingest", name])
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert complaint in done.stderr


def test_a_command_that_needs_a_database_asks_for_one(folder: Path) -> None:
    done = ingest(GOOD, "--storage", "none")
    expected = "ingest needs a database; got --storage none; expected a URL such as sqlite:///jointopt.db."
    assert done.exit_code == 2
    assert expected in " ".join(done.stderr.split())


def test_a_table_from_a_pipe_is_read(folder: Path) -> None:
    command = [sys.executable, "-c", "from jointopt.cli.main import main; main()", "ingest", "/dev/stdin"]
    done = subprocess.run(command, input=GOOD, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2 rows added, 0 known already, 0 refused.\n")


def test_a_row_is_taken_back_and_stays_so(folder: Path) -> None:
    wrong = "dp,tp,num_gpus,status,iteration_time_s,notes\n1,2,2,ok,1.5,fast\n"
    ingest(GOOD)
    done = ingest(wrong, "--retract")
    assert (done.exit_code, done.stdout) == (0, "1 row retracted, 0 retracted already, 0 not in the store.\n")
    assert Store("sqlite:///jointopt.db").read()["status"].tolist() == ["oom"]
    again = ingest(GOOD)
    assert again.stdout == "0 rows added, 2 known already, 0 refused.\n"
    assert "1 row was retracted before (ingest --retract) and stays so." in again.stderr
    assert "2 rows equal no row of the store" in ingest(GOOD.replace("2,2", "1,1"), "--retract").stderr


def test_a_row_that_the_rules_of_today_refuse_is_taken_back_too(folder: Path) -> None:
    text = "gpu,num_gpus,peak_memory_gib\na40,1,500\n"
    assert ingest(text).exit_code == 2
    Store("sqlite:///jointopt.db").add(pd.DataFrame([{"gpu": "a40", "num_gpus": 1, "peak_memory_gib": 500.0}]), "old")
    assert ingest(text, "--retract").stdout.startswith("1 row retracted")
    assert Store("sqlite:///jointopt.db").read().empty


def test_a_table_in_milliseconds_is_called_so(make_runs, tmp_path: Path) -> None:
    runs = make_runs()
    runs.assign(iteration_time_s=runs["iteration_time_s"] * 250).to_csv(tmp_path / "ms.csv", index=False)
    found = CliRunner().invoke(jointopt, ["ingest", str(tmp_path / "ms.csv"), "--storage", "sqlite://"])
    assert found.exit_code == 2
    assert "5 rows look like milliseconds: " in found.stderr
