"""Measurement tables as jobs: rows with one model, cluster and software become one Job and an array of plans."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from jointopt.core.errors import TableError, UsageError
from jointopt.core.facts import Assumption
from jointopt.core.schema import COLUMNS, DEGREES, LAYOUT_COLUMNS, LORA_TARGETS, NEUTRAL, Columns, Floats, Ints
from jointopt.jobs import defaults
from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.catalog.frameworks import job_of_class, named_class, names_release, of_class, recognise_framework
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import runnable_attention
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.cluster import Cluster, Gpu, Machine, is_of
from jointopt.jobs.defaults import fill_degrees
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import STATE_FIELDS, TF32, Job, Training, on_machine
from jointopt.jobs.model import LATENT, NOT_IN, Model, block_of
from jointopt.runs.cells import (
    first_rows,
    named_attention,
    named_cuda_graph,
    named_dispatcher,
    number_cells,
    plan_cells,
    row_codes,
    runnable_dtype,
    runnable_recipe,
    stated_clocks,
    stated_layouts,
    with_precision,
)
from jointopt.runs.checks import check_required, impossible, with_classes_of_kin
from jointopt.runs.dtype_names import named_dtype, named_precision
from jointopt.runs.shapes import (
    FROM_CATALOGUE,
    expert_shape,
    latent_shape,
    position_shape,
    whole_name,
    window_shape,
    with_catalogue_shapes,
)
from jointopt.runs.table import readable_runs

_WORKLOAD = (
    "model", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp",
    "vocab_size", "num_experts", "moe_router_topk", "moe_ffn_hidden_size", "num_shared_experts", "num_dense_layers",
    "attention_kind", *LATENT, "position_embedding", "mtp_num_layers", "window_size", "window_attn_skip_freq", "block",
    "seq_length",
    "global_batch_size", "dtype", "fp8_recipe", *STATE_FIELDS, "attention", "fused_norm", "token_dispatcher",
    "overlap_moe_a2a", "moe_load_imbalance", "moe_router_force_load_balancing", "cuda_graph", "lora_dim",
    "lora_target_modules", "framework", "recipe_class", "gpu", "gpus_per_node", "num_gpus",
    "inter_node_gbytes_per_s", "power_limit_w", "shape_from_catalogue", "heads_from_kin",
)  # fmt: skip
_USUAL_HEAD_DIM = 128
_USUAL_VOCABULARY = 50257
_USUAL_TOP_K = 2
_PLAIN_NETWORK = Assumption(
    "inter_node_gbytes_per_s",
    defaults.PLAIN_LINK_GBYTES_PER_S,
    "one 100 Gb/s port per GPU, which has no reference system",
)
# fields of a plan, in the order in which a row names those that it lacks; other columns of a layout follow
_ASSUMED_FIRST = (
    "cp", "pp", "tp", "dp", "micro_batch_size", "global_batch_size", "ep", "vpp", "zero_stage", "sequence_parallel",
    "recompute", *NEUTRAL,
)  # fmt: skip
_ASSUMABLE = tuple(dict.fromkeys((*_ASSUMED_FIRST, *LAYOUT_COLUMNS)))
_READ = (*(c.name for c in COLUMNS.values() if c.role != "result"), "clock_mhz")


@dataclass(frozen=True)
class Workload:
    """Rows of a table that share one job. ``rows`` are positions in the table; arrays (n,) follow the same order."""

    job: Job
    rows: Ints
    layouts: Columns  # each once, (L,) by layout column; some may be no row's
    layout: Ints  # which of them each row has
    clock_mhz: Floats  # (n, 1) of all stages, or (n, deepest pp) of each, NaN beyond a plan's pp
    assumed: npt.NDArray[np.object_]  # per row: names of defaulted columns, joined by a blank
    of_release: bool = False  # the rows name the release of their software, which has its own attention kernel
    as_stated: bool = True  # false where something stands in for precision, or for an attention kernel named

    @property
    def plans(self) -> Columns:
        """The layout columns of each row, (n,)."""
        return {name: values[self.layout] for name, values in self.layouts.items()}

    @property
    def stage_clock_mhz(self) -> Floats:
        """The clock of each stage of each row, (n, deepest pp), NaN beyond a plan's pp."""
        depth = self.layouts["pp"]
        stages = np.arange(int(depth.max()))
        return np.where(stages >= depth[self.layout, None], np.nan, self.clock_mhz[:, : len(stages)])

    def take(self, at: Ints) -> Workload:
        """The rows at positions ``at`` of this workload, in that order."""
        of_rows = {name: getattr(self, name)[at] for name in ("rows", "layout", "clock_mhz", "assumed")}
        return replace(self, **of_rows)

    def of_class(self, name: str) -> Workload:
        """The workload by a recipe class where its rows state none."""
        return self if self.job.training.recipe_class else replace(self, job=job_of_class(self.job, name))

    def of_attention(self, kernel: str) -> Workload:
        """The workload with that attention kernel where its rows name neither one nor a release."""
        training = self.job.training
        if not training.attention_assumed or self.of_release or training.attention == kernel:
            return self
        return replace(self, job=replace(self.job, training=replace(training, attention=kernel)))

    def on(self, machine: Machine | None) -> Workload:
        """The workload with the machine's figures for what its rows leave open; itself where it ran on other nodes."""
        if machine is None or not is_of(machine, self.job.cluster):
            return self
        known = machine.figures.keys()
        codes, texts = pd.factorize(self.assumed)
        left = [" ".join(name for name in text.split() if name not in known) for text in texts]
        return replace(self, job=on_machine(self.job, machine), assumed=np.array(left, dtype=object)[codes])


