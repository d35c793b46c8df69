"""Jobs from files, mappings and command-line options, and back into YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jointopt.core.errors import CatalogError, JobError, UsageError, close_words, did_you_mean, nearest_hint
from jointopt.core.facts import Assumption
from jointopt.core.schema import (
    ATTENTIONS,
    COLUMNS,
    CROSS_ENTROPIES,
    CUDA_GRAPHS,
    DTYPES,
    FP8_RECIPES,
    LAYOUT_COLUMNS,
    LORA_TARGETS,
    MODEL_BLOCKS,
    MOE_ROUTING,
    OTHER_CROSS_ENTROPIES,
    OTHER_NAMES,
    OTHER_RECIPES,
    OVERLAPS,
    RECIPE_CLASSES,
    TOKEN_DISPATCHERS,
)
from jointopt.jobs.catalog.clusters import FIGURES, SITE, build_cluster
from jointopt.jobs.catalog.clusters import KEYS as CLUSTER_KEYS
from jointopt.jobs.catalog.frameworks import (
    framework_names,
    framework_of_words,
    kind_of_runs,
    load_framework,
    named_class,
    named_release,
    newer_than_known,
    profile_of_class,
    with_settings,
)
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import (
    architectures_of,
    attention_kernels,
    only_recipe,
    recipes_of,
    scaled_dtype,
    scaling_recipe,
)
from jointopt.jobs.catalog.limits import check_batch, limit_of, limited_number, limited_whole, limits
from jointopt.jobs.catalog.models import known_model, load_model
from jointopt.jobs.catalog.networks import check_links, link_with_unit
from jointopt.jobs.clocks import read_clocks, read_power_limits
from jointopt.jobs.cluster import Cluster, Gpu, load_machine
from jointopt.jobs.defaults import FUSED_NORM, NATURAL_SPREAD, default_attention, default_dtype
from jointopt.jobs.details import details_of, differing_details
from jointopt.jobs.framework import Framework
from jointopt.jobs.huggingface import read_config
from jointopt.jobs.job import STATE_BYTES, STATE_FIELDS, TF32, Constraints, Job, ScalingRecipe, Search, Training
from jointopt.jobs.model import Model, assumed_kinds, block_of, kinds_of
from jointopt.jobs.model_facts import facts
from jointopt.jobs.objectives import FURTHER_OBJECTIVES, OBJECTIVE_COLUMNS, OBJECTIVES, RUN_OBJECTIVES, TIME_ALONE
from jointopt.jobs.pattern import layer_mappings
from jointopt.jobs.plans.rules import check_abilities, check_splits
from jointopt.jobs.reading import Section, dump_yaml, parse_yaml, quoted_value, read_text
from jointopt.jobs.reliability import RELIABILITY_KEYS, Reliability, read_reliability
from jointopt.jobs.shape import BLOCK_KEYS, inline_model, read_size
from jointopt.jobs.slurm import SLURM_KEYS, Slurm, read_slurm

# Changes of a job file by its keys, ``cluster.nodes`` for the key ``nodes`` of its section ``cluster``.


JOB_KEYS = ("name", "model", "training", "cluster", "search", "constraints", "objectives", "slurm", "reliability")
TRAINING_KEYS = tuple(f.name for f in dataclasses.fields(Training) if not f.name.endswith("_assumed"))
SEARCH_KEYS = tuple(f.name for f in dataclasses.fields(Search))
CONSTRAINT_KEYS = tuple(f.name for f in dataclasses.fields(Constraints))
_SECTIONS = {
    "training": TRAINING_KEYS,
    "cluster": CLUSTER_KEYS,
    "search": SEARCH_KEYS,
    "constraints": CONSTRAINT_KEYS,
    "slurm": SLURM_KEYS,
    "reliability": RELIABILITY_KEYS,
}


def keys_meant(key: str) -> list[str]:
    """The keys of a job file, with their sections, that an unknown one may mean: those of its name, or the closest."""
    dotted = {f"{section}.{name}": name for section, names in _SECTIONS.items() for name in names}
    section, _, name = key.rpartition(".")
    same = [full for full, own in dotted.items() if own == name and full != key]
    if section in dotted:
        return [section]
    if section in _SECTIONS:
        return same or close_words(key, [full for full in dotted if full.startswith(f"{section}.")])
    meanings = {own: full for full, own in dotted.items()} | dict(zip(JOB_KEYS, JOB_KEYS, strict=True))
    return same or [meanings[word] for word in close_words(name, meanings)]


def check_changes(changes: Mapping[str, Any]) -> None:
    """UsageError for a key that no job file has; those of a model are judged with the model."""
    if not isinstance(changes, Mapping):
        kind = type(changes).__name__
        raise UsageError(f"changes must be a mapping such as {{'cluster.nodes': 4}}; got {kind}.")
    for key, value in changes.items():
        section, _, name = str(key).rpartition(".")
        if section != "model" and name not in (_SECTIONS.get(section, ()) if section else JOB_KEYS):
            given = f"{key}={value if isinstance(value, str) else quoted_value(value)}"
            raise JobError(
                f"{given}: the key {key!r} is unknown{did_you_mean(keys_meant(str(key)))}; expected a key of the job "
                f"file: {', '.join(JOB_KEYS)}, or one within them such as cluster.nodes."
            )


def with_keys(mapping: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of a job with ``changes``, by dotted keys; a cluster by name keeps it as ``cluster.catalog``."""
    out = dict(mapping)
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        if not section:
            out[name] = value
            continue
        before = out.get(section)
        kept = {"catalog": before} if isinstance(before, str) and section == "cluster" else before
        if isinstance(kept, str):
            raise JobError(
                f"{key}: {section} is {kept!r}, whose keys are in the catalogue; write it out to change one."
            )
        out[section] = {**(kept or {}), name: value}
    return out


