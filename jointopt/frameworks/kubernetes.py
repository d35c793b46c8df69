"""Kubernetes: a JobSet of one pod per node around another target's command, and its files as a ConfigMap.

Source: jobset.x-k8s.io/v1alpha2 (pods of a replicated job r of JobSet s are s-r-0-<index>.s by name).
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from jointopt.core.quote import kubernetes_text, sh_word, yaml_text
from jointopt.frameworks.intent import Export, Intent, folded, node_words
from jointopt.frameworks.targets import program_of

NAME, FILE = "kubernetes", "jobset.yaml"
_FOLDER = "/plan"


def export(intent: Intent, version: str, program: str = "") -> Export:
    """``jobset.yaml``: a ConfigMap and a JobSet; ``version`` is that of the JobSet, the program's is its newest."""
    inner = _at_home(program_of(intent, program).export(intent, ""))
    name = re.sub(r"[^a-z0-9]+", "-", intent.job.name.lower()).strip("-")[:40].strip("-") or "job"
    files = {"plan.json": json.dumps(dict(intent.plan), indent=2) + "\n", **inner.files}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-plan"}, "data": files}
    jobset = {
        "apiVersion": f"jobset.x-k8s.io/{version}", "kind": "JobSet", "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True}, "failurePolicy": {"maxRestarts": 3},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": _job(intent, inner, name)}}],
        },
    }  # fmt: skip
    image = [] if intent.job.slurm.container else ["Yours to set: the image, IMAGE in the file."]
    clocks = "Pods may not set GPU clocks: jointopt exec around the pod's command needs a privileged container."
    text = f"{yaml_text(config_map)}---\n{yaml_text(jobset)}"
    return Export(NAME, version, (), inner.environment, inner.world_size, "", (), {FILE: text},
                  (*inner.notes, *image, clocks))  # fmt: skip


def _at_home(inner: Export) -> Export:
    """The export with its files named where pods have them."""
    place = {name: f"{_FOLDER}/{name}" for name in inner.files}
    words, launcher = (tuple(place.get(word, word) for word in part) for part in (inner.words, inner.launcher))
    python = {"PYTHONPATH": _FOLDER} if any(name.endswith(".py") for name in place) else {}
    return dataclasses.replace(inner, words=words, launcher=launcher, environment={**inner.environment, **python})


def _job(intent: Intent, inner: Export, name: str) -> dict[str, Any]:
    """The Job of all nodes: an index for each, which is its rank."""
    cluster = intent.job.cluster
    command = folded(node_words(inner, cluster.nodes, cluster.gpus_per_node))
    address = sh_word(f"{name}-node-0-0.{name}")
    place = f"export NODE_RANK=$JOB_COMPLETION_INDEX MASTER_ADDR={address}\nexec {command}\n"
    container = {
        "name": "train", "image": intent.job.slurm.container or "IMAGE",
        "command": ["bash", "-c", kubernetes_text(place)],
        "env": [{"name": key, "value": kubernetes_text(value)} for key, value in inner.environment.items()],
        "resources": {"limits": {"nvidia.com/gpu": cluster.gpus_per_node}},
        "volumeMounts": [{"name": "plan", "mountPath": _FOLDER}, {"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    volumes = [
        {"name": "plan", "configMap": {"name": f"{name}-plan"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},  # NCCL's, and data loaders'
    ]
    return {
        "parallelism": cluster.nodes, "completions": cluster.nodes, "completionMode": "Indexed", "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes}},
    }  # fmt: skip
