"""Started by tests: a framework's own parser reads many exports, and says which degrees it understood."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def deepspeed(cases: list[dict[str, Any]]) -> list[dict[str, int]]:
    """``DeepSpeedConfig``, as for the data-parallel ranks of each plan."""
    import types

    from deepspeed import init_distributed
    from deepspeed.runtime.config import DeepSpeedConfig

    meeting = f"file://{Path.cwd() / 'meeting'}"
    init_distributed("gloo", auto_mpi_discovery=False, init_method=meeting, rank=0, world_size=1)
    found = []
    for case in cases:
        ranks = types.SimpleNamespace(get_data_parallel_world_size=lambda dp=case["dp"]: dp)
        read = DeepSpeedConfig(json.loads(case["files"]["ds_config.json"]), mpu=ranks)
        tp, stages = read.tensor_parallel_config.autotp_size, read.pipeline["stages"]
        found.append({
            "micro_batch_size": read.train_micro_batch_size_per_gpu, "tp": tp or 1,
            "pp": 1 if stages == "auto" else stages,
            "zero_stage": int(read.zero_optimization_stage), "ep": read.expert_parallel_config.autoep_size,
        })  # fmt: skip
    return found


def torchtitan(cases: list[dict[str, Any]]) -> list[dict[str, int]]:
    """``ConfigManager``, of either version."""
    from torchtitan.config import ConfigManager

    found = []
    for case in cases:
        for name, text in case["files"].items():
            Path(name).write_text(text)
            sys.modules.pop(Path(name).stem, None)
        read = ConfigManager().parse_args(case["words"]).parallelism
        replicas, shards = read.data_parallel_replicate_degree, read.data_parallel_shard_degree
        found.append({
            "tp": read.tensor_parallel_degree, "pp": read.pipeline_parallel_degree, "dp": replicas * shards,
            "cp": read.context_parallel_degree, "ep": read.expert_parallel_degree,
        })  # fmt: skip
    return found


def accelerate(cases: list[dict[str, Any]]) -> list[dict[str, int]]:
    """``accelerate launch``: its parser, validation, and the environment that it hands on."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    found = []
    for case in cases:
        Path("accelerate.yaml").write_text(case["files"]["accelerate.yaml"])
        given, *_ = _validate_launch_command(launch_command_parser().parse_args(case["words"]))
        read = prepare_multi_gpu_env(given)
        names = {"tp": ("PARALLELISM_CONFIG_TP_SIZE", "MEGATRON_LM_TP_DEGREE"), "pp": ("MEGATRON_LM_PP_DEGREE",)}
        found.append({column: int(next((read[n] for n in keys if n in read), 1)) for column, keys in names.items()})
    return found


if __name__ == "__main__":
    target, folder = sys.argv[1:]
    sys.path.insert(0, ".")
    cases = json.loads(Path("cases.json").read_text())
    sys.argv[1:] = []
    answers = {"deepspeed": deepspeed, "torchtitan": torchtitan, "accelerate": accelerate}[target](cases)
    Path("answers.json").write_text(json.dumps(answers))
