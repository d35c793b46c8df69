"""Print the table of statements: ``python -m jointopt.studies.statements [--write] [--quick]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from jointopt.studies import figures
from jointopt.studies.marked import replace_between
from jointopt.studies.statements import table

README = Path(__file__).parents[1] / "README.md"
COMMAND = "python -m jointopt.studies.statements --write"


def main() -> None:
    """Check every statement and print the table, or write it into ``studies/README.md`` and pages' figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"replace the table in {README.name}")
    parser.add_argument("--quick", action="store_true", help="without the shares of constants, in seconds")
    options = parser.parse_args()
    found = table.rows(sensitive=not options.quick)
    if options.write:
        replace_between(README, table.BEGIN, table.END, table.markdown(found))
        figures.record("statements", COMMAND, [figures.GOLDEN.format("plans")], table.counts(found))
    print(table.summary(found) if options.write else table.markdown(found))


if __name__ == "__main__":
    main()
