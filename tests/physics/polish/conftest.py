"""Small pipelines with random time-energy curves."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from jointopt.physics.instructions import Options, Problem, efficient_options
from jointopt.physics.schedule import schedule_graph


def curve(fastest_s: float, sensitive: float, clocks: int = 9) -> Options:
    """Time t0 + t1 / x and energy x² of a pass between 70 % and 100 % of the highest clock."""
    x = np.linspace(0.7, 1.0, clocks)
    time_s = fastest_s * (1.0 - sensitive + sensitive / x)
    return efficient_options(1000.0 * x, time_s, 100.0 * fastest_s * x**2)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """1F1B or interleaved 1F1B of 2 to 4 ranks, each as slow as it likes."""
    pp, vpp = draw(st.integers(2, 4)), draw(st.sampled_from((1, 1, 2)))
    batches = draw(st.integers(1, 3)) * (pp if vpp > 1 else 2)
    kinds = []
    for _ in range(pp):
        forward, backward, sensitive = draw(st.tuples(*[st.floats(0.2, 1.0)] * 3))
        kinds += [curve(forward, sensitive), curve(2 * backward, sensitive), curve(2 * backward, sensitive)]
    return Problem(schedule_graph(pp, vpp, batches), kinds)
