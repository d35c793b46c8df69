"""The statements of a shell script, followed without running them: branches, loops, functions, pipes, other shells.

Where only a shell could say which branch is taken, each is read, and what differs after them is one of several.
"""

from __future__ import annotations

import abc
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from tree_sitter import Node

from jointopt.frameworks.launchers import batch_variables, header_of, nodefile_of
from jointopt.frameworks.shell_values import (
    MOST_DEEP,
    Expander,
    Fork,
    Status,
    Value,
    assigned_names,
    branches_of,
    combine,
    parse,
    raw_text,
)
from jointopt.frameworks.shell_words import (
    Piece,
    Run,
    Script,
    Text,
    Word,
    common_files,
    intersperse,
    join_arrays,
    join_branches,
    known_lines,
    literal,
    pattern_matches,
    split_lines,
    split_option_text,
    split_words,
    strip_newlines,
    unknown_text,
)

_MOST_STATEMENTS = 20_000  # read, those of loops and functions each time
_MOST_FORKS = 60  # branches that only a shell could choose; what later ones set is unknown
_MOST_FORKS_OF_A_LOOP = 10  # what one with more of them sets is unknown
_MOST_TURNS = 1_000  # of a loop
_EMPTY_COMMENT = re.compile(r"`#[^`\n]*`")  # a comment between the lines of a command, whose end the grammar loses
ENDINGS = (".sh", ".bash", ".sbatch", ".slurm", ".pbs", ".lsf")  # of scripts
SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
_SILENT = {
    "cd", "mkdir", "sleep", "wait", "trap", "umask", "ulimit", "module", "shopt", "true", "false", "rm", "touch",
    "ln", "chmod", "alias", "hash", "conda", "pip", "kill", "popd", "disown",
}  # fmt: skip
_PRINTING = {
    "pushd", "pwd", "date", "hostname", "nproc", "whoami", "uname", "realpath", "readlink", "id", "tput", "jobs",
}  # fmt: skip
# programs whose exit status is a question
_TESTING = {
    "grep", "which", "command", "type", "ls", "stat", "pgrep", "nvidia-smi", "diff", "cmp", "ping", "nc", "mountpoint",
    "squeue", "curl", "wget", "nvcc", "rocm-smi", "getopt",
}  # fmt: skip
_REMOTE = {"ssh", "pdsh", "clush", "docker", "podman"}  # start a shell that inherits no variables
# words by which other programs do so
_CLEAN_ENVIRONMENT = re.compile(r"-i|--ignore-environment|--cleanenv|--export=(?!.*\bALL\b).*", re.DOTALL)
_VARIABLE_OPTION = re.compile(r"(?:--env=|--export=)?([A-Za-z_]\w*)=")  # X=1 of env, -e X=1, --export=ALL,X=1
_OUTPUT = "(...)"  # stands for what was written, among variables
_SUBMITTERS = {"sbatch": "SBATCH", "qsub": "PBS", "bsub": "BSUB"}  # whose options count before those of that header


