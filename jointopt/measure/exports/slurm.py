"""Slurm: an sbatch script around another target's command, in a container or not, with the plan's clocks outside.

Sources: srun(1), sbatch(1); pyxis' README (--container-image, --container-mounts); apptainer exec(1).
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from jointopt.measure.exports.command import folded, node_words
from jointopt.measure.exports.intent import Export, Intent
from jointopt.measure.exports.targets import program_of
from jointopt.measure.launchers.slurm_script import directives
from jointopt.spec.slurm import Slurm

NAME, FILE, PLAN = "slurm", "job.sbatch", "plan.json"
_LIMIT_S = {"benchmark": 3600.0, "training": 86400.0}

_TEMPLATE = """\
#!/bin/bash
{directives}

# {job}, {program} {version}. Clocks and power limits are those of {plan}, set by jointopt outside of any container.
{setup}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
{environment}

node() {{  # on every node
    export NODE_RANK=$SLURM_NODEID
    jointopt exec --plan {plan} --gpus-per-node {gpus} --order {order} -- \\
    {command}
}}
export -f node

srun --export=ALL --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=1 --cpu-bind=none bash -c node
"""


def export(intent: Intent, version: str, program: str = "") -> Export:
    """``job.sbatch``, the plan, and the files of the target that trains; ``version`` is that target's."""
    inner_target = program_of(intent, program)
    inner = inner_target.export(intent, version if version != "development" else "")
    cluster, slurm = intent.job.cluster, intent.job.slurm
    lines = directives(intent.job.name, cluster, slurm, Path("%x-%j.log"), _LIMIT_S[intent.purpose])
    lines = [line.replace("%%", "%") for line in lines]  # here, the pattern of sbatch is meant
    words = [*_container(slurm), *node_words(inner, cluster.nodes, cluster.gpus_per_node)]
    text = _TEMPLATE.format(
        directives="\n".join(f"#SBATCH {line}" for line in lines), job=intent.job.name, program=inner.target,
        version=inner.version, plan=PLAN, setup="\n".join(slurm.setup), gpus=cluster.gpus_per_node,
        environment="\n".join(f"export {name}={shlex.quote(value)}" for name, value in inner.environment.items()),
        nodes=cluster.nodes, order=inner.rank_order, command=folded(words, " " * 8),
    )  # fmt: skip
    files = {FILE: text, PLAN: json.dumps(dict(intent.plan), indent=2) + "\n", **inner.files}
    return Export(NAME, inner.version, (), inner.environment, inner.world_size, "", (), files, inner.notes)


def _container(slurm: Slurm) -> list[str]:
    """Words in front of a node's command: a step of its own on the node with pyxis, or apptainer."""
    if slurm.container is None:
        return []
    mounts, here = ",".join(slurm.mounts), "$PWD"
    if slurm.container_runtime == "apptainer":
        bound = ["--bind", shlex.quote(mounts)] if mounts else []
        return ["apptainer", "exec", "--nv", *bound, "--pwd", f'"{here}"', shlex.quote(slurm.container)]
    bound = [f'--container-mounts="{here}:{here}{"," + mounts if mounts else ""}"']
    return [
        "srun", "--overlap", "--nodes=1", "--ntasks=1", '--nodelist="$SLURMD_NODENAME"', "--cpu-bind=none",
        f"--container-image={shlex.quote(slurm.container)}", *bound, f'--container-workdir="{here}"',
    ]  # fmt: skip
