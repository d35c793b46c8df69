"""Exports and scripts of jobs whose every text would make a file if any shell, parser or launcher ran it.

``python tests/campaign/canaries.py 1000`` writes so many over all targets, runs each under bash with stand-ins for
launchers that note their arguments, and prints for each target how many arrived as given, were refused in a sentence,
and are wrong: a canary that is there, or a word that is not what was given.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))
from jointopt.core.errors import JointOptError
from jointopt.core.quote import our_command
from jointopt.frameworks.exported import exported
from jointopt.frameworks.targets import TARGETS
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_from_options, parse_job
from jointopt.jobs.slurm import CONTAINER_RUNTIMES, Slurm
from jointopt.measure.base import load_launcher, script_of
from jointopt.report.tables import study_lines
from jointopt.workflows.export import write

TOUCH = "touch CANARY"
HOSTILE = (
    f"$({TOUCH})", f"`{TOUCH}`", f"; {TOUCH}", f"& {TOUCH} &", f"| {TOUCH}", f"x\n{TOUCH}\n", f"\r\n{TOUCH}",
    f"' ; {TOUCH} ; '", f'" ; {TOUCH} ; "', f"\n```\n{TOUCH}", f"END\n{TOUCH}", f"\nEND\n{TOUCH}\n",
    f"!!python/object/apply:os.system ['{TOUCH}']", "!!python/object:os.system",
    f'"""\nimport os; os.system("{TOUCH}")\n"""', f"''' + __import__('os').system('{TOUCH}') + '''",
    "coding=utf-7 +AAo-import os", "{{}}", "{plan}", "{0.__class__}", "%(x)s", "%x-%j", "--leading", "-rf", "-", "a b",
    "  ", "", "ünï 日本 🙂", "\\", "\\\\\n", "'", '"', "$HOME", "${HOME}", "$$", "$(HOME)", "$$(HOME)",
    "${oc.env:HOME}", "#c", " #c",
    "&a", "*a", "- x", "key: value", "a,b", "a:b:c:d", "a=b", "=1+1", "\t", "~", "*", "?", "[a]", "!x",
    "<in", ">CANARY", "\x1b[31m", "\0", "\u2028x", "\x7f", "a" * 300, "null", "1e3", "../x",
)  # fmt: skip
_PLANS = {  # what each target has words for, with one that has a file of its own for the split of its layers
    "torchtitan": {"pp": 2, "dp": 4, "stage_layers": "15;17", "zero_stage": 2, "stage_clock_mhz": "1410;1410"},
    "nanotron": {"dp": 8, "zero_stage": 1}, "accelerate": {"dp": 8, "zero_stage": 3},
    "deepspeed": {"dp": 8, "zero_stage": 2},
}  # fmt: skip
_AROUND = ("slurm", "kubernetes")
SCRIPTS = ("script slurm", "script command", "script megatron", "script deepspeed", "printed")
KINDS = (*TARGETS, *SCRIPTS)
# a stand-in for each program of a cluster: it notes its arguments, and goes on with what it was given to start
_SHIFTS = {
    "srun": 'while [[ $1 == -* ]]; do shift; done; SLURM_NODEID=1 exec "$@"',
    "jointopt": 'while (($#)) && [ "$1" != -- ]; do shift; done; shift; exec "$@"',
    "apptainer": 'shift 2; while [[ $1 == --* ]]; do [[ $1 == --nv ]] || shift; shift; done; shift; exec "$@"',
    "scontrol": "echo 'node7 NodeAddr=node7 x'", "torchrun": "", "deepspeed": "", "accelerate": "", "interpreter": "",
}  # fmt: skip
_STARTERS = ("torchrun", "deepspeed", "accelerate", "interpreter")


class Field:
    """A folder with the stand-ins, and hostile texts at random."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.programs, self.calls = folder / "bin", folder / "calls"
        for place in (self.programs, self.calls):
            place.mkdir()
        for name, rest in _SHIFTS.items():
            file = self.programs / name
            file.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" > {self.calls}/{name}.$$.$RANDOM\n{rest}\n")
            file.chmod(0o755)

    def text(self) -> str:
        """A hostile text, or two in one."""
        return "".join(self.random.choices(HOSTILE, k=self.random.choice((1, 1, 2))))

    def some(self) -> str | None:
        """A hostile text or None."""
        return self.text() if self.random.random() < 0.5 else None

    def one(self, kind: str) -> str:
        """``given``, ``refused``, or what is wrong with one export or script of that kind."""
        work = self.folder / "work"
        subprocess.run(["rm", "-rf", work, *self.calls.iterdir()], check=True)
        work.mkdir()
        try:
            wrong = _script(self, kind, work) if kind in SCRIPTS else _export(self, kind, work)
        except JointOptError as error:
            wrong = "refused" if str(error).strip() else "refused without a sentence"
        made = [*work.rglob("CANARY*"), *Path.cwd().glob("CANARY*")]
        return f"the canary is there: {made}" if made else wrong

    def run(self, text: str, work: Path, **environment: str) -> dict[str, list[list[str]]]:
        """Arguments of each stand-in that a script started, by its name."""
        variables = {
            "PATH": f"{self.programs}:/usr/bin:/bin", "HOME": "/nowhere", "LANG": "C.UTF-8", "SLURM_JOB_ID": "1",
            "SLURM_JOB_NODELIST": "node7", "SLURMD_NODENAME": "node7", "SLURM_JOB_NUM_NODES": "1", **environment,
        }  # fmt: skip
        (work / "run.sh").write_text(text, encoding="utf-8", newline="")
        subprocess.run(["bash", work / "run.sh"], cwd=work, env=variables, capture_output=True, timeout=60)
        found: dict[str, list[list[str]]] = {}
        for call in sorted(self.calls.iterdir()):
            words = call.read_bytes().decode("utf-8").split("\0")[:-1]
            found.setdefault(call.name.split(".")[0], []).append(words)
        return found


