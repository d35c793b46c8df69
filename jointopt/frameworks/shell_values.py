"""What words of a script come to: expansions and sums, over the tree of tree-sitter's grammar of bash."""

from __future__ import annotations

import abc
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from jointopt.core.errors import JobError
from jointopt.frameworks.launchers import NODEFILE
from jointopt.frameworks.shell_words import (
    END,
    Piece,
    Text,
    Unknown,
    Word,
    literal,
    merge_pieces,
    remove_affix,
    resolve_forks,
    split_lines,
    split_words,
    substitute,
    unknown_text,
)

MOST_OF_A_VALUE = 2**16  # characters of a variable
MOST_EXPANDED = 2**20  # characters that variables are replaced by, in all
_SHELL_VARIABLES = {"BASH", "BASH_SOURCE", "BASH_VERSION", "HOSTNAME", "LINENO", "OSTYPE", "PPID",
                    "PWD", "RANDOM", "SECONDS", "SHLVL", "UID", "EUID", "HOSTTYPE", "MACHTYPE"}  # fmt: skip
_MOST_WORDS = 1_000  # of braces
_MOST_NESTED = 100  # nodes of a tree inside of each other that are looked at for names
_NAME_NODES = ("variable_name", "word")
MOST_DEEP = 60  # statements, words and sums inside of each other
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "&": lambda a, b: a & b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1), "|": lambda a, b: a | b,
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1), "^": lambda a, b: a ^ b,
    "**": lambda a, b: pow(a, b, 2**64) if b >= 0 else 0,
    "<<": lambda a, b: a << (b % 64), ">>": lambda a, b: a >> (b % 64),
    "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b), "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b), "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b),
}  # fmt: skip
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "e": "\x1b"}
Value = Text | list[Text] | dict[str, Text]


_BRACES = re.compile(r"(?<!\$)\{([^{}\s$]*,[^{}\s$]*|-?\d+\.\.-?\d+)\}")


class Fork(Exception):
    """A value depends on a fork whose branch is not chosen yet."""

    def __init__(self, fork: int, ways: int) -> None:
        super().__init__()
        self.fork, self.ways = fork, ways


class Status(NamedTuple):
    """Whether a command succeeds, None where only a shell knows; ``default``: unless a variable is set from outside."""

    success: bool | None
    default: bool = False


_NON_ASCII, _NON_ASCII_PLACEHOLDER = (
    re.compile(r"[^\x00-\x7f]"),
    re.compile(r"_jointopt_u([0-9a-f]{1,5}|10[0-9a-f]{4})_"),
)


@functools.cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def parse(text: str) -> Node:
    """The root of a script's tree, whose nodes are read by `raw_text`.

    The grammar sees a stand-in of ASCII for every other character: its scanner asks C's isalpha about code points,
    which ends the process by a segmentation fault from 128 on.
    """
    return _parser().parse(_NON_ASCII.sub(lambda one: f"_jointopt_u{ord(one[0]):x}_", text).encode()).root_node


def written(raw: bytes) -> str:
    """The text of the script for bytes of its tree."""
    return _NON_ASCII_PLACEHOLDER.sub(lambda one: chr(int(one[1], 16)), raw.decode())


def outside_quotes(text: str) -> str:
    """The text of a script without its comments, quotations and heredocs."""
    root = parse(text)
    said, nodes = [], [root]
    while nodes:
        node = nodes.pop()
        if node.type in ("comment", "string", "raw_string", "heredoc_body"):
            said.append((node.start_byte, node.end_byte))
        else:
            nodes += node.children
    ends = [0, *(end for place in sorted(said) for end in place), None]
    return written(b" ".join((root.text or b"")[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True)))


