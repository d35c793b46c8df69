"""Kubernetes: a JobSet of one pod per node around another target's command, and its files as a ConfigMap; pods read.

Sources: jobset.x-k8s.io/v1alpha2 (pods of a replicated job r of JobSet s are s-r-0-<index>.s by name), and for reading
batch/v1, kubeflow.org/v1 and v2beta1, trainer.kubeflow.org/v1alpha1, leaderworkerset.x-k8s.io/v1,
batch.volcano.sh/v1alpha1; the variables that training-operator's pytorch/envvar.go, Kubeflow Trainer's torch plugin,
Volcano's pytorch plugin and LeaderWorkerSet give pods.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import PurePosixPath
from typing import Any

import yaml

from jointopt.core.errors import JobError
from jointopt.core.quote import kubernetes_text, sh_exports, sh_word, yaml_text
from jointopt.frameworks.intent import Export, Intent, folded, node_words
from jointopt.frameworks.options import FileSettings, Question, whole_number
from jointopt.frameworks.shell import MOST_CHARACTERS
from jointopt.frameworks.shell_statements import SHELLS
from jointopt.frameworks.targets import program_of
from jointopt.jobs.catalog.gpus import known_gpu

NAME, FILE = "kubernetes", "jobset.yaml"
_FOLDER = "/plan"


def export(intent: Intent, version: str, program: str = "") -> Export:
    """``jobset.yaml``: a ConfigMap and a JobSet; ``version`` is that of the JobSet, the program's is its newest."""
    inner = _with_pod_paths(program_of(intent, program).export(intent, ""))
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


def _with_pod_paths(inner: Export) -> Export:
    """The export with the paths that its files have in pods."""
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


# --- import: the pods of a manifest, as the script that they run ----------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """A kind of manifest: where its groups of pods stand (a star: each), and what states their number."""

    groups: str
    pods: tuple[str, ...] = ("replicas",)  # numbers of a group, which multiply; 1 where it states none
    templates: tuple[str, ...] = ("template/spec",)  # of a group's pods
    ranks: str = ""  # of a pod
    given: Mapping[str, str] = field(default_factory=dict)  # variables of each pod: the format of their values
    range: tuple[str, str] = ("", "")  # the least and the most pods


_TORCH = {"PET_NNODES": "{pods}", "PET_NPROC_PER_NODE": "{ranks}"}
_KINDS = {
    "PyTorchJob": _Kind("spec/pytorchReplicaSpecs/*", ranks="spec/nprocPerNode", given=_TORCH | {"WORLD_SIZE": "{all}"},
                        range=("spec/elasticPolicy/minReplicas", "spec/elasticPolicy/maxReplicas")),
    "MPIJob": _Kind("spec/mpiReplicaSpecs/*", ranks="spec/slotsPerWorker"),
    "TrainJob": _Kind("spec/trainer", ("numNodes",), ranks="spec/trainer/numProcPerNode", given=_TORCH),
    "JobSet": _Kind("spec/replicatedJobs/*", ("replicas", "template/spec/parallelism"),
                    ("template/spec/template/spec",)),
    "Job": _Kind("spec", ("parallelism",), range=("spec/parallelism", "spec/completions")),
    "Volcano Job": _Kind("spec/tasks/*", given={"WORLD_SIZE": "{pods}"}),
    "LeaderWorkerSet": _Kind("spec/leaderWorkerTemplate", ("size",), ("leaderTemplate/spec", "workerTemplate/spec"),
                             given={"LWS_GROUP_SIZE": "{pods}"}),
    "StatefulSet": _Kind("spec"), "Pod": _Kind("", (), ("spec",)),
}  # fmt: skip
_HEAD = re.compile(rf"^[ -]*kind:[ ]*['\"]?(?:{'|'.join(name.split()[-1] for name in _KINDS)})\b", re.MULTILINE)
_BEGIN = re.compile(r"(?:[ \t]*(?:(?:#|---|\{\{).*)?\r?\n)*(?:apiVersion|kind|metadata|spec|data|items):")
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_PRODUCTS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_MOST = 1_000  # of a list


