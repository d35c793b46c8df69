"""The commands of a shell script, without running it, from the tree that tree-sitter's grammar of bash makes of it.

A value is known, one of several, or unknown (`jointopt.frameworks.shell_words`). Here are the builtins of a shell and
programs that change lines of text; `jointopt.frameworks.shell_statements` follows the rest. No file is opened: what a
script sources or starts is read where its text was given. What variables stand for is bounded, since a few lines can
state a text that doubles with each of them: a script beyond it is a JobError.
"""

from __future__ import annotations

import functools
import getopt
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from tree_sitter import Node

from jointopt.core.errors import JobError
from jointopt.frameworks.launchers import BATCH
from jointopt.frameworks.shell_statements import ENDINGS, Interpreter
from jointopt.frameworks.shell_values import Status, combine, raw_text, unset_variable
from jointopt.frameworks.shell_words import (
    CLASSES,
    Piece,
    Script,
    Text,
    Unknown,
    Word,
    intersperse,
    literal,
    pattern_matches,
    split_words,
    unknown_text,
)

# files that set up an environment, and none of the variables of a script
_ENVIRONMENT_FILE = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|mamba\.sh|\.?bashrc|\.?bash_profile|\.?profile|modules?(?:\.sh)?|bash|sh|"
    r"setvars\.sh|set_?env\.sh|nvm\.sh|spack[\w.-]*|\S*venv\S*)$|^/(?:etc|usr|opt|cvmfs)/"
)
_PRINTF_FIELD = re.compile(r"%(?:(%)|(-?0?\d*)([sdi]))")
_SAFE_REGEX = re.compile(r"[\w .,:=/@#^$\-\[\]*+?()|<>\"';{}\\]*")  # of a regular expression: what Python takes alike
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
}  # fmt: skip
UNKNOWN = "$"  # begins what only a shell knows of a word
MOST_CHARACTERS = 200_000  # of a script, as of a job file
_MOST_LINES = 10_000  # of one command's output
Lines = list[str]
Options = dict[str, str]


def _cut(options: Options, words: list[str], lines: Lines) -> Lines | None:
    """The fields of lines that ``cut -d, -f2`` or ``-f2-3`` keeps."""
    sign, spec = options.get("-d", "\t"), re.fullmatch(r"(\d+)(-?)(\d*)", options.get("-f", ""))
    if spec is None:
        return None
    first, last = int(spec[1]), int(spec[3]) if spec[3] else None if spec[2] else int(spec[1])
    return [sign.join(line.split(sign)[first - 1 : last]) if sign in line else line for line in lines]


def _tr(options: Options, words: list[str], lines: Lines) -> Lines | None:
    """The lines after ``tr a-z A-Z`` or ``tr -d x``; None for character classes."""
    sets = [
        re.sub(r"(.)-(.)", lambda m: "".join(map(chr, range(ord(m[1]), ord(m[2]) + 1))), word.replace("\\n", "\n"))
        for word in words
    ]
    if any("[:" in word or "\\" in word for word in sets) or "-s" in options or "-c" in options:
        return None
    text = "".join(f"{line}\n" for line in lines)
    if "-d" in options and len(sets) == 1:
        text = re.sub(f"[{re.escape(sets[0])}]", "", text)
    elif len(sets) == 2 and sets[1]:
        text = text.translate({ord(old): sets[1][min(at, len(sets[1]) - 1)] for at, old in enumerate(sets[0])})
    else:
        return None
    return text.removesuffix("\n").split("\n")


def _sed(options: Options, words: list[str], lines: Lines) -> Lines | None:
    """The lines after ``sed s/a/b/g``; None for any other command of sed."""
    found = re.fullmatch(r"s([/|,#:@])((?:(?!\1).)*)\1((?:(?!\1).)*)\1(g?)", options.get("-e") or words[0])
    if found is None or not _SAFE_REGEX.fullmatch(found[2]) or "&" in found[3]:
        return None
    pattern = found[2]
    if not {"-E", "-r"} & options.keys():  # where ( and + mean themselves, and \( what ( means elsewhere
        pattern = re.sub(r"\\?[()+?|{}]", lambda one: one[0][1:] if len(one[0]) == 2 else f"\\{one[0]}", pattern)
    return [re.sub(pattern, found[3], line, count=0 if found[4] else 1) for line in lines]


