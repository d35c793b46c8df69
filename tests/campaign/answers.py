"""Random jobs, and what must hold of every verb's answer to each: it never says more than the tool itself knows.

``python tests/campaign/answers.py 300 [FIRST]`` prints the `faults` of each job, and how many jobs have feasible plans,
are out of memory, and have faults.
"""

from __future__ import annotations

import html
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from jointopt.core.errors import ExportError, InfeasibleError, JointOptError, UsageError
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.plans.text import PLAN_KEYS
from jointopt.report.results import Proposal
from jointopt.search.local_search import energy_saving
from jointopt.search.pareto import objectives
from jointopt.surrogate.memory import FEASIBLE
from jointopt.workflows.check import check
from jointopt.workflows.explain import explain
from jointopt.workflows.export import export
from jointopt.workflows.propose import propose
from jointopt.workflows.scale import scale

MODELS = (
    "opt-1.3b", "opt-30b", "llama-2-13b", "llama-3-8b", "llama-3-70b", "llama-3-405b", "gpt-neox-20b", "bloom-176b",
    "gpt3-175b", "qwen2-72b", "mixtral-8x7b", "olmoe-1b-7b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v2",
)  # fmt: skip
GPUS = (
    ("v100-sxm2-32gb", 8), ("a100-sxm4-40gb", 8), ("a100-sxm4-80gb", 8), ("h100-sxm5-80gb", 8), ("h200-sxm-141gb", 8),
    ("b200-sxm-180gb", 8), ("gb200", 4), ("mi300x", 8), ("gh200-96gb", 4), ("rtx-4090", 8),
)  # fmt: skip
FRAMEWORKS = ("generic", "megatron-lm", "nemo", "torchtitan", "deepspeed", "nanotron", "fsdp", "megatron-bridge")
TARGETS = {"megatron-lm": "megatron", "torchtitan": "torchtitan", "nanotron": "nanotron", "deepspeed": "deepspeed"}
POINTS = 0.005  # by how much two ways to the saving of the joint search may differ
SAME = 1e-3  # relative: what clocks that hardly matter move


