"""``jointopt export``: words and files of other programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from jointopt.frameworks.targets import TARGETS

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


def test_a_file_of_plans_is_read_by_its_row(tmp_path: Path) -> None:
    rows = [{"dp": 8, "tp": 1, "zero_stage": 2, "iteration_time_s": 1.0}, {"dp": 4, "tp": 2, "zero_stage": 2}]
    (tmp_path / "proposal.json").write_text(json.dumps({"front": rows}))
    second = exported("--json", plan=f"{tmp_path}/proposal.json:2")
    assert json.loads(second.stdout)["words"] == json.loads(exported("--json").stdout)["words"]
    whole = exported(plan=f"{tmp_path}/proposal.json").stderr
    assert "holds 2 plans; say which, from proposal.json:1 to proposal.json:2" in whole
    assert "none.json: No such file" in exported(plan=str(tmp_path / "none.json")).stderr


@pytest.mark.parametrize("to", ["megatron", "slurm", "kubernetes"])
def test_words_of_one_s_own_stand_before_those_of_the_plan_which_they_replace(to: str) -> None:
    program = [] if to == "megatron" else ["--program", "megatron"]
    own = "--data-path /data/a /data/b --save /ckpt"
    text = exported("--for", "training", "--arguments", own, *program, to=to).stdout
    assert re.search(r"pretrain_gpt\.py\s+\\?\s*--data-path /data/a /data/b\s+\\?\s*--save /ckpt", text)
    assert (text.count("--data-path"), text.count("--save "), text.count("CHECKPOINTS")) == (1, 1, 1)
    assert "--arguments cannot be split into words" in exported("--arguments", "a 'b").stderr


def test_overrides_of_one_s_own_replace_those_of_a_recipe() -> None:
    own = "--recipe llama3_8b_pretrain_config train.train_iters=50"
    words = json.loads(exported("--json", "--arguments", own, to="megatron-bridge").stdout)["words"]
    assert words[:3] == ["--recipe", "llama3_8b_pretrain_config", "train.train_iters=50"]
    assert [word for word in words if word.startswith("train.train_iters")] == ["train.train_iters=50"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_writes_its_files(target: str, tmp_path: Path) -> None:
    plan = {"nanotron": "dp=4 tp=2 zero_stage=0 recompute=none", "accelerate": "dp=8 recompute=full"}.get(target, PLAN)
    result = exported("--out", str(tmp_path / "out"), "--allow-tight", to=target, plan=plan)
    assert result.exit_code == 0, result.output
    written = [Path(line.removeprefix("Written: ")) for line in result.stderr.splitlines() if "Written: " in line]
    assert written
    assert all(path.read_text() for path in written)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "megatrn"), "--to must be one of megatron, "),
        (("--version", "newest"), "--version of megatron must be one of 0.12, "),
        (("--version", "0.3.0\ntouch x"), "development; got '0.3.0\\ntouch x'."),
        (("--plan", "dp=3"), "dp*tp*pp*cp is 6; it must be the cluster's 8 GPUs."),
        (
            ("--plan", '{"front": []}'),
            "--plan is a whole proposal; give its file with a row, proposal.json:2, or one plan.",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_in_a_sentence(words: tuple[str, str], message: str) -> None:
    result = exported(*words)
    assert (result.exit_code, message in result.stderr) == (2, True)


@pytest.mark.parametrize("target", TARGETS)
def test_a_release_that_is_not_known_is_refused_with_those_that_are(target: str) -> None:
    result = exported("--version", "9.9", to=target)
    known = TARGETS[target].releases or TARGETS["torchtitan"].releases  # which runs the job
    assert result.exit_code == 2
    assert f"must be one of {', '.join(known)}; got '9.9'." in result.stderr
