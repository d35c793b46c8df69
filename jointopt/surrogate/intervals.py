"""How far off predictions are: 90 % intervals, doubts and differences of plans, from errors on recorded runs.

Half-widths are of logarithms; independent ones add in squares. A doubt is a reason why no recorded run supports a plan.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import LAYOUT_COLUMNS, POWER_LIMIT, Bools, Columns, Floats, Ints
from jointopt.core.units import TERA, Z_90
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.frameworks import load_framework, release_numbers
from jointopt.jobs.catalog.recorded_runs import OTHER_SOFTWARE, combination_of, recorded_runs
from jointopt.jobs.cluster import FAR_LINK
from jointopt.jobs.job import Job
from jointopt.jobs.model import assumed_kinds
from jointopt.physics.throughput import model_flops_per_token, peak_tflops
from jointopt.surrogate.features import HEAT_COLUMNS, NETWORK_DOUBT, RISE
from jointopt.surrogate.kernel import Kernel, Runs
from jointopt.surrogate.posterior import SCALES, SHARES, Posterior

RESULTS = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")


@functools.cache
def physics_errors() -> dict[str, Any]:
    """Errors of the physics on recorded runs, and what those span."""
    return dict(read_yaml("physics_error.yaml"))


# Why recorded runs do not support a plan, in the words of an answer.
DOUBTS: Mapping[str, str] = {
    "framework": "no recorded runs of the framework",
    "gpu": "no recorded runs on this GPU",
    "model": "few recorded runs of mixtures of experts",
    "combination": "no recorded runs of this software, kind of GPU, precision and kind of model together",
    "release": "a newer release than recorded runs state",
    "precision": "no recorded runs in this precision",
    "block": "no recorded runs of blocks without a model around them",
    "adapters": "no recorded runs of adapters (LoRA)",
    "size": "no recorded runs of this size (GPUs, sequence or width)",
    "layout": "no recorded runs of such degrees",
    "attention": "no recorded runs of this attention kernel",
    "form": "no recorded runs of such attention (latent, windows, linear, state spaces)",
    "recipe": "no recorded runs of this recipe of fp8 or fp4",
    "host": "layers shorter than recorded ones, where the host may take longer to launch their kernels",
    "ambiguous": "precision ambiguous, state training.dtype",
    "network": "network between nodes assumed, state cluster.inter_node_gbytes_per_s",
    "link": f"a link over {FAR_LINK} times as fast as the GPU's reference system has, check its unit (GB/s per GPU)",
    "clock": "clock response not measured on this GPU",
    "peak": "faster than the GPU's peak allows, check precision and times of the measured runs",
    "unit": "measured times are far from the predictions of the physics, check the unit of iteration_time_s",
}
# Beside these, where no doubt explains it: precision or attention are not the plan's, and the runs learned from do
# not resemble it.
NOT_AS_STATED, UNLIKE = "not_as_stated", "unlike_known_runs"
# Doubts whose own half-width is added in squares, instead of a wider interval.
ADDED_DOUBTS = frozenset({"clock", "network"})
# How many steps each doubt is from what recorded runs support, beside those of the combination: two where it is no
# matter of the place alone.
_STEPS = {"gpu": 1, "size": 1, "layout": 1, "attention": 1, "form": 1, "recipe": 1, "release": 1,
          "link": 1, "host": 2, "block": 2, "ambiguous": 2}  # fmt: skip
_OF_COMBINATION = ("framework", "gpu", "model", "precision", "adapters")  # one of them unknown by itself
# Doubts that runs of the cluster leave open by themselves: what they teach of clocks and networks is in `measured` and
# ``network``, and a link in another unit stays one.
_OF_JOB = frozenset({"clock", "network", "link"})
# Share of a time that follows the clock, 0.4 to 0.96 over stages of A100 and A40: the unfitted physics has it to 0.11
# in nine of ten and 0.16 at most (tests/bench/bench_clock_share.py), to 0.21 where half of the sequence is assumed.
# Where nothing was measured, it is taken for known within the most of these (90 %).
CLOCK_SHARE = 0.16
CLOCK_DOUBT = 0.05  # of a logarithm of time, from which a plan's clocks are remarked on
BELOW_TOP = 0.97  # share of the top clock below which a run is evidence of how time follows it
ABOVE_MEASURED = 1.05  # times the highest measured clock, beyond which nothing was measured


@dataclass(frozen=True)
class MeasuredClocks:
    """Lowest and highest clock of a cluster's runs as shares of the top one."""

    low: float = 1.0
    high: float = 1.0


