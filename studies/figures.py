"""Figures that commands print: one record of them, the marks of pages that show them, and whether both are of today.

    python -m jointopt.studies.figures [--write]

``docs/figures.json`` holds, for each command, its figures with the commit and date that they were made at and a digest
of each prediction that they rest on: those of golden files and of recorded accuracy, so that only what moves a
prediction makes figures old. A page shows one as ``off by <!--figure accuracy.median percent-->7.2 %<!--/-->``, rounded
as the page likes; ``--write`` puts the record's figures into all pages, as each command does with its own.

Other numbers of README and docs stand

- between ``<!--shown-->`` and ``<!--/-->``: a block of ``console`` of the page, which a test runs, shows them;
- between ``<!--given-->`` and ``<!--/-->``, or in a section with a line ``<!--given: WHY-->``: limits, defaults and
  figures of others, which no command prints;
- in a section with a line ``*Figures as of COMMIT (DATE) and earlier; measured by hand.*``, which readers see, and
  which says where predictions have moved since: ``--write`` adds that where the commit is at hand.
"""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "figures.json"
ACCURACY, GOLDEN = "tests/data/accuracy.json", "tests/golden/{}.csv"
HELD = (ACCURACY, *(GOLDEN.format(table) for table in ("plans", "fronts", "rows")))  # predictions of all kinds
CARD = "models/default/card.json"
CODE = ("jointopt", "cli", "models")  # folders whose changes may move a figure
KEYS = ("job", "row", "plan", "surrogate")  # columns that name a golden row
PREDICTED = re.compile(
    r"(?:(?:predicted|fastest|thriftiest)_)?(?:iteration_time_s|energy_j|avg_power_w|peak_memory_gib)(?:_low|_high)?"
    r"|considered|kept"
)
MARK = re.compile(r"<!--figure ([\w.,+% -]+?)-->(.*?)<!--/-->", re.DOTALL)
GIVEN = re.compile(r"<!--given-->.*?<!--/-->", re.DOTALL)
SHOWN = re.compile(r"<!--shown-->(.*?)<!--/-->", re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
DATED = re.compile(
    r"^(\*Figures as of ([0-9a-f]{7,}) \(\d{4}-\d\d-\d\d\) and earlier; measured by hand)((?:, and .*)?)\.\*$",
    re.MULTILINE,
)
SINCE = ", and predictions have moved since"
SECTION = re.compile(rf"^<!--given: .+?-->$|{DATED.pattern}", re.MULTILINE)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
BLOCK = re.compile(r"^```\w*[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
# A number as commands print it: with a unit, or with the name of what they count.
PRINTED = re.compile(
    r"(?<![\w.,/-])[-+]?\d[\d,]*(?:\.\d+)?(?:(?:\s+(?:to|and|or)\s+|-)[-+]?\d[\d,]*(?:\.\d+)?)*\s*"
    r"(?!%\s+(?:interval|quantile)|MHz)"
    r"(?:%|(?:k?J|k?W|kWh|s|ms|us|µs|minutes?|GiB|MiB|GB|MB|TFLOP/s|(?:tokens|plans|layouts|trials)/s|times"
    r"|(?:\w+\s+)?(?:runs|jobs|rows|sources|plans|layouts|groups|statements|trials|pairs|kills))(?![\w/]))"
)

Record = dict[str, Any]


def pages() -> list[Path]:
    """Pages that may show figures: README, docs, and what each study says of itself."""
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("studies/*/README.md"))]


def read() -> Record:
    """The record: an entry for each command, by name."""
    return read_of(RECORD)


def read_of(file: Path) -> Record:
    """The record that a file holds; none where there is no file."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def record(
    name: str, command: str, rests_on: Sequence[str], figures: Mapping[str, float], blocks: Sequence[str] = (),
    *, anew: bool = True,
) -> None:  # fmt: skip
    """Keep what ``command`` printed under ``name`` and show it in all pages.

    ``rests_on``: files of predictions, as `predictions` reads them. ``blocks``: texts that it wrote into pages whole.
    Not ``anew``: figures of rows kept from before, whose commit and date stay.
    """
    kept = read()
    old = kept.get(name, {})
    made = {
        "commit": commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "predictions": {file: sorted(predictions(file)) for file in rests_on},
    }  # fmt: skip
    if not anew and old:
        made = {key: old[key] for key in made}
    known = {key: round(float(value), 6) for key, value in figures.items() if value == value}
    kept[name] = {"command": command, **made, "figures": known, "blocks": [digest(text) for text in blocks]}
    RECORD.write_text(_text(kept), encoding="utf-8")
    write(kept)


def _text(kept: Record) -> str:
    """The record as JSON, a figure to a line and the digests of a file of predictions on one."""
    text = json.dumps({name: kept[name] for name in sorted(kept)}, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text) + "\n"


def commit() -> str:
    """The commit of the tree, and whether its code was changed since."""
    git = ["git", "-C", str(ROOT)]
    short = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno", "--", *CODE], capture_output=True, text=True)
    return short.stdout.strip() + " and changes" * bool(changed.stdout.strip())


def digest(text: str) -> str:
    """Eight hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:8]


