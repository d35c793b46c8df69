"""Stands in for a training framework: reads its own options and files, and prints logs by its own format strings.

Started as the script of a checkout, by torchrun; STAND_IN_HOW states what goes wrong: oom, flag.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import time
from pathlib import Path

RANK, WORLD = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
STEP_S = 0.05


def now() -> str:
    return f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S.%f}"


def titan(step: int, steps: int, batch: int, tokens: int) -> str:
    """As torchtitan/components/metrics.py writes it."""
    return (
        f"[rank{RANK}]:[titan] {now()[:-3].replace('.', ',')} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: "
        f"{8.2:8.5f}  \x1b[38;2;180;60;0mgrad_norm: {2.4333:7.4f}  \x1b[36mmemory: {61.25:5.2f}GiB({77.40:.2f}%)  "
        f"\x1b[34mtps: {round(tokens / STEP_S / WORLD):,}  \x1b[36mtflops: {400.5:,.2f}  \x1b[35mmfu: 40.49%\x1b[39m"
    )


def nanotron(step: int, steps: int, batch: int, tokens: int) -> str:
    """As nanotron's LoggerWriter writes it."""
    return (
        f"11/22 04:16:36 [INFO|DP=0|PP=0|TP=0]: iteration: {step} / {steps} | consumed_tokens: 1.05M | "
        f"elapsed_time_per_iteration_ms: {1e3 * STEP_S:.0f} | tokens_per_sec: 426K | tokens_per_sec_per_gpu: 53.3K | "
        f"global_batch_size: {batch} | lm_loss: 11.1 | lr: 0.00015 | model_tflops_per_gpu: 120 | grad_norm: 24.6"
    )


def deepspeed(step: int, steps: int, batch: int, tokens: int) -> str:
    """As DeepSpeed's ThroughputTimer writes it."""
    return (
        f"[{now()[:-3].replace('.', ',')}] [INFO] [timer.py:260:stop] epoch=0/micro_step={step}/global_step={step}, "
        f"RunningAvgSamplesPerSec=50.1, CurrSamplesPerSec={batch / STEP_S}, MemAllocated=4.75GB, "
        "MaxMemAllocated=15.59GB"
    )


def bridge(step: int, steps: int, batch: int, tokens: int) -> str:
    """As Megatron-Bridge's training_log writes it."""
    return (
        f" [{now()}] iteration {step:8d}/{steps:8d} | consumed samples: {step * batch:12d} | elapsed time per "
        f"iteration (ms): {1e3 * STEP_S:.1f} | learning rate: 1.000000E-05 | global batch size: {batch:5d} | lm loss: "
        f"{11.0:.6E} | loss scale: 1.0 | grad norm: 1.797 | number of skipped iterations:   0 | number of nan "
        "iterations:   0 |"
    )


def options(words: list[str]) -> tuple[int, int, int]:
    """(steps, sequences, tokens) of an iteration, as the framework is given them; what it does not know ends it."""
    if "--config-file" in words:
        text = Path(words[words.index("--config-file") + 1]).read_text()
        of = {name: int(re.search(rf"{name}: (\d+)", text)[1]) for name in ("train_steps", "dp", "sequence_length",
              "micro_batch_size", "batch_accumulation_per_replica")}  # fmt: skip
        batch = of["dp"] * of["micro_batch_size"] * of["batch_accumulation_per_replica"]
        return of["train_steps"], batch, batch * of["sequence_length"]
    if "--deepspeed_config" in words:
        config = json.loads(Path(words[words.index("--deepspeed_config") + 1]).read_text())
        return int(words[words.index("--steps") + 1]), config["train_batch_size"], 0
    flat = dict(word.split("=", 1) for word in words if "=" in word)
    if "train.train_iters" in flat:
        return int(flat["train.train_iters"]), int(flat["train.global_batch_size"]), 0
    parser = argparse.ArgumentParser("train.py", allow_abbrev=False)
    names = ("training.steps", "training.global_batch_size", "training.seq_len")
    for name in names:
        parser.add_argument(f"--{name}", type=int, required=True)
    known, rest = parser.parse_known_args(words)
    if os.environ.get("STAND_IN_HOW") == "flag":
        parser.error(f"unrecognized arguments: {next(word for word in rest if word.startswith('--metrics'))}")
    steps, batch, length = (getattr(known, name) for name in names)
    return steps, batch, batch * length


def main(line: str) -> None:
    steps, batch, tokens = options(sys.argv[1:])
    for step in range(1, steps + 1):
        time.sleep(STEP_S)
        if os.environ.get("STAND_IN_HOW") == "oom" and step == 2:
            sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.")
        if RANK == 0:
            print(globals()[line](step, steps, batch, tokens), flush=True)


# script of a checkout, and the lines that it prints
SCRIPTS = {
    "torchtitan": ("torchtitan/train.py", "titan"), "nanotron": ("run_train.py", "nanotron"),
    "megatron-bridge": ("scripts/training/run_recipe.py", "bridge"), "deepspeed": ("train.py", "deepspeed"),
}  # fmt: skip


def checkout(framework: str, folder: Path) -> Path:
    """A folder with the script of a framework, which is this file."""
    name, line = SCRIPTS[framework]
    script = folder / name
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        f"import runpy\nrunpy.run_path({str(Path(__file__).resolve())!r})['main']({line!r})\n", encoding="utf-8"
    )
    return folder