TOP_ONLY = MeasuredClocks()


def doubts(
    job: Job, columns: Columns, measured: MeasuredClocks = TOP_ONLY, network: Floats | float = 0.0
) -> dict[str, Bools]:
    """Why recorded runs do not support plans, (n,) each, by the keys of `DOUBTS`; the last as in `clock_doubt`.

    ``network`` (n,): what `network_half_width` gives for the plans. Clocks far below the maximum are no doubt on GPUs
    with a published clock response.
    """
    errors, training, model, gpu = physics_errors(), job.training, job.model, job.cluster.gpu
    runs, own = recorded_runs(), combination_of(job)
    software, _, precision, of_model = own
    layout = np.zeros(len(columns["pp"]), bool)
    for name in errors["ranges"].keys() & columns.keys() & set(LAYOUT_COLUMNS):
        low, high = errors["ranges"][name]
        layout |= (columns[name] < low) | (columns[name] > high)
    kind = kind_of(job)
    size = {"num_gpus": job.cluster.num_gpus, "seq_length": training.seq_length, "hidden_size": model.hidden_size}
    spanned = (errors["ranges"][name][0] <= value <= errors["ranges"][name][1] for name, value in size.items())
    of_all = {
        "framework": not runs.has(0, software) or software == OTHER_SOFTWARE, "gpu": gpu.id not in errors["seen_gpus"],
        "model": of_model == "experts" and not runs.has(2, precision, of_model),
        "precision": not runs.has(2, precision),
        "adapters": of_model == "adapters" and not runs.has(2, precision, of_model),
        "release": runs.is_newer(software, release_numbers(training.framework_release)),
        "block": bool(model.block), "size": not all(spanned),
        "link": job.cluster.has_far_link,
        "attention": model.has_attention and kind["attention"] not in errors["attentions"],
        "form": model.has_attention and not kind["form"] <= {*errors["attention_forms"]},
        "recipe": kind["recipe"] is not None and kind["recipe"] not in errors["fp8_recipes"],
        "ambiguous": training.dtype_assumed,
    }  # fmt: skip
    of_all["combination"] = runs.steps(own) > 0 and not any(of_all[name] for name in _OF_COMBINATION)
    found = {name: np.full(len(layout), value) for name, value in of_all.items()}
    # a profile with a host floor states what launching kernels takes, and captured graphs launch theirs at once, as
    # some releases do where nothing is stated
    has_floor = max(training.framework.host_floor_s, load_framework(software).host_floor_s) > 0.0
    known_host = has_floor or training.captures_graphs or gpu.is_cpu
    found["host"] = (layer_peak_s(job, columns) < errors["shortest_layer_s"]) & (not known_host)
    found |= {"layout": layout, "network": np.full(len(layout), network) > NETWORK_DOUBT}
    return found | {"clock": clock_doubt(job, columns["stage_clock_mhz"], measured)[1]}


def without_doubts(found: Mapping[str, Bools], but: Collection[str] = ()) -> Bools:
    """Whether a plan has none of the doubts ``found``, those named in ``but`` aside, (n,)."""
    return np.asarray(~np.logical_or.reduce([doubt for name, doubt in found.items() if name not in but]))


def kind_of(job: Job) -> dict[str, Any]:
    """Adapters, block, attention and recipe of a job, by their doubts: runs of others are weak evidence of them."""
    model, training = job.model, job.training
    windows = any(model.windowed_layers) and model.window_size < training.seq_length
    forms = {"latent": model.kv_lora_rank > 0, "window": windows, "alibi": model.position_embedding == "alibi"}
    return {
        "adapters": training.frozen, "block": model.block, "attention": training.attention,
        "form": frozenset([*(name for name, has in forms.items() if has), *assumed_kinds(model)]),
        "recipe": None if training.fp8_recipe is None else training.fp8_recipe.name,
    }  # fmt: skip


