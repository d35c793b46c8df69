"""Statements of Zhang, Strati, Klimovic, EuroMLSys'26 (doi 10.1145/3805621.3807634)."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from scipy.stats import kendalltau

from jointopt.core.schema import Floats
from jointopt.jobs.jobfile import shipped_job
from jointopt.studies.evidence import SPANS, Constants, Outcome, columns, fits, outcomes
from jointopt.studies.statements.euromlsys26_plans import (
    ACROSS_NODES,
    BATCHES,
    EXPERT_LAYOUTS,
    FOUR,
    LAYOUTS,
    SIZES,
    at_top,
    dense,
    every_layout,
    experts,
    falling,
    on_one_gpu,
    on_two_nodes,
    one_gpu,
)
from jointopt.studies.statements.statement import (
    ENERGY,
    EXPERT_ENERGY,
    EXPERT_TIME,
    MEMORY,
    POWER,
    TIME,
    Check,
    Finding,
    Grade,
    Statement,
    alike,
    either,
    order,
    response,
    whole,
)

# Megatron-DeepSpeed overlaps nothing of tensor parallelism, gradients only where overlap_comm is set; other runs of the
# authors' group on GH200 (github.com/eth-easl/sailor) have unfused attention
OPEN = SPANS | {"dp_overlap": (0.0, 0.5), "unfused": (0.0, 1.0)}
_SAVED = 0.15  # of energy, at whose cost in time layouts are compared
_CLOSELY = 0.85  # Kendall's tau of what goes closely with another
_SLIGHTLY = 1.15
_HARDLY = 0.02  # of time
_FLAT = "dp=8 tp=1 pp=1 micro_batch_size=4"  # which the paper does not show
_COUNTERS = {"SM active": "sm_active", "GPU utilization": "gpu_utilization"}
# of OPT-350M, by place in LAYOUTS: fewer and more ranks of one kind
_MORE = {"tensor": [(0, 3), (3, 5), (2, 4)], "pipeline": [(2, 3), (0, 1), (4, 5)]}


def _batch(constants: Constants) -> int:
    return round(1024 * constants.batch)  # "unless otherwise specified"


def _tau(found: list[Outcome], first: str, second: str) -> float:
    a, b = columns(found, first, second)
    return float(kendalltau(a, b)[0])


def _by(first: str, found: list[Outcome], *names: str, error: float) -> list[Floats]:
    """Of pairs of plans whose ``first`` differs by more than its error, other values of the one with more over less."""
    by, *others = columns(found, first, *names)
    more, less = np.nonzero(np.log(by[:, None] / by) > error)
    return [values[more] / values[less] for values in others]


def _by_time(found: list[Outcome], *names: str, error: float = TIME) -> list[Floats]:
    """The same by time."""
    return _by("iteration_time_s", found, *names, error=error)


def _energy_follows_time(c: Constants) -> Finding:
    plans = list(dense(c).values())
    tau, (energy,) = _tau(plans, "iteration_time_s", "energy_j"), _by_time(plans, "energy_j")
    return order(f"tau {tau:.2f} over 18 plans", energy, ENERGY, sized=tau > _CLOSELY)


def _power_varies_less(c: Constants) -> Finding:
    time, power = columns(list(dense(c).values()), "iteration_time_s", "avg_power_w")
    spans = float(time.max() / time.min()), float(power.max() / power.min())
    return order(f"time {spans[0]:.1f} times, power {spans[1]:.1f} times", spans[0] / spans[1])


def _power_inverse(c: Constants) -> Finding:
    plans = list(dense(c).values())
    tau, (power,) = _tau(plans, "iteration_time_s", "avg_power_w"), _by_time(plans, "avg_power_w")
    return order(f"tau {tau:.2f}", 1.0 / power, POWER)


def _named_plan(c: Constants) -> Finding:
    plans = dense(c)
    time, energy, power = columns(list(plans.values()), "iteration_time_s", "energy_j", "avg_power_w")
    best, others = plans["dp=8 pp=4 tp=1", 4], np.array([key != ("dp=8 pp=4 tp=1", 4) for key in plans])
    ratios = time / best.iteration_time_s, energy / best.energy_j, best.avg_power_w / power
    later, more, less = (values[others] for values in ratios)
    words = f"{best.iteration_time_s:.2f} s, {best.energy_j / 1e3:.1f} kJ, {best.avg_power_w:.0f} W; of 17 others"
    slower, hungrier, cooler = (int((values > 1.0).sum()) for values in (later, more, less))
    words += f" {slower} are slower, {hungrier} take more energy, {cooler} draw less"
    return whole(order(words, later), order("", more, ENERGY), order("", less, POWER))


def _more_and_fewer(name: str, c: Constants) -> list[tuple[Outcome, Outcome]]:
    """Pairs of plans with more and with fewer tensor or pipeline ranks."""
    plans = dense(c)
    return [(plans[LAYOUTS[more], size], plans[LAYOUTS[less], size]) for less, more in _MORE[name] for size in SIZES]


def _less_memory(c: Constants) -> Finding:
    """Less memory of a GPU, and less power, as far as the model's errors tell."""
    found = []
    for name in _MORE:
        both = _more_and_fewer(name, c)
        memory = np.array([fewer.peak_memory_gib / more.peak_memory_gib for more, fewer in both])
        power = np.array([fewer.avg_power_w / more.avg_power_w for more, fewer in both])
        words = f"{name} {1.0 / memory.max() - 1.0:+.0%} to {1.0 / memory.min() - 1.0:+.0%} of memory"
        words += f", {1.0 / power.max() - 1.0:+.0%} to {1.0 / power.min() - 1.0:+.0%} of power"
        found += [order(words, memory, MEMORY), order("", power, POWER, sized=bool(power.max() < _SLIGHTLY))]
    return whole(*found)