def random_job(seed: int) -> Job:
    """A job that someone might have: a model, GPUs, a framework and a batch, from the number alone."""
    draw = random.Random(seed)
    while True:
        gpu, per_node = draw.choice(GPUS)
        sequence = draw.choice((2048, 4096, 8192))
        gpus = per_node * 2 ** draw.randrange(0, 7)
        document = {
            "model": draw.choice(MODELS),
            "training": {
                "seq_length": sequence, "global_batch_size": max(gpus, draw.choice((64, 128, 256, 512, 1024))),
                "framework": draw.choice(FRAMEWORKS), "run_tokens": 10**11,
            },
            "cluster": {"gpu": gpu, "nodes": gpus // per_node, "gpus_per_node": per_node},
        }  # fmt: skip
        try:
            return parse_job(document, f"random-{seed}", Path())
        except UsageError:  # a framework that has no words for the model, or a format that the GPU has not
            continue


def faults(job: Job) -> Iterator[str]:
    """What answers to the job say that the tool itself knows to be otherwise."""
    try:
        found = propose(job)
    except InfeasibleError:
        yield from _of_an_infeasible_job(job)
        return
    yield from _of_a_front(job, found)
    yield from _of_the_two_steps(job, found)
    yield from _of_doubts(found)
    yield from _of_clusters(job, expected=True)


def _of_a_front(job: Job, found: Proposal) -> Iterator[str]:
    document, front = found.to_dict(), found.front
    if not document["feasible"] or not all(entry["feasible"] for entry in document["front"]):
        yield "a front of feasible plans is called infeasible"
    time_s, energy_j = objectives(front)
    if (time_s[1:] < time_s[:-1]).any() or (energy_j[1:] > energy_j[:-1]).any():
        yield "the front is not sorted"
    for row in {0, len(time_s) // 2, len(time_s) - 1}:
        plan = {key: value for key, value in document["front"][row].items() if key in PLAN_KEYS}
        explained = explain(job, plan)
        if not explained.feasible or explained.fit_probability < FEASIBLE:
            yield f"row {row + 1} is proposed, and explain gives it {explained.fit_probability:.2f}"
        if abs(explained.iteration_time_s / time_s[row] - 1.0) > SAME:
            yield f"row {row + 1} takes another time by explain"
    fastest = [layout.plans[0]["iteration_time_s"] for layout in found.best_layouts]
    if fastest != sorted(fastest) or [layout.rank for layout in found.best_layouts] != sorted(
        layout.rank for layout in found.best_layouts
    ):
        yield "layouts are not in the order of their fastest plan"
    reference = float(found.reference["iteration_time_s"][0])
    if abs(reference / time_s[0] - 1.0) > SAME and not found.reference_breaks:
        yield f"the reference takes {reference:.4g} s, the fastest plan {time_s[0]:.4g} s"
    if any(reference > one * (1.0 + SAME) for one in fastest):
        yield "a layout is faster than the reference"
    target = TARGETS.get(job.training.framework.name)
    if target:
        try:
            export(job, document["front"][0], target)
        except ExportError:  # what the target has no words for
            pass
        except InfeasibleError:
            yield "export refuses the first plan"


def _of_the_two_steps(job: Job, found: Proposal) -> Iterator[str]:
    if found.joint is None:
        return
    document = found.joint.document()
    if abs(document["two_step_front"][0]["iteration_time_s"] / found.front["iteration_time_s"][0] - 1.0) > SAME:
        yield "the two steps do not begin at row 1"
    layout = {name: (found.to_dict()["reference"] or {}).get(name) for name in LAYOUT_COLUMNS}
    pinned = replace(job, search=replace(job.search, **{n: (v,) for n, v in layout.items() if v is not None}))
    saved = energy_saving(found.front, propose(pinned).front)
    if saved is not None and abs(saved.share - document["largest_energy_saving"]) > POINTS:
        yield f"saves {document['largest_energy_saving']:.3f}, against its fastest layout pinned {saved.share:.3f}"
    if not document["largest_energy_saving_low"] <= document["largest_energy_saving"] <= (
        document["largest_energy_saving_high"]
    ):  # fmt: skip
        yield "the saving is outside of its interval"


def _of_doubts(found: Proposal) -> Iterator[str]:
    text, page = (_plain(words) for words in (found.text(show_all=True), str(found.report().page._repr_html_())))
    for doubt in found.to_dict()["doubts"]:
        words = _plain(str(doubt).rsplit(" (", 1)[0])
        yield from (f"{place} lacks the doubt {words!r}" for place, all_ in (("the text", text), ("the page", page))
                    if words not in all_)  # fmt: skip


def _plain(text: str) -> str:
    """Text without line breaks, indents and the escapes of HTML."""
    return " ".join(html.unescape(html.unescape(text)).split())  # a page in a frame is escaped twice


def _of_clusters(job: Job, *, expected: bool) -> Iterator[str]:
    try:
        found = scale(job, deadline_days=1e6)
    except InfeasibleError:
        if expected:
            yield "scale refuses the cluster"
        return
    (size,) = found.to_dict()["sizes"]
    if size["feasible"] != expected or (found.pick is not None) != expected or bool(found.front) != expected:
        yield f"scale calls the cluster feasible: {size['feasible']}, pick {found.pick is not None}"


def _of_an_infeasible_job(job: Job) -> Iterator[str]:
    yield from _of_clusters(job, expected=False)
    try:
        found = propose(job, allow_tight=True)
    except InfeasibleError:
        return
    document = found.to_dict()
    if document["feasible"] or any(entry["feasible"] for entry in document["front"]):
        yield "plans that are not expected to fit are called feasible"
    if "NOT FEASIBLE" not in found.text() or "Not feasible" not in str(found.report().page._repr_html_()):
        yield "text or page do not say that nothing fits"
    target = TARGETS.get(job.training.framework.name)
    if target and _is_written(job, document["front"][0], target):
        yield "export writes a plan that is not expected to fit"


def _is_written(job: Job, entry: Mapping[str, Any], target: str) -> bool:
    try:
        export(job, entry, target)
    except JointOptError:
        return False
    return True


def is_feasible(job: Job) -> bool:
    """Whether any plan of the job is."""
    try:
        return check(job).fitting > 0
    except InfeasibleError:
        return False


def main() -> None:
    """Prints the faults of as many random jobs as are asked for."""
    logging.disable(logging.CRITICAL)
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    counts = Counter[str]()
    for seed in range(first, first + count):
        job = random_job(seed)
        found = list(faults(job))
        counts.update(["with faults"] * bool(found) + ["feasible" if is_feasible(job) else "out of memory"])
        of = f"{job.model.name}, {job.cluster.num_gpus} x {job.cluster.gpu.id}, {job.training.framework.name}"
        for fault in found:
            print(f"{seed} ({of}): {fault}", flush=True)
    print(f"{count} random jobs: {dict(counts)}.")


if __name__ == "__main__":
    main()
