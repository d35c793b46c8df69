"""Commands of a shell that set variables or write words: its builtins, and programs that change lines of text."""

from __future__ import annotations

import abc
import getopt
import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any

from tree_sitter import Node

from jointopt.frameworks.shell_values import Answer, Values, raw_text
from jointopt.frameworks.shell_words import Piece, Text, Unknown, Word, lines_of, literal, words_of

# files that set up an environment, and none of the variables of a script
_SETS_UP = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|mamba\.sh|\.?bashrc|\.?bash_profile|\.?profile|modules?(?:\.sh)?|bash|sh|"
    r"setvars\.sh|set_?env\.sh|nvm\.sh|spack[\w.-]*|\S*venv\S*)$|^/(?:etc|usr|opt|cvmfs)/"
)
_FORMATTED = re.compile(r"%(?:(%)|(-?0?\d*)([sdi]))")
_SAFE = re.compile(r"[\w .,:=/@#^$\-\[\]*+?()|<>\"';{}\\]*")  # of a regular expression: what Python takes alike
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
    if "-n" in options:
        line = re.fullmatch(r"(\d+)p", words[0])
        return None if line is None else lines[int(line[1]) - 1 : int(line[1])]
    found = re.fullmatch(r"s([/|,#:@])((?:(?!\1).)*)\1((?:(?!\1).)*)\1(g?)", options.get("-e") or words[0])
    if found is None or not _SAFE.fullmatch(found[2]) or "&" in found[3]:
        return None
    pattern = found[2]
    if not {"-E", "-r"} & options.keys():  # where ( and + mean themselves, and \( what ( means elsewhere
        pattern = re.sub(r"\\?[()+?|{}]", lambda one: one[0][1:] if len(one[0]) == 2 else f"\\{one[0]}", pattern)
    return [re.sub(pattern, found[3], line, count=0 if found[4] else 1) for line in lines]


def _awk(options: Options, words: list[str], lines: Lines) -> Lines | None:
    """``awk '{print $2}'``."""
    found = re.fullmatch(r"\s*\{\s*print\s+(\$\d+|\$?NF)\s*;?\s*\}\s*", words[0])
    sign = options.get("-F")
    if found is None or (sign and len(sign) > 1):
        return None
    rows = [line.split(sign) if sign else line.split() for line in lines]
    if found[1] == "NF":
        return [str(len(row)) for row in rows]
    at = [len(row) if found[1] == "$NF" else int(found[1][1:]) for row in rows]
    columns = zip(lines, rows, at, strict=True)
    return [line if k == 0 else row[k - 1] if k <= len(row) else "" for line, row, k in columns]


def _grep(options: Options, words: list[str], lines: Lines) -> Lines | None:
    """``grep -o``, and ``grep``, of expressions that Python takes alike."""
    if not _SAFE.fullmatch(words[0]) or (re.search(r"[\\+?(){}|]", words[0]) and not {"-E", "-P"} & options.keys()):
        return None
    if "-o" in options:
        return [one[0] for line in lines for one in re.finditer(words[0], line) if one[0]]
    return [line for line in lines if bool(re.search(words[0], line)) != ("-v" in options)]


def _sort(options: Options, words: list[str], lines: Lines) -> Lines | None:
    """``sort -u``, ``-n``, ``-r``."""
    if "-n" in options and not all(re.fullmatch(r"-?\d+", line) for line in lines):
        return None
    found = sorted(set(lines) if "-u" in options else lines, key=int if "-n" in options else None)
    return found[::-1] if "-r" in options else found


def _part(options: Options, words: list[str], lines: list[Text]) -> list[Text] | None:
    """``head -n 1``, also of lines that are not known."""
    count = options.get("-n", "10")
    return lines[: int(count)] if count.isdecimal() else None


def _tail(options: Options, words: list[str], lines: list[Text]) -> list[Text] | None:
    """``tail -n 1`` and ``tail -n +2``."""
    count = options.get("-n", "10")
    if count.startswith("+"):
        return lines[max(int(count) - 1, 0) :] if count[1:].isdecimal() else None
    return lines[max(len(lines) - int(count), 0) :] if count.isdecimal() else None


