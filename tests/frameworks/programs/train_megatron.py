"""Megatron Core's model, groups and schedules on cores, by the arguments of ``pretrain_gpt.py`` that an export has.

Megatron-LM's training loop needs a GPU and is no package: what it does with these arguments stands here, and it logs by
the loop's format strings. What is replaced, and why: everything that PyTorch would put on "cuda" goes to the CPU, whose
random states, streams and ranges for profilers stand in for those of a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
torch.cuda.current_device = lambda: CPU
torch.cuda.set_device = torch.cuda.synchronize = lambda *_: None
torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
torch.cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
torch.cuda.manual_seed = torch.manual_seed
torch.cuda.Stream = torch.cpu.Stream
torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: None
torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self


class ToCpu(TorchFunctionMode):
    """New tensors for "cuda" are made on the CPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = CPU
        return function(*args, **kwargs)


ToCpu().__enter__()

import megatron.core.tensor_parallel.random as random_states  # noqa: E402
from megatron.core import parallel_state as groups  # noqa: E402
from megatron.core import tensor_parallel  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads  # noqa: E402
from megatron.core.distributed import DistributedDataParallelConfig as DDPConfig  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

random_states._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
random_states._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
STEPS = 3
WHOLE = (
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size", "global-batch-size", "num-layers",
    "hidden-size", "ffn-hidden-size", "num-attention-heads", "seq-length", "vocab-size",
)  # fmt: skip


def arguments() -> argparse.Namespace:
    """The options that a model and its groups need; the others state how a GPU runs them."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in WHOLE:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--swiglu", action="store_true")
    parser.add_argument("--disable-bias-linear", action="store_true")
    parser.add_argument("--normalization")
    return parser.parse_known_args(sys.argv[1:])[0]


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    world = torch.distributed.get_world_size()
    if torch.distributed.get_rank() == 0:
        print("------------------------ arguments ------------------------")
        for name, value in sorted(vars(args).items()):
            print(f"  {name} {'.' * (48 - len(name))} {value}")
        print(f"  world_size {'.' * 38} {world}", flush=True)
    tp, pp = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
    groups.initialize_model_parallel(tp, pp, create_gloo_process_groups=False)
    mesh = {"tp": groups.get_tensor_model_parallel_world_size(), "pp": groups.get_pipeline_model_parallel_world_size()}
    Path("mesh.json").write_text(json.dumps(mesh | {"dp": groups.get_data_parallel_world_size()}))
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=args.num_layers, hidden_size=args.hidden_size, ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
        gated_linear_unit=args.swiglu, add_bias_linear=not args.disable_bias_linear, normalization=args.normalization,
        use_cpu_initialization=True, pipeline_dtype=torch.float32, params_dtype=torch.float32, hidden_dropout=0.0,
        attention_dropout=0.0, gradient_accumulation_fusion=False, masked_softmax_fusion=False,
        bias_dropout_fusion=False, activation_func=torch.nn.functional.silu,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(normalization=args.normalization)
    ends = {"pre_process": groups.is_pipeline_first_stage(), "post_process": groups.is_pipeline_last_stage()}
    model = GPTModel(config, spec, args.vocab_size, args.seq_length, **ends)
    model = DistributedDataParallel(config, DDPConfig(use_distributed_optimizer=False), model)
    config.finalize_model_grads_func = finalize_model_grads
    train(args, model, world // tp // pp)


def train(args: argparse.Namespace, model: Any, dp: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    length, size, run = args.seq_length, args.micro_batch_size, get_forward_backward_func()

    def forward(_: Any, chunk: Any) -> Any:
        rows = torch.randint(0, args.vocab_size, (size, length + 1))
        places = torch.arange(length).expand(size, length)
        mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), 1)
        out = chunk(rows[:, :-1].contiguous(), places, mask, labels=rows[:, 1:].contiguous())
        return out, lambda losses: (losses.mean(), {"lm loss": losses.detach().mean()})

    for step in range(1, STEPS + 1):
        begun = time.time()
        model.zero_grad_buffer()
        losses = run(
            forward_step_func=forward, data_iterator=None, model=[model], seq_length=length, micro_batch_size=size,
            num_microbatches=args.global_batch_size // size // dp, forward_only=False,
        )  # fmt: skip
        for weight in model.parameters():
            weight.grad = weight.main_grad.to(weight.dtype)
        optimizer.step()
        ranks = groups.get_tensor_model_parallel_rank(), groups.get_data_parallel_rank()
        if groups.is_pipeline_last_stage() and not any(ranks):
            loss = sum(float(one["lm loss"]) for one in losses) / len(losses)
            line = f" iteration {step:8d}/{STEPS:8d} | consumed samples: {step * args.global_batch_size:12d} |"
            line += f" elapsed time per iteration (ms): {(time.time() - begun) * 1e3:.1f} | lm loss: {loss:.6E} |"
            print(line + " number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)
