"""Scripts made from a grammar of what launch scripts do, read by `jointopt import` and run by bash, and compared.

The idioms stand in shell_idioms.yaml, in ten classes, of which scripts are made in equal shares. Each script is run
under bash with stand-in launchers that write down their arguments, its free variables once unset, once empty, once set,
and in the environment that the batch system of its header makes. Where the three start the same, what is read must be
that, or be asked. Where they differ, it must be asked, or be the script's own default and said to be. Prints the counts
of values by class, and each script that is read otherwise.

    python tests/bench/fuzz_shell.py [SCRIPTS] [SEED]
"""

from __future__ import annotations

import functools
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from jointopt.core.errors import JobError
from jointopt.core.quote import sh_command
from jointopt.frameworks.import_files import read_text
from jointopt.frameworks.options import FileSettings
from jointopt.frameworks.origins import fields_of

IDIOMS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("shell_idioms.yaml").read_text(encoding="utf-8"))
CLASSES = 10
PROGRAMS = {5: ("nemo", "titan"), 7: ("shape",), 9: ("older",)}  # of a class; else Megatron-LM
WRITTEN = ("torchrun", "python", "srun", "mpirun", "mpiexec", "deepspeed", "accelerate", "numactl", "nsys", "conda",
           "singularity", "apptainer", "docker", "lm_eval", "vllm")  # fmt: skip
# writes down what it is started with; a shell inside of it is started, and Python's own lines are run
STAND_IN = r"""#!/bin/bash
name=${0##*/}
if [[ $name == python && $1 == -c ]]; then exec /usr/bin/env -i python3 "$@"; fi
for word in "$@"; do
    if [[ $word == *.py || $word == -m ]]; then
        { [ -z "$STACK" ] || printf '%s\0' $STACK; printf '%s\0' "$name" "$@"; printf '\1\0'; } >> "$RAN"
        exit 0
    fi
done
STACK="$STACK $name" passed=()
while [ $# -gt 0 ] && [[ $1 != bash && $1 != sh ]]; do
    [[ $1 =~ ^(--export=ALL,)?([A-Z_]+=.*)$ ]] && passed+=("${BASH_REMATCH[2]}")
    STACK="$STACK $1"; shift
done
export STACK
[[ $name != docker ]] || passed=(-i PATH="$PATH" RAN="$RAN" STACK="$STACK" "${passed[@]}")
[ $# -eq 0 ] || exec /usr/bin/env "${passed[@]}" "$@"
"""
OTHERS = {
    "ssh": '#!/bin/bash\nshift\nexec env -i PATH="$PATH" RAN="$RAN" bash -c "$*"\n',
    "sbatch": '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec bash "$@"\n',
    "scontrol": '#!/bin/bash\nfor ((i = 1; i <= SLURM_NNODES; i++)); do echo n$i; done\n',
    "python3": "#!/bin/bash\nexec /usr/bin/env -i PATH=/usr/bin:/bin python3 \"$@\"\n",
}  # fmt: skip
# what launchers state of nodes, of the ranks or GPUs of one node, and of all ranks
STATED = {
    "torchrun": (r"--nnodes", r"--nproc[-_]per[-_]node", None), "deepspeed": ("--num_nodes", "--num_gpus", None),
    "python": (r"--nnodes", r"--nproc[-_]per[-_]node", None), "accelerate": ("--num_machines", None, "--num_processes"),
    "srun": (r"-N|--nodes", "--ntasks-per-node|--gpus-per-node", "-n|--ntasks"),
    "mpirun": (None, "-npernode|--map-by ppr", "-np"), "mpiexec": (None, "--?ppn", "-n"),
}  # fmt: skip


@dataclass
class Script:
    """A script, and what is needed to run it and to judge how it is read."""

    text: str
    program: Mapping[str, Any]
    header: Mapping[str, Any]
    free: dict[str, str] = field(default_factory=dict)  # variables that nobody sets -> the value of the run that does
    args: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # beside it, and given to import
    lost: dict[str, str] = field(default_factory=dict)  # beside it, and not given


