"""Measurement tables as jobs: rows with one model, cluster and software become one Job and an array of plans."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from jointopt.core.errors import TableError, UsageError
from jointopt.core.facts import Assumption
from jointopt.core.schema import (
    COLUMNS,
    DEGREES,
    LAYOUT_COLUMNS,
    LORA_TARGETS,
    NEUTRAL,
    OVERLAPS,
    Columns,
    Floats,
    Ints,
)
from jointopt.jobs import defaults
from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.catalog.frameworks import (
    job_of_class,
    kind_of_runs,
    named_class,
    named_release,
    newer_than_known,
    profile_of_class,
    recognise_framework,
    with_settings,
)
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import only_recipe, recipes_of, runnable_attention, scaling_recipe
from jointopt.jobs.catalog.models import load_model, named_model
from jointopt.jobs.cluster import Cluster, Gpu, Machine, machine_fits
from jointopt.jobs.defaults import fill_degrees
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import SETTINGS, STATE_FIELDS, TF32, Job, Training, on_machine
from jointopt.jobs.model import LATENT, NOT_IN_BLOCK, Model, block_of
from jointopt.jobs.pattern import layer_fields, named_layers
from jointopt.runs.cells import (
    Cells,
    first_rows,
    map_distinct,
    named_attention,
    named_cuda_graph,
    named_dispatcher,
    row_codes,
    with_precision,
)
from jointopt.runs.checks import check_required, impossible
from jointopt.runs.dtype_names import named_dtype, named_precision
from jointopt.runs.other_rows import HEADS_FROM_OTHERS, lacks_heads, with_classes_of_others, with_heads_of_others
from jointopt.runs.shapes import FROM_CATALOGUE, stated_details, whole_name, with_catalogue_shapes
from jointopt.runs.table import readable_runs

if TYPE_CHECKING:
    import pandas as pd


_WORKLOAD = (
    "model", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp",
    "vocab_size", "num_experts", "moe_router_topk", "moe_ffn_hidden_size", "num_shared_experts", "num_dense_layers",
    "attention_kind", *LATENT, "position_embedding", "mtp_num_layers", "window_size", "window_attn_skip_freq", "layers",
    "block", "seq_length",
    "global_batch_size", "dtype", "fp8_recipe", *STATE_FIELDS, "attention", "fused_norm", "token_dispatcher",
    "moe_load_imbalance", *SETTINGS, "lora_dim",
    "lora_target_modules", "framework", "recipe_class", "gpu", "gpus_per_node", "num_gpus",
    "inter_node_gbytes_per_s", "power_limit_w", "shape_from_catalogue", "heads_from_others",
)  # fmt: skip
_NEXT_WIDER = {"fp4": "fp8", "fp8": "bf16", "bf16": "fp16", "fp16": "bf16"}
_OF_EXPERTS: dict[str, Any] = {"moe_load_imbalance": 1.0, "ep_overlap": None}  # what a model without has
_USUAL_LATENT = dict(zip(LATENT, (1536, 512, 128, 64, 128), strict=True))  # of DeepSeek-V2, V3 and Kimi K2
_USUAL_WINDOW = {"window_size": 4096, "window_attn_skip_freq": 2}  # of Gemma 2; of Mistral and Cohere 2 the size
_USUAL_HEAD_DIM = 128
_USUAL_VOCABULARY = 50257
_USUAL_TOP_K = 2
_PLAIN_NETWORK = Assumption(
    "inter_node_gbytes_per_s",
    defaults.PLAIN_LINK_GBYTES_PER_S,
    "one 100 Gb/s port per GPU, which has no reference system",
)
# fields of a plan, in the order in which a row names those that it lacks; other columns of a layout follow
_ASSUMABLE = tuple(dict.fromkeys((
    *reversed(DEGREES), "micro_batch_size", "global_batch_size", "ep", "vpp", "zero_stage", "sequence_parallel",
    "recompute", *NEUTRAL, *LAYOUT_COLUMNS,
)))  # fmt: skip
_READ = (*(c.name for c in COLUMNS.values() if c.role != "result"), "clock_mhz")


@dataclass(frozen=True)
class Workload:
    """Rows of a table that share one job. ``rows`` are positions in the table; arrays (n,) follow the same order."""

    job: Job
    rows: Ints
    layouts: Columns  # each layout once, (L,) by layout column; some may be no row's
    layout_of_row: Ints  # (n,) the position of its layout in ``layouts``
    clock_mhz: Floats  # (n, 1) of all stages, or (n, deepest pp) of each, NaN beyond a plan's pp
    assumed: npt.NDArray[np.object_]  # (n,) names of the columns that defaults filled, joined by a blank
    release_named: bool = False  # the rows name the release of their software, which has its own attention kernel
    as_stated: bool = True  # false where another precision, or another attention kernel, than the stated one is priced

    @property
    def plans(self) -> Columns:
        """The layout columns of each row, (n,)."""
        return {name: values[self.layout_of_row] for name, values in self.layouts.items()}

    @property
    def stage_clock_mhz(self) -> Floats:
        """The clock of each stage of each row, (n, deepest pp), NaN beyond a plan's pp."""
        depth = self.layouts["pp"]
        stages = np.arange(int(depth.max()))
        return np.where(stages >= depth[self.layout_of_row, None], np.nan, self.clock_mhz[:, : len(stages)])

    def take(self, at: Ints) -> Workload:
        """The rows at positions ``at`` of this workload, in that order."""
        of_rows = {name: getattr(self, name)[at] for name in ("rows", "layout_of_row", "clock_mhz", "assumed")}
        return replace(self, **of_rows)

    def distinct(self) -> tuple[Workload, Ints]:
        """(the plans of its rows, each plan and each layout once, and of each row the place of its plan, (n,)).

        Clocks that are the same on all stages are one.
        """
        layout, clocks = row_codes([self.layout_of_row]), self.clock_mhz
        if ((clocks == clocks[:, :1]) | np.isnan(clocks)).all():
            clocks = clocks[:, :1]
        plan = row_codes([layout, *clocks.T])
        layouts = {name: values[self.layout_of_row[first_rows(layout)]] for name, values in self.layouts.items()}
        return replace(self, layouts=layouts, layout_of_row=layout, clock_mhz=clocks).take(first_rows(plan)), plan

    def with_class(self, name: str) -> Workload:
        """The workload with that recipe class, where its rows state none."""
        return self if self.job.training.recipe_class else replace(self, job=job_of_class(self.job, name))

    def with_attention(self, kernel: str) -> Workload:
        """The workload with that attention kernel where its rows name neither one nor a release."""
        training = self.job.training
        if not training.attention_assumed or self.release_named or training.attention == kernel:
            return self
        return replace(self, job=replace(self.job, training=replace(training, attention=kernel)))

    def on_machine(self, machine: Machine | None) -> Workload:
        """The workload with the machine's figures for what its rows leave open; itself where it ran on other nodes."""
        if machine is None or not machine_fits(machine, self.job.cluster):
            return self
        known = machine.figures.keys()
        codes, texts = pd.factorize(self.assumed)
        left = [" ".join(name for name in text.split() if name not in known) for text in texts]
        return replace(self, job=on_machine(self.job, machine), assumed=np.array(left, dtype=object)[codes])