def _awk(options: Options, words: list[str], lines: Lines) -> Lines | None:
    """The column of lines that ``awk '{print $2}'`` prints, or their number of columns; None for any other program."""
    found = re.fullmatch(r"\s*\{\s*print\s+(\$?)(\d+|NF)\s*;?\s*\}\s*", words[0])
    rows = [line.split(options.get("-F")) for line in lines]
    if found is None or (not found[1] and found[2] != "NF") or found[2] == "0" or len(options.get("-F", " ")) > 1:
        return None
    if not found[1]:
        return [str(len(row)) for row in rows]
    return [row[-1 if found[2] == "NF" else int(found[2]) - 1] for row in rows]


def _sort_key(line: Text) -> str:
    """The text by which a line is sorted, of a host its name; ValueError for one that only a shell knows."""
    if any(piece.unknown and piece.unknown.set_by != BATCH for piece in line):
        raise ValueError
    return Word(line)


def _sort(options: Options, words: list[str], lines: list[Text]) -> list[Text]:
    """The lines in order, by ``-u``, ``-n`` and ``-r`` of sort."""
    rows = {_sort_key(line): line for line in lines}.values() if "-u" in options else lines
    return sorted(
        rows, key=lambda row: int(_sort_key(row)) if "-n" in options else _sort_key(row), reverse="-r" in options
    )


