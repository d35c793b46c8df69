import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.search.breeding import CLOCK, PRIORITY, SLACK, Genome
from tests.fake_problem import fake_problem


@pytest.fixture(scope="module")
def genome():
    return Genome.of(fake_problem(0, 32, 16))


def test_the_genes_of_a_layout_decode_to_that_layout(genome):
    everything = np.arange(genome.problem.num_layouts)
    np.testing.assert_array_equal(genome.repair(genome.layout_genes), everything)


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_any_genes_are_repaired_to_a_layout_that_exists_and_stay_there(genome, seed):
    genes = np.random.default_rng(seed).integers(0, genome.sizes, (20, len(genome.sizes)))
    layout = genome.repair(genes)
    assert ((layout >= 0) & (layout < genome.problem.num_layouts)).all()
    np.testing.assert_array_equal(genome.repair(genome.layout_genes[layout]), layout)


def test_repair_agrees_with_choosing_the_nearest_value_column_by_column(genome):
    wanted = np.random.default_rng(1).integers(0, genome.sizes, (50, len(genome.sizes)))
    for row, layout in zip(wanted, genome.repair(wanted), strict=True):
        alive = np.arange(genome.problem.num_layouts)
        for column in range(len(PRIORITY)):
            gap = np.abs(genome.layout_genes[alive, column] - row[column])
            nearest = genome.layout_genes[alive, column][gap == gap.min()].min()
            alive = alive[genome.layout_genes[alive, column] == nearest]
        assert alive.tolist() == [layout]


def test_encoding_a_decoded_plan_changes_nothing(genome):
    genes = genome.random(200, np.random.default_rng(0))
    layout, clock, slack = genome.decode(genes)
    again = genome.encode({"layout_index": layout, "clock_index": clock, "slack": slack})
    for before, after in zip((layout, clock, slack), genome.decode(again), strict=True):
        np.testing.assert_array_equal(before, after)


def test_without_a_pipeline_there_is_no_slack_to_use(genome):
    layout, _, slack = genome.decode(genome.random(300, np.random.default_rng(0)))
    single = genome.problem.layouts["pp"][layout] == 1
    assert (slack[single] == 0).all()
    assert (slack[~single] > 0).any()


@pytest.mark.parametrize("vary", ["cross", "mutate"])
def test_variation_stays_inside_the_genes_values(genome, vary):
    rng = np.random.default_rng(0)
    one, two = genome.random(500, rng), genome.random(500, rng)
    children = genome.cross(one, two, rng) if vary == "cross" else genome.mutate(one, rng, strength=5.0)
    assert ((children >= 0) & (children < genome.sizes)).all()


def test_children_of_equal_parents_are_their_parents(genome):
    rng = np.random.default_rng(0)
    parents = genome.random(100, rng)
    np.testing.assert_array_equal(genome.cross(parents, parents, rng), parents)


def test_a_neighbour_differs_by_one_step_in_one_gene_and_a_paired_one_in_two(genome):
    genes = genome.random(1, np.random.default_rng(3))
    for paired, moved in ((False, 1), (True, 2)):
        steps = np.abs(genome.neighbours(genes, paired=paired) - genes)
        assert (steps.sum(axis=1) == moved).all()
        assert (steps[:, [CLOCK, SLACK]] == 0).all()
