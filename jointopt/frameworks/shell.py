"""The commands of a shell script, without running it, from the tree that tree-sitter's grammar of bash makes of it.

A value is known, one of several, or unknown (`jointopt.frameworks.shell_words`). Where only a shell could say which
branch is taken, each is read, and what differs after them is one of several. No file is opened: what a script sources
or starts is read where its text was given. What variables stand for is bounded, since a few lines can state a text that
doubles with each of them: a script beyond it is a JobError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from tree_sitter import Node

from jointopt.core.errors import JobError
from jointopt.frameworks.batch_header import batch_variables, header_of, line_of
from jointopt.frameworks.shell_values import (
    MOST_DEEP,
    Answer,
    Fork,
    Value,
    Values,
    assigned_names,
    command_name,
    parse,
    raw_text,
)
from jointopt.frameworks.shell_words import (
    Piece,
    Run,
    Script,
    Text,
    Unknown,
    Word,
    joined,
    joined_lists,
    literal,
    pattern_matches,
    taken_apart,
)

UNKNOWN = "$"  # begins what only a shell knows of a word
MOST_CHARACTERS = 200_000  # of a script, as of a job file
_MOST_STATEMENTS = 20_000  # read, those of loops and functions each time
_MOST_FORKS = 60  # branches that only a shell could choose; what later ones set is unknown
_MOST_TURNS = 1_000  # of a loop
_EMPTY_COMMENT = re.compile(r"`#[^`\n]*`")  # a comment between the lines of a command, whose end the grammar loses
_ENDINGS = (".sh", ".bash", ".sbatch", ".slurm")  # of scripts
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
_QUIET = {
    "echo", "printf", "cat", "cd", "pushd", "popd", "mkdir", "sleep", "wait", "trap", "umask", "ulimit", "module",
    "tee", "pwd", "date", "hostname", "set", "shopt", "true", "false", "basename", "dirname", "seq", "nproc", "rm",
    "touch", "cp", "mv", "ln", "chmod", "alias", "hash", "conda", "pip", "kill", "expr", "bc", "tr", "wc",
}  # fmt: skip
# programs whose exit status is a question
_QUESTIONS = {
    "grep", "which", "command", "type", "ls", "stat", "pgrep", "nvidia-smi", "diff", "cmp", "ping", "nc", "getopts",
    "read", "mountpoint", "squeue", "scontrol", "curl", "wget", "kill", "awk", "sed", "nvcc", "rocm-smi",
}  # fmt: skip


def read_script(
    text: str, name: str = "", files: Mapping[str, str] | None = None, given: Mapping[str, str] | None = None
) -> Script:
    """The commands that a script would start, in order, with what is unknown of them.

    ``files``: the texts of others by name, which it may source or start; ``given``: variables, and arguments by number,
    from outside. JobError for a script that is too long, or stands for too much.
    """
    if len(text) > MOST_CHARACTERS:
        raise JobError(
            f"it is no log or config that is known, and has {len(text):,} characters; expected at most "
            f"{MOST_CHARACTERS:,} of a script or a config."
        )
    reader = _Reader(name, files or {}, given or {})
    reader.run_text(text)
    for written, inner in reader.written.items():  # a script that something else than a shell starts
        if written not in reader.script.read and not any(len(run.words) > 3 for run in reader.script.runs):
            reader.run_text(inner)
    return reader.script


class _Reader(Values):
    """The state of a shell while it reads a script."""

    def __init__(self, name: str, files: Mapping[str, str], given: Mapping[str, str]) -> None:
        super().__init__(name)
        self.script = Script()
        self.files |= files
        self.functions: dict[str, Node] = {}
        self.written: dict[str, str] = {}  # files that the script itself writes
        self.prefix: list[Word] = []  # words before the program that a shell inside of them starts
        self.locals: list[dict[str, Value | None]] = []
        self.ended = ""  # exit, return, break or continue
        self.statements = 0
        self.stand_ins: list[str] = []  # variables that stand for values inside of another shell's text
        for variable, value in given.items():
            self.variables[variable] = literal(value, f"--set {variable}")
            self.exported.add(variable)
        numbers = [int(key) for key in given if key.isdecimal() and 0 < int(key) < 100]
        if numbers:
            texts = [literal(given.get(str(at), ""), f"--set {at}") for at in range(1, max(numbers) + 1)]
            self.arguments = texts

    # --- statements -------------------------------------------------------------------------------------------------

    def run_text(self, text: str, place: str = "") -> None:
        """Reads a script: the one that was given, or one inside of it (``bash -c``, a heredoc)."""
        text = re.sub(r"\r\n?", "\n", text)
        header = header_of(text)
        self.script.header += header
        for name, number in batch_variables(header).items():
            self.variables.setdefault(name, literal(number, f"{self.name}:{line_of(text, number)}"))
            self.exported.add(name)
        root = parse(_EMPTY_COMMENT.sub(lambda found: " " * len(found[0]), text))
        outer, self.fixed_place = self.fixed_place, place or self.fixed_place
        self.mentioned |= assigned_names([root])
        if self.depth < MOST_DEEP:
            self.depth += 1
            self.run_all(root.children)
            self.depth -= 1
        self.fixed_place = outer

    def run_all(self, nodes: Iterable[Node]) -> None:
        """Reads statements in order, up to one that leaves them."""
        for node in nodes:
            if self.ended:
                return
            if node.is_named and node.type != "comment":
                self._run_ways(node)

    def _run_ways(self, node: Node) -> None:
        """Reads a statement, once for each branch of a fork that it hangs on."""
        try:
            self.run(node)
        except Fork as found:
            self._fork([lambda: self._run_ways(node)] * found.ways, found.fork, "")

    def run(self, node: Node) -> Answer:
        """Reads one statement; whether it succeeds, which is taken for granted of what is no question."""
        self.statements += 1
        if self.statements > _MOST_STATEMENTS or self.depth > MOST_DEEP:
            self._leave_out(node)
            return Answer(None)
        self.depth += 1
        try:
            method = getattr(self, f"_run_{node.type}", None)
            found = None if method is None else method(node)
            if method is None:
                self._leave_out(node)
                self.run_all([child for child in node.children if hasattr(self, f"_run_{child.type}")])
            return found if isinstance(found, Answer) else Answer(True)
        finally:
            self.depth -= 1

    def _leave_out(self, node: Node) -> None:
        if len(self.script.left_out) < 100:
            self.script.left_out.append(" ".join(raw_text(node)[:200].split()))

    def _run_do_group(self, node: Node) -> None:
        self.run_all(node.children)

    def _run_compound_statement(self, node: Node) -> Answer | None:
        if node.children and node.children[0].type == "((":
            return self._sum_holds(node)
        self.run_all(node.children)
        return None

    def _sum_holds(self, node: Node) -> Answer:
        before, self.by_default, number = self.by_default, False, None
        for child in node.named_children:
            number = self.number(child)
        default, self.by_default = self.by_default, before
        return Answer(None if number is None else number != 0, default)

    def _run_subshell(self, node: Node) -> None:
        variables, exported = dict(self.variables), set(self.exported)
        self.run_all(node.children)
        self.variables, self.exported = variables, exported
        self.ended = "" if self.ended == "exit" else self.ended

    def _run_list(self, node: Node) -> Answer | None:
        left, sign, right = node.children[0], node.children[1].type, node.children[-1]
        if sign not in ("&&", "||"):
            self.run_all(node.children)
            return None
        if sign == "||" and left.type == "list" and left.children[1].type == "&&":  # a && b || c
            first, second = left.children[0], left.children[-1]
            self._choose(lambda: self.run(first), [second, right], lambda held: self.run(second if held else right))
            return None
        answers: list[Answer] = []
        wanted = sign == "&&"
        self._choose(
            lambda: self.run(left), [right],
            lambda held: answers.append(self.run(right) if held == wanted else Answer(held)),
        )  # fmt: skip
        return answers[0] if len(answers) == 1 else Answer(None)

    def _run_negated_command(self, node: Node) -> Answer:
        holds, default = self.run(node.children[-1])
        return Answer(None if holds is None else not holds, default)

    def _run_pipeline(self, node: Node) -> Answer | None:
        parts = [child for child in node.children if child.is_named]
        last = parts[-1]
        if command_name(last) in _SHELLS and len(last.named_children) <= 2:  # a text that is piped into a shell
            found = self.captured(parts[0])
            if (text := self.plain(found)) is not None:
                self.run_text(text, self.place(node))
            return None
        answer = None
        for part in parts:
            answer = self.run(part)
        return Answer(None) if command_name(last) in _QUESTIONS else answer

    def _run_redirected_statement(self, node: Node) -> Answer | None:
        body, redirects = node.child_by_field_name("body"), node.children_by_field_name("redirect")
        document = next((one for one in redirects if one.type == "heredoc_redirect"), None)
        if document is None:
            return self.run(body) if body else None
        if any(child.type == "pipeline" for child in document.named_children):
            pipe = next(child for child in document.named_children if child.type == "pipeline")
            if command_name(pipe.named_children[-1]) in _SHELLS | {"sbatch", "qsub"}:
                self._inside([], self._script_of(self._heredoc(document)), [], document)
            return None
        words = [] if body is None else [str(word) for word in self.fields(body.named_children)]
        if words and any(
            PurePosixPath(word).name in _SHELLS | {"sbatch", "qsub", "bsub", "ssh", "pdsh"} for word in words
        ):
            inside = next((at for at, word in enumerate(words) if PurePosixPath(word).name in _SHELLS), 0)
            prefix = self.fields(body.named_children if body else [])[:inside]
            self._inside(prefix, self._script_of(self._heredoc(document)), [], document)
            return None
        into = [one for place in (node, document) for one in place.named_children if one.type == "file_redirect"]
        if into and (target := self.plain(self.text(into[0].named_children[-1]))):
            self.written[target] = self._script_of(self._heredoc(document))
            self.files[PurePosixPath(target).name] = self.written[target]
        elif self.output is not None and words[:1] == ["cat"]:
            self.output.append(self._heredoc(document))
        elif body is not None and words[:1] != ["cat"]:
            return self.run(body)
        return None

    def _heredoc(self, node: Node) -> Text:
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        start = next((child for child in node.children if child.type == "heredoc_start"), None)
        if body is None:
            return ()
        if start is not None and re.search(r"['\"\\]", raw_text(start)):
            pieces: Text = literal(raw_text(body), self.place(body))
        else:
            pieces = self._between(body, body.start_byte, body.end_byte, r"[$`\\]")
        if raw_text(node).startswith("<<-"):
            pieces = tuple(p._replace(text=re.sub(r"(?m)^\t+", "", p.text)) for p in pieces)
        return pieces

    def _run_if_statement(self, node: Node) -> None:
        self._if(_branches(node))

    def _if(self, branches: list[tuple[list[Node], list[Node]]]) -> None:
        """Reads the branch of an ``if`` that is taken; of each its conditions (none of ``else``) and its body."""
        conditions, body = branches[0] if branches else ([], [])
        if not conditions:
            self.run_all(body)
            return
        bodies = [one for _, nodes in branches for one in nodes]
        self._choose(
            lambda: self._holds(conditions), bodies,
            lambda held: self.run_all(body) if held else self._if(branches[1:]),
        )  # fmt: skip

    def _holds(self, conditions: Iterable[Node]) -> Answer:
        found = Answer(True)
        for node in conditions:
            if node.is_named:
                found = self.run(node)
        return found

    def _choose(self, ask: Callable[[], Answer], bodies: Sequence[Node], act: Callable[[bool], Any]) -> None:
        """Acts by the answer to a condition: one way, or both where only a shell knows, or where it hangs on a fork."""
        self.absent, self.missing = set(), ""
        try:
            answer = ask()
        except Fork as found:
            self._fork([lambda: self._choose(ask, bodies, act)] * found.ways, found.fork, "")
            return
        if (answer.holds is None or answer.default) and len(self.script.conditions) >= _MOST_FORKS:
            act(True)
            self.ended = ""
            self._forget(*bodies)
            return
        if answer.holds is None or answer.default:
            absent = self.absent - self.variables.keys()
            place, variable = next((self.place(node) for node in bodies), ""), self.missing

            def take(held: bool) -> None:
                if held != answer.holds:  # what was taken for absent is given
                    for name in absent:
                        self.variables[name] = (Piece(unknown=Unknown(f"${name}", name, place)),)
                act(held)

            fork = self._fork([lambda: take(True), lambda: take(False)], 0, self._words_of_condition(bodies))
            if variable and answer.holds is None:
                self.script.deciding[fork] = variable
            if answer.default:
                self.script.usual[fork] = 0 if answer.holds else 1
            return
        act(answer.holds)

    def _by_default(self, name: str) -> None:
        """Marks the value of a variable as the script's default: something from outside could say otherwise."""
        value = self.variables.get(name, ())
        if isinstance(value, tuple):
            marked = tuple(p._replace(default=True) for p in value)
            self.variables[name] = marked or (Piece(default=True),)
        elif isinstance(value, list):
            self.variables[name] = [tuple(p._replace(default=True) for p in text) for text in value]

    def _words_of_condition(self, bodies: Iterable[Node]) -> str:
        first = next(iter(bodies), None)
        above = first.parent if first else None
        while above is not None and above.type in ("do_group", "else_clause", "elif_clause", "case_item"):
            above = above.parent
        return "" if above is None else f"{raw_text(above).splitlines()[0].strip()[:60]} ({self.place(above)})"

    def _fork(self, actions: Sequence[Callable[[], Any]], fork: int, words: str) -> int:
        """Reads each way from here, and joins the variables; the number of the fork, new where it is given as 0."""
        if not fork:
            fork = len(self.script.conditions) + 1
            self.script.conditions[fork] = words
        before, arguments, choices = dict(self.variables), self.arguments, dict(self.choices)
        states: list[dict[str, Value]] = []
        alive: list[int] = []
        for at, action in enumerate(actions):
            self.variables, self.arguments, self.choices = dict(before), arguments, {**choices, fork: at}
            action()
            if self.ended not in ("exit", "return"):
                alive.append(at)
                states.append(self.variables)
            self.ended = ""
        self.choices, self.arguments = choices, arguments
        if not alive:
            self.ended = "exit"
        elif len(alive) == 1:
            self.variables = states[0]
            self.choices = {**choices, fork: alive[0]}
        else:
            self.variables = self._joined(fork, states) if len(alive) == len(actions) else states[-1]
        return fork

    def _joined(self, fork: int, states: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name in dict.fromkeys(name for state in states for name in state):
            values = [state.get(name) for state in states]
            if all(value is values[0] or value == values[0] for value in values):
                found[name] = states[0][name]
            elif any(isinstance(value, dict) for value in values):
                found[name] = next(value for value in values if isinstance(value, dict))
            elif any(isinstance(value, list) for value in values):
                lists = [value if isinstance(value, list) else [value] if isinstance(value, tuple) else []
                         for value in values]  # fmt: skip
                found[name] = joined_lists(fork, name, lists)
            else:
                found[name] = joined(fork, name, [value if isinstance(value, tuple) else () for value in values])
        return found

    def _run_case_statement(self, node: Node) -> None:
        value = node.child_by_field_name("value")
        items = [child for child in node.named_children if child.type == "case_item"]
        self._case(value, items)

    def _case(self, value: Node | None, items: list[Node]) -> None:
        if not items or value is None:
            return
        patterns = items[0].children_by_field_name("value")
        ends = (";", ";;", ";&", ";;&", ")", "|", "(")
        bodies = [child for child in items[0].children if child not in patterns and child.type not in ends]

        def ask() -> Answer:
            before, self.by_default = self.by_default, False
            text = self.known(self.text(value))
            answers = [None if text is None else pattern_matches(self._pattern(one), text) for one in patterns]
            default, self.by_default = self.by_default, before
            everything = any(raw_text(one) == "*" for one in patterns)
            return Answer(True if True in answers or everything else None if None in answers else False, default)

        rest = [one for item in items for one in item.named_children]
        self._choose(ask, rest, lambda held: self.run_all(bodies) if held else self._case(value, items[1:]))

    def _run_for_statement(self, node: Node) -> None:
        body, variable = node.child_by_field_name("body"), node.child_by_field_name("variable")
        values = node.children_by_field_name("value")
        if body is None or variable is None:
            return
        if not values:
            values_known = self.arguments is not None
            words = [Word(text) for text in self.arguments or []]
        else:
            words = self.fields(values)
            values_known = not any(word.unknown for word in words)
        if not values_known:
            name = raw_text(variable)
            self.variables[name] = (Piece(unknown=Unknown(f"${name}", "", self.place(node))),)
            self._perhaps(lambda: self.run(body), body)
            return
        for word in words[:_MOST_TURNS]:
            self.variables[raw_text(variable)] = word.pieces
            self.run(body)
            if self._leaves_loop():
                return
        if len(words) > _MOST_TURNS:
            self._forget(body)

    def _run_c_style_for_statement(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        for one in node.children_by_field_name("initializer"):
            self._run_variable_assignment(one) if one.type == "variable_assignment" else self.number(one)
        conditions, updates = node.children_by_field_name("condition"), node.children_by_field_name("update")
        for _ in range(_MOST_TURNS):
            held = [self.number(one) for one in conditions if one.is_named]
            if body is None or (held and held[-1] is None):
                break
            if held and held[-1] == 0:
                return
            self.run(body)
            if self._leaves_loop():
                return
            for one in updates:
                self.number(one)
        else:
            self._forget(node)
            return
        if body is not None:
            self._perhaps(lambda: self.run(body), body)

    def _run_while_statement(self, node: Node) -> None:
        body, conditions = node.child_by_field_name("body"), node.children_by_field_name("condition")
        wanted = node.children[0].type == "while"
        if body is None:
            return
        for _ in range(_MOST_TURNS):
            try:
                answer = self._holds(conditions)
            except Fork:
                answer = Answer(None)
            if answer.holds is None or answer.default:
                self._perhaps(lambda: self.run(body), body)
                return
            if answer.holds != wanted:
                return
            before = dict(self.variables)
            self.run(body)
            if self._leaves_loop() or before == self.variables:
                return
        self._forget(body)

    def _forget(self, *nodes: Node, before: Mapping[str, Value] | None = None) -> None:
        """Makes what statements set unknown, but for what has a value of before, which is then a default."""
        for name in assigned_names(nodes):
            if before and before.get(name):
                self.variables[name] = before[name]
                self._by_default(name)
            else:
                self.variables[name] = (Piece(unknown=Unknown(f"${name}", name, self.place(nodes[0]))),)

    def _leaves_loop(self) -> bool:
        leaves = self.ended in ("break", "exit", "return")
        self.ended = "" if self.ended in ("break", "continue") else self.ended
        return leaves

    def _perhaps(self, action: Callable[[], Any], body: Node) -> None:
        """A loop over what nobody gave: what it sets keeps the value of before, as a default, or is unknown."""
        before = dict(self.variables)
        if len(self.script.conditions) < _MOST_FORKS:
            self._fork([lambda: None, action], 0, self._words_of_condition([body]))
        self._forget(body, before=before)

    def _run_function_definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[raw_text(name)] = body

    def _run_variable_assignment(self, node: Node) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        adds = any(child.type == "+=" for child in node.children)
        if name is None:
            return
        if name.type == "subscript":
            self._assign_element(name, () if value is None else self.text(value))
            return
        variable = raw_text(name)
        if value is not None and value.type == "array":
            self._assign_array(variable, value, adds)
            return
        text = () if value is None else self.text(value)
        before = self.variables.get(variable)
        if adds and isinstance(before, list):
            self.assign(variable, [*before[:-1], (before[-1] if before else ()) + text])
        elif adds:
            self.assign(variable, (before if isinstance(before, tuple) else ()) + text)
        else:
            self.assign(variable, text)

    def _run_variable_assignments(self, node: Node) -> None:
        for child in node.named_children:
            self._run_variable_assignment(child)

    def _assign_array(self, variable: str, value: Node, adds: bool) -> None:
        elements = [child for child in value.named_children if child.type != "comment"]
        keyed = [re.match(r"\[(.*?)\]=", raw_text(child)) for child in elements]
        if elements and all(keyed):
            table: dict[str, Text] = dict(old) if adds and isinstance(old := self.variables.get(variable), dict) else {}
            for child, found in zip(elements, keyed, strict=True):
                if found is not None:
                    inner = self._between(child, child.start_byte + found.end(), child.end_byte, r".")
                    key = found[1].strip("\"'")
                    table[key] = inner
            self.assign(variable, table)
            return
        texts = [word.pieces for word in self.fields(elements)]
        before = self.variables.get(variable) if adds else None
        first = before if isinstance(before, list) else [before] if isinstance(before, tuple) and before else []
        self.assign(variable, [*first, *texts])

    def _assign_element(self, name: Node, text: Text) -> None:
        parts = name.named_children
        variable, key = raw_text(parts[0]), self.plain(self.text(parts[1])) if len(parts) > 1 else None
        before = self.variables.get(variable)
        if key is None:
            return
        if isinstance(before, list) and key.isdecimal() and int(key) <= len(before):
            self.assign(variable, [*before[: int(key)], text, *before[int(key) + 1 :]])
        else:
            table = before if isinstance(before, dict) else {}
            self.assign(variable, {**table, key: text})

    def _run_declaration_command(self, node: Node) -> None:
        kind, options = (
            raw_text(node.children[0]),
            [raw_text(c) for c in node.named_children if raw_text(c).startswith("-")],
        )
        for child in node.named_children:
            named = child.child_by_field_name("name") if child.type == "variable_assignment" else child
            name = raw_text(named) if named is not None else ""
            if not re.fullmatch(r"\w+", name):
                continue
            if (kind == "local" or (kind in ("declare", "typeset") and self.locals)) and self.locals:
                self.locals[-1].setdefault(name, self.variables.get(name))
                if child.type != "variable_assignment":
                    self.variables.pop(name, None)
            if child.type == "variable_assignment":
                self._run_variable_assignment(child)
            if any("A" in option for option in options):
                self.variables.setdefault(name, {})
            if kind == "export" or any("x" in option for option in options):
                self.exported.add(name)

    def _run_unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self.variables.pop(raw_text(child), None)

    def captured(self, *nodes: Node) -> Text:
        """What commands write, where that is certain; else one piece that is unknown."""
        state = (self.output, dict(self.variables), self.ended)
        self.output = []
        unsure = any(
            node.type not in ("command", "list", "compound_statement", "redirected_statement") for node in nodes
        )
        before = len(self.script.runs)
        if not unsure:
            for node in nodes:
                name = command_name(node)
                unsure |= name in _QUESTIONS or (name in _QUIET and not hasattr(self, f"_do_{name}")) or name == "nproc"
                self.run(node)
        lines, (self.output, self.variables, self.ended) = self.output, state
        del self.script.runs[before:]
        whole = tuple(p for at, line in enumerate(lines or ()) for p in ((Piece("\n"),) * bool(at) + line))
        if unsure or any(p.unknown and not p.unknown.fork and p.unknown.name.startswith("$(") for p in whole):
            text = " ".join("; ".join(raw_text(node) for node in nodes).split())[:60]
            return (Piece(quoted=False, unknown=Unknown(f"$({text})", "", self.place(nodes[0]))),)
        return tuple(p._replace(quoted=False) for p in whole)

    # --- commands ---------------------------------------------------------------------------------------------------

    def _run_command(self, node: Node) -> Answer | None:
        arguments = [c for c in node.named_children if c.type not in ("variable_assignment", "file_redirect")
                     and not c.type.startswith("her")]  # fmt: skip
        assignments = [child for child in node.named_children if child.type == "variable_assignment"]
        own: dict[str, Value] = {}
        for one in assignments:
            named, stated = one.child_by_field_name("name"), one.child_by_field_name("value")
            if named is not None:
                own[raw_text(named)] = () if stated is None else self.text(stated)
        words = self.fields(arguments)
        if not words:
            for name, value in own.items():
                self.assign(name, value)
            return None
        inside = {name: self.variables.get(name) for name in own}
        self.variables |= own
        exported, self.exported = self.exported, self.exported | own.keys()
        answer = self._command(words, node)
        self.exported = exported
        for name, before in inside.items():
            self._set_back(name, before)
        return answer

    def _set_back(self, name: str, before: Value | None) -> None:
        if before is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = before

    def _command(self, words: list[Word], node: Node) -> Answer | None:
        name = str(words[0])
        if name in self.functions and self.depth < MOST_DEEP - 8:
            self._call(name, words[1:])
            return None
        if name in ("exit", "return", "break", "continue"):
            self.ended = name
            return None
        if name in ("true", "false", ":"):
            return Answer(name != "false")
        builtin = getattr(self, f"_do_{name}", None) if name.isidentifier() else None
        builtin = {".": self._do_source, "[": self._do_test}.get(name, builtin)
        if builtin is not None:
            found = builtin(words[1:], node)
            return found if isinstance(found, Answer) else None
        if name in _QUESTIONS:
            return Answer(None)
        if name in _QUIET:
            return None
        self._start(words, node)
        return None

    def _call(self, name: str, arguments: list[Word]) -> None:
        before, self.arguments = self.arguments, [word.pieces for word in arguments]
        self.locals.append({})
        self.run(self.functions[name])
        self.arguments = before
        for variable, value in self.locals.pop().items():
            self._set_back(variable, value)
        self.ended = "" if self.ended in ("return", "break", "continue") else self.ended

    def _start(self, words: list[Word], node: Node) -> None:
        """A program, or the script that a shell among its words is given."""
        if self._starts_script(words, node):
            return
        if self.output is not None:
            self.output.append((Piece(unknown=Unknown(f"$({' '.join(words)[:40]})", "", self.place(node))),))
            return
        whole = [*self.prefix, *(part for word in words if word != "\\" for part in taken_apart(word))]
        values = {key: value for key, value in self.variables.items() if isinstance(value, tuple)}
        self.script.runs.append(Run(whole, self.place(node), values, dict(self.choices)))

    def _starts_script(self, words: list[Word], node: Node) -> bool:
        """Whether the words start a script that is read: ``bash -c``, a file that was given or written, ``ssh``."""
        for at, word in enumerate(words):
            base, rest = PurePosixPath(str(word)).name, words[at + 1 :]
            if base in _SHELLS:
                while rest and rest[0].startswith("-"):
                    option, rest = rest[0], rest[1:]
                    if re.fullmatch(r"-[a-z]*c", option) and rest:
                        self._inside(words[:at], self._script_of(rest[0].pieces), rest[2:], node)
                        return True
                if rest:
                    return self._run_file(str(rest[0]), rest[1:], words[:at], node) or at == 0
                return False
            if word.startswith("-") or word.unknown:
                continue
            if (
                base in self.files
                and base != self.name
                and (at == 0 or base.endswith(_ENDINGS) or self.files[base][:2] == "#!")
            ):
                return self._run_file(str(word), rest, words[:at], node)
            if at and re.search(r"\s--?[A-Za-z]\w", word) and not re.search(r"[{}]", word[:1]):
                self._inside(words[:at], " ".join(self._script_of(one.pieces) for one in words[at:]), [], node)
                return True
        return False

    def _inside(self, prefix: Sequence[Word], text: str, arguments: Sequence[Word], node: Node) -> None:
        """Reads a text as a shell of its own does, with the variables that it inherits."""
        state = (self.variables, self.arguments, self.prefix, self.ended)
        self.variables = self._inherited()
        self.arguments, self.prefix = [one.pieces for one in arguments], [*self.prefix, *prefix]
        self.run_text(text, self.place(node))
        self.variables, self.arguments, self.prefix, self.ended = state

    def _inherited(self) -> dict[str, Value]:
        """The variables that a shell of its own gets: those exported that are no arrays."""
        return {
            key: value for key, value in self.variables.items() if key in self.exported and isinstance(value, tuple)
        }

    def _script_of(self, pieces: Text) -> str:
        """The text that a shell reads; values in it become variables of their own, which keep what is known of them."""
        parts = []
        for piece in pieces:
            plain = not piece.unknown and not piece.default
            if plain and (piece.place == pieces[0].place or not re.fullmatch(r"[\w\s.,:/=+-]*", piece.text)):
                parts.append(piece.text)
            else:
                name = f"__{len(self.stand_ins)}"
                self.stand_ins.append(name)
                self.variables[name] = (piece,)
                self.exported.add(name)
                parts.append(f"${{{name}}}")
        return "".join(parts)

    def _run_file(self, path: str, arguments: Sequence[Word], prefix: Sequence[Word], node: Node) -> bool:
        """Reads a script that another starts, where its text was given; whether it was."""
        name = PurePosixPath(path).name
        if name not in self.files:
            if path not in self.script.missing and name.endswith(_ENDINGS):
                self.script.missing.append(path)
            return False
        self.script.read.add(name)
        if path in self.written:
            self.script.read.add(path)
        state = (self.variables, self.arguments, self.prefix, self.ended, self.name, self.fixed_place)
        self.variables = self._inherited()
        self.arguments, self.prefix = [one.pieces for one in arguments], [*self.prefix, *prefix]
        self.name, self.fixed_place = name, ""
        self.run_text(self.files[name])
        self.variables, self.arguments, self.prefix, self.ended, self.name, self.fixed_place = state
        return True

    def _do_source(self, words: list[Word], node: Node) -> None:
        name = PurePosixPath(str(words[0])).name if words else ""
        if name not in self.files:
            if words and str(words[0]) not in self.script.missing:
                self.script.missing.append(str(words[0]))
            return
        self.script.read.add(name)
        before, self.name, self.fixed_place = (self.name, self.fixed_place), name, ""
        self.run_text(self.files[name])
        self.name, self.fixed_place = before
        self.ended = "" if self.ended == "return" else self.ended

    def _do_eval(self, words: list[Word], node: Node) -> None:
        pieces = tuple(piece for at, word in enumerate(words) for piece in ((Piece(" "),) * bool(at) + word.pieces))
        self.run_text(self._script_of(pieces), self.place(node))


def _branches(node: Node) -> list[tuple[list[Node], list[Node]]]:
    """(conditions, body) of an ``if`` and each of its ``elif`` and ``else``."""
    conditions: list[Node] = []
    body: list[Node] = []
    after = []
    then = False
    for child in node.children:
        if child.type in ("elif_clause", "else_clause"):
            after.append(child)
        elif child.type == "then":
            then = True
        elif child.is_named:
            (body if then or node.type == "else_clause" else conditions).append(child)
    rest = [branch for one in after for branch in _branches(one)]
    return [(conditions, body), *rest]