class Maker:
    """Draws the rows of one script."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kind = seed % CLASSES + 1
        self.rows: list[dict[str, Any]] = []  # what the rows drawn say besides

    def draw(self, section: str, allowed: Any = lambda more: True) -> list[Any]:
        """A row of the class mostly, else a plain one, or one of another class that has such rows."""
        taken = any("args" in one for one in self.rows)
        rows = [[*row, {}] if not isinstance(row[-1], dict) else row for row in IDIOMS[section]]
        rows = [row for row in rows if allowed(row[-1]) and not (taken and "args" in row[-1])]
        own, plain = ([row for row in rows if row[0] == number] for number in (self.kind, 0))
        draw = self.random.random()
        others = rows if section == "values" else plain
        row = self.random.choice(own if own and draw < 0.75 else plain if draw > 0.5 or own else others)
        if section != "headers":
            self.rows.append(row[-1])
        return row

    def value(self, name: str, values: Sequence[int]) -> tuple[str, str]:
        """The lines and the word of an option's value."""
        one, two = self.random.choice(values), self.random.choice(values)
        _, lines, word, more = self.draw("values")
        places = (("NAME", name), ("ONE", str(one)), ("TWO", str(two)))
        for old, new in places:
            lines, word = str(lines).replace(old, new), str(word).replace(old, new)
        self.rows[-1] = _replaced(more, places)
        return lines, word

    def made(self) -> Script:
        """The script."""
        name = self.random.choice(PROGRAMS.get(self.kind, ("megatron",)))
        program = IDIOMS["programs"][name]
        _, header, system = self.draw("headers")
        start_lines, start = self.draw("starts", lambda more: _fits(system, more.get("needs")))[1:3]
        groups, parts = [start_lines], self.random.sample(program["flags"], 2)
        for option, (spelling, _, values) in program["options"].items():
            lines, word = self.value(option, values)
            groups.append(lines)
            parts.append(spelling.removesuffix("V") + word)
        _, lines, words, _ = self.draw("more")
        if name not in ("nemo", "titan"):
            groups.append(lines)
            parts.append(words)
        self.random.shuffle(groups)
        self.random.shuffle(parts)
        joint = self.random.choice((" ", " \\\n    "))
        command = f"{start} {program['start']} {program['shape']}{joint}{joint.join(filter(None, parts))}"
        plain = not re.search(r"[\"'\\\n@`!]|\$\(\(|<<", command)
        wrap = self.draw("wrap", lambda more: plain or not more.get("plain"))[1]
        lines = "\n".join(filter(None, [self.draw("before")[1], *groups]))
        names = re.findall(r"^(?:export |declare -i |readonly )?([A-Za-z_]+)(?=\+?=)", lines, re.MULTILINE)
        exports = "export " + " ".join(dict.fromkeys([*names, *program["options"]]))
        wrap = wrap.replace("COMMAND", command).replace("EXPORTS", exports)
        top, lines = ("", lines) if not lines.startswith("#!") else (lines.partition("\n")[0], lines.partition("\n")[2])
        script = Script("\n".join(filter(None, [top, header, lines, wrap, ""])) + "\n", program, system)
        for more in self.rows:
            script.free |= {key: str(value) for key, value in more.get("free", {}).items()}
            script.args += [str(word) for word in more.get("args") or []]
            script.files |= {
                key: script.files.get(key, "") + f"{text}\n" for key, text in more.get("files", {}).items()
            }
            script.lost |= {key: script.lost.get(key, "") + f"{text}\n" for key, text in more.get("lost", {}).items()}
        return script


def _replaced(more: Any, places: Sequence[tuple[str, str]]) -> Any:
    if isinstance(more, dict):
        return {_replaced(key, places): _replaced(value, places) for key, value in more.items()}
    return functools.reduce(lambda text, pair: text.replace(*pair), places, more) if isinstance(more, str) else more


def _fits(system: Mapping[str, Any], needs: str | None) -> bool:
    if needs == "pbs" or not needs:
        return bool(system.get("pbs")) if needs else True
    several = system.get("ranks", 1) > 1 or "tasks" in system
    return bool(system) and not system.get("pbs") and (needs != "ranks" or several)


