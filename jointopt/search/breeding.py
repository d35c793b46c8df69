"""New plans from good ones: children of parents, local moves around a front, and never a plan a second time.

Plans are bred as genes, whole numbers that are repaired to a layout that exists.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jointopt.core.schema import DEGREES, LAYOUT_COLUMNS, POWER_LIMIT, Bools, Columns, Floats, Ints
from jointopt.search.pareto import (
    OBJECTIVES,
    evenly_spaced,
    farthest_rows,
    front_order,
    non_dominated,
    objectives,
    stacked,
    take,
)
from jointopt.search.problem import Problem

# Genes of a layout in the order of `Genome.repair`: each keeps its value as far as earlier ones allow.
_FIRST = (*DEGREES[1:], "ep", DEGREES[0], "micro_batch_size", "recompute", "zero_stage", "vpp", "sequence_parallel")
PRIORITY = tuple(dict.fromkeys((*_FIRST, *LAYOUT_COLUMNS)))
DERIVED = PRIORITY.index("dp")  # which the other degrees decide: it is not varied
CLOCK, SLACK = -2, -1  # behind the genes of the layout
SLACK_LEVELS = 11  # slack is searched in steps of 0.1: finer ones decode to the same clocks
RESET_SHARE = 0.2  # of layout mutations: any value instead of a neighbouring one
BLOCK_SHARE = 0.5  # of crossovers: a layout is inherited whole, only clock and slack mix


@dataclass(frozen=True)
class Genome:
    """The feasible layouts as a sorted table of genes; built once per search.

    The genes of a plan are a row of whole numbers: one per layout column, then its clock index and its step of slack.
    """

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
        """The layout (n,) nearest to each row of genes (n, genes), gene by gene in the order of `PRIORITY`."""
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
        """Layout, clock index and slack, (n,) each, of each row of genes; without a pipeline slack is 0."""
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
        """Children (n, genes) with each gene of either parent, and half of them a clock between those of both."""
        from_father = rng.random(mothers.shape) < 0.5
        whole = rng.random(len(mothers)) < BLOCK_SHARE
        from_father[whole, :CLOCK] = False
        children = np.where(from_father, fathers, mothers)
        between = mothers[:, CLOCK] + rng.random(len(mothers)) * (fathers[:, CLOCK] - mothers[:, CLOCK])
        children[:, CLOCK] = np.where(rng.random(len(mothers)) < 0.5, between.round(), children[:, CLOCK])
        return children

    def mutate(self, genes: Ints, rng: np.random.Generator, strength: float = 1.0) -> Ints:
        """The genes, of which on average ``strength`` per row are moved, mostly by one step."""
        variable = self.sizes > 1
        variable[DERIVED] = False
        chosen = variable & (rng.random(genes.shape) < strength / max(1, variable.sum()))
        reach = np.ones(len(self.sizes))
        reach[CLOCK] = max(1.0, self.sizes[CLOCK] / 16.0)
        step = np.ceil(rng.exponential(reach, genes.shape)).astype(np.int64)
        step[:, :CLOCK] = 1
        moved = np.clip(genes + step * rng.choice((-1, 1), genes.shape), 0, self.sizes - 1)
        reset = rng.random(genes.shape) < RESET_SHARE
        return np.where(chosen, np.where(reset, rng.integers(0, self.sizes, genes.shape), moved), genes)

    def neighbours(self, genes: Ints, *, paired: bool = False) -> Ints:
        """Rows with one layout gene of ``genes`` moved one step; ``paired``: with two genes moved at once."""
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


# New plans from good ones: which plans to breed from, their children, and local moves.


TRIALS = 1000  # of a search that is given no number of them
POPULATION = 40  # parents, and children of a generation
FRESH_SHARE = 0.04  # of a generation: random newcomers, so that no layout is out of reach
RETRIES = 12  # of children that decode to a plan already seen, each with stronger mutation
LOCAL_AFTER = 0.3  # of a search: from here on half of the new plans are local moves
FRONT_AFTER = 0.6  # of a search: from here on these start from the front
PROFILE_STEPS = np.array([(c, s) for c in (-2, -1, 0, 1, 2) for s in (-1, 0, 1) if (c, s) != (0, 0)])
CLIMBERS = 48  # of the best combinations of tp, pp and cp, each with a local search of its own
COMBINATION = np.array([1, 1_000, 1_000_000])  # one number per tp, pp and cp, the first genes


@dataclass
class Seen:
    """Plans that are not to be evaluated again, told apart by layout and stage clocks."""

    keys: set[bytes] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)  # layouts that are not to be evaluated at any clock

    def add(self, layout: Ints, clocks: Floats) -> Ints:
        """Marks these plans; returns the indices of those not seen before, the first of equal ones."""
        fresh = []
        for index, (key, number) in enumerate(zip(_keys(layout, clocks), layout.tolist(), strict=True)):
            if key not in self.keys and number not in self.closed:
                self.keys.add(key)
                fresh.append(index)
        return np.array(fresh, dtype=np.int64)

    def lacks(self, layout: Ints, clocks: Floats) -> Bools:
        """True where a plan was not seen before; marks nothing."""
        new = np.array([key not in self.keys for key in _keys(layout, clocks)], dtype=bool)
        return new & ~np.isin(layout, list(self.closed))


def _keys(layout: Ints, clocks: Floats) -> list[bytes]:
    """One key per plan: the bytes of its layout (n,) and stage clocks (n, S)."""
    rows = np.ascontiguousarray(np.column_stack([layout, np.nan_to_num(clocks)]))
    return [row.tobytes() for row in rows]


def elite(plans: Columns, size: int, goals: Sequence[str] = OBJECTIVES) -> Ints:
    """Rows of the ``size`` best plans: front after front of the feasible ones, then the least infeasible.

    Of the last front, of which not all fit, plans spread over it are taken, the best in each goal among them.
    """
    values, of_two = stacked(plans, goals), len(goals) == 2
    left = np.flatnonzero(plans["violation"] <= 0.0)
    chosen: list[Ints] = []
    while size > 0 and len(left):
        front = left[front_order(*values[left].T) if of_two else non_dominated(values[left])]
        if not len(front):  # what is left has no finite objectives
            break
        chosen.append(front[evenly_spaced(take(plans, front), size) if of_two else farthest_rows(values[front], size)])
        size, left = size - len(chosen[-1]), np.setdiff1d(left, front)
    broken = np.flatnonzero(plans["violation"] > 0.0)
    nearest = broken[np.argsort(plans["violation"][broken], kind="stable")]
    return np.concatenate([*chosen, nearest[:size]]).astype(np.int64)


def starting_genes(genome: Genome, size: int, start: Columns | None, rng: np.random.Generator) -> Ints:
    """``size`` genes to begin with: points of the ``start`` front, these with all slack used, and random ones."""
    if start is None or not len(start["slack"]):
        return genome.random(size, rng)
    given = genome.encode(take(start, evenly_spaced(start, max(2, size // 3))))
    relaxed = given.copy()
    relaxed[:, SLACK] = genome.sizes[SLACK] - 1
    chosen = np.concatenate([given, relaxed])[:size]
    return np.concatenate([chosen, genome.random(size - len(chosen), rng)])


def breed(genome: Genome, parents: Columns, size: int, rng: np.random.Generator) -> Ints:
    """Genes of ``size`` children: tournament, crossover, mutation, and a few newcomers."""
    genes = genome.encode(parents)
    values, broken = stacked(parents, genome.problem.goals), np.maximum(parents["violation"], 0.0)
    chosen = []
    for _ in range(2):  # the better of two parents: less violation, then domination, else the first
        one, two = rng.choice(len(values), (2, size))
        better = (values[two] <= values[one]).all(axis=1)
        prefer_two = (broken[two] < broken[one]) | ((broken[two] == broken[one]) & better)
        chosen.append(genes[np.where(prefer_two, two, one)])
    mothers, fathers = chosen
    children = genome.mutate(genome.cross(mothers, fathers, rng), rng)
    fresh = rng.random(size) < FRESH_SHARE
    children[fresh] = genome.random(int(fresh.sum()), rng)
    return children


def mix_in_local_moves(
    genome: Genome, plans: Columns, front: Columns, seen: Seen, genes: Ints, share_done: float,
    rng: np.random.Generator,
) -> Ints:  # fmt: skip
    """``genes``, half of them replaced by local moves once the ``share_done`` of a search has passed `LOCAL_AFTER`.

    Until `FRONT_AFTER` moves begin at the best plan of every combination of tp, pp and cp among the ``plans``, because
    variation seldom leads from one combination to another; then at the ``front``.
    """
    if share_done < LOCAL_AFTER:
        return genes
    climbing = share_done < FRONT_AFTER
    around = best_of_combinations(genome, plans) if climbing else front
    moves = local_moves(genome, around, seen, len(genes) // 2, rng, clocks=not climbing)
    return np.concatenate([moves, genes[: len(genes) - len(moves)]])


def local_moves(
    genome: Genome, around: Columns, seen: Seen, size: int, rng: np.random.Generator, *, clocks: bool
) -> Ints:
    """Genes of at most ``size`` unseen plans that differ from a plan ``around`` in one gene of the layout.

    With ``clocks`` half of them keep the layout, and have clock and share of slack a step or two away.
    """
    own = genome.encode(around)
    layouts = _unseen_moves(genome, genome.neighbours(own), seen, rng)
    profiles = layouts[:0]
    if clocks:
        moved = np.repeat(own, len(PROFILE_STEPS), axis=0)
        profile = moved[:, [CLOCK, SLACK]] + np.tile(PROFILE_STEPS, (len(own), 1))
        moved[:, [CLOCK, SLACK]] = profile
        inside = ((profile >= 0) & (profile < genome.sizes[[CLOCK, SLACK]])).all(axis=1)
        profiles = _unseen_moves(genome, moved[inside], seen, rng)
    share = max(size - len(profiles), size // 2 if clocks else size)
    chosen = layouts[:share]
    return np.concatenate([profiles[: size - len(chosen)], chosen])


def _unseen_moves(genome: Genome, genes: Ints, seen: Seen, rng: np.random.Generator) -> Ints:
    """The genes whose plans were not seen before, each once, in random order."""
    layout, clock, slack = genome.decode(genes)
    fresh = genes[seen.lacks(layout, genome.problem.decode_clocks(layout, clock, slack))]
    return np.asarray(rng.permutation(np.unique(fresh, axis=0)), dtype=np.int64)


def best_of_combinations(genome: Genome, plans: Columns) -> Columns:
    """The feasible plan of least time x energy of each combination of tp, pp and cp; of the best `CLIMBERS` of them."""
    combination = genome.layout_genes[plans["layout_index"], : len(COMBINATION)] @ COMBINATION
    time_s, energy_j = objectives(plans)
    product = np.where(plans["violation"] <= 0.0, time_s * energy_j, np.inf)
    order = np.argsort(product, kind="stable")
    order = order[np.isfinite(product[order])]
    _, first = np.unique(combination[order], return_index=True)
    return take(plans, order[np.sort(first)][:CLIMBERS])


def decode_unseen(
    genome: Genome, genes: Ints, seen: Seen, rng: np.random.Generator
) -> tuple[Ints, Ints, Floats, Floats]:
    """(layout (n,), clock index (n,), slack (n,), stage clocks (n, S)) of unseen plans, which are then marked as seen.

    Genes of plans seen before are mutated, ever more, until they are new; after `RETRIES` they are left out.
    """
    chosen: list[tuple[Ints, Ints, Floats, Floats]] = []
    for attempt in range(RETRIES):
        layout, clock, slack = genome.decode(genes)
        stage_clocks = genome.problem.decode_clocks(layout, clock, slack)
        fresh = seen.add(layout, stage_clocks)
        chosen.append((layout[fresh], clock[fresh], slack[fresh], stage_clocks[fresh]))
        genes = genome.mutate(np.delete(genes, fresh, axis=0), rng, strength=1.0 + 0.5 * attempt)
        if not len(genes):
            break
    layouts, clocks, slacks, stages = zip(*chosen, strict=True)
    return np.concatenate(layouts), np.concatenate(clocks), np.concatenate(slacks), np.concatenate(stages)
