"""What words of a script come to: expansions, tests and sums, over the tree of tree-sitter's grammar of bash."""

from __future__ import annotations

import abc
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from jointopt.core.errors import JobError
from jointopt.frameworks.shell_words import (
    END,
    Piece,
    Text,
    Unknown,
    Word,
    cut_off,
    decided,
    literal,
    merged,
    pattern_matches,
    replaced,
    words_of,
)

MOST_OF_A_VALUE = 2**16  # characters of a variable
MOST_EXPANDED = 2**20  # characters that variables are replaced by, in all
_MOST_NESTED = 100  # nodes of a tree inside of each other that are looked at for names
_NAMED = ("variable_name", "word")
MOST_DEEP = 60  # statements, words and sums inside of each other
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b,
}  # fmt: skip
_SUMS: dict[str, Callable[[int, int], int]] = {
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


class Fork(Exception):
    """A value hangs on a fork whose branch is not chosen yet."""

    def __init__(self, fork: int, ways: int) -> None:
        super().__init__()
        self.fork, self.ways = fork, ways


class Answer(NamedTuple):
    """Whether a condition holds, None where only a shell knows; ``default``: a variable from outside may say not."""

    holds: bool | None
    default: bool = False


_FOREIGN, _STAND_IN = re.compile(r"[^\x00-\x7f]"), re.compile(r"_jointopt_u([0-9a-f]{1,5}|10[0-9a-f]{4})_")


@functools.cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def parse(text: str) -> Node:
    """The root of a script's tree, whose nodes are read by `raw_text`.

    The grammar sees a stand-in of ASCII for every other character: its scanner asks C's isalpha about code points,
    which ends the process by a segmentation fault from 128 on.
    """
    return _parser().parse(_FOREIGN.sub(lambda one: f"_jointopt_u{ord(one[0]):x}_", text).encode()).root_node


def written(raw: bytes) -> str:
    """Bytes of the tree as the script has them."""
    return _STAND_IN.sub(lambda one: chr(int(one[1], 16)), raw.decode())


class Values(abc.ABC):
    """The variables of a shell, and what words come to by them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.variables: dict[str, Value] = {}
        self.exported: set[str] = set()
        self.exports_all = False
        self.arguments: list[Text] | None = None  # None: those of the script, which nobody gave
        self.choices: dict[int, int] = {}  # the branch of each fork that is read
        self.mentioned: set[str] = set()  # variables that the script sets anywhere
        self.by_default = False  # whether a value that was looked at is a default
        self.absent: set[str] = set()  # variables that a test found not to be set
        self.missing = ""  # the first variable for whose want a test has no answer
        self.fixed_place = ""  # of a text inside of a word
        self.line = 1  # of the word that is read
        self.depth = self.expanded = 0
        self.output: list[Text] | None = None  # of a command whose output is a word
        self.files: dict[str, str] = {}  # texts of other scripts by their names

    @abc.abstractmethod
    def captured(self, *nodes: Node) -> Text:
        """What commands write, where that is certain; else one piece that is unknown."""

    def assign(self, name: str, value: Value) -> None:
        """Sets a variable. JobError for a value that is too long."""
        texts = [value] if isinstance(value, tuple) else value if isinstance(value, list) else list(value.values())
        length = sum(len(p.text) for text in texts for p in text)
        if length > MOST_OF_A_VALUE:
            raise JobError(
                f"line {self.line}: the value of {name[:40]} has {length:,} characters; expected at most "
                f"{MOST_OF_A_VALUE:,}: take out what doubles it, or import the command that the script starts."
            )
        self.variables[name] = merged(value) if isinstance(value, tuple) else value
        if self.exports_all:
            self.exported.add(name)

    # --- conditions -------------------------------------------------------------------------------------------------

    def _run_test_command(self, node: Node) -> Answer:
        before, self.by_default = self.by_default, False
        try:
            if node.children[0].type == "[[":
                holds = self._test(node.named_children[0]) if node.named_children else None
            elif node.children[0].type == "((":
                number = self.number(node.named_children[0]) if node.named_children else None
                holds = None if number is None else number != 0
            else:
                holds = self._holds_of([*self._test_words(node)])
            return Answer(holds, self.by_default)
        finally:
            self.by_default = before

    def _do_test(self, words: list[Word], node: Node) -> Answer:
        before, self.by_default = self.by_default, False
        holds = self._holds_of([word for word in words if word != "]"])
        default, self.by_default = self.by_default, before
        return Answer(holds, default)

    def _test_words(self, node: Node) -> Iterator[Word]:
        """The words of ``[ ... ]`` in order, whatever the grammar took them for."""
        for child in node.children:
            if child.type in ("binary_expression", "unary_expression", "parenthesized_expression"):
                yield from self._test_words(child)
            elif child.type == "test_operator" or (not child.is_named and child.type not in "[]"):
                yield Word(literal(raw_text(child), ""))
            elif child.is_named:
                yield from self.fields([child])

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
            return self._two(self.text(parts[0]), operator, (), parts[2])
        return self._one("-n", self.text(node))

    def _one(self, operator: str, text: Text) -> bool | None:
        """A test of one word; a variable that nobody gave counts as empty, by default."""
        if operator == "-v":
            name = self.known(text) or ""
            self.by_default |= name not in self.variables
            self.absent |= {name} - self.variables.keys()
            return name in self.variables
        if operator not in ("-z", "-n"):
            return None  # of files, which are not looked at
        self.absent |= {p.absent for p in text if p.absent}
        if len(text) == 1 and text[0].unknown and text[0].unknown.variable and not text[0].unknown.fork:
            self.by_default = True
            self.absent.add(text[0].unknown.variable)
            return operator == "-z"
        value = self.known(text)
        if value is None:
            visible = any(p.text for p in text)
            return (operator == "-n") if visible else None
        return (value == "") == (operator == "-z")

    def _two(self, left: Text, operator: str, right: Text, pattern: Node | None) -> bool | None:
        first = self.known(left)
        if pattern is not None and operator in ("==", "=", "!="):
            wanted = self._pattern(pattern)
            if first is None or wanted is None:
                return None
            return pattern_matches(wanted, first) == (operator != "!=")
        second = self.known(right if pattern is None else self.text(pattern))
        if first is None or second is None:
            return None
        if operator in _COMPARED:
            numbers = [self._number_of(text) for text in (first, second)]
            return None if numbers[0] is None or numbers[1] is None else _COMPARED[operator](numbers[0], numbers[1])
        if operator in ("=", "==", "!="):
            return (first == second) == (operator != "!=")
        if operator == "=~":
            try:
                return re.search(second, first[:1000]) is not None if re.fullmatch(r"[\w^$.\-/:, ]*", second) else None
            except re.error:
                return None
        return {"<": first < second, ">": first > second}.get(operator)

    def _pattern(self, node: Node) -> str:
        """A pattern in which what stands in quotes means itself."""
        if node.type in ("string", "raw_string", "ansi_c_string"):
            return re.sub(r"([*?\[])", r"[\1]", self.known(self.text(node)) or "")
        if node.type == "concatenation":
            return "".join(self._pattern(child) for child in node.children)
        if node.children:
            return self.known(self.text(node)) or ""
        return re.sub(r"\\(.)", r"[\1]", raw_text(node))

    # --- words ------------------------------------------------------------------------------------------------------

    def place(self, node: Node) -> str:
        """File and line of a node."""
        return self.fixed_place or f"{self.name}:{node.start_point[0] + 1}"

    def known(self, text: Text) -> str | None:
        """The text where all of it is known, else None; notes defaults. Raises Fork where it hangs on one."""
        parts = []
        for piece in decided(text, self.choices):
            self.by_default |= piece.default
            if piece.unknown is not None:
                if piece.unknown.fork:
                    raise Fork(piece.unknown.fork, len(piece.unknown.ways))
                self.missing = self.missing or piece.unknown.variable
                return None
            parts.append(" " if piece.ends_word else piece.text)
        return "".join(parts)

    def plain(self, text: Text) -> str | None:
        """The text where all of it is known by the branches that are read, else None."""
        pieces = [*decided(text, self.choices)]
        return None if any(p.unknown for p in pieces) else "".join(" " if p.ends_word else p.text for p in pieces)

    def _lifted(self, made: Callable[[], Text]) -> Text:
        """A text; where it hangs on a fork, one for each of its branches."""
        try:
            return made()
        except Fork as found:
            ways = []
            for at in range(found.ways):
                self.choices[found.fork] = at
                ways.append(self._lifted(made))
            del self.choices[found.fork]
            place = next((p.place for way in ways for p in way), "")
            name = next((p.unknown.name for way in ways for p in way if p.unknown), f"fork {found.fork}")
            return (Piece(place=place, unknown=Unknown(name, "", place, found.fork, tuple((way,) for way in ways))),)

    def fields(self, nodes: Iterable[Node]) -> list[Word]:
        """The words that a row of nodes comes to."""
        found: list[Word] = []
        for node in nodes:
            if node.type == "brace_expression":
                first, last = (
                    int(n) if (n := raw_text(c)).lstrip("-").isdecimal() else 0 for c in node.named_children[:2]
                )
                row = range(first, last + 1) if first <= last else range(first, last - 1, -1)
                found += [Word(literal(str(number), self.place(node))) for number in row[:1000]]
            else:
                found += words_of(self.pieces(node))
        return found

    def text(self, node: Node) -> Text:
        """The value of a node that is one word."""
        return tuple(Piece(" ", p.place) if p.ends_word else p._replace(quoted=True) for p in self.pieces(node))

    def pieces(self, node: Node) -> Text:
        """The pieces of a word, those between quotes marked."""
        self.line = node.start_point[0] + 1
        if self.depth > MOST_DEEP:
            return (Piece(unknown=Unknown(raw_text(node)[:40], "", self.place(node))),)
        self.depth += 1
        try:
            method = getattr(self, f"_of_{node.type}", None)
            if method is not None:
                found: Text = method(node)
                return found
            if node.type in ("concatenation", "command_name", "array"):
                return tuple(piece for child in node.children for piece in self.pieces(child))
            return literal(re.sub(r"\\(.)", r"\1", raw_text(node).replace("\\\n", "")), self.place(node))
        finally:
            self.depth -= 1

    def _of_string(self, node: Node) -> Text:
        inner = self._between(node, node.start_byte + 1, node.end_byte - 1, r'[$`"\\]')
        quoted = tuple(p if p.ends_word else p._replace(quoted=True) for p in inner)
        lists = any(re.fullmatch(r"\$@|\$\{\w+\[@\]\}|\$\{@\}", raw_text(child)) for child in node.named_children)
        return quoted if quoted or lists else literal("", self.place(node))

    _of_translated_string = _of_string

    def _of_raw_string(self, node: Node) -> Text:
        return literal(raw_text(node)[1:-1], self.place(node))

    def _of_ansi_c_string(self, node: Node) -> Text:
        text = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), raw_text(node)[2:-1])
        return literal(text, self.place(node))

    def _between(self, node: Node, start: int, end: int, escaped: str) -> Text:
        """The pieces of a stretch of bytes: the nodes inside, and the plain text between them."""
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

    def _of_simple_expansion(self, node: Node) -> Text:
        return self._parameter(raw_text(node).rpartition("$")[2], node)

    def _of_arithmetic_expansion(self, node: Node) -> Text:
        def made() -> Text:
            before, self.by_default = self.by_default, False
            whole = len(node.named_children) == 1 and not node.has_error
            number = self.number(node.named_children[0]) if whole else None
            default, self.by_default = self.by_default, before or self.by_default
            if number is None:
                return (Piece(quoted=False, unknown=Unknown(raw_text(node)[:60], "", self.place(node))),)
            return literal(str(number), self.place(node), default)

        return self._lifted(made)

    def _of_command_substitution(self, node: Node) -> Text:
        inner = [child for child in node.named_children if child.type != "comment"]
        if not inner:
            return ()
        if inner[0].type == "file_redirect":
            return (Piece(quoted=False, unknown=Unknown(raw_text(node)[:60], "", self.place(node))),)
        return self._lifted(lambda: self.captured(*inner))

    def _do_set(self, words: list[Word], node: Node) -> None:
        self.exports_all |= any(word in ("-a", "-o") and "allexport" in [*words, "allexport"] for word in words[:1])
        if words and words[0] in ("+a",):
            self.exports_all = False
        if words and words[0] == "--":
            self.arguments = [word.pieces for word in words[1:]]
        elif words and not words[0].startswith(("-", "+")):
            self.arguments = [word.pieces for word in words]

    def _do_shift(self, words: list[Word], node: Node) -> None:
        if self.arguments is not None:
            count = int(words[0]) if words and words[0].isdecimal() else 1
            self.arguments = self.arguments[count:]

    def _do_let(self, words: list[Word], node: Node) -> None:
        for word in words:
            self._number_of(str(word))

    def _do_read(self, words: list[Word], node: Node) -> Answer:
        names = [str(word) for word in words if re.fullmatch(r"[A-Za-z_]\w*", word)]
        here = next((child for child in node.named_children if child.type == "herestring_redirect"), None)
        pieces = () if here is None else self.text(here.named_children[-1])
        separators = self.variables.get("IFS", ())
        if isinstance(separators, tuple) and (signs := self.plain(separators)):
            pieces = tuple(p._replace(text=re.sub(f"[{re.escape(signs)}]", " ", p.text)) for p in pieces)
        given = words_of(p._replace(quoted=False) for p in pieces)
        for at, name in enumerate(names):
            last = at == len(names) - 1
            parts = given[at:] if last else given[at : at + 1]
            value = tuple(piece for k, one in enumerate(parts) for piece in ((Piece(" "),) * bool(k) + one.pieces))
            self.variables[name] = value if here else (Piece(unknown=Unknown(f"${name}", name, self.place(node))),)
        return Answer(True if here else None)

    def _do_getopts(self, words: list[Word], node: Node) -> Answer:
        if len(words) > 1:
            self.variables[str(words[1])] = (Piece(unknown=Unknown(f"${words[1]}", "", self.place(node))),)
            self.variables["OPTARG"] = (Piece(unknown=Unknown("$OPTARG", "", self.place(node))),)
        return Answer(None)

    def _do_echo(self, words: list[Word], node: Node) -> None:
        if self.output is None:
            return
        while words and words[0] in ("-n", "-e", "-ne"):
            words = words[1:]
        self.output.append(tuple(p for at, w in enumerate(words) for p in ((Piece(" "),) * bool(at) + w.pieces)))

    def _do_printf(self, words: list[Word], node: Node) -> None:
        if words[:1] == ["-v"] and len(words) > 2:
            self.variables[str(words[1])] = self._formatted(words[2:], node)
        elif self.output is not None and words:
            self.output.append(self._formatted(words, node))

    def _formatted(self, words: list[Word], node: Node) -> Text:
        if all(word.unknown is None for word in words) and re.fullmatch(r"(?:[^%\\]|%[sd]|\\n)*", words[0]):
            texts, rest = words[0].replace("\\n", "\n"), list(map(str, words[1:]))
            if texts.count("%") == len(rest):
                return literal(texts.replace("%d", "%s") % tuple(rest), self.place(node))
        return (Piece(unknown=Unknown("$(printf)", "", self.place(node))),)

    def _do_basename(self, words: list[Word], node: Node) -> None:
        name = "" if not words else PurePosixPath(str(words[0])).name
        ending = str(words[1]) if len(words) > 1 else ""
        self._say(name.removesuffix(ending) if name != ending else name, words, node)

    def _do_dirname(self, words: list[Word], node: Node) -> None:
        self._say(str(PurePosixPath(str(words[0])).parent) if words else "", words, node)

    def _do_seq(self, words: list[Word], node: Node) -> None:
        numbers = [int(word) for word in words if re.fullmatch(r"-?\d{1,9}", word)]
        first, step = numbers[0] if len(numbers) > 1 else 1, numbers[1] if len(numbers) > 2 else 1
        known = len(numbers) == len(words) and numbers and step
        row = range(first, numbers[-1] + (1 if step > 0 else -1), step) if known else range(0)
        self._say("\n".join(map(str, row[:1000])) if known else None, words, node)

    def _do_expr(self, words: list[Word], node: Node) -> None:
        number = self._number_of(" ".join(words)) if all(word.unknown is None for word in words) else None
        self._say(None if number is None else str(number), words, node)

    def _do_cat(self, words: list[Word], node: Node) -> None:
        text = self.files.get(PurePosixPath(str(words[0])).name) if words else None
        self._say(None if text is None else text.rstrip("\n"), words, node)

    def _say(self, text: str | None, words: list[Word], node: Node) -> None:
        """Writes the output of a command where it is a word of another; None: it is not known."""
        if self.output is None:
            return
        if text is None or any(word.unknown for word in words):
            name = " ".join(raw_text(node).split())[:40]
            self.output.append((Piece(unknown=Unknown(f"$({name})", "", self.place(node))),))
        else:
            self.output.append(literal(text, self.place(node), any(word.default for word in words)))

    def _of_process_substitution(self, node: Node) -> Text:
        return (Piece(unknown=Unknown(raw_text(node)[:60], "", self.place(node))),)

    def _parameter(self, name: str, node: Node) -> Text:
        """The pieces of a variable or an argument, as they stand outside of quotes."""
        place = self.place(node)
        if name in ("@", "*"):
            if self.arguments is None:
                return (Piece(quoted=False, unknown=Unknown(f"${name}", name, place, is_list=True)),)
            return self._listed(self.arguments)
        if name == "#" and self.arguments is not None:
            return literal(str(len(self.arguments)), place)
        if name == "0":
            return literal(self.name or "bash", place)
        if name in ("#", "?", "$", "!", "-", "_"):
            return (Piece(quoted=False, unknown=Unknown(f"${name}", "", place)),)
        value = self._looked_up(name, place)
        if isinstance(value, list):
            value = value[0] if value else ()
        if isinstance(value, dict):
            value = value.get("0", ())
        self._count(value)
        return tuple(p._replace(quoted=False) for p in value)

    def _looked_up(self, name: str, place: str) -> Value:
        if name.isdecimal() and self.arguments is not None:
            return self.arguments[int(name) - 1] if int(name) <= len(self.arguments) else ()
        found = self.variables.get(name)
        if found is not None:
            return found
        if name in self.mentioned and not name.isdecimal():  # in a branch that is not taken
            return (Piece(default=True, place=place, absent=name),)
        return (Piece(unknown=Unknown(f"${name}", name, place)),)

    def _listed(self, texts: Sequence[Text]) -> Text:
        self._count(tuple(p for text in texts for p in text))
        found: list[Piece] = []
        for at, text in enumerate(texts):
            found += [END] if at else []
            found += [p._replace(quoted=False) for p in text] or [Piece(quoted=True)]
        return tuple(found)

    def _count(self, text: Text) -> None:
        self.expanded += sum(len(p.text) for p in text)
        if self.expanded > MOST_EXPANDED:
            raise JobError(
                f"line {self.line}: variables stand for more than {MOST_EXPANDED:,} characters up to here; expected "
                "less: import the command that the script starts."
            )

    def _of_expansion(self, node: Node) -> Text:
        return self._lifted(lambda: self._expansion(node))

    def _expansion(self, node: Node) -> Text:
        """``${...}`` with its operator."""
        parts = [child for child in node.children if child.type not in ("${", "}")]
        unknown = (Piece(quoted=False, unknown=Unknown(raw_text(node)[:60], "", self.place(node))),)
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
            target = self.known(self._parameter(name, node))
            return self._parameter(target, node) if target and re.fullmatch(r"\w+", target) else unknown
        texts, value = self._indexed(name, index, node)
        if sign:
            return self._size_or_keys(sign, name, texts, value, node) or unknown
        if texts is not None and operator in ("", ":-", "-", ":+", "+"):
            if operator in (":-", "-") and not texts:
                return self._operand(node, parts[1])
            return self._listed(texts) if operator in ("", ":-", "-") or not texts else self._operand(node, parts[1])
        if value is None:
            return unknown
        if not operator:
            return value
        return self._with_operator(node, name, value, operator, parts) or unknown

    def _indexed(self, name: str, index: Node | None, node: Node) -> tuple[list[Text] | None, Text | None]:
        """The elements that ``${X[@]}`` means, or else the one value; both None where it is not known which."""
        if index is None:
            if name in ("@", "*"):
                return self.arguments, self._parameter(name, node)
            return None, self._parameter(name, node)
        found = self._looked_up(name, self.place(node))
        if raw_text(index) in ("@", "*"):
            if isinstance(found, dict):
                return list(found.values()), None
            if isinstance(found, list):
                return found, None
            if len(found) == 1 and found[0].unknown and not found[0].unknown.fork:
                lone = found[0].unknown._replace(name=raw_text(node), is_list=True)
                return None, (Piece(quoted=False, unknown=lone),)
            return [found] if any(p.text or p.unknown for p in found) else [], None
        key = self.known(self.text(index))
        if isinstance(found, dict):
            if key is None:
                return None, None
            return None, tuple(p._replace(quoted=False) for p in found.get(key.strip("\"'"), ()))
        number = None if key is None else self._number_of(key)
        if isinstance(found, list) and number is not None and not any(_is_list(text) for text in found):
            at = number if number >= 0 else len(found) + number
            return None, tuple(p._replace(quoted=False) for p in found[at]) if 0 <= at < len(found) else ()
        if isinstance(found, tuple) and key == "0":
            return None, tuple(p._replace(quoted=False) for p in found)
        return None, None

    def _size_or_keys(
        self, sign: str, name: str, texts: list[Text] | None, value: Text | None, node: Node
    ) -> Text | None:  # fmt: skip
        if sign == "!":
            found = self.variables.get(name)
            keys = list(found) if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else []
            return self._listed([literal(str(key), self.place(node)) for key in keys])
        if texts is not None:
            if any(_is_list(text) for text in texts):
                return None
            return literal(str(len(texts)), self.place(node))
        plain = None if value is None else self.known(value)
        return None if plain is None else literal(str(len(plain)), self.place(node))

    def _operand(self, node: Node, after: Node, until: int | None = None) -> Text:
        end = node.end_byte - 1 if until is None else until
        return self._between(node, after.end_byte, end, r"[$`\"\\}]")

    def _with_operator(self, node: Node, name: str, value: Text, operator: str, parts: list[Node]) -> Text | None:
        lone = value[0].unknown if len(value) == 1 else None
        free = lone is not None and not lone.fork and bool(lone.variable)
        absent = free or (bool(value) and all(p.default and not p.text and not p.unknown for p in value))
        if operator in (":-", "-", ":=", "="):
            unset = absent or (not value and name not in self.variables and name not in ("1", "2"))
            empty = unset or (":" in operator and self.known(value) == "") or (not value and self._is_unset(name))
            if not empty:
                return value
            found = tuple(p._replace(default=p.default or absent) for p in self._operand(node, parts[1]))
            found = found or (Piece(default=absent, quoted=False),)
            if "=" in operator:
                self.assign(name, found)
            return tuple(p._replace(quoted=False) for p in found)
        if operator in (":+", "+"):
            if absent:
                return (Piece(default=True, quoted=False),)
            return () if self.known(value) == "" else self._operand(node, parts[1])
        if operator in (":?", "?"):
            return value
        plain = self.known(value)
        if plain is None:
            return None
        pieces = self._changed(node, plain, operator, parts)
        return (
            None if pieces is None else literal(pieces, value[0].place if value else "", any(p.default for p in value))
        )

    def _is_unset(self, name: str) -> bool:
        given = self.arguments is not None and name.isdecimal()
        return name not in self.variables and not (given and int(name) <= len(self.arguments or []))

    def _changed(self, node: Node, text: str, operator: str, parts: list[Node]) -> str | None:
        """The text after an operator that cuts, replaces or changes the case of letters."""
        if operator in ("#", "##", "%", "%%"):
            pattern = self.known(self._operand(node, parts[1])) if len(parts) > 2 else ""
            return None if pattern is None else cut_off(text, operator, pattern)
        if operator in ("/", "//", "/#", "/%"):
            slash = next((part for part in parts[2:] if part.type == "/"), None)
            pattern = self.known(self._operand(node, parts[1], slash.start_byte if slash else None))
            by = self.known(self._operand(node, slash)) if slash else ""
            return None if pattern is None or by is None else replaced(text, operator, pattern, by)
        if operator in ("^^", ",,", "^", ","):
            whole = text.upper() if "^" in operator else text.lower()
            return whole if len(operator) == 2 else whole[:1] + text[1:]
        if operator == ":":
            numbers = [self.number(part) for part in parts[2:] if part.type != ":"]
            if None in numbers or not numbers:
                return None
            start = numbers[0] if (numbers[0] or 0) >= 0 else max(len(text) + (numbers[0] or 0), 0)
            length = numbers[1] if len(numbers) > 1 else None
            return text[start:] if length is None else text[start : (start or 0) + length if length >= 0 else length]
        return None

    # --- sums -------------------------------------------------------------------------------------------------------

    def _number_of(self, text: str) -> int | None:
        """The number that a text means where bash expects one: 8, 0x10, 2#101, a sum; None where that is not known."""
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
            return self.number(inner.named_children[0])
        finally:
            self.depth -= 4

    def number(self, node: Node) -> int | None:
        """The value of a sum as bash takes it, of 64 bits; None where it is not known."""
        self.depth += 1
        try:
            if self.depth > MOST_DEEP:
                return None
            found = self._sum(node)
            return None if found is None else (found + 2**63) % 2**64 - 2**63
        except ZeroDivisionError:
            return None
        finally:
            self.depth -= 1

    def _sum(self, node: Node) -> int | None:
        parts = [child for child in node.children if child.type not in ("(", ")")]
        if node.type == "parenthesized_expression":
            return self.number(parts[0]) if len(parts) == 1 else None
        if node.type == "binary_expression" and len(parts) == 3:
            return self._binary(parts[0], raw_text(parts[1]), parts[2])
        if node.type == "unary_expression" and len(parts) == 2:
            operator, number = raw_text(parts[0]), self.number(parts[1])
            if operator in ("++", "--") and number is not None:
                return self._set_number(parts[1], number + (1 if operator == "++" else -1))
            return None if number is None else {"-": -number, "!": int(not number), "~": ~number}.get(operator, number)
        if node.type == "postfix_expression":
            number = self.number(parts[0])
            if number is not None:
                self._set_number(parts[0], number + (1 if raw_text(parts[1]) == "++" else -1))
            return number
        if node.type == "ternary_expression":
            asked = self.number(parts[0])
            return None if asked is None else self.number(parts[2] if asked else parts[4])
        if node.type == "variable_assignment":
            return self._binary(parts[0], "=", parts[-1])
        if node.type in ("variable_name", "word") and re.fullmatch(r"[A-Za-z_]\w*", raw_text(node)):
            text = self.known(self._parameter(raw_text(node), node))
            return None if text is None else self._number_of(text)
        if node.type == "number" and re.fullmatch(r"\d+#\w+", raw_text(node)):
            base, _, digits = raw_text(node).partition("#")
            return int(digits, int(base)) if 2 <= int(base) <= 36 else None
        if node.type == "number" and re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", raw_text(node)):
            return int(raw_text(node), 16)
        if node.type == "number":
            return self._number_of(raw_text(node)) if re.fullmatch(r"-?\d{1,19}", raw_text(node)) else None
        text = self.known(self.text(node)) if node.type in (
            "simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "string", "concatenation",
            "subscript", "raw_string",
        ) else None  # fmt: skip
        if node.type == "subscript":
            _, value = self._indexed(raw_text(node.named_children[0]), node.named_children[1], node)
            text = None if value is None else self.known(value)
        return None if text is None else self._number_of(text)

    def _binary(self, left: Node, operator: str, right: Node) -> int | None:
        if operator.endswith("=") and operator not in ("==", "!=", "<=", ">="):
            number, before = self.number(right), self.number(left) if len(operator) > 1 else 0
            if number is None or before is None:
                self.variables[raw_text(left)] = (Piece(unknown=Unknown(f"${raw_text(left)}", "", self.place(left))),)
                return None
            return self._set_number(left, _SUMS[operator[:-1]](before, number) if len(operator) > 1 else number)
        first, second = self.number(left), self.number(right)
        if operator in ("&&", "||"):
            known = [bool(one) for one in (first, second) if one is not None]
            decisive = operator == "||"
            return int(decisive) if decisive in known else None if len(known) < 2 else int(not decisive)
        if first is None or second is None or operator not in _SUMS:
            return None
        return _SUMS[operator](first, second)

    def _set_number(self, node: Node, number: int) -> int:
        self.variables[raw_text(node)] = literal(str(number), self.place(node), self.by_default)
        return number


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
        elif node.type in ("binary_expression", "postfix_expression") and node.children[0].type in _NAMED:
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
