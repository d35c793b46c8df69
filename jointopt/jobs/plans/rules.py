"""The rules that a layout must keep: masks over arrays, a reason to count each by, a sentence for one plan.

The table is ``catalog/layout_rules.yaml``. `jointopt.jobs.plans.space` sieves the product of all columns by it,
`check_plan` judges one plan, and `check_abilities` holds a job's search against what its framework can do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import JobError
from jointopt.core.schema import (
    COLUMNS,
    DEGREES,
    EXPRESSION_NAMES,
    LAYOUT_COLUMNS,
    MODULES,
    NEUTRAL,
    OVERLAP,
    RECOMPUTE_CODES,
    SCHEDULE,
    STAGE_LAYERS,
    Columns,
    columns_in,
    encode_cells,
    evaluate,
    num_gpus,
)
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.limits import limit_of
from jointopt.jobs.clocks import refused_limits
from jointopt.jobs.defaults import canonical, idle_modules
from jointopt.jobs.framework import OVERLAP_KINDS, overlap_not_offered, usual_overlap_share
from jointopt.jobs.job import Job, Search, Training
from jointopt.jobs.model import Model, kinds_of, mixers_of
from jointopt.jobs.plans.placement import even_domain
from jointopt.jobs.plans.stages import can_be_built, largest_chunk, split_mask, states_even

DUPLICATE = "is the same plan"  # in reasons of rules that keep one of two equal plans
SEARCH = "search."  # begins the names of the rules that the job itself sets
FEWEST_TOKENS, MOST_DOMAINS = 256, 4  # tokens of a sequence on a cp rank; scale-up domains that tp reaches over


@dataclass(frozen=True, eq=False)
class Rule:
    """One rule of the joint space for one job.

    ``counted`` is blank for rules of single plans alone, ``sentence`` for rules of a search alone.
    """

    name: str
    columns: tuple[str, ...]
    breaks: str  # an expression for `jointopt.core.schema.evaluate`; true where columns break the rule
    figures: dict[str, Any]  # that it names beside columns
    counted: str = ""  # reason by which dropped combinations are counted: a format of the figures
    sentence: str = ""  # what one plan is refused with: a format of these, its columns and the table's ``figures``

    def broken(self, columns: Columns) -> Any:
        """True where columns that broadcast break the rule."""
        return evaluate(self.breaks, columns, self.figures)

    @property
    def prevents_start(self) -> bool:
        """Whether a plan that breaks the rule cannot be started; other rules only keep a plan out of a search."""
        return bool(self.sentence) and not self.name.startswith(SEARCH) and DUPLICATE not in self.counted


def layout_rules(job: Job) -> tuple[Rule, ...]:
    """Every rule of the job's space; the earlier one takes the blame for a combination that breaks several."""
    table: list[dict[str, Any]] = read_yaml("layout_rules.yaml")["rules"]
    stated = {row.get("search") for row in table}
    degrees = [{"search": name} for name in (*DEGREES[1:], DEGREES[0])]
    others = [{"search": name} for name in LAYOUT_COLUMNS if name not in stated and name not in DEGREES]
    figures, rules = _figures(job), []
    for row in (*degrees, *table, *others):
        if row.get("own") and row["rule"] not in job.training.framework.rules:
            continue
        if "search" in row:
            rules += _searched(job, row["search"], row.get("where"), figures)
        elif "without" in row:
            column = COLUMNS[row["without"]]
            name, words = column.name, column.needs or column.effect.replace(" * ", "*")
            breaks = f"({name} != {column.neutral}) & ~({column.effect})"
            counted, sentence = f"{name} without {words} {DUPLICATE}", f"{name} {{{name}}} needs {words}."
            rules.append(Rule(f"{name}_without", columns_in(breaks), breaks, figures, counted, sentence))
        elif "if" not in row or evaluate(row["if"], {}, figures):
            columns, texts = (
                (*columns_in(row["breaks"]), *row.get("columns", ())),
                (row.get("counted", ""), row.get("sentence", "")),
            )
            rules.append(Rule(row["rule"], columns, row["breaks"], figures, *texts))
    return tuple(rules)


