"""How far the process counts, after a few runs of one source, for groups of which no run is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import Bools, Floats, Ints
from jointopt.surrogate.kernel import Runs, kinship
from jointopt.surrogate.own_mix import sure_part

WEIGHTS = (1.0, 0.75, 0.5, 0.25, 0.0)  # that cards may have: earlier versions chose among these
# Draws of as many groups, with replacement, and the share of them in which the process must be no worse than the
# physics to count in whole. A part chosen by the median alone was worse than the physics once it was judged on groups
# that had no say in it (DLPerf 8.3 %, physics 7.4): the whole process and none of it are as good as each other there,
# and a group more or less turned the choice round.
DRAWS, SURE = 500, 0.8
# Groups are left out one by one, of more than so many some together. In fifths the others are fewer than they will be,
# and the process seems worse than it is (docs/appendix/surrogate-experiments.md).
MOST_FOLDS = 30
_SIZES = ("log2_hidden", "log2_layers", "log2_seq_length", "log2_gpus")
LEAST_GROUPS = 5  # of three of vTrain's, 6 of 16 draws chose the physics, 15 % off where the process is 4 %


@dataclass(frozen=True)
class NewGroups:
    """Judged on groups of the few runs of ``sources`` that were left out: ``weight`` of the process, the rest physics.

    ``wider``: conformal factor on half-widths there, 1 or more. ``errors``: median errors on what was left out, of
    ``physics``, of the whole ``process``, and of ``time`` as it is now. ``judged``: groups that were left out.
    ``as_sure``: that weight times `sure_part`, by how sure the process is of each plan.
    """

    sources: tuple[str, ...]
    weight: float = 1.0
    wider: float = 1.0
    errors: Mapping[str, float] = field(default_factory=dict)
    judged: int = LEAST_GROUPS
    as_sure: bool = False

    def teaches_of(self, source: str) -> bool:
        """Whether the runs say something of that source."""
        return bool((kinship(np.array(self.sources), np.array([source])) > 0.0).any())

    @property
    def in_whole(self) -> bool:
        """Whether the process counts there as it does where runs are known."""
        return self.weight == 1.0 and not self.as_sure

    def parts(self, runs: Runs, known: Runs, mean: Floats, half_width: Floats) -> tuple[Floats, Floats]:
        """(The part that counts of the process's mean, factor on its half-widths), (n,) each, of ``runs``.

        ``mean``, ``half_width`` (n,): those of the process. All of it, and 1, where a run of the group is ``known``.
        """
        if self.in_whole and self.wider == 1.0:
            return np.ones(len(runs)), np.ones(len(runs))
        known_group = _of_known_group(runs, known)
        part = self.weight * (sure_part(mean, half_width) if self.as_sure else np.ones(len(runs)))
        return np.where(known_group, 1.0, part), np.where(known_group, 1.0, self.wider)

    @property
    def sentence(self) -> str:
        """Words on a plan of whose group no run is known, where the process counts in part."""
        unknown = "no run of this model with this batch, sequence length and number of GPUs is known"
        part = f"process counted by {self.weight:g}"
        part = "process counted as far as it is sure of this plan" if self.as_sure else part
        part = part if self.weight else "process not counted, the physics alone predicts"
        whole, left = (f"{100.0 * self.errors[name]:.1f} %" for name in ("process", "time"))
        return f"Own runs: {part}, since {unknown} (of such groups left out {left} off, by the whole of it {whole})."

    def to_text(self) -> str:
        """A line: the weight, and median errors on what was left out with the whole process and with that of it."""
        e, origin = {name: f"{100.0 * error:.1f}" for name, error in self.errors.items()}, Source.parse(self.sources[0])
        gain = f"{e['process']} -> {e['time']} % on held-out groups (physics {e['physics']} %)"
        remark = (
            ", which the physics alone predicts" * (not self.weight) + ", as far as it is sure of each" * self.as_sure
        )
        remark += f" (fewer than {LEAST_GROUPS} were judged: none is chosen)" * (self.judged < LEAST_GROUPS)
        return f"{origin.origin}: process {self.weight:g} for groups without runs{remark}: {gain}"


def _of_known_group(runs: Runs, known: Runs) -> Bools:
    """Whether a run of the group of each of ``runs`` is among those ``known``, (n,).

    By sizes of model, batch and cluster, since a model has other names in other tables, or none.
    """
    groups = set(map(tuple, _sizes(known).tolist()))
    return np.fromiter((tuple(sizes) in groups for sizes in _sizes(runs).tolist()), np.bool_, len(runs))


def size_groups(runs: Runs) -> Ints:
    """Numbers (n,) of the groups of ``runs``: those of one number agree in sizes, by which a group is known again."""
    return np.unique(_sizes(runs), axis=0, return_inverse=True)[1].reshape(-1)


def _sizes(runs: Runs) -> Floats:
    """Hidden size, layers, sequence length, GPUs and batch (n, 5), as rounded logarithms."""
    batch = runs.matrix(("log2_micro_batches", "log2_micro_batch_size", "log2_dp")).sum(axis=1)
    return np.column_stack([runs.matrix(_SIZES), batch]).round(4) + 0.0  # no negative zero