def new_kinds(job: Job, measured: Iterable[Job]) -> frozenset[str]:
    """Keys of `kind_of` in which a job differs from all jobs ``measured``; empty if there are none."""
    kind, known = kind_of(job), [kind_of(one) for one in measured]
    return frozenset(name for name, value in kind.items() if known and all(one[name] != value for one in known))


def doubt_names(found: Mapping[str, Bools], in_domain: Bools) -> npt.NDArray[np.object_]:
    """Names of the doubts ``found`` of each plan outside of the domain, joined by a blank, (n,); else blank."""
    of_all = {name: doubt & ~in_domain for name, doubt in found.items()}
    of_all |= {UNLIKE: ~in_domain & ~np.logical_or.reduce(list(of_all.values()))}
    codes = np.zeros(len(in_domain), np.int64)
    for bit, doubt in enumerate(of_all.values()):
        codes |= doubt.astype(np.int64) << bit
    distinct, which = np.unique(codes, return_inverse=True)
    words = [" ".join(name for bit, name in enumerate(of_all) if code >> bit & 1) for code in distinct.tolist()]
    return np.array(words, object)[which]


def clock_doubt(job: Job, stage_clock_mhz: Floats, measured: MeasuredClocks = TOP_ONLY) -> tuple[Floats, Bools]:
    """(Doubt of time for clocks (n, S) alone, whether measured runs teach too little of them), (n,) each.

    The doubt is a 90 % half-width of the logarithm: 0 on a GPU with a measured clock response; elsewhere it grows with
    the logarithm of the lowest clock, and is that of half the clock where the highest is not known. ``measured``:
    clocks of runs of the same cluster, above which it grows too.
    """
    gpu, lowest = job.cluster.gpu, np.nanmin(stage_clock_mhz, axis=1)
    published = gpu.id in physics_errors()["clock_response_gpus"]
    top_mhz = gpu.clock_max_mhz or 2.0 * lowest
    highest = np.minimum(np.nanmax(stage_clock_mhz, axis=1), top_mhz)
    above = highest > ABOVE_MEASURED * measured.high * top_mhz
    half_width = np.zeros(len(lowest))
    if not published:
        under = np.log(np.maximum(measured.low * top_mhz / lowest, 1.0))
        over = np.where(above, np.log(highest / (measured.high * top_mhz)), 0.0)
        half_width = np.asarray(CLOCK_SHARE * np.maximum(under, over))
    unmeasured = half_width > CLOCK_DOUBT
    return half_width, unmeasured | above if gpu.clock_max_mhz and not published else unmeasured


def add_intervals(
    job: Job, columns: Columns, measured: MeasuredClocks = TOP_ONLY, network: Floats | float = 0.0
) -> Columns:
    """The columns plus ``_low`` and ``_high`` of every result (90 %) and ``in_domain``; ``network`` as for `doubts`."""
    errors = physics_errors()
    found = doubts(job, columns, measured, network)
    at_top = without_doubts(found, ADDED_DOUBTS)
    inside = at_top & ~found["clock"]  # of memory and power, which do not follow a network
    dense = not job.model.is_moe and not job.training.frozen  # of which alone memory was checked
    power_known = inside & (job.cluster.gpu.id in errors["clock_response_gpus"])
    # in the order in which tables have them
    out = {**columns, **{f"{name}_{end}": columns[name] for name in RESULTS for end in ("low", "high")}}
    for name, known in (("peak_memory_gib", inside & dense), ("avg_power_w", power_known)):
        for end, near, far in zip(("low", "high"), errors[name]["known"], errors[name]["unknown"], strict=True):
            out[f"{name}_{end}"] = columns[name] * np.where(known, near, far)
    added = _added_widths(job, columns, measured, network)
    everywhere = np.ones(len(at_top), bool)
    out = _with_time(out, time_half_widths(job, found), everywhere, (0.0, 0.0), added)
    return bounds_within_limits(job, out) | {"in_domain": inside & ~found["network"]}


def open_doubts(
    job: Job, columns: Columns, known: bool, measured: MeasuredClocks = TOP_ONLY, network: Floats | float = 0.0,
    new: frozenset[str] = frozenset(),
) -> dict[str, Bools]:  # fmt: skip
    """`doubts` (n,) that stay open where runs of the same cluster and precision are ``known``; ``new``: `new_kinds`."""
    found = doubts(job, columns, measured, network)
    return {name: doubt for name, doubt in found.items() if not known or name in _OF_JOB or name in new}