def _all_fit(c: Constants) -> Finding:
    """Within the GPU's memory, but for the model's error of it."""
    every = {
        "opt-350m-8x4-gh200": list(dense(c).values()),
        "olmoe-1b-7b-8x4-gh200": [one for row in experts(c).values() for one in row],
        "opt-350m-2x4-a100": list(at_top(_batch(c), c).values()),
    }  # fmt: skip
    kept = sum(fits(shipped_job(name), one) for name, found in every.items() for one in found)
    count = sum(map(len, every.values()))
    return Finding(f"{kept} of {count}", Grade.REPRODUCED if kept == count else Grade.CONTRADICTED)


def _one_sequence(c: Constants) -> Finding:
    """The fullest plan of two sequences a micro-batch does not fit."""
    job = shipped_job("olmoe-1b-7b-8x4-gh200")
    limit = job.training.framework.memory_fraction * job.cluster.gpu.memory_gib
    most = max(one.peak_memory_gib for row in experts(c, size=2).values() for one in row)
    return order(f"two take {most:.0f} GiB at most, of {limit:.0f}", most / limit, MEMORY)


def _higher_degrees(c: Constants) -> Finding:
    found = []
    for name in _MORE:
        both = _more_and_fewer(name, c)
        time = np.array([more.iteration_time_s / less.iteration_time_s for more, less in both])
        energy = [more.energy_j / less.energy_j for more, less in both]
        clear = int((np.abs(np.log(time)) > TIME).sum())
        words = f"{name} {time.min() - 1.0:+.0%} to {time.max() - 1.0:+.0%} of time, {clear} of 9 beyond the error"
        found += [order(words, time), order("", energy, ENERGY)]
    return whole(*found)


def _larger_micro_batches(c: Constants) -> Finding:
    time = np.array([[dense(c)[layout, size].iteration_time_s for size in SIZES] for layout in LAYOUTS])
    ratios = time[:, :-1] / time[:, 1:]
    return order(f"each step {ratios.min():.2f} to {ratios.max():.2f} times as fast", ratios)


