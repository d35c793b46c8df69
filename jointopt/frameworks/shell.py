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
from jointopt.frameworks.shell_statements import ENDINGS, Statements
from jointopt.frameworks.shell_values import Answer, free_variable, raw_text
from jointopt.frameworks.shell_words import (
    CLASSES,
    Piece,
    Script,
    Text,
    Unknown,
    Word,
    literal,
    pattern_matches,
    words_of,
)

# files that set up an environment, and none of the variables of a script
_SETS_UP = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|mamba\.sh|\.?bashrc|\.?bash_profile|\.?profile|modules?(?:\.sh)?|bash|sh|"
    r"setvars\.sh|set_?env\.sh|nvm\.sh|spack[\w.-]*|\S*venv\S*)$|^/(?:etc|usr|opt|cvmfs)/"
)
_FORMATTED = re.compile(r"%(?:(%)|(-?0?\d*)([sdi]))")
_SAFE = re.compile(r"[\w .,:=/@#^$\-\[\]*+?()|<>\"';{}\\]*")  # of a regular expression: what Python takes alike
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
}  # fmt: skip
UNKNOWN = "$"  # begins what only a shell knows of a word
MOST_CHARACTERS = 200_000  # of a script, as of a job file
_MOST_LINES = 10_000  # of one command's output
Lines = list[str]
Options = dict[str, str]


def _cut(options: Options, words: list[str], lines: Lines) -> Lines | None:
    """``cut -d, -f2`` and ``-f2-3``."""
    sign, spec = options.get("-d", "\t"), re.fullmatch(r"(\d+)(-?)(\d*)", options.get("-f", ""))
    if spec is None:
        return None
    first, last = int(spec[1]), int(spec[3]) if spec[3] else None if spec[2] else int(spec[1])
    return [sign.join(line.split(sign)[first - 1 : last]) if sign in line else line for line in lines]


def _tr(options: Options, words: list[str], lines: Lines) -> Lines | None:
    """``tr a-z A-Z`` and ``tr -d x``, without classes."""
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
    """``sed s/a/b/g``."""
    found = re.fullmatch(r"s([/|,#:@])((?:(?!\1).)*)\1((?:(?!\1).)*)\1(g?)", options.get("-e") or words[0])
    if found is None or not _SAFE.fullmatch(found[2]) or "&" in found[3]:
        return None
    pattern = found[2]
    if not {"-E", "-r"} & options.keys():  # where ( and + mean themselves, and \( what ( means elsewhere
        pattern = re.sub(r"\\?[()+?|{}]", lambda one: one[0][1:] if len(one[0]) == 2 else f"\\{one[0]}", pattern)
    return [re.sub(pattern, found[3], line, count=0 if found[4] else 1) for line in lines]


def _awk(options: Options, words: list[str], lines: Lines) -> Lines | None:
    """``awk '{print $2}'``."""
    found = re.fullmatch(r"\s*\{\s*print\s+(\$?)(\d+|NF)\s*;?\s*\}\s*", words[0])
    rows = [line.split(options.get("-F")) for line in lines]
    if found is None or (not found[1] and found[2] != "NF") or found[2] == "0" or len(options.get("-F", " ")) > 1:
        return None
    if not found[1]:
        return [str(len(row)) for row in rows]
    return [row[-1 if found[2] == "NF" else int(found[2]) - 1] for row in rows]


def _named(line: Text) -> str:
    """The text of a line, or the node that it is; ValueError for any other that only a shell knows."""
    if any(piece.unknown and piece.unknown.set_by != BATCH for piece in line):
        raise ValueError
    return Word(line)


def _sort(options: Options, words: list[str], lines: list[Text]) -> list[Text]:
    """``sort``, with ``-u``, ``-n`` and ``-r``."""
    rows = {_named(line): line for line in lines}.values() if "-u" in options else lines
    return sorted(rows, key=lambda row: int(_named(row)) if "-n" in options else _named(row), reverse="-r" in options)


def _uniq(options: Options, words: list[str], lines: list[Text]) -> list[Text]:
    return [line for at, line in enumerate(lines) if not at or _named(line) != _named(lines[at - 1])]


