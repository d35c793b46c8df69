"""Use that training makes of the timed runs of a table."""

from __future__ import annotations

from dataclasses import dataclass

MOST_BROKEN = 0.9  # of a source's rows, above which their unit is in doubt
OTHER_UNIT = 100.0  # times off the physics, as no run is: half of the rows left out in another unit are by more


@dataclass(frozen=True)
class Use:
    """Use of the timed runs of one source, as counts of rows."""

    source: str
    timed: int
    learned: int  # trained on
    broken: int  # further from the physics than training takes
    unpriced: int  # the physics cannot price them
    reason: str  # of the first of those, blank without any
    beyond: float  # times the physics
    off: float = 1.0  # how many times the physics the broken ones are off, their median

    def to_text(self) -> str:
        """One line on how many rows were learned from, and why others were not."""
        doubtful = self.broken > MOST_BROKEN * self.timed or self.off > OTHER_UNIT
        hint = ": is iteration_time_s in seconds?" if doubtful else ""
        reasons = {
            f"{self.broken:,} more than {self.beyond:g} times off the physics{hint}": self.broken,
            f"{self.unpriced:,} that cannot be priced ({self.reason.rstrip('.')})": self.unpriced,
        }
        why = ", ".join(reason for reason, count in reasons.items() if count)
        rest = f"; left out: {why}" if why else ""
        return f"{self.source}: learned from {self.learned:,} of {self.timed:,} timed rows{rest}"