# programs that change lines: their options, how many words before the files there are, whether they look into lines
_FILTERS: dict[str, tuple[str, int, Callable[[Options, list[str], Any], Any], bool]] = {
    "cut": ("d:f:s", 0, _cut, True), "tr": ("d", 9, _tr, True), "sed": ("eEr", 1, _sed, True),
    "awk": ("F:", 1, _awk, True), "head": ("n:", 0, lambda o, w, lines: lines[: int(o.get("-n", 10))], False),
    "tail": ("n:", 0, lambda o, w, lines: lines[-int(o.get("-n", 10)) :], False),
    "cat": ("", 0, lambda o, w, lines: lines, False), "tee": ("a", 9, lambda o, w, lines: lines, False),
    "wc": ("l", 0, lambda o, w, lines: [literal(str(len(lines)), "")] if o else None, False),
    "xargs": ("", 0, lambda o, w, lines: [" ".join(lines)], True), "sort": ("unr", 0, _sort, False),
    "uniq": ("", 0, lambda o, w, lines: [one for before, one in zip([None, *lines], lines, strict=False)
                                         if before is None or _sort_key(one) != _sort_key(before)], False),
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
    reader = _Shell(name, files or {}, given or {})
    reader.run_text(text)
    for written, inner in reader.written.items():  # a script that something else than a shell starts
        if written not in reader.script.files_read and not any(len(run.words) > 3 for run in reader.script.runs):
            reader.run_text(reader.script_of(inner))
    reader.script.files_read |= {one for one in reader.files_read if not one.endswith(ENDINGS)}
    reader.script.written = {path: reader.text_or_none(inner) or "" for path, inner in reader.written.items()}
    return reader.script


class _Shell(Interpreter):
    """The builtins of a shell, and programs that filter lines of text."""

    def builtin(self, name: str) -> Callable[[list[Word], Node], Status | None] | None:
        """The method for a builtin, or for a program whose output is computed; None for any other command."""
        found = getattr(self, f"_do_{ {'.': 'source', '[': 'test'}.get(name, name) }", None)
        if found is None and name in _FILTERS:
            found = functools.partial(self.run_filter, name)
        return found

    def _do_eval(self, words: list[Word], node: Node) -> None:
        self.run_text(self.script_of(intersperse((word.pieces for word in words), " ")), self.place(node))

    # --- conditions -------------------------------------------------------------------------------------------------

    def _run_test_command(self, node: Node) -> Status:
        def ask() -> bool | None:
            inner = node.named_children[0] if node.named_children else None
            if node.children[0].type == "[[":
                return None if inner is None else self._test_node_holds(inner)
            if node.children[0].type == "((":
                return None if inner is None else self._is_not_zero(inner)
            return self._test_words_hold([*self._words_of_test(node)])

        return self.ask_status(ask)

    def _do_test(self, words: list[Word], node: Node) -> Status:
        return self.ask_status(lambda: self._test_words_hold([word for word in words if word != "]"]))

    def _words_of_test(self, node: Node) -> Iterator[Word]:
        """The words of ``[ ... ]`` in order, whatever nodes the grammar made of them."""
        for child in node.children:
            if child.type in ("binary_expression", "unary_expression", "parenthesized_expression"):
                yield from self._words_of_test(child)
            elif child.type == "test_operator" or (not child.is_named and child.type not in "[]"):
                yield Word(literal(raw_text(child), ""))
            elif child.is_named:
                words = self.fields([child])
                for piece in () if words else self.pieces(child):
                    self.by_default |= piece.default
                    self.unset_names |= {piece.unset} - {""}
                yield from words

    def _test_words_hold(self, words: list[Word]) -> bool | None:
        """The answer of ``test``, with ``!``, ``-a``, ``-o`` and operators; None where it is not known."""
        for sign, decisive in (("-o", True), ("-a", False)):
            if sign in words[1:-1] and not (len(words) == 3 and words[1] == sign and words[0] in ("!", "(")):
                at = words.index(sign, 1)  # type: ignore[arg-type]
                return combine([self._test_words_hold(words[:at]), self._test_words_hold(words[at + 1 :])], decisive)
        if words[:1] == ["!"]:
            found_inside = self._test_words_hold(words[1:])
            return None if found_inside is None else not found_inside
        if len(words) == 2:
            return self._unary_test(str(words[0]), words[1].pieces)
        if len(words) == 1:
            if words[0] in ("-z", "-n") and words[0].unknown is None:
                return words[0] == "-z"
            return self._unary_test("-n", words[0].pieces)
        if len(words) == 3:
            right = words[2].pieces
            return self._binary_test(words[0].pieces, str(words[1]), right, None)
        return False if not words else None

    def _test_node_holds(self, node: Node) -> bool | None:
        """The answer of an expression inside of ``[[ ... ]]``; None where it is not known."""
        parts = [child for child in node.children if child.type not in ("(", ")")]
        if node.type == "parenthesized_expression":
            return self._test_node_holds(parts[0])
        if node.type == "unary_expression":
            operator, operand = raw_text(parts[0]), parts[-1]
            if operator == "!":
                found = self._test_node_holds(operand)
                return None if found is None else not found
            return self._unary_test(operator, self.text(operand))
        if node.type == "binary_expression" and len(parts) == 3:
            operator = raw_text(parts[1])
            if operator in ("&&", "||"):
                answers = [self._test_node_holds(parts[0]), self._test_node_holds(parts[2])]
                return combine(answers, operator == "||")
            if parts[0].type == "unary_expression" and parts[0].children[0].type == "!":  # which binds less
                same = self._binary_test(self.text(parts[0].children[-1]), operator, (), parts[2])
                return None if same is None else not same
            return self._binary_test(self.text(parts[0]), operator, (), parts[2])
        return self._unary_test("-n", self.text(node))

    def _unary_test(self, operator: str, text: Text) -> bool | None:
        """The answer of a unary operator; a variable that nobody set counts as empty, by default."""
        if operator == "-v":
            name = self.evaluate_text(text) or ""
            if self.missing_source and name not in self.variables:
                return None
            self.by_default |= name not in self.variables
            self.unset_names |= {name} - self.variables.keys()
            return name in self.variables
        if operator not in ("-z", "-n"):  # of files, which are not looked at: those that were given are there
            name = self.evaluate_text(text) or ""
            return True if operator in ("-f", "-e", "-r", "-s") and name.rpartition("/")[2] in self.files else None
        self.unset_names |= {p.unset for p in text if p.unset}
        if variable := unset_variable(text):
            self.by_default = True
            self.unset_names.add(variable)
            return operator == "-z"
        value = self.evaluate_text(text)
        if value is None:
            visible = any(p.text or (p.unknown and p.unknown.nonempty) for p in text)
            return (operator == "-n") if visible else None
        return (value == "") == (operator == "-z")

    def _binary_test(self, left: Text, operator: str, right: Text, pattern: Node | None) -> bool | None:
        empty = raw_text(pattern) in ('""', "''") if pattern is not None else self.evaluate_text(right) == ""
        if empty and operator in ("==", "=", "!="):  # as -z and -n
            return self._unary_test("-n" if operator == "!=" else "-z", left)
        first = self.evaluate_text(left)
        if pattern is not None and operator in ("==", "=", "!="):
            wanted = self.pattern(pattern)
            if first is None or wanted is None:
                return None
            found = pattern_matches(wanted, first)
            return None if found is None else found == (operator != "!=")
        second = self.evaluate_text(right if pattern is None else self.text(pattern))
        if first is None or second is None:
            return None
        if operator in _COMPARISONS:
            numbers = [self.number_of(text) for text in (first, second)]
            return None if numbers[0] is None or numbers[1] is None else _COMPARISONS[operator](numbers[0], numbers[1])
        if operator in ("=", "==", "!="):
            return (first == second) == (operator != "!=")
        if operator == "=~":
            return self._match_regex(second, first)
        return {"<": first < second, ">": first > second}.get(operator)

    def _match_regex(self, pattern: str, text: str) -> bool | None:
        """Whether a regular expression is found, its groups in BASH_REMATCH; None where Python may differ from bash."""
        pattern = re.sub(r"\[:(\w+):\]", lambda one: CLASSES.get(one[1], one[0]), pattern)
        if not re.fullmatch(r"[\w^$.\-/:, \[\]()|*+?\\{}=]*", pattern) or re.search(r"\)[*+{]|[*+?}][*+{]", pattern):
            return None
        try:
            found = re.search(pattern, text[:1000])
        except re.error:
            return None
        if found:
            groups = [found[0], *(group or "" for group in found.groups())]
            self.variables["BASH_REMATCH"] = [literal(group, "", self.by_default) for group in groups]
        return found is not None

    # --- variables --------------------------------------------------------------------------------------------------

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
        if adds and variable in self.integers and isinstance(before, tuple):
            self.assign(variable, (*before, Piece("+"), *text))
        elif adds and isinstance(before, list):
            self.assign(variable, [(before[0] if before else ()) + text, *before[1:]])
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
                    inner = self._expand_range(child, child.start_byte + found.end(), child.end_byte, r".")
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
        variable, key = raw_text(parts[0]), self.text_or_none(self.text(parts[1])) if len(parts) > 1 else None
        before = self.variables.get(variable)
        number = key if isinstance(before, dict) or key is None else self.number_of(key)
        if key is None:
            self.assign(variable, unknown_text(f"${variable}", "", self.place(name)))
        elif isinstance(before, list) and isinstance(number, int) and -len(before) <= number <= len(before):
            at = number if number >= 0 else len(before) + number
            self.assign(variable, [*before[:at], text, *before[at + 1 :]])
        elif not before and number == 0 and not isinstance(before, dict):
            self.assign(variable, [text])
        else:
            rows = enumerate(before) if isinstance(before, list) else ()
            table = before if isinstance(before, dict) else {str(at): one for at, one in rows}
            self.assign(variable, {**table, key if number is None else str(number): text})

    def _run_declaration_command(self, node: Node) -> None:
        kind = raw_text(node.children[0])
        options = "".join(raw_text(child)[1:] for child in node.named_children if raw_text(child).startswith("-"))
        local = bool(self.locals) and kind in ("local", "declare", "typeset") and "g" not in options
        for child in node.named_children:
            stated = child.type == "variable_assignment"
            named = child.child_by_field_name("name") if stated else child
            words = [] if stated or child.type in ("variable_name", "word") else self.fields([child])
            name = str(words[0]).partition("=")[0] if words else "" if named is None else raw_text(named)
            if not re.fullmatch(r"\w+", name):
                continue
            if local:
                self.locals[-1].setdefault(name, self.variables.get(name))
                if not stated and not words:
                    self.variables.pop(name, None)
            if "i" in options:
                self.integers.add(name)
            value = child.child_by_field_name("value") if stated else None
            if "n" in options and kind != "export" and value is not None:
                self.references[name] = self.text_or_none(self.text(value)) or name
            elif stated:
                self._run_variable_assignment(child)
            if words and "=" in words[0]:  # declare "$name=value", which the grammar takes for no assignment
                self.assign(name, words[0].rest(len(name) + 1).pieces)
            if "A" in options:
                self.variables.setdefault(name, {})
            if kind == "readonly" or ("r" in options and not self.locals):
                self.readonly.add(name)
            if kind == "export" and "n" in options:
                self.exported.discard(name)
            elif kind == "export" or "x" in options:
                self.exported.add(name)

    def _run_unset_command(self, node: Node) -> None:
        for word in self.fields(node.named_children):
            name, _, key = word.removesuffix("]").partition("[")
            value = self.variables.get(name)
            rows = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
            if key and rows:
                self.variables[name] = {str(at): text for at, text in rows if str(at) != key}
            else:
                self.variables.pop(self.references.get(name, name), None)

    def run_filter(self, name: str, words: list[Word], node: Node) -> None:
        """Writes the output of a program that filters its input or a file, where both are known."""
        spelling, before, change, looks = _FILTERS[name]
        target = str(words[-1]) if name == "sed" and any(word.startswith("-i") for word in words) else ""
        words = [word for word in words if not word.startswith("-i")] if target else words
        found: list[Any] | None = None
        plain = [re.sub(r"^-(\d+)$", r"-n\1", word) for word in words if word.unknown is None]
        try:
            pairs, operands = getopt.gnu_getopt(plain, spelling)
        except getopt.GetoptError:
            pairs, operands = [], ["", *[""] * before]
        lines = self.input if len(operands) <= before else self.lines_of_file(operands[before])
        if name == "tee":
            for path in operands:
                self.write(path, self.input, "-a" in dict(pairs))
        known = [self.evaluate_text(line) for line in lines or ()] if looks else []
        if lines is not None and len(plain) == len(words) and None not in known and len(operands) >= min(before, 1):
            with suppress(ValueError, IndexError):  # a number that is none, a column that is not there
                found = change(dict(pairs), operands, known if looks else lines)
        place, default = self.place(node), any(p.default for line in lines or () for p in line)
        if found is not None:
            found = [literal(one, place, default) if isinstance(one, str) else one for one in found]
        if target:
            self.write(target, found)
        elif found is None:
            self.emit(None, words, node)
        elif self.output is not None:
            self.output += [piece for line in found for piece in (*line, Piece("\n", place))]

    # --- builtins ---------------------------------------------------------------------------------------------------

    def _do_set(self, words: list[Word], node: Node) -> None:
        self.exports_all |= any(word in ("-a", "-o") and "allexport" in [*words, "allexport"] for word in words[:1])
        if words and words[0] in ("+a",):
            self.exports_all = False
        inner = words[1:] if words and words[0] == "--" else words
        if words and (words[0] == "--" or not words[0].startswith(("-", "+"))):
            lone = inner[0].unknown if len(inner) == 1 and inner[0].may_split else None
            unknown = lone is not None and not lone.fork and self.arguments is None  # what getopt makes of arguments
            self.arguments = None if unknown else [word.pieces for word in inner]

    def _do_shift(self, words: list[Word], node: Node) -> Status:
        count = int(words[0]) if words and words[0].isdecimal() else int(not words)
        if self.arguments is None:
            self.shifted += count
            return Status(True)
        if count <= len(self.arguments):
            self.arguments = self.arguments[count:]
            return Status(True)
        return Status(False)

    def _do_let(self, words: list[Word], node: Node) -> None:
        for word in words:
            self.number_of(str(word))

    def _do_read(self, words: list[Word], node: Node) -> Status:
        try:
            pairs, operands = getopt.getopt([str(word) for word in words], "ersa:d:i:n:N:p:t:u:")
        except getopt.GetoptError:
            pairs, operands = [("-d", "")], [str(word) for word in words]
        options = dict(pairs)
        array, names = options.get("-a"), [*operands, *([options["-a"]] if "-a" in options else [])] or ["REPLY"]
        if self.input is None or {"-n", "-N", "-u"} & options.keys() or options.get("-d"):
            for name in names:
                self.variables[name] = unknown_text(f"${name}", name, self.place(node))
            return Status(None)
        if "-d" in options:  # all lines, and no end of them
            self.input = [tuple(p for line in self.input for p in (*line, Piece("\n")))]
        held = bool(self.input)
        pieces = self.input.pop(0) if self.input else ()
        given = split_words((p._replace(quoted=False) for p in pieces), self.separators())
        if array:
            self.assign(array, [word.pieces for word in given])
            return Status(held)
        for at, name in enumerate(names):
            parts = given[at:] if at == len(names) - 1 else given[at : at + 1]
            self.assign(name, intersperse((one.pieces for one in parts), " "))
        return Status(held)

    def _do_mapfile(self, words: list[Word], node: Node) -> None:
        name = str(words[-1]) if words and not words[-1].startswith("-") else "MAPFILE"
        unknown = Unknown(f"${{{name}[@]}}", "", self.place(node), is_list=True)
        self.assign(name, [(Piece(unknown=unknown),)] if self.input is None else list(self.input))

    _do_readarray = _do_mapfile

    def _do_getopts(self, words: list[Word], node: Node) -> Status:
        if len(words) > 1:
            self.variables[str(words[1])] = unknown_text(f"${words[1]}", "", self.place(node))
            self.variables["OPTARG"] = unknown_text("$OPTARG", "", self.place(node))
        return Status(False, True) if self.arguments is None else Status(None)

    def _do_echo(self, words: list[Word], node: Node) -> None:
        end: tuple[Piece, ...] = (Piece("\n", self.place(node)),)
        while words and words[0] in ("-n", "-e", "-ne", "-en"):
            end = () if "n" in words[0] else end
            if "e" in words[0]:
                words = [Word(p._replace(text=p.text.replace("\\n", "\n").replace("\\t", "\t")) for p in word.pieces)
                         for word in words]  # fmt: skip
            words = words[1:]
        if self.output is not None:
            self.output += intersperse((word.pieces for word in words), " ") + end

    def _do_printf(self, words: list[Word], node: Node) -> None:
        if words[:1] == ["-v"] and len(words) > 2:
            self.assign(str(words[1]), self._format(words[2:], node))
        elif self.output is not None and words:
            self.output += self._format(words[1:] if words[0] == "--" else words, node)

    def _format(self, words: list[Word], node: Node) -> Text:
        form = words[0].replace("\\n", "\n").replace("\\t", "\t")
        wanted, rest, place = _PRINTF_FIELD.findall(form), [*words[1:]], self.place(node)
        known = all(word.unknown is None for word in rest)
        if (
            words[0].unknown
            or "%" in _PRINTF_FIELD.sub("", form)
            or "\\" in form
            or (not known and form.strip() != "%s")
        ):
            return unknown_text("$(printf)", "", place)
        count = sum(1 for percent, *_ in wanted if not percent)
        found: list[Piece] = []
        while True:
            at = 0
            for match in _PRINTF_FIELD.finditer(form):
                found += literal(form[at : match.start()], place)
                at = match.end()
                word = None if match[1] or not rest else rest.pop(0)
                if match[1] or word is None:
                    found += literal("%" if match[1] else "0" if match[3] != "s" else "", place)
                elif match[2]:
                    number = self.number_of(str(word)) if match[3] != "s" else str(word)
                    found += literal(
                        f"%{match[2]}{match[3]}" % number if number is not None else "0", place, word.default
                    )
                else:
                    found += word.pieces
            found += literal(form[at:], place)
            if not rest or not count:
                return tuple(found)

    def _do_basename(self, words: list[Word], node: Node) -> None:
        name = "" if not words else PurePosixPath(str(words[0])).name
        ending = str(words[1]) if len(words) > 1 else ""
        self.emit(name.removesuffix(ending) if name != ending else name, words, node)

    def _do_dirname(self, words: list[Word], node: Node) -> None:
        self.emit(str(PurePosixPath(str(words[0])).parent) if words else "", words, node)

    def _do_seq(self, words: list[Word], node: Node) -> None:
        numbers = [int(word) for word in words if re.fullmatch(r"-?\d{1,9}", word)]
        first, step = numbers[0] if len(numbers) > 1 else 1, numbers[1] if len(numbers) > 2 else 1
        known = len(numbers) == len(words) and numbers and step
        row = range(first, numbers[-1] + (1 if step > 0 else -1), step) if known else range(0)
        self.emit("\n".join(map(str, row)) if known and len(row) <= _MOST_LINES else None, words, node)

    def _do_expr(self, words: list[Word], node: Node) -> None:
        number = self.number_of(" ".join(words)) if all(word.unknown is None for word in words) else None
        self.emit(None if number is None else str(number), words, node)

    def _do_envsubst(self, words: list[Word], node: Node) -> None:
        """Writes its input with the values of those variables that its word lists, or of all that are exported."""
        lines, place = [self.evaluate_text(line) for line in self.input or ()], self.place(node)
        if self.input is None or None in lines or self.output is None:
            self.emit(None, words, node)
            return
        listed = re.findall(r"\w+", words[0]) if words else ()
        for part in re.split(r"(\$\{\w+\}|\$\w+)", "".join(f"{line}\n" for line in lines)):
            name = part.strip("${}") if part[:1] == "$" else ""
            value = self.lookup(name, place) if name in self.exported or name not in self.variables else ()
            wanted = name and (name in listed or not listed)
            self.output += value if wanted and isinstance(value, tuple) else literal(part, place)

    def _do_bc(self, words: list[Word], node: Node) -> None:
        lines = [self.evaluate_text(line) for line in self.input or ()]
        number = self.number_of(lines[0]) if len(lines) == 1 and lines[0] and not words else None
        self.emit(None if number is None else str(number), words, node)

    def _do_scontrol(self, words: list[Word], node: Node) -> None:
        """Writes as many lines as the job has nodes, by ``scontrol show hostnames``."""
        found = self.lookup("SLURM_NNODES", "")
        nodes = self.evaluate_text(found) if words[:2] == ["show", "hostnames"] and isinstance(found, tuple) else None
        if nodes and nodes.isdecimal() and self.output is not None:
            name = Piece(unknown=Unknown("$(scontrol)", "", self.place(node)))
            self.output += [name, Piece("\n", self.place(node))] * int(nodes)
        else:
            self.emit(None, words, node)

    def _do_xargs(self, words: list[Word], node: Node) -> None:
        """Starts a program with its input among its words."""
        mark = next((word[2:] or "{}" for word in words if word.startswith("-I")), "")
        lines = [*split_words(p for line in self.input or () for p in (*line, Piece(" ", quoted=False)))]
        if self.input is None:
            lines = [Word(unknown_text("$(xargs)", "", self.place(node), quoted=False))]
        at = next((k for k, word in enumerate(words) if not word.startswith("-") and word != mark), len(words))
        inner = words[at:]
        if not inner:
            self.run_filter("xargs", [], node)
        elif mark and len(lines) == 1:
            self.start([lines[0] if word == mark else word for word in inner], node)
        else:
            self.start([*inner, *lines], node)

    def _do_cp(self, words: list[Word], node: Node) -> None:
        """Copies a file whose text is known."""
        paths = [str(word) for word in words if not word.startswith("-")]
        if len(paths) == 2:
            self.write(paths[1], self.lines_of_file(paths[0]))

    _do_mv = _do_cp

    def _do_source(self, words: list[Word], node: Node) -> None:
        path = str(words[0]) if words else ""
        inner = next((child for child in node.named_children if child.type == "process_substitution"), None)
        lines = self.input if path == "/dev/stdin" else None if inner is None else self.lines_from(inner)
        if lines is not None:
            self.run_text(self.text_of(lines), self.place(node))
        elif (name := PurePosixPath(path).name) in self.files:
            before = dict(self.variables)
            self.run_sourced(name, path, words[1:])
            for variable in [*self.variables] if words[0].default else ():  # another file may be read instead
                if self.variables[variable] != before.get(variable):
                    self.mark_default(variable)
        else:
            self.note_missing(path)
            if path and not _ENVIRONMENT_FILE.search(path):
                self.invalidate_variables(name, self.place(node))