def workloads(table: pd.DataFrame, kin: pd.DataFrame | None = None) -> tuple[list[Workload], dict[int, str]]:
    """Workloads of a measurement table, and why each remaining row cannot be predicted.

    Blank cells get the defaults of `jointopt.jobs.defaults`, or the catalogue's shape of a model. A row is left out, by
    position and with the reason, where a word or GPU is unknown, what has no default is lacking, or it could not run.
    ``kin``: another table whose rows fill the heads of a model and the recipe class of a source, as this one's do.
    Raises TableError for a missing column, a number that makes no sense, or a table of which no row is left.
    """
    clean, unread = readable_runs(table, categories=True)
    runs = with_precision(clean)
    runs = with_catalogue_shapes(runs[[name for name in _READ if name in runs]])
    check_required(runs)
    runs = _with_degrees(runs)
    if lacks_heads(runs):
        runs = with_heads_of_kin(
            runs, None if kin is None else with_catalogue_shapes(readable_runs(kin, categories=True)[0])
        )
    runs = with_classes_of_kin(runs, kin)
    reasons = impossible(runs) | unread
    found = []
    good = _with_whole_batches(runs.drop(index=list(reasons)) if reasons else runs)
    plans, numbers = plan_cells(good), good.index.to_numpy()
    for first, rows in _alike(good, [name for name in _WORKLOAD if name in good]):
        try:
            found.append(replace(_workload(first, plans, rows), rows=numbers[rows]))
        except UsageError as error:
            reasons |= dict.fromkeys(numbers[rows].tolist(), str(error))
    if not found:
        row = min(reasons)
        raise TableError(f"No row of the table can be predicted; row {row + 1}: {reasons[row]}")
    return found, reasons


def _alike(runs: pd.DataFrame, names: list[str]) -> Iterator[tuple[dict[str, Any], Ints]]:
    """Positions of the rows that agree in the columns ``names``, blanks included, in the order of the first of each.

    Before them the cells of this first one that are not blank.
    """
    codes = row_codes(runs[name] for name in names)
    codes = codes.astype(np.min_scalar_type(int(codes.max(initial=0))))  # two bytes are sorted without comparisons
    order, columns = np.argsort(codes, kind="stable"), [str(name) for name in runs]
    groups = np.split(order, np.cumsum(np.bincount(codes))[:-1]) if len(runs) else []
    firsts = runs.iloc[[rows[0] for rows in groups]].astype(object).to_numpy()
    for cells, blank, rows in zip(firsts, pd.isna(firsts), groups, strict=True):
        yield {name: cell for name, cell, no in zip(columns, cells, blank, strict=True) if not no}, rows


def _with_degrees(runs: pd.DataFrame) -> pd.DataFrame:
    """Degrees without blanks, and ``assumed_plan``: the bits of those that are taken as 1."""
    given = {name: number_cells(runs, name) for name in DEGREES}
    filled, guessed = fill_degrees(given, runs["num_gpus"].to_numpy(float))
    return runs.assign(**filled, assumed_plan=_bits(guessed))


