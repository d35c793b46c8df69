"""Manifests of Kubernetes: pods as nodes, their command as a script, and what contradicts itself as a question."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import JobError
from jointopt.frameworks.import_files import read_text
from jointopt.frameworks.kubernetes import pods_of
from jointopt.frameworks.options import FileSettings
from jointopt.jobs.jobfile import parse_job
from jointopt.workflows.export import export, write
from jointopt.workflows.import_ import import_

SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000"
WORDS = f"pretrain_gpt.py {SHAPE} --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size"
LIMITS = "resources: {limits: {nvidia.com/gpu: 8}}"


def pod(command: str, more: str = LIMITS, indent: int = 0) -> str:
    """The spec of a pod whose container runs a text of shell."""
    text = f"containers:\n- name: train\n  command: [bash, -c]\n  args:\n  - |\n    {command}\n  {more}\n"
    return textwrap.indent(text, " " * indent)


def manifest(version: str, kind: str, spec: str) -> str:
    return f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: llama}}\nspec:\n{textwrap.indent(spec, '  ')}"


def replicas(**groups: tuple[int, str]) -> str:
    """Groups of pods as Kubeflow has them."""
    return "".join(f"  {name}:\n    replicas: {number}\n    template:\n      spec:\n{textwrap.indent(spec, ' ' * 8)}"
                   for name, (number, spec) in groups.items())  # fmt: skip


RUN = f"torchrun --nnodes=$PET_NNODES --nproc-per-node=8 {WORDS} 2"
TEMPLATE = "template:\n  spec:\n" + pod(RUN, indent=4)
MANIFESTS = {
    "PyTorchJob": manifest("kubeflow.org/v1", "PyTorchJob", "pytorchReplicaSpecs:\n"
                           + replicas(Master=(1, pod(RUN)), Worker=(3, pod(RUN)))),
    "ranks of a PyTorchJob": manifest("kubeflow.org/v1", "PyTorchJob", "nprocPerNode: '8'\npytorchReplicaSpecs:\n"
                                      + replicas(
        Master=(1, pod(f"torchrun {WORDS} 2", "image: x")), Worker=(3, pod(f"torchrun {WORDS} 2", "image: x")))),
    "TrainJob": manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", f"""trainer:
  numNodes: 4
  command: [torchrun, --nnodes=$(PET_NNODES), pretrain_gpt.py]
  args: [{', '.join(f'"{word}"' for word in WORDS.split()[1:])}, "2"]
  resourcesPerNode: {{requests: {{nvidia.com/gpu: 8}}}}
