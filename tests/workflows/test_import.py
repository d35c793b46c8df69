"""A script, a config or a log into a job, the plan that runs, and measured rows."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jointopt
from jointopt.core.errors import JobError
from jointopt.frameworks.import_files import read_text
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.runs.checks import MEASUREMENT_RULES
from jointopt.runs.table import read_measurements
from jointopt.workflows.compare import compare
from jointopt.workflows.import_ import import_
from jointopt.workflows.import_gains import _with as with_rows
from jointopt.workflows.import_gains import with_proposals
from tests.frameworks.logs.trace_texts import dmon
from tests.megatron import megatron_arguments

SCRIPT = """torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --swiglu \
 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 \
 --max-position-embeddings 8192 --position-embedding-type rope --normalization RMSNorm --disable-bias-linear \
 --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --vocab-size 128256 --bf16 \
 --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \
 --use-distributed-optimizer --sequence-parallel"""
LINE = (
    " [2026-02-06 20:55:02] iteration {n:8d}/      20 | consumed samples: 9344 |"
    " elapsed time per iteration (ms): {ms} | energy per GPU (J/iter/GPU): 5500.0 |"
    " power per GPU (W/GPU): 610.9 | lm loss: 2.401035E+00 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
LOG = "".join(LINE.format(n=n, ms=9003.0 if n > 2 else 31000.0) for n in range(1, 12))
DUMP = "------------------------ arguments ------------------------\n" + "".join(
    f"  {name} {'.' * (48 - len(name))} {value}\n"
    for name, value in {
        "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32, "swiglu": True,
        "group_query_attention": True, "num_query_groups": 8, "seq_length": 8192, "position_embedding_type": "rope",
        "normalization": "RMSNorm", "add_bias_linear": False, "untie_embeddings_and_output_weights": True,
        "attention_dropout": 0.0, "hidden_dropout": 0.0, "padded_vocab_size": 128256, "bf16": True, "world_size": 16,
        "micro_batch_size": 1, "global_batch_size": 128, "tensor_model_parallel_size": 2, "some_new_default": 3,
        "pipeline_model_parallel_size": 2, "use_distributed_optimizer": True, "sequence_parallel": True, "fp8": None,
    }.items()
)  # fmt: skip
GPU = "h100-sxm5-80gb"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    texts = {"train.sh": SCRIPT, "run.log": LOG, "whole.log": DUMP + LOG}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: tmp_path / name for name in texts}


def test_a_script_and_its_log_give_what_the_log_with_its_arguments_gives(files: dict[str, Path]) -> None:
    both = import_([files["train.sh"], files["run.log"]], gpu=GPU, name="x")
    whole = import_([files["whole.log"]], gpu=GPU, name="x")
    assert both.job == whole.job
    assert both.plan == whole.plan
    assert both.job.model.name == "llama-3-8b"
    (row,) = whole.runs
    assert (row["iteration_time_s"], row["energy_j"], row["dp"], row["tp"]) == (9.003, 88000.0, 4, 2)


def test_what_megatron_sets_by_itself_is_no_other_model_or_plan(tmp_path: Path) -> None:
    shape = {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "seq_length": 1024, "vocab_size": 50257}
    values = shape | {"max_position_embeddings": 1024, "add_bias_linear": True, "add_qkv_bias": True, "world_size": 8}
    values |= {"expert_tensor_parallel_size": 2, "tensor_model_parallel_size": 2, "micro_batch_size": 1, "bf16": True}
    (tmp_path / "gpt.log").write_text("".join(f"  {name} {'.' * 20} {value}\n" for name, value in values.items()))
    found = import_([tmp_path / "gpt.log"], gpu=GPU)
    assert found.job.model.name == "gpt2"
    assert "etp" not in found.plan_text
    assert found.job.training.global_batch_size == 4  # Megatron's default: one micro-batch of each rank


def test_what_is_missing_is_named_with_its_option(files: dict[str, Path]) -> None:
    with pytest.raises(JobError, match=r"^train\.sh does not state the GPU \(--gpu\); give it\.$"):
        import_([files["train.sh"]])
    with pytest.raises(JobError, match=r"the model \(--model\), .*the sequence length \(--seq-length\)"):
        import_([files["run.log"]], gpu=GPU)


def test_a_file_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("Shall I compare thee to a summer's day?\n")
    with pytest.raises(JobError, match=r"^jointopt cannot import \S*poem\.txt; expected a launch script"):
        import_([tmp_path / "poem.txt"], gpu=GPU)


def test_a_job_file_is_sent_to_propose(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model: opt-350m\ntraining: {}\ncluster: {}\n")
    with pytest.raises(JobError, match=r"job\.yaml \(it is already a job file: use `jointopt propose \S*job\.yaml`\)"):
        import_([tmp_path / "job.yaml"], gpu=GPU)


def test_files_of_a_kind_that_contradict_each_other_are_asked(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "other.sh").write_text(SCRIPT.replace("--global-batch-size 128", "--global-batch-size 256"))
    both = [files["train.sh"], tmp_path / "other.sh"]
    with pytest.raises(JobError, match=r"global_batch_size \(128 by train\.sh and 256 by other\.sh; --global-batch"):
        import_(both, gpu=GPU)
    assert import_(both, gpu=GPU, global_batch_size=256).job.training.global_batch_size == 256


def test_the_job_file_and_the_rows_read_back(files: dict[str, Path], tmp_path: Path) -> None:
    found = import_([files["whole.log"]], gpu=GPU)
    (tmp_path / "job.yaml").write_text(found.job_text(), encoding="utf-8")
    found.frame().to_csv(tmp_path / "runs.csv", index=False)
    assert load_job(tmp_path / "job.yaml") == found.job
    good, problems = read_measurements(tmp_path / "runs.csv", MEASUREMENT_RULES)
    assert len(good) == 1
    assert not problems


def test_a_run_out_of_memory_is_a_row_too(files: dict[str, Path], tmp_path: Path) -> None:
    text = DUMP + "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n"
    (tmp_path / "oom.log").write_text(text)
    (row,) = import_([tmp_path / "oom.log"], gpu=GPU).runs
    assert row["status"] == "oom"
    assert row["iteration_time_s"] != row["iteration_time_s"]


def test_proposals_stand_beside_the_plan_as_measured(files: dict[str, Path]) -> None:
    found = with_proposals(import_([files["whole.log"]], gpu=GPU), surrogate="none")
    compared = found.comparison
    assert compared is not None
    assert compared.today["iteration_time_s"] == (9.003,) * 3
    for one in compared.proposals:
        assert one.time.low < one.time.expected < one.time.high
        beside = compare(found.job, [found.plan_text, one.text], surrogate="none", measured=found.frame())
        percent = beside.against_first[0]["time_vs_first_percent_low"]
        assert 100.0 * one.time.low == pytest.approx(percent, rel=1e-3)
    assert "Today's plan: 9.003 s, 88.00 kJ (measured)" in found.text()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    degrees=st.sampled_from([(1, 8, 4, 1), (4, 4, 2, 1), (2, 2, 4, 2), (8, 4, 1, 1), (16, 2, 1, 1)]),
    vpp=st.sampled_from([1, 2]), micro_batch=st.sampled_from([1, 2]), zero=st.booleans(),
    recompute=st.sampled_from(["none", "full"]),
)  # fmt: skip
def test_the_words_that_jointopt_writes_for_megatron_read_back_as_the_same_plan(
    degrees: tuple[int, ...], vpp: int, micro_batch: int, zero: bool, recompute: str
) -> None:
    job = jointopt.load_job("llama-3-70b-4x8-h200")
    dp, tp, pp, cp = degrees
    plan: dict[str, Any] = {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "vpp": vpp if pp > 1 else 1, "micro_batch_size": micro_batch,
        "sequence_parallel": tp > 1, "zero_stage": int(zero), "recompute": recompute, "ep": 1,
    }  # fmt: skip
    parsed = parse_plan(plan, job)
    record = parsed.record
    (taken,) = read_text(" ".join(["pretrain_gpt.py", *megatron_arguments(job, record, 20)]))
    back = parse_plan(taken.plan | {"dp": dp}, job)
    # the words state what overlaps where the plan leaves it to its framework
    assert back.record | {"overlap": record["overlap"]} == record
    assert taken.unread == ()


def test_energy_of_zeus_joins_the_times_of_a_log(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "plain.log").write_text(DUMP + LOG.replace("5500.0", "0.0"))
    energies = ",".join(f"gpu{i}_energy" for i in range(8))
    windows = "".join(f"1.5,step,9.0,{','.join(['5000.0'] * 8)}\n" for _ in range(9))
    zeus = [tmp_path / f"zeus{node}.csv" for node in range(2)]
    for path in zeus:
        path.write_text(f"start_time,window_name,elapsed_time,{energies}\n{windows}")
    (row,) = import_([tmp_path / "plain.log", *zeus], gpu=GPU).runs
    assert (row["iteration_time_s"], row["energy_j"]) == (9.003, 80000.0)
    half = import_([tmp_path / "plain.log", zeus[0]], gpu=GPU)
    assert not half.runs[0]["energy_j"] > 0
    assert any("cover 8 of 16 GPUs" in remark for remark in half.remarks)


BEGIN = datetime(2026, 2, 6, 20, 55, 2)


def timed(energy: str = "0.0", ms: float = 9000.0) -> str:
    """The log of a run that writes a line every nine seconds."""
    lines = (LINE.format(n=n, ms=ms).replace("5500.0", energy) for n in range(1, 12))
    moments = (f"{BEGIN + timedelta(seconds=9 * n)}" for n in range(1, 12))
    return DUMP + "".join(line.replace("2026-02-06 20:55:02", at) for line, at in zip(lines, moments, strict=True))


def test_energy_of_traces_of_all_nodes_joins_the_times_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(timed())
    for node in range(2):
        (tmp_path / f"node{node}.txt").write_text(dmon(BEGIN.timestamp() - node, 120, gpus=8))
    (row,) = import_([tmp_path / "run.log", *tmp_path.glob("node*.txt")], gpu=GPU).runs
    assert row["energy_j"] == pytest.approx(9 * 2 * 8 * 403.5, rel=1e-3)
    assert (row["avg_power_w"], row["temperature_c"]) == (pytest.approx(403.5, rel=1e-3), 61.0)
    assert "energy of dcgmi dmon (energy counters) over 6 iterations in 54.0 s" in row["notes"]
    assert "energy not measured" not in row["notes"]


def test_a_trace_that_lacks_a_node_leaves_energy_blank_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(timed())
    (tmp_path / "node0.txt").write_text(dmon(BEGIN.timestamp(), 120, gpus=8) + "Error: lost connection\n")
    found = import_([tmp_path / "run.log", tmp_path / "node0.txt"], gpu=GPU)
    assert not found.runs[0]["energy_j"] > 0
    assert "energy not measured: the traces cover 8 of 16 GPUs" in found.runs[0]["notes"]
    assert "node0.txt: 1 lines that are not samples were skipped, such as 'Error: lost connection'" in found.remarks
    assert import_([tmp_path / "node0.txt", tmp_path / "run.log"], gpu=GPU).plan == found.plan


def test_energy_that_the_program_metered_itself_stays(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(timed("5500.0"))
    (tmp_path / "trace.txt").write_text(dmon(BEGIN.timestamp(), 120, gpus=16))
    (row,) = import_([tmp_path / "run.log", tmp_path / "trace.txt"], gpu=GPU).runs
    assert (row["energy_j"], row["avg_power_w"]) == (88000.0, 610.9)
    assert row["peak_power_w"] == pytest.approx(415.1)
    assert "dcgmi" not in row["notes"]


def test_a_trace_in_the_log_of_the_program_is_found(tmp_path: Path) -> None:
    (tmp_path / "slurm-1.out").write_text(dmon(BEGIN.timestamp(), 50, gpus=16) + timed())
    found = import_([tmp_path / "slurm-1.out"], gpu=GPU)
    assert found.formats == {"slurm-1.out": "trace of GPUs and Megatron-LM log"}
    assert "GPU 0 of slurm-1.out has samples from 2026-02-06 20:55:02 to 2026-02-06 20:55:52" in found.runs[0]["notes"]
    assert not any("no samples" in remark for remark in found.remarks)


@pytest.mark.parametrize(("log", "why"), [
    (LOG.replace("5500.0", "0.0"), r"0\.0 s passed .* took 45\.0 s"), (timed(ms=500.0), r"too coarse for 3\.0 s"),
])  # fmt: skip
def test_a_log_whose_times_do_not_fit_its_iterations_gets_no_energy(log: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(DUMP + log)
    (tmp_path / "trace.txt").write_text(dmon(BEGIN.timestamp() - 60, 200, gpus=16))
    (row,) = import_([tmp_path / "run.log", tmp_path / "trace.txt"], gpu=GPU).runs
    assert row["energy_j"] != row["energy_j"]
    assert re.search(f"energy not measured: the log states no window: .*{why}", row["notes"])


def test_a_row_of_a_log_states_how_tokens_went_to_experts(tmp_path: Path) -> None:
    routed = {
        "num_experts": 8, "moe_router_topk": 2, "expert_model_parallel_size": 4, "moe_token_dispatcher_type": "flex",
        "moe_enable_deepep": True, "overlap_moe_expert_parallel_comm": True, "moe_router_force_load_balancing": True,
    }  # fmt: skip
    lines = "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in routed.items())
    (tmp_path / "run.log").write_text(DUMP + lines + LOG, encoding="utf-8")
    row = import_([tmp_path / "run.log"], gpu=GPU).runs[0]
    assert (row["token_dispatcher"], row["ep_overlap"], row["moe_routing"]) == ("deepep", True, "forced")


def test_a_row_of_a_log_states_how_the_loss_was_computed(tmp_path: Path) -> None:
    arguments = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}
    lines = "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in arguments.items())
    (tmp_path / "run.log").write_text(DUMP + lines + LOG, encoding="utf-8")
    assert import_([tmp_path / "run.log"], gpu=GPU).runs[0]["cross_entropy"] == "fused"


def test_measured_runs_that_are_given_move_the_proposals_beside_those_of_the_import() -> None:
    given, own = pd.DataFrame({"gpu": ["a100", "h100"]}), pd.DataFrame({"gpu": ["h200"]})
    assert with_rows(SimpleNamespace(table=given), own)["gpu"].tolist() == ["a100", "h100", "h200"]
    assert with_rows(None, own) is own