def _utilization(c: Constants) -> Finding:
    """Power goes with utilization, by either counter of DCGM that may be meant."""
    plans, found = list(dense(c).values()), []
    for words, name in _COUNTERS.items():
        (power,) = _by(name, plans, "avg_power_w", error=POWER)
        tau = _tau(plans, name, "avg_power_w")
        found.append(order(f"{words}: tau {tau:.2f}", power, POWER))
    return either(*found)


def _time_drives_energy(c: Constants) -> Finding:
    time, power = (np.log(values) for values in columns(list(dense(c).values()), "iteration_time_s", "avg_power_w"))
    return order(f"std of log time {time.std():.2f}, of log power {power.std():.2f}", time.std() / power.std())


def _restated(words: str) -> Finding:
    return Finding(words, Grade.INPUT)


def _idle(c: Constants) -> Finding:
    idle = float(shipped_job("opt-350m-8x4-gh200").cluster.gpu.need("idle_w", "compare it"))
    return _restated(f"{idle:.0f} W, the paper's own figure in the catalogue")


def _expert_steps(c: Constants, name: str, layouts: tuple[str, ...] = EXPERT_LAYOUTS) -> Floats:
    """Later over earlier of each step, ep 1 to 2 and 2 to 4, of each layout."""
    rows = [[getattr(one, name) for one in row] for row in experts(c, layouts).values()]
    return np.array([[b / a, e / b] for a, b, e in rows])


def _ends(ratios: Floats) -> str:
    whole_way = ratios.prod(axis=1) - 1.0
    return f"{whole_way.min():+.0%} to {whole_way.max():+.0%} from 1 to 4"


def _ends_and_steps(ratios: Floats) -> str:
    steps = [f"{each.min():+.0%} to {each.max():+.0%}" for each in ratios.T - 1.0]
    return f"{_ends(ratios)}, the first step {steps[0]}, the second {steps[1]}"


def _expert_power(c: Constants) -> Finding:
    ratios = _expert_steps(c, "avg_power_w")
    return order(_ends(ratios), ratios, POWER, sized=bool(ratios.prod(axis=1).max() < _SLIGHTLY))


def _expert_time(c: Constants) -> Finding:
    ratios = _expert_steps(c, "iteration_time_s")
    return order(_ends_and_steps(ratios), 1.0 / ratios, EXPERT_TIME)


def _expert_energy(c: Constants) -> Finding:
    ratios = _expert_steps(c, "energy_j")
    return order(_ends_and_steps(ratios), 1.0 / ratios, EXPERT_ENERGY)


def _experts_across_nodes(c: Constants) -> Finding:
    names = {"power": "avg_power_w", "time": "iteration_time_s", "energy": "energy_j"}
    return _restated(", ".join(f"{w} {_ends(_expert_steps(c, n, ACROSS_NODES))}" for w, n in names.items()))


def _by_launches(check: Check, c: Constants) -> Finding:
    """With launches of experts as of the framework's dense layers, and ten times as fast, as a driver's alone."""
    fast = check(replace(c, host=0.1 * c.host))
    return either(check(c), replace(fast, ours=f"launches ten times as fast: {fast.ours}"))


def _expert_utilization(c: Constants) -> Finding:
    found = []
    for words, name in _COUNTERS.items():
        ratios = _expert_steps(c, name)
        found.append(order(f"{words} {_ends(ratios)}", ratios, POWER))
    return either(*found)


def _insight_1(c: Constants) -> Finding:
    every = [one for row in experts(c).values() for one in row]
    tau, (energy,) = _tau(every, "iteration_time_s", "energy_j"), _by_time(every, "energy_j", error=EXPERT_TIME)
    return order(f"OLMoE: tau {tau:.2f} over {len(every)} plans", energy, EXPERT_ENERGY, sized=tau > _CLOSELY)