def _searched(job: Job, column: str, where: str | None, figures: dict[str, Any]) -> list[Rule]:
    """The rule of a column whose values the job lists, ``where`` it has an effect; none where it lists none."""
    listed: tuple[Any, ...] | None = getattr(job.search, column)
    if listed is None:
        return []
    codes = encode_cells(column, listed).tolist()
    if column == "recompute":
        codes = recompute_codes(job.training, listed)
    if column == "recompute_modules" and MODULES.bit("core_attn") in codes:
        codes.append(0)  # what a blank means
    where = where or COLUMNS[column].effect
    breaks = f"~np.isin({column}, listed)" + (f" & ({where})" if where else "")
    sentence = f"{column} {{{column}}} is outside the job's search.{column} ({', '.join(map(str, listed))})."
    name, reason = SEARCH + column, f"outside the job's search.{column}"
    return [Rule(name, columns_in(breaks), breaks, {**figures, "listed": codes}, reason, sentence)]


def _figures(job: Job) -> dict[str, Any]:
    """What the table of rules names of a job beside its own fields: figures, words, and functions of all columns."""
    model, training, framework = job.model, job.training, job.training.framework
    sums = split_sums(model)

    listed = [STAGE_LAYERS.numbers(STAGE_LAYERS.code(cell)) for cell in job.search.stage_layers or ()]
    offered, unusual = framework.schedules, set(framework.zero_stages) - set(framework.usual_zero_stages)
    kinds = [kind for kind in OVERLAP_KINDS if getattr(framework, f"chosen_{kind}_overlap")]
    fixed = [
        f"{kind} {'on' if usual_overlap_share(framework, kind) else 'off'}"
        for kind in OVERLAP_KINDS
        if kind not in kinds
    ]
    with_fixed = f", with {' and '.join(fixed)}" if fixed else ""
    choice = f"leaves the choice of {' and '.join(kinds)}{with_fixed}"
    # Megatron Core refuses modules that this model has no place for, and passes over those it has no layer of
    refused = [] if model.kv_lora_rank else ["mla_up_proj"]
    core = MODULES.bit("core_attn")
    return EXPRESSION_NAMES | {
        "job": job, "model": model, "training": training, "framework": framework, "search": job.search,
        "degrees": "*".join(DEGREES), "deepest": limit_of("plan.pp"), "domain": even_domain(job.cluster),
        "fewest_tokens": FEWEST_TOKENS, "most_domains": MOST_DOMAINS,
        "shared_ffn": model.num_shared_experts * model.moe_ffn_hidden_size,
        "attention": training.attention if model.has_attention else "no attention",
        "mixers": " and ".join(kinds_of("attention")[kind]["words"] for kind in mixers_of(model)),
        "recomputes": recompute_codes(training, framework.recomputes),
        "unusual_zero": ", ".join(str(stage) for stage in framework.zero_stages if stage in unusual),
        "unless_stated": " without stage_layers" if framework.stage_splits else "",
        "schedules": [SCHEDULE.code(name) for name in offered],
        "runs_schedules": f"{', '.join(offered)}: choose one of these" if offered[1:] else f"{offered[0]} alone",
        "module_core_attn": core, "module_moe": MODULES.bit("moe"), "overlap_tp": OVERLAP.bit("tp"),
        "refused_modules": sum(map(MODULES.bit, refused if model.is_moe else [*refused, "moe_act"])),
        "idle_modules": idle_modules(model) | (core if job.selective_is_none else 0),
        "sharing_an_expert": "dp*cp*tp/(ep*etp)" if framework.experts_span_tp else "dp*cp/ep",
        "choice_of_overlap": choice if kinds else "leaves no choice of what overlaps",
        "is_no_split": lambda c: split_mask(c, lambda split, chunks: (chunks != len(split)) | (sum(split) not in sums)),
        "is_unbuildable": lambda c: split_mask(c, lambda split, _: not can_be_built(framework, split)),
        # numbers of chunks whose even split, which a blank means, is listed
        "listed_even": [len(split) for split in listed if len(set(split)) == 1 and sum(split) == model.num_layers],
        "states_even": states_even, "largest_chunk": largest_chunk, "num_gpus": num_gpus,
        "overlap_not_offered": overlap_not_offered,
    }  # fmt: skip


def recompute_codes(training: Training, names: tuple[str, ...]) -> list[int]:
    """Codes of recompute modes; selective that drops nothing but scores, of which there are none, is none."""
    codes = {RECOMPUTE_CODES[name] for name in names}
    if training.selective_is_none and "selective" in names:
        codes.add(RECOMPUTE_CODES["none"])
    return sorted(codes)


def split_sums(model: Model) -> tuple[int, int]:
    """The sums that a split may have: recipes count multi-token-prediction layers or leave them out."""
    return model.num_layers, model.num_layers + model.mtp_num_layers


def is_split(model: Model, stage_layers: str, chunks: int) -> bool:
    """Whether a cell of stage_layers splits the model's layers into so many chunks; a blank one does, evenly."""
    numbers = STAGE_LAYERS.numbers(STAGE_LAYERS.code(stage_layers))
    return not numbers or (len(numbers) == chunks and sum(numbers) in split_sums(model))


