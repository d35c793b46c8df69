"""Scripts and configs in the manner of each framework's documentation: the job and the plan that they state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from jointopt.workflows.import_ import import_

SAMPLES = Path(__file__).parent / "samples"
EXPECTED: dict[str, Any] = yaml.safe_load((SAMPLES / "expected.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("files", EXPECTED)
def test_a_script_or_config_gives_the_job_and_the_plan_that_it_states(files: str) -> None:
    expected = EXPECTED[files]
    found = import_([SAMPLES / name for name in files.split()], **{"gpu": "h100-sxm5-80gb"} | expected.get("given", {}))
    job = found.job
    assert found.plan_text.rsplit(" ", 1)[0] == expected["plan"]
    assert f"{job.model.name} {job.cluster.nodes}x{job.cluster.gpus_per_node}" == expected["job"]
    training = job.training
    words = (training.global_batch_size, training.seq_length, training.dtype, training.framework.name)
    assert " ".join(map(str, words)) == expected["training"]
    assert [key for keys in found.unread.values() for key in keys] == expected.get("unread", [])


def test_every_sample_is_expected_to_be_something() -> None:
    named = {name for files in EXPECTED for name in files.split()}
    assert named == {path.name for path in SAMPLES.iterdir()} - {"expected.yaml"}
