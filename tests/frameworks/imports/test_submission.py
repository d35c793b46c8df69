"""Where a job is submitted, and by what: its header, its arguments, its nodes, and what only looks like it."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import JobError
from jointopt.workflows.import_ import import_
from tests.each import each

SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000 --bf16"
GPT = f"pretrain_gpt.py {SHAPE} --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size ${{TP:-1}}"
JOB = "#SBATCH --nodes=NODES\n#SBATCH --gpus-per-node=8 --ntasks-per-node=8\nsrun python " + GPT
PBS = "#PBS -l select=4:ncpus=64:ngpus=4:mpiprocs=RANKS\nN=`COUNT`\nmpiexec -n $((N * 4)) --ppn 4 python " + GPT
TUNE = "run_clm.py --model_name_or_path meta-llama/Meta-Llama-3-8B --block_size 4096 --bf16 "
TUNE += "--per_device_train_batch_size 2"
HOSTS = "worker-0 slots=8\nworker-1 slots=8\nworker-2 slots=8\n"
LOG = (
    " iteration  10/ 100 | consumed samples: 1280 | elapsed time per iteration (ms): 900.0 | global batch size: 256 |\n"
)
RUNS: list[tuple[dict[str, str], dict[str, Any]]] = [  # files of one run, and what is read of them
    ({"a.sh": f"NODES=2\nsbatch <<EOF\n#!/bin/bash\n{JOB.replace('NODES', '$NODES')}\nEOF"}, {"nodes": 2, "dp": 16}),
    ({"a.sh": f"N=2\ncat > j_$N.sbatch <<EOF\n{JOB.replace('NODES', '${N}')}\nEOF\nsbatch j_$N.sbatch"}, {"nodes": 2}),
    ({"a.sh": "sbatch -N 4 --export=ALL,TP=8 b.sbatch", "b.sbatch": JOB.replace("NODES", "2")}, {"nodes": 4, "tp": 8}),
    ({"a.sh": "export TP=8\nsbatch --export=A=1 b.sbatch", "b.sbatch": JOB.replace("NODES", "2")}, {"tp": 1}),
    ({"a.sh": ". ./c.sh\nsbatch --export=TP b.sbatch", "b.sbatch": JOB.replace("NODES", "2"), "c.sh": "export TP=4"},
     {"tp": 4}),
    ({"a.sh": "export TP=8\nqsub -l select=2:ngpus=4 b", "b": f"#PBS -l select=8:ngpus=4\nmpiexec python {GPT}"},
     {"nodes": 2, "gpus_per_node": 4, "tp": 1}),
    ({"a.sh": "export TP=4\nsource b.sh 2 --sequence-parallel",
      "b.sh": f"N=$1\nshift\ntorchrun --nnodes $N --nproc_per_node 8 {GPT} $@"},
     {"nodes": 2, "tp": 4, "sequence_parallel": True}),
    ({"a.sh": JOB.replace("NODES", "2").replace("srun", "module load x\n#SBATCH --nodes=9\nsrun")}, {"nodes": 2}),
    ({"a.pbs": PBS.replace("COUNT", "wc -l < $PBS_NODEFILE").replace("RANKS", "1")}, {"nodes": 4, "dp": 16}),
    ({"a.pbs": PBS.replace("COUNT", "cat $PBS_NODEFILE | uniq | wc -l").replace("RANKS", "4")}, {"nodes": 4, "dp": 16}),
    ({"a.pbs": PBS.replace("COUNT", "sort -u $PBS_NODEFILE | wc -l").replace("RANKS", "4")}, {"nodes": 4, "dp": 16}),
    ({"a.pbs": f"#PBS -l select=4:mpiprocs=4\nmpiexec -n $(wc -l < $PBS_NODEFILE) --ppn 4 python {GPT}"}, {"dp": 16}),
    ({"a.sh": f"#SBATCH -N 2\nsource my_env\nTP=2\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 {GPT}"},
     {"nodes": 2}),
    ({"a.sh": "J=$(sbatch --parsable -N 4 b.sbatch)\nsbatch -d afterok:$J c.sh", "b.sbatch": JOB.replace("NODES", "2")},
     {"nodes": 4}),
    ({"a.sh": "sed 's/NODES/4/' b.sbatch | sbatch", "b.sbatch": JOB.replace("NODES", "2").replace("=2", "=NODES")},
     {"nodes": 4}),
    ({"a.sh": "export TP=4 N=2\nenvsubst < t.txt | sbatch", "t.txt": JOB.replace("NODES", "$N").replace(":-1", "")},
     {"nodes": 2, "tp": 4}),
    ({"a.sh": f"deepspeed --hostfile ./hosts --include worker-0:0,1@worker-2:4,5 {TUNE}", "hosts": HOSTS},
     {"nodes": 2, "gpus_per_node": 2}),
    ({"a.sh": f"deepspeed --hostfile=hosts --exclude worker-1 {TUNE}", "hosts": HOSTS},
     {"nodes": 2, "gpus_per_node": 8}),
    ({"a.sh": f"deepspeed {TUNE}", "hostfile": HOSTS}, {"nodes": 3, "gpus_per_node": 8}),
    ({"a.sh": f"deepspeed --num_nodes 2 {TUNE}", "hostfile": HOSTS}, {"nodes": 2, "gpus_per_node": 8}),
    ({"a.sh": f"export CUDA_VISIBLE_DEVICES=0,1,2,3\ntorchrun --standalone --nproc_per_node gpu {GPT}"},
     {"nodes": 1, "gpus_per_node": 4}),
    ({"a.sh": f"#!/bin/bash\n: <<'NOTES'\n{LOG}--bf16 false\nNOTES\necho \"{LOG}\"\ntorchrun --nnodes 2 {GPT}"},
     {"nodes": 2, "global_batch_size": 64}),
    ({"a.sh": f"torchrun --nnodes 2 --nproc_per_node 8 -m {GPT.replace('.py', '')}"}, {"zero_stage": 0, "nodes": 2}),
    ({"a.sh": f"read -r -d '' X <<EOF\n{GPT}\n --sequence-parallel\nEOF\nTP=2 torchrun --nnodes 2 $X"}, {"nodes": 2}),
    ({"a.sh": f"sed 's/STAGE/2/' t.json > b.json\ndeepspeed --num_nodes 2 {TUNE} --deepspeed b.json",
      "t.json": '{"zero_optimization": {"stage": STAGE}}'}, {"zero_stage": 2, "nodes": 2}),
]  # fmt: skip


@each(("files", "wanted"), RUNS)
def test_a_job_is_read_where_it_is_submitted(files: dict[str, str], wanted: dict[str, Any], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for names in permutations(files):
        found = import_([tmp_path / name for name in names], gpu="h100-sxm5-80gb")
        known = {**vars(found.job.cluster), **vars(found.job.training), **found.plan}
        assert {name: known[name] for name in wanted} == wanted


def test_a_comment_behind_a_continuation_ends_the_command_and_megatron_has_no_micro_batch_by_itself(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.sh").write_text(
        f"torchrun --nnodes 2 pretrain_gpt.py {SHAPE} \\\n# --x 1 \\\n  --micro-batch-size 4\n"
    )
    with pytest.raises(JobError, match=r"plan\.micro_batch_size \(Megatron-LM has no default of it"):
        import_([tmp_path / "a.sh"], gpu="h100-sxm5-80gb", global_batch_size=64)


def test_each_submitted_job_has_a_header_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "b.sbatch").write_text(f"#SBATCH -N 2\ntorchrun --nnodes $SLURM_NNODES --nproc_per_node 8 {GPT}")
    (tmp_path / "a.sh").write_text("for n in 2 4; do sbatch --nodes=$n b.sbatch; done\n")
    with pytest.raises(JobError, match="it starts 2 runs that differ"):
        import_([tmp_path / "a.sh", tmp_path / "b.sbatch"], gpu="h100-sxm5-80gb")
    found = import_([tmp_path / "a.sh", tmp_path / "b.sbatch"], gpu="h100-sxm5-80gb", run=2)
    assert found.job.cluster.nodes == 4
