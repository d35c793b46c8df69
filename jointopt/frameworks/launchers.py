"""Nodes and GPUs that a command is started on: by its launchers, a batch header, a hostfile, or usual variables.

What a launcher nearer to the program states counts more. A number that only a shell knows, a range of nodes, and
launchers that contradict each other are questions. Sources: srun(1), sbatch(1), qsub(1B) and pbs_resources(7), bsub(1),
jsrun(1), mpirun(1) of Open MPI, mpiexec of MPICH, torchrun, DeepSpeed's and Accelerate's launchers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from jointopt.frameworks.options import Question, whole_number
from jointopt.frameworks.shell_words import Piece, Run, Script, Text, Unknown, Word, literal, unknown_of, unknown_text
from jointopt.jobs.catalog.gpus import known_gpu

# options of each launcher (dashes and underscores alike) and what they state
_SLURM = {
    "nodes": "nodes", "N": "nodes", "ntasks": "tasks", "n": "tasks", "ntasks_per_node": "tasks_per_node",
    "tasks_per_node": "tasks_per_node", "gpus_per_node": "typed", "gres": "gres", "gpus": "gpus", "G": "gpus",
    "gpus_per_task": "gpus_per_task", "constraint": "constraint", "C": "constraint",
}  # fmt: skip
_MPI = {
    "np": "tasks", "n": "tasks", "c": "tasks", "npernode": "tasks_per_node", "N": "tasks_per_node",
    "ppn": "tasks_per_node", "perhost": "tasks_per_node", "map_by": "map_by", "hostfile": "hostfile",
    "machinefile": "hostfile", "f": "hostfile", "host": "hosts", "H": "hosts", "hosts": "hosts",
}  # fmt: skip
_TORCHRUN = {"nnodes": "nodes", "nproc_per_node": "gpus_per_node"}
_LAUNCHERS: dict[str, Mapping[str, str]] = {
    "srun": _SLURM, "sbatch": _SLURM, "salloc": _SLURM, "SBATCH": _SLURM, "mpirun": _MPI, "mpiexec": _MPI, "prun": _MPI,
    "orterun": _MPI, "horovodrun": _MPI, "torchrun": _TORCHRUN, "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "deepspeed": {"num_nodes": "nodes", "num_gpus": "gpus_per_node", "hostfile": "hostfile", "H": "hostfile",
                  "include": "include", "i": "include", "exclude": "exclude", "e": "exclude"},
    "accelerate": {"num_machines": "nodes", "num_processes": "tasks", "num_gpus": "gpus_per_node"},
    "jsrun": {"n": "sets", "nrs": "sets", "g": "gpus_per_set", "gpu_per_rs": "gpus_per_set", "a": "tasks_per_set",
              "tasks_per_rs": "tasks_per_set", "r": "sets_per_node", "rs_per_host": "sets_per_node"},
    "BSUB": {"nnodes": "nodes", "gpu": "lsf_gpu"}, "PBS": {"l": "pbs"},
    "flux": {"N": "nodes", "nodes": "nodes", "n": "tasks", "ntasks": "tasks", "gpus_per_node": "gres",
             "tasks_per_node": "tasks_per_node"},
    "FLUX": {"N": "nodes", "nodes": "nodes", "n": "tasks", "ntasks": "tasks", "gpus_per_node": "gres"},
    "aprun": {"n": "tasks", "N": "tasks_per_node"},
}  # fmt: skip
_NODE_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed", "accelerate"}
_VARIABLES = {
    "nodes": ("NNODES", "NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NUM_NODE", "N_NODES"),
    "gpus_per_node": ("GPUS_PER_NODE", "NGPU", "NPROC_PER_NODE", "NUM_GPUS_PER_NODE", "NUM_GPUS_PERNODE",
                      "NGPUS_PER_NODE"),
    "num_gpus": ("WORLD_SIZE",),
}  # fmt: skip
BATCH = "the batch system"  # which sets variables in every job
_SLURM_VARIABLES = tuple(f"SLURM_{name}" for name in (
    "JOB_ID", "JOBID", "JOB_NODELIST", "NODELIST", "SUBMIT_DIR", "JOB_NAME", "PROCID", "NODEID", "LOCALID",
    "JOB_PARTITION", "TASKS_PER_NODE",
))  # fmt: skip
_PBS_VARIABLES = ("PBS_JOBID", "PBS_O_WORKDIR", "PBS_JOBNAME")
NODEFILE = "$PBS_NODEFILE"  # stands for the path of the file of nodes, in which a line is a rank
# options of launchers, which stand before those of the program
OPTIONS = frozenset((
    *(name for table in _LAUNCHERS.values() for name in table), "node_rank", "master_addr", "master_port", "rdzv_id",
    "rdzv_backend", "rdzv_endpoint", "rdzv_conf", "max_restarts", "tee", "log_dir", "local_ranks_filter", "redirects",
    "standalone", "exclude", "mpi", "cpu_bind", "container_image", "container_mounts", "container_name", "output",
    "error", "machine_rank", "main_process_ip", "main_process_port", "config_file", "multi_gpu", "no_python", "label",
    "local_rank", "cpus_per_task", "plan", "kill_on_bad_exit", "no_container_mount_home", "role", "launcher", "use_env",
    "export", "module", "mem", "time", "partition", "job_name", "account", "exclusive", "nodelist", "bind_to",
    "open_mode",
))  # fmt: skip
_HEADER = re.compile(r"^#(SBATCH|PBS|BSUB|FLUX:?|\$)\s+(.*)$")
# variables that Slurm sets from what its header asks: sbatch(1)
_VARIABLES_BY_HEADER = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "tasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "tasks_per_node": ("SLURM_NTASKS_PER_NODE",), "gpus": ("SLURM_GPUS",), "gpus_per_task": ("SLURM_GPUS_PER_TASK",),
}  # fmt: skip
_MOST_OF_A_NODE = 16  # GPUs; more are mostly those of all nodes, under the option for one
_MOST_RANKS = 100_000
_CHUNKS = re.compile(r"(?:select|nodes)=([^,]+)")  # of PBS
_TEXT_OPTIONS = ("gres", "typed", "constraint", "hosts", "hostfile", "include", "exclude", "pbs", "lsf_gpu", "map_by")


@dataclass
class Allocation:
    """Nodes and GPUs that a command is started on, each with its place, and questions on those not known."""

    cluster: dict[str, Any] = field(default_factory=dict)  # nodes, gpus_per_node, num_gpus, gpu
    places: dict[str, str] = field(default_factory=dict)
    questions: dict[str, Question] = field(default_factory=dict)  # field -> why, and the variable that answers
    reads: tuple[str, ...] = ()  # names of the hostfiles that state some of them

    @property
    def field_questions(self) -> dict[str, Question]:
        """The questions by the fields of a job: ``cluster.nodes``."""
        return {f"cluster.{name}": question for name, question in self.questions.items()}

    def state(self, name: str, value: Any, place: str = "") -> None:
        """Sets a field, over what a launcher farther from the program states."""
        if value is not None:
            self.cluster[name], self.places[name] = value, place
            self.questions.pop(name, None)

    def ask(self, name: str, why: str, variable: str = "") -> None:
        """Asks for a field, whatever a launcher farther from the program states."""
        self.cluster.pop(name, None)
        self.questions[name] = Question(why, variable)


def header_of(text: str, name: str, values: Mapping[str, Text] | None = None) -> list[tuple[str, list[Word]]]:
    """(batch system, options) of each line of a batch header, which ends at the first command.

    A quotation that does not end has none. ``name``: of the file; ``values``: of variables that a shell around it put
    in its place.
    """
    found: list[tuple[str, list[Word]]] = []
    for at, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if match := _HEADER.match(line.strip()):
            try:
                words = shlex.split(match[2], comments=True)
            except ValueError:
                continue
            rows = [[(values or {}).get(part[2:-1]) or literal(part, f"{name}:{at}") for part in
                     re.split(r"(\$\{\w+\})", word) if part] for word in words]  # fmt: skip
            found.append((match[1].rstrip(":"), [Word(piece for text in row for piece in text) for row in rows]))
    return found


def batch_variables(header: Sequence[tuple[str, list[Word]]]) -> dict[str, Text]:
    """The variables that Slurm sets from the header."""
    values = _parse_options(_SLURM, [word for system, line in header if system == "SBATCH" for word in line])
    numbers = {key: number for key, word in values.items() if (number := _parse_number(word))}
    nodes, each = numbers.get("nodes"), numbers.get("tasks_per_node")
    if nodes and each:
        numbers.setdefault("tasks", nodes * each)
    on_node = _parse_gres(str(values.get("typed", values.get("gres", ""))))[1]
    on_node = on_node or (numbers["gpus"] // nodes if nodes and "gpus" in numbers else None)
    on_node = on_node or (each * numbers["gpus_per_task"] if each and "gpus_per_task" in numbers else None)
    place = next((word.place for word in values.values()), "")
    places = {key: word.place for key, word in values.items()}
    names = _SLURM_VARIABLES if values else _PBS_VARIABLES if any(system == "PBS" for system, _ in header) else ()
    unknown: dict[str, Text] = {name: unknown_text(f"${name}", "", "", set_by=BATCH, nonempty=True)
               for name in names}  # fmt: skip
    if names is _PBS_VARIABLES:
        unknown["PBS_NODEFILE"] = literal(NODEFILE, "")
    found = unknown | {name: literal(str(numbers[key]), places.get(key, place))
             for key, names in _VARIABLES_BY_HEADER.items() if key in numbers for name in names}  # fmt: skip
    if "typed" in values:
        found["SLURM_GPUS_PER_NODE"] = values["typed"].pieces
    if on_node:
        found["SLURM_GPUS_ON_NODE"] = literal(str(on_node), places.get("typed", places.get("gres", place)))
    return found


def nodefile_of(header: Sequence[tuple[str, list[Word]]]) -> list[Text]:
    """The lines of the file of nodes that PBS writes, one for each rank of a node; none where that is not stated."""
    lines = [_parse_options(_LAUNCHERS["PBS"], line) for system, line in header if system == "PBS"]
    stated = [word for options in lines for word in options.values()]
    found: list[Text] = []
    for chunk in next((one[1] for word in reversed(stated) if (one := _CHUNKS.search(word))), "").split("+"):
        number, ranks = re.match(r"(\d{1,5})(?:$|:)", chunk), re.search(r":(?:mpiprocs|ppn)=(\d{1,3})(?:$|:)", chunk)
        for _ in range(int(number[1]) if number else int(chunk != "")):
            host = Unknown(f"$host{len(found)}", set_by=BATCH, nonempty=True)
            found += [(Piece(unknown=host),)] * (int(ranks[1]) if ranks else 1)
            if len(found) > _MOST_RANKS:
                return []
    return found


def cluster_of(script: Script, run: Run, hostfiles: Mapping[str, str] | None = None) -> Allocation:
    """The nodes, GPUs per node, GPUs in all and the GPU that a command of a script is started on; only what is stated.

    ``hostfiles``: texts of other files by name.
    """
    found = Allocation()
    environment = run.environment
    for field_name, variables in _VARIABLES.items():
        stated = ((number, one) for one in variables if (number := whole_number(environment.get(one))))
        found.state(field_name, *next(stated, (None, "")))
    if "nodes" in found.cluster and "gpus_per_node" in found.cluster:
        found.cluster.pop("num_gpus", None)
    files = {PurePosixPath(path).name: text for path, text in script.written.items()} | dict(hostfiles or {})
    levels = [(name, values) for name, values in _launcher_options(run)
              if values or (name == "deepspeed" and "hostfile" in files)]  # fmt: skip
    for at, (name, values) in enumerate(levels):
        inner = all(other not in _NODE_LAUNCHERS for other, _ in levels[at + 1 :])
        if name == "deepspeed":  # where it looks by itself
            values.setdefault("hostfile", Word(literal("/job/hostfile", "default of deepspeed")))
        if (file := PurePosixPath(values.get("hostfile", "")).name) in files:
            found.reads += (file,)
        _apply_launcher(found, name, values, inner, files)
    cluster = found.cluster
    whole = {"nodes", "gpus_per_node"} <= cluster.keys()
    if whole and cluster.get("num_gpus") == cluster["nodes"] * cluster["gpus_per_node"]:
        del cluster["num_gpus"]
    if cluster.get("gpus_per_node", 0) > _MOST_OF_A_NODE:
        many, place = cluster["gpus_per_node"], found.places.get("gpus_per_node", "")
        found.ask("gpus_per_node", f"{many} GPUs of one node are started ({place})")
    if "num_gpus" in cluster and not {"nodes", "gpus_per_node"} & (cluster.keys() | found.questions.keys()):
        place = found.places.get("num_gpus", "")
        found.ask("nodes", f"{cluster['num_gpus']} GPUs are started ({place}), on nodes of a number that is not stated")
    return found


def _launcher_options(run: Run) -> Iterator[tuple[str, dict[str, Word]]]:
    """(launcher, its options) from the batch header to the program; Slurm's header and srun are one."""
    header: dict[str, Word] = {}
    for system, line in run.header:
        if system in _LAUNCHERS:
            values = _parse_options(_LAUNCHERS[system], line)
            if system == "SBATCH":
                header |= values
            else:
                yield system, values
    launchers = _split_launchers(run.words)
    if not any(_LAUNCHERS[name] is _SLURM for name, _ in launchers):
        yield "SBATCH", header
    for name, words in launchers:
        slurm = _LAUNCHERS[name] is _SLURM
        if slurm and "--overlap" in words:  # a step beside another one: it says where it runs, not on how many nodes
            continue
        values = _parse_options(_LAUNCHERS[name], words)
        every = values.get("gpus_per_node") in ("auto", "gpu")  # that torchrun sees
        if every and (visible := run.environment.get("CUDA_VISIBLE_DEVICES")):
            values["gpus_per_node"] = Word(literal(str(len(visible.split(","))), "CUDA_VISIBLE_DEVICES"))
        if "--standalone" in words:
            values["nodes"] = Word(literal("1", words[words.index("--standalone")].place))  # type: ignore[arg-type]
        if slurm and {"tasks", "tasks_per_node"} & values.keys():  # of a step of its own
            header = {key: word for key, word in header.items() if key not in ("tasks", "tasks_per_node", "gpus")}
        yield name, (header | values if slurm else values)
        header = header | values if slurm else header


