"""A training as frameworks must be given it, in no framework's words; and what a target makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jointopt.core.errors import ExportError
from jointopt.core.quote import sh_variable, sh_word
from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, NEUTRAL, OTHER_CROSS_ENTROPIES, STAGE_LAYERS, encode_cells
from jointopt.core.short_repr import ShortRepr
from jointopt.jobs.defaults import default_etp
from jointopt.jobs.details import Details, details_of
from jointopt.jobs.framework import OVERLAP_KINDS, overlap_is_on, usual_overlap_share
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import is_of_catalogue
from jointopt.jobs.model import Model
from jointopt.jobs.model_facts import facts_of
from jointopt.jobs.plans.placement import DEFAULT_ORDER
from jointopt.jobs.plans.stages import framework_split
from jointopt.jobs.reliability import POLICIES

BENCHMARK, TRAINING = "benchmark", "training"
_ITERATIONS = {BENCHMARK: 20, TRAINING: 10_000}
_SAVE_INTERVAL = 1000  # iterations, where nothing is known of failures


@dataclass(frozen=True)
class Saving:
    """How often a training saves its state, and how it goes on after a failure."""

    iterations: int  # between checkpoints
    in_background: bool  # a checkpoint stops training for less than it takes to write
    policy: str  # of `POLICIES`
    spares: int | None  # nodes; None: a replacement is always at hand

    @property
    def notes(self) -> tuple[str, ...]:
        """What no export sets: how the work of a broken node goes on, and where spares come from."""
        found = [f"Checkpoints every {self.iterations:,} iterations, as the job's section reliability makes best."]
        if self.policy != "restart":
            found.append(f"Policy {self.policy} ({POLICIES[self.policy]}) is the program's own to do: what is written "
                         "here restarts.")  # fmt: skip
        if self.spares:
            found.append(f"Spares ({self.spares} node{'s' * (self.spares > 1)}) are yours to keep free.")
        return tuple(found)


@dataclass(frozen=True)
class Intent:
    """A job by a plan, for a purpose: ``benchmark`` (random data, nothing saved or evaluated) or ``training``."""

    job: Job
    plan: Mapping[str, Any]  # every layout column as plans in JSON hold it, and its clocks
    purpose: str
    iterations: int
    details: Details
    chunk_layers: tuple[int, ...]  # of each chunk in the order of the pipeline, (pp*vpp,)
    arguments: tuple[str, ...] = ()  # the user's own, before those of the plan, of which they replace equal ones
    saving: Saving | None = None  # of a training whose job says what fails

    @property
    def model(self) -> Model:
        """The model's shape."""
        return self.job.model

    @property
    def is_training(self) -> bool:
        """Whether a model is to come out of it, not a measurement."""
        return self.purpose == TRAINING

    @property
    def save_interval(self) -> int:
        """Iterations of a training between checkpoints."""
        return self.saving.iterations if self.saving else _SAVE_INTERVAL

    @property
    def saves_in_background(self) -> bool:
        """Whether training goes on while its state is written."""
        return self.saving is not None and self.saving.in_background

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a data-parallel rank in one iteration."""
        return int(self.job.training.global_batch_size // (self["dp"] * self["micro_batch_size"]))

    @property
    def window(self) -> int:
        """Tokens that layers with a window look back where these are fewer than a sequence has, else 0."""
        size = self.model.window_size if any(self.model.windowed_layers) else 0
        return size if size < self.job.training.seq_length else 0

    @property
    def context_exchange(self) -> str | None:
        """How context-parallel ranks exchange keys and values, in Megatron's words; None: as usual, in a ring.

        Transformer Engine's ring knows no windows (``attn_forward_func_with_cp`` of its context_parallel.py asserts
        a2a or all_gather, of which the first needs cp to divide the heads).
        """
        return "all_gather" if self.window and self["cp"] > 1 else None

    @property
    def facts(self) -> dict[str, str]:
        """Facts of the model that a target may have no words for, by name: the table's, and an odd activation."""
        usual, kind = ("silu",) if self.model.gated_mlp else ("gelu", "gelu_tanh", "relu2"), self.details.activation
        return facts_of(self.model, self.details) | ({} if kind in usual else {"activation": f"activation {kind}"})

    @property
    def loss_fusion(self) -> dict[str, Any]:
        """Megatron Core's options of the loss: fused unless the job says otherwise, by the kernels that it states."""
        stated = self.job.training.cross_entropy
        kernels = next((theirs for theirs, ours in OTHER_CROSS_ENTROPIES.items() if ours == stated), None)
        named = {"cross_entropy_fusion_impl": kernels} if kernels else {}
        return {"cross_entropy_loss_fusion": stated != "unfused"} | named

    @property
    def window_words(self) -> str:
        """The window as a note names what a target cannot be given."""
        layers, windowed = self.model.num_layers, sum(self.model.windowed_layers)
        return f"attention window of {self.window} tokens" + f" in {windowed} of {layers} layers" * (windowed < layers)

    @property
    def even(self) -> bool:
        """Whether all chunks have the same number of layers."""
        return len(set(self.chunk_layers)) == 1

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO shards: data- and context-parallel ones of a replica."""
        return int(self["dp"] * self["cp"] // self["dp_replicate"])

    @property
    def hides_dp(self) -> bool:
        """Whether gradients are reduced under the backward pass: unless the plan, or else the job, says otherwise."""
        return self.hides("dp") or not (self["overlap"] or self.job.training.dp_overlap is not None)

    def hides(self, kind: str) -> bool:
        """Whether collectives of a kind hide under kernels: as the plan states, else the job, else the framework."""
        stated = getattr(self.job.training, f"{kind}_overlap")
        if self["overlap"] or stated is None:
            return overlap_is_on(self.job.training.framework, kind, self["overlap"])
        return float(stated) > 0.0

    def __getitem__(self, column: str) -> Any:
        """The value of a layout column."""
        return self.plan[column]


def intent_of(
    job: Job, plan: Mapping[str, Any], purpose: str = BENCHMARK, iterations: int | None = None,
    arguments: Sequence[str] = (), saving: Saving | None = None,
) -> Intent:  # fmt: skip
    """The intent of a plan (plan columns; newer ones may be missing). A training runs for the job's ``run_tokens``."""
    if job.model.block:
        raise ExportError(
            f"{job.model.name} is a block (model.block {job.model.block}), which no framework trains by itself; export "
            f"a job of the whole model."
        )
    full = {name: COLUMNS[name].decode(value) for name, value in NEUTRAL.items()} | dict(plan)
    if "etp" not in plan:
        layout = {name: encode_cells(name, [full[name]]) for name in LAYOUT_COLUMNS}
        full["etp"] = max(int(default_etp(job, layout)[0]), 1)
    full = {name: full[name] for name in LAYOUT_COLUMNS} | full  # in the order of the columns
    usual = job.training.run_iterations if purpose == TRAINING else None
    steps = iterations or usual or _ITERATIONS[purpose]
    return Intent(job, full, purpose, steps, details_of(job.model), _chunk_layers(job, full), tuple(arguments), saving)


