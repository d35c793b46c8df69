"""Nodes and GPUs by the words of launchers, batch headers, hostfiles and usual variables."""

from __future__ import annotations

from typing import Any

from jointopt.frameworks.launchers import cluster_of
from jointopt.frameworks.shell import read_script
from tests.each import each

# a script, the sizes that it states, and the fields that are asked
STARTS: list[tuple[str, dict[str, Any], str]] = [
    ("torchrun --nnodes 4 --nproc_per_node=8 x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("torchrun --nnodes=4:4 --nproc-per-node 8 x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("torchrun --nnodes=2:4 --nproc-per-node 8 x.py", {"gpus_per_node": 8}, "nodes"),
    ("torchrun --nproc_per_node gpu x.py", {}, ""),
    ("torchrun --nnodes $N --nproc-per-node ${PER} x.py", {}, "nodes gpus_per_node"),
    ("python -m torch.distributed.run --nnodes 2 --nproc_per_node 8 x.py", {"nodes": 2, "gpus_per_node": 8}, ""),
    ("srun -N 4 --ntasks-per-node=8 python x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("srun -N4 --ntasks-per-node 8 python x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("srun --ntasks=32 --ntasks-per-node=8 python x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("srun -n32 --gpus-per-task=1 python x.py", {"num_gpus": 32}, "nodes"),
    ("srun -N4 -n 32 -G 32 python x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("srun --nodes=4-8 -n 32 python x.py", {"num_gpus": 32}, "nodes"),
    ("srun -N 4 --ntasks-per-node=1 torchrun --nnodes 4 --nproc_per_node 8 x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("srun -N 2 --ntasks-per-node=1 torchrun --nnodes 4 --nproc_per_node 8 x.py", {"gpus_per_node": 8}, "nodes"),
    ("srun --gpus-per-node=h100-sxm5-80gb:4 python x.py", {"gpus_per_node": 4, "gpu": "h100-sxm5-80gb"}, ""),
    ("srun --gres=gpu:a100-sxm4-80gb:4 python x.py", {"gpus_per_node": 4, "gpu": "a100-sxm4-80gb"}, ""),
    ("srun --gres=gpu:4 --constraint=h100-sxm5-80gb python x.py", {"gpus_per_node": 4, "gpu": "h100-sxm5-80gb"}, ""),
    (
        "srun --gres=gpu:h100-sxm5-80gb:8 --constraint=a100-sxm4-80gb python x.py",
        {"gpus_per_node": 8, "gpu": "h100-sxm5-80gb"}, "",
    ),
    ("srun --gres=gpu:mystery:8 python x.py", {"gpus_per_node": 8}, ""),
    ("accelerate launch --num_machines 2 --num_processes 16 x.py", {"nodes": 2, "gpus_per_node": 8}, ""),
    ("accelerate launch --num_processes 16 --num_gpus 8 x.py", {"gpus_per_node": 8, "num_gpus": 16}, ""),
    ("mpirun -np 16 python x.py", {"num_gpus": 16}, "nodes"),
    ("mpirun -np 16 --map-by ppr:8:node python x.py", {"nodes": 2, "gpus_per_node": 8}, ""),
    ("mpirun -np 16 -H a:8,b:8 python x.py", {"nodes": 2, "gpus_per_node": 8}, ""),
    ("mpiexec -n 16 -ppn 4 python x.py", {"nodes": 4, "gpus_per_node": 4}, ""),
    ("mpirun -np 16 --hostfile hosts python x.py", {"nodes": 2, "gpus_per_node": 8}, ""),
    ("deepspeed --num_nodes 2 --num_gpus 8 x.py", {"nodes": 2, "gpus_per_node": 8}, ""),
    ("deepspeed --hostfile=conf/hosts x.py", {"nodes": 2, "gpus_per_node": 8}, ""),
    ("#SBATCH --nodes=4 --gres=gpu:4\nsrun python x.py", {"nodes": 4, "gpus_per_node": 4}, ""),
    ("#SBATCH --export=ALL,A=1,B=2\n#SBATCH --nodes=4\npython x.py", {"nodes": 4}, ""),
    ("#SBATCH --nodes=4\nsrun --nodes=2 python x.py", {"nodes": 2}, ""),
    ("#SBATCH -N 4\n#SBATCH --ntasks-per-node 8\npython x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("#SBATCH -N4\nsrun torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("#SBATCH -N2\ntrue\n#SBATCH -N4\nsrun -n16 python x.py", {"nodes": 2, "gpus_per_node": 8}, ""),
    ("#SBATCH -N2 --tasks-per-node 4\nsrun -n16 python x.py", {"nodes": 2, "gpus_per_node": 8}, ""),
    ("#SBATCH -N2 -G 16\nsrun -N4 --ntasks-per-node=8 python x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("#SBATCH -N2 -G 16\nsrun torchrun --nnodes=2 --nproc_per_node=$SLURM_GPUS_ON_NODE x.py",
     {"nodes": 2, "gpus_per_node": 8}, ""),
    ("#SBATCH -N2 --gres=gpu:h100-sxm5-80gb:8\ntorchrun --nnodes 2 --nproc_per_node $SLURM_GPUS_ON_NODE x.py",
     {"nodes": 2, "gpus_per_node": 8, "gpu": "h100-sxm5-80gb"}, ""),
    ("#SBATCH -N2\nN=1; [ -n \"$SLURM_JOB_ID\" ] && N=$SLURM_NNODES\ntorchrun --nnodes $N --nproc_per_node 8 x.py",
     {"nodes": 2, "gpus_per_node": 8}, ""),
    ("#PBS -l select=4:ncpus=64:ngpus=8\nmpirun -np 32 python x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("#BSUB -nnodes 4\njsrun -n 4 -g 8 -a 8 python x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("flux run -N 2 --tasks-per-node=8 python x.py", {"nodes": 2, "gpus_per_node": 8}, ""),
    ("NNODES=4\nGPUS_PER_NODE=8\npython x.py", {"nodes": 4, "gpus_per_node": 8}, ""),
    ("NUM_NODES=0\nSLURM_NNODES=2\nNGPU=4\npython x.py", {"nodes": 2, "gpus_per_node": 4}, ""),
    ("WORLD_SIZE=32 python x.py", {"num_gpus": 32}, "nodes"),
    ("NUM_GPUS=64\npython x.py", {}, ""),
    ("deepspeed --num_gpus 64 x.py", {}, "gpus_per_node"),
]  # fmt: skip


@each(("script", "sizes", "asked"), STARTS)
def test_a_launcher_states_nodes_and_gpus_or_they_are_asked(script: str, sizes: dict[str, Any], asked: str) -> None:
    read = read_script(script)
    found = cluster_of(read, read.runs[-1], {"hosts": "a slots=8\nb slots=8  # the last\n"})
    assert (found.cluster, " ".join(found.questions)) == (sizes, asked)