def _valley(c: Constants) -> Finding:
    energy, clock = one_gpu(c)["energy_j"], one_gpu(c)["clock_mhz"]
    low = int(energy.argmin())
    words = f"least energy at {clock[low]:.0f} MHz, {energy[low] / energy[-1] - 1.0:+.0%} from the top"
    bent = (np.diff(energy[: low + 1]) < 0.0).all() and (np.diff(energy[low:]) > 0.0).all()
    return (
        order(words, energy[[0, -1]] / energy[low], response(clock[[low, -1]], clock[[0, low]]))
        if bent
        else Finding(words, Grade.CONTRADICTED)
    )


def _power_falls(c: Constants) -> Finding:
    power = one_gpu(c)["avg_power_w"]
    return _monotonic(f"{power[-1]:.0f} to {power[0]:.0f} W", power)


def _time_rises(c: Constants) -> Finding:
    time = one_gpu(c)["iteration_time_s"]
    return _monotonic(f"{time[-1]:.1f} to {time[0]:.1f} s", 1.0 / time)


def _monotonic(words: str, values: Floats) -> Finding:
    """Rises with the clock at each step, and over the range by more than the model's error."""
    rises, clock = bool((np.diff(values) > 0.0).all()), on_one_gpu().search.clock_mhz
    return (
        order(words, values[-1] / values[0], response(clock[-1], clock[0]))
        if rises
        else Finding(words, Grade.CONTRADICTED)
    )


def _small_loss(c: Constants) -> Finding:
    found = one_gpu(c)
    within = found["iteration_time_s"] <= (1.0 + _HARDLY) * found["iteration_time_s"][-1]
    kept, clock = float(found["energy_j"][within].min() / found["energy_j"][-1]), found["clock_mhz"]
    words = f"{1.0 - kept:.1%} of energy for at most {_HARDLY:.0%} of time"
    return order(words, 1.0 / kept, response(clock[-1], clock[within].min()))


def _clock_levels(_: Constants) -> Finding:
    gpu = shipped_job("opt-350m-2x4-a100").cluster.gpu
    low, high, step = (gpu.need(f"clock_{name}_mhz", "count its clocks") for name in ("min", "max", "step"))
    return _restated(f"{round((high - low) / step) + 1} in the catalogue ({low:.0f} to {high:.0f} MHz by {step:.0f})")


def _dense_size(_: Constants) -> Finding:
    return _restated(f"{shipped_job('opt-350m-2x4-a100').model.parameters / 1e6:,.0f} M by its shape in the catalogue")


def _moe_size(_: Constants) -> Finding:
    model = shipped_job("olmoe-1b-7b-8x4-gh200").model
    return _restated(f"{model.parameters / 1e6:,.0f} M, active {model.active_parameters / 1e6:,.0f} M by its shape")


def _fastest_at_top(c: Constants) -> Finding:
    found = at_top(_batch(c), c)
    time, energy = (
        [getattr(found[k], n) / getattr(found["A"], n) for k in "BCD"] for n in ("iteration_time_s", "energy_j")
    )
    words = ", ".join(f"{k} {one.iteration_time_s:.2f} s {one.energy_j / 1e3:.2f} kJ" for k, one in found.items())
    return whole(order(words, time), order("", energy, ENERGY))


def _slower(c: Constants, by_parameters: bool = False) -> dict[str, tuple[float, float]]:
    """Times as long as at the top clock where a layout has saved `_SAVED` of its energy, and the error of that."""
    slower = {}
    for letter, top in at_top(_batch(c), c, by_parameters).items():
        found = falling(letter, _batch(c), c, by_parameters)
        time = np.where(found["energy_j"] <= (1.0 - _SAVED) * top.energy_j, found["iteration_time_s"], np.inf)
        error = response(found["clock_mhz"][0], found["lowest_mhz"][time.argmin()])
        slower[letter] = float(time.min()) / top.iteration_time_s, float(error)
    return slower


def _lost(c: Constants, more: str, less: str) -> Finding:
    """The layout named first loses more time than each of the others."""
    slower = _slower(c)
    words = ", ".join(f"{k} {slower[k][0] - 1.0:+.1%}" for k in more + less)
    ratios, errors = zip(
        *((slower[more][0] / slower[k][0], np.hypot(slower[more][1], slower[k][1])) for k in less), strict=True
    )
    return order(f"time for {_SAVED:.0%} less energy: {words}", ratios, errors)


