"""Whether a program runs the stages of a plan on the ranks that clocks are set for, by what it states and reports.

Before it starts, by its command line and the scripts and configs that this names; once it runs, by its processes (rank,
local rank, command line) and by the stages that they report (`stage_hook`, `jointopt.report_stage`).
"""

from __future__ import annotations

import functools
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from jointopt.core.errors import JobError, RankOrderError
from jointopt.core.schema import Ints
from jointopt.frameworks.import_files import read_text
from jointopt.frameworks.megatron import SHAPE
from jointopt.frameworks.options import FileSettings, pairs_of, whole_number
from jointopt.frameworks.shell import UNKNOWN, read_script
from jointopt.jobs.plans.placement import (
    DEFAULT_ORDER,
    NANOTRON_04_EXPERTS_ORDER,
    NANOTRON_EXPERTS_ORDER,
    TP_PP_DP_ORDER,
    same_stages,
    stage_of_rank,
)
from jointopt.measure.hardware.guard.guarded import processes_of
from jointopt.measure.hardware.stage_hook.sitecustomize import FOLDER

UNSET = "the program ended before its ranks had shown their stages, and its clocks were never set"
WAIT_S = 30.0  # for ranks that show nothing, after the last of them was seen
_LOOK_EVERY_S = 0.5
_LARGEST = 1 << 20  # bytes of a script or config
_SCRIPTS, _CONFIGS = (".sh", ".bash", ".sbatch", ".slurm"), (".yaml", ".yml", ".toml", ".json")
_MEGATRON = {
    "tensor_model_parallel_size": "tp", "pipeline_model_parallel_size": "pp", "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
}  # fmt: skip
# words of other frameworks that state a degree
_NAMED = {
    "tp": re.compile(r"tensor_(?:model_)?parallel_(?:degree|size)|\btp\b|autotp_size"),
    "pp": re.compile(r"pipeline_(?:model_)?parallel_(?:degree|size)|\bpp\b|\bstages\b"),
    "cp": re.compile(r"context_parallel_(?:degree|size)"),
    "ep": re.compile(r"expert_(?:model_)?parallel_(?:degree|size)"),
}  # fmt: skip
_MAPPING = "use_tp_pp_dp_mapping"
_MAPPED = re.compile(rf"{_MAPPING}\s*[:=]\s*[Tt]rue")
_EXPERTS = re.compile(r"^\s*moe_config:(?!\s*(?:null|~)\s*$)", re.MULTILINE)
_CONTAINERS = re.compile(r"--container-image|\b(?:apptainer|singularity|docker|podman|enroot)\b")
_LAUNCHERS = re.compile(
    rf"{_CONTAINERS.pattern}|\b(?:torchrun|torch\.distributed|srun|mpirun|mpiexec|deepspeed|accelerate)\b"
)
# variables of a process: its rank, its place on the node
_VARIABLES = (("RANK", "LOCAL_RANK"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"))


@dataclass(frozen=True)
class Statement:
    """The degrees that a command states, the order of its ranks, and the usual order of its framework."""

    degrees: Mapping[str, int]
    order: str = DEFAULT_ORDER
    usual: str = DEFAULT_ORDER


def read_statements(words: Sequence[str], folder: Path) -> list[Statement]:
    """What a command, and scripts and configs that it names (relative to ``folder``), state of degrees and rank order.

    The words and configs that `jointopt import` reads are known, logs aside; of others there are no statements.
    """
    commands = [list(words)]  # itself, those inside of its words (``sh -c "..."``) and those of its scripts
    for text in [*(word for word in words if re.search(r"\s", word.strip())), *_texts(words, folder, _SCRIPTS)]:
        with suppress(ValueError, RecursionError):  # text that no shell would take
            commands += map(list, read_script(text).commands)
    found = [one for command in commands if (one := _megatron(command))]
    if found:
        return found
    for text in ["\0".join([*words, ""]), *_texts(words, folder, _SCRIPTS + _CONFIGS)]:
        with suppress(JobError, ValueError):  # a file that is none of these
            found += [one for taken in read_text(text) if (one := _imported(taken, text))]
    return found


def starts_ranks(words: Sequence[str], folder: Path) -> bool:
    """Whether a command starts processes of a distributed program, as far as its words and scripts say."""
    return any(map(_LAUNCHERS.search, [" ".join(words), *_texts(words, folder, _SCRIPTS)]))


def check_stated(plan: Mapping[str, Any], order: str, found: Sequence[Statement], by_stage: bool = True) -> None:
    """RankOrderError where a command states other degrees than the plan, or, if clocks differ, another order."""
    for one in found:
        for name, value in one.degrees.items():
            if (planned := int(plan.get(name) or 1)) != value:
                raise RankOrderError(
                    f"The program runs with {name} {value} and the plan has {name} {planned}: no clock is set; give the"
                    " plan that the program runs, or start the program with the plan's degrees."
                )
        if by_stage and not same_stages(plan, order, one.order):
            option = " (--use-tp-pp-dp-mapping)" if one.order == TP_PP_DP_ORDER else ""
            raise RankOrderError(
                f"The program numbers its ranks {one.order}{option} and clocks would be set for {order}: no clock is "
                f"set; give --order {one.order}."
            )


def _texts(words: Sequence[str], folder: Path, endings: tuple[str, ...]) -> list[str]:
    """The contents of the files with such endings that words name, also as ``--name=file``."""
    found = []
    for word in words:
        path = folder / word.rpartition("=")[2]
        try:
            if word.endswith(endings) and path.stat().st_size <= _LARGEST:
                found.append(path.read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError):
            continue
    return found


def _megatron(words: Sequence[str]) -> Statement | None:
    """The degrees and the order in Megatron-LM's words; None where it has none of them."""
    pairs = dict(pairs_of(words))
    if not pairs.keys() & {*_MEGATRON, _MAPPING}:
        return None
    whole = set(SHAPE) <= pairs.keys() and not pairs.keys() & {"use_checkpoint_args", "yaml_cfg"}
    usual = 1 if whole else None  # what is not stated may be in a checkpoint, or in another file
    degrees = {}
    for name, short in _MEGATRON.items():
        value = pairs.get(name, usual)
        # several words behind an option: the others are of variables that only a shell knows
        degree = whole_number(value[0] if isinstance(value, list) else value)
        if degree is not None:
            degrees[short] = degree
    return Statement(degrees, TP_PP_DP_ORDER if _MAPPING in pairs else DEFAULT_ORDER)


def _imported(taken: FileSettings, text: str) -> Statement | None:
    """The statement of any other command or config that can be imported; None where it states no degree."""
    # the readers fill in a framework's defaults, where a recipe or a module may have others
    degrees = {name: int(taken.plan[name]) for name, words in _NAMED.items()
               if name in taken.plan and words.search(text)}  # fmt: skip
    if not taken.framework or taken.log or not degrees or UNKNOWN in text:
        return None
    usual = DEFAULT_ORDER
    if taken.framework == "nanotron" and _EXPERTS.search(text):
        usual = NANOTRON_EXPERTS_ORDER
    elif taken.framework == "nanotron" and degrees.get("ep", 1) > 1:
        usual = NANOTRON_04_EXPERTS_ORDER
    return Statement(degrees, TP_PP_DP_ORDER if _MAPPED.search(text) else usual, usual)


def report_variables(words: Sequence[str], folder: Path, reports: Path) -> dict[str, str]:
    """Environment variables that let the ranks of a command report their stages into the folder ``reports``.

    In a container, which has a PYTHONPATH of its own, they report by `jointopt.report_stage` alone.
    """
    found, path = {FOLDER: str(reports)}, os.environ.get("PYTHONPATH")
    if any(map(_CONTAINERS.search, [" ".join(words), *_texts(words, folder, _SCRIPTS)])):
        return found
    hook = str(Path(__file__).with_name("stage_hook"))
    return found | {"PYTHONPATH": f"{hook}{os.pathsep}{path}" if path else hook}


class RankCheck:
    """Compares the ``ranks`` (n,) of a running program on this node with the stages of a plan, ranked by ``order``.

    Ranks report their stages into ``folder``. Ranks that show no stage are taken as the plan has them: ``wait_s`` after
    all of this node were seen, ten times as long after the start where they are hidden.
    """

    def __init__(self, plan: Mapping[str, Any], order: str, ranks: Ints, folder: Path, wait_s: float = WAIT_S) -> None:
        self._plan, self._order, self._folder, self._wait_s = plan, order, folder, wait_s
        stages: list[int] = stage_of_rank(plan, ranks, order).tolist()
        self._stages: dict[int, int] = dict(zip(ranks.tolist(), stages, strict=True))
        self._known: set[int] = set()  # ranks whose words or reports agree with the plan
        self._seen: set[int] = set()
        self._all_seen = False
        self._due_s = -math.inf
        self._until_s = time.monotonic() + 10 * wait_s
        self.remark = ""

    def passed(self, mark: str, now_s: float | None = None) -> bool:
        """Whether every rank of this node runs its stage of the plan, as it shows or as is assumed after the wait.

        ``mark`` is that of the program's processes. RankOrderError where a rank runs another stage.
        """
        self._check_reports()
        now_s = time.monotonic() if now_s is None else now_s
        if not self._known >= self._stages.keys() and now_s >= self._due_s:
            self._due_s = now_s + _LOOK_EVERY_S
            for process in processes_of(mark):
                self._look_at(process)
            if self._seen >= self._stages.keys() and not self._all_seen:  # from here the wait is short
                self._all_seen, self._until_s = True, now_s + self._wait_s
        known = self._known >= self._stages.keys()
        if not known and now_s > self._until_s:
            self.remark = f"No rank has shown its stage: the order {self._order} is taken as stated."
        return known or now_s > self._until_s

    def _check_reports(self) -> None:
        """RankOrderError where a rank has reported another stage than the plan's, or is one of another node."""
        for file in self._folder.glob("rank-*"):
            rank, stage = whole_number(file.name[5:]), None
            with suppress(OSError):
                stage = whole_number(file.read_text(encoding="ascii", errors="replace").strip())
            if rank is None or stage is None:
                continue
            if rank not in self._stages:
                raise RankOrderError(
                    f"Rank {rank} of the program runs on this node, and of the plan these are {min(self._stages)} to "
                    f"{max(self._stages)}: its clocks are not applied; say with --node which node this is."
                )
            if stage != self._stages[rank]:
                raise RankOrderError(
                    f"Rank {rank} runs stage {stage} of the program, and the plan with ranks in the order {self._order}"
                    f" has stage {self._stages[rank]} there: its clocks are not applied; give --order as the program "
                    "numbers its ranks."
                )
            self._known.add(rank)

    def _look_at(self, process: psutil.Process) -> None:
        """RankOrderError where a process is another rank than the plan's, or states other degrees or another order."""
        try:
            variables = process.environ()
            for names in _VARIABLES:
                rank, local = (whole_number(variables.get(name)) for name in names)
                # those that exec itself was started with count for none
                if rank is not None and local is not None and any(variables[n] != os.environ.get(n) for n in names):
                    break
            else:
                return
            words, folder = tuple(process.cmdline()), process.cwd()
        except (psutil.Error, OSError):
            return
        if rank != min(self._stages) + local:
            raise RankOrderError(
                f"Local rank {local} of this node is rank {rank} of the program, and of the plan it is rank "
                f"{min(self._stages) + local}: its clocks are not applied; say with --node which node of the program "
                "this is, or give its launcher node ranks."
            )
        found = _read_statements(words, Path(folder))
        check_stated(self._plan, self._order, found)
        if any("pp" in one.degrees for one in found):
            self._known.add(rank)
        self._seen.add(rank)


_read_statements = functools.lru_cache(maxsize=64)(read_statements)  # each rank of a node has the same words
