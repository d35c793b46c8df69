"""``jointopt export``: words and files of other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from jointopt.measure.exports.targets import TARGETS

JOB, PLAN = "llama-3-8b-1x8-h100", "dp=4 tp=2 zero_stage=2"


def exported(*words: str, plan: str = PLAN, to: str = "megatron") -> Result:
    return CliRunner().invoke(jointopt, ["export", JOB, "--plan", plan, "--to", to, *words])


def test_megatron_s_words_are_one_json_document() -> None:
    found = json.loads(exported("--json").stdout)
    assert found["world_size"] == 8
    assert found["words"][found["words"].index("--tensor-model-parallel-size") + 1] == "2"
    assert found["environment"]["OMP_NUM_THREADS"] == "1"


def test_an_entry_of_a_front_is_a_plan() -> None:
    entry = {"dp": 4, "tp": 2, "zero_stage": 2, "clock_mhz": 1500, "iteration_time_s": 1.0, "mfu": 0.4}
    for given in (entry, {"plan": entry}):
        words = json.loads(exported("--json", plan=json.dumps(given)).stdout)["words"]
        assert words == json.loads(exported("--json").stdout)["words"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_writes_its_files(target: str, tmp_path: Path) -> None:
    plan = {"nanotron": "dp=4 tp=2 zero_stage=0 recompute=none", "accelerate": "dp=8 recompute=full"}.get(target, PLAN)
    result = exported("--out", str(tmp_path / "out"), to=target, plan=plan)
    assert result.exit_code == 0, result.output
    written = [Path(line.removeprefix("Written: ")) for line in result.stderr.splitlines() if "Written: " in line]
    assert written
    assert all(path.read_text() for path in written)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "megatrn"), "--to must be one of megatron, "),
        (("--version", "newest"), "--version must be a version such as 0.16.1, or development; got 'newest'."),
        (("--plan", "dp=3"), "dp*tp*pp*cp is 6; it must be the cluster's 8 GPUs."),
        (("--plan", '{"front": []}'), "--plan is a whole proposal; give one entry of its front."),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(words: tuple[str, str], message: str) -> None:
    result = exported(*words)
    assert (result.exit_code, message in result.stderr) == (2, True)
