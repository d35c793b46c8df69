"""Rewrite the golden files with the figures of today: ``python tests/golden/rewrite.py [TABLE ...]``."""

from __future__ import annotations

import sys
from pathlib import Path


def main(names: list[str]) -> None:
    """Rewrite the files of these tables, of all where none is named, and print what moved."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the tree that this file is in, wherever it is run
    from tests.golden import files, pricing

    for name in names or pricing.TABLES:
        old = files.read(name) if files.path_of(name).exists() else {}
        new = files.as_held(pricing.TABLES[name]())
        changes = files.moved(old, new)
        files.write(name, files.settled(old, new))
        print(f"{name}: {len(new)} rows, {len(changes)} changes", *changes, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1:])
