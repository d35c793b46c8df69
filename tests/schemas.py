"""The JSON Schemas of what verbs print with ``--json``, learned from documents of many jobs.

``python -m tests.schemas`` writes them anew: a document that a schema does not describe raises its version.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import click
import jsonschema
from click.testing import CliRunner

from jointopt.cli.main import COMMANDS, jointopt
from jointopt.core.schema import COLUMNS
from jointopt.jobs.jobfile import dump_job, load_job
from jointopt.report.schemas import SCHEMAS
from tests.cli.verbs import BEFORE, JOB, VERBS, write_inputs

UNITS = {
    "s": "seconds", "ms": "milliseconds", "us": "microseconds", "j": "joules", "w": "watts", "kw": "kilowatts",
    "mhz": "MHz", "gib": "GiB", "gb": "GB", "bytes": "bytes", "c": "degrees Celsius", "percent": "percent",
    "days": "days", "hours": "hours", "gpu_hours": "GPU-hours", "kwh": "kWh", "kg": "kilograms", "tokens": "tokens",
    "tflops": "TFLOP", "tflops_per_gpu": "TFLOP/s per GPU", "tokens_per_s": "tokens per second",
    "tokens_per_j": "tokens per joule", "tokens_per_s_per_gpu": "tokens per second and GPU", "gbytes_per_s": "GB/s",
    "per_kwh": "per kWh",
}  # fmt: skip
# Keys under which stand mappings of names that are data: reasons, files, parts of a sum.
OPEN = {"infeasible", "dropped", "informed_by", "seconds", "searched", "formats", "unread", "origins", "time_s",
        "energy_by_part_j", "memory_gib", "environment", "files", "constraints", "relaxations"}  # fmt: skip
WORDS = {
    "job_file": "The job as its file (docs/job-file.md)", "schema": "The $id of this schema",
    "low": "Lower end of the 90 % interval", "high": "Upper end of the 90 % interval",
}  # fmt: skip
EXPERTS = "--model mixtral-8x7b --gpu h100-sxm5-80gb --gpus 16 --global-batch-size 64 --seq-length 4096"
SMALL = "--model llama-3-8b --gpu h100-sxm5-80gb --global-batch-size 64 --seq-length 4096 --framework nemo"
NO_POWER = "--model gpt2 --gpu cpu-core --gpus 4 --global-batch-size 16 --seq-length 128"
TIGHT = "--model llama-3-70b --gpu h100-sxm5-80gb --gpus 16 --global-batch-size 8 --seq-length 4096 --allow-tight"
PRICES = "--price-per-gpu-hour 2 --price-per-kwh 0.2 --carbon 0.4 --run-tokens 1e11"
RUNS = f"{JOB} --launcher replay --table runs.csv --budget 1 --surrogate none"
STORED = ("tune", *shlex.split(RUNS), "--storage", "sqlite:///measured.db")  # a study for `select`
MEASURED = f"{JOB}-{hashlib.sha256(dump_job(load_job(JOB)).encode()).hexdigest()[:8]}-measured"
MORE = {  # the words of documents beside those of `VERBS` that schemas are learned from
    "propose": [f"{JOB} {PRICES}", EXPERTS, f"{SMALL} --gpus 16", NO_POWER, TIGHT,
                f"{JOB} --baseline 'dp=4 tp=2' --objective time --objective peak_memory --trials 50"],
    "explain": [f"{JOB} --plan 'tp=2 pp=2' {PRICES}", f"{JOB} --plan 'dp=8 mbs=32'", f"{NO_POWER} --plan dp=4",
                f"{SMALL} --gpus 8 --plan tp=2"],
    "compare": [f"{JOB} --baseline tp=2 --plan pp=2 {PRICES}", "llama-3-8b-1x8-h100 --plan tp=2 --plan tp=4"],
    "scale": [f"{JOB} --gpus 4,8,16 {PRICES} --deadline-days 30"],
    "select": ["out --max-iteration-time-s 4 --max-energy-j 9000 --pue 1.3", "kept",
               f"{MEASURED} --storage sqlite:///measured.db --objective time"],
    "tune": [f"{RUNS} --storage none --set objectives=[iteration_time_s]"],
    "goodput": [f"{JOB} --run-tokens 1e11 --simulate 10"],
    "check": ["llama-3-70b-4x8-h200"],
    "export": [f"{JOB} --plan dp=8 --to {name}" for name in ("megatron", "deepspeed", "slurm", "kubernetes")],
    "import": ["train.sh --gpu h100-sxm5-80gb --model llama-3-8b"],
    "catalog": ["models", "frameworks", "clusters", "jobs", "recipes"],
}  # fmt: skip


def verbs_with_documents() -> list[str]:
    """The commands with ``--json``."""
    context = click.Context(jointopt)
    found = {name: jointopt.get_command(context, name) for name in COMMANDS}
    return [name for name, one in found.items() if one and any(option.name == "as_json" for option in one.params)]


def document(words: Sequence[str]) -> Any:
    """What a command prints with ``--json``; at exit 1 too, where it prints one."""
    result = CliRunner().invoke(jointopt, [*words, "--json"])
    assert result.stdout, f"{' '.join(words)}\n{result.stderr}"
    return json.loads(result.stdout)


def words_of(key: str) -> str:
    """What a key holds: the meaning of a column, or the unit in its name."""
    end = next((end for end in ("low", "high") if key.endswith(f"_{end}")), "")
    name = key.removesuffix(f"_{end}")
    parts = name.split("_")
    unit = next((UNITS[word] for at in range(len(parts)) if (word := "_".join(parts[at:])) in UNITS), "")
    known = COLUMNS.get(name.removeprefix("predicted_"))
    text = WORDS.get(key) or (known.meaning if known else "")
    text = text or (f"In {unit}" if unit else "")
    return f"{WORDS[end]}: {text}" if end and text else text


def learned(key: str, values: Sequence[Any]) -> dict[str, Any]:
    """The schema of these values of a key; where nothing is known, numbers and objects of keys may be null."""
    kinds = {type(value) for value in values if value is not None}
    found: dict[str, Any] = {}
    if text := words_of(key):
        found["description"] = text
    names = {bool: "boolean", str: "string", list: "array", dict: "object"}
    types = sorted({names.get(kind, "number") for kind in kinds})
    if kinds == {int} and None not in values and not text.startswith("In "):
        types = ["integer"]
    elif "number" in types or (types and None in values) or (key and types == ["object"]):
        types.append("null")
    if types:
        found["type"] = types[0] if len(types) == 1 else types
    if dict in kinds and key != "job_file":
        found |= fields(key, [value for value in values if isinstance(value, dict)])
    if items := [item for value in values if isinstance(value, list) for item in value]:
        found["items"] = {name: value for name, value in learned(key, items).items() if name != "description"}
    return found


def fields(key: str, values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The keys of objects: those that all have are required; where keys are data, what all of them hold."""
    keys = list(dict.fromkeys(name for value in values for name in value))
    if key in OPEN or not all(re.fullmatch(r"\$?[a-z]\w*", name) for name in keys):
        return {"additionalProperties": learned("", [item for value in values for item in value.values()])}
    return {
        "properties": {name: learned(name, [value[name] for value in values if name in value]) for name in keys},
        "required": [name for name in keys if all(name in value for value in values)],
    }


