"""Slurm: an sbatch script around another target's command, in a container or not, with the plan's clocks outside.

Sources: srun(1), sbatch(1); pyxis' README (--container-image, --container-mounts); apptainer exec(1).
"""

from __future__ import annotations

import json

from jointopt.core.quote import comment, container_mounts, sbatch_line, sh_exports, sh_variable, sh_word
from jointopt.jobs.slurm import Slurm
from jointopt.measure.exports.command import folded, node_words
from jointopt.measure.exports.intent import Export, Intent
from jointopt.measure.exports.targets import program_of
from jointopt.measure.launchers.slurm_script import directives

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
    log = "%j.log" if "/" in intent.job.name else "%x-%j.log"  # sbatch's own patterns: the job's name, its number
    lines = directives(intent.job.name, cluster, slurm, log, _LIMIT_S[intent.purpose])
    words = [*_container(slurm), *node_words(inner, cluster.nodes, cluster.gpus_per_node)]
    text = _TEMPLATE.format(
        directives="\n".join(map(sbatch_line, lines)), job=comment(intent.job.name), program=inner.target,
        version=comment(inner.version), plan=sh_word(PLAN), setup="\n".join(slurm.setup), gpus=cluster.gpus_per_node,
        environment="\n".join(sh_exports(inner.environment)),
        nodes=cluster.nodes, order=sh_word(inner.rank_order), command=folded(words, " " * 8),
    )  # fmt: skip
    files = {FILE: text, PLAN: json.dumps(dict(intent.plan), indent=2) + "\n", **inner.files}
    return Export(NAME, inner.version, (), inner.environment, inner.world_size, "", (), files, inner.notes)


def _container(slurm: Slurm) -> list[str]:
    """Words in front of a node's command: a step of its own on the node with pyxis, or apptainer."""
    if slurm.container is None:
        return []
    mounts, here = sh_word(container_mounts(slurm.mounts)), sh_variable("PWD")
    if slurm.container_runtime == "apptainer":
        bind = ["--bind", mounts] if slurm.mounts else []
        return ["apptainer", "exec", "--nv", *bind, "--pwd", here, sh_word(slurm.container)]
    bound = f"--container-mounts={here}:{here}" + (f",{mounts}" if slurm.mounts else "")
    return [
        "srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={sh_variable('SLURMD_NODENAME')}",
        "--cpu-bind=none", f"--container-image={sh_word(slurm.container)}", bound, f"--container-workdir={here}",
    ]  # fmt: skip
