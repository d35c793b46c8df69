"""What the trainer and the probe make of what PyTorch tells them; a stand-in for PyTorch, which need not be here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest

CPU: Any = SimpleNamespace(type="cpu")
_OURS = "jointopt.measure.trainer"


@pytest.fixture
def torch() -> Iterator[MagicMock]:
    """A stand-in that the trainer's modules find, which are forgotten afterwards."""
    made = MagicMock()
    wrapper, replicates = "algorithms._checkpoint.checkpoint_wrapper", "_composable.replicate_with_fsdp"
    parts = ("_composable", replicates, "algorithms", "algorithms._checkpoint", wrapper, "device_mesh", "fsdp",
             "tensor", "tensor.parallel")  # fmt: skip
    modules = {"torch": made, "torch.distributed": made.distributed}
    modules |= {f"torch.distributed.{name}": made for name in parts}
    modules |= {f"{_OURS}.{name}": MagicMock() for name in ("device", "model")}
    with patch.dict(sys.modules, modules):
        for name in ("probe", "run"):
            sys.modules.pop(f"{_OURS}.{name}", None)
        yield made


def test_a_message_there_and_back_is_two_messages(torch: MagicMock, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = importlib.import_module(f"{_OURS}.probe")
    torch.distributed.get_rank.return_value, torch.distributed.get_world_size.return_value = 0, 2
    monkeypatch.setattr(probe, "_seconds", lambda *_, **__: 1.0)
    monkeypatch.setattr(probe, "_slowest", lambda seconds, _: seconds)
    found = {one["kind"]: one["time_s"] for one in probe._collectives(CPU, 2)}
    assert found == {"all_reduce": 1.0, "all_gather": 1.0, "p2p": 0.5}


def test_the_loss_is_the_mean_of_data_context_and_tensor_ranks(
    torch: MagicMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = importlib.import_module(f"{_OURS}.run")
    seconds = iter((1.0, 2.0))
    monkeypatch.setattr(run, "now_s", lambda _: next(seconds))
    monkeypatch.setattr(run, "largest_of_ranks", lambda found, _: found)
    monkeypatch.setattr(run, "device_mesh", lambda *_: None)
    monkeypatch.setattr(run, "build_stages", lambda *_: {0: MagicMock()})
    monkeypatch.setattr(run, "_batch", lambda *_: (None, None))
    monkeypatch.setattr(run, "_plain_step", lambda *_: lambda: 48.0)  # the sum of all ranks
    spec: Any = SimpleNamespace(dp=2, cp=2, tp=3, pp=1, warmup_iterations=0, iterations=1, least_s=0.0, behind_s=0.0,
                                prints=False, seed=0, learning_rate=1e-3)  # fmt: skip
    assert run.train(spec, CPU)["loss"] == [4.0]
