"""Words of the command line that stand for keys of the job file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


def _figure_or_text(_context: click.Context, _option: click.Parameter, text: str | None) -> float | str | None:
    """A figure as a number; text with a unit as it is."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _with_unit(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Text that is no bare number, of which the unit is not known."""
    if isinstance(_figure_or_text(context, option, text), float):
        raise click.UsageError(
            f"--network {text}: of which unit? Give {text}G (a port of {text} Gb/s for each GPU), {text}GB/s, or a "
            "name such as ndr."
        )
    return text


NETWORK_KEY = "cluster.inter_node_gbytes_per_s"
INTER_NODE: tuple[str, dict[str, Any]] = (
    "--inter-node-gbytes-per-s",
    {"callback": _figure_or_text, "metavar": "GB/S", "help": "Network bandwidth of a GPU, one direction: 50, 400Gb/s."},
)
NETWORK: tuple[str, dict[str, Any]] = (
    "--network",
    {"callback": _with_unit, "help": "Network between nodes: a port per GPU (400G, ndr), 50GB/s, '3.2Tb/s per node'."},
)


def with_network(given: Mapping[str, Any], network: Any = None) -> dict[str, Any]:
    """Options that stand for a job, with ``--network`` under the name of the option that states it in GB/s."""
    found = dict(given)
    network = found.pop("network", None) or network
    if network is None:
        return found
    if found.get("inter_node_gbytes_per_s") is not None:
        raise click.UsageError("Give --network or --inter-node-gbytes-per-s, not both.")
    return found | {"inter_node_gbytes_per_s": network}


def key_and_value(text: str) -> tuple[str, Any]:
    """The key and the value of ``cluster.nodes=4``, the value as YAML reads it."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(f"--set takes KEY=VALUE such as cluster.nodes=4; got {text!r}.")
    from jointopt.core.errors import JobError
    from jointopt.jobs.jobfile import check_changes
    from jointopt.jobs.reading import parse_yaml

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
