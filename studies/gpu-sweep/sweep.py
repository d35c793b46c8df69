"""Trains real models on the one GPU of this machine at its default clocks, and keeps every run as a row of a table.

    python studies/gpu-sweep/sweep.py [--minutes 25]

Says first what will run and how long that takes by the physics. A row is written as soon as its run ends, failures too;
the same command goes on where an earlier one was ended, and runs no plan twice. Then it writes the card of the table,
the report of predicted against measured, its figure, and a summary for a README. No clock and no limit is ever set.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from card import Software, software_here, write_card  # type: ignore[import-not-found]  # beside this file
from report import SOURCE, TRIAL, write_report  # type: ignore[import-not-found]

from jointopt.core.errors import DeviceError, InfeasibleError, JointOptError, LauncherError, TableError, UsageError
from jointopt.core.schema import COLUMNS
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.measure.hardware.conditions import MEASURE_S
from jointopt.measure.hardware.gpu_clocks import restore_offer
from jointopt.measure.hardware.host import FoundGpu, found_machine
from jointopt.measure.hardware.meter import Gpus
from jointopt.measure.torchrun import TorchrunLauncher, TorchrunProgram
from jointopt.runs.table import read_table
from jointopt.workflows.campaign.candidates import searched_candidates

HERE = Path(__file__).parent
NAMES = [*COLUMNS, "run_s"]  # of the table: the project's columns, and what a run took with its start
KEY = ("model", "seq_length", "global_batch_size", "micro_batch_size", "recompute", "zero_stage")
SPACE_KEYS = (
    "models", "seq_lengths", "tokens_per_iteration", "micro_batch_sizes", "recompute", "dtype", "runs",
    "warmup_iterations", "iterations", "limit_s",
)  # fmt: skip
START_S = 20.0  # assumed of a run before its first iteration: Python, PyTorch, CUDA, the weights
BUSY = 0.1  # utilisation of a GPU on which something else runs
HOPELESS = 3  # failures in a row that are not for want of memory: something is broken


@dataclass(frozen=True)
class Run:
    """A plan of a job, and how long its run takes by the physics, start included."""

    job: Job
    question: Mapping[str, Any]
    expected_s: float

    @property
    def key(self) -> tuple[str, ...]:
        """As `key_of`."""
        return key_of(self.question)

    @property
    def text(self) -> str:
        """The plan in a few words."""
        q = self.question
        size, mode = q["micro_batch_size"], q["recompute"]
        return f"{q['model']}, {q['seq_length']} tokens, micro-batch {size}, recompute {mode}"


def key_of(row: Mapping[Any, Any]) -> tuple[str, ...]:
    """Columns by which plans of the sweep differ, as text; clocks are the driver's and do not."""
    return tuple(str(int(v) if isinstance(v, float) else v) for v in (row[name] for name in KEY))


def read_space(file: Path) -> dict[str, Any]:
    """The space to run, from a file. Raises UsageError where a key is missing or unknown."""
    try:
        space = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{file} cannot be read as YAML: {' '.join(str(error).split())}.") from error
    wrong = set(space if isinstance(space, dict) else ()) ^ set(SPACE_KEYS)
    if wrong:
        raise UsageError(f"{file}: expected the keys {', '.join(SPACE_KEYS)}; {min(wrong)!r} is missing or unknown.")
    return dict(space)


def jobs(space: Mapping[str, Any], gpu: Gpu) -> Iterator[Job]:
    """One job for each model and sequence length."""
    for (name, shape), length in itertools.product(space["models"].items(), space["seq_lengths"]):
        tokens = space["tokens_per_iteration"]
        if tokens % length:
            raise UsageError(f"tokens_per_iteration: {tokens} tokens are no whole number of sequences of {length}.")
        mapping = {
            "name": f"{name} seq {length}",
            "model": {"name": name, **shape},
            "training": {
                "seq_length": length, "global_batch_size": tokens // length, "dtype": space["dtype"],
                "framework": "torchtitan",
            },
            "cluster": {"gpu": gpu.id, "nodes": 1, "gpus_per_node": 1},
            "search": {"micro_batch_size": space["micro_batch_sizes"], "recompute": space["recompute"]},
            "objectives": ["iteration_time_s"],
        }  # fmt: skip
        yield parse_job(mapping, name, HERE)


def feasible_runs(space: Mapping[str, Any], gpu: Gpu) -> list[Run]:
    """Every plan that fits by the physics, needless recomputation too; what does not fit is named on the terminal."""
    found = []
    program = TorchrunProgram()
    for whole, mode in itertools.product(jobs(space, gpu), space["recompute"]):
        alone: dict[str, Any] = {"recompute": (mode,)}  # so that it is compared with no other
        job = replace(whole, search=replace(whole.search, **alone))
        try:
            plans = searched_candidates(program.narrow_search(job))
        except InfeasibleError as error:
            print(f"left out: recompute {mode}: {error}")
            continue
        for index in np.flatnonzero(plans.log_load <= plans.log_room).tolist():
            iteration_s = float(plans.predicted["iteration_time_s"][index])
            measured_s = max(space["iterations"] * iteration_s, MEASURE_S + iteration_s)
            expected_s = START_S + space["warmup_iterations"] * iteration_s + measured_s
            found.append(Run(whole, plans.question(index), expected_s))
    return found


