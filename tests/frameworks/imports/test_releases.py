"""The release of the software of a run: by the tag of its container, the lines of its log, or as it is given."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import jointopt
from jointopt.frameworks.import_files import read_text
from jointopt.runs.ignored_columns import unread_lines
from jointopt.workflows.import_ import import_
from tests.each import each
from tests.frameworks.imports.test_logs import TITAN
from tests.frameworks.imports.test_manifests import LIMITS, MANIFESTS, WORDS

RUN = f"torchrun --nnodes=2 --nproc-per-node=8 {WORDS} 2\n"


@each(("script", "release", "line"), [
    (f"#SBATCH --container-image=nvcr.io#nvidia/nemo:25.07\n{RUN}", "25.07", 1),
    (f"set -e\nIMAGE=nvcr.io/nvidia/pytorch:24.10-py3\nsrun --container-image=$IMAGE {RUN}", "24.10", 2),
    (f"docker run rocm/megatron-lm:v25.5_py310 {RUN}", "25.5", 1),
    (f"# was nvcr.io/nvidia/nemo:24.07\nA=nvcr.io/nvidia/nemo:25.09.01\n{RUN}", "25.09.01", 2),
    (f"docker run nvcr.io/nvidia/nemo:dev {RUN}", None, 0), (f"docker run mine:1.2 {RUN}", None, 0),
    (f"A=nvcr.io/nvidia/nemo:25.07\nB=nvcr.io/nvidia/nemo:25.09\n{RUN}", None, 0),  # one of the two
])  # fmt: skip
def test_the_tag_of_a_container_is_the_release_of_what_runs_in_it(script: str, release: str | None, line: int) -> None:
    (found,) = read_text(script, "train.sh")
    assert found.training.get("framework_release") == release
    assert found.origins.get("training.framework_release", ":0").endswith(f":{line}")


def test_the_image_of_pods_is_read_as_that_of_a_script() -> None:
    manifest = MANIFESTS["PyTorchJob"].replace(LIMITS, f"image: nvcr.io/nvidia/nemo:26.06\n          {LIMITS}")
    found = read_text(manifest, "job.yaml")[0]
    assert found.training["framework_release"] == "26.06"


def test_the_release_that_a_log_states_is_that_of_the_job_and_of_its_row(tmp_path: Path) -> None:
    head = TITAN.format(mesh="pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1, etp=1")
    steps = "".join(f"step: {n}  loss: 8.0  grad_norm: 1.0  memory: 60.0GiB(75.0%)  tps: 7,000  tflops: 400.0  "
                    f"mfu: 41.00%\n" for n in range(1, 12))  # fmt: skip
    (tmp_path / "run.log").write_text(f"Compiling each TransformerBlock with torch.compile\n{head}{steps}")
    found = import_(tmp_path / "run.log")
    assert found.job.training.settings == {"framework_release": "0.2.2", "compile": True}
    assert found.origins["training.framework_release"] == "run.log"
    assert [found.runs[0][name] for name in ("framework_release", "compile")] == ["0.2.2", True]


def test_bounds_of_a_version_are_kept_in_its_row_and_are_no_release() -> None:
    row = {"gpu": "h100-sxm5-80gb", "framework": "megatron-lm", "framework_release": ">=0.13 <0.15"}
    assert not any("framework_release" in line for line in unread_lines(pd.DataFrame([row])))
    (line,) = (line for line in unread_lines(pd.DataFrame([row | {"framework_release": "newest"}])) if "newest" in line)
    assert line.startswith("1 row has an unknown framework_release (row 1: 'newest')")


def test_a_table_that_calls_the_release_a_version_is_predicted_by_it() -> None:
    row = {"model": "llama-3-8b", "gpu": "h100-sxm5-80gb", "num_gpus": 8, "seq_length": 4096, "global_batch_size": 64}
    row |= {"dtype": "bf16", "framework": "nemo", "dp": 8, "zero_stage": 1, "micro_batch_size": 1}
    table = pd.DataFrame([row | {name: "24.07"} for name in ("framework_release", "framework_version")] + [row])
    times = jointopt.predict(table, surrogate="none").predicted_iteration_time_s
    newer = jointopt.predict(pd.DataFrame([row | {"framework_release": "25.04"}]), surrogate="none")
    assert times[0] == times[1] > newer.predicted_iteration_time_s[0]
