"""Facts that travel as data: what was assumed, with the sentence for people made from it at the border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Assumption:
    """A value that stands in for one that no input states.

    ``key`` is the field that it fills (``inlet_temperature_c``, ``zero_stage``) or the group of constants that it
    replaces (``power.static_w knee_fraction``, ``kernels.gemm``); ``value`` what stands in, None where it is many
    figures; ``reason`` the sentence for people, with the source.
    """

    key: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return self.reason
