"""Rules of the house that no linter knows."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path for folder in ("jointopt", "cli", "models", "studies") for path in (ROOT / folder).rglob("*.py")
)  # fmt: skip
FUNCTIONS = [
    (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node)
    for path in SOURCES
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]
UNFINISHED = re.compile(r"\bTODO\b|\bFIXME\b|\bXXX\b|NotImplementedError")
MACHINE_PATH = re.compile(r"""["'\s(=](/home/|/root/|/Users/|C:\\)""")


def test_no_function_is_longer_than_60_lines() -> None:
    too_long = {name: _lines(node) for name, node in FUNCTIONS if _lines(node) > 60}
    assert not too_long


def test_functions_are_short_in_the_median() -> None:
    lengths = sorted(_lines(node) for _, node in FUNCTIONS)
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[int(len(lengths) * 0.9)] <= 35


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_assert_judges_what_a_user_gave() -> None:
    found = [name for name, node in FUNCTIONS if any(isinstance(part, ast.Assert) for part in ast.walk(node))]
    assert not found


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATH], ids=["unfinished", "machine path"])
def test_no_source_is_unfinished_or_bound_to_a_machine(pattern: re.Pattern[str]) -> None:
    found = [str(path) for path in SOURCES if pattern.search(path.read_text(encoding="utf-8"))]
    assert not found


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent
