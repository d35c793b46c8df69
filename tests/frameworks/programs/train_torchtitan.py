"""torchtitan's own training program, of 0.2.2 or 0.3.0, on cores: what requires a GPU finds the CPU instead.

What is replaced, and why:

- torchtitan takes the accelerator that PyTorch names, and queries its memory statistics, which ``torch.cpu`` lacks;
- gloo has no pre-multiplied sums: FSDP 2 is set to plain ones by its public switch;
- PyTorch before 2.14 has `set_timeout`, which 0.3.0 calls, under the name that 0.2.2 knows;
- FlexAttention has no backward pass on the CPU: causal scaled-dot-product attention stands in (0.3.0);
- Llama 3 8B has four layers of width 64 (0.2.2), or the shape of torchtitan's own small model (0.3.0).
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch._utils
from torch.distributed.fsdp import FSDPModule

cpu = types.ModuleType("cpu_as_accelerator")
for name in dir(torch.cpu):
    setattr(cpu, name, getattr(torch.cpu, name))


def _memory(*_: Any) -> dict[str, int]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"active_bytes.all.peak": peak, "reserved_bytes.all.peak": peak, "num_alloc_retries": 0, "num_ooms": 0}


cpu.__dict__.update(
    set_device=lambda _: None, current_device=lambda: 0, device_count=lambda: 1, get_device_name=lambda *_: "CPU",
    get_device_properties=lambda *_: types.SimpleNamespace(name="CPU", total_memory=2**34), memory_stats=_memory,
    reset_peak_memory_stats=lambda *_: None, empty_cache=lambda *_: None,
)  # fmt: skip
torch._utils._get_available_device_type = lambda: "cpu"  # read when torchtitan is imported
torch._utils._get_device_module = lambda _: cpu
_divide = FSDPModule.set_gradient_divide_factor


def _by_plain_sums(self: FSDPModule, factor: float) -> None:
    _divide(self, factor)
    self.set_force_sum_reduction_for_comms(True)


FSDPModule.set_gradient_divide_factor = _by_plain_sums
if not hasattr(torch.distributed, "set_timeout"):
    torch.distributed.set_timeout = torch.distributed.distributed_c10d._set_pg_timeout

import torchtitan.train as program  # noqa: E402
from torchtitan.models import llama3  # noqa: E402

OLD = hasattr(llama3, "llama3_args")
if OLD:
    tiny = {"dim": 64, "n_layers": 4, "n_heads": 4, "n_kv_heads": 4, "vocab_size": 2048, "ffn_dim_multiplier": None}
    llama3.llama3_args["8B"] = dataclasses.replace(llama3.llama3_args["8B"], multiple_of=64, **tiny)
else:
    from torch.nn.functional import scaled_dot_product_attention
    from torchtitan.models.common.attention import FlexAttention

    def _attention(q: Any, k: Any, v: Any, *, scale: Any = None, enable_gqa: bool = False, **_: Any) -> Any:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa), None

    FlexAttention.compiled_flex_attn = staticmethod(_attention)
    llama3.llama3_configs["8B"] = llama3._debugmodel


def write_assets(folder: Path) -> None:
    """A tokenizer of bytes, and a little text to train on, which torchtitan's package does not bring."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    made.save(str(folder / "tokenizer.json"))
    ends = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(ends | {"add_bos_token": True, "add_eos_token": True}))
    words, draw = ("plan", "step", "clock", "power", "pipe", "stage"), random.Random(0)
    lines = [json.dumps({"text": " ".join(draw.choices(words, k=300))}) for _ in range(200)]
    (folder / "text").mkdir(exist_ok=True)
    (folder / "text" / "data.json").write_text("\n".join(lines) + "\n")


def main() -> None:
    if OLD:
        program.ConfigManager.parse_args.__defaults__ = (sys.argv[1:],)  # taken when it was imported
        program.main(program.Trainer)
    else:
        program.main()


write_assets(Path(os.environ["ASSETS"]))