def workloads(table: pd.DataFrame, others: pd.DataFrame | None = None) -> tuple[list[Workload], dict[int, str]]:
    """Workloads of a measurement table, and why each remaining row cannot be predicted.

    Blank cells get the defaults of `jointopt.jobs.defaults`, or the catalogue's shape of a model. A row is left out, by
    position and with the reason, where a word or GPU is unknown, what has no default is lacking, or it could not run.
    ``others``: another table whose rows fill the heads of a model and the recipe class of a source, as this one's do.
    Raises TableError for a missing column, a number that makes no sense, or a table of which no row is left.
    """
    clean, unread = readable_runs(table, categories=True)
    runs = with_precision(clean)
    runs = with_catalogue_shapes(runs[[name for name in _READ if name in runs]])
    check_required(runs)
    cells = Cells(runs)
    degrees, guessed = fill_degrees({name: cells[name] for name in DEGREES}, cells["num_gpus"])
    runs = runs.assign(**degrees, assumed_plan=_assumed_bits(guessed))
    if lacks_heads(runs):
        shaped = None if others is None else with_catalogue_shapes(readable_runs(others, categories=True)[0])
        runs = with_heads_of_others(runs, shaped)
    runs = with_classes_of_others(runs, others)
    reasons = impossible(runs) | unread
    found = []
    good = _with_whole_batches(runs.drop(index=list(reasons)) if reasons else runs)
    plans, numbers = plan_columns(good), good.index.to_numpy()
    for first, rows in _groups_of_equal(good, [name for name in _WORKLOAD if name in good]):
        try:
            found.append(replace(_workload(first, plans, rows), rows=numbers[rows]))
        except UsageError as error:
            reasons |= dict.fromkeys(numbers[rows].tolist(), str(error))
    if not found:
        row = min(reasons)
        raise TableError(f"No row of the table can be predicted; row {row + 1}: {reasons[row]}")
    return found, reasons