def _added_widths(
    job: Job, columns: Columns, measured: MeasuredClocks, network: Floats | float
) -> tuple[Floats, Floats]:
    """Widths of the doubts `ADDED_DOUBTS`, below and above, (n,) each: a network may be slower than assumed."""
    clock, _ = clock_doubt(job, columns["stage_clock_mhz"], measured)
    return clock, np.hypot(clock, network)


def bounds_within_limits(job: Job, columns: Columns, overshoot: float | None = None) -> Columns:
    """``columns`` of `add_intervals` with no mean power above a GPU's limit, and the bound of energy with it.

    Nor a bound of peak power above ``overshoot`` times the limit, where peaks have bounds; None: as they are. The limit
    is the cluster's, or the lower one of a plan that states its own (``power_limit_w``). A prediction above it is its
    own bound.
    """
    limit_w = np.fmin(job.cluster.power_limit_w, columns.get(POWER_LIMIT, np.inf))
    power_w, high_w = columns["avg_power_w"], columns["avg_power_w_high"]
    most_w = np.maximum(power_w, limit_w)
    power = np.log(np.fmin(high_w, most_w) / power_w)
    time = np.log(columns["iteration_time_s_high"] / columns["iteration_time_s"])
    energy_j = np.where(high_w > most_w, columns["energy_j"] * np.exp(np.hypot(time, power)), columns["energy_j_high"])
    held = {"avg_power_w_high": np.where(high_w > most_w, most_w, high_w), "energy_j_high": energy_j}
    if overshoot is not None and "peak_power_w_high" in columns:
        most_w = np.maximum(columns["peak_power_w"], overshoot * limit_w)
        held["peak_power_w_high"] = np.fmin(columns["peak_power_w_high"], most_w)
    return columns | held


def with_measured_intervals(job: Job, columns: Columns, half_width: Mapping[str, float]) -> Columns:
    """``columns`` with 90 % intervals of mean and peak power and temperature, of those that are there and were learned.

    ``half_width``: of the logarithm of power, and of the temperature's rise over the inlet air, by their names.
    """
    out = dict(columns)
    for name, half in half_width.items():
        if (column := HEAT_COLUMNS.get(name, name)) in columns:
            zero = job.cluster.inlet_temperature_c if name == RISE else 0.0
            above = columns[column] - zero
            out |= {f"{column}_low": zero + above * np.exp(-half), f"{column}_high": zero + above * np.exp(half)}
    return out


def with_time_interval(
    job: Job, columns: Columns, half_width: Floats, inside: Bools, known: bool = False,
    measured: MeasuredClocks = TOP_ONLY, network: Floats | float = 0.0,
) -> Columns:  # fmt: skip
    """``columns`` of `add_intervals` with the interval of time replaced by a learned one, and that of energy with it.

    ``half_width`` (n,) is of the logarithm; ``inside`` (n,): what was learned supports the plan. Where it does not,
    the interval is at least that of the physics without support, by why there is none; ``known`` runs of the cluster
    show what a core can do. Clocks without a measured response add to it. Power keeps its own interval: logarithms of
    time and power add in squares.
    """
    bounds: Sequence[float] = physics_errors()["iteration_time_s"]["unknown"]
    widest = tuple(np.full(len(inside), abs(math.log(bound))) for bound in bounds)
    added = (clock_doubt(job, columns["stage_clock_mhz"], measured)[0],) * 2
    if not known:
        widest = time_half_widths(job, doubts(job, columns, measured, network))
        added = _added_widths(job, columns, measured, network)
    return _with_time(columns, (half_width, half_width), inside, widest, added)


def with_new_interval(
    job: Job, columns: Columns, half_widths: tuple[Floats, Floats], measured: MeasuredClocks = TOP_ONLY,
    network: Floats | float = 0.0,
) -> Columns:  # fmt: skip
    """As `with_time_interval`, where no run of the source is known; ``half_widths`` (n,): (below, above).

    They are of recorded sources, each taken for new. Where a plan has a doubt, they are those of the physics at least.
    """
    found = doubts(job, columns, measured, network)
    known, floors = without_doubts(found, ADDED_DOUBTS), time_half_widths(job, found)
    added = _added_widths(job, columns, measured, network)
    return _with_time(columns, half_widths, known, floors, added)


