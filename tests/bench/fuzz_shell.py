"""Scripts made from a grammar of what launch scripts do, read by `jointopt import` and run by bash, and compared.

Each script is run under bash with stand-in launchers that print their arguments, its free variables once unset, once
empty, once set. Where the three start the same, what is read must be that, or be asked. Where they differ, it must be
asked, or be the script's own default and said to be. Prints the counts, and each script that is read otherwise.

    python tests/bench/fuzz_shell.py [SCRIPTS] [SEED]
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError
from jointopt.frameworks.import_files import read_text
from jointopt.frameworks.megatron import OFF, options_taken
from jointopt.frameworks.options import pairs_of
from jointopt.frameworks.origins import fields_of

SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000"
# options of a run by the names of their variables, and values that they may have
OPTIONS = {
    "TP": ("--tensor-model-parallel-size", ("2", "4", "8")), "PP": ("--pipeline-model-parallel-size", ("2", "4")),
    "MBS": ("--micro-batch-size", ("1", "2", "4")), "GBS": ("--global-batch-size", ("64", "128", "256")),
    "CP": ("--context-parallel-size", ("1", "2")),
}  # fmt: skip
FLAGS = ("--bf16", "--sequence-parallel", "--use-distributed-optimizer", "--swiglu", "--recompute-activations")
OTHERS = ("--tensor-model-parallel-size 16", "--fp16", "--exit-interval 5", "--lr 1e-4")  # what a branch may add
STAND_IN = '#!/bin/bash\nfor word in "$@"; do printf "%s\\0" "$word" >> "$RAN"; done\nprintf "\\n\\0" >> "$RAN"\n'


@dataclass
class Script:
    """A script under way: its lines, how its options are written, and the variables that it leaves to others."""

    random: random.Random
    lines: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)  # variable -> the word that stands for its value
    more: list[str] = field(default_factory=list)  # words behind the options
    free: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    def pick(self, name: str) -> str:
        """A value of an option."""
        return self.random.choice(OPTIONS[name][1])

    def text(self) -> str:
        """The whole script."""
        flags = self.random.sample(FLAGS, 3)
        options = [f"{OPTIONS[name][0]} {word}" for name, word in self.words.items()]
        parts = [*options, *flags, *self.more]
        self.random.shuffle(parts)
        joint = self.random.choice((" ", " \\\n    "))
        start = self.random.choice(
            ("torchrun --nnodes 2 --nproc_per_node 8", "python", "srun -N 2 torchrun --nnodes 2")
        )
        command = f"{start} pretrain_gpt.py {SHAPE}{joint}{joint.join(parts)}"
        return "\n".join([*self.lines, *self.wrapped(command), ""])

    def wrapped(self, command: str) -> list[str]:
        """The lines that start a command, perhaps in a shell of its own, a function or a variable."""
        kind, plain = self.random.randrange(12), not re.search(r"[\"'\\\n@]", command)
        exports = f"export {' '.join(self.mentioned())}"
        if kind == 0 and plain:
            return [exports, f'bash -c "{command}"']
        if kind == 1 and plain:
            return [f'CMD="{command}"', "$CMD"]
        if kind == 2 and plain:
            return [f'eval "{command}"']
        if kind == 3 and "@" not in command:
            return ["launch() {", f'  {command} "$@"', "}", "launch --seed 7"]
        if kind == 4 and plain:
            return [exports, "cat > run.sh <<EOF", command, "EOF", "bash run.sh"]
        if kind == 5 and plain:
            return [exports, f"bash -c '{command}'"]
        if kind == 6:
            return ["if true; then", f"  {command} 2>&1 | tee log.txt", "fi"]
        if kind == 7:
            return [f"( cd . && {command} ) || exit 1"]
        return [command]

    def mentioned(self) -> list[str]:
        """The variables that the lines set."""
        names = re.findall(r"^(?:export |declare -i )?([A-Z_]+)(?=\+?=)", "\n".join(self.lines), re.MULTILINE)
        return list(dict.fromkeys([*names, *OPTIONS]))


def assigned(script: Script, name: str) -> None:
    """A plain assignment, in one of the spellings."""
    value, draw = script.pick(name), script.random
    script.lines.append(draw.choice((f"{name}={value}", f'export {name}="{value}"', f"declare -i {name}={value}")))
    script.words[name] = draw.choice((f"${name}", f"${{{name}}}", f'"${name}"', f"$(( {name} ))", f"$(echo ${name})"))


def defaulted(script: Script, name: str) -> None:
    """A default for what may come from outside."""
    value, draw = script.pick(name), script.random
    script.free.append(name)
    script.lines += draw.choice((
        [f"{name}=${{{name}:-{value}}}"], [f': "${{{name}:={value}}}"'], [],
        [f'if [ -z "${name}" ]; then {name}={value}; fi'], [f'[ -n "${name}" ] || {name}={value}'],
    ))  # fmt: skip
    script.words[name] = f"${name}" if script.lines and name in script.lines[-1] else f"${{{name}:-{value}}}"


def free(script: Script, name: str) -> None:
    """A value that only the caller knows."""
    script.free.append(name)
    script.words[name] = script.random.choice((f"${name}", f'"${{{name}}}"', f"$(( {name} * 2 ))"))


def cased(script: Script, name: str) -> None:
    """A branch by a known or an unknown word."""
    draw, known = script.random, script.random.random() < 0.6
    one, two = script.pick(name), script.pick(name)
    if known:
        script.lines.append(f"SIZE_{name}={draw.choice(('8b', '70b'))}")
    else:
        script.free.append(f"SIZE_{name}")
    subject = f"$SIZE_{name}"
    script.lines += draw.choice((
        [f"case {subject} in", f"  8b|small) {name}={one} ;;", f"  *) {name}={two} ;;", "esac"],
        [f'if [[ "{subject}" == 8* ]]; then', f"  {name}={one}", "else", f"  {name}={two}", "fi"],
        [f'[ "{subject}" = 8b ] && {name}={one} || {name}={two}'],
        [f'if [ "{subject}" = 70b ]; then {name}={one}; elif [ 1 -gt 2 ]; then {name}=1; else {name}={two}; fi'],
    ))  # fmt: skip
    script.words[name] = f"${name}"


def tabled(script: Script, name: str) -> None:
    """An entry of an array."""
    one, two = script.pick(name), script.pick(name)
    script.lines += script.random.choice((
        [f"declare -A T_{name}=([8b]={one} [70b]={two})", f"S_{name}=70b"],
        [f"declare -A T_{name}", f"T_{name}[8b]={one}", f"T_{name}[70b]={two}", f"S_{name}=8b"],
    ))  # fmt: skip
    script.words[name] = f"${{T_{name}[$S_{name}]}}"
    if script.random.random() < 0.4:
        script.lines += [f"L_{name}=({one} {two})"]
        script.words[name] = f"${{L_{name}[{script.random.choice((0, 1, -1))}]}}"


def cut(script: Script, name: str) -> None:
    """A part of a text."""
    value = script.pick(name)
    text, word = script.random.choice((
        (f"tp{value}", "${X_N#tp}"), (f"{value}.x.y", "${X_N%%.*}"), (f"a/b/{value}", "${X_N##*/}"),
        (f"n{value}", "${X_N/n/}"), (f"{value}gpus", "${X_N:0:1}"), (f"a/{value}", '$(basename "$X_N")'),
        (f"{value}/a", "$(dirname $X_N)"),
    ))  # fmt: skip
    script.lines.append(f"X_{name}={text}")
    script.words[name] = word.replace("X_N", f"X_{name}")


def summed(script: Script, name: str) -> None:
    """A sum of others."""
    draw = script.random
    a, b = draw.choice((1, 2)), draw.choice((1, 2, 4))
    one, two = f"A_{name}", f"B_{name}"
    script.lines.append(f"{one}={a}")
    script.lines.append(draw.choice((
        f"{two}=$(({one} * {b}))", f"let {two}={one}*{b}", f"{two}=$(expr ${one} \\* {b})", f"(({two} = {a} * {b}))",
    )))  # fmt: skip
    script.words[name] = f"$B_{name}"


def called(script: Script, name: str) -> None:
    """A value that a function sets, or says."""
    value, draw = script.pick(name), script.random
    script.lines += draw.choice((
        [f"set_{name}() {{ local v=$1; {name}=$v; }}", f"set_{name} {value}"],
        [f"function say_{name} {{", f"  echo {value}", "}", f"{name}=$(say_{name})"],
        [f"set -- {value} x", f"{name}=$1", "shift 2", "set --"],
        [f"for v in 1 {value}; do {name}=$v; done"],
        [f"for ((i = 0; i < {value}; i++)); do {name}=$((i + 1)); done"],
        [f"NAME_{name}=V_{name}; V_{name}={value}", f"{name}=${{!NAME_{name}}}"],
        [f'IFS=, read -r {name} rest <<< "{value},x"'],
        [f"printf -v {name} '%d' {value}"],
        [f"{name}=$(printf '%s' {value})", f"{name}=${{{name}^^}}"],
        [f"{name}=$(cat <<EOF\n{value}\nEOF\n)"],
        [f"i=0; while [ $i -lt {value} ]; do i=$((i + 1)); done; {name}=$i"],
    ))  # fmt: skip
    script.words[name] = f"${name}"


def given_by_options(script: Script, name: str) -> None:
    """A value that an argument of the script may change."""
    value = script.pick(name)
    script.lines += [f"{name}={value}", *script.random.choice((
        [f'while getopts "x:" o; do case $o in x) {name}=$OPTARG;; esac; done'],
        ["while [[ $# -gt 0 ]]; do", f'  case "$1" in --x) {name}=$2; shift 2;; *) shift;; esac', "done"],
        [f'for a in "$@"; do case $a in --x=*) {name}="${{a#*=}}";; esac; done'],
    ))]  # fmt: skip
    script.words[name] = f"${name}"


def sourced(script: Script, name: str) -> None:
    """A value of a file that is sourced."""
    script.files["env.sh"] = script.files.get("env.sh", "") + f"export {name}={script.pick(name)}\n"
    script.lines += ["source ./env.sh" if script.random.random() < 0.5 else ". env.sh"]
    script.words[name] = f"${name}"


WAYS: tuple[Callable[[Script, str], None], ...] = (
    assigned, defaulted, free, cased, tabled, cut, summed, called, given_by_options, sourced,
)  # fmt: skip


def extras(script: Script) -> None:
    """Words behind flags: arrays, unset variables, branches, comments, later repetitions."""
    draw, other = script.random, script.random.choice(OTHERS)
    kind = draw.randrange(9)
    if kind == 0:
        script.free.append("EXTRA")
        script.more.append("--bf16 $EXTRA")
    elif kind == 1:
        script.lines += ["ARGS=(--num-workers 2 # a remark", f"  {other})", 'ARGS+=("--seed" 1)']
        script.more.append(draw.choice(('"${ARGS[@]}"', "${ARGS[@]}")))
    elif kind == 2:
        script.free.append("USE_X")
        script.lines.append(f'if [ "$USE_X" = 1 ]; then OPT="{other}"; else OPT=""; fi')
        script.more.append("$OPT")
    elif kind == 3:
        script.lines.append(f'FLAG=off; if [ "$FLAG" = on ]; then OPT="{other}"; fi')
        script.more.append("$OPT")
    elif kind == 4:
        script.more.append('--swiglu "$@"')
    elif kind == 5:
        script.lines.append(f'OPT="--seed 3"; OPT="$OPT {other}"')
        script.more.append("$OPT")
    elif kind == 6:
        script.free.append("DEBUG")
        script.lines.append(f'[[ -n "$DEBUG" ]] && OPT="{other}"')
        script.more.append("$OPT")
    elif kind == 7:
        script.lines += ["cat > inner.sh <<'EOF'", f'OPT="{other}"', "EOF", "source inner.sh"]
        script.more.append("$OPT")


def made(seed: int) -> Script:
    """A script of that seed: each option written in one of the ways, all of them in equal shares."""
    script = Script(random.Random(seed))
    for at, name in enumerate(OPTIONS):
        WAYS[(seed + 3 * at) % len(WAYS)](script, name)
    extras(script)
    return script


def started(text: str, files: dict[str, str], variables: dict[str, str], folder: Path) -> dict[str, Any] | None:
    """The fields of the one command that bash starts; None where it starts none or several."""
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    for name in ("torchrun", "python", "srun"):
        (bin_ / name).write_text(STAND_IN, encoding="utf-8")
        (bin_ / name).chmod(0o755)
    for name, inner in {**files, "train.sh": text}.items():
        (folder / name).write_text(inner, encoding="utf-8")
    ran = folder / "ran"
    ran.unlink(missing_ok=True)
    environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "RAN": str(ran), **variables}
    subprocess.run(["bash", "train.sh"], cwd=folder, env=environment, capture_output=True, timeout=20, check=False)
    rows = ran.read_text(encoding="utf-8").split("\n\0") if ran.exists() else []
    words = [row.split("\0")[:-1] for row in rows if row]
    return fields_of(options_taken(OFF | dict(pairs_of(words[0])), "")) if len(words) == 1 else None


def judged(seed: int, folder: Path) -> tuple[str, str]:
    """How a script is read (right, asked, or wrong, or bash starts nothing), and the script with what differs."""
    script = made(seed)
    text = script.text()
    ways = ({}, dict.fromkeys(script.free, ""), dict.fromkeys(script.free, "8"))
    truths = [started(text, script.files, way, folder) for way in ways]
    if not any(truths):
        return "not started", text
    try:
        (taken,) = read_text(text, "train.sh", script.files)
    except (JobError, ValueError) as error:
        return "refused", f"{error}\n{text}"
    read, wrong = fields_of(taken), []
    for name in sorted({one for truth in truths if truth for one in truth} | read.keys()):
        if name in taken.asked or name.startswith("cluster."):
            continue
        values = [truth.get(name) for truth in truths if truth]
        origin = taken.origins.get(name, "")
        by_default = (origin.startswith("default of ") and ":" in origin) or "may hold more options" in " ".join(
            taken.remarks
        )
        differs = any(value != read.get(name) for value in values)
        if differs and not (by_default and read.get(name) in values):
            wrong.append(f"{name}: read {read.get(name)} ({origin}), started {values}")
    if wrong:
        return "wrong", "; ".join(wrong) + "\n" + text
    agreed = [name for name in taken.asked if len({str(truth.get(name)) for truth in truths if truth}) == 1]
    return ("asked needlessly" if agreed else "asked" if taken.asked else "right"), f"{agreed}\n{text}"


def main() -> None:
    """Judges scripts, and prints those that are read wrongly."""
    count, first = (int(word) for word in [*sys.argv[1:], *("300", "0")[len(sys.argv) - 1 :]][:2])
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            verdict, words = judged(seed, Path(folder))
            totals[verdict] += 1
            if verdict in ("wrong", "refused"):
                print(f"--- {seed} {verdict}: {words}")
    print(f"{count} scripts: {', '.join(f'{number} {name}' for name, number in totals.most_common())}")


if __name__ == "__main__":
    main()