def predictions(file: str) -> set[str]:
    """Digests of the predictions that a file of the tests holds; other rows and columns beside them change none."""
    return _digests(file, (ROOT / file).read_text(encoding="utf-8"))


def _digests(file: str, text: str) -> set[str]:
    if file.endswith(".json"):
        return {digest(f"{where} {value:.3f}") for where, value in _leaves(json.loads(text), "")}
    return {digest(words) for row in csv.DictReader(text.splitlines()) if (words := _predicted(row))}


@functools.cache
def moved_since(commit: str) -> bool | None:
    """Whether a prediction that tests held at a commit is another one now; None where the commit is not at hand."""
    found = None
    for file in HELD:
        git = ["git", "-C", str(ROOT), "show", f"{commit}:{file}"]
        then = subprocess.run(git, capture_output=True, text=True)
        if then.returncode == 0:
            found = bool(found) or not _digests(file, then.stdout) <= predictions(file)
    return found


def dated(found: re.Match[str]) -> str:
    """The line of a section's date, which says whether predictions have moved since."""
    moved = moved_since(found[2])
    return found[0] if moved is None else f"{found[1]}{SINCE * moved}.*"


def _leaves(node: Any, where: str) -> Iterator[tuple[str, float]]:
    if not isinstance(node, dict):
        yield where, float(node)
        return
    for key, value in node.items():
        yield from _leaves(value, f"{where} {key}")


def _predicted(row: dict[str, str]) -> str:
    """The figures of a golden row in five digits, behind its name; blank where it predicts none."""
    figures = [f"{column} {float(cell):.5g}" for column, cell in row.items() if PREDICTED.fullmatch(column) and cell]
    return " ".join([*(row.get(key, "") for key in KEYS), *figures]) if figures else ""


def learned() -> Record:
    """Held-out errors of the shipped surrogate in percent, which its card holds: an entry of the record besides."""
    if not (ROOT / CARD).exists():
        return {}
    errors = _leaves(json.loads((ROOT / CARD).read_text(encoding="utf-8"))["error"], "")
    return {"card": {"figures": {name.strip(): 100.0 * error for name, error in errors}}}


def write(kept: Record) -> None:
    """Put the record's figures into every page."""
    kept = kept | learned()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = DATED.sub(dated, MARK.sub(lambda found: shown(found, kept), text))
        if new != text:
            page.write_text(new, encoding="utf-8")


def value_of(kept: Record, name: str) -> float | None:
    """The recorded figure that a mark names; None where there is none."""
    entry, _, figure = name.partition(".")
    figures: dict[str, float] = kept.get(entry, {}).get("figures", {})
    return figures.get(figure)


def shown(found: re.Match[str], kept: Record) -> str:
    """A mark with the record's figure, rounded as the page had it."""
    value = value_of(kept, found[1])
    if value is None:
        return found[0]
    text = NUMBER.sub(lambda number: rounded(abs(value), number[0]), found[2], count=1)
    return f"<!--figure {found[1]}-->{text}<!--/-->"


def rounded(value: float, like: str) -> str:
    """The value with as many decimals as a number of a page."""
    return f"{value:,.{len(like.partition('.')[2])}f}"


def faults() -> list[str]:
    """A sentence for each figure that is old, differs from the record, or has no source."""
    kept = read()
    found = [text for name, entry in kept.items() for text in stale(name, entry)]
    texts = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages()}
    blocks = {digest(block) for text in texts.values() for block in BLOCK.findall(text)}
    found += [
        f"docs/figures.json: {name}: a block that its command wrote stands on no page as it was: run {one['command']}"
        for name, one in kept.items()
        if not blocks.issuperset(one["blocks"])
    ]
    kept = kept | learned()
    for page, text in texts.items():
        found += differing(page, text, kept) + misplaced(page, text)
        if not page.startswith(("studies/", "docs/export/")):
            found += loose(page, text)
    return found