# programs that change lines: their options, how many words before the files there are, whether they look into lines
_FILTERS: dict[str, tuple[str, int, Callable[[Options, list[str], Any], Any], bool]] = {
    "cut": ("d:f:s", 0, _cut, True), "tr": ("d", 9, _tr, True), "sed": ("eEr", 1, _sed, True),
    "awk": ("F:", 1, _awk, True), "head": ("n:", 0, lambda o, w, lines: lines[: int(o.get("-n", 10))], False),
    "tail": ("n:", 0, lambda o, w, lines: lines[-int(o.get("-n", 10)) :], False),
    "cat": ("", 0, lambda o, w, lines: lines, False), "tee": ("a", 9, lambda o, w, lines: lines, False),
    "wc": ("l", 0, lambda o, w, lines: [literal(str(len(lines)), "")] if o else None, False),
    "xargs": ("", 0, lambda o, w, lines: [" ".join(lines)], True), "sort": ("unr", 0, _sort, False),
    "uniq": ("", 0, _uniq, False),
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
            reader.run_text(reader.script_of(inner))
    reader.script.read |= {one for one in reader.looked_into if not one.endswith(ENDINGS)}
    reader.script.written = {path: reader.plain(inner) or "" for path, inner in reader.written.items()}
    return reader.script


class _Reader(Statements):
    """The builtins of a shell, and programs that change lines of text."""

    def builtin(self, name: str) -> Callable[[list[Word], Node], Answer | None] | None:
        """What a shell does itself by that name, or a program whose output is followed."""
        found = getattr(self, f"_do_{ {'.': 'source', '[': 'test'}.get(name, name) }", None)
        if found is None and name in _FILTERS:
            found = functools.partial(self.filtered, name)
        return found

    def _do_eval(self, words: list[Word], node: Node) -> None:
        pieces = tuple(piece for at, word in enumerate(words) for piece in ((Piece(" "),) * bool(at) + word.pieces))
        self.run_text(self.script_of(pieces), self.place(node))

    # --- conditions -------------------------------------------------------------------------------------------------

    def _run_test_command(self, node: Node) -> Answer:
        def ask() -> bool | None:
            inner = node.named_children[0] if node.named_children else None
            if node.children[0].type == "[[":
                return None if inner is None else self._test(inner)
            if node.children[0].type == "((":
                number = None if inner is None else self.number(inner)
                return None if number is None else number != 0
            return self._holds_of([*self._test_words(node)])

        return self.answered(ask)

    def _do_test(self, words: list[Word], node: Node) -> Answer:
        return self.answered(lambda: self._holds_of([word for word in words if word != "]"]))

    def _test_words(self, node: Node) -> Iterator[Word]:
        """The words of ``[ ... ]`` in order, whatever the grammar took them for."""
        for child in node.children:
            if child.type in ("binary_expression", "unary_expression", "parenthesized_expression"):
                yield from self._test_words(child)
            elif child.type == "test_operator" or (not child.is_named and child.type not in "[]"):
                yield Word(literal(raw_text(child), ""))
            elif child.is_named:
                words = self.fields([child])
                for piece in () if words else self.pieces(child):
                    self.by_default |= piece.default
                    self.absent |= {piece.absent} - {""}
                yield from words

    def _holds_of(self, words: list[Word]) -> bool | None:
        """The answer of ``test``: ``!``, ``-a``, ``-o``, and tests of one and two words."""
        for sign, wanted in (("-o", True), ("-a", False)):
            if sign in words[1:-1] and not (len(words) == 3 and words[1] == sign and words[0] in ("!", "(")):
                at = words.index(sign, 1)  # type: ignore[arg-type]
                found = [self._holds_of(words[:at]), self._holds_of(words[at + 1 :])]
                return wanted if wanted in found else None if None in found else not wanted
        if words[:1] == ["!"]:
            found_inside = self._holds_of(words[1:])
            return None if found_inside is None else not found_inside
        if len(words) == 2:
            return self._one(str(words[0]), words[1].pieces)
        if len(words) == 1:
            if words[0] in ("-z", "-n") and words[0].unknown is None:
                return words[0] == "-z"
            return self._one("-n", words[0].pieces)
        if len(words) == 3:
            right = words[2].pieces
            return self._two(words[0].pieces, str(words[1]), right, None)
        return False if not words else None

    def _test(self, node: Node) -> bool | None:
        """The answer of a tree inside of ``[[ ... ]]``."""
        parts = [child for child in node.children if child.type not in ("(", ")")]
        if node.type == "parenthesized_expression":
            return self._test(parts[0])
        if node.type == "unary_expression":
            operator, operand = raw_text(parts[0]), parts[-1]
            if operator == "!":
                found = self._test(operand)
                return None if found is None else not found
            return self._one(operator, self.text(operand))
        if node.type == "binary_expression" and len(parts) == 3:
            operator = raw_text(parts[1])
            if operator in ("&&", "||"):
                answers = [self._test(parts[0]), self._test(parts[2])]
                wanted = operator == "||"
                return wanted if wanted in answers else None if None in answers else not wanted
            if parts[0].type == "unary_expression" and parts[0].children[0].type == "!":  # which binds less
                same = self._two(self.text(parts[0].children[-1]), operator, (), parts[2])
                return None if same is None else not same
            return self._two(self.text(parts[0]), operator, (), parts[2])
        return self._one("-n", self.text(node))

    def _one(self, operator: str, text: Text) -> bool | None:
        """A test of one word; a variable that nobody gave counts as empty, by default."""
        if operator == "-v":
            name = self.known(text) or ""
            if self.unread and name not in self.variables:
                return None
            self.by_default |= name not in self.variables
            self.absent |= {name} - self.variables.keys()
            return name in self.variables
        if operator not in ("-z", "-n"):  # of files, which are not looked at: those that were given are there
            name = self.known(text) or ""
            return True if operator in ("-f", "-e", "-r", "-s") and self.has_file(name) else None
        self.absent |= {p.absent for p in text if p.absent}
        if variable := free_variable(text):
            self.by_default = True
            self.absent.add(variable)
            return operator == "-z"
        value = self.known(text)
        if value is None:
            visible = any(p.text or (p.unknown and p.unknown.filled) for p in text)
            return (operator == "-n") if visible else None
        return (value == "") == (operator == "-z")

    def _two(self, left: Text, operator: str, right: Text, pattern: Node | None) -> bool | None:
        empty = raw_text(pattern) in ('""', "''") if pattern is not None else self.known(right) == ""
        if empty and operator in ("==", "=", "!="):  # as -z and -n
            return self._one("-n" if operator == "!=" else "-z", left)
        first = self.known(left)
        if pattern is not None and operator in ("==", "=", "!="):
            wanted = self.pattern(pattern)
            if first is None or wanted is None:
                return None
            found = pattern_matches(wanted, first)
            return None if found is None else found == (operator != "!=")
        second = self.known(right if pattern is None else self.text(pattern))
        if first is None or second is None:
            return None
        if operator in _COMPARED:
            numbers = [self.number_of(text) for text in (first, second)]
            return None if numbers[0] is None or numbers[1] is None else _COMPARED[operator](numbers[0], numbers[1])
        if operator in ("=", "==", "!="):
            return (first == second) == (operator != "!=")
        if operator == "=~":
            return self._matches(second, first)
        return {"<": first < second, ">": first > second}.get(operator)

    def _matches(self, pattern: str, text: str) -> bool | None:
        """Whether an expression is found in a text, with its groups in BASH_REMATCH; None for one of another kind."""
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
        number = key if isinstance(before, dict) or key is None else self.number_of(key)
        if key is None:
            self.assign(variable, (Piece(unknown=Unknown(f"${variable}", "", self.place(name))),))
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
                self.references[name] = self.plain(self.text(value)) or name
            elif stated:
                self._run_variable_assignment(child)
            for word in words[:1]:
                self.declare(word)
            if "A" in options:
                self.variables.setdefault(name, {})
            if kind == "readonly" or ("r" in options and not self.locals):
                self.fixed.add(name)
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

    def filtered(self, name: str, words: list[Word], node: Node) -> None:
        """Writes the lines that a program makes of its input or of a file, where both are known."""
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
        known = [self.known(line) for line in lines or ()] if looks else []
        if lines is not None and len(plain) == len(words) and None not in known and len(operands) >= min(before, 1):
            with suppress(ValueError, IndexError):  # a number that is none, a column that is not there
                found = change(dict(pairs), operands, known if looks else lines)
        place, default = self.place(node), any(p.default for line in lines or () for p in line)
        made = (
            None if found is None else [literal(one, place, default) if isinstance(one, str) else one for one in found]
        )
        if target:
            self.write(target, made)
        elif made is None:
            self.say(None, words, node)
        elif self.output is not None:
            self.output += [piece for line in made for piece in (*line, Piece("\n", place))]

    def declare(self, word: Word) -> None:
        """``declare "$name=value"``: what the grammar takes for no assignment."""
        name, equals, _ = word.partition("=")
        if re.fullmatch(r"\w+", name) and equals:
            self.assign(name, word.rest(len(name) + 1).pieces)

    # --- builtins ---------------------------------------------------------------------------------------------------

    def _do_set(self, words: list[Word], node: Node) -> None:
        self.exports_all |= any(word in ("-a", "-o") and "allexport" in [*words, "allexport"] for word in words[:1])
        if words and words[0] in ("+a",):
            self.exports_all = False
        inner = words[1:] if words and words[0] == "--" else words
        if words and (words[0] == "--" or not words[0].startswith(("-", "+"))):
            lone = inner[0].unknown if len(inner) == 1 and inner[0].many else None
            unknown = lone is not None and not lone.fork and self.arguments is None  # what getopt makes of arguments
            self.arguments = None if unknown else [word.pieces for word in inner]

    def _do_shift(self, words: list[Word], node: Node) -> Answer:
        count = int(words[0]) if words and words[0].isdecimal() else int(not words)
        if self.arguments is None:
            self.shifted += count
            return Answer(True)
        if count <= len(self.arguments):
            self.arguments = self.arguments[count:]
            return Answer(True)
        return Answer(False)

    def _do_let(self, words: list[Word], node: Node) -> None:
        for word in words:
            self.number_of(str(word))

    def _do_read(self, words: list[Word], node: Node) -> Answer:
        try:
            pairs, operands = getopt.getopt([str(word) for word in words], "ersa:d:i:n:N:p:t:u:")
        except getopt.GetoptError:
            pairs, operands = [("-d", "")], [str(word) for word in words]
        options = dict(pairs)
        array, names = options.get("-a"), [*operands, *([options["-a"]] if "-a" in options else [])] or ["REPLY"]
        if self.input is None or {"-n", "-N", "-u"} & options.keys() or options.get("-d"):
            for name in names:
                self.variables[name] = (Piece(unknown=Unknown(f"${name}", name, self.place(node))),)
            return Answer(None)
        if "-d" in options:  # all lines, and no end of them
            self.input = [tuple(p for line in self.input for p in (*line, Piece("\n")))]
        held = bool(self.input)
        pieces = self.input.pop(0) if self.input else ()
        given = words_of((p._replace(quoted=False) for p in pieces), self.separators())
        if array:
            self.assign(array, [word.pieces for word in given])
            return Answer(held)
        for at, name in enumerate(names):
            parts = given[at:] if at == len(names) - 1 else given[at : at + 1]
            self.assign(name, tuple(p for k, one in enumerate(parts) for p in ((Piece(" "),) * bool(k) + one.pieces)))
        return Answer(held)

    def _do_mapfile(self, words: list[Word], node: Node) -> None:
        name = str(words[-1]) if words and not words[-1].startswith("-") else "MAPFILE"
        unknown = Unknown(f"${{{name}[@]}}", "", self.place(node), is_list=True)
        self.assign(name, [(Piece(unknown=unknown),)] if self.input is None else list(self.input))

    _do_readarray = _do_mapfile

    def _do_getopts(self, words: list[Word], node: Node) -> Answer:
        if len(words) > 1:
            self.variables[str(words[1])] = (Piece(unknown=Unknown(f"${words[1]}", "", self.place(node))),)
            self.variables["OPTARG"] = (Piece(unknown=Unknown("$OPTARG", "", self.place(node))),)
        return Answer(False, True) if self.arguments is None else Answer(None)

    def _do_echo(self, words: list[Word], node: Node) -> None:
        end: tuple[Piece, ...] = (Piece("\n", self.place(node)),)
        while words and words[0] in ("-n", "-e", "-ne", "-en"):
            end = () if "n" in words[0] else end
            if "e" in words[0]:
                words = [Word(p._replace(text=p.text.replace("\\n", "\n").replace("\\t", "\t")) for p in word.pieces)
                         for word in words]  # fmt: skip
            words = words[1:]
        if self.output is not None:
            self.output += [p for at, w in enumerate(words) for p in ((Piece(" "),) * bool(at) + w.pieces)]
            self.output += end

    def _do_printf(self, words: list[Word], node: Node) -> None:
        if words[:1] == ["-v"] and len(words) > 2:
            self.assign(str(words[1]), self._formatted(words[2:], node))
        elif self.output is not None and words:
            self.output += self._formatted(words[1:] if words[0] == "--" else words, node)

    def _formatted(self, words: list[Word], node: Node) -> Text:
        form = words[0].replace("\\n", "\n").replace("\\t", "\t")
        wanted, rest, place = _FORMATTED.findall(form), [*words[1:]], self.place(node)
        known = all(word.unknown is None for word in rest)
        if words[0].unknown or "%" in _FORMATTED.sub("", form) or "\\" in form or (not known and form.strip() != "%s"):
            return (Piece(unknown=Unknown("$(printf)", "", place)),)
        count = sum(1 for percent, *_ in wanted if not percent)
        found: list[Piece] = []
        while True:
            at = 0
            for match in _FORMATTED.finditer(form):
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
        self.say(name.removesuffix(ending) if name != ending else name, words, node)

    def _do_dirname(self, words: list[Word], node: Node) -> None:
        self.say(str(PurePosixPath(str(words[0])).parent) if words else "", words, node)

    def _do_seq(self, words: list[Word], node: Node) -> None:
        numbers = [int(word) for word in words if re.fullmatch(r"-?\d{1,9}", word)]
        first, step = numbers[0] if len(numbers) > 1 else 1, numbers[1] if len(numbers) > 2 else 1
        known = len(numbers) == len(words) and numbers and step
        row = range(first, numbers[-1] + (1 if step > 0 else -1), step) if known else range(0)
        self.say("\n".join(map(str, row)) if known and len(row) <= _MOST_LINES else None, words, node)

    def _do_expr(self, words: list[Word], node: Node) -> None:
        number = self.number_of(" ".join(words)) if all(word.unknown is None for word in words) else None
        self.say(None if number is None else str(number), words, node)

    def _do_envsubst(self, words: list[Word], node: Node) -> None:
        """Its input with the values of variables, of those in its word or of all that are exported."""
        lines, place = [self.known(line) for line in self.input or ()], self.place(node)
        if self.input is None or None in lines or self.output is None:
            self.say(None, words, node)
            return
        listed = re.findall(r"\w+", words[0]) if words else ()
        for part in re.split(r"(\$\{\w+\}|\$\w+)", "".join(f"{line}\n" for line in lines)):
            name = part.strip("${}") if part[:1] == "$" else ""
            value = self.looked_up(name, place) if name in self.exported or name not in self.variables else ()
            wanted = name and (name in listed or not listed)
            self.output += value if wanted and isinstance(value, tuple) else literal(part, place)

    def _do_bc(self, words: list[Word], node: Node) -> None:
        lines = [self.known(line) for line in self.input or ()]
        number = self.number_of(lines[0]) if len(lines) == 1 and lines[0] and not words else None
        self.say(None if number is None else str(number), words, node)

    def _do_scontrol(self, words: list[Word], node: Node) -> None:
        """``scontrol show hostnames``: as many lines as the job has nodes."""
        found = self.looked_up("SLURM_NNODES", "")
        nodes = self.known(found) if words[:2] == ["show", "hostnames"] and isinstance(found, tuple) else None
        if nodes and nodes.isdecimal() and self.output is not None:
            name = Piece(unknown=Unknown("$(scontrol)", "", self.place(node)))
            self.output += [name, Piece("\n", self.place(node))] * int(nodes)
        else:
            self.say(None, words, node)

    def _do_xargs(self, words: list[Word], node: Node) -> None:
        """A program with its input among its words."""
        mark = next((word[2:] or "{}" for word in words if word.startswith("-I")), "")
        lines = [*words_of(p for line in self.input or () for p in (*line, Piece(" ", quoted=False)))]
        if self.input is None:
            lines = [Word((Piece(quoted=False, unknown=Unknown("$(xargs)", "", self.place(node))),))]
        at = next((k for k, word in enumerate(words) if not word.startswith("-") and word != mark), len(words))
        inner = words[at:]
        if not inner:
            self.filtered("xargs", [], node)
        elif mark and len(lines) == 1:
            self.start([lines[0] if word == mark else word for word in inner], node)
        else:
            self.start([*inner, *lines], node)

    def _do_cp(self, words: list[Word], node: Node) -> None:
        """A copy of a file whose text is known."""
        paths = [str(word) for word in words if not word.startswith("-")]
        if len(paths) == 2:
            self.write(paths[1], self.lines_of_file(paths[0]))

    _do_mv = _do_cp

    def _do_source(self, words: list[Word], node: Node) -> None:
        path = str(words[0]) if words else ""
        made = next((child for child in node.named_children if child.type == "process_substitution"), None)
        lines = self.input if path == "/dev/stdin" else None if made is None else self.lines_from(made)
        if lines is not None:
            self.run_text(self.text_of(lines), self.place(node))
        elif (name := PurePosixPath(path).name) in self.files:
            before = dict(self.variables)
            self.run_sourced(name, path, words[1:])
            for variable in [*self.variables] if words[0].default else ():  # another file may be read instead
                if self.variables[variable] != before.get(variable):
                    self.mark_default(variable)
        else:
            self.miss(path)
            if path and not _SETS_UP.search(path):
                self.unsettle(name, self.place(node))


def is_filter(name: str) -> bool:
    """Whether a program changes lines of text."""
    return name in _FILTERS and name != "xargs"
