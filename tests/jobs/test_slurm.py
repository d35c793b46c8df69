"""The section ``slurm`` of a job file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from jointopt.core.errors import JobError
from jointopt.jobs.jobfile import dump_job, parse_job
from jointopt.jobs.slurm import Slurm
from tests.each import each

FILE: dict[str, Any] = {
    "model": "llama-3-8b",
    "training": {"seq_length": 8192, "global_batch_size": 64},
    "cluster": {"gpu": "h100-sxm5-80gb", "nodes": 2, "gpus_per_node": 8, "inter_node_gbytes_per_s": 50},
}


def slurm(**section: Any) -> Slurm:
    return parse_job(FILE | {"slurm": section}, "job", Path()).slurm


def test_a_file_without_the_section_has_the_usual_one() -> None:
    assert parse_job(FILE, "job", Path()).slurm == slurm() == Slurm()


def test_one_line_stands_for_a_list_of_one() -> None:
    assert slurm(setup="module load cuda").setup == slurm(setup=["module load cuda"]).setup == ("module load cuda",)


def test_a_job_file_is_read_back_as_it_was() -> None:
    section = {
        "account": "llm",
        "time_limit_min": 20,
        "requeue": False,
        "setup": ["a", "b"],
        "sbatch": ["--mail-type=END"],
    }
    job = parse_job(FILE | {"slurm": section}, "job", Path())
    assert parse_job(yaml.safe_load(dump_job(job)), "job", Path()) == job
    assert yaml.safe_load(dump_job(job))["slurm"] == section


@each(
    ("section", "words"),
    [
        ({"acount": "x"}, r"'acount' in slurm is unknown \(did you mean 'account'"),
        ({"account": "a b"}, "slurm.account must be one word"),
        ({"partition": "x\n#SBATCH --uid=0"}, "slurm.partition must be one line"),
        ({"sbatch": "rm -rf"}, "slurm.sbatch must be an option of sbatch"),
        ({"sbatch": "--output=/tmp/x"}, "--output is set by jointopt itself"),
        ({"sbatch": "--outpu=/tmp/x"}, "--outpu is not an option that job files add"),
        ({"sbatch": "--wrap=id"}, "--wrap is not an option that job files add"),
        ({"sbatch": "--export=ALL,LD_PRELOAD=x"}, "expected one in full that places or limits a job"),
        ({"gpu_request": "8 gpus"}, "slurm.gpu_request must be an option of sbatch"),
        ({"time_limit_min": 0}, "slurm.time_limit_min must be a whole number"),
        ({"setup": [3]}, "slurm.setup must be one line of text"),
        ({"setup": {}}, "slurm.setup must be one line of text"),
    ],
)
def test_what_sbatch_could_not_take_is_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        slurm(**section)