class Interpreter(Expander):
    """The state of a shell while it reads a script."""

    def __init__(self, name: str, files: Mapping[str, str], given: Mapping[str, str]) -> None:
        super().__init__(name)
        self.script = Script()
        self.header = self.script.header  # of the batch job whose script is read
        self.submitted: list[tuple[str, list[Word]]] = []  # the options by which it was submitted, until it is read
        self.files |= files
        self.functions: dict[str, Node] = {}
        self.prefix: list[Word] = []  # words before the program that a shell inside of them starts
        self.records = True  # whether programs that are started are runs of the script
        self.levels = 1  # of loops that break or continue leaves
        self.ended = ""  # exit, return, break or continue
        self.statements = 0
        self.input: list[Text] | None = None  # lines that a command reads; None: not known
        self.locals: list[dict[str, Value | None]] = []
        self.early_exits: list[tuple[str, int, int, dict[int, dict[str, Value]]]] = []  # ways of forks that ended early
        self.shells = 0  # around this one: subshells, and those of $(...)
        for variable, value in given.items():
            self.variables[variable] = literal(value, f"--set {variable}")
            self.exported.add(variable)
            self.given.add(variable)
        numbers = [int(key) for key in given if key.isdecimal() and 0 < int(key) < 100]
        if numbers:
            texts = [literal(given.get(str(at), ""), f"--set {at}") for at in range(1, max(numbers) + 1)]
            self.arguments = texts

    # --- statements -------------------------------------------------------------------------------------------------

    def run_text(self, text: str, place: str = "") -> None:
        """Reads a script: the one that was given, or one inside of it (``bash -c``, a heredoc)."""
        text = re.sub(r"\r\n?", "\n", text)
        texts = {name: value for name in self.placeholders if isinstance(value := self.variables.get(name), tuple)}
        header = [*header_of(text, self.name, texts), *self.submitted]
        for name, value in batch_variables(header).items():
            if name not in self.given and (self.submitted or name not in self.variables):
                self.variables[name] = value
            self.exported.add(name)
            self.batch_variables.add(name)
        self.nodefile = nodefile_of(header) or self.nodefile
        self.header += header
        self.submitted = []
        text = re.sub(r"\bIFS==(?=\s)", r"IFS=\=", text)  # which the grammar takes for a test
        root = parse(_EMPTY_COMMENT.sub(lambda found: " " * len(found[0]), text))
        outer, self.place_override = self.place_override, place or self.place_override
        self.script_variables |= assigned_names([root])
        if self.depth < MOST_DEEP:
            self.depth += 1
            self.run_all(root.children)
            self.depth -= 1
        self.place_override = outer

    def run_all(self, nodes: Iterable[Node]) -> Status:
        """Reads statements in order, up to exit, return, break or continue; the status of the last."""
        answer = Status(True)
        row = [node for node in nodes if node.is_named or node.type == "&"]
        for at, node in enumerate(row):
            if self.ended:
                break
            if not node.is_named or node.type == "comment":
                continue
            if at + 1 < len(row) and row[at + 1].type == "&":
                self._run_in_subshell(functools.partial(self._run_by_branch, node))
                answer = Status(True)
            else:
                answer = self._run_by_branch(node)
        return answer

    def _run_by_branch(self, node: Node) -> Status:
        """Reads a statement; once for each branch of a fork where one of its values depends on that."""
        try:
            return self.run(node)
        except Fork as found:
            self._fork([lambda: self._run_by_branch(node)] * found.ways, found.fork, "")
            return Status(None)

    def _run_in_subshell(self, action: Callable[[], Status]) -> Status:
        """Acts in a subshell, whose variables are lost."""
        state, mark = (dict(self.variables), set(self.exported), self.arguments), len(self.early_exits)
        self.shells += 1
        answer = action()
        self.shells -= 1
        self._join_exits(mark, "exit")
        self.variables, self.exported, self.arguments = state
        self.ended = "" if self.ended == "exit" else self.ended
        return answer

    def run(self, node: Node) -> Status:
        """Reads one statement; its status, which is success for commands that are no test."""
        self.statements += 1
        if self.statements > _MOST_STATEMENTS or self.depth > MOST_DEEP:
            self._note_unparsed(node)
            self._make_unknown(node)
            return Status(None)
        self.depth += 1
        try:
            method = getattr(self, f"_run_{node.type}", None)
            mark = len(self.early_exits)
            found = None if method is None else method(node)
            if node.type.endswith(("for_statement", "while_statement")):
                self._join_exits(mark, "break")
            self.status = found.success if isinstance(found, Status) else True
            if method is None:
                self._note_unparsed(node)
                self.run_all([child for child in node.children if hasattr(self, f"_run_{child.type}")])
            return found if isinstance(found, Status) else Status(True)
        finally:
            self.depth -= 1

    def _note_unparsed(self, node: Node) -> None:
        if len(self.script.unparsed) < 100:
            self.script.unparsed.append(" ".join(raw_text(node)[:200].split()))

    def _run_compound_statement(self, node: Node) -> Status:
        if node.children and node.children[0].type == "((":
            return self.ask_status(lambda: [self._is_not_zero(child) for child in node.named_children][-1])
        return self.run_all(node.children)

    def _run_do_group(self, node: Node) -> Status:
        return self.run_all(node.children)

    def _is_not_zero(self, node: Node) -> bool | None:
        number = self.evaluate(node)
        return None if number is None else number != 0

    def _run_subshell(self, node: Node) -> Status:
        return self._run_in_subshell(lambda: self.run_all(node.children))

    def _run_list(self, node: Node) -> Status:
        left, sign, right = node.children[0], node.children[1].type, node.children[-1]
        if sign not in ("&&", "||"):
            return self.run_all(node.children)
        if sign == "||" and left.type == "list" and left.children[1].type == "&&":  # a && b || c
            first, second = left.children[0], left.children[-1]

            def act(held: bool) -> Status:
                if not held:
                    return self.run(right)
                return self._branch_on(lambda: self.run(second), [right],
                                       lambda done: Status(True) if done else self.run(right))  # fmt: skip

            return self._branch_on(lambda: self.run(first), [second, right], act)
        wanted = sign == "&&"
        return self._branch_on(
            lambda: self.run(left), [right], lambda held: self.run(right) if held == wanted else Status(held)
        )

    def _run_negated_command(self, node: Node) -> Status:
        success, default = self.run(node.children[-1])
        return Status(None if success is None else not success, default)

    def _run_pipeline(self, node: Node) -> Status:
        return self._run_piped([child for child in node.children if child.is_named])

    def _run_piped(self, parts: Sequence[Node | Callable[[], Status]]) -> Status:
        """Reads the commands of a pipeline, each in a subshell with the output of the one before as its input."""
        state, answer = (self.input, self.output), Status(True)
        for at, part in enumerate(parts):
            last = at == len(parts) - 1
            self.output = state[1] if last else []
            answer = self._run_in_subshell(functools.partial(self.run, part) if isinstance(part, Node) else part)
            if not last:
                self.input = known_lines(self.output or ())
        self.input, self.output = state
        return answer

    def _run_redirected_statement(self, node: Node) -> Status:
        body = node.child_by_field_name("body")
        action = (lambda: self.run(body)) if body else lambda: Status(True)
        return self._with_redirects([one for one in node.named_children if one.type.endswith("_redirect")], action)

    def _with_redirects(self, redirects: Sequence[Node], action: Callable[[], Status]) -> Status:
        """Acts with the input, and into the file, of redirects."""
        state, target, adds, after = (self.input, self.output), "", False, action
        inside = [one for redirect in redirects for one in (redirect, *redirect.named_children)]
        for one in inside:
            if one.type == "heredoc_redirect":
                self.input = split_lines(self._heredoc(one))
            elif one.type == "herestring_redirect":
                self.input = split_lines(self.text(one.named_children[-1])) or [()]
            elif one.type == "file_redirect" and one.named_children:
                sign = next((child.type for child in one.children if not child.is_named), "")
                where, place = one.child_by_field_name("descriptor"), one.named_children[-1]
                before = one.prev_sibling
                if sign == "<" and before is not None and raw_text(before) == "<<":  # behind braces: <<<
                    self.input = split_lines(self.text(place)) or [()]
                elif sign == "<":
                    self.input = self.lines_from(place)
                elif sign != "<&" and (where is None or raw_text(where) == "1"):
                    self.output, adds = [], sign.endswith(">>")
                    target = "" if sign == ">&" else self.text_or_none(self.text(place)) or ""
            elif one.type == "pipeline" and one.parent and one.parent.type == "heredoc_redirect":
                after = functools.partial(self._run_piped, [action, *one.named_children])
        answer = after()
        if target:
            self.write(target, known_lines(self.output or ()), adds)
        self.input, self.output = state
        return answer

    def lines_from(self, node: Node) -> list[Text] | None:
        """The lines of a file, or of what commands write; None where they are not known."""
        if node.type == "process_substitution":
            return known_lines(self.output_of(*node.named_children))
        try:
            return self.lines_of_file(self.evaluate_text(self.text(node)))
        except Fork:
            return None

    def _heredoc(self, node: Node) -> Text:
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        start = next((child for child in node.children if child.type == "heredoc_start"), None)
        if body is None:
            return ()
        if start is not None and re.search(r"['\"\\]", raw_text(start)):
            pieces: Text = literal(raw_text(body), self.place(body))
        else:
            pieces = self._expand_range(body, body.start_byte, body.end_byte, r"[$`\\]")
        if raw_text(node).startswith("<<-"):
            pieces = tuple(p._replace(text=re.sub(r"(?m)^\t+", "", p.text)) for p in pieces)
        return pieces

    def _run_if_statement(self, node: Node) -> Status:
        return self._choose_branch(branches_of(node))

    def _choose_branch(self, branches: list[tuple[list[Node], list[Node]]]) -> Status:
        """Reads the branch of an ``if`` that is taken; of each its conditions (none of ``else``) and its body."""
        conditions, body = branches[0] if branches else ([], [])
        if not conditions:
            return self.run_all(body)
        bodies = [one for _, nodes in branches for one in nodes]
        return self._branch_on(
            lambda: self._run_conditions(conditions), bodies,
            lambda held: self.run_all(body) if held else self._choose_branch(branches[1:]),
        )  # fmt: skip

    def _run_conditions(self, conditions: Iterable[Node]) -> Status:
        found = Status(True)
        for node in conditions:
            if node.is_named:
                found = self.run(node)
        return found

    def _branch_on(
        self, ask: Callable[[], Status], bodies: Sequence[Node], act: Callable[[bool], Status]
    ) -> Status:  # fmt: skip
        """Acts on the status of a condition; once for success and once for failure where only a shell knows it."""
        self.unset_names, self.undecided_variable = set(), ""
        try:
            answer = ask()
        except Fork as found:
            self._fork([lambda: self._branch_on(ask, bodies, act)] * found.ways, found.fork, "")
            return Status(None)
        if self.ended:
            return answer
        if answer.success is not None and not answer.default:
            return act(answer.success)
        if len(self.script.conditions) >= _MOST_FORKS:
            act(True)
            self.ended = ""
            self._make_unknown(*bodies)
            if self.output is not None and bodies:
                self.emit(None, [], bodies[0])
            return Status(None)
        unset = self.unset_names - self.variables.keys()
        place, variable = next((self.place(node) for node in bodies), ""), self.undecided_variable

        def take(held: bool) -> None:
            if held != answer.success:  # what was taken for unset is given
                self.variables |= {name: unknown_text(f"${name}", name, place) for name in unset}
            act(held)

        fork = self._fork([lambda: take(True), lambda: take(False)], 0, self._condition_text(bodies))
        if variable and answer.success is None:
            self.script.fork_variables[fork] = variable
        if answer.default:
            self.script.default_branches[fork] = 0 if answer.success else 1
        return Status(None)

    def invalidate_variables(self, file: str, place: str) -> None:
        """Forks after a sourced file that was not given: it may have set any variable that nobody else sets."""
        self.missing_source = file

        def others() -> None:
            names = self.variables.keys() - self.given - self.batch_variables
            self.variables |= {name: unknown_text(f"${name}", name, place, set_by=file) for name in names}

        self._fork([lambda: None, others], 0, f"source {file} ({place})")

    def mark_default(self, name: str) -> None:
        """Marks the value of a variable as the script's default: something from outside could say otherwise."""
        value = self.variables.get(name, ())
        if isinstance(value, tuple):
            marked = tuple(p._replace(default=True) for p in value)
            self.variables[name] = marked or (Piece(default=True),)
        elif isinstance(value, list):
            self.variables[name] = [tuple(p._replace(default=True) for p in text) for text in value]

    def _condition_text(self, bodies: Iterable[Node]) -> str:
        first = next(iter(bodies), None)
        above = first.parent if first else None
        while above is not None and above.type in ("do_group", "else_clause", "elif_clause", "case_item"):
            above = above.parent
        return "" if above is None else f"{raw_text(above).splitlines()[0].strip()[:60]} ({self.place(above)})"

    def _fork(self, actions: Sequence[Callable[[], Any]], fork: int, words: str) -> int:
        """Reads each branch from one state, and joins their variables; the number of the fork, a new one for 0."""
        if not fork:
            fork = len(self.script.conditions) + 1
            self.script.conditions[fork] = words
        before, arguments, choices, files = self._snapshot(), self.arguments, dict(self.choices), dict(self.files)
        alive: dict[int, dict[str, Value]] = {}
        gone: dict[int, dict[str, Value]] = {}  # ways that leave a function, a loop or a shell of its own
        kinds: set[str] = set()
        written = []
        for at, action in enumerate(actions):
            self.arguments, self.choices, self.files = arguments, {**choices, fork: at}, dict(files)
            self._restore(before)
            action()
            if self.ended and (self.ended != "exit" or self.shells):
                gone[at] = self._snapshot()
                kinds.add(self.ended)
            elif not self.ended:
                alive[at] = self._snapshot()
            written.append(self.files)
            self.ended = ""
        self.choices, self.arguments, self.files = choices, arguments, common_files(written)
        if not alive and not gone:
            self.ended = "exit"
            return fork
        rest = alive or gone
        states = [rest.get(at, next(iter(rest.values()))) for at in range(len(actions))]
        self._restore(states[0] if len(rest) == 1 else self._join_states(fork, states))
        kind = next((kind for kind in ("exit", "return", "break", "continue") if kind in kinds), "")
        if not alive:
            self.ended = kind
        elif gone:
            self.early_exits.append((kind, fork, len(actions), gone))
        if len(rest) == 1:
            self.choices = {**choices, fork: next(iter(rest))}
        return fork

    def _snapshot(self) -> dict[str, Value]:
        """The variables, and the output so far."""
        return self.variables | ({} if self.output is None else {_OUTPUT: tuple(self.output)})

    def _restore(self, state: Mapping[str, Value]) -> None:
        """Sets the variables and the output to those of a snapshot."""
        self.variables = dict(state)
        output = self.variables.pop(_OUTPUT, ())
        if self.output is not None and isinstance(output, tuple):
            self.output = [*output]

    def _join_exits(self, mark: int, *kinds: str) -> None:
        """Joins the branches that left the loop, function or subshell that ends here early with those that did not.

        ``mark``: the number of early exits when it began.
        """
        for at in range(len(self.early_exits) - 1, mark - 1, -1):
            kind, fork, ways, gone = self.early_exits[at]
            if kind in kinds:
                del self.early_exits[at]
                now = self._snapshot()
                self.choices.pop(fork, None)
                self._restore(self._join_states(fork, [gone.get(way, now) for way in range(ways)]))

    def _join_states(self, fork: int, states: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
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
                found[name] = join_arrays(fork, name, lists)
            else:
                found[name] = join_branches(fork, name, [value if isinstance(value, tuple) else () for value in values])
        return found

    def _run_case_statement(self, node: Node) -> Status:
        value = node.child_by_field_name("value")
        return self._case(value, [child for child in node.named_children if child.type == "case_item"])

    def _case(self, value: Node | None, items: list[Node], falls: bool = False) -> Status:
        """Reads the items of a ``case`` that match; ``falls``: the first one whatever its pattern (``;&``)."""
        if not items or value is None:
            return Status(True)
        patterns = items[0].children_by_field_name("value")
        ends = (";", ";;", ";&", ";;&", ")", "|", "(")
        bodies = [child for child in items[0].children if child not in patterns and child.type not in ends]
        end = next((raw_text(child) for child in items[0].children_by_field_name("fallthrough")), "")

        def ask() -> bool | None:
            text = self.evaluate_text(self.text(value))
            answers = [raw_text(one) == "*" or (None if text is None else pattern_matches(self.pattern(one), text))
                       for one in patterns]  # fmt: skip
            return combine(answers, True)

        def act(held: bool) -> Status:
            if not held:
                return self._case(value, items[1:])
            answer = self.run_all(bodies)
            return self._case(value, items[1:], end == ";&") if end in (";&", ";;&") and not self.ended else answer

        rest = [one for item in items for one in item.named_children]
        return self._branch_on(lambda: Status(True) if falls else self.ask_status(ask), rest, act)

    def _run_for_statement(self, node: Node) -> None:
        body, variable = node.child_by_field_name("body"), node.child_by_field_name("variable")
        values = node.children_by_field_name("value")
        if body is None or variable is None:
            return
        name = raw_text(variable)
        words = self.fields(values) if values else [Word(text) for text in self.arguments or []]
        if any(word.unknown for word in words) if values else self.arguments is None:
            self.variables[name] = unknown_text(f"${name}", "", self.place(node))
            unset = [word.may_split and (one := word.unknown) is not None and not one.set_by and not one.fork
                     and bool(one.variable or one.is_list) for word in words]  # fmt: skip
            self._run_perhaps(lambda: self._run_turn(body), body, all(unset))
            return
        for word in words[:_MOST_TURNS]:
            self.variables[name] = word.pieces
            if self._run_turn(body):
                break
        if len(words) > _MOST_TURNS:
            self._make_unknown(node)
        for assigned in assigned_names([body]) if any(word.default for word in words) else ():
            self.mark_default(assigned)  # how often it is set hangs on a default

    def _run_c_style_for_statement(self, node: Node) -> None:
        for one in node.children_by_field_name("initializer"):
            self.run(one) if one.type == "variable_assignment" else self.evaluate(one)
        conditions = [one for one in node.children_by_field_name("condition") if one.is_named]
        self._loop(
            node, lambda: self.ask_status(lambda: [True, *map(self._is_not_zero, conditions)][-1]),
            lambda: [self.evaluate(one) for one in node.children_by_field_name("update")],
        )  # fmt: skip

    def _run_while_statement(self, node: Node) -> None:
        conditions, wanted = node.children_by_field_name("condition"), node.children[0].type == "while"

        def ask() -> Status:
            success, default = self._run_conditions(conditions)
            return Status(None if success is None else success == wanted, default)

        self._loop(node, ask, lambda: None)

    def _loop(self, node: Node, ask: Callable[[], Status], update: Callable[[], Any]) -> None:
        """Reads the body of a loop while its condition succeeds."""
        body, last, hinges = node.child_by_field_name("body") or node, None, False
        forks = len(self.script.conditions)
        for _ in range(_MOST_TURNS):
            if len(self.script.conditions) > forks + _MOST_FORKS_OF_A_LOOP:
                self._make_unknown(node)
                break
            try:
                answer = ask()
            except Fork:
                answer = Status(None)
            if answer.success is None or (answer.default and not answer.success):
                self._run_perhaps(lambda: self._run_turn(body), body, answer.default)
                break
            hinges |= answer.default
            state = (dict(self.variables), self.arguments, len(self.input or ()))
            if not answer.success or state == last or self._run_turn(body):
                break
            last = state
            update()
        else:
            self._make_unknown(node)
        for name in assigned_names([node]) if hinges else ():  # how often it is set hangs on a default
            self.mark_default(name)

    def _make_unknown(self, *nodes: Node, before: Mapping[str, Value] | None = None) -> None:
        """Makes the variables that statements set unknown; of those with a value in ``before``, that as a default."""
        for name in assigned_names(nodes):
            if before and before.get(name):
                self.variables[name] = before[name]
                self.mark_default(name)
            else:
                self.variables[name] = unknown_text(f"${name}", name, self.place(nodes[0]))

    def _run_turn(self, body: Node) -> bool:
        """Reads the body of a loop once; whether that ends the loop. ``break 2`` also ends the one around it."""
        mark = len(self.early_exits)
        self.run(body)
        self._join_exits(mark, "continue")
        leaves = self.ended in ("break", "exit", "return") or self.levels > 1
        if self.ended in ("break", "continue") and self.levels > 1:
            self.levels -= 1
        elif self.ended in ("break", "continue"):
            self.ended = ""
        return leaves

    def _run_perhaps(self, action: Callable[[], Any], body: Node, free: bool = False) -> None:
        """Reads a loop that may have no turn: what it sets is unknown, or the value of before, as a default.

        ``free``: it hangs on what nobody gave.
        """
        before = dict(self.variables)
        if len(self.script.conditions) < _MOST_FORKS:
            self._fork([lambda: None, action], 0, self._condition_text([body]))
        self.levels = 1
        self._make_unknown(body, before=before if free else None)

    def _run_function_definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[raw_text(name)] = body

    def output_of(self, *nodes: Node) -> list[Piece]:
        """The output of commands in a subshell, whose programs are no runs of the script."""
        state = (self.output, self.records)
        self.output, self.records = [], False
        self._run_in_subshell(lambda: self.run_all(nodes))
        found, (self.output, self.records) = self.output, state
        return found

    def command_output(self, *nodes: Node) -> Text:
        """The output of commands where it is known, else one unknown piece."""
        if nodes[0].type == "file_redirect":  # $(< file)
            lines = self.lines_from(nodes[0].named_children[-1])
        else:
            lines = known_lines(self.output_of(*nodes))
        if lines is None:
            text = " ".join("; ".join(raw_text(node) for node in nodes).split())[:60]
            return unknown_text(f"$({text})", "", self.place(nodes[0]), quoted=False)
        return tuple(piece._replace(quoted=False) for piece in strip_newlines(intersperse(lines, "\n")))

    @abc.abstractmethod
    def builtin(self, name: str) -> Callable[[list[Word], Node], Status | None] | None:
        """The method for a builtin, or for a program whose output is computed; None for any other command."""

    # --- commands ---------------------------------------------------------------------------------------------------

    def _run_command(self, node: Node) -> Status:
        redirects = [child for child in node.named_children if child.type.endswith("_redirect")]
        return (
            self._with_redirects(redirects, lambda: self._run_simple_command(node))
            if redirects
            else self._run_simple_command(node)
        )

    def _run_simple_command(self, node: Node) -> Status:
        arguments = [child for child in node.named_children if child.type != "variable_assignment"
                     and not child.type.endswith("_redirect")]  # fmt: skip
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
            return Status(True)
        inside = {name: self.variables.get(name) for name in own}
        self.variables |= own
        added = own.keys() - self.exported
        self.exported |= added
        answer = self._execute(words, node)
        self.exported -= added  # and not what a function or a sourced file exports
        for name, before in inside.items():
            self._restore_variable(name, before)
        return answer

    def _restore_variable(self, name: str, before: Value | None) -> None:
        if before is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = before

    def _execute(self, words: list[Word], node: Node) -> Status:
        name, rest = str(words[0]), words[1:]
        if name in ("command", "builtin") and rest and not rest[0].startswith("-"):
            return self._execute(rest, node)
        if name in self.functions:
            return self._call_function(name, rest)
        if name in ("exit", "return", "break", "continue"):
            self.ended = name
            self.levels = int(rest[0]) if name in ("break", "continue") and rest and rest[0].isdecimal() else 1
            number = self.number_of(str(rest[0])) if rest and rest[0].unknown is None else None
            return Status(number == 0 if rest and number is not None else None if rest else True)
        if name in ("true", "false", ":"):
            return Status(name != "false")
        if (builtin := self.builtin(name)) is not None:
            return builtin(rest, node) or Status(True)
        if name in _SILENT and not (name == "conda" and rest[:1] == ["run"]):
            return Status(True)
        if name in _PRINTING or name in _TESTING:
            self.emit(None, words, node)
        else:
            self.start(words, node)
            self.ended = "exit" if name == "exec" and rest else self.ended
        return Status(None if name in _TESTING else True)

    def _call_function(self, name: str, arguments: list[Word]) -> Status:
        if self.depth > MOST_DEEP - 8:
            self._make_unknown(self.functions[name])
            return Status(None)
        before, unknown = self.arguments, [word.unknown for word in arguments]
        if before is not None or len(unknown) != 1 or not unknown[0] or unknown[0].name not in ("$@", "$*"):
            self.arguments = [word.pieces for word in arguments]
        references = dict(self.references)
        self.locals.append({})
        mark = len(self.early_exits)
        answer = self.run(self.functions[name])
        self._join_exits(mark, "return", "break", "continue")
        self.arguments, self.references = before, references
        for variable, value in self.locals.pop().items():
            self._restore_variable(variable, value)
        self.ended = "" if self.ended in ("return", "break", "continue") else self.ended
        return answer

    def start(self, words: list[Word], node: Node) -> None:
        """Records a program that is started, or reads the script that its words start."""
        starts = self._run_script_among(words, node)
        if not starts or not _SUBMITTERS.keys().isdisjoint(PurePosixPath(word).name for word in words):
            self.emit(None, words, node)
        if starts or not self.records:
            return
        whole = [*self.prefix, *(part for word in words if word != "\\" for part in split_option_text(word))]
        values = {key: value for key, value in self.variables.items() if isinstance(value, tuple)}
        self.script.runs.append(Run(whole, self.place(node), values, dict(self.choices), [*self.header]))

    def _run_script_among(self, words: list[Word], node: Node) -> bool:
        """Reads a script that words start (``bash -c``, ``ssh``, a file that was given or written); whether they do."""
        names = [PurePosixPath(word).name for word in words]
        for at, (word, base) in enumerate(zip(words, names, strict=True)):
            rest = words[at + 1 :]
            if base in SHELLS:
                while rest and rest[0].startswith("-"):
                    option, rest = rest[0], rest[1:]
                    if re.fullmatch(r"-[a-z]*c", option) and rest:
                        self._run_in_child(words[:at], self.script_of(rest[0].pieces), rest[2:], node)
                        return True
                if not rest or words[at + 1 : at + 2] == ["-s"]:
                    return self._run_input(words[:at], node)
                return self._run_file(str(rest[0]), rest[1:], words[:at], node) or at == 0
            if at and word[:1] not in ("-", "{", "}") and re.search(r"\s--?[A-Za-z]\w", word):
                self._run_in_child(words[:at], " ".join(self.script_of(one.pieces) for one in words[at:]), [], node)
                return True
            if word.startswith("-") or word.unknown:
                continue
            submitted = not _SUBMITTERS.keys().isdisjoint(names[:at])
            if base in self.files and base != self.name and (
                at == 0 or submitted or base.endswith(ENDINGS) or self.files[base][:2] == "#!"
            ):  # fmt: skip
                return self._run_file(str(word), rest, words[:at], node)
        return not {*names}.isdisjoint(_REMOTE | _SUBMITTERS.keys()) and self._run_input(words, node)

    def _run_input(self, prefix: Sequence[Word], node: Node) -> bool:
        """Reads the input as the script of a shell; whether there is one."""
        if not self.input:
            return False
        lines, self.input = self.input, None
        self.script.files_read |= self.files_read
        self._run_in_child(prefix, self.text_of(lines), [], node)
        return True

    def _run_in_child(self, prefix: Sequence[Word], text: str, arguments: Sequence[Word], node: Node) -> None:
        """Reads a text as the script of a child shell."""
        self._in_child_shell(prefix, arguments, lambda: self.run_text(text, self.place(node)))

    def _in_child_shell(self, prefix: Sequence[Word], arguments: Sequence[Word], action: Callable[[], None]) -> None:
        """Acts in a child shell that is started behind these words, with the variables that it inherits."""
        state = (self.variables, self.arguments, self.prefix, self.ended, self.functions, self.header)
        records, output, fixed, self.readonly = self.records, self.output, self.readonly, set()
        names = [PurePosixPath(word).name for word in prefix]
        remote = bool(_REMOTE & {*names}) or any(_CLEAN_ENVIRONMENT.fullmatch(w) for w in prefix if not w.unknown)
        remote |= "qsub" in names and "-V" not in prefix
        submits = next((at for at, name in enumerate(names) if name in _SUBMITTERS), None)
        if submits is not None:  # a job of its own
            self.submitted, self.header = [(_SUBMITTERS[names[submits]], [*prefix[submits + 1 :]])], []
            self.records, self.output = True, None
        parts = [one for word in prefix for one in split_words((p._replace(quoted=False) for p in word.pieces), ",")]
        passed = {re.sub("^--(env|export)=", "", one) for one in parts}  # X of -e X, --export=X
        self.variables = {
            name: value for name, value in self.variables.items() if name in self.exported and isinstance(value, tuple)
            and (not remote or name in self.placeholders or name in passed)}  # fmt: skip
        for one in parts:
            if found := _VARIABLE_OPTION.match(one):
                self.variables[found[1]] = tuple(p._replace(quoted=True) for p in one.rest(found.end()).pieces)
                self.exported.add(found[1])
        self.functions = {name: body for name, body in self.functions.items() if name in self.exported}
        self.arguments = [one.pieces for one in arguments]
        self.prefix = [*self.prefix, *prefix] if submits is None else []
        action()
        self.variables, self.arguments, self.prefix, self.ended, self.functions, self.header = state
        self.records, self.output, self.readonly = records, output if submits is not None else self.output, fixed

    def _run_file(self, path: str, arguments: Sequence[Word], prefix: Sequence[Word], node: Node) -> bool:
        """Reads the script of a file in a child shell; False where its text was not given."""
        name = PurePosixPath(path).name
        if name not in self.files:
            if name.endswith(ENDINGS):
                self.note_missing(path)
            return False
        self._in_child_shell(prefix, arguments, lambda: self._read_file(name, path))
        return True

    def _read_file(self, name: str, path: str) -> None:
        self.script.files_read |= {name, path, *self.files_read} if path in self.written else {name}
        place, self.name, self.place_override = (self.name, self.place_override), name, ""
        self.run_text(self.files[name])
        self.name, self.place_override = place

    def note_missing(self, path: str) -> None:
        """Notes a script that was not given."""
        if path and path not in self.script.missing_files:
            self.script.missing_files.append(path)

    def run_sourced(self, name: str, path: str, arguments: Sequence[Word]) -> None:
        """Reads a sourced file with the variables of this shell, and with its arguments where none are given."""
        outer, self.arguments = self.arguments, [word.pieces for word in arguments] or self.arguments
        self._read_file(name, path)
        self.arguments = outer if arguments else self.arguments
        self.ended = "" if self.ended == "return" else self.ended