def _data_parallel_loses_more(c: Constants) -> Finding:
    return _lost(c, "A", "BD")


def _c_is_sensitive(c: Constants) -> Finding:
    (first, one), (second, other) = (_slower(c)[k] for k in "CA")
    return whole(_lost(c, "C", "BD"), alike(f"A {second - 1.0:+.1%}", first / second, np.hypot(one, other)))


def _free_savings(c: Constants) -> Finding:
    kept, late, errors = [], [], []
    for found in (falling(letter, _batch(c), c) for letter in "BD"):
        end = int(np.argmax(found["spent"] >= 1.0))  # the slack of the stages is spent, and nothing else
        kept.append(float(found["energy_j"][end] / found["energy_j"][0]))
        late.append(float(found["iteration_time_s"][end] / found["iteration_time_s"][0]))
        errors.append(response(found["clock_mhz"][0], found["lowest_mhz"][end]))
    words = ", ".join(
        f"{k} {1.0 - e:.0%} of energy for {t - 1.0:.1%} of time" for k, e, t in zip("BD", kept, late, strict=True)
    )
    return whole(order(words, 1.0 / np.array(kept), errors), alike("", late, _HARDLY))


def _least(letter: str, batch: int, c: Constants) -> float:
    return float(falling(letter, batch, c)["energy_j"].min())


def _beats_the_fastest(c: Constants) -> Finding:
    """A, which the paper has as the fastest, and the one that is so here, which it does not show."""
    flat, least = outcomes(on_two_nodes(_batch(c)), [_FLAT], replace(c, batch=1.0))[0], _least("B", _batch(c), c)
    tops = {"A": at_top(_batch(c), c)["A"].energy_j, "dp8-pp1-tp1-mbs4 (E35)": flat.energy_j}
    words = ", ".join(f"{name} {top / 1e3:.2f} kJ" for name, top in tops.items())
    words = f"{least / 1e3:.2f} kJ; at the top clock {words}"
    return whole(order(words, tops["A"] / least, ENERGY), order("", flat.energy_j / least, ENERGY))


def _below(batch: int, c: Constants) -> Floats:
    """Energy of A's curve over B's at B's points, in their order."""
    first, second = falling("A", batch, c), falling("B", batch, c)
    line = np.interp(second["iteration_time_s"], first["iteration_time_s"], first["energy_j"])
    return np.asarray(line / second["energy_j"])


def _curves_cross(c: Constants) -> Finding:
    """B starts above A's curve, and goes below it."""
    ratios, time = _below(_batch(c), c), falling("B", _batch(c), c)["iteration_time_s"]
    words = f"from {time[ratios > 1.0].min():.2f} s on" if (ratios > 1.0).any() else "never"
    words = f"B below A's curve {words}, by up to {ratios.max() - 1.0:.1%}, by {ratios[0] - 1.0:.1%} at the top clock"
    return whole(order(words, ratios.max(), ENERGY), order("", 1.0 / ratios[0], ENERGY))


def _smaller_batches(c: Constants) -> Finding:
    return _restated(", ".join(f"up to {_below(batch, c).max() - 1.0:.1%} at {batch}" for batch in BATCHES))


def _front(c: Constants) -> Finding:
    curves = {letter: falling(letter, _batch(c), c) for letter in FOUR}
    time, energy = (np.concatenate([p[n] for p in curves.values()]) for n in ("iteration_time_s", "energy_j"))
    owner = np.repeat(list(FOUR), [len(p["energy_j"]) for p in curves.values()])
    beaten = ((time[:, None] < time) & (energy[:, None] < energy)).any(axis=0)
    words = ", ".join(f"{k} {int(((owner == k) & ~beaten).sum())}" for k in FOUR if ((owner == k) & ~beaten).any())
    on_a_or_b = np.isin(owner, ["A", "B"])
    line = [energy[on_a_or_b & (time <= at)].min(initial=np.inf) for at in time[~on_a_or_b]]
    above = float((energy[~on_a_or_b] / line).min())
    return order(f"points on the front: {words}; C and D come within {above - 1.0:.0%} of it", above, ENERGY)


