"""Statements of Zhang, Strati, Klimovic, EuroMLSys'26 (doi 10.1145/3805621.3807634)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from scipy.stats import kendalltau

from jointopt.core.schema import Floats
from jointopt.jobs.jobfile import shipped_job
from jointopt.studies.evidence import NOMINAL, SPANS, Constants, Outcome, columns, outcomes, varied
from jointopt.studies.statements.euromlsys26_plans import (
    FOUR,
    LAYOUTS,
    SIZES,
    at_top,
    dense,
    every_layout,
    experts,
    falling,
    on_two_nodes,
    one_gpu,
)
from jointopt.studies.statements.statement import Finding, Statement, near

# Megatron-DeepSpeed overlaps nothing of tensor parallelism, gradients only where overlap_comm is set; other runs of the
# authors' group on GH200 (github.com/eth-easl/sailor) have unfused attention
OPEN = SPANS | {"dp_overlap": (0.0, 0.5), "unfused": (0.0, 1.0)}
_SAVED = 0.15  # of energy, at whose cost in time layouts are compared


def _batch(constants: Constants) -> int:
    return round(1024 * constants.batch) if constants != NOMINAL else 256


def _tau(found: list[Outcome], first: str, second: str) -> float:
    a, b = columns(found, first, second)
    return float(kendalltau(a, b)[0])


def _energy_follows_time(c: Constants) -> Finding:
    tau = _tau(list(dense(c).values()), "iteration_time_s", "energy_j")
    return Finding(f"tau {tau:.2f} over 18 plans", tau > 0.85)


def _power_varies_less(c: Constants) -> Finding:
    time, power = columns(list(dense(c).values()), "iteration_time_s", "avg_power_w")
    spans = float(time.max() / time.min()), float(power.max() / power.min())
    return Finding(f"time {spans[0]:.1f} times, power {spans[1]:.1f} times", spans[1] < spans[0])


def _power_inverse(c: Constants) -> Finding:
    tau = _tau(list(dense(c).values()), "iteration_time_s", "avg_power_w")
    return Finding(f"tau {tau:.2f}", tau < -0.8)


def _best(c: Constants) -> Finding:
    plans = dense(c)
    best = plans["dp=8 pp=4 tp=1", 4]
    time, energy, power = columns(list(plans.values()), "iteration_time_s", "energy_j", "avg_power_w")
    ranks = (time < best.iteration_time_s).sum(), (energy < best.energy_j).sum(), (power > best.avg_power_w).sum()
    words = f"{best.iteration_time_s:.2f} s, {best.energy_j / 1e3:.1f} kJ, {best.avg_power_w:.0f} W"
    return Finding(f"{words}; {sum(map(int, ranks))} of 17 others ahead in any", not any(ranks))


def _higher_degrees(c: Constants) -> Finding:
    plans = dense(c)
    pairs = [(0, 3), (3, 5), (2, 3), (0, 1), (2, 4)]
    worse = [
        plans[LAYOUTS[more], size].iteration_time_s > plans[LAYOUTS[less], size].iteration_time_s
        and plans[LAYOUTS[more], size].energy_j > plans[LAYOUTS[less], size].energy_j
        for (less, more), size in itertools.product(pairs, SIZES)
    ]
    return Finding(f"{sum(worse)} of {len(worse)} pairs", all(worse))


def _larger_micro_batches(c: Constants) -> Finding:
    sorted_ones = [
        all(np.diff([dense(c)[layout, size].iteration_time_s for size in SIZES]) < 0.0) for layout in LAYOUTS
    ]
    return Finding(f"{sum(sorted_ones)} of {len(LAYOUTS)} layouts", all(sorted_ones))


def _utilization(c: Constants) -> Finding:
    tau = _tau(list(dense(c).values()), "kernels", "avg_power_w")
    return Finding(f"tau of kernels' share and power {tau:.2f}", tau > 0.8)


def _time_drives_energy(c: Constants) -> Finding:
    time, power = (np.log(values) for values in columns(list(dense(c).values()), "iteration_time_s", "avg_power_w"))
    return Finding(f"std of log time {time.std():.2f}, of log power {power.std():.2f}", bool(time.std() > power.std()))


def _idle(c: Constants) -> Finding:
    idle = float(varied(shipped_job("opt-350m-8x4-gh200"), c).cluster.gpu.need("idle_w", "compare it"))
    return near(idle, 96.0, f"{idle:.0f} W (the paper's own figure stands in the catalogue)")


def _expert_ratios(c: Constants, name: str) -> Floats:
    return np.array([[getattr(one, name) / row[0].__dict__[name] for one in row] for row in experts(c).values()])


def _expert_power(c: Constants) -> Finding:
    ratios = _expert_ratios(c, "avg_power_w")
    words = f"{ratios[:, -1].min() - 1.0:+.0%} to {ratios[:, -1].max() - 1.0:+.0%}"
    return Finding(words, bool((np.diff(ratios, axis=1) > 0.0).all() and ratios.max() < 1.15))


def _falls_with_experts(c: Constants, name: str) -> Finding:
    ratios = _expert_ratios(c, name)
    good = [bool(row.all()) for row in np.diff(ratios, axis=1) < 0.0]
    words = f"{sum(good)} of {len(good)} layouts; {ratios[:, -1].min() - 1.0:+.0%} to {ratios[:, -1].max() - 1.0:+.0%}"
    return Finding(words, all(good))


def _expert_time(c: Constants) -> Finding:
    return _falls_with_experts(c, "iteration_time_s")


def _expert_energy(c: Constants) -> Finding:
    return _falls_with_experts(c, "energy_j")


def _expert_time_one_rank(c: Constants) -> Finding:
    rows = [row for layout, row in experts(c).items() if "tp=1" in layout]
    good = [all(np.diff([one.iteration_time_s for one in row]) < 0.0) for row in rows]
    joules = [all(np.diff([one.energy_j for one in row]) < 0.0) for row in rows]
    return Finding(
        f"{sum(good)} and {sum(joules)} of {len(rows)} layouts without tensor parallelism", all(good + joules)
    )


def _expert_unfused(c: Constants) -> Finding:
    rows = [row for layout, row in experts(replace(c, unfused=1.0)).items() if "tp=1" in layout]
    names = ("avg_power_w", "iteration_time_s", "energy_j")
    power, time, joules = ([getattr(row[-1], name) / getattr(row[0], name) - 1.0 for row in rows] for name in names)
    words = f"power {min(power):+.0%} to {max(power):+.0%}, time {min(time):+.0%} to {max(time):+.0%}"
    good = min(power) > 0.0 and max(power) < 0.15 and max(time) < 0.0 and max(joules) < 0.0
    return Finding(f"{words}, energy {min(joules):+.0%} to {max(joules):+.0%}", good)


def _expert_utilization(c: Constants) -> Finding:
    rows = [row for layout, row in experts(c).items() if "tp=1" in layout]
    good = [row[-1].kernels > row[0].kernels for row in rows]
    words = ", ".join(f"{row[0].kernels:.2f} to {row[-1].kernels:.2f}" for row in rows)
    return Finding(f"kernels' share {words}", all(good))


def _insight_1(c: Constants) -> Finding:
    every = [one for row in experts(c).values() for one in row]
    tau = _tau(every, "iteration_time_s", "energy_j")
    return Finding(f"OLMoE: tau {tau:.2f} over {len(every)} plans", tau > 0.85)


def _valley(c: Constants) -> Finding:
    energy, clock = one_gpu(c)["energy_j"], one_gpu(c)["clock_mhz"]
    low = int(energy.argmin())
    valley = 0 < low < len(energy) - 1
    valley = valley and bool((np.diff(energy[: low + 1]) < 0.0).all() and (np.diff(energy[low:]) > 0.0).all())
    return Finding(f"least energy at {clock[low]:.0f} MHz, {energy[low] / energy[-1] - 1.0:+.0%} from the top", valley)


def _power_falls(c: Constants) -> Finding:
    power = one_gpu(c)["avg_power_w"]
    return Finding(f"{power[-1]:.0f} to {power[0]:.0f} W", bool((np.diff(power) > 0.0).all()))


def _time_rises(c: Constants) -> Finding:
    time = one_gpu(c)["iteration_time_s"]
    return Finding(f"{time[-1]:.1f} to {time[0]:.1f} s", bool((np.diff(time) < 0.0).all()))


def _small_loss(c: Constants) -> Finding:
    found = one_gpu(c)
    within = found["iteration_time_s"] <= 1.05 * found["iteration_time_s"][-1]
    saved = 1.0 - float(found["energy_j"][within].min() / found["energy_j"][-1])
    return Finding(f"{saved:.1%} of energy for at most 5 % of time", saved > 0.05)


def _clock_levels(_: Constants) -> Finding:
    gpu = shipped_job("opt-350m-2x4-a100").cluster.gpu
    low, high, step = (gpu.need(f"clock_{name}_mhz", "count its clocks") for name in ("min", "max", "step"))
    count = round((high - low) / step) + 1
    return Finding(f"{count} ({low:.0f} to {high:.0f} MHz by {step:.0f})", count == 81)


def _sizes(name: str, total: float, active: float) -> Finding:
    model = shipped_job(name).model
    ours = model.parameters, model.active_parameters
    off = max(ours[0] / total - 1.0, ours[1] / active - 1.0, key=abs)
    return Finding(f"{ours[0] / 1e6:,.0f} M, active {ours[1] / 1e6:,.0f} M", abs(off) < 0.35, off)


def _dense_size(_: Constants) -> Finding:
    return _sizes("opt-350m-2x4-a100", 350e6, 350e6)


def _moe_size(_: Constants) -> Finding:
    return _sizes("olmoe-1b-7b-8x4-gh200", 7e9, 1e9)


def _fastest_at_top(c: Constants) -> Finding:
    found = at_top(_batch(c), c)
    ahead = [
        k
        for k, one in found.items()
        if k != "A" and (one.iteration_time_s < found["A"].iteration_time_s or one.energy_j < found["A"].energy_j)
    ]
    words = ", ".join(f"{k} {one.iteration_time_s:.2f} s {one.energy_j / 1e3:.2f} kJ" for k, one in found.items())
    return Finding(words, not ahead)


def _loses(letter: str, c: Constants) -> float:
    """Share of time that a layout gives up to save `_SAVED` of its energy at the top clock."""
    found, top = falling(letter, _batch(c), c), at_top(_batch(c), c)[letter]
    enough = found["energy_j"] <= (1.0 - _SAVED) * top.energy_j
    return float(found["iteration_time_s"][enough].min() / top.iteration_time_s - 1.0) if enough.any() else float("inf")


def _data_parallel_loses_more(c: Constants) -> Finding:
    lost = {letter: _loses(letter, c) for letter in FOUR}
    words = ", ".join(f"{k} {value:+.1%}" for k, value in lost.items())
    return Finding(f"time for {_SAVED:.0%} less energy: {words}", lost["A"] > max(lost["B"], lost["D"]))


def _c_is_sensitive(c: Constants) -> Finding:
    lost = {letter: _loses(letter, c) for letter in FOUR}
    return Finding(
        f"C {lost['C']:+.1%}, B {lost['B']:+.1%}, D {lost['D']:+.1%}", lost["C"] > 2.0 * max(lost["B"], lost["D"])
    )


def _free_savings(c: Constants) -> Finding:
    saved = {k: 1.0 - falling(k, _batch(c), c)["energy_j"][-1] / at_top(_batch(c), c)[k].energy_j for k in "BD"}
    late = {
        k: falling(k, _batch(c), c)["iteration_time_s"][-1] / at_top(_batch(c), c)[k].iteration_time_s - 1.0
        for k in "BD"
    }
    words = ", ".join(f"{k} {saved[k]:.0%} of energy for {late[k]:.1%} of time" for k in saved)
    return Finding(words, min(saved.values()) > 0.05 and max(late.values()) < 0.02)


def _least(letter: str, batch: int, c: Constants) -> float:
    return float(falling(letter, batch, c)["energy_j"].min())


def _beats_the_fastest(c: Constants) -> Finding:
    top, least = at_top(_batch(c), c)["A"].energy_j, _least("B", _batch(c), c)
    return Finding(f"{least / 1e3:.2f} kJ against {top / 1e3:.2f} kJ of A at the top clock", least < top)


def _curves_cross(c: Constants) -> Finding:
    first, second = falling("A", _batch(c), c), falling("B", _batch(c), c)
    line = np.interp(second["iteration_time_s"], first["iteration_time_s"][::-1], first["energy_j"][::-1])
    beyond = second["energy_j"] < line
    at = second["iteration_time_s"][beyond].min() if beyond.any() else float("nan")
    return Finding(f"B below A's curve from {at:.2f} s on" if beyond.any() else "never", bool(beyond.any()))


def _saving(batch: int, c: Constants) -> Finding:
    saved = 1.0 - _least("B", batch, c) / _least("A", batch, c)
    return Finding(f"B's least energy {-saved:+.2%} of A's least", saved > 0.0)


def _saving_256(c: Constants) -> Finding:
    return _saving(256, c)


def _saving_512(c: Constants) -> Finding:
    return _saving(512, c)


def _saving_1024(c: Constants) -> Finding:
    return _saving(1024, c)


def _front(c: Constants) -> Finding:
    curves = {letter: falling(letter, _batch(c), c) for letter in FOUR}
    time, energy = (np.concatenate([p[n] for p in curves.values()]) for n in ("iteration_time_s", "energy_j"))
    owner = np.repeat(list(FOUR), [len(p["energy_j"]) for p in curves.values()])
    beaten = ((time[:, None] < time) & (energy[:, None] < energy)).any(axis=0)
    on_it = {str(k): int(((owner == k) & ~beaten).sum()) for k in FOUR}
    words = ", ".join(f"{k} {count}" for k, count in on_it.items() if count)
    return Finding(
        f"points on the front: {words}", not on_it["C"] and not on_it["D"] and min(on_it["A"], on_it["B"]) > 0
    )


def _c_saves_little(c: Constants) -> Finding:
    least = {letter: _least(letter, _batch(c), c) for letter in FOUR}
    return Finding(
        f"C's least is {least['C'] / min(least.values()) - 1.0:+.1%} of the best", least["C"] > min(least.values())
    )


def _grouped_by_time(c: Constants) -> Finding:
    time = {letter: one.iteration_time_s for letter, one in at_top(_batch(c), c).items()}
    return Finding(
        " < ".join(sorted(time, key=lambda k: time[k])), max(time["A"], time["B"]) < min(time["C"], time["D"])
    )


def _better_layout(c: Constants) -> Finding:
    other = outcomes(on_two_nodes(_batch(c)), ["dp=8 tp=1 pp=1 micro_batch_size=4"], replace(c, batch=1.0))[0]
    first = at_top(_batch(c), c)["A"]
    words = f"dp8-pp1-tp1-mbs4: {other.iteration_time_s:.2f} s, {other.energy_j / 1e3:.2f} kJ"
    return Finding(words, other.iteration_time_s > first.iteration_time_s)


def _fastest_is_data_parallel(c: Constants) -> Finding:
    fastest = every_layout(c)[0]
    return Finding(f"the fastest of all layouts: {fastest}", "pp=1" in fastest)


def _leanest_is_a_pipeline(c: Constants) -> Finding:
    leanest = every_layout(c)[1]
    return Finding(f"the least energy of all layouts and clocks: {leanest}", "pp=1" not in leanest)


_THIN = "A is first in time; in energy at the top clock B lies 2 % below it, far inside the model's error"
_HOST = (
    "the model's experts run one after the other and wait for their launches (64 on a rank at ep 1): GPUs idle until "
    "there are fewer; see E39"
)
_SUMS = (
    "a rank with fewer experts sums fewer gradients per micro-batch, which fills its memory: power goes by -2 to +2 % "
    "where it waits for no launches"
)
_SPREAD = "with tp 2 the expert group of 4 lies over 8 GPUs, two nodes of 4: its all-to-alls cross the network"

STATEMENTS = (
    Statement("E1", "3.1", "OPT-350M has 350 M parameters", "350 M", _dense_size, varies=False),
    Statement("E2", "3.1", "OLMoE: 7 B parameters, 1 B active", "7 B, 1 B", _moe_size, varies=False),
    Statement("E3", "2.2", "an A100 has 81 core clocks", "81", _clock_levels, varies=False),
    Statement("E4", "1b", "a GH200 draws about 96 W idle", "96 W", _idle, varies=False),
    Statement("E5", "1a", "energy follows iteration time over layouts", "closely", _energy_follows_time),
    Statement("E6", "1b", "power varies less than time", "less", _power_varies_less),
    Statement("E7", "1b", "power and time are inverse", "inverse", _power_inverse),
    Statement("E8", "1", "dp8-pp4-tp1-mbs4: most power, least time and energy", "best", _best),
    Statement("E9", "1", "higher tp or pp: longer, more energy", "all", _higher_degrees),
    Statement("E10", "1", "larger micro-batches are faster", "all", _larger_micro_batches),
    Statement("E11", "1b", "more power goes with more GPU utilization", "rises together", _utilization),
    Statement("E12", "1", "runtime, not power, makes the differences of energy", "primarily", _time_drives_energy),
    Statement("E13", "2b", "expert parallelism 1 to 4: slightly more power", "slightly", _expert_power, _HOST),
    Statement("E14", "2a", "expert parallelism 1 to 4: less time", "falls", _expert_time, _SPREAD),
    Statement("E15", "2a", "expert parallelism 1 to 4: less energy", "falls", _expert_energy, _SPREAD),
    Statement("E16", "2", "the same within a node (tp 1): less time and energy", "falls", _expert_time_one_rank),
    Statement(
        "E39", "2", "the same, unfused attention: slight rise of power, less time, energy", "slightly", _expert_unfused,
        _SUMS,
    ),
    Statement("E17", "2b", "expert parallelism raises GPU utilization", "rises", _expert_utilization),
    Statement("E18", "Insight 1", "energy tracks time for experts too", "closely", _insight_1),
    Statement("E19", "3", "energy over clock is a valley", "valley in 240-1410 MHz", _valley),
    Statement("E20", "4", "power falls with the clock", "monotonic", _power_falls),
    Statement("E21", "4", "time rises as the clock falls", "monotonic", _time_rises),
    Statement("E22", "3, 4", "energy can be saved with minimal loss of speed", "minimal", _small_loss),
    Statement(
        "E23", "5", "at the top clock A is first in time and energy", "A first", _fastest_at_top, _THIN,
    ),
    Statement("E24", "5", "A loses more time than B and D as clocks fall", "more", _data_parallel_loses_more),
    Statement(
        "E25", "5", "C loses more time than B and D as clocks fall", "more", _c_is_sensitive,
        "C has two stages as B has, the slower of which has the head: as much slack",
    ),
    Statement("E26", "5", "B and D save at hardly any cost of time first", "small", _free_savings),
    Statement("E27", "Insight 3", "B slowed takes less energy than the fastest plan", "less", _beats_the_fastest),
    Statement("E28", "5", "past a point E, B lies below A's curve", "crosses", _curves_cross),
    Statement("E29", "5", "the same at the least energy of both, batch 256", "B below A", _saving_256),
    Statement("E30", "5", "the same, batch 512", "B below A", _saving_512),
    Statement("E31", "5", "the same, batch 1,024", "B below A", _saving_1024),
    Statement("E32", "5", "the front is made of A and B", "A, B alone", _front),
    Statement("E33", "4.2", "slowing C alone misses better points", "limited", _c_saves_little),
    Statement(
        "E34", "5", "A and B are separated from C and D by time", "separated", _grouped_by_time,
    ),
    Statement(
        "E35", "4.2", "A is the throughput-optimal layout of 8 A100", "A", _better_layout,
        "dp8-pp1-tp1-mbs4 fits in 40 GB, sends nothing within layers and launches an eighth of the micro-batches; the "
        "paper shows four representative layouts, all with tp 2",
    ),
    Statement("E37", "4.2", "highest throughput: data parallel at the top clock", "dp", _fastest_is_data_parallel),
    Statement(
        "E38", "4.2", "with time to spare, a slowed pipeline takes the least energy", "pp", _leanest_is_a_pipeline,
        "on this job dp8-pp1-tp1-mbs4 is first at every deadline; on larger models it is so, see euromlsys26-roadmap",
    ),
    Statement(
        "E36", "2.2, 3.1", "memory clocks: one on A100, two on GH200", "1, 2",
        why="the model has no memory clock, as the paper does not vary it",
    ),
)  # fmt: skip
