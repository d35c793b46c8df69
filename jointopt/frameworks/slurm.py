"""Slurm: an sbatch script around another target's command, in a container or not, with the plan's clocks outside.

Sources: srun(1), sbatch(1); pyxis' README (--container-image, --container-mounts); apptainer exec(1).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from jointopt.core.quote import comment, container_mounts, sbatch_line, sh_command, sh_exports, sh_variable, sh_word
from jointopt.frameworks.intent import Export, Intent, folded, node_words
from jointopt.frameworks.targets import program_of
from jointopt.jobs.cluster import Cluster
from jointopt.jobs.slurm import NAMED, NO_GPU_REQUEST, Slurm

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


NODE_VARIABLES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURMD_NODENAME")


# The script that sbatch receives: one run on all of its nodes, and its end written down by the job itself.


LOG, EXIT, RESULT = "log.txt", "exit.txt", "result.json"
_SLACK_MIN = 2  # to set up and to end, beyond the limit of the run

_SLURM_SCRIPT_TEMPLATE = """\
#!/bin/bash
{directives}

# One run of jointopt: {plan}
folder={folder}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then  # what an attempt left that a failed node ended
    rm -f "$folder/{result}" "$folder/{exit}" "$folder"/reading-*.json
    cp "$folder/{log}" "$folder/attempt-$SLURM_RESTART_COUNT.txt" && : > "$folder/{log}"
fi
{setup}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$(scontrol --oneliner show node "$first" | sed 's/.*NodeAddr=\\([^ ]*\\).*/\\1/')
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000)) NNODES=$SLURM_JOB_NUM_NODES

node() {{  # on every node
    export NODE_RANK=$SLURM_NODEID
    exec {command}
}}
export -f node

started=$SECONDS
timeout --kill-after=30 {limit_s} \\
    srun --export=ALL --ntasks="$NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 --cpu-bind=none bash -c node
code=$?
echo "$code $((SECONDS - started))" > "$folder/part" && mv "$folder/part" "$folder/{exit}"
exit $code
"""


def script(
    name: str, cluster: Cluster, slurm: Slurm, words: Sequence[str], folder: Path, limit_s: float, plan: str
) -> str:
    """The script of one run: ``words`` run once per node, where it was submitted, for at most ``limit_s`` seconds.

    Its last line of work writes "exit code, seconds" to ``exit.txt`` in ``folder``, which a killed job leaves out.
    """
    log = str(folder / LOG).replace("%", "%%")  # a per cent sign would begin a pattern of sbatch
    return _SLURM_SCRIPT_TEMPLATE.format(
        directives="\n".join(map(sbatch_line, directives(name, cluster, slurm, log, limit_s))),
        plan=comment(plan), folder=sh_word(str(folder)), result=RESULT, exit=EXIT, log=LOG,
        setup="\n".join(slurm.setup), command=shell_words(words), limit_s=math.ceil(limit_s),
    )  # fmt: skip


def directives(name: str, cluster: Cluster, slurm: Slurm, log: str, limit_s: float) -> list[str]:
    """Options of sbatch: one task on each node of the cluster, for at most ``limit_s`` and some slack.

    ``log`` is a pattern of sbatch. `sbatch_line` makes a line of each.
    """
    minutes = slurm.time_limit_min or math.ceil(limit_s / 60) + _SLACK_MIN
    gpus = [] if slurm.gpu_request == NO_GPU_REQUEST else [slurm.gpu_request]
    return [
        f"--job-name={name}", f"--nodes={cluster.nodes}", "--ntasks-per-node=1",
        *(line.replace("{gpus}", str(cluster.gpus_per_node)) for line in gpus),
        f"--time={minutes}", f"--output={log}", "--open-mode=append",
        "--requeue" if slurm.requeue else "--no-requeue", *(["--exclusive"] if slurm.exclusive else []),
        *(f"--{key}={value}" for key in NAMED if (value := getattr(slurm, key)) is not None), *slurm.sbatch,
    ]  # fmt: skip


def shell_words(words: Sequence[str]) -> str:
    """Words as shell takes them, in which the variables of the node stand for their values."""
    return sh_command(words, NODE_VARIABLES)


def container_words(slurm: Slurm, places: Sequence[Path]) -> list[str]:
    """Words in front of a node's command: a step of its own with pyxis, or apptainer; ``places`` are mounted too."""
    if slurm.container is None:
        return []
    mounts = container_mounts([*dict.fromkeys(f"{place}:{place}" for place in places), *slurm.mounts])
    if slurm.container_runtime == "apptainer":
        return ["apptainer", "exec", "--nv", "--bind", mounts, "--pwd", str(places[0]), slurm.container]
    return [
        "srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist=${SLURMD_NODENAME}", "--cpu-bind=none",
        f"--container-image={slurm.container}", f"--container-mounts={mounts}", f"--container-workdir={places[0]}",
    ]  # fmt: skip