@dataclass
class Pods:
    """What a manifest starts: a script whose lines are those of the manifest, files by name, and the cluster."""

    script: str = ""
    files: dict[str, str] = field(default_factory=dict)  # of its ConfigMaps
    cluster: dict[str, tuple[Any, int]] = field(default_factory=dict)  # values with their lines
    questions: dict[str, str] = field(default_factory=dict)  # sizes that it leaves open, with the reason
    remarks: list[str] = field(default_factory=list)

    def state(self, settings: FileSettings, name: str) -> None:
        """Adds the cluster to what the script states; where launchers say otherwise, both are asked about."""
        ranks, place = settings.cluster.pop("num_gpus", None), settings.origins.pop("cluster.num_gpus", "")
        questions, cluster = dict(self.questions), settings.cluster
        for key, (value, line) in self.cluster.items():
            if cluster.get(key, value) != value:
                said = settings.origins.get(f"cluster.{key}") or "its command"
                questions[key] = f"{value} by {name}:{line}, {cluster[key]} by {said}"
            cluster[key], settings.origins[f"cluster.{key}"] = value, f"{name}:{line}"
        pods, each = cluster.get("nodes"), cluster.get("gpus_per_node")
        if ranks and pods and each and ranks != pods * each and place != "WORLD_SIZE":
            questions["nodes"] = f"{pods} pods of {each} GPUs by {name}, {ranks} ranks by {place}"
        known = {*cluster, "num_gpus"}
        settings.questions = {
            key: why for key, why in settings.questions.items() if key.removeprefix("cluster.") not in known
        }
        for key, why in questions.items():
            if key not in cluster or key in self.cluster:
                cluster.pop(key, None)
                settings.questions[f"cluster.{key}"] = Question(why)
        settings.remarks += tuple(self.remarks)
        settings.names = tuple(one for one in settings.names if one not in self.files)


