"""What choosing under a deadline saves on the front of every shipped job, in energy of the GPUs and of the site.

    .venv/bin/python tests/bench/bench_select.py

The deadline is the time of the fastest plan plus 1, 5 and 10 %; savings are against that plan. Without network, GPU or
data; the physics alone answers.
"""

from __future__ import annotations

import time

from jointopt.jobs.jobfile import shipped_job, shipped_jobs
from jointopt.physics.site import with_site
from jointopt.workflows.propose import propose
from jointopt.workflows.select import choose
from jointopt.workflows.stored_plans import StoredPlans

SLOWER = (1.01, 1.05, 1.10)


def main() -> None:
    print(f"{'job':26} plans   GPUs:    1 %    5 %   10 %   site:    1 %    5 %   10 %   choose")
    for name in shipped_jobs():
        job = shipped_job(name)
        front = with_site(job, propose(job, seed=0, surrogate="none").front)
        stored = StoredPlans(name, front, name, job)
        start = time.perf_counter()
        saved = [[_saved(stored, slower, facility) for slower in SLOWER] for facility in (False, True)]
        each_ms = 1e3 * (time.perf_counter() - start) / (2 * len(SLOWER))
        gpus, site = (" ".join(f"{value:5.1f}%" for value in row) for row in saved)
        print(f"{name:26} {len(front['pp']):5}         {gpus}           {site}   {each_ms:.1f} ms")


def _saved(stored: StoredPlans, slower: float, facility: bool) -> float:
    """Percent of the fastest plan's energy that the thriftiest plan within the deadline saves."""
    deadline = slower * float(stored.plans["iteration_time_s"].min())
    found = choose(stored, {"iteration_time_s": deadline}, "energy", facility=facility)
    energy = stored.plans[found.energy]
    return 100.0 * (1.0 - float(energy[found.row] / energy[stored.plans["iteration_time_s"].argmin()]))


if __name__ == "__main__":
    main()