def _by_parameters(c: Constants) -> Finding:
    slower = _slower(c, by_parameters=True)
    return _restated(", ".join(f"{k} {late - 1.0:+.1%}" for k, (late, _) in slower.items()))


def _saves_less(c: Constants, few: str, many: str) -> Finding:
    """At its best clock each layout of ``few`` saves a smaller share of its energy than each of ``many``."""
    kept, errors = {}, {}
    for letter, top in at_top(_batch(c), c).items():
        found = falling(letter, _batch(c), c)
        low = int(found["energy_j"].argmin())
        kept[letter] = float(found["energy_j"][low]) / top.energy_j
        errors[letter] = float(response(found["clock_mhz"][0], found["lowest_mhz"][low]))
    words = ", ".join(f"{k} {1.0 - share:.1%}" for k, share in kept.items())
    pairs = [(one, other) for one in few for other in many]
    return order(
        f"saved at most: {words}", [kept[one] / kept[other] for one, other in pairs],
        [np.hypot(errors[one], errors[other]) for one, other in pairs],
    )  # fmt: skip


def _c_saves_little(c: Constants) -> Finding:
    """Both halves: it saves less than B, and other layouts have better points."""
    least = {letter: _least(letter, _batch(c), c) for letter in FOUR}
    above = least["C"] / min(least.values())
    better = order(f"C's least is {above - 1.0:+.1%} of the best", above, ENERGY)
    return whole(_saves_less(c, "C", "B"), better)


def _flat_saves_little(c: Constants) -> Finding:
    return _saves_less(c, "AC", "BD")


def _high_utilization(c: Constants) -> Finding:
    """By either counter, whose error is that of power, which goes with it."""
    found = []
    for words, name in _COUNTERS.items():
        used = {letter: getattr(one, name) for letter, one in at_top(_batch(c), c).items()}
        words += " " + ", ".join(f"{k} {share:.0%}" for k, share in used.items())
        found.append(order(words, [used[one] / used[other] for one in "AC" for other in "BD"], POWER))
    return either(*found)


def _least_is_not_fastest(c: Constants) -> Finding:
    """Over all layouts and clocks: the least energy of any layout is below that of the fastest one."""
    every = every_layout(_batch(c), c)
    name, energy = min(every["flat", "energy_j"], every["deep", "energy_j"], key=lambda pair: pair[1])
    fastest, kept = every["fastest", "energy_j"]
    words = f"fastest: {fastest}, slowed {kept / 1e3:.2f} kJ; least energy: {name} {energy / 1e3:.2f} kJ"
    return order(words, kept / energy, ENERGY)


def _separated_by_time(c: Constants) -> Finding:
    """However the four are paired: the later pair from the other, and time more than power."""
    plans, found = at_top(_batch(c), c), []
    time, power = (np.log(values) for values in columns(list(plans.values()), "iteration_time_s", "avg_power_w"))
    for other in range(1, len(FOUR)):
        with_a = np.isin(np.arange(len(FOUR)), (0, other))
        apart = np.subtract.outer(time[~with_a], time[with_a])
        ratios = np.exp(apart * np.sign(apart.mean()))
        pairs = ["".join(np.array(list(FOUR))[rows]) for rows in (with_a, ~with_a)]
        found.append(order(f"{' and '.join(pairs)} {ratios.min():.2f} to {ratios.max():.2f} times apart", ratios))
    words = f"std of log time {time.std():.2f}, of log power {power.std():.2f}"
    return whole(either(*found), order(words, time.std() / power.std()))