def nearest_bounds(first: Columns, second: Columns) -> Columns:
    """``first`` with the bounds of time and energy that are nearer, of its own and those of ``second``, (n,) each."""
    out = dict(first)
    for name in ("iteration_time_s", "energy_j"):
        out[f"{name}_low"] = np.fmax(first[f"{name}_low"], second[f"{name}_low"])
        out[f"{name}_high"] = np.fmin(first[f"{name}_high"], second[f"{name}_high"])
    return out


def _with_time(
    columns: Columns, half_widths: tuple[Floats, Floats], inside: Bools, widest: Sequence[float | Floats],
    added: Sequence[Floats | float] = (0.0, 0.0),
) -> Columns:  # fmt: skip
    """``columns`` with intervals of time by ``half_widths`` (below, above), and of energy by those of time and power.

    Where plans are not ``inside`` (n,), at least as wide as the ``widest`` (below, above). ``added``: half-widths
    (below, above) that are added in squares.
    """
    out = dict(columns)
    sides = zip(("low", "high"), (-1.0, 1.0), half_widths, widest, added, strict=True)
    for side, sign, own, bound, more in sides:
        half = np.hypot(np.where(inside, own, np.maximum(own, bound)), more)
        power = np.log(columns[f"avg_power_w_{side}"] / columns["avg_power_w"])
        out[f"iteration_time_s_{side}"] = columns["iteration_time_s"] * np.exp(sign * half)
        out[f"energy_j_{side}"] = columns["energy_j"] * np.exp(sign * np.hypot(power, half))
    return out


def outside_of_domain(columns: Columns) -> Columns:
    """``columns`` of `add_intervals` where nothing supports any plan: times at least as uncertain as the unknown's."""
    ends = [np.abs(np.log(columns[f"iteration_time_s_{e}"] / columns["iteration_time_s"])) for e in ("low", "high")]
    nowhere, half_width = np.zeros(len(ends[0]), bool), np.maximum(*ends)
    unknown = [abs(math.log(bound)) for bound in physics_errors()["iteration_time_s"]["unknown"]]
    return _with_time(columns, (half_width, half_width), nowhere, unknown) | {"in_domain": nowhere}


def time_half_widths(job: Job, found: Mapping[str, Bools]) -> tuple[Floats, Floats]:
    """90 % half-widths of the logarithm of time (below, above), (n,) each, of the physics by like recorded runs.

    Wider with each step from these, by the plans' `doubts`; of cores orders of magnitude.
    """
    steps = steps_from_recorded(job, found)
    if job.cluster.gpu.architecture == "CPU":
        low, high = (np.full(len(steps), abs(math.log(end))) for end in physics_errors()["iteration_time_s"]["cores"])
        return low, high
    runs, own = recorded_runs(), combination_of(job)
    factors = np.array(runs.wider[own[-1]])
    wider = factors[np.minimum(steps, len(factors) - 1)]
    below, above = runs.half_widths(own)
    return below * wider, above * wider


def steps_from_recorded(job: Job, found: Mapping[str, Bools]) -> Ints:
    """How many steps plans are from what recorded runs support, (n,): of the combination, and by their `doubts`."""
    runs, own = recorded_runs(), combination_of(job)
    steps = np.full(len(found["layout"]), runs.steps(own))
    for name, count in _STEPS.items():  # that of a GPU of another architecture is the combination's
        steps += found[name] * (count if name != "gpu" or runs.has(1, own[1]) else 0)
    return steps


def widened_by(job: Job, columns: Columns, mean: Floats, deviation: Floats) -> Columns:
    """``columns`` of `add_intervals` with intervals of a mixture: log(time / predicted) has these moments, (n,)."""
    time, everywhere = columns["iteration_time_s"], np.ones(len(mean), bool)
    below, above = (
        np.maximum(np.hypot(np.abs(np.log(columns[f"iteration_time_s_{end}"] / time)), Z_90 * deviation) + shift, 0.0)
        for end, shift in (("low", -mean), ("high", mean))
    )
    return bounds_within_limits(job, _with_time(columns, (below, above), everywhere, (0.0, 0.0)))


