"""The answer of ``check``: what a job stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.core.facts import Assumption
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_mapping
from jointopt.report.documents import Result, pick
from jointopt.report.plans import basis_lines
from jointopt.report.table import blocks_text, paragraphs

_BILLION = 1e9


@dataclass(frozen=True)
class Checked(Result):
    """A job, how many layouts it has and how many may fit in memory, and what was assumed for it."""

    rows = "checked"
    job: Job
    considered: int
    layouts: int
    fitting: int
    dropped: Mapping[str, int]  # reason -> layouts
    assumed: tuple[Assumption, ...]

    def document(self) -> dict[str, Any]:
        """The job as its file would say it, and the counts."""
        counts = pick(self, "job=job.name considered layouts fitting")
        return counts | pick(self, "dropped assumed") | {"job_file": job_mapping(self.job), "checked": [counts]}

    def text(self) -> str:
        """The model, the batch, the cluster and the layouts, a sentence each, and what is assumed."""
        model, training, cluster = self.job.model, self.job.training, self.job.cluster
        sizes = f"{model.parameters / _BILLION:,.4g} billion parameters"
        if model.is_moe:
            sizes += f", {model.active_parameters / _BILLION:,.4g} of them active"
        if training.frozen:
            sizes += f", frozen beside adapters of rank {training.lora_dim} (LoRA) of {', '.join(training.adapted)}"
        tokens = training.global_batch_size * training.seq_length
        lines = [
            f"{self.job.name}: {model.name}, {sizes}.",
            f"{training.global_batch_size:,} sequences of {training.seq_length:,} tokens ({tokens:,} in all) per "
            f"iteration, in {training.precision_words}, {training.attention}, {training.software}.",
            f"{cluster.nodes:,} x {cluster.gpus_per_node} {cluster.gpu.id} ({cluster.num_gpus:,} GPUs of "
            f"{cluster.gpu.memory_gib:g} GiB), {cluster.intra_node_gbytes_per_s:g} GB/s in a node"
            + (f", {cluster.inter_node_gbytes_per_s:g} GB/s between nodes." if cluster.nodes > 1 else "."),
            f"{self.layouts:,} layouts keep the rules, {self.fitting:,} of them may fit in memory; "
            f"{len(self.job.search.clock_mhz)} clocks; objectives {' and '.join(self.job.objectives)}.",
        ]
        return blocks_text(paragraphs(lines), basis_lines(self.assumed, {}))