def check_splits(search: Search, model: Model) -> None:
    """JobError for the first of the listed ``stage_layers`` that does not add up to the model's layers."""
    for cell in search.stage_layers or ():
        if (total := sum(STAGE_LAYERS.numbers(STAGE_LAYERS.code(cell)))) not in split_sums(model):
            raise JobError(
                f"search.stage_layers lists {cell}, which adds up to {total:,} layers; the model has "
                f"{model.num_layers:,}."
            )


def check_plan(job: Job, plan: Mapping[str, Any]) -> list[str]:
    """Sentences that name the rules that ``plan`` breaks for ``job``; empty for a point of the job's space.

    ``plan`` has the layout columns as Python scalars, ``recompute`` by name; one that is not canonical (as
    `jointopt.jobs.plans.text.parse_plan` gives it) breaks a rule too. Memory and other constraints are not looked at.
    """
    usual = {name: COLUMNS[name].decode(value) for name, value in NEUTRAL.items()}
    columns = {name: encode_cells(name, [(usual | dict(plan))[name]]) for name in LAYOUT_COLUMNS}
    if not job.model.is_moe:  # whose experts have no degree
        columns["etp"] = np.where(columns["etp"] > 1, columns["etp"], 0)
    broken = [rule for rule in layout_rules(job) if rule.sentence and np.asarray(rule.broken(columns)).item()]
    broken.sort(key=lambda rule: rule.name.startswith(SEARCH))
    stated = {name: "blank" if value == "" else value for name, value in (usual | dict(plan)).items()}
    table: dict[str, str] = read_yaml("layout_rules.yaml")["figures"]
    sentences = []
    for rule in broken:
        figures = {name: evaluate(expression, {"etp": 1, **plan}, rule.figures) for name, expression in table.items()}
        sentences.append(rule.sentence.format_map({**rule.figures, **stated, **figures}))
    for key in ("power_limit_w", "stage_power_limit_w"):
        listed = [watts for watts in np.ravel(plan.get(key, ())) if watts is not None]
        if listed and (refused := refused_limits(job.cluster, listed)):
            sentences.append(f"{key} states {refused}.")
    return sentences


def violations(job: Job, layouts: Columns) -> npt.NDArray[np.object_]:
    """Names of the rules that keep each of n measured layouts from being started, joined by semicolons; blank: none.

    A layout that is the same plan as another can be started, and the job's search and memory are not looked at. Rows
    leave out how many GPUs of a node they fill, and whether attention is multi-head latent.
    """
    layouts = canonical(job, layouts)
    if not job.model.kv_lora_rank:
        layouts |= {"recompute_modules": layouts["recompute_modules"] & ~MODULES.bit("mla_up_proj")}
    out = np.full(len(layouts["dp"]), "", dtype=object)
    for rule in layout_rules(job):
        if rule.prevents_start and rule.name != "gpus":
            at = np.broadcast_to(rule.broken(layouts), out.shape)
            if at.any():
                out[at] = [f"{names};{rule.name}" if names else rule.name for names in out[at]]
    return out


def abilities(training: Training) -> dict[str, tuple[Any, ...]]:
    """The values that the framework can run, by the columns that it restricts; ``recompute`` by name."""
    figures = {"training": training, "framework": training.framework, "recomputes_of": _recomputes_of}
    columns = (COLUMNS[name] for name in LAYOUT_COLUMNS if COLUMNS[name].offered)
    offered = {column.name: evaluate(column.offered, {}, figures) for column in columns}
    return {name: values for name, values in offered.items() if values is not None}


def _recomputes_of(training: Training) -> tuple[str, ...]:
    """Recompute modes that the framework has, and both none and selective where these are the same plan."""
    recomputes = training.framework.recomputes
    same = training.selective_is_none and {"none", "selective"} & set(recomputes)
    return tuple(dict.fromkeys(("none", "selective", *recomputes))) if same else recomputes


def check_abilities(search: Search, training: Training) -> None:
    """JobError for the first value of ``search`` that the framework of ``training`` can run in no plan."""
    for column, offered in abilities(training).items():
        listed: tuple[Any, ...] = getattr(search, column) or ()
        for value in listed:
            if value not in offered:
                expected, got, one = (", ".join(map(str, v)).lower() for v in (offered, listed, (value,)))
                raise JobError(
                    f"search.{column} {one}: {training.framework.name} has no such {column}; "
                    f"expected {expected}, got {got}."
                )