"""),
    "MPIJob": manifest("kubeflow.org/v2beta1", "MPIJob", "slotsPerWorker: 8\nmpiReplicaSpecs:\n" + replicas(
        Launcher=(1, pod(f"mpirun -np 32 python {WORDS} 2", "image: x")), Worker=(4, pod("/usr/sbin/sshd -De")))),
    "MPIJob of $N": manifest("kubeflow.org/v2beta1", "MPIJob", "slotsPerWorker: 8\nmpiReplicaSpecs:\n" + replicas(
        Launcher=(1, pod(f"mpirun -np $N python {WORDS} 2", "image: x")), Worker=(4, pod("sleep infinity")))),
    "Job": manifest("batch/v1", "Job", f"parallelism: 4\ncompletions: 4\ncompletionMode: Indexed\n{TEMPLATE}"),
    "LeaderWorkerSet": manifest("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderWorkerTemplate:\n  size: 4\n"
                                "  workerTemplate:\n    spec:\n"
                                + pod(RUN.replace("PET_NNODES", "LWS_GROUP_SIZE"), indent=6)),
    "Volcano": manifest("batch.volcano.sh/v1alpha1", "Job", "plugins: {pytorch: [--master=master]}\ntasks:\n"
                        "- replicas: 1\n  name: master\n  template:\n    spec: &task\n"
                        + pod(RUN.replace("PET_NNODES", "WORLD_SIZE"), indent=6)
                        + "- replicas: 3\n  name: worker\n  template:\n    spec: *task\n"),
}  # fmt: skip


def taken(text: str, **given: str) -> FileSettings:
    return read_text(text, "job.yaml", None, given)[0]


@pytest.mark.parametrize("text", MANIFESTS.values(), ids=MANIFESTS)
def test_pods_are_nodes_and_their_command_is_a_script(text: str) -> None:
    found = taken(text)
    assert {name: found.cluster[name] for name in found.cluster} == {"nodes": 4, "gpus_per_node": 8}
    assert (found.plan["tp"], found.plan["micro_batch_size"], found.questions) == (2, 1, {})


def test_a_statement_has_the_line_of_the_manifest_and_a_variable_of_the_container_its_value() -> None:
    lines = ["env:", "- {name: TP, value: '4'}", "- {name: MICRO, valueFrom: {fieldRef: {fieldPath: x}}}"]
    more = "\n  ".join([LIMITS.replace("nvidia.com", "amd.com"), *lines])
    text = manifest("batch/v1", "Job", "template:\n  spec:\n" + pod(
        f"torchrun --nproc-per-node 8 {WORDS} $TP --micro-batch-size $MICRO", more, indent=4))  # fmt: skip
    found = taken(text)
    number = next(at for at, line in enumerate(text.splitlines(), 1) if "torchrun" in line)
    assert (found.plan["tp"], found.origins["plan.tp"]) == (4, f"job.yaml:{number}")
    assert found.origins["cluster.gpus_per_node"] == f"job.yaml:{number + 1}"
    assert found.questions["plan.micro_batch_size"].variable == "MICRO"
    assert taken(text, MICRO="2").plan["micro_batch_size"] == 2


def test_words_without_a_shell_have_lines_of_their_own_and_no_expansion_but_that_of_kubernetes() -> None:
    words = ["torchrun", "--nproc-per-node=8", *WORDS.split(), "$(TP)"]
    block = "containers:\n- env: [{name: TP, value: '2'}]\n  command:\n" + "".join(f"  - '{word}'\n" for word in words)
    text = manifest("v1", "Pod", block)
    found = taken(text)
    number = next(at for at, line in enumerate(text.splitlines(), 1) if "--hidden-size" in line)
    assert (found.origins["model.hidden_size"], found.plan["tp"]) == (f"job.yaml:{number + 1}", 2)


CONTRADICTIONS = [  # a change of a manifest, the field that is asked, and why
    ("Job", ("completions: 4", "completions: 8"), "nodes", r"the manifest has 4 to 8 pods"),
    ("Job", ("$PET_NNODES", "2"), "nodes", r"4 by job.yaml:5, 2 by job.yaml:\d+"),
    ("Job", ("--nproc-per-node=8", "--nproc-per-node=4"), "gpus_per_node", r"8 by job.yaml:\d+, 4 by job.yaml:\d+"),
    ("MPIJob", ("slotsPerWorker: 8", "slotsPerWorker: 4"), "gpus_per_node", r"the manifest states 4 and 8 for a pod"),
    ("MPIJob", ("-np 32", "-np 16"), "nodes", r"4 pods of 8 GPUs by job.yaml, 16 ranks by job.yaml:\d+"),
    ("TrainJob", ("numNodes: 4", "image: x"), "nodes", r"the manifest states no numNodes"),
]


@pytest.mark.parametrize(("name", "change", "field", "why"), CONTRADICTIONS)
def test_what_a_manifest_contradicts_or_leaves_open_is_asked(
    name: str, change: tuple[str, str], field: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(MANIFESTS[name].replace(*change))
    with pytest.raises(JobError, match=rf"{field} \({why}"):
        import_([tmp_path / "job.yaml"], gpu="h100-sxm5-80gb")
    given: dict[str, Any] = {"nodes": 4, "gpus_per_node": 8}
    assert import_([tmp_path / "job.yaml"], gpu="h100-sxm5-80gb", **given).job.cluster.nodes == 4


@pytest.mark.parametrize(("label", "gpu"), [
    ("nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}", "h100-sxm5-80gb"),
    ("affinity: {nodeAffinity: {x: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-A100-SXM4-80GB]}]}}",
     "a100-sxm4-80gb"), ("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-mystery}", None),
])  # fmt: skip
def test_the_gpu_is_that_of_the_nodes_that_are_selected(label: str, gpu: str | None) -> None:
    found = taken(manifest("batch/v1", "Job", "template:\n  spec:\n" + pod(RUN, indent=4) + f"    {label}\n"))
    assert found.cluster.get("gpu") == gpu
    assert any("selects nvidia-mystery, which is no one GPU of the catalogue" in one for one in found.remarks) == (
        not gpu
    )


def test_several_documents_are_one_job_and_the_files_that_it_gives_its_pods() -> None:
    script = f"torchrun --nnodes 4 --nproc-per-node 8 {WORDS} 2"
    files = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: files}}\ndata:\n  run.sh: |\n    {script}\n---\n"
    job = MANIFESTS["Job"].replace(RUN, "bash /scripts/run.sh")
    assert taken(files + job).plan["tp"] == 2
    with pytest.raises(JobError, match=r"it holds 2 jobs \(Job llama, PyTorchJob llama\); give the manifest of one"):
        taken(f"{job}---\n{MANIFESTS['PyTorchJob']}")


def test_a_template_is_named_as_such() -> None:
    with pytest.raises(JobError, match=r"line \d+ of the manifest is no valid YAML; render the template first"):
        pods_of(MANIFESTS["Job"].replace("parallelism: 4", "parallelism: {{ .Values.nodes }}\n{{- end }}"))


PROGRAMS = [  # a target, the profile whose plans go to it, and a plan
    ("megatron", "megatron-lm", "dp=8 tp=2 pp=1"), ("megatron-bridge", "nemo", "dp=8 tp=2 pp=1"),
    ("torchtitan", "torchtitan", "dp=8 tp=2 pp=1"), ("deepspeed", "deepspeed", "dp=16 tp=1 pp=1"),
    ("nanotron", "nanotron", "dp=8 tp=2 pp=1"), ("accelerate", "fsdp", "dp=16 tp=1 pp=1"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "framework", "plan"), PROGRAMS)
def test_a_manifest_of_ours_comes_back_as_the_plan_that_it_starts(
    program: str, framework: str, plan: str, tmp_path: Path
) -> None:
    training = {"global_batch_size": 64, "seq_length": 4096, "framework": framework}
    cluster = {"gpu": "h100-sxm5-80gb", "nodes": 2, "gpus_per_node": 8}
    job = parse_job({"model": "llama-3-8b", "training": training, "cluster": cluster}, "job", tmp_path)
    zero = 3 if program in ("torchtitan", "deepspeed", "accelerate") else 1
    given = f"{plan} micro_batch_size=2 zero_stage={zero} clock_mhz=1980"
    write(export(job, given, "kubernetes", program=program, allow_tight=True), tmp_path)
    found = import_([tmp_path / "jobset.yaml"], gpu="h100-sxm5-80gb", seq_length=4096, model="llama-3-8b",
                    set={"plan.recompute": "none"})  # fmt: skip
    assert found.plan_text.startswith(plan)
    assert (found.plan["micro_batch_size"], found.plan["zero_stage"]) == (2, zero)
