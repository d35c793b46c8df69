"""What a script leaves to others is asked, with what answers it; every field says where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import JobError
from jointopt.frameworks.import_files import read_text
from jointopt.workflows.import_ import import_
from tests.bench.fuzz_shell import judged
from tests.each import each

START = "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py"
SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000"
BATCH = "--micro-batch-size 1 --global-batch-size 64"
# a script whose RUN starts a Llama, the fields that are asked, and some that are known
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("RUN --bf16 $EXTRA", "", {"training.dtype": "bf16"}),
    ('RUN --use-distributed-optimizer "$@" --bf16', "", {"plan.zero_stage": 1, "training.dtype": "bf16"}),
    ("RUN `# a comment` --bf16", "", {"training.dtype": "bf16"}),
    ("RUN --tensor-model-parallel-size $TP --bf16", "plan.sequence_parallel plan.tp", {"training.dtype": "bf16"}),
    ("RUN --tensor-model-parallel-size $TP", "plan.tp", {"plan.sequence_parallel": False}),
    ("RUN --pipeline-model-parallel-size ${PP:-4}", "", {"plan.pp": 4}),
    ("RUN --pipeline-model-parallel-size $(cat pp.txt)", "plan.pp", {}),
    ("RUN --pipeline-model-parallel-size --bf16", "plan.pp", {"training.dtype": "bf16"}),
    ("RUN --softmax-type $S --bf16", "model.attention_sinks model.other", {"training.dtype": "bf16"}),
    ("RUN --num-experts many",
     "model.moe_ffn_hidden_size model.moe_router_topk model.num_experts training.ep_overlap training.moe_routing", {}),
    ("if [ -f x ]; then O=--fp16; else O=--bf16; fi\nRUN $O", "training.dtype", {}),
    ("if [ -f x ]; then O='--seed 1'; fi\nRUN --bf16 $O", "", {"training.dtype": "bf16"}),
    ('[ -n "$DEBUG" ] && O=--fp16\nRUN $O', "", {"training.dtype": "fp32"}),
    ('PP=$2\nif [ "$PP" == "" ]; then PP=2; fi\nRUN --pipeline-model-parallel-size $PP', "", {"plan.pp": 2}),
    ('if [[ $PP = "" ]]; then PP=2; fi\nRUN --pipeline-model-parallel-size $PP', "", {"plan.pp": 2}),
    ("RUN --recompute-granularity $G --recompute-method block --recompute-num-layers $N",
     "plan.recompute plan.recompute_num_layers", {}),
    ("for i in $HOSTS; do TP=4; done\nRUN --tensor-model-parallel-size $TP", "plan.tp", {}),
    ('TP=$1\n[ "$TP" == "" ] && TP=2\nRUN --tensor-model-parallel-size $TP', "", {"plan.tp": 2}),
    ("TP=2\nfor a in $@; do TP=4; done\nRUN --tensor-model-parallel-size $TP", "", {"plan.tp": 2}),
    ("RUN --deepspeed --deepspeed_config ds.json", "plan.zero_stage", {}),
    ("TP=2\nsource lost.sh\nRUN --tensor-model-parallel-size $TP", "plan.tp", {}),
    ("source lost.sh\nRUN --pipeline-model-parallel-size ${PP:-2}", "plan.pp", {}),
    ("source venv/bin/activate\nRUN --pipeline-model-parallel-size ${PP:-2}", "", {"plan.pp": 2}),
    ("PP=2\nwhile read v; do PP=$v; done < lost.txt\nRUN --pipeline-model-parallel-size $PP", "plan.pp", {}),
    ("PP=0; f() { [ $PP -gt 90 ] || { PP=$((PP + 1)); f; }; }\nf\nRUN --pipeline-model-parallel-size $PP", "plan.pp",
     {}),
]  # fmt: skip


@each(("script", "asked", "known"), ASKED)
def test_what_only_a_shell_knows_is_asked_where_it_matters(script: str, asked: str, known: dict[str, Any]) -> None:
    more = " --sequence-parallel" if "sequence" in asked else ""
    (taken,) = read_text(script.replace("RUN", f"{START} {SHAPE} {BATCH}{more}"), "a.sh")
    assert " ".join(sorted(taken.questions)) == asked
    stated = {f"{kind}.{key}": value for kind in ("plan", "training") for key, value in getattr(taken, kind).items()}
    assert {name: stated.get(name) for name in known} == known
    assert not set(taken.questions) & stated.keys()


@pytest.mark.parametrize("count", [8, 100])
def test_of_many_branches_each_is_looked_at(count: int) -> None:
    branches = "".join(f'if [ -f x{at} ]; then O="$O --seed {at}"; TP=4; fi\n' for at in range(count))
    (taken,) = read_text(f"TP=2\n{branches}{START} {SHAPE} {BATCH} --bf16 $O --tensor-model-parallel-size $TP", "a.sh")
    assert (sorted(taken.questions), taken.training["dtype"]) == (["plan.tp"], "bf16")


ORIGINS = [  # a script, and where a field comes from
    (f"TP=2\n{START} {SHAPE} --tensor-model-parallel-size $TP", "plan.tp", "a.sh:1"),
    (f"{START} {SHAPE} --tensor-model-parallel-size 1", "plan.tp", "a.sh:1"),
    (f"{START} {SHAPE}", "plan.tp", "default of Megatron-LM"),
    (f"\n{START} {SHAPE} --tensor-model-parallel-size ${{TP:-2}}", "plan.tp", "default of a.sh:2"),
    (f"TP=2\nwhile getopts t: o; do TP=$OPTARG; done\n{START} {SHAPE} --tensor-model-parallel-size $TP", "plan.tp",
     "default of a.sh:1"),
    (f"L=(2 4)\n{START} {SHAPE} --tensor-model-parallel-size ${{L[${{I:-0}}]}}", "plan.tp", "default of a.sh:1"),
    (f"{START} {SHAPE} --sequence-parallel --tensor-model-parallel-size ${{TP:-2}}", "plan.sequence_parallel",
     "default of a.sh:1"),
    (f"TP=0; for i in $(seq ${{N:-2}}); do TP=$((TP + 1)); done; {START} {SHAPE} --tensor-model-parallel-size $TP",
     "plan.tp", "default of a.sh:1"),
    (f"case ${{S:-1}} in 1) {START} {SHAPE};; 2) {START} {SHAPE} --bf16;; esac", "training.dtype",
     "default of case ${S:-1} in 1) torchrun --nnodes 2 --nproc_per_node 8 pr (a.sh:1)"),
    (f"A=(\n--bf16\n)\n{START} {SHAPE} ${{A[@]}}", "training.dtype", "a.sh:2"),
    (f"\n{START} {SHAPE}", "cluster.nodes", "a.sh:2"),
    (f"NNODES=${{NNODES:-4}}\ntorchrun --nnodes $NNODES pretrain_gpt.py {SHAPE}", "cluster.nodes", "default of a.sh:1"),
    (f'bash -c "{START} {SHAPE} --tensor-model-parallel-size ${{TP:-2}}"', "plan.tp", "default of a.sh:1"),
]  # fmt: skip


@each(("script", "name", "origin"), ORIGINS)
def test_a_field_comes_from_the_line_that_states_it_or_from_a_default(script: str, name: str, origin: str) -> None:
    (taken,) = read_text(script, "a.sh")
    assert taken.origins[name] == origin


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    line = f"{START} {SHAPE} {BATCH} --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP"
    several = "".join(f"{START} {SHAPE} {BATCH} --tensor-model-parallel-size {tp}\n" for tp in (2, 4))
    texts = {"a.sh": f"source ./env.sh\n{line}", "env.sh": "TP=2; PP=2", "two.sh": several}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: tmp_path / name for name in texts}


def test_all_questions_are_in_one_sentence_and_each_is_answered_by_an_option(files: dict[str, Path]) -> None:
    asked = r"^a\.sh does not state the GPU \(--gpu\), plan\.tp .*, which env\.sh may set, a\.sh:2; --set TP="
    with pytest.raises(JobError, match=asked):
        import_(files["a.sh"])
    found = import_(files["a.sh"], gpu="h100-sxm5-80gb", set={"TP": "4", "plan.pp": "2"})
    assert (found.plan["tp"], found.plan["pp"]) == (4, 2)
    origins = [found.origins[name] for name in ("plan.tp", "plan.pp", "cluster.gpu")]
    assert origins == ["--set TP", "--set plan.pp", "--gpu"]
    assert {f"plan.{name}" for name in found.plan if "stage_clock" not in name} <= found.origins.keys()


def test_a_file_that_a_script_sources_is_read_where_it_is_given(files: dict[str, Path]) -> None:
    found = import_([files["env.sh"], files["a.sh"]], gpu="h100-sxm5-80gb")
    assert (found.plan["tp"], found.plan["pp"], found.origins["plan.tp"]) == (2, 2, "env.sh:1")


def test_what_no_file_states_of_a_script_of_one_s_own_is_asked_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(
        "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Meta-Llama-3-8B"
    )
    asked = (
        r"the batch \(--global-batch-size\) and plan\.zero_stage, plan\.recompute, training\.dtype and plan\.micro_b"
    )
    with pytest.raises(JobError, match=rf"the sequence length \(--seq-length\), {asked}"):
        import_(tmp_path / "a.sh", gpu="h100-sxm5-80gb")
    plan = {"plan.zero_stage": "3", "plan.recompute": "full", "plan.micro_batch_size": "1"}
    found = import_(
        tmp_path / "a.sh", gpu="h100-sxm5-80gb", seq_length=512, global_batch_size=8, dtype="bf16", set=plan
    )
    assert found.plan_text.startswith("dp=8 tp=1 pp=1 cp=1 ep=1 vpp=1 micro_batch_size=1")


REFERENCES: list[tuple[str, dict[str, str], str, dict[str, Any]]] = [  # values of a config, variables, asked, known
    ("tensor_model_parallel_size: '${oc.env:TP}', sequence_parallel: '${.wide}', wide: true", {},
     "plan.sequence_parallel plan.tp", {}),
    ("tensor_model_parallel_size: '${oc.env:TP}', sequence_parallel: '${.wide}', wide: true", {"TP": "4"}, "",
     {"plan.tp": 4, "plan.sequence_parallel": True}),
    ("tensor_model_parallel_size: '${TP}'", {}, "plan.tp", {"plan.pp": 1}),
    ("tensor_model_parallel_size: '${oc.env:TP,2}'", {}, "", {"plan.tp": 2}),
    ("ffn_hidden_size: '${multiply:3, ${.hidden_size}}'", {}, "", {"model.ffn_hidden_size": 3072}),
    ("micro_batch_size: '${trainer.devices}'", {}, "", {"plan.micro_batch_size": 8}),
    ("micro_batch_size: 1, micro_batch_size: 2", {}, "", {"plan.micro_batch_size": 2}),
]  # fmt: skip


@each(("values", "given", "asked", "known"), REFERENCES)
def test_a_reference_of_a_config_is_followed_or_asked(
    values: str, given: dict[str, str], asked: str, known: dict[str, Any]
) -> None:
    model = f"{{num_layers: 4, hidden_size: 1024, num_attention_heads: 8, {values}}}"
    (taken,) = read_text(f"trainer: {{devices: 8}}\nmodel: {model}\n", "a.yaml", given=given)
    assert " ".join(sorted(taken.questions)) == asked
    assert {name: getattr(taken, name.split(".")[0])[name.split(".")[1]] for name in known} == known
    assert bool(taken.remarks) is (values.count("micro_batch_size") == 2)


def test_of_several_runs_one_is_chosen(files: dict[str, Path]) -> None:
    with pytest.raises(
        JobError, match=r"starts 2 runs that differ: --run 1 \(two\.sh:1\), --run 2 \(two\.sh:2\); give"
    ):
        import_(files["two.sh"], gpu="h100-sxm5-80gb")
    assert import_(files["two.sh"], gpu="h100-sxm5-80gb", run=2).plan["tp"] == 4


def test_nodes_follow_from_the_gpus_that_are_started_and_those_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(f"mpirun -np 32 python pretrain_gpt.py {SHAPE} {BATCH}")
    with pytest.raises(JobError, match=r"cluster\.nodes \(32 GPUs are started .*; --nodes\)"):
        import_(tmp_path / "a.sh", gpu="h100-sxm5-80gb")
    found = import_(tmp_path / "a.sh", gpu="h100-sxm5-80gb", gpus_per_node=8)
    assert (found.job.cluster.nodes, found.job.cluster.gpus_per_node) == (4, 8)


def test_a_batch_that_ranks_do_not_divide_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(f"{START} {SHAPE} --micro-batch-size 3 --global-batch-size 64")
    with pytest.raises(JobError, match=r"^The batch of 64 sequences is no multiple of the 48 that dp 16 and micro-bat"):
        import_(tmp_path / "a.sh", gpu="h100-sxm5-80gb")


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_scripts_of_a_grammar_are_read_as_bash_starts_them_or_asked(first: int, tmp_path: Path) -> None:
    verdicts = {seed: judged(seed, tmp_path) for seed in range(first, first + 10)}
    assert {seed: words for seed, (_, words) in verdicts.items() if words} == {}
    assert all(counts["read"] for counts, _ in verdicts.values() if "not started" not in counts)