def layer_peak_s(job: Job, columns: Columns) -> Floats:
    """Seconds of one layer's flops, forward and backward of a micro-batch, at the peak of its precision, (n,).

    The mean over the layers, of model flops (`model_flops_per_token`): a kernel reaches half of the peak, seldom more.
    NaN without a peak. Degrees and sizes that ``columns`` lack are 1.
    """
    one = np.ones(len(columns["pp"]))
    size, tp, cp = (np.asarray(columns.get(name, one)) for name in ("micro_batch_size", "tp", "cp"))
    layers, training = replace(job.model, vocab_size=0), job.training
    flops = model_flops_per_token(layers, training.seq_length, training=training) / job.model.num_layers
    return np.asarray(flops * training.seq_length * size / (tp * cp) / (peak_tflops(job) * TERA), np.float64)


# Doubt of times that measured runs have moved below what the GPU's peak allows.


def above_peak(job: Job, columns: Columns) -> Bools:
    """Whether the flops of the model, causal attention alone, would take longer at the peak than the times (n,).

    False where ``columns`` hold no time, and on a core of a CPU, whose peak has no bound.
    """
    if "iteration_time_s" not in columns or job.cluster.gpu.is_cpu:
        return np.zeros(len(columns["pp"]), bool)
    training = job.training
    flops = model_flops_per_token(job.model, training.seq_length, causal=True, training=training)
    tokens = training.seq_length * training.global_batch_size / job.cluster.num_gpus
    return np.asarray(columns["iteration_time_s"] < flops * tokens / (peak_tflops(job) * TERA))


# How a plan differs from another of its job: what predictions of both are off by cancels.


_ROUNDING = 1e-9  # of a logarithm: what two ways to one sum leave
# 90 % half-widths, of logarithms. Of the logarithm of a clock: stages of A100 take 0.82-0.97 of it in time (two models,
# forward and backward), their power is within 0.8 % over a range of 0.4; without a sweep over clocks, power goes with
# a power of the clock between 0.8 (A100 below the knee of its voltage) and 2.2 (above it).
CLOCK_TIME, CLOCK_POWER, UNKNOWN_CLOCK_POWER = 0.1, 0.05, 0.7
# Power of one layout against another's at one clock. No public table has it; ranks of pipelines of 4 and 8 GPUs, which
# idle for different shares, are within 1 % of the law that prices them. A judgement.
LAYOUT_POWER = 0.05
_ERFC = np.frompyfunc(math.erfc, 1, 1)  # scipy.special would take every proposal 0.15 s to import


@dataclass(frozen=True)
class DifferenceDoubt:
    """Doubt of the difference between each of n plans and one of them, clocks aside."""

    half_width: Floats  # (n,) 90 %, of log(time / time of the one)
    other_layout: Bools  # (n,) whether the plan has another layout than the one
    measured: MeasuredClocks = TOP_ONLY  # clocks of runs of the cluster
    by_limit: Floats = field(default_factory=lambda: np.zeros((2, 1)))  # `limit_half_widths`, (2, n)


def physics_difference_half_width(job: Job, columns: Columns, first: int, known: bool = False) -> Floats:
    """90 % half-width (n,) of log(time / time of row ``first``), by the physics' errors on recorded runs.

    ``known``: runs of the same cluster are, which support any plan.
    """
    at_top, errors = without_doubts(open_doubts(job, columns, known), ADDED_DOUBTS), physics_errors()["difference"]
    return np.asarray(np.where(at_top & at_top[first], errors["known"], errors["unknown"]))


def limit_half_widths(shift: Floats, half_width: Floats, first: int, other_layout: Bools) -> Floats:
    """90 % half-widths (2, n) that power limits add to differences in log(time) and log(energy) from row ``first``.

    ``shift`` (2, n): how much both change on GPUs that draw less than predicted by ``half_width`` (n,), 90 % of the
    logarithm of power. GPUs of all plans are off by the same, of other layouts by `LAYOUT_POWER` beside that.
    """
    share = np.minimum(LAYOUT_POWER / np.maximum(half_width, LAYOUT_POWER), 1.0)
    return np.hypot(shift - shift[:, first : first + 1], np.where(other_layout, share * shift, 0.0))


