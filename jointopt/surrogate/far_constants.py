"""Constants of the physics that a few runs show to be far from what was assumed, where no straight line reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from jointopt.core.schema import Floats
from jointopt.jobs.job import Job
from jointopt.physics.sensitivities import CONSTANTS, HOST, NETWORK, moved, only
from jointopt.surrogate.evidence import Evidence

# How far constants may be from what was assumed (logarithms), and the share of clusters that each is expected of: how
# much slower the network between nodes is; what the host needs to launch a layer, where the framework's profile has no
# such floor (0.9, 3.2 or 9.5 ms, as `jointopt.physics.sensitivities` moves it). Their effect on time is no straight
# line, so that runs are compared by how likely they are under each of these: far from zero, sensitivities of the slower
# network explain every error as one of the network (three runs of nanotron, one of them broken, 23 % instead of 4 %),
# and a host that no run waits for at first has no sensitivity at all. Floors of profiles are left alone: ten of
# nanotron's runs, of which some wait for other things, made it twenty times as high.
STAYS = 0.5
FAR: Mapping[int, Mapping[float, float]] = {
    NETWORK: {1.0: 0.12, 1.5: 0.1, 2.0: 0.08, 2.5: 0.05, 3.0: 0.02, -1.0: 0.05},
    HOST: {1.0: 0.04, 2.0: 0.03, 3.0: 0.01},
}
PRICED = (-1.0, 0.0, 1.5, 3.0)  # of networks: between these runs are interpolated, since pricing takes the time
NEAR = 0.3  # of a logarithm: runs that are off by less, or move the network so along a straight line, move nothing far
SURE = 0.8  # probability from which on plans are priced so
MOST_COMPARED = 40  # runs, since each is priced under each


def far_by(priced: Evidence, constants: Floats, log_evidence: Callable[[Evidence], float]) -> Floats:
    """Logarithms by which runs move constants far from what was assumed, (`CONSTANTS`,); zeros where they do not.

    ``constants``: what the runs show along a straight line. ``log_evidence``: of runs, by the physics that prices them.
    Of networks the mean of what runs leave open.
    """
    stays = np.zeros(len(CONSTANTS))
    moves = [stays, *_moves(float(constants[NETWORK]), _waits(priced))]
    if len(moves) == 1:
        return stays
    few = _Moved(priced.some(MOST_COMPARED))
    likely = np.array([_log_share(by) + few.log_evidence(by, log_evidence) for by in moves])
    share = np.exp(likely - likely.max())
    if share[1:].sum() < SURE * share.sum():
        return stays
    found = moves[1 + int(share[1:].argmax())]
    alike = [i for i, by in enumerate(moves) if by[NETWORK] * found[NETWORK] > 0.0]
    return np.average([moves[i] for i in alike], axis=0, weights=share[alike]) if alike else found


@dataclass
class _Moved:
    """A few runs by the physics with constants moved; each is priced once."""

    few: Evidence
    priced: dict[tuple[float, ...], Evidence | None] = field(default_factory=dict)

    def log_evidence(self, by: Floats, of: Callable[[Evidence], float]) -> float:
        """The log evidence ``of`` the runs with constants moved; minus infinity where they cannot be priced so."""
        there = self._at(by) if not by[NETWORK] else self._between(float(by[NETWORK]))
        return -np.inf if there is None else of(there)

    def _at(self, by: Floats) -> Evidence | None:
        key = tuple(by.tolist())
        if key not in self.priced:
            self.priced[key] = self.few.moved(by)
        return self.priced[key]

    def _between(self, network: float) -> Evidence | None:
        """The runs on a network between two priced ones, on which time grows by what it takes longer to send."""
        above = min(one for one in PRICED if one >= network)
        below = max(one for one in PRICED if one <= network)
        first, second = (self._at(only(NETWORK, one)) for one in (below, above))
        if first is None or second is None or above == below or first.runs is None or second.runs is None:
            return first
        part = (np.exp(network) - np.exp(below)) / (np.exp(above) - np.exp(below))
        longer = part * np.exp(first.residual - second.residual)
        time = 1.0 - part + longer
        sensitivity = first.runs.sensitivity + (longer / time)[:, None] * (
            second.runs.sensitivity - first.runs.sensitivity
        )
        runs = replace(first.runs, sensitivity=sensitivity)
        return replace(first, runs=runs, residual=first.residual - np.log(time))


def far_words(by: Floats, job: Job) -> str:
    """A sentence on what `far_by` moves ``by`` so much in the physics of a job; blank where it moves nothing."""
    moves = "The measured runs show"
    if network := float(by[NETWORK]):
        how = "slower" if network > 0.0 else "faster"
        moves += f" a network between nodes {np.exp(abs(network)):.2g} times {how} than assumed"
    elif by[HOST]:
        moves += f" a host that needs {1e3 * moved(job, by).training.framework.host_floor_s:.2g} ms to launch a layer"
    else:
        return ""
    return f"{moves}: all plans are priced on it."


def _waits(priced: Evidence) -> bool:
    """Whether some run is slow, and the profile of no run's framework says what the host needs for a layer."""
    frameworks = {work.job.training.framework for part in priced.priced for work in part.works}
    floors = [max(one.host_floor_s, one.host_floor_pp_s) for one in frameworks]
    return float(priced.residual.max(initial=0.0)) >= NEAR and not any(floors)


def _moves(network: float, waits: bool) -> Iterator[Floats]:
    tried = {NETWORK: abs(network) >= NEAR, HOST: waits}
    for constant, steps in FAR.items():
        for by in steps:
            if tried[constant] and (constant != NETWORK or by * network >= 0.0):
                yield only(constant, by)


def _log_share(by: Floats) -> float:
    return float(np.log(next((FAR[i][by[i]] for i in FAR if by[i]), STAYS)))
