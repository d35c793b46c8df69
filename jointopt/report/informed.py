"""Which measured runs moved a prediction, for people."""

from __future__ import annotations

from collections.abc import Mapping

from jointopt.report.table import wrapped


def informed_lines(informed_by: Mapping[str, int]) -> list[str]:
    """What measured runs moved the predictions, if any did."""
    runs = ", ".join(f"{count:,} in {place}" for place, count in informed_by.items())
    return wrapped(f"Corrected by measured runs on such a cluster: {runs}.") if runs else []