def _split_launchers(words: Sequence[Word]) -> list[tuple[str, list[Word]]]:
    """(launcher, the words after it) of each launcher before the program."""
    found: list[tuple[str, list[Word]]] = []
    for at, word in enumerate(words):
        name = PurePosixPath(str(word)).name
        module = str(words[at - 1]) == "-m" if at else False
        if name in _LAUNCHERS and (module or "." not in name) and name.islower():
            found.append((name, []))
        elif name.endswith(".py") or (module and name not in _LAUNCHERS):
            break
        elif found:
            found[-1][1].append(word)
    return found


def _parse_options(table: Mapping[str, str], words: Sequence[Word]) -> dict[str, Word]:
    """The values of a launcher's options, by what they state; ``-N4``, ``-N 4``, ``--nodes=4`` and ``--nodes 4``."""
    found: dict[str, Word] = {}
    for at, word in enumerate(words):
        if not word.startswith("-"):
            continue
        name, equals, _ = word.lstrip("-").partition("=")
        key = name.replace("-", "_")
        glued = re.fullmatch(r"-([A-Za-z])(\d[\d-]*)", word)
        if glued and glued[1] in table:
            found[table[glued[1]]] = word.rest(2)
        elif key in table and (len(key) > 1 or not word.startswith("--")):
            value = word.rest(word.index("=") + 1) if equals else words[at + 1] if at + 1 < len(words) else None
            if value is not None:
                found[table[key]] = value
    return found