def _job(field: Field, framework: str = "generic") -> Job:
    """A job with hostile names and a hostile section slurm, as a file states it or as Python makes it."""
    usual = job_from_options("llama-3-8b", "h100-sxm5-80gb", 8, 128, 8192, framework=framework)
    named = {name: field.some() for name in ("account", "partition", "qos", "constraint", "reservation", "container")}
    pick = field.random
    slurm: dict[str, Any] = {name: text for name, text in named.items() if text is not None and pick.random() < 0.4}
    slurm["container_runtime"] = pick.choice(CONTAINER_RUNTIMES)
    slurm["mounts"] = [field.text() for _ in range(pick.randrange(3))]
    slurm["sbatch"] = [f"--comment={field.text()}" for _ in range(pick.randrange(2))]
    name = field.text()
    if pick.random() < 0.3:
        mapping = {
            "name": name, "model": "llama-3-8b", "training": {"seq_length": 8192, "global_batch_size": 128, "framework":
            framework}, "cluster": {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8}, "slurm": slurm,
        }  # fmt: skip
        return parse_job(mapping, "job", Path())
    lists = {key: tuple(slurm[key]) for key in ("mounts", "sbatch")}
    model = replace(usual.model, name=field.text())
    return replace(usual, name=name, model=model, slurm=Slurm(**(slurm | lists)))


def _arguments(field: Field) -> list[str]:
    return [word for i in range(field.random.randrange(3)) for word in (f"--own-{i}", field.text())]