class Expander(abc.ABC):
    """The variables of a shell, and the expansion of words by them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.variables: dict[str, Value] = {"IFS": literal(" \t\n", "")}  # as every shell starts
        self.exported: set[str] = set()
        self.exports_all = False
        self.arguments: list[Text] | None = None  # None: those of the script, which nobody gave
        self.choices: dict[int, int] = {}  # the branch of each fork that is read
        self.script_variables: set[str] = set()  # variables that the script sets anywhere
        self.by_default = False  # whether a value that was looked at is a default
        self.unset_names: set[str] = set()  # variables that a test found not to be set
        self.undecided_variable = ""  # the first variable for whose want a test has no answer
        self.place_override = ""  # of a text inside of a word
        self.line = 1  # of the word that is read
        self.depth = self.expanded = self.shifted = 0
        self.output: list[Piece] | None = None  # of a command whose output is a word
        self.references: dict[str, str] = {}  # names that stand for other variables (declare -n)
        self.readonly: set[str] = set()  # variables that keep their values (readonly)
        self.integers: set[str] = set()  # variables whose values are sums (declare -i)
        self.status: bool | None = True  # whether the last command succeeded
        self.missing_source = ""  # a file that was sourced and not given, and may set any variable
        self.given: set[str] = set()  # variables that the caller states
        self.batch_variables: set[str] = set()  # and a batch system
        self.written: dict[str, Text] = {}  # files that the script itself writes
        self.files_read: set[str] = set()  # files whose lines a command reads
        self.nodefile: list[Text] = []  # lines of the file of nodes of PBS
        self.placeholders: list[str] = []  # variables that stand for values inside of another shell's text
        self.files: dict[str, str] = {}  # texts of other scripts by their names

    @abc.abstractmethod
    def command_output(self, *nodes: Node) -> Text:
        """The output of commands where it is known, else one unknown piece."""

    def assign(self, name: str, value: Value) -> None:
        """Sets a variable, unless it is readonly. JobError for a value that is too long."""
        texts = [value] if isinstance(value, tuple) else value if isinstance(value, list) else list(value.values())
        length = sum(max(len(p.text), 1) for text in texts for p in text)  # an empty piece takes memory too
        if length > MOST_OF_A_VALUE:
            raise JobError(
                f"line {self.line}: the value of {name[:40]} has {length:,} characters; expected at most "
                f"{MOST_OF_A_VALUE:,}: take out what doubles it, or import the command that the script starts."
            )
        name = self.references.get(name, name)
        if name in self.readonly:
            return
        if name in self.integers and isinstance(value, tuple) and (text := self.evaluate_text(value)) is not None:
            number = self.number_of(text)
            value = (
                value if number is None else literal(str(number), next((p.place for p in value), ""), self.by_default)
            )
        self.variables[name] = merge_pieces(value) if isinstance(value, tuple) else value
        if self.exports_all:
            self.exported.add(name)

    def lines_of_file(self, path: str | None) -> list[Text] | None:
        """The lines of a file that the script wrote, or that was given; None where they are not known."""
        if path in ("/dev/null", NODEFILE):
            return ([*self.nodefile] or None) if path == NODEFILE else []
        if path is None or not (path in self.written or PurePosixPath(path).name in self.files):
            return None
        if path not in self.written:
            self.files_read.add(PurePosixPath(path).name)
        return split_lines(self.written.get(path) or literal(self.files.get(PurePosixPath(path).name, ""), path))

    def write(self, path: str, lines: Sequence[Text] | None, adds: bool = False) -> None:
        """Keeps the text of a file that the script writes; forgets it where the lines are not known (None)."""
        name = PurePosixPath(path).name
        if path.startswith("/dev/"):
            return
        if lines is None:
            if self.written.pop(path, None) is not None or not name.endswith(".log"):
                self.files.pop(name, None)
            return
        text = tuple(piece for line in lines for piece in (*line, Piece("\n", line[0].place if line else "")))
        self.written[path] = (self.written.get(path, ()) if adds else ()) + text
        self.files[name] = self.text_of(split_lines(self.written[path]))

    def text_of(self, lines: Sequence[Text]) -> str:
        """The text of a script that stands in lines."""
        return "".join(f"{self.script_of(line)}\n" for line in lines)

    def emit(self, text: str | None, words: Sequence[Word], node: Node) -> None:
        """Adds text to the output of a command substitution; an unknown piece for None or unknown words."""
        if self.output is None:
            return
        if text is None or any(word.unknown for word in words):
            name = " ".join(raw_text(node).split())[:40]
            self.output.append(Piece(unknown=Unknown(f"$({name})", "", self.place(node), is_list=True)))
        else:
            self.output += literal(f"{text}\n", self.place(node), any(word.default for word in words))

    def script_of(self, pieces: Text) -> str:
        """The text of a script that stands in pieces; unknown ones and defaults become variables, which keep them."""
        parts, first = [], next((piece.place for piece in pieces if piece.text), "")
        for piece in pieces:
            plain = not piece.unknown and not piece.default
            if plain and (piece.place == first or not re.fullmatch(r"[\w\s.,:/=+-]+", piece.text)):
                parts.append(piece.text)
            else:
                name = f"__{len(self.placeholders)}"
                self.placeholders.append(name)
                self.variables[name] = (piece,)
                self.exported.add(name)
                parts.append(f"${{{name}}}")
        return "".join(parts)

    def separators(self) -> str:
        """The characters of IFS, at which values split into words."""
        signs = self.variables.get("IFS")
        plain = self.text_or_none(signs) if isinstance(signs, tuple) else None
        return " \t\n" if plain is None else plain

    def ask_status(self, ask: Callable[[], bool | None]) -> Status:
        """The answer to a test as a status, with whether a default decides it."""
        before, self.by_default = self.by_default, False
        try:
            return Status(ask(), self.by_default)
        finally:
            self.by_default = before

    def pattern(self, node: Node) -> str:
        """The glob pattern of a node, in which quoted characters are literal."""
        if node.type in ("string", "raw_string", "ansi_c_string"):
            return re.sub(r"([*?\[])", r"[\1]", self.evaluate_text(self.text(node)) or "")
        if node.type == "concatenation":
            return "".join(self.pattern(child) for child in node.children)
        if node.children:
            return self.evaluate_text(self.text(node)) or ""
        return re.sub(r"\\(.)", r"[\1]", raw_text(node))

    # --- words ------------------------------------------------------------------------------------------------------

    def place(self, node: Node) -> str:
        """File and line of a node."""
        return self.place_override or f"{self.name}:{node.start_point[0] + 1}"

    def evaluate_text(self, text: Text) -> str | None:
        """The text where all of it is known, else None; notes defaults. Fork where it depends on one."""
        parts = []
        for piece in resolve_forks(text, self.choices):
            self.by_default |= piece.default
            if piece.unknown is not None:
                if piece.unknown.fork:
                    raise Fork(piece.unknown.fork, len(piece.unknown.ways))
                self.undecided_variable = self.undecided_variable or piece.unknown.variable
                return None
            parts.append(" " if piece.ends_word else piece.text)
        return "".join(parts)

    def text_or_none(self, text: Text) -> str | None:
        """The text where all of it is known by the branches that are read, else None."""
        pieces = [*resolve_forks(text, self.choices)]
        return None if any(p.unknown for p in pieces) else "".join(" " if p.ends_word else p.text for p in pieces)

    def _for_each_branch(self, expand: Callable[[], Text]) -> Text:
        """The result of an expansion; where it depends on a fork, the results by branch."""
        try:
            return expand()
        except Fork as found:
            ways = []
            for at in range(found.ways):
                self.choices[found.fork] = at
                ways.append(self._for_each_branch(expand))
            del self.choices[found.fork]
            place = next((p.place for way in ways for p in way), "")
            name = next((p.unknown.name for way in ways for p in way if p.unknown), f"fork {found.fork}")
            return (Piece(place=place, unknown=Unknown(name, "", place, found.fork, tuple((way,) for way in ways))),)

    def fields(self, nodes: Iterable[Node]) -> list[Word]:
        """The words of nodes after brace expansion, expansion and word splitting."""
        found: list[Word] = []
        for node in nodes:
            braces = node.type in ("brace_expression", "concatenation") and _BRACES.search(raw_text(node))
            if braces and self.depth < MOST_DEEP - 4:
                before, after = raw_text(node)[: braces.start()], raw_text(node)[braces.end() :]
                first, dots, last = braces[1].partition("..")
                row = range(int(first), int(last) + 1) if dots and int(first) <= int(last) else range(0)
                row = range(int(first), int(last) - 1, -1) if dots and not row else row
                outer, self.place_override = self.place_override, self.place(node)
                self.depth += 1
                if len(row) > _MOST_WORDS:
                    found.append(Word(unknown_text(raw_text(node)[:40], "", self.place_override, is_list=True)))
                for part in [*map(str, row[:_MOST_WORDS])] if dots else braces[1].split(","):
                    inner = parse(f"_ {before}{part}{after}").named_children[0].named_children[1:]
                    found += self.fields(inner)
                self.depth -= 1
                self.place_override = outer
            else:
                found += split_words(self.pieces(node), self.separators())
        return found

    def text(self, node: Node) -> Text:
        """The text of a node that is not split into words."""
        return tuple(Piece(" ", p.place) if p.ends_word else p._replace(quoted=True) for p in self.pieces(node))

    def pieces(self, node: Node) -> Text:
        """The pieces of a word, those in quotes marked so."""
        self.line = node.start_point[0] + 1
        if self.depth > MOST_DEEP:
            return unknown_text(raw_text(node)[:40], "", self.place(node))
        self.depth += 1
        try:
            method = getattr(self, f"_expand_{node.type}", None)
            if method is not None:
                found: Text = method(node)
                return found
            if node.type in ("concatenation", "command_name", "array"):
                return tuple(piece for child in node.children for piece in self.pieces(child))
            return literal(re.sub(r"\\(.)", r"\1", raw_text(node).replace("\\\n", "")), self.place(node))
        finally:
            self.depth -= 1

    def _expand_string(self, node: Node) -> Text:
        inner = self._expand_range(node, node.start_byte + 1, node.end_byte - 1, r'[$`"\\]')
        whole = re.search(r"\$\*|\$\{\w+\[\*\]", raw_text(node)) is not None  # one word, however many elements
        quoted = tuple((Piece(" ", p.place) if whole else p) if p.ends_word else p._replace(quoted=True) for p in inner)
        lists = any(
            re.fullmatch(r"\$@|\$\{(?:@|\w+\[@\])(?!:?-).*\}", raw_text(child)) for child in node.named_children
        )
        return quoted if quoted or lists else literal("", self.place(node))

    _expand_translated_string = _expand_string

    def _expand_raw_string(self, node: Node) -> Text:
        return literal(raw_text(node)[1:-1], self.place(node))

    def _expand_ansi_c_string(self, node: Node) -> Text:
        text = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), raw_text(node)[2:-1])
        return literal(text, self.place(node))

    def _expand_range(self, node: Node, start: int, end: int, escaped: str) -> Text:
        """The pieces of a range of bytes: the expanded nodes inside, and the plain text between them."""
        raw, base = node.text or b"", node.start_byte
        inside = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "string",
                  "raw_string", "ansi_c_string", "concatenation")  # fmt: skip
        children = [c for c in node.children if c.type in inside and start <= c.start_byte and c.end_byte <= end]
        found: list[Piece] = []
        at = start
        for child in [*children, None]:
            # the grammar counts a line's end before an expansion as a part of it
            until = (
                end
                if child is None
                else child.start_byte + len(child.text or b"") - len((child.text or b"").lstrip(b"\\ \n\t"))
            )
            plain = written(raw[at - base : until - base])
            plain = re.sub(rf"\\({escaped})", r"\1", plain.replace("\\\n", ""))
            found += literal(plain, self.place(node)) if plain else ()
            if child is not None:
                found += self.pieces(child)
                at = child.end_byte
        return tuple(found)

    def _expand_simple_expansion(self, node: Node) -> Text:
        return self._expand_parameter(raw_text(node).rpartition("$")[2], node)

    def _expand_arithmetic_expansion(self, node: Node) -> Text:
        def expand() -> Text:
            before, self.by_default = self.by_default, False
            whole = len(node.named_children) == 1 and not node.has_error
            number = self.evaluate(node.named_children[0]) if whole else None
            default, self.by_default = self.by_default, before or self.by_default
            if number is None:
                return unknown_text(raw_text(node)[:60], "", self.place(node), quoted=False)
            return literal(str(number), self.place(node), default)

        return self._for_each_branch(expand)

    def _expand_command_substitution(self, node: Node) -> Text:
        inner = [child for child in node.named_children if child.type != "comment"]
        if not inner:
            return ()
        return self._for_each_branch(lambda: self.command_output(*inner))

    def _expand_process_substitution(self, node: Node) -> Text:
        return unknown_text(raw_text(node)[:60], "", self.place(node))

    def _expand_parameter(self, name: str, node: Node) -> Text:
        """The pieces of a variable or an argument, as they stand outside of quotes."""
        place = self.place(node)
        if name in ("@", "*"):
            if self.arguments is None:
                return unknown_text(f"${name}", name, place, is_list=True, quoted=False)
            return self._join_elements(self.arguments)
        if name == "#":  # of arguments that nobody gave: none, by default
            return literal(str(len(self.arguments or ())), place, self.arguments is None)
        if name == "0":
            return literal(self.name or "bash", place)
        if name == "?" and self.status:
            return literal("0", place)
        if name in ("?", "$", "!", "-", "_"):
            return unknown_text(f"${name}", "", place, quoted=False)
        value = self.lookup(name, place)
        if isinstance(value, list):
            value = value[0] if value else ()
        if isinstance(value, dict):
            value = value.get("0", ())
        self._count_expanded(value)
        return tuple(p._replace(quoted=False) for p in value)

    def lookup(self, name: str, place: str) -> Value:
        """The value of a variable or an argument; unknown where nobody set it, or empty where the script itself may."""
        if name.isdecimal() and self.arguments is not None:
            return self.arguments[int(name) - 1] if int(name) <= len(self.arguments) else ()
        name = self.references.get(name, name)
        found = self.variables.get(name)
        if found is not None:
            return found
        if name.isdecimal():
            number = str(int(name) + self.shifted)
            return self.variables.get(number) or unknown_text(f"${number}", number, place)
        if name in _SHELL_VARIABLES:
            return unknown_text(f"${name}", "", place, set_by="the shell", nonempty=True)
        if self.missing_source and name not in self.given:
            return unknown_text(f"${name}", name, place, set_by=self.missing_source)
        if name in self.script_variables:  # in a branch that is not taken
            return (Piece(default=True, place=place, unset=name),)
        return unknown_text(f"${name}", name, place)

    def _join_elements(self, texts: Sequence[Text]) -> Text:
        self._count_expanded(tuple(p for text in texts for p in text))
        found: list[Piece] = []
        for at, text in enumerate(texts):
            found += [END] if at else []
            found += [p._replace(quoted=False) for p in text] or [Piece(quoted=True)]
        return tuple(found)

    def _count_expanded(self, text: Text) -> None:
        self.expanded += sum(max(len(p.text), 1) for p in text)
        if self.expanded > MOST_EXPANDED:
            raise JobError(
                f"line {self.line}: variables stand for more than {MOST_EXPANDED:,} characters up to here; expected "
                "less: import the command that the script starts."
            )

    def _expand_expansion(self, node: Node) -> Text:
        def expand() -> Text:
            before, self.by_default = self.by_default, False
            found = self._expand_braced(node)
            default, self.by_default = self.by_default, before or self.by_default
            return tuple(p._replace(default=True) for p in found) if default else found

        return self._for_each_branch(expand)

    def _expand_braced(self, node: Node) -> Text:
        """The pieces of ``${...}``, with its operator applied."""
        parts = [child for child in node.children if child.type not in ("${", "}")]
        unknown = unknown_text(raw_text(node)[:60], "", self.place(node), quoted=False)
        sign = raw_text(parts[0]) if parts and not parts[0].is_named else ""
        parts = parts[1:] if sign in ("#", "!") and len(parts) > 1 else parts
        if not parts:
            return unknown
        named, operator = parts[0], raw_text(parts[1]) if len(parts) > 1 else ""
        name = (
            raw_text(named.named_children[0]) if named.type == "subscript" and named.named_children else raw_text(named)
        )
        index = named.named_children[1] if named.type == "subscript" and len(named.named_children) > 1 else None
        if sign == "!" and index is None:
            target = self.evaluate_text(self._expand_parameter(name, node))
            return self._expand_parameter(target, node) if target and re.fullmatch(r"\w+", target) else unknown
        if name in ("@", "*"):
            unknown = (unknown[0]._replace(unknown=Unknown(raw_text(node)[:60], "", self.place(node), is_list=True)),)
        texts, value = self._elements_or_value(name, index, node)
        if sign:
            return self._size_or_keys(sign, name, texts, value, node) or unknown
        found = None
        if texts is not None:
            found = self._apply_to_elements(node, name, texts, operator, parts)
        elif value is not None:
            found = self._apply_operator(node, name, value, operator, parts) if operator else value
        return unknown if found is None else found

    def _apply_to_elements(
        self, node: Node, name: str, texts: list[Text], operator: str, parts: list[Node]
    ) -> Text | None:  # fmt: skip
        """The pieces of ``${X[@]}``, with its operator applied to each element, or a slice of them."""
        if operator in (":-", "-", ":+", "+"):
            return self._operand(node, parts[1]) if bool(texts) == ("+" in operator) else self._join_elements(texts)
        if not operator:
            return self._join_elements(texts)
        if any(_is_list(text) for text in texts):
            return None
        if operator == ":":
            numbers = [self.evaluate(part) for part in parts[2:] if part.type != ":"]
            whole = [literal(self.name, ""), *texts] if name in ("@", "*") else texts
            if not numbers or numbers[0] is None or None in numbers:
                return None
            start = numbers[0] if numbers[0] >= 0 else max(len(whole) + numbers[0], 0)
            return self._join_elements(whole[start : None if len(numbers) < 2 else start + (numbers[1] or 0)])
        plain = [self.evaluate_text(text) for text in texts]
        changed = [None if one is None else self._apply_text_operator(node, one, operator, parts) for one in plain]
        if None in changed:
            return None
        return self._join_elements([literal(one or "", self.place(node)) for one in changed])

    def _elements_or_value(self, name: str, index: Node | None, node: Node) -> tuple[list[Text] | None, Text | None]:
        """(elements, None) of ``${X[@]}``, or (None, value) of one element; both None where the index is not known."""
        if index is None:
            if name in ("@", "*"):
                return self.arguments, self._expand_parameter(name, node)
            return None, self._expand_parameter(name, node)
        found = self.lookup(name, self.place(node))
        if raw_text(index) in ("@", "*"):
            if isinstance(found, dict):
                return list(found.values()), None
            if isinstance(found, list):
                return found, None
            if len(found) == 1 and found[0].unknown and not found[0].unknown.fork:
                lone = found[0].unknown._replace(name=raw_text(node), is_list=True)
                return None, (Piece(quoted=False, unknown=lone),)
            return [found] if any(p.text or p.unknown for p in found) else [], None
        key = self.evaluate_text(self.text(index))
        number = None if key is None or isinstance(found, dict) else self.number_of(key)
        value: Text | None = None
        if isinstance(found, dict):
            value = None if key is None else found.get(key.strip("\"'"))
            if key is not None and value is None:
                value = found.get(str(self.number_of(key)), ())
        elif isinstance(found, list) and number is not None and not any(_is_list(text) for text in found):
            at = number if number >= 0 else len(found) + number
            value = found[at] if 0 <= at < len(found) else ()
        elif isinstance(found, tuple) and number == 0:
            value = found
        return None, None if value is None else tuple(p._replace(quoted=False) for p in value)

    def _size_or_keys(
        self, sign: str, name: str, texts: list[Text] | None, value: Text | None, node: Node
    ) -> Text | None:  # fmt: skip
        if sign == "!":
            found = self.variables.get(name)
            keys = list(found) if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else []
            return self._join_elements([literal(str(key), self.place(node)) for key in keys])
        if texts is not None:
            if any(_is_list(text) for text in texts):
                return None
            return literal(str(len(texts)), self.place(node), any(p.default for text in texts for p in text))
        plain = None if value is None else self.evaluate_text(value)
        return None if plain is None else literal(str(len(plain)), self.place(node))

    def _operand(self, node: Node, after: Node, end: Node | None = None) -> Text:
        """The pieces behind an operator of ``${...}``, up to another operator or its end."""
        return self._expand_range(node, after.end_byte, end.start_byte if end else node.end_byte - 1, r"[$`\"\\}]")

    def _apply_operator(self, node: Node, name: str, value: Text, operator: str, parts: list[Node]) -> Text | None:
        absent = bool(unset_variable(value)) or (
            bool(value) and all(p.default and not p.text and not p.unknown for p in value)
        )
        if operator in (":-", "-", ":=", "="):
            argument = name.isdecimal() and 0 < int(name) <= len(self.arguments or [])
            unset = absent or (not value and name not in self.variables and not argument)
            if not (unset or (":" in operator and self.evaluate_text(value) == "")):
                return value
            found = tuple(p._replace(default=p.default or absent) for p in self._operand(node, parts[1]))
            found = found or (Piece(default=absent, quoted=False),)
            if "=" in operator:
                self.assign(name, found)
            return tuple(p._replace(quoted=False) for p in found)
        if operator in (":+", "+"):
            if absent:
                return (Piece(default=True, quoted=False),)
            return () if self.evaluate_text(value) == "" else self._operand(node, parts[1])
        if operator in (":?", "?"):
            return value
        plain = self.evaluate_text(value)
        if plain is None:
            return None
        pieces = self._apply_text_operator(node, plain, operator, parts)
        default = any(p.default for p in value)
        return None if pieces is None else (Piece(pieces, value[0].place if value else "", default, False),)

    def _apply_text_operator(self, node: Node, text: str, operator: str, parts: list[Node]) -> str | None:
        """The text after an operator that cuts, replaces or changes the case of letters."""
        if operator in ("#", "##", "%", "%%"):
            pattern = self.evaluate_text(self._operand(node, parts[1])) if len(parts) > 2 else ""
            return None if pattern is None else remove_affix(text, operator, pattern)
        if operator in ("/", "//", "/#", "/%"):
            slash = next((part for part in parts[2:] if part.type == "/"), None)
            pattern = self.evaluate_text(self._operand(node, parts[1], slash))
            by = self.evaluate_text(self._operand(node, slash)) if slash else ""
            return None if pattern is None or by is None else substitute(text, operator, pattern, by)
        if operator in ("^^", ",,", "^", ","):
            whole = text.upper() if "^" in operator else text.lower()
            return whole if len(operator) == 2 else whole[:1] + text[1:]
        if operator == ":":
            numbers = [self.evaluate(part) for part in parts[2:] if part.type != ":"]
            if None in numbers or not numbers:
                return None
            start = numbers[0] if (numbers[0] or 0) >= 0 else max(len(text) + (numbers[0] or 0), 0)
            length = numbers[1] if len(numbers) > 1 else None
            return text[start:] if length is None else text[start : (start or 0) + length if length >= 0 else length]
        return None

    # --- sums -------------------------------------------------------------------------------------------------------

    def number_of(self, text: str) -> int | None:
        """The integer that bash reads in a text: 8, 0x10, 2#101, an expression; None where it is not known."""
        text = text.strip()
        if re.fullmatch(r"[-+]?\d{1,19}", text):
            sign, digits = text[0] == "-", text.lstrip("+-")
            number = (
                int(digits, 8) if len(digits) > 1 and digits[0] == "0" and not set(digits) & set("89") else int(digits)
            )
            return -number if sign else number
        if text == "" or self.depth > MOST_DEEP - 10 or len(text) > 1_000:
            return 0 if text == "" else None
        root = parse(f"(({text}))")
        inner = root.named_children[0] if root.named_children else None
        if root.has_error or inner is None or inner.type != "compound_statement" or len(inner.named_children) != 1:
            return None
        self.depth += 4
        try:
            return self.evaluate(inner.named_children[0])
        finally:
            self.depth -= 4

    def evaluate(self, node: Node) -> int | None:
        """The value of an arithmetic expression in 64 bits; None where it is not known."""
        self.depth += 1
        try:
            if self.depth > MOST_DEEP:
                return None
            found = self._evaluate_arithmetic(node)
            return None if found is None else (found + 2**63) % 2**64 - 2**63
        except ZeroDivisionError:
            return None
        finally:
            self.depth -= 1

    def _evaluate_arithmetic(self, node: Node) -> int | None:
        parts = [child for child in node.children if child.type not in ("(", ")")]
        if node.type == "parenthesized_expression":
            return self.evaluate(parts[0]) if len(parts) == 1 else None
        if node.type == "binary_expression" and len(parts) == 3:
            return self._evaluate_binary(parts[0], raw_text(parts[1]), parts[2])
        if node.type == "unary_expression" and len(parts) == 2:
            operator, number = raw_text(parts[0]), self.evaluate(parts[1])
            if operator in ("++", "--") and number is not None:
                return self._assign_number(parts[1], number + (1 if operator == "++" else -1))
            return None if number is None else {"-": -number, "!": int(not number), "~": ~number}.get(operator, number)
        if node.type == "postfix_expression":
            number = self.evaluate(parts[0])
            if number is not None:
                self._assign_number(parts[0], number + (1 if raw_text(parts[1]) == "++" else -1))
            return number
        if node.type == "ternary_expression":
            asked = self.evaluate(parts[0])
            return None if asked is None else self.evaluate(parts[2] if asked else parts[4])
        if node.type == "variable_assignment":
            return self._evaluate_binary(parts[0], "=", parts[-1])
        if node.type in ("variable_name", "word") and re.fullmatch(r"[A-Za-z_]\w*", raw_text(node)):
            text = self.evaluate_text(self._expand_parameter(raw_text(node), node))
            return None if text is None else self.number_of(text)
        if node.type == "number" and re.fullmatch(r"\d+#\w+", raw_text(node)):
            base, _, digits = raw_text(node).partition("#")
            return int(digits, int(base)) if 2 <= int(base) <= 36 else None
        if node.type == "number" and re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", raw_text(node)):
            return int(raw_text(node), 16)
        if node.type == "number":
            return self.number_of(raw_text(node)) if re.fullmatch(r"-?\d{1,19}", raw_text(node)) else None
        text = self.evaluate_text(self.text(node)) if node.type in (
            "simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "string", "concatenation",
            "subscript", "raw_string",
        ) else None  # fmt: skip
        if node.type == "subscript":
            _, value = self._elements_or_value(raw_text(node.named_children[0]), node.named_children[1], node)
            text = None if value is None else self.evaluate_text(value)
        lone = (
            node.parent is None or node.parent.type in ("arithmetic_expansion", "subscript") or node.type == "subscript"
        )
        return None if text is None or not (lone or re.fullmatch(r"\s*-?\w*\s*", text)) else self.number_of(text)

    def _evaluate_binary(self, left: Node, operator: str, right: Node) -> int | None:
        if operator.endswith("=") and operator not in ("==", "!=", "<=", ">="):
            number, before = self.evaluate(right), self.evaluate(left) if len(operator) > 1 else 0
            if number is None or before is None:
                self.variables[raw_text(left)] = unknown_text(f"${raw_text(left)}", "", self.place(left))
                return None
            return self._assign_number(
                left, _ARITHMETIC[operator[:-1]](before, number) if len(operator) > 1 else number
            )
        first, second = self.evaluate(left), self.evaluate(right)
        if operator in ("&&", "||"):
            return combine([None if one is None else one != 0 for one in (first, second)], operator == "||")
        if first is None or second is None or operator not in _ARITHMETIC:
            return None
        return _ARITHMETIC[operator](first, second)

    def _assign_number(self, node: Node, number: int) -> int:
        name = self.references.get(raw_text(node), raw_text(node))
        self.variables[name] = literal(str(number), self.place(node), self.by_default)
        return number