def _better_layout(c: Constants) -> Finding:
    other = outcomes(on_two_nodes(_batch(c)), [_FLAT], replace(c, batch=1.0))[0]
    first = at_top(_batch(c), c)["A"].iteration_time_s
    words = f"dp8-pp1-tp1-mbs4: {other.iteration_time_s:.2f} s, {other.energy_j / 1e3:.2f} kJ, A {first:.2f} s"
    return order(words, other.iteration_time_s / first)


def _fastest_is_data_parallel(c: Constants) -> Finding:
    every = every_layout(_batch(c), c)
    (flat, time), (deep, slower) = (every[kind, "iteration_time_s"] for kind in ("flat", "deep"))
    return order(f"fastest: {flat} {time:.2f} s; with stages: {deep} {slower:.2f} s", slower / time)


def _slowed_pipeline_saves(c: Constants) -> Finding:
    """Of the energy of the fastest layout at the top clock."""
    deep, energy = every_layout(_batch(c), c)["deep", "energy_j"]
    top = outcomes(on_two_nodes(_batch(c)), [_FLAT], replace(c, batch=1.0))[0].energy_j
    words = f"{deep} {energy / 1e3:.2f} kJ, dp8-pp1-tp1-mbs4 at the top clock {top / 1e3:.2f} kJ"
    return order(words, top / energy, ENERGY)


_BY_WHICH = (
    "the paper reads it with DCGM and names no field, which would tell: it comes out by DCGM_FI_PROF_SM_ACTIVE, which "
    "power is worked out from; by DCGM_FI_DEV_GPU_UTIL, NVML's, receives that wait for a stage count, and plans of "
    "more stages are used more and draw less"
)
_LAUNCHES = (
    "what launches take would tell: experts run one after the other, 64 on a rank at ep 1, and no recorded run has "
    "them. The layouts are not named either: those whose expert group of 4 lies in a node of 4, as the paper says"
)

