"""Nodes and GPUs by the words of launchers and batch headers."""

from __future__ import annotations

from typing import Any

from jointopt.frameworks.shell import cluster_of, read_script
from tests.each import each

STARTS: list[tuple[str, dict[str, Any]]] = [
    ("torchrun --nnodes 4 --nproc_per_node=8 x.py", {"nodes": 4, "gpus_per_node": 8}),
    ("torchrun --nnodes=2:4 --nproc-per-node 8 x.py", {"nodes": 4, "gpus_per_node": 8}),
    ("torchrun --nproc_per_node gpu x.py", {}),
    ("srun -N 4 --ntasks-per-node=8 python x.py", {"nodes": 4, "gpus_per_node": 8}),
    ("srun -N 2 --ntasks-per-node=1 torchrun --nnodes 4 --nproc_per_node 8 x.py", {"nodes": 4, "gpus_per_node": 8}),
    ("srun --gpus-per-node=h100-sxm5-80gb:4 python x.py", {"gpus_per_node": 4, "gpu": "h100-sxm5-80gb"}),
    ("srun --gres=gpu:a100-sxm4-80gb:4 python x.py", {"gpus_per_node": 4, "gpu": "a100-sxm4-80gb"}),
    ("srun --gres=gpu:4 --constraint=h100-sxm5-80gb python x.py", {"gpus_per_node": 4, "gpu": "h100-sxm5-80gb"}),
    (
        "srun --gres=gpu:h100-sxm5-80gb:8 --constraint=a100-sxm4-80gb python x.py",
        {"gpus_per_node": 8, "gpu": "h100-sxm5-80gb"},
    ),
    ("srun --gres=gpu:mystery:8 python x.py", {"gpus_per_node": 8}),
    ("accelerate launch --num_machines 2 --num_processes 16 x.py", {"nodes": 2, "num_gpus": 16}),
    ("accelerate launch --num_processes 16 --num_gpus 8 x.py", {"gpus_per_node": 8}),
    ("mpirun -np 16 python x.py", {}),
    ("deepspeed --num_nodes 2 --num_gpus 8 x.py", {"nodes": 2, "gpus_per_node": 8}),
    ("#SBATCH --nodes=4 --gres=gpu:4\nsrun python x.py", {"nodes": 4, "gpus_per_node": 4}),
    ("#SBATCH --export=ALL,A=1,B=2\n#SBATCH --nodes=4\npython x.py", {"nodes": 4}),
    ("#SBATCH --nodes=4\nsrun --nodes=2 python x.py", {"nodes": 2}),
    ("#SBATCH -N 4\n#SBATCH --ntasks-per-node 8\npython x.py", {"nodes": 4, "gpus_per_node": 8}),
    ("NNODES=4\nGPUS_PER_NODE=8\npython x.py", {"nodes": 4, "gpus_per_node": 8}),
    ("NUM_NODES=0\nSLURM_NNODES=2\nNGPU=4\npython x.py", {"nodes": 2, "gpus_per_node": 4}),
]


@each(("script", "sizes"), STARTS)
def test_a_launcher_states_nodes_and_gpus(script: str, sizes: dict[str, Any]) -> None:
    assert cluster_of(read_script(script)) == sizes