def _apply_launcher(
    found: Allocation, name: str, values: Mapping[str, Word], inner: bool, files: Mapping[str, str]
) -> None:
    """Adds what one launcher states; ``inner``: its tasks are ranks, not launchers of them."""
    numbers = _parse_text_options(values, files) | _known_numbers(found, name, values)
    places = {key: f"default of {word.place}" if word.default else word.place for key, word in values.items()}
    gpu, of_gres = _parse_gres(str(values.get("typed", values.get("gres", ""))))
    place = places.get("typed", places.get("gres", ""))
    found.state("gpu", gpu or _gpu_id(str(values.get("constraint", ""))), place)
    tasks, each = numbers.get("tasks"), numbers.get("tasks_per_node")
    sets, per_set = numbers.get("sets"), numbers.get("gpus_per_set")
    if sets and per_set:
        tasks = sets * numbers.get("tasks_per_set", 1)
        per_node = numbers.get("sets_per_node")
        numbers.setdefault("gpus_per_node", per_set * per_node) if per_node else None
        nodes = found.cluster.get("nodes")
        if nodes and (sets * per_set) % nodes == 0:
            numbers.setdefault("gpus_per_node", sets * per_set // nodes)
    nodes = numbers.get("nodes")
    if nodes is None and tasks and each and tasks % each == 0:
        nodes = tasks // each
    outer, stated_at = found.cluster.get("nodes"), found.places.get("nodes", "")
    if nodes and outer and nodes > outer and name in _NODE_LAUNCHERS and stated_at not in _VARIABLES["nodes"]:
        found.ask("nodes", f"{name} starts {nodes} nodes inside of {outer} ({stated_at})")
        nodes = None
    found.state("nodes", nodes, places.get("nodes", "") or places.get("tasks", ""))
    gpus, each_task = numbers.get("gpus"), numbers.get("gpus_per_task")
    ranks = each or (tasks // nodes if tasks and nodes and tasks % nodes == 0 else None) if inner else None
    per_node = next(filter(None, (
        numbers.get("gpus_per_node"), each * each_task if each and each_task else None,
        ranks if ranks and ranks > 1 else None, of_gres,
        gpus // nodes if gpus and nodes and gpus % nodes == 0 else None, ranks,
    )), None)  # fmt: skip
    found.state(
        "gpus_per_node",
        per_node,
        next((places[key] for key in ("gpus_per_node", "typed", "gres", "tasks_per_node") if key in places), ""),
    )
    if inner and (tasks or gpus):
        found.state("num_gpus", tasks or gpus, places.get("tasks", "") or places.get("gpus", ""))
    elif name in _NODE_LAUNCHERS:
        found.cluster.pop("num_gpus", None)


def _known_numbers(found: Allocation, name: str, values: Mapping[str, Word]) -> dict[str, int]:
    """The numbers that a launcher's options state; asks for what is a range, or known to a shell alone."""
    numbers: dict[str, int] = {}
    for key, word in values.items():
        unknown, number = unknown_of(word), None if key in _TEXT_OPTIONS else _parse_number(word)
        asked_field = {"nodes": "nodes", "gpus_per_node": "gpus_per_node", "tasks": "num_gpus"}.get(key)
        if number:
            numbers[key] = number
        elif asked_field and unknown is not None:
            found.ask(asked_field, f"{name} is given {word} ({unknown.place or word.place})", unknown.variable)
        elif asked_field and re.search(r"\d+\s*[-:]\s*\d+", word):
            found.ask(asked_field, f"{name} is given the range {word} ({word.place})")
    return numbers


def _parse_number(word: Word) -> int | None:
    """A whole number, also of ``4:4`` and ``4-4``; None for a range and for what is not known."""
    if unknown_of(word) is not None:
        return None
    ends = {whole_number(part) for part in re.split(r"[:-]", str(word)) if part}
    return ends.pop() if len(ends) == 1 else None


def _parse_text_options(values: Mapping[str, Word], files: Mapping[str, str]) -> dict[str, int]:
    """Numbers inside of texts: PBS' select, LSF's GPUs, mpirun's mapping and hosts, a hostfile that was given."""
    found: dict[str, int] = {}
    if select := _CHUNKS.search(str(values.get("pbs", ""))):
        chunks = [chunk.split(":") for chunk in select[1].split("+")]
        found["nodes"] = sum(int(chunk[0]) if chunk[0].isdecimal() else 1 for chunk in chunks)
        gpus = {match[1] for part in chunks[0] if (match := re.fullmatch(r"(?:ngpus|gpus)=(\d+)", part))}
        found |= {"gpus_per_node": int(gpus.pop())} if gpus and len(chunks) == 1 else {}
    if gpus_of := re.search(r"num=(\d+)", str(values.get("lsf_gpu", ""))):
        found["gpus_per_node"] = int(gpus_of[1])
    if mapped := re.search(r"ppr:(\d+):node", str(values.get("map_by", ""))):
        found["tasks_per_node"] = int(mapped[1])
    hosts = [part for part in re.split(r"[,@]", str(values.get("hosts", ""))) if re.match(r"[A-Za-z]", part)]
    if hosts and not values["hosts"].unknown:
        found["nodes"] = len(hosts)
        slots = {part.rpartition(":")[2] for part in hosts if re.search(r":\d+$", part)}
        found |= {"tasks_per_node": int(slots.pop())} if len(slots) == 1 else {}
    of_hosts = _select_hosts(
        values, _parse_hostfile(files.get(PurePosixPath(str(values.get("hostfile", ""))).name, ""))
    )
    if of_hosts:
        found["nodes"], sizes = len(of_hosts), {*of_hosts.values()}
        found |= {"gpus_per_node": size} if len(sizes) == 1 and (size := sizes.pop()) else {}
    return found


def _parse_hostfile(text: str) -> dict[str, int | None]:
    """The slots of each host of a hostfile (``node1 slots=8``); None where it states none."""
    rows = [words for line in text.splitlines() if (words := line.split("#")[0].split())]
    slots = [re.search(r"(?:\s(?:max_)?slots=|:)(\d+)", " ".join(row)) for row in rows]
    return {row[0].split(":")[0]: int(found[1]) if found else None for row, found in zip(rows, slots, strict=True)}


def _select_hosts(values: Mapping[str, Word], hosts: Mapping[str, int | None]) -> dict[str, int | None]:
    """The hosts that DeepSpeed takes by ``--include node1:0,1@node2``, or that ``--exclude`` leaves, with slots."""
    if any(values[key].unknown for key in ("include", "exclude") if key in values):
        return {}
    included, excluded = (
        {host.strip(): len(slots.split(",")) if slots else hosts.get(host.strip())
         for host, _, slots in (part.partition(":") for part in values.get(key, "").split("@")) if host}
        for key in ("include", "exclude")
    )  # fmt: skip
    left = {host: slots and slots - (excluded.get(host) or 0) for host, slots in (included or hosts).items()}
    return {host: slots for host, slots in left.items() if slots != 0 and (host not in excluded or slots)}


def _parse_gres(text: str) -> tuple[str | None, int | None]:
    """(GPU, number) of ``gpu:h100:8``, ``h100:8`` or ``8``; None for what it does not state."""
    found = re.search(r"(?:^|,)(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d+)(?:\(|,|$)", text)
    return (_gpu_id(found[1] or ""), whole_number(found[2])) if found else (None, None)


def _gpu_id(text: str) -> str | None:
    gpu = known_gpu(text) if text else None
    return gpu.id if gpu else None