_STUDIES = Path(__file__).parents[1] / "studies"
_OF_EXPERTS = {"ep_overlap": None, "moe_load_imbalance": 1, "moe_routing": None}
_NOT_OF_POWER = ("iteration_time_s", "memory_fraction")  # constraints


def load_job(path: str | Path, changes: Mapping[str, Any] = MappingProxyType({})) -> Job:
    """The job of a YAML file, or the shipped job of that name (see `shipped_jobs`).

    ``changes`` stand in for keys of the file, ``cluster.nodes`` for the key ``nodes`` of its section ``cluster``.
    Raises `UsageError` (`JobError`, `CatalogError`), one sentence that names the file and the key.
    """
    file = job_file(path)
    stem = "".join(c for c in file.stem if c.isprintable())[:200].strip() or "job"
    with _mapping_of(path, changes) as mapping:
        return parse_job(with_keys(mapping, changes), stem, file.parent)


@contextmanager
def _mapping_of(path: str | Path, changes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The mapping of a job file, whose path begins the sentence of what is wrong with it."""
    file = job_file(path)
    check_changes(changes)
    text = job_text(path, file)
    try:
        yield dict(parse_yaml(text))
    except UsageError as error:
        raise type(error)(f"{file}: {error}") from error


def with_changes(job: Job, changes: Mapping[str, Any]) -> Job:
    """The job with other values for some keys of its file, as for `load_job`."""
    check_changes(changes)
    return parse_job(with_keys(job_mapping(job), changes), job.name, Path()) if changes else job


def job_file(path: str | Path) -> Path:
    """The file that a path, or the name of a shipped job, means."""
    if not isinstance(path, str | Path):
        raise UsageError(
            f"A job is read from the path of its file, or a shipped job's name; got {type(path).__name__}."
        )
    shipped = str(path) in shipped_jobs() and not Path(path).is_file()
    return _STUDIES / str(path) / "job.yaml" if shipped else Path(path)


def job_text(path: str | Path, file: Path) -> str:
    """The text of the file that a path means (`job_file`); JobError names the shipped job that may be meant."""
    with suppress(OSError, ValueError):  # of a path that no system has, which `read_text` reports
        if not file.exists():
            raise JobError(
                f"{path} is neither a file nor a shipped job{nearest_hint(path, shipped_jobs())}; "
                "`jointopt catalog jobs` lists the shipped ones."
            )
    return read_text(file)


def shipped_jobs() -> tuple[str, ...]:
    """Names of the jobs that come with jointopt: real systems, under ``studies/``."""
    return tuple(sorted(entry.parent.name for entry in _STUDIES.glob("*/job.yaml")))


def shipped_job(name: str) -> Job:
    """The shipped job of that name; JobError lists the known ones."""
    Section({"job": name}, "").choice("job", shipped_jobs())
    return load_job(_STUDIES / name / "job.yaml")


def parse_job(mapping: Mapping[str, Any], stem: str, base_dir: Path) -> Job:
    """The job that a mapping describes; ``stem`` names a nameless one, paths are relative to ``base_dir``."""
    section = Section(mapping, "").only(JOB_KEYS, keys_meant)
    name = section.text("name", stem)
    model = _model(section, name, base_dir)
    cluster = _cluster(section, base_dir)
    allowed = section.section("search", SEARCH_KEYS)
    clocks, assumed = read_clocks(allowed, cluster.gpu)
    training = read_training(section, cluster.gpu, model)
    assumed += training_assumptions(section, training, cluster.gpu)
    uncounted = "kept (model.other), and not counted in time or memory"
    assumed += tuple(Assumption(f"model.{one}", None, f"{facts()[one].words}: {uncounted}") for one in model.other)
    kinds = ", ".join(str(kinds_of("attention")[kind]["words"]) for kind in assumed_kinds(model))
    why = f"{kinds}: the rates of its kernels, of which no recorded run is known"
    assumed += (Assumption("model.layers", None, why),) if kinds else ()
    cluster = dataclasses.replace(cluster, assumed=(*cluster.assumed, *assumed))
    search = Search(
        **{name: _allowed(allowed, name) for name in LAYOUT_COLUMNS if allowed.has(name)}, clock_mhz=clocks,
        per_stage_clocks=allowed.flag("per_stage_clocks", True), power_limit_w=read_power_limits(allowed, cluster),
    )  # fmt: skip
    check_abilities(search, training)
    check_splits(search, model)
    bounds, gpu = section.section("constraints", CONSTRAINT_KEYS), cluster.gpu
    powerless = f"nothing is known of the power of GPU {gpu.id!r}, so that no energy can be predicted"
    for key in (key for key in CONSTRAINT_KEYS if bounds.has(key) and gpu.power is None and key not in _NOT_OF_POWER):
        raise JobError(f"{bounds.at(key)}: {powerless}; leave it out.")
    constraints = {key: limited_number(bounds, key, f"constraints.{key}") for key in CONSTRAINT_KEYS if bounds.has(key)}
    objectives: tuple[str, ...] = OBJECTIVES if gpu.power else TIME_ALONE
    if section.has("objectives"):
        items = _items(section, "objectives", "an objective")
        objectives = tuple(dict.fromkeys(item.choice("objectives", OBJECTIVE_COLUMNS) for item in items))
        if objectives != TIME_ALONE and gpu.power is None:
            raise JobError(f"objectives: {powerless}; expected [{', '.join(TIME_ALONE)}], or leave it out.")
    for objective in objectives:
        if (rate := OBJECTIVE_COLUMNS[objective].rate) and getattr(cluster, rate) is None:
            raise JobError(f"objectives: {objective} needs cluster.{rate}; state it, or leave {objective} out.")
    reliability = read_reliability(section, cluster)
    _check_run_objectives(objectives, training, cluster, reliability)
    return Job(
        name, model, training, cluster, search, Constraints(**constraints), objectives, read_slurm(section), reliability
    )  # fmt: skip


def _check_run_objectives(
    objectives: Sequence[str], training: Training, cluster: Cluster, reliability: Reliability
) -> None:
    """JobError where objectives of a whole run lack what they need, or stand beside others of an iteration."""
    of_run = [name for name in objectives if name in RUN_OBJECTIVES]
    others = [name for name in objectives if name not in (*RUN_OBJECTIVES, *FURTHER_OBJECTIVES)]
    if not of_run:
        return
    first = f"objectives: {of_run[0]}"
    if others:
        raise JobError(f"{first} is of a whole run and {others[0]} of one iteration; leave one of the two out.")
    if training.run_tokens is None:
        raise JobError(f"{first} needs training.run_tokens, the tokens of the whole run (--run-tokens 15.6e12).")
    if "money" in of_run and not cluster.has_price:
        raise JobError(
            "objectives: money needs cluster.price_per_gpu_hour or cluster.price_per_kwh; state one or both."
        )
    if {*RUN_OBJECTIVES[1:]} <= {*of_run} and len(reliability.spare_counts) > 1:
        both = " and ".join(RUN_OBJECTIVES[1:])
        raise JobError(f"objectives: {both} rank several reliability.spares differently; leave one of the two out.")


def job_from_options(
    model: str,
    gpu: str,
    gpus: int,
    global_batch_size: int,
    seq_length: int,
    gpus_per_node: int | None = None,
    dtype: str | None = None,
    framework: str = "generic",
    inter_node_gbytes_per_s: float | str | None = None,
) -> Job:
    """A job without a file. Nodes have the GPU's usual number of GPUs, or all of them where they are fewer.

    Raises JobError where the GPUs do not fill whole nodes, and what `parse_job` raises.
    """
    options = Section({"gpus": gpus, "gpus_per_node": gpus_per_node}, "")
    total = limited_whole(options, "gpus", "cluster.num_gpus")
    found = load_gpu(gpu)
    per_node = options.whole("gpus_per_node", default=min(total, found.usual_gpus_per_node or total))
    if gpus_per_node is None and found.usual_gpus_per_node is None and total > 1:
        raise JobError(f"No source states how many {found.id} a node usually has; give --gpus-per-node.")
    if total % per_node:
        raise JobError(
            f"{total} GPUs do not fill whole nodes of {per_node}; choose a multiple of {per_node}, or give "
            f"--gpus-per-node."
        )
    nodes, batch = total // per_node, global_batch_size  # None is a key without a value
    training = {"seq_length": seq_length, "global_batch_size": batch, "dtype": dtype, "framework": framework}
    cluster = {"gpu": found.id, "nodes": nodes, "gpus_per_node": per_node}
    cluster |= {"inter_node_gbytes_per_s": inter_node_gbytes_per_s}
    job = parse_job({"model": model, "training": training, "cluster": cluster}, "job", Path())
    return dataclasses.replace(job, name=f"{job.model.name}-{nodes}x{per_node}-{found.id}"[:200])


def _model(section: Section, name: str, base_dir: Path) -> Model:
    """The model in place, of the catalogue, of a configuration, or a block of one of these."""
    value = section.values.get("model")
    if isinstance(value, Mapping) and "catalog" not in value:
        return inline_model(value, name)
    key, inner, mapping = "model", section, ", or a mapping"
    if isinstance(value, Mapping):
        key, inner, mapping = "catalog", Section(value, "model").only(BLOCK_KEYS), ""
        block = inner.choice("block", MODEL_BLOCKS)
    if not isinstance(inner.values.get(key), str):
        raise inner.refuse(key, f"a catalogue name{',' if mapping else ' or'} a path to a config.json{mapping}")
    text = inner.text(key, most=1000)
    try:
        whole = load_model(text)
    except CatalogError as error:
        path, is_file = base_dir / text, False
        with suppress(OSError):  # of a path that no system has
            path = path / "config.json" if path.is_dir() else path
            is_file = path.is_file() or path.name == "config.json" or text.endswith(".json") or text[0] in "./"
        if not is_file:
            raise CatalogError(f"{inner.at(key)}: {error}") from error
        whole = read_config(path)
    if inner is section:
        return whole
    return block_of(whole, block, read_size(inner, "num_layers", 1), inner.text("name", f"{whole.name}-{block}"))


def _cluster(section: Section, base_dir: Path) -> Cluster:
    value = section.values.get("cluster")
    if isinstance(value, str):
        value = {"catalog": section.text("cluster")}
    elif not isinstance(value, Mapping):
        raise section.refuse("cluster", "a catalogue name, or a mapping with gpu, nodes and gpus_per_node")
    if isinstance(value.get("gpu"), str) and value["gpu"].endswith((".yaml", ".yml")):
        value = {**value, "gpu": parse_yaml(read_text(base_dir / value["gpu"]))}
    if isinstance(value.get("machine"), str):
        value = {**value, "machine": load_machine(base_dir / value["machine"]).mapping()}
    cluster = build_cluster(value)
    check_links(cluster, value)
    if cluster.num_gpus > (limit := limits()["cluster.num_gpus"]).most:
        raise JobError(
            f"cluster.nodes and cluster.gpus_per_node make {cluster.num_gpus:,} GPUs; expected at most {limit.most:,}"
            f"{limit.why}."
        )
    return cluster


def _allowed(section: Section, name: str) -> tuple[Any, ...]:
    """The values that the job allows for a layout column, in order, each once."""
    column = COLUMNS[name]
    if column.dtype == "bool":
        return tuple(sorted({item.flag(name) for item in _items(section, name, "true or false")}))
    if column.codes is None:
        low, high = int(column.low), int(min(column.high, limit_of("cluster.num_gpus")))
        return tuple(sorted({item.whole(name, low, high) for item in _items(section, name, "a whole number")}))
    found = set()
    for item in _items(section, name, column.codes.expected):
        try:
            found.add(column.encode(item.values[name]))
        except ValueError as error:
            raise item.refuse(name, column.codes.expected) from error
    return tuple(map(column.decode, sorted(found)))


def _items(section: Section, key: str, expected: str) -> list[Section]:
    """Each allowed value as a section of its own, to be checked like any other; one is a list of one."""
    value: Any = section.values[key]
    values = value if isinstance(value, list) else [value]
    if not 0 < len(values) <= 1000:
        raise section.refuse(key, f"{expected}, or a list of 1 to 1000 of them")
    return [Section({key: v}, section.where) for v in values]


# --- back into YAML


def dump_job(job: Job | Mapping[str, Any]) -> str:
    """The YAML of a job, or of a mapping that describes one; `load_job` of it gives an equal job.

    A model that is not in the catalogue is written out; what was assumed is left out, to be assumed again.
    """
    return dump_yaml(job_mapping(job) if isinstance(job, Job) else job)


def job_mapping(job: Job) -> dict[str, Any]:
    """The mapping that `parse_job` reads back into an equal job."""
    model = job.model
    training = {key: value for key, value in _filled(job.training).items() if key in TRAINING_KEYS and value != ""}
    training["dtype"] = job.training.precision
    if recipe := job.training.fp8_recipe:
        training["fp8_recipe"] = recipe.name
    if not model.is_moe:
        training = {key: value for key, value in training.items() if value != _OF_EXPERTS.get(key)}
    if job.training.attention_assumed:
        del training["attention"]
    for key in {"dtype", "fp8_recipe"} & {assumption.key for assumption in job.cluster.assumed}:
        del training[key]
    shape = {key: value for key, value in vars(model).items() if value or isinstance(value, bool)}
    shape |= {"layers": layer_mappings(model.layers)} if model.layers else {}
    mapping = {
        "name": job.name,
        "model": model.name if is_of_catalogue(model) else shape,
        "training": training | {"framework": job.training.framework.name},
        "cluster": _cluster_mapping(job.cluster),
        "search": _search_mapping(job),
        "constraints": _filled(job.constraints),
        "objectives": list(job.objectives),
        "slurm": _differing(job.slurm, Slurm()),
        "reliability": _differing(job.reliability, Reliability()),
    }
    return {key: value for key, value in mapping.items() if value != {}}


def is_of_catalogue(model: Model) -> bool:
    """Whether its name says all of a model: the shape, and the details of its configuration."""
    known = known_model(model.name)
    return known is not None and known == model and not differing_details(details_of(model), details_of(known))


def _filled(item: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not None, as plain YAML values."""
    return {key: _plain(value) for key, value in vars(item).items() if value is not None}


def _differing(item: Any, usual: Any) -> dict[str, Any]:
    """The fields that are not what they usually are, as plain YAML values."""
    return {key: value for key, value in _filled(item).items() if value != _filled(usual).get(key)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e9 else value


def _cluster_mapping(cluster: Cluster) -> dict[str, Any]:
    """Sizes, and the figures that are not what a cluster of that size would be given anyway."""
    sizes: dict[str, Any] = {
        "gpu": dict(cluster.gpu.own_figures) or cluster.gpu.id, "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
    }  # fmt: skip
    if cluster.machine is not None:
        sizes["machine"] = cluster.machine.mapping()
    assumed, filled = {assumption.key for assumption in cluster.assumed}, _filled(cluster)
    stated = {key: filled[key] for key in FIGURES if key not in assumed}
    needed = {}
    for key, value in stated.items():
        with suppress(UsageError):  # where the key is needed
            bare = build_cluster(sizes | {other: figure for other, figure in stated.items() if other != key})
            if key not in {assumption.key for assumption in bare.assumed} and getattr(bare, key) == value:
                continue
        needed[key] = value
    site = {key: filled[key] for key in SITE if key in filled}
    if cluster.gpu.memory_gib != build_cluster(sizes | needed).gpu.memory_gib:
        site["memory_gib"] = _plain(cluster.gpu.memory_gib)
    needed = {key: link_with_unit(cluster, key, value) for key, value in needed.items()}
    mapping = {"name": cluster.name} | sizes | needed | site
    return {key: value for key, value in mapping.items() if value != "" and key not in assumed}


def _search_mapping(job: Job) -> dict[str, Any]:
    """What the job searches; clocks as the span, or nothing, where that is read back as the same ones."""
    mapping, clocks = _filled(job.search), job.search.clock_mhz
    if job.search.per_stage_clocks:
        del mapping["per_stage_clocks"]
    spans: list[Any] = [None]
    if len(clocks) > 2:
        ends = {"min": clocks[0], "max": clocks[-1], "step": clocks[1] - clocks[0]}
        spans.append({key: _plain(value) for key, value in ends.items()})
    for span in spans:
        with suppress(UsageError):
            if read_clocks(Section({"clock_mhz": span}, "search"), job.cluster.gpu)[0] == clocks:
                mapping["clock_mhz"] = span
                break
    return {key: value for key, value in mapping.items() if value is not None}


# Jobs of many clusters: a job file whose cluster has lists of GPUs and of nodes, or numbers of GPUs to try.


MOST_SIZES = 64
_OF_ONE_GPU = {
    "cluster": ("power_limit_w", "memory_gib", "intra_node_gbytes_per_s", "intra_node_pj_per_bit", "machine"),
    "search": ("clock_mhz",),
}


def gpu_counts_in(text: str) -> tuple[int, ...]:
    """The numbers of GPUs in ``8..1024`` (doubled from the first to at most the last) or ``8,16,48``; UsageError."""
    first, dots, last = text.partition("..")
    highest = limit_of("cluster.num_gpus")
    try:
        numbers = [int(word) for word in ((first, last) if dots else text.split(","))]
    except ValueError:
        numbers = [0]
    if dots and 0 < numbers[0] <= numbers[1] <= highest:
        numbers = [size for step in range(24) if (size := numbers[0] << step) <= numbers[1]]
    elif dots:
        numbers = [0]
    if not all(0 < number <= highest for number in numbers):
        raise UsageError(
            f"--gpus takes numbers of GPUs such as 8..1024 (doubled) or 8,16,48, up to {highest:,}; got {text!r}."
        )
    return tuple(sorted(set(numbers)))


def load_jobs(
    path: str | Path, gpus: Sequence[int] = (), changes: Mapping[str, Any] = MappingProxyType({}), *, weak: bool = False
) -> list[Job]:
    """A job for each cluster that a job file (or a shipped job) stands for, by GPU, then by size.

    ``cluster.gpu``, ``cluster.nodes`` and ``cluster.price_per_gpu_hour`` may be lists (prices one per GPU, in their
    order); ``gpus`` are numbers of GPUs in place of the nodes. For other GPUs in ``changes`` what the file states of
    its own is left out. ``weak``: the batch grows with the GPUs, from the file's
    at the smallest size. UsageError as for `load_job`.
    """
    file = job_file(path)
    with _mapping_of(path, changes) as mapping:
        for section, keys in _OF_ONE_GPU.items() if "cluster.gpu" in changes else ():
            if isinstance(own := mapping.get(section), Mapping):
                mapping[section] = {key: value for key, value in own.items() if key not in keys}
        return sized_jobs(with_keys(mapping, changes), file.stem, file.parent, gpus, weak=weak)


def sized_jobs(
    mapping: Mapping[str, Any], stem: str, base_dir: Path, gpus: Sequence[int] = (), *, weak: bool = False
) -> list[Job]:
    """As `load_jobs`, of the mapping of a job file."""
    cluster = mapping.get("cluster")
    cluster = {"catalog": cluster} if isinstance(cluster, str) else cluster
    if not isinstance(cluster, Mapping):
        raise JobError("cluster must be a catalogue name, or a mapping with gpu, nodes and gpus_per_node.")
    listed: dict[str, list[Any]] = {}
    for key in ("gpu", "nodes", "price_per_gpu_hour"):
        value = cluster.get(key)
        if isinstance(value, list) and not value:
            raise JobError(f"cluster.{key} must be a value, or a list of them; got [].")
        listed[key] = value if isinstance(value, list) else [value]
    kinds, prices = listed["gpu"], listed["price_per_gpu_hour"]
    if len(prices) not in (1, len(kinds)):
        raise JobError(f"cluster.price_per_gpu_hour has {len(prices)} prices for {len(kinds)} GPUs; expected one each.")
    jobs = []
    for kind, price in zip(kinds, prices if prices[1:] else prices * len(kinds), strict=True):
        stated = dict(cluster) | {"gpu": kind, "price_per_gpu_hour": price}
        for sizes in _sizes(stated, gpus) if gpus else [{"nodes": count} for count in listed["nodes"]]:
            one = {key: value for key, value in (stated | sizes).items() if value is not None or key not in listed}
            jobs.append(parse_job({**mapping, "cluster": one}, stem, base_dir))
    if len(jobs) > MOST_SIZES:
        raise JobError(f"cluster: {len(jobs)} sizes of clusters; at most {MOST_SIZES} are compared at once.")
    least = min(job.cluster.num_gpus for job in jobs)
    return [_sized(job, least if weak else job.cluster.num_gpus) for job in jobs]


def _sizes(cluster: Mapping[str, Any], gpus: Sequence[int]) -> list[dict[str, int]]:
    """The nodes that these numbers of GPUs make: whole ones, or a part of one."""
    per_node, kind = cluster.get("gpus_per_node"), cluster.get("gpu")
    if per_node is None and isinstance(kind, str):
        per_node = load_gpu(kind).usual_gpus_per_node
    per_node = per_node if isinstance(per_node, int) else 8
    for count in gpus:
        if count > per_node and count % per_node:
            raise UsageError(
                f"--gpus: {count} GPUs do not fill whole nodes of {per_node}; choose a multiple of {per_node}."
            )
    return [{"nodes": max(count // per_node, 1), "gpus_per_node": min(count, per_node)} for count in gpus]


def _sized(job: Job, least: int) -> Job:
    """The job named by its size, with a batch that grows with its GPUs from ``least`` on."""
    cluster, training = job.cluster, job.training
    batch, rest = divmod(training.global_batch_size * cluster.num_gpus, least)
    if rest:
        raise UsageError(
            f"--weak: a batch of {training.global_batch_size} does not grow from {least} to {cluster.num_gpus} "
            f"GPUs in whole sequences; choose multiples of the smallest size."
        )
    check_batch(batch, training.seq_length, f"--weak: the batch of {cluster.num_gpus:,} GPUs")
    name = f"{job.name}-{cluster.nodes}x{cluster.gpus_per_node}-{cluster.gpu.id}"[:200]
    return dataclasses.replace(job, name=name, training=dataclasses.replace(training, global_batch_size=batch))


# The ``training`` section.

# `row.dtype` of a table row is the row's own type: scripts that write jobs from tables write it down
_PANDAS_ROW = "object"


def _training_section(section: Section) -> Section:
    """The section ``training``, older names of its keys in today's."""
    flags = {name: key for name, key in OTHER_NAMES.items() if key != "framework_release"}
    given = section.section("training", (*TRAINING_KEYS, *flags))
    values = {key: value for key, value in given.values.items() if key not in flags}
    for other in (other for other in flags if given.has(other)):
        value = given.flag(other)
        values.setdefault(flags[other], MOE_ROUTING[not value] if flags[other] == "moe_routing" else value)
    return Section(values, given.where)


def read_training(section: Section, gpu: Gpu, model: Model) -> Training:
    """The training of a job file for that GPU; JobError names the key that makes no sense."""
    training = _training_section(section)
    given, row = training.values, training.values.get("dtype") == _PANDAS_ROW
    usual = default_dtype(gpu)
    precision = usual if row else training.choice("dtype", (*DTYPES, TF32), usual)
    dtype = "fp32" if precision == TF32 else precision
    if precision == TF32 and not gpu.has_tf32:
        raise JobError(f"{training.at('dtype')}: GPU {gpu.id!r} has no tf32; expected fp32 or a format of 16 bits.")
    if dtype not in gpu.peak_tflops:
        raise JobError(
            f"{training.at('dtype')}: no source states the {dtype} rate of GPU {gpu.id!r}; "
            f"expected one of {', '.join(gpu.peak_tflops)}."
        )
    # free text may name the framework, and the class of its recipe, as a table's does
    text = given["framework"] if isinstance(given.get("framework"), str) else ""
    meant = framework_of_words(text)
    framework = meant or load_framework(training.choice("framework", framework_names(), "generic"))
    stated = training.choice("recipe_class", RECIPE_CLASSES, "") or (named_class(text) if meant else "")
    settings = _settings(training, framework)
    settings.setdefault("framework_release", named_release(text) if meant else "")
    recipe = _fp8_recipe(training, gpu, dtype)
    kind = kind_of_runs(gpu, dtype, recipe, model.is_moe, model.kv_lora_rank)
    framework = profile_of_class(with_settings(framework, settings, **kind), stated)
    # a release that runs another kernel than the newest states that; where neither is named, the kernel is assumed
    software = settings["framework_release"]
    newest, named = (default_attention(framework, gpu, dtype, words, newer=True) for words in ("", software))
    attention, able = training.choice("attention", ATTENTIONS, named), attention_kernels(gpu)
    if attention not in able:
        raise JobError(
            f"{training.at('attention')}: {attention} does not run on GPU {gpu.id!r} ({gpu.architecture}); "
            f"expected one of {', '.join(able)}."
        )
    seq_length = limited_whole(training, "seq_length", "training.seq_length")
    check_batch(training.whole("global_batch_size"), seq_length)
    read = Training(
        seq_length=seq_length,
        global_batch_size=training.whole("global_batch_size"),
        dtype=dtype,
        fp8_recipe=recipe,
        dtype_assumed=row,
        attention=attention,
        attention_assumed=not training.has("attention") and named == newest,
        fused_norm=training.flag("fused_norm", FUSED_NORM),
        framework=dataclasses.replace(framework, tf32=framework.tf32 or precision == TF32),
        recipe_class=stated,
        token_dispatcher=training.choice("token_dispatcher", TOKEN_DISPATCHERS, ""),
        **settings,
        **_further(training, framework),
    )
    _check_experts(model, read)
    # adapters of which no layer of the model has the linear would leave nothing to train
    there = LORA_TARGETS[:2] * model.has_attention + LORA_TARGETS[2:] * model.has_mlp
    if read.frozen and not set(read.adapted) & set(there):
        raise JobError(
            f"training.lora_target_modules: {model.name} has no {', '.join(read.adapted)}, and nothing would be "
            f"trained; expected some of {', '.join(there)}."
        )
    return read


def _fp8_recipe(training: Section, gpu: Gpu, dtype: str) -> ScalingRecipe | None:
    """The recipe that scales fp8 and fp4 products: one that the precision has and the GPU runs; None: not stated.

    Of fp4 Transformer Engine has but one, which is meant where none is stated.
    """
    if not training.has("fp8_recipe"):
        return only_recipe(dtype, gpu)
    name = training.choice("fp8_recipe", (*FP8_RECIPES, *OTHER_RECIPES))
    name = OTHER_RECIPES.get(name, name)
    able, scaled = recipes_of(dtype, gpu), scaled_dtype(name)
    if scaled != dtype:
        others = f"one of {', '.join(able)}, or " if able else ""
        raise JobError(
            f"{training.at('fp8_recipe')}: {name} scales products in {scaled}, and dtype is {dtype}; "
            f"expected {others}dtype {scaled}, or leave it out."
        )
    if name not in able:
        raise JobError(
            f"{training.at('fp8_recipe')}: {name} does not run on GPU {gpu.id!r} ({gpu.architecture}), but on "
            f"{', '.join(architectures_of(name))}; expected one of {', '.join(able)}."
        )
    return scaling_recipe(name, gpu)


def _settings(training: Section, framework: Framework) -> dict[str, Any]:
    """What the job states of its software (`SETTINGS`); JobError for what that framework has not."""
    found: dict[str, Any] = {key: training.flag(key) for key in ("compile", "fp8_activations") if training.has(key)}
    losses = (*CROSS_ENTROPIES, *OTHER_CROSS_ENTROPIES)
    words = {"cuda_graph": CUDA_GRAPHS, "moe_routing": MOE_ROUTING, "cross_entropy": losses}
    found |= {key: training.choice(key, names) for key, names in words.items() if training.has(key)}
    if loss := found.get("cross_entropy"):
        found["cross_entropy"] = OTHER_CROSS_ENTROPIES.get(loss, loss)
    if training.has("logits_chunks"):
        found["logits_chunks"] = limited_whole(training, "logits_chunks", "training.logits_chunks")
    if found.get("cuda_graph", "none") != "none" and framework.family != "megatron-core":
        raise JobError(
            f"{training.at('cuda_graph')}: the memory of {framework.name}'s CUDA graphs is unknown; expected none."
        )
    for key in (key for key in OVERLAPS if training.has(key)):
        value = training.values[key]
        found[key] = value if isinstance(value, bool) else training.number(key, zero=True)
        if not 0.0 <= found[key] <= 1.0:
            raise training.refuse(key, "true, false or a share from 0 to 1")
    if training.has("framework_release"):
        value = training.values["framework_release"]
        found["framework_release"] = named_release(str(value))
        if not found["framework_release"] or (isinstance(value, float) and value == round(value, 1)):  # 25.10 is 25.1
            raise training.refuse("framework_release", "a release such as 26.06 or 0.16.1, in quotes")
    return found


def _further(training: Section, framework: Framework) -> dict[str, Any]:
    """Keys that most jobs leave out: balance of experts, tokens of the run, formats of states, adapters."""
    imbalance = limited_number(training, "moe_load_imbalance", "training.moe_load_imbalance", default=1.0)
    found: dict[str, Any] = {"moe_load_imbalance": imbalance}
    if found["moe_load_imbalance"] < 1.0:
        raise training.refuse("moe_load_imbalance", "a number from 1 (balanced) on")
    if training.has("run_tokens"):  # which people write as 15e12
        tokens = limited_number(training, "run_tokens", "training.run_tokens")
        if not tokens.is_integer():
            raise training.refuse("run_tokens", "a whole number of tokens")
        found["run_tokens"] = int(tokens)
    for name in (name for name in STATE_FIELDS if training.has(name)):
        dtype = name.endswith("_dtype")
        found[name] = training.choice(name, tuple(STATE_BYTES)) if dtype else training.flag(name)
    adapters = [key for key in ("lora_dim", "lora_alpha", "lora_target_modules") if training.has(key)]
    if not adapters:
        return found
    if not framework.trains_adapters:
        able = ", ".join(name for name in framework_names() if load_framework(name).trains_adapters)
        raise JobError(
            f"{training.at(adapters[0])}: {framework.name} trains no adapters (LoRA); expected one of {able}."
        )
    targets = training.values.get("lora_target_modules") or list(LORA_TARGETS)
    if not isinstance(targets, list) or not all(target in LORA_TARGETS for target in targets):
        raise training.refuse("lora_target_modules", f"a list of some of {', '.join(LORA_TARGETS)}")
    found["lora_dim"] = limited_whole(training, "lora_dim", "training.lora_dim")
    if training.has("lora_alpha"):
        found["lora_alpha"] = limited_number(training, "lora_alpha", "training.lora_alpha")
    if set(targets) != set(LORA_TARGETS):
        found["lora_target_modules"] = tuple(target for target in LORA_TARGETS if target in targets)
    return found


def _check_experts(model: Model, training: Training) -> None:
    """JobError for a moe_load_imbalance that no plan can have, and for an ep_overlap that none can run.

    A token goes to an expert at most once, and forced balance draws experts at random. Megatron Core asserts the rest.
    """
    imbalance = training.moe_load_imbalance
    if imbalance > 1.0 and training.moe_routing == "forced":
        raise JobError(
            f"training.moe_load_imbalance {imbalance:g} contradicts moe_routing forced, which draws "
            f"experts at random; expected one of the two."
        )
    most, why = 1.0, "no experts"
    if model.is_moe:
        most = model.num_experts / model.moe_router_topk
        why = f"each token goes to {model.moe_router_topk} of {model.num_experts} experts"
    if imbalance > most:
        raise JobError(
            f"training.moe_load_imbalance must be at most {most:g} for {model.name} ({why}); got {imbalance:g}."
        )
    megatron = training.framework.family == "megatron-core"
    reasons = (
        (not model.is_moe, f"{model.name} has no experts"),
        (megatron and training.dtype == "fp32", "it needs bf16 or fp16, and dtype is fp32"),
        (megatron and model.mtp_num_layers > 1, "it needs at most one multi-token-prediction layer, and "
         f"{model.name} has {model.mtp_num_layers}"),
    )  # fmt: skip
    for wrong, reason in reasons:
        if training.ep_overlap and wrong:
            raise JobError(f"training.ep_overlap: {reason}; expected false, or leave it out.")


def training_assumptions(section: Section, training: Training, gpu: Gpu) -> tuple[Assumption, ...]:
    """What is assumed of a precision, and of the recipe that scales it, where the job states none."""
    given, dtype, found = _training_section(section), training.dtype, []
    if training.dtype_assumed:
        reason = f"dtype: {_PANDAS_ROW!r} is pandas' word for a whole row, not a precision; {dtype} is assumed"
        found.append(Assumption("dtype", dtype, reason))
    elif not given.has("dtype") and dtype != "bf16":
        found.append(Assumption("dtype", dtype, f"dtype is not given and {gpu.id} has no bf16; {dtype} is assumed"))
    if training.fp8_recipe is not None and not given.has("fp8_recipe"):
        name = training.fp8_recipe.name
        sentence = f"{name}, the only one of {dtype} on {gpu.id}, is assumed"
        found.append(Assumption.not_given("fp8_recipe", name, name, sentence))
    if newer_than_known(training.framework, training.framework_release):
        newest = training.framework.newest_release
        sentence = f"framework_release {training.framework_release} is newer than {newest}, the newest known: as that"
        found.append(Assumption("framework_release", newest, sentence))
    if training.moe_routing == "natural" and training.moe_load_imbalance == 1.0:
        spread = f"a spread of {NATURAL_SPREAD} over experts"
        sentence = f"{spread} (arXiv:2408.15664) is assumed"
        found.append(Assumption.not_given("moe_load_imbalance", NATURAL_SPREAD, spread, sentence))
    return tuple(found)
