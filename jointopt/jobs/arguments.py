"""A job from the arguments of a function, for Python."""

from __future__ import annotations

from typing import Any

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_from_options, with_changes


def job(
    model: str, gpu: str, gpus: int, *, global_batch_size: int, seq_length: int, gpus_per_node: int | None = None,
    dtype: str | None = None, framework: str = "generic", inter_node_gbytes_per_s: float | str | None = None,
    **changes: Any,
) -> Job:  # fmt: skip
    """A job without a file.

    Parameters
    ----------
    model : str
        Name in the catalogue (``jointopt catalog models``), or path of a Hugging Face config.json.
    gpu : str
        Id in the catalogue (``jointopt catalog gpus``).
    gpus : int
        GPUs in all; they fill whole nodes.
    global_batch_size : int
        Sequences per iteration.
    seq_length : int
        Tokens per sequence.
    gpus_per_node : int, optional
        The GPU's usual number by default.
    dtype : str, optional
        fp32, tf32, fp16, bf16 (default), fp8 or fp4.
    framework : str, optional
        Training framework (``jointopt catalog frameworks``).
    inter_node_gbytes_per_s : float or str, optional
        Network bandwidth of a GPU in one direction: GB/s, or text such as "400Gb/s".
    **changes
        Any key of the job file, with two underscores for its dot: ``cluster__price_per_kwh=0.12``,
        ``training__attention="flash3"``, ``search={"tp": [4, 8]}``.

    Returns
    -------
    Job
        What every verb takes.

    Raises
    ------
    UsageError
        For a name that no catalogue has, an unknown key (the nearest one is named), or values that contradict each
        other.

    Examples
    --------
    >>> jointopt.job("llama-3-8b", "h100-sxm5-80gb", 64, global_batch_size=512, seq_length=8192)
    <Job llama-3-8b-8x8-h100-sxm5-80gb: llama-3-8b, 512 x 8,192 tokens in bf16, generic, 64 x h100-sxm5-80gb>
    """
    made = job_from_options(
        model, gpu, gpus, global_batch_size, seq_length, gpus_per_node, dtype, framework, inter_node_gbytes_per_s
    )
    return with_changes(made, {name.replace("__", "."): value for name, value in changes.items()})