def written(verb: str, documents: Sequence[Any]) -> dict[str, Any]:
    """The schema of a verb after these documents; of the next version where the one so far does not describe them."""
    path = SCHEMAS / f"{verb}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    version = int(before["$id"].rpartition(":")[2]) if before else 1
    version += not all(map(jsonschema.Draft202012Validator(before).is_valid, documents))
    command = jointopt.get_command(click.Context(jointopt), verb)
    assert command
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:jointopt:{verb}:{version}",
            "title": f"jointopt {verb} --json", "description": command.get_short_help_str(200)}  # fmt: skip
    return head | learned("", documents)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        write_inputs(Path(folder))
        for words in (*BEFORE, STORED):
            CliRunner().invoke(jointopt, words)
        for verb in sys.argv[1:] or verbs_with_documents():
            print(verb, flush=True)
            more = [[verb, *shlex.split(words)] for words in MORE.get(verb, [])]
            found = [document(words) for words in (VERBS[verb], *more)]
            text = json.dumps(written(verb, found), indent=1, ensure_ascii=False)
            for inner in (r"\[[^\[\]{}]*\]", r"\{[^{}]*\}"):  # lists of words and what has no parts on one line each
                text = re.sub(inner, lambda match: re.sub(r"\n +", " ", match[0]), text)
            (SCHEMAS / f"{verb}.json").write_text(f"{text}\n", encoding="utf-8")
