"""Constants of the physics that a few runs show to be far from what was assumed, where no straight line reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from jointopt.core.schema import Floats
from jointopt.jobs.job import Job
from jointopt.physics.sensitivities import CONSTANTS, HOST, NETWORK, moved, only
from jointopt.surrogate.evidence import Evidence

# How far constants may be from what was assumed (logarithms), and the share of clusters that each is expected of: how
# much slower the network between nodes is; what the host needs to launch a layer, where the framework's profile has no
# such floor (0.9, 3.2 or 9.5 ms, as `jointopt.physics.sensitivities` moves it). Their effect on time is no straight
# line, so that runs are priced under each of these and compared by how likely they are there: far from zero,
# sensitivities of the slower network explain every error as one of the network (three runs of nanotron, one of them
# broken, 23 % instead of 4 %), and a host that no run waits for at first has no sensitivity at all. Floors of profiles
# are left alone: ten of nanotron's runs, of which some wait for other things, made it twenty times as high.
STAYS = 0.5
FAR: Mapping[int, Mapping[float, float]] = {
    NETWORK: {1.0: 0.2, 2.0: 0.12, 3.0: 0.05, -1.0: 0.05},
    HOST: {1.0: 0.04, 2.0: 0.03, 3.0: 0.01},
}
NEAR = 0.3  # of a logarithm: runs that are off by less, or move the network so along a straight line, move nothing far
SURE = 0.8  # probability from which on plans are priced so
MOST_COMPARED = 40  # runs, since each is priced under each


def far_by(priced: Evidence, constants: Floats, log_evidence: Callable[[Evidence], float]) -> Floats:
    """Logarithms by which runs move constants far from what was assumed, (`CONSTANTS`,); zeros where they do not.

    ``constants``: what the runs show along a straight line. ``log_evidence``: of runs, by the physics that prices them.
    """
    stays = np.zeros(len(CONSTANTS))
    moves = [stays, *_moves(float(constants[NETWORK]), _waits(priced))]
    if len(moves) == 1:
        return stays
    few = priced.some(MOST_COMPARED)
    likely = np.array([_log_share(by) + _log_evidence(few, by, log_evidence) for by in moves])
    share = np.exp(likely - likely.max())
    return moves[1 + int(share[1:].argmax())] if share[1:].sum() >= SURE * share.sum() else stays


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


def _log_evidence(few: Evidence, by: Floats, log_evidence: Callable[[Evidence], float]) -> float:
    """The log evidence of runs with constants moved; minus infinity where they cannot be priced so."""
    there = few.moved(by)
    return -np.inf if there is None else log_evidence(there)
