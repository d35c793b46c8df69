"""Small wrong changes of Python code: the mutants of bench_mutants.py, found in the syntax tree.

A change replaces the bytes of one expression. Not changed, because no test can or should notice it: strings
(docstrings, messages) and what stands in them, plurals and indents (a text times a comparison, blanks times a
number), ``raise`` and ``assert`` statements, calls of `SILENT_CALLS`, reports of progress, methods of
`SILENT_METHODS`, annotations and decorators, what is imported for types only, numbers of `SILENT_NAMES` (time limits,
seeds, threads, sizes of caches and blocks, folders above a file, to which links lead from two places), lengths of
lists of equal elements (one more is never read), digits of ``round``, how figures look (`LOOKS`), seconds that a run is
reported to have taken (``perf_counter``), and tolerances up to `ROUNDING`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

SILENT_CALLS = {"warn", "warning", "info", "debug", "print", "progress", "sleep", "wait", "join", "cast"}
SILENT_METHODS = {"__repr__", "__str__", "words"}
SILENT_NAMES = re.compile(
    r"(?i:time_?out|sleep|poll|patience|period|retr(?:y|ies)|seed|random_state|n_jobs|maxsize|maxiter|indent|stacklevel)"
    r"|^overwrite_[a-z]$|^limit_s$|^_(?:ASK|POLITE)_S$|^_?(?:CHUNK|CELLS|(?:SMALLEST_)?BLOCK|BLOCK_TIMES|ROWS_PER_STATEMENT|ROWS_READ|LONGEST|LARGEST_RESULT)$"
    r"|^_(?:MODELS|STUDIES)$"
    r"|^_?(?:PAIRED|MOST_(?:BYTES|INSTRUCTIONS|SAMPLES|AT_ONCE))$"
)
SILENT_FIELDS = {"annotation", "returns", "decorator_list", "bases", "type_params", "format_spec"}
LOOKS = {
    "color",
    "symbol",
    "size",
    "opacity",
    "width",
    "height",
    "margin",
    "dash",
    "font",
    "thickness",
}  # keys of figures
ROUNDING = 1e-6  # tolerances: 1e-9 or 1.1e-9 is the same to every test

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*",
}  # fmt: skip
_FLIPPED: dict[type[ast.cmpop], str] = {
    ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_OPPOSITES = (
    ("minimum", "maximum"), ("min", "max"), ("fmin", "fmax"), ("argmin", "argmax"), ("nanmin", "nanmax"),
)  # fmt: skip
_OPPOSITE = {a: b for pair in _OPPOSITES for a, b in (pair, pair[::-1])}
_FUNCTIONS = {
    "sum": "mean", "mean": "sum", "median": "max", "cumsum": "cumprod", "floor": "ceil", "ceil": "floor",
    "rint": "floor", "exp": "expm1", "log": "log1p", "log2": "log", "sqrt": "square", "square": "abs",
    "any": "all", "all": "any", "zeros": "ones", "zeros_like": "ones_like", "ones": "zeros",
    "ones_like": "zeros_like", "nanmean": "nanmax",
}  # fmt: skip
_OF_TWO = {"minimum", "maximum", "min", "max", "fmin", "fmax"}


@dataclass(frozen=True)
class Change:
    """``after`` in place of the bytes ``start`` to ``end`` of ``file``; ``why`` it is wrong, of hand-written ones."""

    file: Path  # relative to the repository
    start: int
    end: int
    after: str
    kind: str
    why: str = ""

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]

    def line(self, source: bytes) -> int:
        return source.count(b"\n", 0, self.start) + 1

    def diff(self, source: bytes) -> str:
        """The lines of the change before and after, each as one."""
        start, end = source.rfind(b"\n", 0, self.start) + 1, source.find(b"\n", self.end)
        head, tail = source[start : self.start].decode(), source[self.end : end].decode()
        before = source[self.start : self.end].decode()
        old, new = (" ".join(f"{head}{text}{tail}".split()) for text in (before, self.after))
        return f"- {old}\n+ {new}"


def changes(file: Path, source: bytes) -> list[Change]:
    """All changes of a module, in the order of the code."""
    return list(_Finder(file, source).found())


def compiles(source: bytes, suffix: str = ".py") -> bool:
    """Whether a module with a change in it is still Python, a file of data still YAML."""
    try:
        if suffix == ".py":
            compile(source, "mutant", "exec")
        else:
            yaml.safe_load(source)
    except (SyntaxError, yaml.YAMLError):
        return False
    return True


class _Finder:
    """Walks the tree of one module past what is silent."""

    def __init__(self, file: Path, source: bytes) -> None:
        self._file, self._source = file, source
        lengths = [len(line) for line in source.splitlines(keepends=True)]
        self._lines = [sum(lengths[:i]) for i in range(len(lengths) + 1)]

    def found(self) -> Iterator[Change]:
        for node, function in _walk(ast.parse(self._source), None):
            for kind, text in self._of(node, function):
                start, end = self._span(node)
                yield Change(self._file, start, end, text, kind)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.AST) -> str:
        """The code of an expression, in brackets: its own may lie outside of its span."""
        start, end = self._span(node)
        return f"({self._source[start:end].decode()})"

    def _of(self, node: ast.AST, function: ast.FunctionDef | None) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Constant):
            yield from _constant(node.value)
        elif isinstance(node, ast.BinOp):
            yield from self._arithmetic(node, function)
        elif isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS and not _is_text(node.value):
            target = self._text(node.target)[1:-1]
            yield "operator", f"{target} {_OPERATORS[type(node.op)]}= {self._text(node.value)}"
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self._text(node.left), self._text(node.comparators[0])
            yield "comparison", f"({left} {_FLIPPED[type(node.ops[0])]} {right})"
        elif isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.And) else " and "
            yield "and/or", f"({word.join(map(self._text, node.values))})"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
            yield "and/or", self._text(node.operand)
        elif isinstance(node, ast.Attribute | ast.Name):
            yield from self._swapped(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.Return) and node.value is not None:
            kind = ast.unparse(function.returns) if function and function.returns else ""
            if kind in ("bool", "Bools"):
                yield "return", f"return {'~' if kind == 'Bools' else 'not '}{self._text(node.value)}"

    def _arithmetic(self, node: ast.BinOp, function: ast.FunctionDef | None) -> Iterator[tuple[str, str]]:
        left, right, op = self._text(node.left), self._text(node.right), type(node.op)
        if any(_is_text(side) or _is_rounding(side) for side in (node.left, node.right)):
            return
        if op in _OPERATORS:
            yield "operator", f"({left} {_OPERATORS[op]} {right})"
        if op in (ast.Mult, ast.Div):
            yield "factor", left
        if op is ast.Mult:
            yield "factor", right
        if op in (ast.Add, ast.Sub):
            yield "term", left
        if op is ast.Add:
            yield "term", right
        if op in (ast.BitAnd, ast.BitOr) and function is not None:
            yield "and/or", f"({left} {'|' if op is ast.BitAnd else '&'} {right})"

    def _swapped(self, node: ast.Attribute | ast.Name) -> Iterator[tuple[str, str]]:
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        before = self._text(node)[1 : -1 - len(name)]
        if name in _OPPOSITE:
            yield "min/max", before + _OPPOSITE[name]
        elif name in _FUNCTIONS and (before or name in ("any", "all")):
            yield "function", before + _FUNCTIONS[name]

    def _call(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        name, plain = _called(node), not any(isinstance(one, ast.Starred) for one in node.args)
        if name in _OF_TWO and len(node.args) == 2 and plain:
            yield from (("argument", self._text(one)) for one in node.args)
        if name == "clip" and len(node.args) == 3 and not node.keywords:
            yield "argument", self._text(node.args[0])
        if name == "where" and len(node.args) == 3:
            condition, a, b = map(self._text, node.args)
            yield "function", f"{self._text(node.func)}({condition}, {b}, {a})"


def _walk(node: ast.AST, function: ast.FunctionDef | None) -> Iterator[tuple[ast.AST, ast.FunctionDef | None]]:
    """(node, function around it) of all that is not silent."""
    if _silent(node):
        return
    yield node, function
    inner = node if isinstance(node, ast.FunctionDef) else function
    for name, value in ast.iter_fields(node):
        if name in SILENT_FIELDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not any(rule(node, child) for rule in _SILENT_CHILDREN):
                yield from _walk(child, inner)


def _silent(node: ast.AST) -> bool:
    if _is_rounding(node):
        return True
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _is_wording(node.left, node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Call):
        return _called(node.left) == "perf_counter"
    if isinstance(node, ast.FunctionDef):
        return node.name in SILENT_METHODS
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Call):
        return _called(node) in SILENT_CALLS or ast.unparse(node.func) == "progress.report"
    if isinstance(node, ast.keyword):
        return bool(SILENT_NAMES.search(node.arg or ""))
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        types = isinstance(node, ast.Assign) and "NDArray" in ast.unparse(node.value)
        return types or any(SILENT_NAMES.search(ast.unparse(target)) for target in targets)
    return False


def _is_default_of_silent(node: ast.AST, child: ast.AST) -> bool:
    if not isinstance(node, ast.arguments) or isinstance(child, ast.arg):
        return False
    plain = [*node.posonlyargs, *node.args]
    pairs = [*zip(plain[len(plain) - len(node.defaults) :], node.defaults, strict=True)]
    pairs += [*zip(node.kwonlyargs, node.kw_defaults, strict=True)]
    return any(value is child and SILENT_NAMES.search(arg.arg) for arg, value in pairs)


def _is_length(node: ast.AST, child: ast.AST) -> bool:
    """Whether an operand states how long a list of equal elements is: n of ``[0.0] * n``."""
    is_list = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.List)
    return is_list and child is node.right


def _is_digits(node: ast.AST, child: ast.AST) -> bool:
    """Whether an operand states to how many digits a figure is rounded for showing: n of ``round(x, n)``."""
    return isinstance(node, ast.Call) and _called(node) == "round" and isinstance(child, ast.Constant)


def _is_look(node: ast.AST, child: ast.AST) -> bool:
    """Whether a mapping's value states how a figure looks: colours, sizes, symbols."""
    if not isinstance(node, ast.Dict):
        return False
    pairs = zip(node.keys, node.values, strict=True)
    return any(value is child and isinstance(key, ast.Constant) and key.value in LOOKS for key, value in pairs)