def combine(answers: Sequence[bool | None], decisive: bool) -> bool | None:
    """The answer of ``||`` (decisive: True) or ``&&`` (False) to answers of which some are not known."""
    return decisive if decisive in answers else None if None in answers else not decisive


def unset_variable(text: Text) -> str:
    """The name of the variable that a text consists of, where nobody set it; else blank."""
    lone = text[0].unknown if len(text) == 1 else None
    return lone.variable if lone and not lone.fork and not lone.set_by else ""


def raw_text(node: Node) -> str:
    """The text of a node as the script writes it."""
    return written(node.text or b"")


def _is_list(text: Text) -> bool:
    return any(p.unknown and p.unknown.is_list for p in text)


def command_name(node: Node) -> str:
    """The first word of a command as the script writes it; blank of another node."""
    if node.type == "redirected_statement":
        node = node.named_children[0]
    name = node.child_by_field_name("name") if node.type == "command" else None
    return "" if name is None else raw_text(name)


def branches_of(node: Node) -> list[tuple[list[Node], list[Node]]]:
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
    rest = [branch for one in after for branch in branches_of(one)]
    return [(conditions, body), *rest]


def assigned_names(nodes: Iterable[Node]) -> set[str]:
    """The names of variables that statements set, also those of loops and of ``read``; not those of a command alone."""
    found: set[str] = set()
    waiting = [(node, 0) for node in nodes]
    while waiting:
        node, depth = waiting.pop()
        inside = node.named_children
        if node.type in ("variable_assignment", "for_statement"):
            named = node.child_by_field_name("name") or node.child_by_field_name("variable")
            found |= set() if named is None else {raw_text(named).partition("[")[0]}
        elif node.type in ("binary_expression", "postfix_expression") and node.children[0].type in _NAME_NODES:
            operator = next((c.type for c in node.children if not c.is_named), "")
            if operator in ("++", "--") or (operator.endswith("=") and operator not in ("==", "!=", "<=", ">=", "=")):
                found.add(raw_text(node.children[0]))
        elif node.type == "command":
            if command_name(node) in ("read", "getopts"):
                found |= {name for child in inside[1:] if re.fullmatch(r"[A-Za-z_]\w*", name := raw_text(child))}
            inside = [child for child in inside if child.type != "variable_assignment"]
        if depth < _MOST_NESTED:
            waiting += [(child, depth + 1) for child in inside]
    return found