def stale(name: str, entry: Record) -> list[str]:
    """A sentence where predictions have moved since the figures of a command were made."""
    before = {(file, one) for file, found in entry["predictions"].items() for one in found}
    now = {(file, one) for file in entry["predictions"] for one in predictions(file)}
    gone = len(before - now)
    if not gone:
        return []
    moved = f"{gone} of {len(before)} predictions moved since {entry['commit']} ({entry['date']})"
    return [f"docs/figures.json: {name}: {moved}: run {entry['command']}"]


def differing(page: str, text: str, kept: Record) -> list[str]:
    """A sentence for each mark of a page whose figure is not the record's, and each date that is not up to date."""
    found = []
    for mark in MARK.finditer(text):
        value, where = value_of(kept, mark[1]), _place(page, text, mark)
        if value is None:
            found.append(f"{where}: docs/figures.json has no figure {mark[1]}")
        elif shown(mark, kept) != mark[0] or not NUMBER.search(mark[2]):
            found.append(f"{where}: {mark[2]!r} is {value:g} in docs/figures.json ({mark[1]}): run make figures")
    return found + [
        f"{_place(page, text, one)}: predictions have moved since {one[2]}, or have not: run make figures"
        for one in DATED.finditer(text)
        if dated(one) != one[0]
    ]


def misplaced(page: str, text: str) -> list[str]:
    """A sentence for each mark that begins a line, where Markdown ends the paragraph, and each that no block shows."""
    found = [
        f"{_place(page, text, one)}: a mark at the start of a line ends the paragraph: move it"
        for one in re.finditer(r"^ {0,3}<!--(?:figure |given-->|shown-->)", text, re.MULTILINE)
    ]
    blocks = [float(number.replace(",", "")) for number in NUMBER.findall(" ".join(CONSOLE.findall(text)))]
    for mark in SHOWN.finditer(text):
        for number in NUMBER.findall(mark[1]):
            if number not in {rounded(value, number) for value in blocks}:
                found.append(f"{_place(page, text, mark)}: {number} is not what a block of the page shows")
    return found


def _place(page: str, text: str, found: re.Match[str]) -> str:
    """Page and line of what was found."""
    return f"{page}:{text.count(chr(10), 0, found.start()) + 1}"


def loose(page: str, text: str) -> list[str]:
    """A sentence for each number of a page that commands may print and that has no source."""
    for pattern in (BLOCK, MARK, GIVEN, SHOWN):
        text = pattern.sub(_blank, text)
    text = re.sub(r"`(?:[^`\n]|\n(?!\n))*`|\]\([^)\n]*\)", _blank, text)
    while (one := SECTION.search(text)) is not None:
        end = _end_of_section(text, one.start())
        text = text[: one.start()] + re.sub(r"[^\n]", " ", text[one.start() : end]) + text[end:]
    return [
        f"{_place(page, text, one)}: {' '.join(one[0].split())!r} has no source: mark it as "
        "<!--figure NAME--> of docs/figures.json, or as <!--given--> where no command prints it"
        for one in PRINTED.finditer(text)
    ]


def _blank(found: re.Match[str]) -> str:
    """Spaces in place of what was found, on as many lines."""
    return re.sub(r"[^\n]", " ", found[0])


def _end_of_section(text: str, start: int) -> int:
    """Place of the next heading of the level that ``start`` is under, or above it."""
    levels = [len(marks) for marks in re.findall(r"^(#+) ", text[:start], re.MULTILINE)]
    heading = re.compile(rf"^#{{1,{levels[-1] if levels else 6}}} ", re.MULTILINE).search(text, start)
    return heading.start() if heading else len(text)


def unmarked(text: str) -> str:
    """A page without its marks, as the site shows it; those in code are examples."""
    return re.sub(r"(`[^`\n]*`)|<!--(?:figure [^>]*|given(?:: [^>]*)?|shown|/)-->", r"\1", text)


def main() -> None:
    """Check all pages, with ``--write`` after the record's figures were put into them; exit 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the record's figures into all pages first")
    if parser.parse_args().write:
        write(read())
    found = faults()
    print(*found, sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
