"""Words of the command line that stand for keys of the job file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


def key_and_value(text: str) -> tuple[str, Any]:
    """The key and the value of ``cluster.nodes=4``, the value as YAML reads it."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(f"--set takes KEY=VALUE such as cluster.nodes=4; got {text!r}.")
    from jointopt.core.errors import JobError
    from jointopt.spec.changes import check_changes
    from jointopt.spec.files import parse_yaml

    try:
        found = parse_yaml(f"value: {value}")["value"]
    except JobError as error:
        raise click.UsageError(f"--set {key.strip()}: {error}") from error
    try:
        check_changes({key.strip(): found})
    except JobError as error:
        raise click.UsageError(f"--set {error}") from error
    return key.strip(), found


def kinds_of_gpu(words: Sequence[str]) -> dict[str, Any]:
    """Changes of a job file for ``ID`` or ``ID=PRICE`` of several kinds of GPU."""
    pairs = [word.partition("=")[::2] for word in words]
    try:
        prices = [float(price) for _, price in pairs if price]
    except ValueError:
        raise click.UsageError(f"--gpu takes ID or ID=PRICE; got {' '.join(words)}.") from None
    if len(prices) not in (0, len(pairs)):
        raise click.UsageError("--gpu: give every kind its price (ID=PRICE), or none.")
    found: dict[str, Any] = {"cluster.gpu": [name for name, _ in pairs]} if pairs else {}
    return found | ({"cluster.price_per_gpu_hour": prices} if prices else {})