STATEMENTS = (
    Statement("E1", "3.1", "OPT-350M has 350 M parameters", "350 M", _dense_size, varies=False),
    Statement("E2", "3.1", "OLMoE: 7 B parameters, 1 B active", "7 B, 1 B", _moe_size, varies=False),
    Statement("E3", "2.2", "an A100 has 81 core clocks", "81", _clock_levels, varies=False),
    Statement("E4", "1b", "a GH200 draws about 96 W idle", "96 W", _idle, varies=False),
    Statement("E5", "1a", "energy closely follows iteration time over layouts", "closely", _energy_follows_time),
    Statement("E6", "1b", "power varies less than time", "less", _power_varies_less),
    Statement("E7", "1b", "power and time are inverse", "inverse", _power_inverse),
    Statement(
        "E8", "1", "high throughput, as of dp8-pp4-tp1-mbs4, draws more power and takes less energy", "more, less",
        _named_plan,
    ),
    Statement(
        "E9", "1", "higher tp or pp: longer, more energy", "both", _higher_degrees,
        "for tensor parallelism it comes out, for pipelines the difference is within the error",
    ),
    Statement(
        "E42", "1", "higher tp or pp: less memory of a GPU, slightly less power", "both", _less_memory,
        "pipelines keep activations of more micro-batches: their memory hardly falls",
    ),
    Statement("E43", "3.1", "every layout of figures 1, 2 and 5 fits in memory", "all", _all_fit),
    Statement("E44", "2", "OLMoE's micro-batch is 1 because of memory", "2 does not fit", _one_sequence),
    Statement("E10", "1", "larger micro-batches have the higher throughput", "higher", _larger_micro_batches),
    Statement("E11", "1b", "more power goes with more GPU utilization", "rises together", _utilization, _BY_WHICH),
    Statement("E12", "1", "runtime, not power, makes the differences of energy", "primarily", _time_drives_energy),
    Statement(
        "E13", "2b", "expert parallelism 1 to 4: slightly more power", "slightly",
        functools.partial(_by_launches, _expert_power), _LAUNCHES, (("over two nodes, tp 2", _experts_across_nodes),),
    ),
    Statement(
        "E14", "2a", "expert parallelism 1 to 4: less time", "falls",
        functools.partial(_by_launches, _expert_time), "as E13",
    ),
    Statement(
        "E15", "2a", "expert parallelism 1 to 4: less energy", "falls",
        functools.partial(_by_launches, _expert_energy), "as E13",
    ),
    Statement(
        "E17", "2b", "expert parallelism raises GPU utilization", "rises",
        functools.partial(_by_launches, _expert_utilization), "as E13",
    ),
    Statement("E18", "Insight 1", "energy tracks time for experts too", "closely", _insight_1),
    Statement(
        "E19", "3", "energy over clock is a valley", "valley in 240-1410 MHz", _valley,
        "below 855 MHz the voltage curve is extrapolated",
    ),
    Statement("E20", "4", "power falls with the clock", "monotonic", _power_falls),
    Statement("E21", "4", "time rises as the clock falls", "monotonic", _time_rises),
    Statement("E22", "3, 4", "energy can be saved with minimal loss of speed", "minimal", _small_loss),
    Statement(
        "E23", "5", "at the top clock A is first in time and energy", "A first", _fastest_at_top,
        "B, first in energy here, lies 2 % below A",
    ),
    Statement("E24", "5", "A loses more time than B and D as clocks fall", "more", _data_parallel_loses_more),
    Statement(
        "E25", "5", "C loses as much time as A as clocks fall, more than B and D", "as A", _c_is_sensitive,
        "C has two stages as B has, the slower of which has the head: as much slack, by parameters or by layers",
        (("layers split by parameters, D's 5, 7, 7, 5", _by_parameters),),
    ),
    Statement("E26", "5", "B and D save at hardly any cost of time first", "small", _free_savings),
    Statement(
        "E27", "Insight 3", "B slowed takes less energy than the fastest data-parallel plan", "less",
        _beats_the_fastest, "less than A's beyond the error",
    ),
    Statement(
        "E39", "abstract, Insight 3", "the layout of least energy is not the fastest one: both must be chosen at once",
        "another", _least_is_not_fastest, "of 200 jobs and their savings see joint-or-not",
    ),
    Statement(
        "E28", "5", "past a point E, B lies below A's curve", "crosses", _curves_cross,
        also=(("at other batches", _smaller_batches),),
    ),
    Statement("E32", "5", "the front is made of A and B", "A, B alone", _front),
    Statement(
        "E33", "4.2", "slowing C saves little and misses better points", "limited", _c_saves_little,
        "C saves as much of its energy as A and B; that better points are missed is within the error",
    ),
    Statement("E40", "5", "A and C save less of their energy than B and D", "limited", _flat_saves_little),
    Statement(
        "E41", "5", "A and C keep GPUs busier than B and D", "high", _high_utilization,
        "C has the stages of B and half its micro-batch, so twice the launches: less busy by both counters",
    ),
    Statement(
        "E34", "5", "blue and green curves are separated from red and black ones by time", "separated",
        _separated_by_time, "which layouts have these colours is not in the text, and no pairing decides it",
    ),
    Statement(
        "E35", "1, 5", "A is the throughput-optimal data-parallel layout", "A", _better_layout,
        "dp8-pp1-tp1-mbs4 fits in 40 GB, sends nothing within layers and launches an eighth of the micro-batches; the "
        "paper shows four representative layouts, all with tp 2",
    ),
    Statement("E37", "4.2", "highest throughput: data parallel at the top clock", "dp", _fastest_is_data_parallel),
    Statement(
        "E38", "4.2", "with time to spare, a slowed pipeline saves much energy", "significantly",
        _slowed_pipeline_saves, "on larger models a pipeline takes the least of all, see euromlsys26-roadmap",
    ),
    Statement(
        "E36", "2.2, 3.1", "memory clocks: one on A100, two on GH200", "1, 2",
        note="the catalogue has no memory clocks, which the paper does not vary; the drivers' lists would tell",
    ),
)  # fmt: skip
