"""Every place that writes text for another program: each uses `jointopt.core.quote`, and no other place writes any."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator

from tests.test_house import ROOT, trees

# writers of text for a shell, a batch system, a framework, a spreadsheet or a browser, with the functions that they use
WRITERS = {
    "cli/common.py": {"sh_command", "sh_word"},
    "cli/import_.py": {"sh_word"},
    "cli/plan.py": {"our_command", "sh_command"},
    "jointopt/frameworks/accelerate.py": {"yaml_text"},
    "jointopt/frameworks/import_files.py": {"our_command", "sh_command"},
    "jointopt/frameworks/intent.py": {"sh_variable", "sh_word"},
    "jointopt/frameworks/exported.py": {"html_text", "sh_exports", "sh_lines"},
    "jointopt/frameworks/kubernetes.py": {"kubernetes_text", "sh_exports", "sh_word", "yaml_text"},
    "jointopt/frameworks/megatron_bridge.py": {"hydra_word", "yaml_text"},
    "jointopt/frameworks/nanotron.py": {"yaml_text"},
    "jointopt/frameworks/slurm.py": {
        "comment", "container_mounts", "sbatch_line", "sh_command", "sh_exports", "sh_variable", "sh_word",
    },
    "jointopt/frameworks/torchtitan.py": {"python_text", "toml_text"},
    "jointopt/frameworks/zeus.py": {"comment", "python_text", "sh_word"},
    "jointopt/measure/framework_launchers.py": {"sh_command", "sh_file", "sh_word"},
    "jointopt/measure/local.py": {"sh_command"},
    "jointopt/measure/torchrun.py": {"sh_command", "sh_file", "sh_word"},
    "jointopt/report/page/render.py": {"html_text"},
    "jointopt/report/proposal.py": {"html_text", "our_command"},
    "jointopt/report/decision.py": {"our_command", "sh_lines"},
    "jointopt/report/scaled.py": {"sh_command"},
    "jointopt/report/scores.py": {"our_command"},
    "jointopt/report/page/content.py": {"our_command"},
    "jointopt/report/selection.py": {"our_command", "sh_lines"},
    "jointopt/report/tables.py": {"html_text", "our_command"},
    "jointopt/runs/database.py": {"sh_word"},
    "jointopt/runs/store.py": {"sh_command"},
    "jointopt/runs/table.py": {"csv_cell", "csv_original"},
    "jointopt/search/studies/dashboard.py": {"header_value", "local_url"},
    "jointopt/search/studies/display.py": {"our_command"},
    "jointopt/search/studies/measured.py": {"our_command"},
    "jointopt/workflows/campaign/campaign.py": {"sh_command"},
    "jointopt/workflows/import_gains.py": {"sh_command"},
    "jointopt/workflows/mcp_server.py": {"sh_command"},
    "jointopt/workflows/propose.py": {"sh_word"},
    "jointopt/workflows/retrain.py": {"sh_command"},
    "jointopt/workflows/scale.py": {"sh_command"},
}  # fmt: skip
# files of our own (JSON, a job's YAML, pages made by templates that escape) and of text that the writers above made
FILES = {
    "cli/common.py", "cli/import_.py", "jointopt/core/atomic_write.py", "jointopt/measure/hardware/conditions.py",
    "jointopt/runs/readings.py", "jointopt/measure/hardware/guard/guardian.py",
    "jointopt/measure/framework_program.py", "jointopt/measure/metrics.py", "jointopt/measure/slurm.py",
    "jointopt/measure/framework_launchers.py",
    "jointopt/measure/torchrun.py", "jointopt/measure/trainer/probe.py", "jointopt/measure/trainer/run.py",
    "jointopt/report/page/choice.py", "jointopt/report/page/render.py", "jointopt/frameworks/zeus.py",
    "jointopt/report/proposal.py", "jointopt/jobs/reading.py", "jointopt/surrogate/trees.py",
    "jointopt/report/power_schedule.py",
    "jointopt/workflows/export.py",
}  # fmt: skip
# (function, the places that may call it): each language is written in one place
ALONE = {
    "quote": {"jointopt/core/quote.py"}, "join of shlex": set(),
    "escape of html": {"jointopt/core/quote.py"}, "urlencode": {"jointopt/core/quote.py"},
    "dump of yaml": {"jointopt/core/quote.py", "jointopt/jobs/reading.py"}, "to_csv": set(), "writer of csv":
    {"jointopt/runs/table.py"}, "DictWriter of csv": set(), "Environment": {"jointopt/report/page/render.py"},
}  # fmt: skip
# text before a value that is put into a command: a line of shell, or a command of ours to copy
COMMAND = re.compile(
    r"(?:^|\n)\s*(?:#SBATCH |#!/bin|export |cat >)|\bjointopt [a-z]+ (?:[^.;:,`]* )?[\"']?$|chmod \d+ $"
)
NO_COMMANDS: dict[str, str | tuple[str, ...]] = {  # messages, and a value that is quoted where it is made
    "jointopt/frameworks/import_files.py": "jointopt cannot import ",
    "jointopt/runs/database.py": "and this jointopt reads ",
    "jointopt/frameworks/kubernetes.py": " MASTER_ADDR=",
    "jointopt/report/scaled.py": "jointopt propose ",
}


@functools.cache
def calls(file: str) -> set[str]:
    """Names of called functions, with the module where it says which: ``dump of yaml``."""
    return set(_calls(trees()[file]))


def _calls(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            module = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            yield from (node.func.attr, f"{node.func.attr} of {module}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def package() -> dict[str, ast.Module]:
    """The sources that people run; studies at the top are programs of the repository."""
    return {name: tree for name, tree in trees().items() if not name.startswith("studies/")}


def test_whoever_writes_text_for_a_program_quotes_it_by_the_functions_for_that() -> None:
    imported = {
        name: {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
               if node.module == "jointopt.core.quote" for alias in node.names}
        for name, tree in package().items()
    }  # fmt: skip
    assert {name: found for name, found in imported.items() if found} == WRITERS


def test_files_are_written_by_those_that_are_listed_alone() -> None:
    found = {name for name in package() if {"write_whole", "write_text"} & calls(name)}
    assert found == FILES


def test_each_language_is_written_in_one_place() -> None:
    found = {what: {name for name in package() if what in calls(name)} for what in ALONE}
    assert found == ALONE


def test_no_value_is_put_into_a_command_as_it_stands() -> None:
    found = [
        (name, str(before.value)[-50:])
        for name, tree in package().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) and name != "jointopt/core/quote.py"
        for before, value in itertools.pairwise(node.values)
        if isinstance(before, ast.Constant) and isinstance(value, ast.FormattedValue)
        if COMMAND.search(str(before.value)) and not str(before.value).endswith(NO_COMMANDS.get(name, "\0"))
    ]
    assert found == []


def test_pages_escape_every_value_of_their_templates() -> None:
    folder = ROOT / "jointopt" / "report" / "page"
    assert "autoescape=True" in (folder / "render.py").read_text(encoding="utf-8")
    marked = [(file.name, line.strip()) for file in sorted(folder.glob("*.j2"))
              for line in file.read_text(encoding="utf-8").splitlines() if "safe" in line and "|" in line]  # fmt: skip
    assert {line for _, line in marked} <= SAFE


# what is put into a page as it stands: its own style and programs, and figures as JSON that ends no element
SAFE = {
    "<style>{{ style | safe }}</style>", '<script type="application/json" id="data">{{ data | safe }}</script>',
    "<script>{{ programs[0] | safe }}</script>", "{% for program in programs[1:] %}{{ program | safe }}{% endfor %}",
}  # fmt: skip