def _groups_of_equal(runs: pd.DataFrame, names: list[str]) -> Iterator[tuple[dict[str, Any], Ints]]:
    """Yields, for each group of rows equal in the columns ``names``, the cells of its first row and all positions.

    Blank cells are left out of the former; groups come in the order of their first rows.
    """
    codes = row_codes(runs[name] for name in names)
    codes = codes.astype(np.min_scalar_type(int(codes.max(initial=0))))  # two bytes are sorted without comparisons
    order, columns = np.argsort(codes, kind="stable"), [str(name) for name in runs]
    groups = np.split(order, np.cumsum(np.bincount(codes))[:-1]) if len(runs) else []
    firsts = runs.iloc[[rows[0] for rows in groups]].astype(object).to_numpy()
    for cells, blank, rows in zip(firsts, pd.isna(firsts), groups, strict=True):
        yield {name: cell for name, cell, no in zip(columns, cells, blank, strict=True) if not no}, rows


def _with_whole_batches(runs: pd.DataFrame) -> pd.DataFrame:
    """Batches that micro-batches divide: a micro-batch larger than a rank's share is cut, the last one is padded."""
    cells = Cells(runs)
    size, dp, stated = (cells[name] for name in ("micro_batch_size", "dp", "global_batch_size"))
    cut = np.minimum(np.where(np.isnan(size), 1.0, size), np.maximum(stated // dp, 1.0))
    batch = np.ceil(stated / (dp * cut)) * (dp * cut)
    changed = {"micro_batch_size": np.isnan(size) | (cut < size), "global_batch_size": batch > stated}
    assumed = runs["assumed_plan"] | _assumed_bits(changed)
    return runs.assign(micro_batch_size=cut, global_batch_size=batch, assumed_plan=assumed)


def _assumed_bits(assumed: Mapping[str, npt.ArrayLike]) -> Ints:
    """Per row, (n,), the bits of the fields of `_ASSUMABLE` that were assumed there."""
    bits = [np.asarray(rows, np.int64) << _ASSUMABLE.index(name) for name, rows in assumed.items()]
    return np.asarray(np.bitwise_or.reduce(bits), np.int64)


def plan_columns(runs: pd.DataFrame) -> Columns:
    """Columns (n,) of the plans of all jobs: layouts and clocks, NaN where blank, and ``assumed_plan`` as bits.

    ``layout`` is a number per row, equal for rows with the same layout cells.
    """
    cells: Columns = {}
    for name in LAYOUT_COLUMNS:
        if name in runs:
            column = COLUMNS[name]
            text = map_distinct(runs[name], column.encode, np.nan) if column.codes else runs[name]
            cells[name] = np.asarray(text, np.float64)
    cells |= {"layout": row_codes(cells.values()), "assumed_plan": runs["assumed_plan"].to_numpy(np.int64)}
    return cells | {name: runs[name].to_numpy() for name in ("clock_mhz", "stage_clock_mhz") if name in runs}


def _workload(first: Mapping[str, Any], plans: Columns, rows: Ints) -> Workload:
    """The workload of ``rows`` (positions in ``plans``), which share all other cells with the ``first`` of them."""
    gpu = load_gpu(str(first["gpu"]))
    framework, known = recognise_framework(str(first.get("framework", "")))
    assumed = [] if known else ["framework"]
    training = _training(first, gpu, framework, assumed)
    model = _model(first, assumed)
    if not model.is_moe:  # job files refuse what needs experts, here it is passed over
        passed = {name: none for name, none in _OF_EXPERTS.items() if getattr(training, name) != none}
        training, assumed = replace(training, **passed), [*assumed, *passed]
    cluster = _cluster(first, gpu, assumed)
    job = Job(name=str(first.get("group", model.name)), model=model, training=training, cluster=cluster)
    stated = row_codes([plans["layout"][rows]])
    default = defaults.default_plan(
        job, {name: plans[name][rows[first_rows(stated)]] for name in LAYOUT_COLUMNS if name in plans}
    )
    # a ZeRO stage without effect stays as the row has it: the shipped surrogate was trained on those
    filled = defaults.canonical(job, default.layouts) | {"zero_stage": default.layouts["zero_stage"]}
    again = row_codes(filled.values())  # what cells state and what blank ones mean may be the same
    layouts, layout = {name: values[first_rows(again)] for name, values in filled.items()}, again[stated]
    codes, distinct = pd.factorize(plans["assumed_plan"][rows] | _assumed_bits(default.assumed)[stated])
    words = [" ".join([*assumed, *(n for i, n in enumerate(_ASSUMABLE) if b >> i & 1)]) for b in distinct.tolist()]
    clocks = _stated_clocks(plans, rows, layouts["pp"][layout], gpu)
    # A blank precision is not as stated: fp8, 16 bit and fp32 are factors apart (NeMo's published fp8 runs taken for
    # bf16: median error 35 % instead of 5 %). A blank kernel is a default; recorded runs without one are covered.
    kernel, in_full = named_attention(str(first.get("attention", training.attention)))
    as_stated = named_precision(str(first.get("dtype", ""))) in (training.dtype, training.precision)
    as_stated &= kernel == training.attention if in_full else kernel is not None
    notes = np.array(words, dtype=object)[codes]
    return Workload(job, rows, layouts, layout, clocks, notes, bool(training.framework_release), as_stated)


def _stated_clocks(plans: Columns, rows: Ints, pp: Ints, gpu: Gpu) -> Floats:
    """Clocks as `Workload`'s, from ``stage_clock_mhz``, else ``clock_mhz``, else the GPU's maximum (1.0 if unknown)."""
    one = np.full(len(rows), gpu.clock_max_mhz or 1.0)
    if "clock_mhz" in plans:
        clocks = plans["clock_mhz"][rows].astype(float)
        one = np.where(np.isnan(clocks), one, clocks)
    out = one[:, None]
    given = pd.Series(plans["stage_clock_mhz"][rows] if "stage_clock_mhz" in plans else None, dtype=object)
    if given.notna().any():
        beyond = np.arange(int(pp.max())) >= pp[:, None]
        out = np.where(beyond, np.nan, out)
        counts = given.map(len, na_action="ignore").fillna(0).to_numpy(np.int64)
        for count in np.unique(counts[counts > 0]).tolist():
            at = np.flatnonzero(counts == count)
            clocks = np.array(given.iloc[at].tolist(), np.float64)
            width = out.shape[1] if count == 1 else count  # one clock is that of all stages
            out[at, :width] = np.where(beyond[at, :width], np.nan, clocks)
    return out


# tables have many jobs on one cluster
_build_cluster = functools.lru_cache(maxsize=1024)(lambda *items: build_cluster(dict(items)))


def _cluster(row: Mapping[str, Any], gpu: Gpu, assumed: list[str]) -> Cluster:
    num_gpus = int(row["num_gpus"])
    if "gpus_per_node" not in row:
        assumed.append("gpus_per_node")
    stated = int(row.get("gpus_per_node", gpu.usual_gpus_per_node or 8))
    # of a rack that is stated as one node, whose trays a job need not fill, a node is a tray
    tray, rack = gpu.usual_gpus_per_node or stated, gpu.scale_up_gpus or 0
    of_trays = tray < stated <= rack and stated % tray == 0 and num_gpus % tray == 0
    per_node = min(tray if of_trays else stated, num_gpus)
    where: dict[str, Any] = {"gpu": gpu.id, "nodes": -(-num_gpus // per_node), "gpus_per_node": per_node}
    if "inter_node_gbytes_per_s" in row:
        where["inter_node_gbytes_per_s"] = float(row["inter_node_gbytes_per_s"])
    elif gpu.usual_inter_node_gbytes_per_s is None and num_gpus > per_node:
        where[_PLAIN_NETWORK.key] = _PLAIN_NETWORK.value
        assumed.append(_PLAIN_NETWORK.key)
    if "power_limit_w" in row:
        where["power_limit_w"] = float(row["power_limit_w"])
    cluster: Cluster = _build_cluster(*where.items())
    taken = (_PLAIN_NETWORK,) * (_PLAIN_NETWORK.key in assumed)
    return replace(cluster, stated=cluster.stated - {*assumed}, assumed=(*cluster.assumed, *taken))


def runnable_dtype(text: str, gpu: Gpu, assumed: list[str]) -> str:
    """The precision that a cell means, or the next wider one that the GPU has a rate for, which is then ``assumed``."""
    named = named_dtype(text)
    dtype = named or defaults.default_dtype(gpu)
    while dtype not in gpu.peak_tflops and dtype in _NEXT_WIDER:
        dtype = _NEXT_WIDER[dtype]
    if dtype != named or (named_precision(text) == TF32 and not gpu.has_tf32):
        assumed.append("dtype")
    return dtype


def _settings(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row states of its software, by the names of `SETTINGS`; the release where its text names one too."""
    found: dict[str, Any] = {name: row[name] for name in SETTINGS if name in row}
    for name in (name for name in OVERLAPS if name in found):
        text = str(found[name])
        found[name] = text == "true" if text in ("true", "false") else float(text)
    found |= {name: bool(found[name]) for name in ("compile", "fp8_activations") if name in found}
    found |= {"logits_chunks": int(found["logits_chunks"])} if "logits_chunks" in found else {}
    if "cuda_graph" in found:
        found["cuda_graph"] = named_cuda_graph(str(found["cuda_graph"])) or ""
    text = f"{found.get('framework_release', '')} {row.get('framework', '')}"
    return found | {"framework_release": named_release(text)}


def _training(row: Mapping[str, Any], gpu: Gpu, framework: Framework, assumed: list[str]) -> Training:
    """The training of a row; what it leaves open or unclear, or what does not run on that GPU, is then ``assumed``."""
    text, settings = str(row.get("dtype", "")), _settings(row)
    dtype = runnable_dtype(text, gpu, assumed)
    if "fused_norm" not in row:
        assumed.append("fused_norm")
    stated = str(row.get("fp8_recipe", ""))
    recipe = None if stated else only_recipe(dtype, gpu)
    if stated in recipes_of(dtype, gpu):
        recipe = scaling_recipe(stated, gpu)
    elif stated or recipe:
        assumed.append("fp8_recipe")
    if framework.family != "megatron-core" and settings.get("cuda_graph") != "none":
        settings.pop("cuda_graph", None)  # whose memory under other frameworks is unknown
    kind = kind_of_runs(gpu, dtype, recipe, row.get("num_experts"), row.get("kv_lora_rank"))
    assumed += ["framework_release"] * newer_than_known(framework, settings["framework_release"])
    assumed += ["moe_load_imbalance"] * (settings.get("moe_routing") == "natural" and "moe_load_imbalance" not in row)
    recipe_class = str(row.get("recipe_class", "")) or named_class(str(row.get("framework", "")))
    framework = profile_of_class(with_settings(framework, settings, **kind), recipe_class)
    named, in_full = named_attention(str(row.get("attention", "")))
    kernel = defaults.default_attention(framework, gpu, dtype, settings["framework_release"], newer=False)
    kernel = runnable_attention(gpu, named) if named else kernel
    if not in_full or kernel != named:
        assumed.append("attention")
    formats: dict[str, Any] = {
        name: named_dtype(str(row[name])) if name.endswith("_dtype") else bool(row[name])
        for name in STATE_FIELDS if name in row
    }  # fmt: skip
    words = re.split(r"[;,\s]+", str(row.get("lora_target_modules", "")))
    targets = tuple(name for name in LORA_TARGETS if name in words)
    adapters: dict[str, Any] = {}
    if "lora_dim" in row:
        some = targets if 0 < len(targets) < len(LORA_TARGETS) else None
        adapters = {"lora_dim": int(row["lora_dim"]), "lora_target_modules": some}
    return Training(
        seq_length=int(row["seq_length"]),
        global_batch_size=int(row["global_batch_size"]),
        dtype=dtype,
        fp8_recipe=recipe,
        attention=kernel,
        attention_assumed="attention" in assumed,
        fused_norm=bool(row.get("fused_norm", defaults.FUSED_NORM)),
        framework=replace(framework, tf32=True) if named_precision(text) == TF32 and gpu.has_tf32 else framework,
        recipe_class=recipe_class,
        token_dispatcher=named_dispatcher(str(row.get("token_dispatcher", ""))) or "",
        moe_load_imbalance=float(row.get("moe_load_imbalance", 1.0)),
        **settings,
        **formats,
        **adapters,
    )


def _model(row: Mapping[str, Any], assumed: list[str]) -> Model:
    """The model of a row, or the block of it that the row states."""
    block = str(row.get("block", ""))
    if row.get(FROM_CATALOGUE):
        name = whole_name(row["model"], row.get("block"))
        known = named_model(name) or load_model(name)
        whole = replace(known, **stated_details(row, known))
    else:
        whole = _stated_model(row, block, assumed)
    return block_of(whole, block, int(row["num_layers"]), whole.name) if block else whole


def _stated_model(row: Mapping[str, Any], block: str, assumed: list[str]) -> Model:
    """The model of the shape that a row states; what it leaves open is ``assumed``."""
    hidden, layers = int(row["hidden_size"]), int(row["num_layers"])
    heads = int(row.get("num_attention_heads", max(hidden // _USUAL_HEAD_DIM, 1)))
    experts = int(row.get("num_experts", 0))
    experts = experts if experts > 1 else 0  # a single expert is a dense MLP
    shape = ["ffn_hidden_size", "vocab_size", "num_attention_heads", "num_query_groups", "gated_mlp"]
    shape = [name for name in shape if name not in NOT_IN_BLOCK.get(block, ())]
    assumed += [c for c in shape + ["moe_router_topk"] * bool(experts) if c not in row]
    assumed += ["num_attention_heads"] * bool(row.get(HEADS_FROM_OTHERS))
    ffn = int(row.get("ffn_hidden_size", 4 * hidden))
    # plain MLPs are four hidden sizes wide almost without exception, gated ones are not
    gated = bool(row.get("gated_mlp", ffn != 4 * hidden))
    more = stated_details(row)
    if experts:  # as wide as the MLP where a table has one width
        more |= {
            "moe_ffn_hidden_size": int(row.get("moe_ffn_hidden_size", ffn)),
            "num_shared_experts": int(row.get("num_shared_experts", 0)),
            "num_dense_layers": min(int(row.get("num_dense_layers", 0)), layers - 1),
        }
    if row.get("kv_lora_rank"):
        more |= {name: int(row.get(name, 0)) for name in LATENT}
    more |= {"head_dim": hidden // heads} | _stated_layers(row, layers, assumed)
    found = Model(
        name=str(row.get("model", "")), num_layers=layers, hidden_size=hidden, ffn_hidden_size=ffn,
        num_attention_heads=heads, num_query_groups=int(row.get("num_query_groups", heads)),
        vocab_size=int(row.get("vocab_size", _USUAL_VOCABULARY)), gated_mlp=gated, rmsnorm=gated, num_experts=experts,
        moe_router_topk=min(int(row.get("moe_router_topk", _USUAL_TOP_K)) or 1, experts), **more,
    )  # fmt: skip
    sized = with_stated_head(found)
    assumed += ["tied_embeddings"] * (sized != found)  # known by the size in its name alone
    return sized


def _stated_layers(row: Mapping[str, Any], num_layers: int, assumed: list[str]) -> dict[str, Any]:
    """Fields of the layers of a row by its ``layers`` and ``attention_kind``; what these leave open is ``assumed``."""
    kinds, found = {*str(row.get("attention_kind", "")).split("+")}, dict[str, Any]()
    if "mla" in kinds and not row.get("kv_lora_rank"):
        assumed += LATENT
        found |= _USUAL_LATENT
    if (stated := named_layers(str(row["layers"]), num_layers) if "layers" in row else None) is not None:
        return found | stated | layer_fields(stated["layers"], "mla" in kinds or bool(row.get("kv_lora_rank")))
    if "sliding_window" in kinds and "window_size" not in row:
        assumed += _USUAL_WINDOW
        found |= _USUAL_WINDOW
    assumed += ["layers"] * bool(kinds - {"", "mha", "gqa", "mqa", "mla", "sliding_window"})
    return found


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


# Measured runs whose plan is not known: what blank degrees are taken for is a guess, and no evidence of any plan.


_SPLIT = ("dp", "tp", "pp")  # of the model and the batch; a blank cp is 1 in tables of runs without it


def runs_with_plans(table: pd.DataFrame, others: pd.DataFrame | None = None) -> tuple[list[Workload], dict[int, str]]:
    """`workloads` of measured runs: without rows that leave their degrees open, whose reasons say so.

    Raises TableError as there, and where no row is left.
    """
    found, reasons = workloads(table, others)
    kept: list[Workload] = []
    for work in found:
        names = {text: [name for name in _SPLIT if name in text.split()] for text in set(work.assumed.tolist())}
        guessed = np.array([bool(names[text]) for text in work.assumed.tolist()], bool)
        for row, text in zip(work.rows[guessed].tolist(), work.assumed[guessed].tolist(), strict=True):
            one = len(names[text]) == 1
            reasons[row] = (
                f"{' and '.join(names[text])} {'is' if one else 'are'} blank, and num_gpus={work.job.cluster.num_gpus} "
                f"leaves open what {'it was' if one else 'they were'}; expected dp, tp and pp of a measured run."
            )
        if not guessed.all():
            kept.append(work.take(np.flatnonzero(~guessed).astype(np.int64)) if guessed.any() else work)
    if not kept:
        row = min(reasons)
        raise TableError(f"No row of the table states its plan; row {row + 1}: {reasons[row]}")
    return kept, reasons
