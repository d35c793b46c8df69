"""The commands of a shell script, without running it: variables, arrays, line ends, simple conditions.

What only a shell could know (the output of a program, arguments of the script, conditions on files) stays unknown: such
a value is written ``§NAME``, and the lines of such a condition are left out and listed. What variables stand for is
bounded, since a few lines can state a text that doubles with each of them: a script beyond it is a JobError.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.quote import sh_word
from jointopt.frameworks.options import stated, whole_of
from jointopt.jobs.catalog.gpus import known_gpu

UNKNOWN = "§"
MOST_CHARACTERS = 200_000  # of a script, as of a job file
MOST_OF_A_VALUE = 2**16  # characters of a variable
MOST_EXPANDED = 2**20  # characters that variables are replaced by, in all
_MOST_HELD = 2**21  # characters looked at for the end of quotations and arrays of several lines, in all
_MOST_OF_A_CONDITION = 4_000
_MOST_OF_A_SUM, _MOST_OF_A_NUMBER = 1_000, 30
_HEADER = re.compile(r"^#(?:SBATCH|PBS|FLUX:?)\s+(.*)$")
_NAME = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"^\s*(?:export |local |declare (?:-\w+ )?|readonly )?([A-Za-z_]\w*)(\+?)=\((.*)\)\s*$", re.DOTALL)
_OPENS_ARRAY = re.compile(r"^\s*(?:export |local |declare (?:-\w+ )?|readonly )?[A-Za-z_]\w*\+?=\((?!\()")
_EXPANSION = re.compile(
    r"\$\(\((?P<sum>[^$]*?)\)\)|\$\((?P<run>[^$()]*)\)|`[^`$]*`"
    r"|\$\{(?P<name>\w+)(?:\[[@*]\])?(?P<rule>:?[-=])?(?P<default>[^{}$]*)\}|\$\{[^{}$]*\}|\$(?P<bare>\w+)|\$[@*#?!$-]"
)
_TEST = re.compile(r"\[\[?\s+(.*?)\s+\]\]?(?=\s|;|$)")  # [ ... ] or [[ ... ]]
_WHITE = re.compile(r"\s+")
_DESCRIPTOR = re.compile(r"(?<=\s)[12&](?=>)")  # 2>&1
_PREFIXES = ("export", "local", "readonly", "declare")
_TESTS: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "-eq": operator.eq, "-ne": operator.ne,
    "-gt": lambda a, b: float(a) > float(b), "-ge": lambda a, b: float(a) >= float(b),
    "-lt": lambda a, b: float(a) < float(b), "-le": lambda a, b: float(a) <= float(b),
}  # fmt: skip
_SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


@dataclass
class Script:
    """The commands of a script as lists of words, its variables, the words of its batch header, the lines left out."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    line: int = 0  # of the statement that is read
    expanded: int = 0  # characters that variables were replaced by

    def assign(self, name: str, value: str) -> None:
        """Sets a variable. JobError for a value that is too long."""
        if len(value) > MOST_OF_A_VALUE:
            raise JobError(
                f"line {self.line}: the value of {name[:40]} has {len(value):,} characters; expected at most "
                f"{MOST_OF_A_VALUE:,}: take out what doubles it, or import the command that the script starts."
            )
        self.variables[name] = value

    def expand(self, value: str) -> str:
        """A value that takes the place of its variable. JobError where these are too long together."""
        self.expanded += len(value)
        if self.expanded > MOST_EXPANDED:
            raise JobError(
                f"line {self.line}: variables stand for more than {MOST_EXPANDED:,} characters up to here; expected "
                "less: import the command that the script starts."
            )
        return value


def read_script(text: str) -> Script:
    """The commands that a script would start, in order. JobError for one that is too long, or stands for too much."""
    if len(text) > MOST_CHARACTERS:
        raise JobError(
            f"it is no log or config that is known, and has {len(text):,} characters; expected at most "
            f"{MOST_CHARACTERS:,} of a script or a config."
        )
    script = Script(header=[word for line in text.splitlines() for word in _header_words(line)])
    script.variables |= _batch_variables(script.header)
    branches: list[bool | None] = []  # for each open `if`: whether its present branch is taken; None: not known
    done: list[bool] = []  # whether an earlier branch was taken
    for number, statement in _statements(text, script):
        script.line = number
        if not _condition(statement, branches, done, script):
            _run_where(branches, statement, script)
    return script


