"""The lines of a script that a batch system reads: options of sbatch, qsub, bsub and flux, what Slurm sets by them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_HEADER = re.compile(r"^#(SBATCH|PBS|BSUB|FLUX:?|\$)\s+(.*)$")


def header_of(text: str) -> list[tuple[str, list[str]]]:
    """(batch system, options) of each line of a batch header; a quotation that does not end has none."""
    found = []
    for line in text.splitlines():
        if match := _HEADER.match(line.strip()):
            try:
                found.append((match[1].rstrip(":"), shlex.split(match[2], comments=True)))
            except ValueError:
                continue
    return found


def batch_variables(header: Sequence[tuple[str, list[str]]]) -> dict[str, str]:
    """The variables that Slurm sets from the header."""
    words = [word for system, line in header if system == "SBATCH" for word in line]
    given: dict[str, str] = {}
    for at, word in enumerate(words):
        option, equals, value = word.lstrip("-").partition("=")
        short = re.fullmatch(r"-([Nn])(\d+)", word)
        after = words[at + 1] if at + 1 < len(words) else ""
        given |= {short[1]: short[2]} if short else {option: value if equals else after} if word.startswith("-") else {}
    names = {
        "SLURM_NNODES": ("nodes", "N"), "SLURM_JOB_NUM_NODES": ("nodes", "N"), "SLURM_NTASKS": ("ntasks", "n"),
        "SLURM_NPROCS": ("ntasks", "n"), "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
        "SLURM_GPUS_PER_NODE": ("gpus-per-node",), "SLURM_GPUS_ON_NODE": ("gpus-per-node", "gres"),
    }  # fmt: skip
    found = {name: next((given[key] for key in keys if key in given), "") for name, keys in names.items()}
    return {name: number for name, value in found.items() if (number := value.rpartition(":")[2]).isdecimal()}


def line_of(text: str, number: str) -> int:
    """The line of a batch header that states a number."""
    lines = text.splitlines()
    return next((at for at, line in enumerate(lines, 1) if _HEADER.match(line.strip()) and number in line), 1)
