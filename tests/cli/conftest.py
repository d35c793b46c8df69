"""A job and recorded runs of it, for the commands that run plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jointopt.measure.replay import ReplayLauncher

JOB = """
model: {num_layers: 24, hidden_size: 1024, ffn_hidden_size: 4096, num_attention_heads: 16, vocab_size: 50272}
training: {seq_length: 2048, global_batch_size: 256}
cluster: {gpu: a100-sxm4-40gb, nodes: 2, gpus_per_node: 4}
objectives: [iteration_time_s]
"""


@pytest.fixture
def recorded(tmp_path: Path, make_runs, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with ``job.yaml`` and its recorded runs in ``runs.csv``."""
    (tmp_path / "job.yaml").write_text(JOB)
    make_runs().to_csv(tmp_path / "runs.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Interrupts the replay of the run after that many, as Ctrl-C does."""
    replayed, calls = ReplayLauncher.run, []

    def interrupt(runs: int) -> None:
        def run(self, job, plan):
            calls.append(plan)
            if len(calls) > runs:
                raise KeyboardInterrupt
            return replayed(self, job, plan)

        monkeypatch.setattr(ReplayLauncher, "run", run)

    return interrupt