def _run_where(branches: list[bool | None], statement: str, script: Script) -> None:
    """Runs a statement of a branch that is taken, and lists one that may be, where it states anything."""
    if all(branches):
        _run(statement, script)
    elif None in branches and re.search(r"--\w|\w=", statement):
        script.left_out.append(" ".join(statement.split()))


def _header_words(line: str) -> list[str]:
    found = _HEADER.match(line.strip())
    try:
        return shlex.split(found[1], comments=True) if found else []
    except ValueError:  # a quotation that does not end
        return []


def _batch_variables(header: list[str]) -> dict[str, str]:
    """The variables that Slurm sets from the header."""
    given = dict(word.lstrip("-").split("=", 1) for word in header if "=" in word)
    given |= {a.lstrip("-"): b for a, b in itertools.pairwise(header) if a.startswith("-") and "=" not in a}
    names = {
        "SLURM_NNODES": ("nodes", "N"), "SLURM_JOB_NUM_NODES": ("nodes", "N"), "SLURM_NTASKS": ("ntasks", "n"),
        "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",), "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
        "SLURM_GPUS_ON_NODE": ("gpus-per-node",),
    }  # fmt: skip
    found = {name: next((given[key] for key in keys if key in given), "") for name, keys in names.items()}
    return {name: value.rpartition(":")[2] for name, value in found.items() if value}


def _statements(text: str, script: Script) -> Iterator[tuple[int, str]]:
    """(number of the first line, lines without comments), of lines that belong together one."""
    held, first, looked_at = "", 0, 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        first, whole = first if held else number, held + line
        if whole.rstrip().endswith("\\"):
            held = whole.rstrip()[:-1] + " "
            continue
        looked_at += len(held)
        if looked_at > _MOST_HELD:
            script.left_out.append(whole[:200])
            held, looked_at = "", 0
        elif _is_open(whole):
            held = whole + "\n"
        else:
            held = ""
            yield first, whole
    if held:
        yield first, held


def _is_open(text: str) -> bool:
    """Whether an array or a quotation of the text goes on in the next line."""
    try:
        words = _split(text)
    except ValueError:
        return text.count("\n") < 500
    return bool(_OPENS_ARRAY.match(text)) and words.count("(") > words.count(")")


