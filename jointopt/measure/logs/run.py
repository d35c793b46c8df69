"""The log of any known training program, read by the format of its lines."""

from __future__ import annotations

from jointopt.measure.logs import megatron
from jointopt.measure.logs.iterations import RunLog
from jointopt.measure.logs.others import FORMATS, Batch


def read_run(text: str, warmup: int, batch: Batch) -> RunLog:
    """The run of a log after ``warmup`` iterations, by the first format that fits; ValueError where none counts."""
    if megatron.is_log(text):
        return megatron.read_log(text, warmup)
    form = next((form for form in FORMATS if form.is_log(text)), None)
    if form is None:
        raise ValueError("it holds no iteration")
    return form.read(text, warmup, batch)