def balanced(runs: list[Run], most: int) -> list[Run]:
    """At most so many runs, in an order of which every beginning has each pair of values about equally often."""
    left, counts, chosen = list(runs), Counter[tuple[tuple[str, str], ...]](), list[Run]()

    def pairs(run: Run) -> list[tuple[tuple[str, str], ...]]:
        values = [(name, str(run.question[name])) for name in ("model", "seq_length", "micro_batch_size", "recompute")]
        return [*((value,) for value in values), *itertools.combinations(values, 2)]

    while left and len(chosen) < most:
        best = min(left, key=lambda run: sum((2 if len(p) == 1 else 1) * counts[p] for p in pairs(run)))
        left.remove(best)
        chosen.append(best)
        counts.update(pairs(best))
    return chosen


class Table:
    """The measured rows in a file, appended one by one; a last line that a kill cut off is dropped.

    All have the values of ``alike``. Raises TableError for a file of other rows.
    """

    def __init__(self, file: Path, alike: Mapping[str, str]) -> None:
        self.file = file
        if file.exists():
            whole, cut, rest = file.read_text(encoding="utf-8").rpartition("\n")
            if rest:
                print(f"{file}: the last line was cut off and is dropped; its plan runs again.")
                _replace(file, whole + cut)
        if not file.exists() or not file.stat().st_size:
            _replace(file, ",".join(NAMES) + "\n")
        for name, value in alike.items():
            if not (others := self.rows().query(f"{name} != @value")).empty:
                raise TableError(
                    f"{file} holds rows with {name} {others[name].iloc[0]!r}, and these would have {value!r}; give "
                    "another folder with --out."
                )

    def rows(self) -> pd.DataFrame:
        """All rows so far."""
        if self.file.read_text(encoding="utf-8").count("\n") < 2:
            return pd.DataFrame(columns=NAMES)
        table = read_table(self.file)
        if missing := [name for name in KEY if name not in table]:
            raise TableError(f"{self.file} has no column {missing[0]!r}; expected a table that this sweep wrote.")
        return table

    def done(self) -> set[tuple[str, ...]]:
        """Keys of the plans that have a row."""
        return {key_of(row) for row in self.rows().to_dict("records")}

    def add(self, row: Mapping[str, Any]) -> None:
        """One line, on the disk when this returns."""
        text = io.StringIO()
        csv.DictWriter(text, NAMES, lineterminator="\n").writerow({name: _cell(row.get(name)) for name in NAMES})
        with self.file.open("a", encoding="utf-8", newline="") as out:
            out.write(text.getvalue())
            out.flush()
            os.fsync(out.fileno())

    def forget_failed(self) -> None:
        """Rows of runs that failed for another reason than memory go, so that their plans run again."""
        rows = self.rows()
        rows[~rows["status"].isin(["failed", "timeout"])].to_csv(self.file, index=False)