def pods_of(text: str) -> Pods | None:
    """The pods of the one job in a manifest, perhaps of several documents; None for any other text.

    JobError for several jobs, and for a manifest that is no valid YAML, such as a template.
    """
    if len(text) > MOST_CHARACTERS or not _BEGIN.match(text) or not _HEAD.search(text):
        return None
    try:
        documents = [one for one in yaml.compose_all(text, Loader=yaml.SafeLoader) if one is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        hint = "; render the template first (helm template)" if "{{" in text else ""
        raise JobError(f"line {mark.line + 1 if mark else 1} of the manifest is no valid YAML{hint}.") from error
    documents = [item for one in documents for item in (_items(_node_at(one, "items")) or [one])]  # of a List
    jobs = [(kind, one) for one in documents if (kind := _kind_of(one)) in _KINDS]
    jobs = [
        job for job in jobs if any(key in _GPUS for node in _descendants(job[1:]) for key, _ in _pairs(node))
    ] or jobs
    if len(jobs) > 1:
        names = ", ".join(f"{kind} {_text(_node_at(one, 'metadata/name'))}" for kind, one in jobs)
        raise JobError(f"it holds {len(jobs)} jobs ({names}); give the manifest of one.")
    if not jobs:
        return None
    maps = {_text(_node_at(one, "metadata/name")): {key: _text(value) for key, value in _pairs(_node_at(one, "data"))}
            for one in documents if _kind_of(one) == "ConfigMap"}  # fmt: skip
    runtime = next((one for one in documents if _kind_of(one).endswith("TrainingRuntime")), None)
    return _pods(*jobs[0], runtime, maps)


def _pods(name: str, job: Any, runtime: Any, maps: Mapping[str, Mapping[str, str]]) -> Pods:
    kind, found = _KINDS[name], Pods(files={key: text for data in maps.values() for key, text in data.items()})
    shared = [spec for _, group in _groups(_node_at(runtime, "spec/template"), "spec/replicatedJobs/*")
              for spec in _containers(group, _KINDS["JobSet"].templates)]  # fmt: skip
    groups = []  # (role, its node, its containers, their GPUs)
    for role, group in _groups(job, kind.groups):
        containers = [*(_containers(group, kind.templates) if name != "TrainJob" else [group]), *shared]
        groups.append((role, group, containers, next(filter(None, map(_gpus_of, containers)), None)))
    counted = [one for one in groups if one[3]] or [one for one in groups if one[0] != "Launcher"]
    numbers = [_number(group, kind, runtime) for _, group, *_ in counted]
    line = _line(next((at for _, group, *_ in counted for path in kind.pods if (at := _node_at(group, path))), job))
    if None in numbers:
        found.questions["nodes"] = f"the manifest states no {kind.pods[0]} (line {line})"
    pods = sum(one or 0 for one in numbers)
    low, high = (whole_number(_text(_node_at(job, path))) for path in kind.range)
    if low and high and low != high:
        found.questions["nodes"] = f"the manifest has {low} to {high} pods (line {_line(_node_at(job, kind.range[1]))})"
    elif pods and "nodes" not in found.questions:
        found.cluster["nodes"] = (pods, line)
    ranks = whole_number(_text(at)) if kind.ranks and (at := _node_at(job, kind.ranks)) else None
    _set_gpus(found, {gpus for *_, gpus in counted if gpus}, ranks, _node_at(job, kind.ranks) if ranks else None)
    for label, at in _selected_gpus(job, runtime):
        if gpu := known_gpu(label):
            found.cluster["gpu"] = (gpu.id, at)
        else:
            found.remarks.append(f"line {at} selects {label}, which is no one GPU of the catalogue")
    every = {"pods": str(pods or ""), "ranks": str(ranks or ""), "all": str(pods * (ranks or 1) or "")}
    given = {key: value for key, form in kind.given.items() if (value := form.format(**every))}
    if name == "Volcano Job" and _node_at(job, "spec/plugins/pytorch") is None:
        given = {}
    found.script = _script(groups, given, maps)
    return found


def _set_gpus(found: Pods, limits: set[tuple[int, int]], ranks: int | None, at: Any) -> None:
    """GPUs of a pod: by the limits of its container, else by its ranks; where these differ, they are asked about."""
    numbers = {gpus for gpus, _ in limits} | ({ranks} if ranks else set())
    if len(numbers) == 1:
        found.cluster["gpus_per_node"] = (numbers.pop(), min((line for _, line in limits), default=_line(at)))
    elif numbers:
        found.questions["gpus_per_node"] = f"the manifest states {' and '.join(map(str, sorted(numbers)))} for a pod"
    if limits == {(1, line) for _, line in limits} and limits and found.cluster.get("nodes", (1, 0))[0] > 1:
        found.remarks.append("each pod of one GPU is taken as a node of its own (--nodes, --gpus-per-node)")


def _script(groups: Sequence[Any], given: Mapping[str, str], maps: Mapping[str, Mapping[str, str]]) -> str:
    """The commands of all groups, each once, after the variables of its container; on the lines of the manifest."""
    pieces: list[tuple[int, str]] = []
    seen: set[str] = set()
    for _, _, containers, _ in groups:
        usable = [one for one in containers if _items(_node_at(one, "command")) or _items(_node_at(one, "args"))]
        for one in sorted(usable, key=lambda one: not _gpus_of(one))[:1]:
            words = [*_items(_node_at(one, "command")), *_items(_node_at(one, "args"))]
            variables = list(_variables(one, maps))
            names = [*given, *(name for name, *_ in variables)]
            line, command = _command(words, names)
            known = [*((name, line, value) for name, value in given.items()), *variables]
            exports = [(min(at, line), f"{sh_exports({name: _expand_references(value, names)}, names)[0]}; ")
                       for name, at, value in known if value is not None]  # fmt: skip
            exports.sort(key=lambda export: export[0])
            pieces += [*exports, (line, command)] if command not in seen else []
            seen.add(command)
    return _place_on_lines(pieces)


def _command(words: Sequence[Any], names: Sequence[str]) -> tuple[int, str]:
    """The first line and the text of a command: what a shell is given as one word, else the words themselves."""
    texts = [_text(word) for word in words]
    inner = next((at for at in range(1, len(words) - 1) if re.fullmatch(r"-[a-z]*c", texts[at])), None)
    if inner is not None and PurePosixPath(texts[0]).name in SHELLS:
        block = words[inner + 1].style in ("|", ">")
        return _line(words[inner + 1]) + block, _expand_references(texts[inner + 1], names)
    line, command = _line(words[0]), ""
    for word, text in zip(words, texts, strict=True):
        command += " \\\n" * max(_line(word) - line, 0) + " " + sh_word(_expand_references(text, names), names)
        line = max(line, _line(word))
    return _line(words[0]), command.strip()


def _expand_references(text: str, names: Sequence[str]) -> str:
    """As Kubernetes does: ``$(NAME)`` is the value of a variable, here ``${NAME}``, and ``$$`` is ``$``."""
    return _REFERENCE.sub(
        lambda found: "$" if not found[1] else f"${{{found[1]}}}" if found[1] in names else found[0], text
    )


def _variables(container: Any, maps: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, int, str | None]]:
    """(name, line, value) of a container's variables; None where something else in the cluster states the value."""
    for one in _items(_node_at(container, "envFrom")):
        for name, value in maps.get(_text(_node_at(one, "configMapRef/name")), {}).items():
            yield name, _line(one), value
    for one in _items(_node_at(container, "env")):
        value = _node_at(one, "value")
        if re.fullmatch(r"[A-Za-z_]\w*", name := _text(_node_at(one, "name"))):
            yield name, _line(one), None if value is None else _text(value)