def _with_whole_batches(runs: pd.DataFrame) -> pd.DataFrame:
    """Batches that micro-batches divide: a micro-batch larger than a rank's share is cut, the last one is padded."""
    size = pd.Series(number_cells(runs, "micro_batch_size"), index=runs.index)
    share = (runs["global_batch_size"] // runs["dp"]).clip(lower=1.0)
    cut = size.fillna(1.0).clip(upper=share)
    step = runs["dp"] * cut
    batch = np.ceil(runs["global_batch_size"] / step) * step
    changed = {"micro_batch_size": size.isna() | (cut < size), "global_batch_size": batch > runs["global_batch_size"]}
    assumed = runs["assumed_plan"] | _bits(changed)
    return runs.assign(micro_batch_size=cut, global_batch_size=batch, assumed_plan=assumed)


def _bits(assumed: Mapping[str, npt.ArrayLike]) -> Ints:
    """Per row, (n,), the bits of the fields of `_ASSUMABLE` that were assumed there."""
    bits = [np.asarray(rows, np.int64) << _ASSUMABLE.index(name) for name, rows in assumed.items()]
    return np.asarray(np.bitwise_or.reduce(bits), np.int64)


def _workload(first: Mapping[str, Any], plans: Columns, rows: Ints) -> Workload:
    """The workload of ``rows`` of the ``plans`` of a table; all other cells they share with the ``first`` of them."""
    gpu = load_gpu(str(first["gpu"]))
    framework, known = recognise_framework(str(first.get("framework", "")))
    assumed = [] if known else ["framework"]
    training = _training(first, gpu, framework, assumed)
    model = _model(first, assumed)
    training = _of_model(training, model, assumed)
    cluster = _cluster(first, gpu, assumed)
    job = Job(name=str(first.get("group", model.name)), model=model, training=training, cluster=cluster)
    default, of_row = stated_layouts(plans, rows, job)
    notes = _named(assumed, plans["assumed_plan"][rows] | _bits(default.assumed)[of_row])
    again = row_codes(default.layouts.values())  # what cells state and what blank ones mean may be the same
    layouts, layout = {name: values[first_rows(again)] for name, values in default.layouts.items()}, again[of_row]
    clocks = stated_clocks(plans, rows, layouts["pp"][layout], gpu)
    of_release = names_release(str(first.get("framework", "")))
    return Workload(job, rows, layouts, layout, clocks, notes, of_release, _as_stated(first, training))


def _as_stated(row: Mapping[str, Any], training: Training) -> bool:
    """Whether nothing stands in for a row's precision, nor for an attention kernel that it names.

    A blank precision is none: fp8, 16 bit and fp32 are factors apart (NeMo's published fp8 runs taken for bf16: median
    error 35 % instead of 5 %). A blank kernel is a default; recorded runs that leave it blank are covered.
    """
    if named_precision(str(row.get("dtype", ""))) not in (training.dtype, training.precision):
        return False
    kernel, in_full = named_attention(str(row.get("attention", training.attention)))
    return kernel == training.attention if in_full else kernel is not None


def _named(assumed: list[str], bits: Ints) -> npt.NDArray[np.object_]:
    """The assumed fields of every row as text, (n,): names common to all rows, then those of its ``bits``."""
    codes, distinct = pd.factorize(bits)
    words = [" ".join([*assumed, *(n for i, n in enumerate(_ASSUMABLE) if b >> i & 1)]) for b in distinct.tolist()]
    return np.array(words, dtype=object)[codes]


def _cluster(row: Mapping[str, Any], gpu: Gpu, assumed: list[str]) -> Cluster:
    num_gpus = int(row["num_gpus"])
    if "gpus_per_node" not in row:
        assumed.append("gpus_per_node")
    per_node = _gpus_per_node(int(row.get("gpus_per_node", gpu.usual_gpus_per_node or 8)), num_gpus, gpu)
    where: dict[str, Any] = {"gpu": gpu.id, "nodes": -(-num_gpus // per_node), "gpus_per_node": per_node}
    if "inter_node_gbytes_per_s" in row:
        where["inter_node_gbytes_per_s"] = float(row["inter_node_gbytes_per_s"])
    elif gpu.usual_inter_node_gbytes_per_s is None and num_gpus > per_node:
        where[_PLAIN_NETWORK.key] = _PLAIN_NETWORK.value
        assumed.append(_PLAIN_NETWORK.key)
    if "power_limit_w" in row:
        where["power_limit_w"] = float(row["power_limit_w"])
    cluster = _built(*where.items())
    taken = (_PLAIN_NETWORK,) * (_PLAIN_NETWORK.key in assumed)
    return replace(cluster, stated=cluster.stated - {*assumed}, assumed=(*cluster.assumed, *taken))


def _gpus_per_node(stated: int, num_gpus: int, gpu: Gpu) -> int:
    """GPUs of a node: of a rack that is stated as one, whose trays a job need not fill, those of a tray."""
    tray, rack = gpu.usual_gpus_per_node or stated, gpu.scale_up_gpus or 0
    of_trays = tray < stated <= rack and stated % tray == 0 and num_gpus % tray == 0
    return min(tray if of_trays else stated, num_gpus)


@functools.lru_cache(maxsize=1024)
def _built(*described: tuple[str, Any]) -> Cluster:
    """The cluster of a mapping's items: tables have many jobs on one."""
    return build_cluster(dict(described))


def _attention(row: Mapping[str, Any], dtype: str, gpu: Gpu, framework: Framework, assumed: list[str]) -> str:
    """The attention kernel that a row means; what is unclear, or does not run there, is assumed."""
    named, stated = named_attention(str(row.get("attention", "")))
    software = str(row.get("framework", ""))
    usual = defaults.default_attention(framework, gpu, dtype, software, newer=False)
    kernel = runnable_attention(gpu, named) if named else usual
    if not stated or kernel != named:
        assumed.append("attention")
    return kernel


def _training(row: Mapping[str, Any], gpu: Gpu, framework: Framework, assumed: list[str]) -> Training:
    text = str(row.get("dtype", ""))
    dtype = runnable_dtype(text, gpu, assumed)
    recipe_class = str(row.get("recipe_class", "")) or named_class(str(row.get("framework", "")))
    framework = of_class(framework, recipe_class)
    if "fused_norm" not in row:
        assumed.append("fused_norm")
    graphs = named_cuda_graph(str(row.get("cuda_graph", ""))) or ""
    return Training(
        seq_length=int(row["seq_length"]),
        global_batch_size=int(row["global_batch_size"]),
        dtype=dtype,
        fp8_recipe=runnable_recipe(row, dtype, gpu, assumed),
        attention=_attention(row, dtype, gpu, framework, assumed),
        attention_assumed="attention" in assumed,
        fused_norm=bool(row.get("fused_norm", defaults.FUSED_NORM)),
        framework=replace(framework, tf32=True) if named_precision(text) == TF32 and gpu.has_tf32 else framework,
        recipe_class=recipe_class,
        token_dispatcher=named_dispatcher(str(row.get("token_dispatcher", ""))) or "",
        overlap_moe_a2a=bool(row.get("overlap_moe_a2a", False)),
        moe_load_imbalance=float(row.get("moe_load_imbalance", 1.0)),
        moe_router_force_load_balancing=bool(row.get("moe_router_force_load_balancing", False)),
        cuda_graph=graphs if framework.family == "megatron-core" else "",
        **_state_formats(row),
        **_adapters(row),
    )


def _of_model(training: Training, model: Model, assumed: list[str]) -> Training:
    """The training without what needs experts where the model has none; job files refuse it, here it is ``assumed``."""
    none: dict[str, Any] = {"moe_load_imbalance": 1.0, "overlap_moe_a2a": False}
    passed = [] if model.is_moe else [name for name, value in none.items() if getattr(training, name) != value]
    assumed += passed
    return replace(training, **{name: none[name] for name in passed}) if passed else training


def _adapters(row: Mapping[str, Any]) -> dict[str, Any]:
    """LoRA's adapters where a row states their rank."""
    if "lora_dim" not in row:
        return {}
    words = re.split(r"[;,\s]+", str(row.get("lora_target_modules", "")))
    targets = tuple(name for name in LORA_TARGETS if name in words)
    return {"lora_dim": int(row["lora_dim"]), "lora_target_modules": targets if len(targets) < 4 and targets else None}


def _state_formats(row: Mapping[str, Any]) -> dict[str, Any]:
    """Formats of gradients and optimizer states that a row states."""
    given = {name: row[name] for name in STATE_FIELDS if name in row}
    return {n: named_dtype(str(v)) if n.endswith("_dtype") else bool(v) for n, v in given.items()}


def _model(row: Mapping[str, Any], assumed: list[str]) -> Model:
    """The model of a row, or the block of it that the row states."""
    whole, block = _whole_model(row, assumed), str(row.get("block", ""))
    return block_of(whole, block, int(row["num_layers"]), whole.name) if block else whole


def _whole_model(row: Mapping[str, Any], assumed: list[str]) -> Model:
    if row.get(FROM_CATALOGUE):
        known = load_model(whole_name(row["model"], row.get("block")))
        positions = position_shape(row, known.max_position_embeddings)
        return replace(known, mtp_num_layers=int(row.get("mtp_num_layers", 0)), **window_shape(row), **positions)
    hidden = int(row["hidden_size"])
    heads = int(row.get("num_attention_heads", max(hidden // _USUAL_HEAD_DIM, 1)))
    experts = int(row.get("num_experts", 0))
    experts = experts if experts > 1 else 0  # a single expert is a dense MLP
    shape = ["ffn_hidden_size", "vocab_size", "num_attention_heads", "num_query_groups", "gated_mlp"]
    shape = [name for name in shape if name not in NOT_IN.get(str(row.get("block", "")), ())]
    assumed += [c for c in shape + ["moe_router_topk"] * bool(experts) if c not in row]
    assumed += ["num_attention_heads"] * bool(row.get(HEADS_FROM_KIN))
    ffn = int(row.get("ffn_hidden_size", 4 * hidden))
    # plain MLPs are four hidden sizes wide almost without exception, gated ones are not
    gated = bool(row.get("gated_mlp", ffn != 4 * hidden))
    found = Model(
        name=str(row.get("model", "")), num_layers=int(row["num_layers"]), hidden_size=hidden, ffn_hidden_size=ffn,
        num_attention_heads=heads, num_query_groups=int(row.get("num_query_groups", heads)),
        vocab_size=int(row.get("vocab_size", _USUAL_VOCABULARY)), head_dim=hidden // heads, gated_mlp=gated,
        rmsnorm=gated, num_experts=experts,
        moe_router_topk=min(int(row.get("moe_router_topk", _USUAL_TOP_K)) or 1, experts),
        mtp_num_layers=int(row.get("mtp_num_layers", 0)), **(expert_shape(row, ffn) if experts else {}),
        **latent_shape(row, assumed), **window_shape(row), **position_shape(row),
    )  # fmt: skip
    sized = with_stated_head(found)
    assumed += ["tied_embeddings"] * (sized != found)  # known by the size in its name alone
    return sized


# Attention heads of rows that do not state them, from rows of the same source and width.


HEADS_FROM_KIN = "heads_from_kin"  # 1.0 where the head count is another row's of the same width
_SHAPE = ["source", "hidden_size", "num_layers", "num_attention_heads"]


def lacks_heads(table: pd.DataFrame) -> bool:
    """Whether a row of the table does not state how many attention heads its model has."""
    return "num_attention_heads" not in table or bool(table["num_attention_heads"].isna().any())


def with_heads_of_kin(runs: pd.DataFrame, others: pd.DataFrame | None = None) -> pd.DataFrame:
    """Blank head counts filled from the row of the same source and width whose depth is nearest, where there is one.

    Rows of ``others`` count like those of ``runs``: measured runs and the table that they are for would else be priced
    as different models (three runs of bigscience: median error 28 % instead of 4 %).
    """
    if others is None and "num_attention_heads" not in runs:
        return runs
    shape = _shape(runs).assign(row=np.arange(len(runs)))
    known = pd.concat([_shape(table) for table in (runs, others) if table is not None]).dropna().drop_duplicates()
    pairs = shape[shape["num_attention_heads"].isna()].merge(known, on=["source", "hidden_size"], suffixes=("", "_kin"))
    pairs["far"] = (pairs["num_layers"] - pairs["num_layers_kin"]).abs()
    best = pairs.sort_values(["row", "far", "num_attention_heads_kin"]).drop_duplicates("row")
    heads, filled = shape["num_attention_heads"].to_numpy(float, copy=True), np.full(len(runs), np.nan)
    heads[best["row"]], filled[best["row"]] = best["num_attention_heads_kin"], 1.0
    return runs.assign(num_attention_heads=heads, **{HEADS_FROM_KIN: filled})


def model_as_kin(model: Model, runs: pd.DataFrame) -> pd.DataFrame:
    """A model's shape as a row of each source of ``runs``, for `with_heads_of_kin`."""
    sources = runs["source"].unique() if "source" in runs else [None]
    shape = {name: getattr(model, name) for name in _SHAPE if name != "source"}
    return pd.DataFrame([{"source": source, **shape} for source in sources])


def _shape(table: pd.DataFrame) -> pd.DataFrame:
    """Source, width, depth and heads of every row; a blank source is a source."""
    shape = table.reindex(columns=_SHAPE)
    return shape.assign(source=shape["source"].astype(object).fillna(""))


# Whether a model's head is its word embedding, where a table has no column for it but a name that states a size.


_STATED = re.compile(r"\((\d+\.\d+)B\)\s*$")  # "Llama-like 3B (3.57B)": a count to the hundredth, not a class of sizes
_NEAR = 0.01  # relative; a count that is off by less is that of the shape


def with_stated_head(model: Model) -> Model:
    """The model with a tied head where the parameters that its name states are those of a tied one, and of no other."""
    stated = _STATED.search(model.name)
    if not stated:
        return model
    tied, count = replace(model, tied_embeddings=True), float(stated[1]) * 1e9
    of_tied, of_own = (abs(each.parameters / count - 1.0) < _NEAR for each in (tied, model))
    return tied if of_tied and not of_own else model