def environment(header: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The variables that Slurm or PBS sets for what the header asks: sbatch(1), output environment variables."""
    if not header:
        return {}
    nodes, ranks = header["nodes"], header.get("ranks")
    if header.get("pbs"):
        (folder / "nodes").write_text("".join(f"n{at}\n" * (ranks or 1) for at in range(nodes)), encoding="utf-8")
        return {"PBS_NODEFILE": str(folder / "nodes"), "PBS_JOBID": "1"}
    tasks = header.get("tasks", ranks and nodes * ranks)
    found = {"JOB_ID": 1, "NNODES": nodes, "JOB_NUM_NODES": nodes, "JOB_NODELIST": f"n[1-{nodes}]", "NODEID": 0,
             "PROCID": 0, "LOCALID": 0, "NTASKS": tasks, "NTASKS_PER_NODE": ranks, "GPUS_ON_NODE": header.get("gpus"),
             "GPUS_PER_NODE": header.get("per"), "GPUS": header.get("all")}  # fmt: skip
    found["NPROCS"] = found["NTASKS"]
    return {f"SLURM_{name}": str(value) for name, value in found.items() if value is not None}


def started(script: Script, variables: Mapping[str, str], args: Sequence[str], folder: Path) -> list[list[str]]:
    """The words of each command that bash starts."""
    bin_, place, ran = folder / "bin", folder / "at", folder / "ran"
    if not bin_.exists():
        bin_.mkdir()
        for name, text in {**dict.fromkeys(WRITTEN, STAND_IN), **OTHERS}.items():
            (bin_ / name).write_text(text, encoding="utf-8")
            (bin_ / name).chmod(0o755)
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as at:  # what runs on behind
        place = Path(at)
        for name, inner in {**script.files, **script.lost, "train.sh": script.text}.items():
            (place / name).write_text(inner, encoding="utf-8")
        ran.unlink(missing_ok=True)
        system = environment(script.header, folder)
        paths = {"PATH": f"{bin_}:{os.environ['PATH']}", "RAN": str(ran)}
        with suppress(subprocess.TimeoutExpired):  # a loop without end, by the values of that run
            subprocess.run(
                ["bash", "train.sh", *args], cwd=place, env={**paths, **system, **variables}, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10, check=False,
            )  # fmt: skip
    rows = ran.read_text(encoding="utf-8").split("\1\0") if ran.exists() else []
    commands = [row.split("\0")[:-1] for row in rows if row]
    return [words for words in commands if script.program["start"].split()[-1] in words]


@functools.lru_cache(maxsize=2000)
def _of_words(words: tuple[str, ...]) -> dict[str, Any] | None:
    """The fields of a command of known words; None where a program would refuse them: no value, a blank word."""
    (taken,) = read_text(sh_command(words), "truth.sh")
    if "" in words or any(not name.startswith("cluster.") for name in taken.questions):
        return None
    return {name: value for name, value in fields_of(taken).items() if not name.startswith("cluster.")}


def truth_of(script: Script, words: Sequence[str]) -> dict[str, Any] | None:
    """The fields of a command as it was started: of its options by themselves, of others as their words are read."""
    at = words.index(script.program["start"].split()[-1])
    line, read = " ".join(words[at + 1 :]), _of_words(tuple(words))
    if read is None:
        return None
    truth = dict(read)
    for spelling, name, _ in script.program["options"].values():
        option = re.escape(re.sub(r"[= ]V$", "", spelling).lstrip("+"))
        given = re.findall(rf"(?:^| )\+*{option}[= ](\S+)", line)
        if given and given[-1].isdecimal():
            truth[name] = int(given[-1])
    return truth | {f"cluster.{name}": value for name, value in sizes(words[:at], script.header).items()}


def sizes(words: Sequence[str], header: Mapping[str, Any]) -> dict[str, int]:
    """Nodes, GPUs of one node and in all that launchers state; nothing of a program that none starts."""
    nodes = header.get("nodes")
    per = total = None
    names = [at for at, word in enumerate(words) if word in STATED]
    for at, end in zip(names, [*names[1:], len(words)], strict=True):
        if words[at] == "python" and "-m" not in words[at:end]:
            continue
        line, found = " ".join(words[at + 1 : end]), []
        for option in STATED[words[at]]:
            match = re.search(rf"(?:^| )(?:{option})[= :]?(\d+)", line) if option else None
            found.append(int(match[1]) if match else None)
        if hosts := re.search(r"-H (\S+)", line):
            found[0] = hosts[1].count(",") + 1
        if words[at] == "srun" and found[1:] == [None, None]:
            found[1:] = [header.get("ranks"), header.get("tasks")]
        nodes, per, total = found[0] or nodes, found[1], found[2]
        if not per and total and nodes:
            per = total // nodes
        elif total and per:
            nodes = total // per
    known = {"nodes": nodes, "gpus_per_node": per, "num_gpus": nodes * per if nodes and per else total}
    return {name: value for name, value in known.items() if value} if per or total else {}


def read_of(taken: FileSettings) -> dict[str, Any]:
    """The fields of what was read; of nodes, GPUs of one and GPUs in all the third where two are stated."""
    fields = fields_of(taken)
    nodes, per, total = (fields.get(f"cluster.{name}") for name in ("nodes", "gpus_per_node", "num_gpus"))
    known = {"nodes": total // per if total and per else None, "num_gpus": nodes * per if nodes and per else None,
             "gpus_per_node": total // nodes if total and nodes else None}  # fmt: skip
    return {f"cluster.{name}": value for name, value in known.items() if value} | fields


def judged(seed: int, folder: Path) -> tuple[Counter[str], str]:
    """How many values of a script are read, asked or wrong, and what is wrong, with the script."""
    script = Maker(seed).made()
    ways: list[tuple[dict[str, str], Sequence[str]]] = [
        ({}, ()),
        (dict.fromkeys(script.free, ""), [""] * len(script.args)),
        (script.free, script.args),
    ]
    ways = ways if script.free or script.args else ways[:1]  # they are alike
    starts = [started(script, variables, args, folder) for variables, args in ways]
    found_truths = [[truth_of(script, words) for words in row] for row in starts]
    truths = [truth for row in found_truths for truth in row if truth is not None]
    whole = all(row and None not in row for row in found_truths)
    if not truths:
        return Counter({"not started": 1}), ""
    try:
        found = read_text(script.text, "train.sh", script.files)
        several = 0
    except JobError as error:
        several = len(re.findall(r"--run \d+", str(error)))
        if not several:
            return Counter({"refused": 1}), f"refused: {error}\n{script.text}"
        found = [read_text(script.text, "train.sh", script.files, run=at + 1)[0] for at in range(several)]
    if not found:
        return Counter({"refused": 1}), f"refused\n{script.text}"
    counts, wrong = Counter[str](), []
    watched = {name for _, name, _ in script.program["options"].values()} | {"training.dtype", "cluster.nodes",
                                                                            "cluster.gpus_per_node"}  # fmt: skip
    for name in sorted({one for row in (*truths, *map(read_of, found)) for one in row}):
        verdict, words = _verdict(name, truths, found, whole)
        if words:
            wrong.append(words)
        if name in watched or words:
            counts[verdict] += 1
    return counts, "; ".join(wrong) + "\n" + script.text if wrong else ""


def _verdict(
    name: str, truths: Sequence[Mapping[str, Any]], found: Sequence[FileSettings], whole: bool
) -> tuple[str, str]:
    """How one value is read, and what is wrong with it."""
    values = [truth.get(name) for truth in truths]
    same = all(value == values[0] for value in values)
    if name.startswith("cluster.") and (None in values or all(name not in read_of(one) for one in found)):
        return ("unchecked" if None in values else "asked" if same and whole else "differed: asked"), ""
    asked = [name in taken.questions for taken in found]
    reads = [read_of(taken).get(name) for taken in found]
    if len(found) > 1 and all(one or read in values for one, read in zip(asked, reads, strict=True)):
        return ("read" if same and not any(asked) else "differed: asked"), ""
    if all(asked):
        return ("asked" if same and whole else "differed: asked"), ""
    origin = found[0].origins.get(name, "")
    if name.startswith("cluster.") and name not in fields_of(found[0]):  # by the two others
        origin = min(found[0].origins.get(f"cluster.{one}", "z") for one in ("nodes", "gpus_per_node", "num_gpus"))
    default = re.match(r"default of .*:", origin) or "may hold more options" in " ".join(found[0].remarks)
    if same and values[0] == reads[0]:
        return "read", ""
    if default and not (same and whole) and (reads[0] in values or not whole):
        return "differed: default", ""
    return "wrong", f"{name}: read {reads} ({origin}), started {values}"


def main() -> None:
    """Judges scripts, and prints those that are read wrongly."""
    count, first = (int(word) for word in [*sys.argv[1:], *("300", "0")[len(sys.argv) - 1 :]][:2])
    totals = {number: Counter[str]() for number in range(1, CLASSES + 1)}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            counts, words = judged(seed, Path(folder))
            totals[seed % CLASSES + 1] += counts
            if words:
                print(f"--- {seed} (class {seed % CLASSES + 1}) {words}")
    print("\n".join(_lines(totals)))


def _lines(totals: Mapping[int, Counter[str]]) -> Iterator[str]:
    names = ("read", "asked", "wrong", "refused", "differed: asked", "differed: default", "not started")
    yield "class  " + "  ".join(names)
    rows = [*totals.items(), ("all", sum(totals.values(), Counter()))]
    for number, counts in rows:
        yield f"{number:>5}  " + "  ".join(f"{counts[name]:>{len(name)}}" for name in names)


if __name__ == "__main__":
    main()
