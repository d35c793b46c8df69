"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import grimp
import pytest
import yaml

from tests.bench.mutant_rooms import NOT_DRAWN, ROOMS, STUDIES, is_of
from tests.bench.mutations import compiles

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "jointopt"
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"][0]
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for folder in ("jointopt", "cli", "models", "studies")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
# of a batch system, and of ideas that two rooms have each in its own way
SHARED_NAMES = {"__init__", "__main__", "slurm", "model", "memory", "kernels"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
UNFINISHED = re.compile(r"\bTODO\b|\bFIXME\b|\bXXX\b|NotImplementedError")
MACHINE_PATH = re.compile(r"""["'\s(=](/home/|/root/|/Users/|C:\\)""")


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Every source parsed, by its name; not when pytest collects, which every worker does."""
    return {name: ast.parse(text) for name, text in SOURCES.items()}


@functools.cache
def functions() -> list[tuple[str, Function]]:
    """Place and node of every function."""
    return [
        (f"{name}:{node.lineno} {node.name}", node)
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    ]


@functools.cache
def lengths() -> dict[str, int]:
    """Lines of every function without its docstring."""
    found = {}
    for name, node in functions():
        text, last = node.body[0] if ast.get_docstring(node) else None, node.end_lineno or node.lineno
        found[name] = last - node.lineno + 1 - ((text.end_lineno or 0) - text.lineno + 1 if text else 0)
    return found


def rooms() -> set[str]:
    """Names of the folders of code at the top of the package; links lead to folders of the repository."""
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py") if not path.parent.is_symlink()}


def documented(tree: ast.AST, public: bool = True) -> list[tuple[str, ast.AST, str | None]]:
    """Name, node and docstring of what can be called or made: functions and classes of modules, and methods."""
    found = []
    for node in getattr(tree, "body", ()):
        if isinstance(node, Function | ast.ClassDef) and not (public and node.name.startswith("_")):
            found.append((node.name, node, ast.get_docstring(node)))
            found += documented(node, public) if isinstance(node, ast.ClassDef) else []
    return found


def test_the_house_has_at_most_ten_rooms_and_each_stands_on_one_floor() -> None:
    placed = [room.strip() for floor in LAYERS["layers"] for room in floor.replace(":", "|").split("|")]
    assert len(rooms()) <= 10
    assert {f"jointopt.{room}" for room in rooms()} | {"jointopt.cli"} == set(placed)
    assert len(placed) == len(set(placed))


def test_each_wrong_formula_of_the_benchmark_replaces_one_place_of_the_code() -> None:
    formulas = yaml.safe_load((ROOT / "tests" / "bench" / "wrong_formulas.yaml").read_text(encoding="utf-8"))
    code = {name: (ROOT / name).read_text(encoding="utf-8") for name in {one["file"] for one in formulas}}
    parts = [(one, one["before"].rstrip("\n"), one["after"].rstrip("\n")) for one in formulas]
    assert len(parts) > 100
    assert [one["why"] for one, before, _ in parts if code[one["file"]].count(before) != 1] == []
    wrong = [(one, code[one["file"]].replace(before, after).encode()) for one, before, after in parts]
    assert [one["why"] for one, source in wrong if not compiles(source, Path(one["file"]).suffix)] == []


def test_each_module_is_in_one_room_of_the_mutants_but_for_those_that_end_processes_or_are_tested_by_services() -> None:
    modules = [path.relative_to(ROOT) for top in (PACKAGE, *PACKAGE.iterdir()) for path in _modules_of(top)]
    rooms_of = {str(file): [room for room in ROOMS if is_of(room, file)] for file in modules}
    assert [file for file, found in rooms_of.items() if len(found) > 1] == []
    outside = {file for file, found in rooms_of.items() if not found}
    assert [file for file in outside if not file.startswith((*NOT_DRAWN, *STUDIES))] == []
    assert len(outside) < 0.12 * len(modules)


def _modules_of(top: Path) -> list[Path]:
    """Python files at the top of the package, or of one of its folders, links included."""
    return sorted(top.glob("*.py") if top == PACKAGE else top.rglob("*.py"))


@functools.cache
def imports() -> dict[str, set[str]]:
    """The modules that each module imports: at its top, inside functions and for types alike."""
    graph = grimp.build_graph("jointopt", cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) - {"jointopt"} for module in graph.modules}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graphlib.TopologicalSorter(imports()).prepare()  # raises with the circle


def test_no_room_is_deeper_than_eleven_floors() -> None:
    depth = dict.fromkeys(rooms(), 0)
    below: dict[str, int] = {}
    for module in graphlib.TopologicalSorter(imports()).static_order():
        room = module.split(".")[1] if "." in module else ""
        inside = [below[one] for one in imports().get(module, ()) if one.startswith(f"jointopt.{room}.")]
        below[module] = 1 + max(inside, default=0)
        depth[room] = max(depth.get(room, 0), below[module])
    assert {room: floors for room, floors in depth.items() if floors > 11} == {}


def test_no_folder_holds_more_than_25_modules_but_those_of_a_file_for_each_verb() -> None:
    counts = Counter(str(Path(name).parent) for name in SOURCES)
    verbs = {"cli", "jointopt/workflows"}
    assert {folder: count for folder, count in counts.items() if count > 25 and folder not in verbs} == {}


def test_no_file_name_is_used_twice_but_where_a_verb_or_the_field_gives_it() -> None:
    names = Counter(Path(name).stem for name in SOURCES if name.startswith("jointopt/"))
    assert {name for name, count in names.items() if count > 1} <= SHARED_NAMES


def test_the_house_has_at_most_eight_floors() -> None:
    assert LAYERS["type"] == "layers"
    assert 1 < len(LAYERS["layers"]) <= 8


def test_no_module_lies_outside_the_rooms() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_no_module_is_longer_than_800_lines() -> None:
    lines = {name: text.count("\n") for name, text in SOURCES.items()}
    assert {name: count for name, count in lines.items() if count > 800} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    assert {name: lines for name, lines in lengths().items() if lines > 60} == {}


def test_every_public_function_and_class_has_a_docstring() -> None:
    silent = [f"{file} {name}" for file, tree in trees().items() for name, _, text in documented(tree) if not text]
    assert silent == []


def test_no_assert_judges_what_a_user_gave() -> None:
    found = [name for name, node in functions() if any(isinstance(part, ast.Assert) for part in ast.walk(node))]
    assert found == []


@pytest.mark.parametrize("pattern", [UNFINISHED, MACHINE_PATH], ids=["unfinished", "machine path"])
def test_no_source_is_unfinished_or_bound_to_a_machine(pattern: re.Pattern[str]) -> None:
    assert [name for name, text in SOURCES.items() if pattern.search(text)] == []


def test_signed_numbers_are_printed_without_negative_zeros() -> None:
    signed = re.compile(r":\+,?\.\d")  # `+z.1f` prints +0.0 for -0.01, `+.1f` -0.0; `table.fixed` adds the z
    printed = {name: text for name, text in SOURCES.items() if not name.startswith("studies/")}
    assert [name for name, text in printed.items() if signed.search(text)] == []


def test_every_module_states_what_it_is_for() -> None:
    assert [name for name, tree in trees().items() if not ast.get_docstring(tree)] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout of git here")
def test_no_file_of_the_repository_is_named_like_an_option() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [Path(name).name for name in listed.stdout.split("\0")]
    assert len(names) > 500
    assert [name for name in names if name.startswith("-")] == []
