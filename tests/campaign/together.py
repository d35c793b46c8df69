"""Eight tunes on one database at once, one of them killed in its run: only the plan of that one may begin twice.

``python tests/campaign/together.py [URL]``; by default an SQLite file of its own. Prints how often each plan was run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

JOB = """
model: {num_layers: 4, hidden_size: 128, ffn_hidden_size: 512, num_attention_heads: 4, vocab_size: 1024, gated_mlp: true}
training: {seq_length: 128, global_batch_size: 16, dtype: fp32, framework: torchtitan}
cluster: {gpu: cpu-core, nodes: 1, gpus_per_node: 4}
search: {cp: 1, vpp: 1, micro_batch_size: [1, 2, 4], recompute: none, sequence_parallel: false, zero_stage: [2, 3]}
"""  # noqa: E501
# the program appends its plan to a file when it begins, and again when it ends
RUN = """
import json, sys, time
result, log, *plan = sys.argv[1:]
with open(log, "a") as file: file.write("begun " + " ".join(plan) + "\\n")
time.sleep(1.5)
json.dump({"iteration_time_s": 0.5 + hash(tuple(plan)) % 100 / 100}, open(result, "w"))
with open(log, "a") as file: file.write("ended " + " ".join(plan) + "\\n")
"""
FIELDS = ("dp", "tp", "pp", "micro_batch_size", "zero_stage", "sequence_parallel")


def start(folder: Path, url: str, seed: int) -> subprocess.Popen[bytes]:
    """A tune of its own seed, with a budget of four runs."""
    fields = " ".join(f"{{{name}}}" for name in FIELDS)
    program = f"{sys.executable} {folder / 'run.py'} {{result}} {folder / 'plans'} {fields}"
    command = [sys.executable, "-m", "jointopt", "tune", "job.yaml", "--launcher", "command", "--command", program,
               "--budget", "4", "--seed", str(seed), "--storage", url]  # fmt: skip
    log = (folder / f"log-{seed}").open("wb")
    return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def plans(folder: Path, word: str) -> Counter[str]:
    """How often each plan has begun or ended."""
    file = folder / "plans"
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter(line.partition(" ")[2] for line in lines if line.startswith(word))


def main() -> int:
    """Run the tunes; 1 where a plan ended twice, began more often than a killed tune explains, or a tune failed."""
    folder = Path(tempfile.mkdtemp(prefix="together-"))
    url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder / 'runs.db'}"
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    (folder / "job.yaml").write_text(JOB)
    (folder / "run.py").write_text(RUN)
    tunes = [start(folder, url, seed) for seed in range(8)]
    while not (begun := plans(folder, "begun")) and tunes[0].poll() is None:
        time.sleep(0.05)
    while not _has_begun(folder, 0) and tunes[0].poll() is None:
        time.sleep(0.05)
    time.sleep(0.7)  # so that its program has begun
    tunes[0].send_signal(signal.SIGKILL)
    codes = [tune.wait() for tune in tunes]
    begun, ended = plans(folder, "begun"), plans(folder, "ended")
    last_words = {seed: _log(folder, seed).strip().splitlines()[-1:] for seed, code in enumerate(codes) if code}
    print(json.dumps({"codes": codes, "last words": last_words, "runs": sum(begun.values()), "plans": len(begun),
                      "ended twice": [plan for plan, count in ended.items() if count > 1],
                      "begun twice": [plan for plan, count in begun.items() if count > 1],
                      "never ended": [plan for plan in begun if plan not in ended]}, indent=1))  # fmt: skip
    return int(max(ended.values()) > 1 or sum(begun.values()) > len(begun) + 1 or any(codes[1:]))


def _has_begun(folder: Path, seed: int) -> bool:
    """Whether a tune has a run on its way."""
    return "run 1: " in _log(folder, seed)


def _log(folder: Path, seed: int) -> str:
    return (folder / f"log-{seed}").read_text(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
