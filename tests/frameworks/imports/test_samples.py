"""Scripts and configs in the manner of each framework's documentation: the job and the plan that they state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jointopt.core.errors import UsageError
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
    assert training.settings == expected.get("settings", {})
    assert " ".join(map(str, (training.lora_dim or "", *training.adapted))).strip() == expected.get("lora", "")
    assert [key for keys in found.unread.values() for key in keys] == expected.get("unread", [])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(name="megatron_llama3_8b.sh", cut=113, gone=120, other="")  # a quotation in the batch header does not end
@given(
    name=st.sampled_from(sorted(path.name for path in SAMPLES.iterdir())), cut=st.integers(0, 3000),
    gone=st.integers(0, 400), other=st.text(max_size=20),
)  # fmt: skip
def test_a_damaged_file_is_read_or_refused_in_a_sentence(
    name: str, cut: int, gone: int, other: str, tmp_path: Path
) -> None:
    text = (SAMPLES / name).read_text(encoding="utf-8")
    (tmp_path / name).write_text(text[:cut] + other + text[cut + gone :], encoding="utf-8")
    sentence = "It is read."
    try:
        import_([tmp_path / name], gpu="h100-sxm5-80gb", nodes=2, vocab_size=128256)
    except UsageError as error:
        sentence = str(error)
    assert re.fullmatch(r"\S+ [^\n]+[.?)]", sentence)


def test_every_sample_is_expected_to_be_something() -> None:
    named = {name for files in EXPECTED for name in files.split()}
    assert named == {path.name for path in SAMPLES.iterdir()} - {"expected.yaml"}