def _chunk_layers(job: Job, plan: Mapping[str, Any]) -> tuple[int, ...]:
    """The split that is stated, else the framework's own; of interleaved chunks equal ones."""
    stated = STAGE_LAYERS.numbers(STAGE_LAYERS.code(plan["stage_layers"]))
    model, pp, vpp = job.model, int(plan["pp"]), int(plan["vpp"])
    if stated:
        return stated
    if vpp > 1 and model.num_layers % (pp * vpp):
        raise ExportError(
            f"pp*vpp is {pp * vpp}, which does not divide the {model.num_layers} layers: state stage_layers."
        )
    return tuple(int(layers) for layers in framework_split(job, pp, vpp))


@dataclass(frozen=True, repr=False)
class Export(ShortRepr):
    """The start of a plan in a target: files by their names, the command's words and its environment variables."""

    target: str
    version: str
    words: tuple[str, ...]  # after the program: its arguments; of a file alone, none
    environment: Mapping[str, str] = field(default_factory=dict)
    world_size: int = 1
    program: str = ""  # the script or module that torchrun, or the target's own launcher, starts
    launcher: tuple[str, ...] = ("torchrun",)
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what is left to set, and what the target does otherwise
    rank_order: str = DEFAULT_ORDER  # how the started program numbers its ranks, innermost first

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `jointopt export`."""
        return {
            "target": self.target, "version": self.version, "words": list(self.words),
            "environment": dict(self.environment), "world_size": self.world_size, "program": self.program,
            "launcher": list(self.launcher), "files": dict(self.files), "notes": list(self.notes),
            "rank_order": self.rank_order,
        }  # fmt: skip


_MEGATRON_FLAGS = ("precision_aware_optimizer", "fp8_param_gather")
# of settings that a target has no words for, what it does anyway: the first
_ANYWAY = {"compile": False, "cuda_graph": "none", "dp_overlap": True, "tp_overlap": False, "ep_overlap": False,
           "moe_routing": "natural", "fp8_activations": False, "cross_entropy": "unfused",
           "logits_chunks": 1}  # fmt: skip


_PEFT_NAMES = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"), "linear_proj": ("o_proj",), "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}  # fmt: skip


class Gaps:
    """Points of an intent that a target cannot express: refused in a training, noted in a benchmark."""

    def __init__(self, target: str, intent: Intent) -> None:
        self._target, self._intent = target, intent
        self.notes: list[str] = []

    def finer(self, missing: bool, what: str) -> None:
        """A finer point, which the time of an iteration does not depend on."""
        if missing and self._intent.is_training:
            raise ExportError(
                f"{self._target} cannot express {what} of {self._intent.model.name}; "
                f"export it with --for benchmark, or to another target."
            )
        if missing:
            self.notes.append(f"{self._target} has no {what}: fit for a benchmark, not for a training.")

    def facts(self, written: Collection[str] = ()) -> None:
        """Facts of the model that are not ``written``, as finer points: refused in one sentence, noted one by one."""
        missing = [words for name, words in self._intent.facts.items() if name not in written]
        for what in [", ".join(missing)] if self._intent.is_training else missing:
            self.finer(bool(what), what)

    def choices_of_megatron(self) -> None:
        """Choices of the job's training that Megatron Core alone has: formats of states, how tokens go to experts."""
        training = self._intent.job.training
        for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", *_MEGATRON_FLAGS):
            value = getattr(training, name)
            self.never(value not in (None, False), f"training.{name} {value}")
        self.never(training.token_dispatcher not in ("", "alltoall"), f"token_dispatcher {training.token_dispatcher}")
        self.never(self._intent.model.mtp_num_layers, "multi-token prediction")

    def settings(self, *written: str) -> None:
        """Settings of the job's software: refused where not ``written`` and other than what the target does anyway.

        A release is what it is started in, and of an overlap only whether there is one can be written.
        """
        stated = dict(self._intent.job.training.settings)
        if release := stated.pop("framework_release", ""):
            self.notes.append(f"Start it in release {release} (training.framework_release), or its container.")
        for name, value in stated.items():
            on = bool(value) if name.endswith("_overlap") else value
            self.never(name not in written and on != _ANYWAY[name], f"training.{name} {value}")

    def uneven_experts(self) -> None:
        """Noted of a benchmark, whose data are random, where it loads experts otherwise than the job states."""
        training = self._intent.job.training
        stated = training.moe_load_imbalance
        if stated > 1.0 and not self._intent.is_training and not training.moe_routing:
            self.notes.append(f"Experts are balanced by force: a run lacks the job's moe_load_imbalance {stated:g}.")
        if training.moe_routing == "natural" and not self._intent.is_training:
            self.notes.append("A router loads experts otherwise by the benchmark's random data than by the job's.")

    def no_recipe_but(self, known: Sequence[str]) -> None:
        """Refused by a target that scales fp8 products by these recipes alone, where another is stated."""
        recipe = self._intent.job.training.fp8_recipe
        self.never(recipe is not None and recipe.name not in known, f"training.fp8_recipe {recipe and recipe.name}")

    def no_adapters(self) -> None:
        """ExportError for LoRA, by a target without it."""
        self.never(self._intent.job.training.frozen, "adapters beside frozen weights (training.lora_dim)")

    def left_to_the_script(self) -> None:
        """Leaves adapters, and facts that no config.json states, to a script that makes the model itself."""
        training, model = self._intent.job.training, self._intent.model
        if self._intent.facts and not is_of_catalogue(model) and "model_type" not in (model.config or {}):
            self.notes.append(f"Make the model with its {', '.join(self._intent.facts.values())}.")
        if training.frozen:
            alpha = f"lora_alpha={training.lora_alpha:g}, " if training.lora_alpha else ""
            layers = [name for target in training.adapted for name in _PEFT_NAMES[target]]
            self.notes.append(
                f"Wrap the model: peft.get_peft_model(model, peft.LoraConfig(r={training.lora_dim}, {alpha}"
                f"target_modules={layers})); names are those of Llama."
            )

    def no_choice_of_overlap(self, kinds: Sequence[str] = OVERLAP_KINDS) -> None:
        """ExportError where the plan states another overlap than the framework's, by a target that leaves no choice."""
        framework, stated = self._intent.job.training.framework, self._intent["overlap"]
        other = [
            kind
            for kind in kinds
            if overlap_is_on(framework, kind, stated) != (usual_overlap_share(framework, kind) > 0.0)
        ]
        self.never(other, f"overlap {stated} (of {' and '.join(other)})")

    def never(self, missing: Any, what: str) -> None:
        """ExportError where a point of the layout or of the shape is ``missing``: another plan would run."""
        if missing:
            raise ExportError(f"{self._target} cannot express {what}; choose another plan or target.")