def _is_silent_entry(node: ast.AST, child: ast.AST) -> bool:
    """Whether a mapping's value stands at a name of `SILENT_NAMES`, as a keyword of that name: ``"maxiter"``."""
    if not isinstance(node, ast.Dict):
        return False
    pairs = zip(node.keys, node.values, strict=True)
    texts = (key.value for key, value in pairs if value is child and isinstance(key, ast.Constant))
    return any(isinstance(text, str) and SILENT_NAMES.search(text) for text in texts)


_SILENT_CHILDREN = (_is_default_of_silent, _is_length, _is_digits, _is_look, _is_silent_entry)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_text(node: ast.AST) -> bool:
    """Whether an operand of + or * is no number: a text, a list, a mapping."""
    containers = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp, ast.Set, ast.SetComp)
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, containers) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_wording(text: ast.AST, times: ast.AST) -> bool:
    """Whether a product of text is the plural of a word or an indent: wording of a message."""
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        return False
    return isinstance(times, ast.Compare) or not text.value.strip()


def _is_rounding(node: ast.AST) -> bool:
    """Whether an expression is 1 plus or minus a tolerance."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add | ast.Sub)
        and isinstance(node.right, ast.Constant)
        and isinstance(node.right.value, float)
        and abs(node.right.value) <= ROUNDING
    )


def _constant(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if isinstance(value, int):
        yield "constant", repr(value + 1)
    elif value == 0.0:
        yield "constant", "1.0"
    elif abs(value) > ROUNDING:
        yield "constant", repr(value * 1.1)
