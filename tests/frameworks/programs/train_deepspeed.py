"""A user's ``train.py`` for DeepSpeed: a small GPT, started with the words and files of an export."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # by every process, at its first optimizer
import torch
from deepspeed.pipe import PipelineModule
from small_model import Block, loss_of
from torch import nn

STEPS = 3
# All-reduces through shared memory would be compiled first, which takes a minute; gloo has its own.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config_name")
    parser.add_argument("--block_size", type=int)
    parser.add_argument("--per_device_train_batch_size", type=int)
    deepspeed.add_config_arguments(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    shape = json.loads(Path(given.config_name).read_text())
    config = json.loads(Path(given.deepspeed_config).read_text())
    width, vocabulary = shape["hidden_size"], shape["vocab_size"]
    blocks = [Block(width, shape["num_attention_heads"]) for _ in range(shape["num_hidden_layers"])]
    layers = [nn.Embedding(vocabulary, width), *blocks, nn.Linear(width, vocabulary)]
    stages = config.get("pipeline", {}).get("stages", 1)
    data = [(row[:-1], row[1:]) for row in torch.randint(0, vocabulary, (64, given.block_size + 1))]
    model = nn.Sequential(*layers)
    if stages > 1:
        model = PipelineModule(layers, num_stages=stages, loss_fn=loss_of, partition_method="uniform")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(given, model, optimizer, training_data=data if stages > 1 else None)
    mesh = {"dp": engine.dp_world_size, "pp": getattr(engine, "num_stages", 1)}
    Path("mesh.json").write_text(json.dumps(mesh | {"zero_stage": int(engine.zero_optimization_stage())}))
    if stages > 1:
        for _ in range(STEPS):
            engine.train_batch()
        return
    size, rank = given.per_device_train_batch_size, torch.distributed.get_rank()
    for step in range(STEPS * config["gradient_accumulation_steps"]):
        rows = data[(step + rank) * size % 32 :][:size]
        loss = loss_of(engine(torch.stack([x for x, _ in rows])), torch.stack([y for _, y in rows]))
        engine.backward(loss)
        engine.step()