# The command of one node as words of shell, in which the node's place is variables of its own.


_PLACES = {f"${name}": sh_variable(name) for name in ("NODE_RANK", "MASTER_ADDR")}
_OVERRIDE = re.compile(r"'?[a-z]\w*(?:\.\w+)*=")


def node_words(export: Export, nodes: int, gpus_per_node: int) -> list[str]:
    """Quoted words that start an export on one of ``nodes``; variables of the node are left to the shell."""
    start = list(export.launcher)
    if start[0] in ("torchrun", "deepspeed") and (nodes > 1 or start[0] == "torchrun"):
        # DeepSpeed's own launcher goes to other nodes by ssh; torchrun starts the same scripts where it is started
        several = ["--nnodes", str(nodes), "--node-rank", "$NODE_RANK", "--master-addr", "$MASTER_ADDR",
                   "--master-port", "29500"] if nodes > 1 else []  # fmt: skip
        start = ["torchrun", *several, "--nproc-per-node", str(gpus_per_node)]
    words = map(sh_word, (*export.program.split(), *export.words))
    return [*(_PLACES.get(word) or sh_word(word) for word in start), *words]


def folded(words: Sequence[str], indent: str = "    ") -> str:
    """A command over several lines, one option or override (``model.num_layers=32``) on each."""
    lines = [words[0]]
    for word in words[1:]:
        if (word.startswith("--") and len(word) > 2) or _OVERRIDE.match(word):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return f" \\\n{indent}".join(lines)


# A training script of one's own, ``train.py``: the model and the batch, in the words of Hugging Face's examples.


PROGRAM, MODEL_FILE = "train.py", "config.json"


def script_words(intent: Intent) -> tuple[str, ...]:
    """The words after ``train.py`` that no file of DeepSpeed or Accelerate holds: the model, its sequences, a batch."""
    model = ("--config_name", MODEL_FILE) if model_files(intent) else ("--model_name_or_path", intent.model.name)
    batch = ("--per_device_train_batch_size", str(intent["micro_batch_size"]))
    training = intent.job.training
    fused = () if training.compile is None else ("--torch_compile", str(training.compile))
    return (*model, "--block_size", str(training.seq_length), *batch, *fused)


def model_files(intent: Intent) -> dict[str, str]:
    """The model's ``config.json``, where the catalogue does not have it and the job does."""
    config = intent.model.config or {}
    found = {MODEL_FILE: json.dumps(dict(config), indent=2) + "\n"}
    return found if "model_type" in config and not is_of_catalogue(intent.model) else {}