def _export(field: Field, target: str, work: Path) -> str:
    inner = field.random.choice([name for name in TARGETS if name not in _AROUND]) if target in _AROUND else target
    job, own = _job(field, "torchtitan" if inner == "torchtitan" else "generic"), _arguments(field)
    usual = {"dp": 4, "tp": 2, "zero_stage": 1, "sequence_parallel": True}
    plan = {"tp": 1, "pp": 1, "micro_batch_size": 1, "recompute": "none", **_PLANS.get(inner, usual)}
    purpose = field.random.choice(("benchmark", "training"))
    (work / "out").mkdir()
    program = inner if target in _AROUND else field.text() if field.random.random() < 0.05 else ""
    found = exported(job, plan, target, purpose=purpose, arguments=shlex.join(own), program=program)
    files = {file.name: file.read_bytes().decode() for file in write(found, work / "out")}
    made = exported(job, plan, inner, purpose=purpose, arguments=shlex.join(own)).export
    words = list(made.words)
    if target == "kubernetes":
        docs = list(yaml.safe_load_all(files["jobset.yaml"]))
        text, variables = _pod(docs[1])
        words = [f"/plan/{word}" if word in made.files else word for word in words]
        called = field.run(text, work, JOB_COMPLETION_INDEX="0", **variables)
        files = dict(docs[0]["data"])
    else:
        called = field.run(files[{"slurm": "job.sbatch"}.get(target, "start.sh")], work / "out")
    wrong = _files(files, job, made.files)
    started = [call for name in _STARTERS for call in called.get(name, [])]
    if len(started) != 1 or started[0][len(started[0]) - len(words) :] != words or words[: len(own)] != own:
        wrong.append(f"{words} arrived as {started}")
    if target == "slurm":
        wrong += _batch(files["job.sbatch"], job, called)
    return "; ".join(wrong) or "given"


def _pod(jobset: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The script of a pod and its variables, with Kubernetes' own replacement of $(NAME) and $$ done."""
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}

    def replaced(text: str) -> str:
        known = variables | {"HOME": "/replaced"}
        pattern = re.compile(r"\$\$|\$\(([^)]*)\)")
        return pattern.sub(lambda found: "$" if found[1] is None else known.get(found[1], found[0]), text)

    return replaced(container["command"][-1]), {name: replaced(value) for name, value in variables.items()}


def _files(files: Mapping[str, str], job: Job, expected: Mapping[str, str]) -> list[str]:
    """Whether files are data that holds what was given."""
    wrong = [f"{name} is not what the target makes" for name, text in expected.items() if files.get(name) != text]
    for name, text in files.items():
        if name.endswith(".json"):
            json.loads(text)
        elif name.endswith(".toml"):
            tomllib.loads(text)
        elif name == "nanotron.yaml" and yaml.safe_load(text)["general"]["run"] != job.name:
            wrong.append("the name of nanotron's run is another")
        elif name.endswith(".yaml"):
            list(yaml.safe_load_all(text))
        elif name.endswith(".py"):
            kinds = [type(node).__name__ for node in ast.parse(text.encode()).body]
            wrong += [] if kinds == ["Expr", "ImportFrom", "FunctionDef"] else [f"{name} has {kinds}"]
    return wrong


def _batch(script: str, job: Job, called: Mapping[str, list[list[str]]]) -> list[str]:
    """Whether options of sbatch and of the container are those given."""
    lines = [sbatch_words(line[len("#SBATCH") :]) for line in script.split("\n") if line.startswith("#SBATCH")]
    wrong = [f"{line} is no single option of sbatch" for line in lines if len(line) != 1]
    options, slurm = [line[0] for line in lines if line], job.slurm
    given = [f"--job-name={job.name}", *slurm.sbatch]
    given += [f"--{key}={value}" for key in ("account", "qos") if (value := getattr(slurm, key)) is not None]
    wrong += [f"{option!r} is not given to sbatch" for option in given if option not in options]
    if slurm.container is not None:
        tool = "apptainer" if slurm.container_runtime == "apptainer" else "srun"
        words, mounts = [word for call in called.get(tool, []) for word in call], ",".join(slurm.mounts)
        expected = [slurm.container] if tool == "apptainer" else [f"--container-image={slurm.container}"]
        expected += [mounts] if tool == "apptainer" and slurm.mounts else []
        wrong += [f"{word!r} is not given to {tool}" for word in expected if word not in words]
        if tool == "srun" and slurm.mounts and not any(word.endswith(f",{mounts}") for word in words):
            wrong.append(f"mounts {mounts!r} are not given to srun")
    return wrong


def sbatch_words(line: str) -> list[str]:
    """The options of one ``#SBATCH`` line by the rules of Slurm's ``_get_argument`` (src/sbatch/opt.c)."""
    words: list[str] = []
    at = 0
    while True:
        while at < len(line) and line[at].isspace():
            at += 1
        if at >= len(line) or line[at] == "#":
            return words
        word, quote = "", ""
        while at < len(line) and (quote or not line[at].isspace()):
            sign = line[at]
            if sign == "\\" and at + 1 < len(line):
                at += 1
                word += line[at]
            elif quote and sign == quote:
                quote = ""
            elif not quote and sign in "'\"":
                quote = sign
            else:
                word += sign
            at += 1
        words.append(word)