def _place_on_lines(pieces: Sequence[tuple[int, str]]) -> str:
    """One text with each piece on its line, or a later one where the pieces before need the room."""
    text = ""
    for line, piece in pieces:
        missing = line - 1 - text.count("\n")
        text += "\n" * (missing if missing > 0 else bool(text) and not text.endswith("; ")) + piece
    return text


def _number(group: Any, kind: _Kind, runtime: Any) -> int | None:
    """The pods of a group; None where the number is left to something else."""
    stated = [at for path in kind.pods if (at := _node_at(group, path)) is not None]
    if kind.pods == ("numNodes",) and not stated:
        stated = [_node_at(runtime, "spec/mlPolicy/numNodes")]
    numbers = [whole_number(_text(at)) for at in stated]
    return None if None in numbers else prod(number or 0 for number in numbers)


def _gpus_of(container: Any) -> tuple[int, int] | None:
    """The GPUs of a container, and their line."""
    places = (f"{part}/{kind}" for part in ("resources", "resourcesPerNode") for kind in ("limits", "requests"))
    found = (_node_at(_node_at(container, place), gpu, whole=True) for place in places for gpu in _GPUS)
    return next(((number, _line(at)) for at in found if at is not None and (number := whole_number(_text(at)))), None)


def _selected_gpus(*nodes: Any) -> Iterator[tuple[str, int]]:
    """(name, line) of the GPU that labels of nodes select, by a selector or by an affinity to one value."""
    for node in _descendants(nodes):
        for key, value in _pairs(node):
            if key in _PRODUCTS and isinstance(value, yaml.ScalarNode):
                yield value.value, _line(value)
        if _text(_node_at(node, "key")) in _PRODUCTS and len(values := _items(_node_at(node, "values"))) == 1:
            yield _text(values[0]), _line(values[0])


def _groups(job: Any, path: str) -> list[tuple[str, Any]]:
    """(its name in a mapping, node) of each group of pods."""
    if not path.endswith("/*"):
        return [("", node)] if (node := _node_at(job, path)) is not None else []
    outer = _node_at(job, path.removesuffix("/*"))
    return _pairs(outer) or [("", one) for one in _items(outer)]


def _containers(group: Any, templates: Sequence[str]) -> list[Any]:
    return [one for path in templates for one in _items(_node_at(group, f"{path}/containers"))]


def _kind_of(document: Any) -> str:
    volcano = _text(_node_at(document, "apiVersion")).startswith("batch.volcano.sh/")
    return ("Volcano " if volcano else "") + _text(_node_at(document, "kind"))


# Nodes of YAML, which know their lines.


def _node_at(node: Any, path: str, whole: bool = False) -> Any:
    """The node at a path of keys; ``whole``: the path is one key. None where there is none."""
    for key in [path] if whole else filter(None, path.split("/")):
        pairs = _pairs(node)
        node = next((value for name, value in pairs if name == key), None)
        merged = [value for name, value in pairs if name == "<<"] if node is None else []
        node = next((inner for value in merged if (inner := _node_at(value, key, True)) is not None), node)
    return node


def _pairs(node: Any) -> list[tuple[str, Any]]:
    pairs = node.value[:_MOST] if isinstance(node, yaml.MappingNode) else []
    return [(_text(key), value) for key, value in pairs]


def _items(node: Any) -> list[Any]:
    return node.value[:_MOST] if isinstance(node, yaml.SequenceNode) else []


def _text(node: Any) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _line(node: Any) -> int:
    return node.start_mark.line + 1 if node is not None else 1


def _descendants(nodes: Sequence[Any]) -> Iterator[Any]:
    """All nodes below and including these, each once, however many aliases refer to it."""
    todo, seen = [node for node in nodes if node is not None], set()
    while todo:
        node = todo.pop(0)
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            todo += [value for _, value in _pairs(node)] + _items(node)