def plan_differences(job: Job, columns: Columns, first: int, apart: DifferenceDoubt) -> Columns:
    """Differences of plans (n,) from that in row ``first``, as predicted and with 90 % intervals.

    ``columns``: plans and their results. Percentages of time and of energy, and the probabilities that a plan is really
    faster or leaner: 0 for the plan itself.
    """
    clocks = columns["stage_clock_mhz"]
    logs = np.log(clocks)
    lowest_and_mean = np.stack([np.nanmin(logs, axis=1), np.nanmean(logs, axis=1)])
    clock = np.abs(lowest_and_mean - lowest_and_mean[:, first : first + 1]).max(axis=0)
    unmeasured, _ = clock_doubt(job, clocks, apart.measured)
    of_layout = np.where(apart.other_layout, apart.half_width, 0.0)
    time = np.hypot(of_layout, np.hypot(CLOCK_TIME * clock, unmeasured - unmeasured[first]))
    measured_response = job.cluster.gpu.id in physics_errors()["clock_response_gpus"]
    by_clock = clock * (CLOCK_POWER if measured_response else UNKNOWN_CLOCK_POWER)
    power = np.hypot(np.where(apart.other_layout, LAYOUT_POWER, 0.0), by_clock)
    out: Columns = {}
    for name, result, better, half in (
        ("time", "iteration_time_s", "faster", np.hypot(time, apart.by_limit[0])),
        ("energy", "energy_j", "leaner", np.hypot(np.hypot(time, power), apart.by_limit[1])),
    ):
        change = np.log(columns[result] / columns[result][first])
        change = np.where(np.abs(change) < _ROUNDING, 0.0, change)
        ends = {"": 0.0, "_low": -half, "_high": half}
        out |= {f"{name}_vs_first_percent{end}": 100.0 * np.expm1(change + by) for end, by in ends.items()}
        with np.errstate(divide="ignore", invalid="ignore"):
            sure = np.where(np.isnan(change), np.nan, (change < 0.0).astype(float))
            below = 0.5 * _ERFC(change / (half / Z_90) / np.sqrt(2.0)).astype(float)
            out[f"{better}_probability"] = np.where(half > 0.0, below, sure)
    return out


# How far two plans of one job are apart by the process: errors of plans that are alike cancel.


# Deviation of a difference by what plans differ in, at which half of the noise of each counts. What the process takes
# for noise is mostly what it cannot tell of a plan, and a plan that moves a layer shares it. Recorded pairs of 0.05 to
# 0.25 do as well; with all of the noise plans alike are as wide as others (docs/appendix/surrogate-experiments.md).
ALIKE_DEVIATION = 0.15
# The same deviation of half of recorded pairs: what all of them differ by counts in full from here on.
UNLIKE_PAIRS = 0.3


def difference_half_width(posterior: Posterior, runs: Runs, against: Runs) -> Floats:
    """90 % half-width (n,) of the difference of residuals of ``runs`` and of ``plan_differences`` (as many or one).

    By what is known, and the noise of both as far as the two plans differ; at least that of repeats, `Kernel.noise`.
    """
    left = posterior.contrast_variance(runs, against)
    return _half_width(posterior, left, difference_variance(posterior.kernel, runs, against))


def dissimilarity(kernel: Kernel, runs: Runs, against: Runs) -> Floats:
    """How unlike plans are, (n,), 0 to 1: the root of a difference's half-width over that of most recorded pairs."""
    unlike = np.array([UNLIKE_PAIRS**2])
    new = posterior_of_new(kernel)
    return np.minimum(np.sqrt(difference_half_width(new, runs, against) / _half_width(new, unlike, unlike)), 1.0)


def difference_variance(kernel: Kernel, runs: Runs, against: Runs) -> Floats:
    """Prior variance (n,) of the difference of residuals, noise not included: 0 of plans that differ in nothing."""
    return posterior_of_new(kernel).contrast_variance(runs, against)


def _half_width(posterior: Posterior, left: Floats, prior: Floats) -> Floats:
    noise = posterior.noise_of_two
    counted = np.maximum(noise * prior / (prior + ALIKE_DEVIATION**2), min(4.0 * posterior.kernel.noise**2, noise))
    return np.asarray(Z_90 * np.sqrt(left + counted))


def posterior_of_new(kernel: Kernel) -> Posterior:
    """The posterior where no run of the source is known."""
    return Posterior(kernel, np.square(SCALES), SHARES)