def _split(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def _condition(statement: str, branches: list[bool | None], done: list[bool], script: Script) -> bool:
    """Opens, moves on or closes an ``if``; whether the statement was one of these."""
    words = statement.split()
    first = words[0].rstrip(";") if words else ""
    if first == "if":
        branches.append(_holds(statement, script))
        done.append(bool(branches[-1]))
    elif first in ("elif", "else") and branches:
        known = branches[-1] is not None
        taken = (first == "else" or _holds(statement, script)) if known and not done[-1] else False
        branches[-1] = taken if known else None
        done[-1] |= bool(taken)
    elif first == "fi" and branches:
        branches.pop()
        done.pop()
    else:
        return first in ("then", "do", "done", "while", "for", "{", "}", "case", "esac")
    if "then" not in statement or not re.search(r"\bthen\s+\S", statement):
        return True
    body = re.split(r"\bthen\s+", statement, maxsplit=1)[1]
    then, _, other = re.split(r"\bfi\b", body, maxsplit=1)[0].rstrip().removesuffix(";").partition("; else ")
    held = branches[-1]
    _run_where(branches, then, script)
    _run_where([*branches[:-1], held if held is None else not held], other, script)
    if re.search(r"\bfi\b", body):
        branches.pop()
        done.pop()
    return True


def _holds(statement: str, script: Script) -> bool | None:
    """Whether a condition holds; None where only a shell could know."""
    if len(statement) > _MOST_OF_A_CONDITION:
        return None
    statement = _WHITE.sub(" ", statement)
    tests = [_test_holds(text, script) for text in _TEST.findall(statement)]
    words = statement.split()
    ways = {"||", "&&"} & set(words)
    if (
        not tests
        or len(ways) > 1
        or "!" in words
        or any(way in text for way in ways for text in _TEST.findall(statement))
    ):
        return None
    if ways == {"||"}:
        return True if True in tests else None if None in tests else False
    return False if False in tests else None if None in tests else True


def _test_holds(text: str, script: Script) -> bool | None:
    """Whether one test between brackets holds."""
    try:
        words = shlex.split(_expanded(text, script))
    except ValueError:
        return None
    if len(words) == 2 and words[0] in ("-z", "-n") and UNKNOWN not in words[1]:
        return (words[1] == "") == (words[0] == "-z")
    if len(words) == 1 and words[0] in ("-z", "-n"):  # an empty variable without quotes
        return words[0] == "-z"
    if len(words) == 3 and words[1] in _TESTS and UNKNOWN not in words[0] + words[2]:
        try:
            return _TESTS[words[1]](words[0], words[2])
        except ValueError:
            return None
    return None


def _run(statement: str, script: Script) -> None:
    """Sets the variables of a statement and notes its commands."""
    if array := _ARRAY.match(statement):
        try:
            words = _split(_expanded(re.sub(r"(^|\s)#.*", "", array[3], flags=re.MULTILINE), script))
        except ValueError:  # what a variable stands for opens a quotation, or ends in a backslash
            script.left_out.append(" ".join(statement[:200].split()))
            return
        before = script.variables.get(array[1], "") + " " if array[2] else ""
        script.assign(array[1], before + " ".join(_quoted(word) for word in words))
        return
    for part in _parts(statement):
        try:
            words = _split(_DESCRIPTOR.sub("", _expanded(part, script)))
        except ValueError:
            script.left_out.append(" ".join(part.split()))
            continue
        for command in _simple_commands(words):
            if rest := _assigned(command, script):
                script.commands.append(list(_unfolded(rest)))


def _parts(statement: str) -> Iterator[str]:
    """The commands of a line between ``;``, ``&&`` and ``||`` outside of quotations and parentheses."""
    start = depth = 0
    quote = ""
    for at, sign in enumerate(statement):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        elif depth == 0 and (sign == ";" or statement[at : at + 2] in ("&&", "||")):
            yield statement[start:at]
            start = at + (1 if sign == ";" else 2)
    yield statement[start:]


def _quoted(word: str) -> str:
    return word if word.startswith("--") else sh_word(word)


def _simple_commands(words: Iterable[str]) -> Iterator[list[str]]:
    """The commands between ``;``, ``&&`` and ``||``; what follows a pipe or a redirection is not of the program."""
    command: list[str] = []
    ended = False
    for word in words:
        if word in (";", "&&", "||", "&", ";;"):
            yield command
            command, ended = [], False
        elif set(word) <= set("|<>&") and word:
            ended = True
        elif not ended and word not in ("(", ")"):
            command.append(word)
    yield command


def _assigned(command: list[str], script: Script) -> list[str]:
    """The words of a command after the variables that it sets."""
    rest = list(command)
    if rest and rest[0] in _PREFIXES:
        for word in rest[1:]:
            _assign(word, script)
        return []
    while rest and _assign(rest[0], script):
        rest = rest[1:]
    return rest


def _assign(word: str, script: Script) -> bool:
    found = _NAME.fullmatch(word)
    if not found or word.startswith("-"):
        return False
    name, more, value = found.groups()
    script.assign(name, script.variables.get(name, "") + value if more else value)
    return True


def _unfolded(words: Iterable[str]) -> Iterator[str]:
    """Words with those that hold several options, or a whole command, taken apart."""
    for word in words:
        inner = _several(word)
        if len(inner) > 1:
            yield from _unfolded(inner)
        else:
            yield word.strip()


def _several(word: str) -> list[str]:
    """The words inside of one that holds options and blanks; none of another."""
    if not re.search(r"(?:^|\s)--?[\w-]+", word) or not re.search(r"\s", word.strip()):
        return []
    try:
        return shlex.split(word)
    except ValueError:
        return []


def _expanded(text: str, script: Script) -> str:
    """The text with what is known of its variables, from the inside out."""
    for _ in range(20):
        expanded = _EXPANSION.sub(lambda found: _value(found, script), text)
        if expanded == text:
            break
        text = expanded
    return text


def _value(found: re.Match[str], script: Script) -> str:
    if found["sum"] is not None:
        return _sum_of(found["sum"], script)
    name = found["name"] or found["bare"]
    if not name:
        return "" if found[0] in ("$@", "$*", '"$@"') else UNKNOWN
    known = script.variables.get(name)
    if known:
        return script.expand(known)
    if found["rule"]:
        return script.expand(str(found["default"]))
    return known if known is not None else UNKNOWN + name


def _sum_of(text: str, script: Script) -> str:
    """The value of ``$((...))``, whose names need no dollar sign."""
    if len(text) > _MOST_OF_A_SUM:
        return UNKNOWN
    named = re.sub(r"[A-Za-z_]\w*", lambda found: _number_named(found[0], script), text)
    try:
        return str(_evaluated(ast.parse(named.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return UNKNOWN


def _number_named(name: str, script: Script) -> str:
    value = script.variables.get(name, UNKNOWN)
    return value if len(value) <= _MOST_OF_A_NUMBER else UNKNOWN


def _evaluated(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        return _SUMS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    raise ValueError("no sum of whole numbers")


# Nodes and GPUs that launchers start on: torchrun, srun, mpirun, DeepSpeed's and Accelerate's, a batch header.


_NODES = ("nnodes", "nodes", "N", "num_nodes", "num_machines")
_PER_NODE = ("nproc_per_node", "gpus_per_node", "ntasks_per_node", "num_gpus", "gpus_per_task")
_ALL = ("num_processes", "np", "ntasks", "n")
_VARIABLES = {
    "nodes": ("NNODES", "NUM_NODES", "SLURM_NNODES"),
    "gpus_per_node": ("GPUS_PER_NODE", "NGPU", "NPROC_PER_NODE", "NUM_GPUS", "NUM_GPUS_PER_NODE"),
}
# options of launchers, which stand before those of the program
OPTIONS = frozenset((
    *_NODES, *_PER_NODE, *_ALL, "node_rank", "master_addr", "master_port", "rdzv_id", "rdzv_backend", "rdzv_endpoint",
    "rdzv_conf", "max_restarts", "tee", "log_dir", "local_ranks_filter", "redirects", "standalone", "hostfile",
    "include", "exclude", "gres", "mpi", "cpu_bind", "container_image", "container_mounts", "container_name", "output",
    "error", "machine_rank", "main_process_ip", "main_process_port", "config_file", "multi_gpu", "no_python", "label",
    "local_rank", "cpus_per_task", "plan", "kill_on_bad_exit", "no_container_mount_home", "role", "launcher", "use_env",
    "export", "mem", "time", "partition", "job_name", "constraint", "account", "exclusive", "nodelist", "bind_to",
))  # fmt: skip


def cluster_of(script: Script) -> dict[str, Any]:
    """The nodes, GPUs per node, GPUs in all and the GPU that a script states; only what it does."""
    found: dict[str, str] = {}
    for words in (script.header, *script.commands):  # what a launcher is given counts more than the header
        found |= _launcher_options(words)
    nodes, per_node, every = (_first(found, names) for names in (_NODES, _PER_NODE, _ALL))
    gpu, of_gres = _gres(found.get("gres", "") or found.get("gpus_per_node", ""))
    known = stated(
        nodes=nodes or _variable(script, "nodes"),
        gpus_per_node=per_node or of_gres or _variable(script, "gpus_per_node"),
        num_gpus=every if every and not per_node and "num_processes" in found else None,
        gpu=gpu or _constraint(found.get("constraint", "")),
    )  # fmt: skip
    return known


def _launcher_options(words: Iterable[str]) -> dict[str, str]:
    """Values of the options of launchers among the words of a command."""
    listed = list(words)
    found: dict[str, str] = {}
    for at, word in enumerate(listed):
        name, equals, value = word.lstrip("-").partition("=")
        key = name.replace("-", "_")
        if word.startswith("-") and key in OPTIONS:
            after = listed[at + 1] if at + 1 < len(listed) else ""
            found.setdefault(key, value if equals else after)
    return found


def _first(found: dict[str, str], names: Iterable[str]) -> int | None:
    numbers = (whole_of(found.get(name, "").rpartition(":")[2]) for name in names)
    return next((number for number in numbers if number), None)


def _variable(script: Script, kind: str) -> int | None:
    numbers = (whole_of(script.variables.get(name)) for name in _VARIABLES[kind])
    return next((number for number in numbers if number), None)


def _gres(text: str) -> tuple[str | None, int | None]:
    """The GPU and their number in ``gpu:h100:8``."""
    found = re.match(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d+)", text)
    return (_constraint(found[1] or ""), whole_of(found[2])) if found else (None, None)


def _constraint(text: str) -> str | None:
    gpu = known_gpu(text) if text else None
    return gpu.id if gpu else None