# programs that change lines: their options, how many words before the files there are, whether they look into lines
_FILTERS: dict[str, tuple[str, int, Callable[[Options, list[str], Any], Any], bool]] = {
    "cut": ("d:f:s", 0, _cut, True), "tr": ("ds", 9, _tr, True), "sed": ("eErn", 1, _sed, True),
    "awk": ("F:", 1, _awk, True), "grep": ("oEPvh", 1, _grep, True), "sort": ("unr", 0, _sort, True),
    "uniq": ("", 0, lambda o, w, lines: [a for a, b in zip(lines, [None, *lines], strict=False) if a != b], True),
    "head": ("n:", 0, _part, False), "tail": ("n:", 0, _tail, False), "cat": ("", 0, lambda o, w, lines: lines, False),
    "wc": ("lw", 0, lambda o, w, lines: None if "-w" in o else [literal(str(len(lines)), "")], False),
    "tee": ("a", 9, lambda o, w, lines: lines, False), "xargs": ("", 0, lambda o, w, lines: [" ".join(lines)], True),
}  # fmt: skip


class Commands(Values):
    """The builtins of a shell, and programs that change lines of text."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.input: list[Text] | None = None  # lines that a command reads; None: not known
        self.written: dict[str, Text] = {}  # files that the script itself writes
        self.locals: list[dict[str, Any]] = []

    @abc.abstractmethod
    def start(self, words: list[Word], node: Node) -> None:
        """A program, or the script that a shell among its words is given."""

    def lines_of_file(self, path: str | None) -> list[Text] | None:
        """The lines of a file that the script wrote, or that was given; None where they are not known."""
        if path == "/dev/null":
            return []
        if path is None or not (path in self.written or PurePosixPath(path).name in self.files):
            return None
        return lines_of(self.written.get(path) or literal(self.files.get(PurePosixPath(path).name, ""), path))

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
        known = [self.known(line) for line in lines or ()] if looks or "-w" in dict(pairs) else []
        if lines is not None and len(plain) == len(words) and None not in known and len(operands) >= min(before, 1):
            found = change(dict(pairs), operands, known if looks else lines)
            if name == "wc" and found is None:
                found = [literal(str(sum(len((line or "").split()) for line in known)), "")]
        if target:
            self.write(target, None if found is None else [literal(line, self.place(node)) for line in found])
        elif found is None:
            self.say(None, words, node)
        elif self.output is not None:
            place = self.place(node)
            for line in found:
                self.output += [*(literal(line, place) if isinstance(line, str) else line), Piece("\n", place)]

    def write(self, path: str, lines: Sequence[Text] | None, adds: bool = False) -> None:
        """Notes the text of a file that the script writes; of one that is not known, that it is not."""
        name = PurePosixPath(path).name
        if path.startswith("/dev/"):
            return
        if lines is None:
            if self.written.pop(path, None) is not None or not name.endswith(".log"):
                self.files.pop(name, None)
            return
        text = tuple(piece for line in lines for piece in (*line, Piece("\n", line[0].place if line else "")))
        self.written[path] = (self.written.get(path, ()) if adds else ()) + text
        self.files[name] = self.text_of(lines_of(self.written[path]))

    def text_of(self, lines: Sequence[Text]) -> str:
        """The text that a shell reads of lines."""
        return "".join(f"{self.script_of(line)}\n" for line in lines)

    @abc.abstractmethod
    def script_of(self, pieces: Text) -> str:
        """The text that a shell reads of a row of pieces."""

    def say(self, text: str | None, words: Sequence[Word], node: Node) -> None:
        """Writes the output of a command where it is a word of another; None: it is not known."""
        if self.output is None:
            return
        if text is None or any(word.unknown for word in words):
            name = " ".join(raw_text(node).split())[:40]
            self.output.append(Piece(unknown=Unknown(f"$({name})", "", self.place(node), is_list=True)))
        else:
            self.output += literal(f"{text}\n", self.place(node), any(word.default for word in words))

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
        count = int(words[0]) if words and words[0].isdecimal() else 1
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
            self.run_sourced(name, path)
        else:
            self.miss(path)
            if path and not _SETS_UP.search(path):
                self.unsettle(name, self.place(node))

    @abc.abstractmethod
    def lines_from(self, node: Node) -> list[Text] | None:
        """The lines of a file, or of what commands write."""

    @abc.abstractmethod
    def run_text(self, text: str, place: str = "") -> None:
        """Reads a script with the variables of this shell."""

    @abc.abstractmethod
    def run_sourced(self, name: str, path: str) -> None:
        """Reads a file whose text is known, with the variables of this shell."""

    @abc.abstractmethod
    def miss(self, path: str) -> None:
        """Notes a script that was not given."""


def is_filter(name: str) -> bool:
    """Whether a program changes lines of text."""
    return name in _FILTERS and name != "xargs"

