"""Started by tests: a framework's own parser reads many exports, and prints which degrees it understood."""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import json
import os
import shlex
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import yaml


class Anything(type):
    """A class that stands for a name of an imitated module, and has every name itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {"__init__": lambda self, *_, **__: None})


class Imitated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of these names, and those below them: imports see every name in them, and nothing is computed."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        found = any(f"{name}.".startswith(f"{one}.") for one in self.names)
        return ModuleSpec(name, self, is_package=True) if found else None

    def exec_module(self, module: types.ModuleType) -> None:
        everything = Anything("everything", (), {})
        module.__version__ = "2.12.0"  # Transformer Engine's that Megatron-Bridge 0.3.1 requires
        module.__getattr__ = lambda name: getattr(everything, name)


def deepspeed(cases: list[dict[str, Any]]) -> list[dict[str, int]]:
    """``DeepSpeedConfig``, as for the data-parallel ranks of each plan."""
    import types

    from deepspeed import init_distributed, ops
    from deepspeed.runtime.config import DeepSpeedConfig

    ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled first, which takes a minute; gloo has its own
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
        config = ConfigManager().parse_args(case["words"])
        read = config.parallelism
        batch, piped = config.training.local_batch_size, read.pipeline_parallel_degree > 1
        replicas, shards = read.data_parallel_replicate_degree, read.data_parallel_shard_degree
        found.append({
            "tp": read.tensor_parallel_degree, "pp": read.pipeline_parallel_degree, "dp": replicas * shards,
            "cp": read.context_parallel_degree, "ep": read.expert_parallel_degree,
            "micro_batch_size": read.pipeline_parallel_microbatch_size if piped else batch,
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


def nanotron(cases: list[dict[str, Any]]) -> list[dict[str, int]]:
    """``get_config_from_file`` of 0.4, its dataclasses strict. Its logger is imitated: both import each other."""
    sys.meta_path.insert(0, Imitated("nanotron.logging"))
    from nanotron.config import get_config_from_file

    found = []
    for case in cases:
        Path("nanotron.yaml").write_text(case["files"]["nanotron.yaml"])
        read = get_config_from_file("nanotron.yaml")
        degrees = read.parallelism
        found.append({
            "dp": degrees.dp, "tp": degrees.tp, "pp": degrees.pp, "zero_stage": read.optimizer.zero_stage,
            "micro_batch_size": read.tokens.micro_batch_size,
        })  # fmt: skip
    return found


def megatron_bridge(cases: list[dict[str, Any]]) -> list[dict[str, int]]:
    """A pretraining recipe under the overrides, as its scripts read them, then all that comes before the first group.

    ``process_config_with_overrides`` and ``runtime_config_update`` (mixed precision, finalisation of every dataclass of
    it and of Megatron Core, validation). Imitated, as imports alone need them: Transformer Engine, Hugging Face's
    transformers and the loaders of images. The recipes of models other than GPT are not imported: they load from a hub.
    """
    sys.meta_path.insert(0, Imitated("transformer_engine", "transformer_engine_torch", "transformers",
                                     "megatron.energon", "qwen_vl_utils", "wandb"))  # fmt: skip
    from megatron.bridge.models import GPTModelProvider
    from megatron.bridge.training.config import runtime_config_update
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    folder = Path(importlib.util.find_spec("megatron.bridge").origin).parent
    recipes = types.ModuleType("megatron.bridge.recipes")
    recipes.__path__ = [str(folder / "recipes")]
    sys.modules["megatron.bridge.recipes"] = recipes
    from megatron.bridge.recipes.common import _pretrain_common

    found = []
    for case in cases:
        os.environ.pop("NVTE_CPU_OFFLOAD_V1", None)
        os.environ.update(case["environment"], WORLD_SIZE=str(case["world_size"]))
        recipe = _pretrain_common()
        recipe.model = GPTModelProvider(num_layers=2, hidden_size=128, num_attention_heads=2)
        read = process_config_with_overrides(recipe, cli_overrides=case["words"])
        runtime_config_update(read)
        model = read.model
        found.append({
            "tp": model.tensor_model_parallel_size, "pp": model.pipeline_model_parallel_size,
            "cp": model.context_parallel_size, "ep": model.expert_model_parallel_size,
            "vpp": model.virtual_pipeline_model_parallel_size or 1, "dp": read.data_parallel_size,
            "micro_batch_size": read.train.micro_batch_size,
        })  # fmt: skip
    return found


def kubernetes(cases: list[dict[str, Any]]) -> list[dict[str, int]]:
    """Kubeflow's models of JobSet v1alpha2 and of the ConfigMap, which give back each field; degrees by its command."""
    from kubeflow_trainer_api.models.io_k8s_api_core_v1_config_map import IoK8sApiCoreV1ConfigMap
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    names = {"tp": "tensor-model", "pp": "pipeline-model", "cp": "context", "ep": "expert-model"}
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in names.values():
        parser.add_argument(f"--{name}-parallel-size", type=int, default=1)
    parser.add_argument("--micro-batch-size", type=int)
    found = []
    for case in cases:
        config_map, jobset = yaml.safe_load_all(case["files"]["jobset.yaml"])
        assert IoK8sApiCoreV1ConfigMap.from_dict(config_map).to_dict() == config_map  # fields it lacks would be lost
        assert JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset
        job = JobsetV1alpha2JobSet.from_dict(jobset).spec.replicated_jobs[0].template.spec
        container = job.template.spec.containers[0]
        read = vars(parser.parse_known_args(shlex.split(container.command[2].replace("\\\n", "")))[0])
        one = {column: read[f"{name}-parallel-size".replace("-", "_")] for column, name in names.items()}
        gpus = job.completions * int(container.resources.to_dict()["limits"]["nvidia.com/gpu"])
        one["dp"] = gpus // one["tp"] // one["pp"] // one["cp"]
        found.append(one | {"micro_batch_size": read["micro_batch_size"]})
    return found


READERS = {
    "deepspeed": deepspeed, "torchtitan": torchtitan, "accelerate": accelerate, "nanotron": nanotron,
    "megatron-bridge": megatron_bridge, "kubernetes": kubernetes,
}  # fmt: skip

if __name__ == "__main__":
    target, folder = sys.argv[1:]
    sys.path.insert(0, ".")
    cases = json.loads(Path("cases.json").read_text())
    sys.argv[1:] = []
    Path("answers.json").write_text(json.dumps(READERS[target](cases)))
