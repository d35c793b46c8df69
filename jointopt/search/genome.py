"""From genes to plans: one integer per layout column, repaired to a layout that exists, and their variation.

A gene is a position among the sorted distinct values of its column, so one step is one doubling of a degree. Repair
takes, column by column in order of `PRIORITY`, the nearest value that some feasible layout still has. dp follows from
the other degrees: it is never bred, only read back.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, POWER_LIMIT, Bools, Columns, Floats, Ints
from jointopt.search.problem import Problem

_FIRST = ("tp", "pp", "cp", "ep", "dp", "micro_batch_size", "recompute", "zero_stage", "vpp", "sequence_parallel")
PRIORITY = tuple(dict.fromkeys((*_FIRST, *LAYOUT_COLUMNS)))
DERIVED = PRIORITY.index("dp")
CLOCK, SLACK = -2, -1  # behind the genes of the layout
SLACK_LEVELS = 11  # slack is searched in steps of 0.1: finer ones decode to the same clocks
RESET_SHARE = 0.2  # of layout mutations: any value instead of a neighbouring one
BLOCK_SHARE = 0.5  # of crossovers: a layout is inherited whole, only clock and slack mix


@dataclass(frozen=True)
class Genome:
    """The feasible layouts as a sorted table of genes; built once per search."""

    problem: Problem
    sizes: Ints  # (genes,) number of values per gene
    layout_genes: Ints  # (num_layouts, genes - 2), in the problem's order
    order: Ints  # layouts in lexicographic order of their genes
    prefixes: tuple[Ints, ...]  # per column, the codes of all genes up to it, in that order

    @classmethod
    def of(cls, problem: Problem) -> Genome:
        """The genome of a problem."""
        none = np.zeros(problem.num_layouts, np.int64)
        columns = [problem.layouts.get(name, none) for name in PRIORITY]
        columns += [problem.layouts[name] for name in (POWER_LIMIT,) if name in problem.layouts]
        coded = [np.unique(values, return_inverse=True) for values in columns]
        genes = np.stack([inverse for _, inverse in coded], axis=1).astype(np.int64)
        slack_levels = 1 if problem.stage_clocks is None else SLACK_LEVELS
        sizes = np.array([len(values) for values, _ in coded] + [problem.num_clocks, slack_levels])
        order = np.lexsort(genes.T[::-1]).astype(np.int64)
        code, prefixes = np.zeros(len(genes), dtype=np.int64), []
        for column in range(len(columns)):
            code = code * sizes[column] + genes[order, column]
            prefixes.append(code)
        return cls(problem, sizes, genes, order, tuple(prefixes))

    def repair(self, genes: Ints) -> Ints:
        """The layout (n,) nearest to each row of genes, column by column in order of priority."""
        code = np.zeros(len(genes), dtype=np.int64)
        position = code
        for column, prefix in enumerate(self.prefixes):
            values = np.arange(self.sizes[column])
            candidates = code[:, None] * self.sizes[column] + values
            position_of = np.searchsorted(prefix, candidates).clip(0, len(prefix) - 1)
            gap = np.abs(values - genes[:, column, None]).astype(float)
            nearest = np.where(prefix[position_of] == candidates, gap, np.inf).argmin(axis=1)
            rows = np.arange(len(genes))
            code, position = candidates[rows, nearest], position_of[rows, nearest]
        return self.order[position]

    def decode(self, genes: Ints) -> tuple[Ints, Ints, Floats]:
        """Layout, clock index and slack of each row; without a pipeline there is no slack to use."""
        layout = self.repair(genes)
        single = self.problem.layouts["pp"][layout] == 1
        slack = np.where(single, 0.0, genes[:, SLACK] / max(1, self.sizes[SLACK] - 1))
        return layout, genes[:, CLOCK].copy(), slack

    def encode(self, plans: Columns) -> Ints:
        """The canonical genes (n, genes) of plans."""
        slack = np.nan_to_num(plans["slack"]) * (self.sizes[SLACK] - 1)
        layout = self.layout_genes[plans["layout_index"]]
        return np.column_stack([layout, plans["clock_index"], slack.round().astype(np.int64)])

    def random(self, count: int, rng: np.random.Generator) -> Ints:
        """Genes of random layouts at random clocks; layouts are drawn from those that exist."""
        layout = self.layout_genes[rng.integers(0, len(self.layout_genes), count)]
        return np.column_stack([layout, rng.integers(0, self.sizes[-2:], (count, 2))])

    def cross(self, mothers: Ints, fathers: Ints, rng: np.random.Generator) -> Ints:
        """Children that take each gene from either parent, the clock anywhere between the two."""
        from_father = rng.random(mothers.shape) < 0.5
        whole = rng.random(len(mothers)) < BLOCK_SHARE
        from_father[whole, :CLOCK] = False
        children = np.where(from_father, fathers, mothers)
        between = mothers[:, CLOCK] + rng.random(len(mothers)) * (fathers[:, CLOCK] - mothers[:, CLOCK])
        children[:, CLOCK] = np.where(rng.random(len(mothers)) < 0.5, between.round(), children[:, CLOCK])
        return children

    def mutate(self, genes: Ints, rng: np.random.Generator, strength: float = 1.0) -> Ints:
        """On average ``strength`` genes per row move, mostly by one step."""
        variable = self.sizes > 1
        variable[DERIVED] = False
        chosen = variable & (rng.random(genes.shape) < strength / max(1, variable.sum()))
        return np.where(chosen, self._moved(genes, rng), genes)

    def _moved(self, genes: Ints, rng: np.random.Generator) -> Ints:
        reach = np.ones(len(self.sizes))
        reach[CLOCK] = max(1.0, self.sizes[CLOCK] / 16.0)
        step = np.ceil(rng.exponential(reach, genes.shape)).astype(np.int64)
        step[:, :CLOCK] = 1
        moved = np.clip(genes + step * rng.choice((-1, 1), genes.shape), 0, self.sizes - 1)
        reset: Bools = rng.random(genes.shape) < RESET_SHARE
        return np.where(reset, rng.integers(0, self.sizes, genes.shape), moved)

    def neighbours(self, genes: Ints, *, paired: bool = False) -> Ints:
        """Rows with one layout gene one step up or down; ``paired``: with two of them moved at once."""
        bred = [g for g in range(len(self.sizes) - 2) if self.sizes[g] > 1 and g != DERIVED]
        moves = [{g: a} for g in bred for a in (-1, 1)]
        if paired:
            signs = list(itertools.product((-1, 1), repeat=2))
            moves = [{g: a, h: b} for g, h in itertools.combinations(bred, 2) for a, b in signs]
        offsets = np.zeros((len(moves), len(self.sizes)), dtype=np.int64)
        for row, move in enumerate(moves):
            offsets[row, list(move)] = list(move.values())
        steps = genes[:, None, :] + offsets[None, :, :]
        inside = ((steps >= 0) & (steps < self.sizes)).all(axis=2)
        return np.asarray(steps[inside], dtype=np.int64)
