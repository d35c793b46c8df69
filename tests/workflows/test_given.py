"""The verbs from Python: paths in place of objects, one root of errors, and the options of the command line."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import numpy as np
import pandas as pd
import pytest

import jointopt
from jointopt.cli.main import COMMANDS, Commands
from jointopt.jobs.jobfile import job_from_options
from jointopt.runs.table import read_table

JOB = "opt-350m-2x4-a100"


@pytest.fixture
def files(synthetic_runs, tmp_path):
    """Paths of a job file and of a table of its runs."""
    (tmp_path / "job.yaml").write_text(jointopt.jobs.jobfile.dump_job(jointopt.load_job(JOB)))
    runs = synthetic_runs(rows=3).assign(framework="megatron-deepspeed")
    runs.to_csv(tmp_path / "runs.csv", index=False)
    return str(tmp_path / "job.yaml"), str(tmp_path / "runs.csv")


def test_a_job_and_measured_runs_may_be_paths(files):
    job, runs = files
    found = jointopt.explain(job, "dp=8", measured=runs)
    same = jointopt.explain(jointopt.load_job(job), "dp=8", measured=pd.read_csv(runs))
    assert found.iteration_time_s == same.iteration_time_s


def test_a_table_may_be_a_path(files):
    _, runs = files
    pd.testing.assert_frame_equal(jointopt.predict(runs), jointopt.predict(read_table(Path(runs))))
    assert jointopt.evaluate(runs).overall == jointopt.evaluate(pd.read_csv(runs)).overall


def test_plans_of_a_job_are_predicted_as_explain_prices_them():
    job, plans = jointopt.load_job(JOB), ["dp=8", {"dp": 4, "tp": 2, "clock_mhz": 1200}]
    found = jointopt.predict(job, plans)
    each = [jointopt.explain(job, plan) for plan in plans]
    for name in ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib"):
        np.testing.assert_allclose(found[f"predicted_{name}"], [getattr(one, name) for one in each])
    assert found["tp"].tolist() == [1, 2]
    assert found["stage_clock_mhz"].tolist() == ["1410", "1200"]
    assert (found["predicted_iteration_time_s_low"] < found["predicted_iteration_time_s"]).all()
    assert "micro_batch_size" in found["assumed"][0].split()


@pytest.mark.parametrize("stated", ["generic", None])
def test_runs_of_software_without_a_profile_are_those_of_a_generic_job_in_a_table_too(stated):
    shape = {"model": "llama-3-8b", "gpu": "h100-sxm5-80gb", "global_batch_size": 512, "seq_length": 8192}
    job = job_from_options(gpus=64, dtype="bf16", **shape)
    layout = {"dp": 32, "tp": 2, "pp": 1, "micro_batch_size": 1, "zero_stage": 1, "recompute": "none"}
    table = pd.DataFrame([shape | layout | {"dtype": "bf16", "num_gpus": 64, "gpus_per_node": 8, "framework": stated}])
    runs = table.assign(framework="MyTrainer", iteration_time_s=9.8)
    found = jointopt.predict(table, surrogate="default", measured=runs)
    explained = jointopt.explain(job, "dp=32 tp=2 mbs=1 zero_stage=1 recompute=none", measured=runs)
    assert found["predicted_iteration_time_s"][0] == pytest.approx(explained.iteration_time_s, rel=1e-9)
    assert found["framework"].equals(table["framework"])


def test_one_plan_may_stand_alone_and_a_job_may_be_its_path(files):
    assert len(jointopt.predict(files[0], "dp=8")) == 1


@pytest.mark.parametrize(("call", "words"), [
    (lambda: jointopt.explain({"model": "opt-350m"}, "dp=8"), "job must be a Job .*; got dict"),
    (lambda: jointopt.propose(None), "job must be a Job .*; got NoneType"),
    (lambda: jointopt.load_job(5), "A job is read from the path of its file, .*; got int"),
    (lambda: jointopt.evaluate([1]), "table must be a pandas DataFrame or the path of a CSV file; got list"),
    (lambda: jointopt.predict("nowhere.csv"), "nowhere.csv cannot be read as CSV"),
    (lambda: jointopt.predict(JOB), "Plans are missing"), (lambda: jointopt.predict(JOB, []), "no plan to predict"),
    (lambda: jointopt.predict(pd.DataFrame({"tp": [1]}), "dp=8"), "A table has its plans in its rows"),
    (lambda: jointopt.predict(JOB, "dp=7"), "cannot be priced"),
    (lambda: jointopt.explain(JOB, "tp=2 pp=4 stage_layers=1;2"), "stage_layers 1;2 must be pp.vpp = 4 numbers"),
    (lambda: jointopt.retrain(tables="nowhere.csv", out="out"), "nowhere.csv cannot be read as CSV"),
    (lambda: jointopt.import_("nowhere.sh"), "nowhere.sh cannot be read"),
])  # fmt: skip
def test_other_things_than_objects_and_files_are_refused_in_one_sentence(call, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(jointopt.JointOptError, match=words):
        call()


@pytest.mark.parametrize(("call", "words"), [
    (lambda: jointopt.compare(JOB, 3), "plans must be a plan as text or a mapping, or a list of them; got int."),
    (lambda: jointopt.select(3), "source must be the path of a file or a folder, or the name of a study; got int."),
    (lambda: jointopt.propose(JOB, baseline=3), "baseline must be a plan as text, or the path of"),
    (lambda: jointopt.propose(JOB, trials=-5), "trials must be a whole number from 0 on; got -5."),
    (lambda: jointopt.propose(JOB, seed="a"), "seed must be a whole number from 0 to 4294967295; got 'a'."),
    (lambda: jointopt.scale(JOB, deadline_days="x"), "deadline_days must be a number; got 'x'."),
    (lambda: jointopt.scale([3]), "jobs must be Jobs (`jointopt.load_jobs`); got a list with int."),
    (lambda: jointopt.retrain(tables=3, out="x"), "tables must be the path of a file, or a list of them; got int."),
    (lambda: jointopt.load_job(JOB, 3), "changes must be a mapping such as {'cluster.nodes': 4}; got int."),
    (lambda: jointopt.scale(JOB, []), "gpus must be numbers of GPUs above 0, such as [8, 16], or be left out"),
    (lambda: jointopt.scale(JOB, [0]), "for the job's own; got [0]."),
    (lambda: jointopt.scale(JOB, "abc"), "for the job's own; got 'abc'."),
    (lambda: jointopt.explain(JOB, " "), "The plan is blank; expected words such as dp=4 tp=2."),
    (lambda: jointopt.propose(JOB, study=""), "study is blank; expected a name"),
    (lambda: jointopt.propose(JOB, objectives=["time"]), "a key of the job: jointopt.job(..., objectives=...)."),
    (lambda: jointopt.propose(JOB, sead=1), "propose takes no argument 'sead' (did you mean 'seed'?)."),
    (lambda: jointopt.tune(JOB, 3, 1), "launcher must be the name of a launcher, or one; got int."),
])  # fmt: skip
def test_an_argument_of_another_type_is_refused_by_its_name(call, words):
    with pytest.raises(jointopt.UsageError, match=re.escape(words)):
        call()


def test_every_verb_has_the_surrogate_of_its_command():
    for name in sorted({*jointopt.__all__} & {*COMMANDS} - {"retrain"}):
        of_verb = inspect.signature(getattr(jointopt, name)).parameters.get("surrogate")
        command = Commands().get_command(click.Context(click.Command("jointopt")), name)
        of_command = [option.default for option in command.params if option.name == "surrogate"]
        assert ([of_verb.default] if of_verb else []) == of_command, name