def _script(field: Field, kind: str, work: Path) -> str:
    if kind == "printed":
        return _printed(field, work)
    job, own = _job(field), [word for word in _arguments(field) if "NODE_RANK" not in word]
    job = replace(job, slurm=replace(job.slurm, python="interpreter", container=None))
    plan: dict[str, Any] = {
        "dp": 4, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
        "recompute": "none", "zero_stage": 1, "stage_clock_mhz": [1410.0],
    }  # fmt: skip
    place = work / (field.text().replace("/", "").replace("\0", "")[:100] or "x")
    place.mkdir(exist_ok=True)
    (place / "pretrain_gpt.py").write_text("")
    program, arguments = str(field.programs / "interpreter"), shlex.join(own)
    options: dict[str, dict[str, Any]] = {
        "script slurm": {"folder": place, "program": "command", "command": ["interpreter", "{result}", *_braced(own)]},
        "script command": {"command": ["interpreter", "{result}", *_braced(own)], "logs": place},
        "script megatron": {"checkout": place, "arguments": arguments},
        "script deepspeed": {"script": place / "pretrain_gpt.py", "arguments": arguments},
    }
    name = kind.split()[1]
    with mock.patch.object(sys, "executable", program):
        text = script_of(load_launcher(name, **options[kind]), job, plan)
    if name == "slurm":
        for one in [line[1:-1] if line[0] == "'" else line for line in re.findall(r"^folder=(.*)", text, re.M)]:
            Path(one).mkdir(parents=True, exist_ok=True)
    called = field.run(text, work)
    arrived = [call for call in called.get("interpreter", []) if own == [w for w in call if w in own]]
    return "given" if arrived else f"{own} arrived as {called.get('interpreter')}"


def _braced(words: list[str]) -> list[str]:
    return [word.replace("{", "{{").replace("}", "}}") for word in words]


def _printed(field: Field, work: Path) -> str:
    """Commands that are printed to be copied."""
    study, url, plan = (field.text() for _ in range(3))
    commands = {
        our_command("select", study, storage=url): {study, url},
        our_command("explain", study, plan=plan): {study, plan},
        study_lines(study, url, study)[1].strip(): {study, url},
    }  # fmt: skip
    for command, given in commands.items():
        called = field.run(command.replace("jointopt ", "interpreter ", 1), work).get("interpreter", [])
        if len(called) != 1:
            return f"{given} started {called} by {command}"
        values = {word.partition("=")[2] if word.startswith("--") and "=" in word else word for word in called[-1]}
        if not given <= values | set(called[-1]):
            return f"{given} arrived as {called} by {command}"
        for file in field.calls.iterdir():
            file.unlink()
    return "given"


def campaign(
    count: int, seed: int, folder: Path, report: Callable[[str, str], None] = lambda *_: None
) -> dict[str, Counter[str]]:
    """Outcomes by kind of so many exports and scripts, the kinds in turn; ``report`` is given what is wrong."""
    field, found = Field(folder, seed), {kind: Counter[str]() for kind in KINDS}
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        outcome = field.one(kind)
        known = outcome in ("given", "refused")
        found[kind][outcome if known else "wrong"] += 1
        if not known:
            report(kind, outcome)
    return found


def main() -> int:
    """Prints a line for each kind; whether anything was wrong."""
    started = time.monotonic()
    seed = int(os.environ.get("SEED", "1"))
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(
            int(sys.argv[1]), seed, Path(folder), lambda kind, what: print(f"  {kind}: {what[:600]}", flush=True)
        )
    for kind, outcomes in found.items():
        print(f"{kind}: {outcomes.total():,} written, {outcomes['given']:,} as given, {outcomes['refused']:,} refused, "
              f"{outcomes['wrong']:,} wrong")  # fmt: skip
    wrong = sum(outcomes["wrong"] for outcomes in found.values())
    print(f"{sum(map(Counter.total, found.values())):,} in {time.monotonic() - started:.0f} s, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main()))