def _replace(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ";".join(str(part) for part in value)
    return "" if value is None or value != value else " ".join(value.split()) if isinstance(value, str) else value


def the_gpu() -> tuple[FoundGpu, Gpu]:
    """The first visible GPU, as the machine and the catalogue know it. Raises DeviceError where energy is not read."""
    machine = found_machine()
    if machine.no_meter or not machine.gpus:
        raise DeviceError(f"This sweep needs one GPU whose energy can be read: {machine.no_meter or 'there is none'}")
    return machine.gpus[0], load_gpu(machine.gpus[0].name)


def idle_gpu() -> dict[str, float]:
    """Readings of the GPU before the first run; of a busy one a line is printed."""
    _, power_w, temperature_c, utilisation, clock_mhz = Gpus().sample(0)
    if utilisation > BUSY:
        print(f"The GPU is busy before the first run ({utilisation:.0%}): what else runs there is measured too.")
    found = {"power_w": power_w, "temperature_c": temperature_c, "utilisation": utilisation, "clock_mhz": clock_mhz}
    return {name: round(value, 2) for name, value in found.items() if value == value}


def measure(runs: list[Run], table: Table, space: Mapping[str, Any], about: Mapping[str, Any], minutes: float) -> None:
    """Runs what the table does not hold yet, while the minutes last."""
    done, began = table.done(), time.monotonic()
    left = [run for run in runs if run.key not in done]
    print(f"{len(runs)} runs, {len(runs) - len(left)} of them done; about {_minutes(left)} min by the physics.")
    logs, failed_in_a_row = table.file.parent / "logs", 0
    for number, run in enumerate(left, len(runs) - len(left) + 1):
        spent_s = time.monotonic() - began
        if spent_s + run.expected_s > 60 * minutes:
            print(f"{minutes:g} min are spent; the same command runs the other {len(runs) - number + 1}.")
            return
        row = _measured(run, space, about, logs)
        table.add(row)
        print(f"{number}/{len(runs)} {run.text}: {result_text(row)} ({row['run_s']:.0f} s)", flush=True)
        failed_in_a_row = failed_in_a_row + 1 if row["status"] in ("failed", "timeout") else 0
        if failed_in_a_row == HOPELESS:
            raise LauncherError(
                f"{HOPELESS} runs in a row failed, the last one: {row['notes']}. Logs are in {logs}; when it "
                "is mended, go on with --retry-failed."
            )


def _measured(run: Run, space: Mapping[str, Any], about: Mapping[str, Any], logs: Path) -> dict[str, Any]:
    launcher = TorchrunLauncher(
        limit_s=space["limit_s"], iterations=space["iterations"], warmup_iterations=space["warmup_iterations"],
        logs=logs / run.job.name.replace(" ", "-"), default_clocks=True,
    )  # fmt: skip
    started = time.monotonic()
    found = launcher.run(run.job, run.question)
    return {**run.question, **about, **found, "run_s": round(time.monotonic() - started, 1)}


def result_text(row: Mapping[str, Any]) -> str:
    """The results of a run, or why it has none, in a line."""
    if row["status"] != "ok":
        return f"{row['status']}, {row['notes']}"
    energy_j = row["energy_j"]
    energy = f"{energy_j:.1f} J, {row['avg_power_w']:.0f} W" if energy_j == energy_j else row["notes"]
    return f"{row['iteration_time_s']:.4f} s, {energy}, {row['peak_memory_gib']:.1f} GiB"


def _minutes(runs: list[Run]) -> int:
    return round(sum(run.expected_s for run in runs) / 60)


def checked_software(trial: bool, name: str) -> Software:
    """The software that PyTorch finds. Raises DeviceError where that is not the GPU of that name, whose energy is read.

    Without a GPU it would train on the processor; on a part of a GPU (MIG) the energy would be that of the whole.
    """
    found = software_here()
    if trial:
        print("--trial: trained on the processor where PyTorch sees no GPU. The figures are worth nothing.")
    elif not found.gpu:
        raise DeviceError(
            f"PyTorch {found.torch} sees no GPU; install a build with CUDA (https://pytorch.org), or try the command "
            "without one: --trial."
        )
    elif found.gpu != name:
        raise DeviceError(
            f"PyTorch trains on {found.gpu!r} and the energy is that of {name!r}; choose one whole GPU by "
            "CUDA_VISIBLE_DEVICES."
        )
    return found


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", type=Path, default=HERE / "sweep.yaml", help="what to run (default: sweep.yaml)")
    parser.add_argument("--out", type=Path, help="folder of the results (default: beside this file, named by the GPU)")
    parser.add_argument("--minutes", type=float, default=25.0, help="start no run that would end after them (25)")
    parser.add_argument(
        "--plan", action="store_true", help="say what would run on --gpu, and for how long; run nothing"
    )
    parser.add_argument("--gpu", default="h100-sxm5-80gb", help="catalogue id, with --plan (h100-sxm5-80gb)")
    parser.add_argument("--retry-failed", action="store_true", help="run failed plans again (out of memory stays)")
    parser.add_argument("--trial", action="store_true", help="try the command where PyTorch sees no GPU")
    return parser.parse_args()


def show_plan(runs: list[Run]) -> None:
    """Print the runs with their expected seconds."""
    for number, run in enumerate(runs, 1):
        print(f"{number:3d} {run.text}: {run.expected_s:.0f} s")
    print(f"{len(runs)} runs, about {_minutes(runs)} min, of which {START_S:.0f} s a run are assumed for its start.")


def main() -> None:
    """Run the sweep as the options state."""
    options = arguments()
    space = read_space(options.sweep)
    if options.plan:
        show_plan(balanced(feasible_runs(space, load_gpu(options.gpu)), space["runs"]))
        return
    found, gpu = the_gpu()
    software = checked_software(options.trial, found.name)
    if offer := restore_offer():
        print(offer)
    idle = idle_gpu()
    runs = balanced(feasible_runs(space, gpu), space["runs"])
    source = TRIAL if options.trial else SOURCE
    folder = options.out or HERE / (f"trial-{gpu.id}" if options.trial else gpu.id)
    table = Table(folder / "runs.csv", {"source": source, "gpu": gpu.id})
    if options.retry_failed:
        table.forget_failed()
    measure(runs, table, space, {"source": source, "power_limit_w": found.power_limit_w}, options.minutes)
    write_card(folder / "card.yaml", table.rows(), found, gpu, software, space, idle)
    print(write_report(table.rows(), folder))


if __name__ == "__main__":
    try:
        main()
    except JointOptError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit("Interrupted: every run that ended is in the table, and the same command goes on.")
