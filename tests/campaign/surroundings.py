"""Starts every verb in every surrounding: no home, no name, no folder, no room, no streams, other languages.

``python -m tests.campaign.surroundings [SURROUNDING | VERB ...]``: each verb in a process of its own, forked from one
that was started in the language (its locale made by ``localedef``) and has imported what they need. What ends by a
traceback or a signal, by another exit code than 0, 1, 2 or 130, or without a sentence is printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tests.cli.forked import Ended, Forks, Surroundings
from tests.cli.verbs import BARE, VERBS, is_answered, prepare, start

LANGUAGES = ("C", "en_US.ISO-8859-1", "de_DE.ISO-8859-15", "tr_TR.ISO-8859-9", "ru_RU.KOI8-R", "ja_JP.EUC-JP",
             "zh_CN.GB18030", "xx_XX.none")  # fmt: skip
DISKS = {"a disk that can only be read": "read", "a disk of 1 MB": "small", "a disk without room": "full"}
SURROUNDINGS = {
    "no home": Surroundings({"HOME": None, "XDG_STATE_HOME": None}),
    "a home that is no folder": Surroundings({"HOME": "/dev/null", "XDG_STATE_HOME": None}),
    "a user without name and home": Surroundings(BARE, user=12345),
    "stdin closed": Surroundings(closed=(0,)),
    "stdout closed": Surroundings(closed=(1,)),
    "stderr closed": Surroundings(closed=(2,)),
    "all three closed": Surroundings(closed=(0, 1, 2)),
    "stdout without room": Surroundings(full=True),
    "a folder that was removed": Surroundings(removed=True),
    **dict.fromkeys(DISKS, Surroundings()),
    "TMPDIR that is not there": Surroundings({"TMPDIR": "/nowhere"}),
    "TMPDIR that takes no file": Surroundings({"TMPDIR": "/proc"}),
    "no variable at all": Surroundings(dict.fromkeys({*os.environ, "PYTHONPATH", "OMP_NUM_THREADS"})),
    **{f"language {name}": Surroundings(encoding="") for name in LANGUAGES},
}  # fmt: skip
NOT_UTF_8 = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def language(name: str, folder: Path) -> dict[str, str]:
    """Variables of a process in that language, whose locale is made below ``folder``, since few machines have it."""
    if "." in name and not name.endswith(".none"):
        words, _, signs = name.partition(".")
        subprocess.run(["localedef", "-i", words, "-f", signs, folder / name], capture_output=True)
        assert (folder / name).is_dir(), f"localedef makes no {name}"
    return {"LC_ALL": name, "LOCPATH": str(folder), **NOT_UTF_8}


@contextmanager
def disk(top: Path, kind: str, files: Path) -> Iterator[Path]:
    """A folder with ``work`` (the files), ``home`` and ``tmp``, on a disk of that kind."""
    place = top / "disk"
    place.mkdir()
    if kind:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], check=True)
    try:
        shutil.copytree(files, place / "work")
        for name in ("home", "tmp"):
            (place / name).mkdir()
        if kind == "read":
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        if kind == "full":
            with (place / "fill").open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(512))
        yield place
    finally:
        if kind:
            subprocess.run(["umount", "--lazy", place], check=True)
        shutil.rmtree(place)


def is_well(ended: Ended, within: Surroundings) -> bool:
    """Whether an end is an answer or a sentence, as far as there is a stream for it."""
    return is_answered(ended._replace(err=ended.err + "Error: " * (2 in within.closed)))


def main() -> int:
    """Print what is wrong, and the counts."""
    verbs = [verb for verb in VERBS if verb in sys.argv[1:]] or list(VERBS)
    chosen = [name for name in SURROUNDINGS if name in sys.argv[1:]] or list(SURROUNDINGS)
    counts = Counter[str]()
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="surroundings-")))
        stack.callback((plain := Forks()).close)
        (top / "files").mkdir()
        prepare(top / "files", plain)
        for name in chosen:
            began = time.monotonic()
            forks = plain
            if name.startswith("language "):
                stack.callback((forks := Forks(language(name.removeprefix("language "), top))).close)
            for verb in verbs:
                with disk(top, DISKS.get(name, ""), top / "files") as place:
                    usual = {"HOME": str(place / "home"), "XDG_STATE_HOME": None, "TMPDIR": str(place / "tmp")}
                    within = SURROUNDINGS[name]
                    ended = start(verb, place / "work", forks, replace(within, variables=usual | within.variables))
                counts["starts"] += 1
                counts[f"exit code {ended.code}"] += 1
                if not is_well(ended, within):
                    counts["wrong"] += 1
                    print(f"### {verb} in {name}: {ended.code}\n{ended.out[-1000:]}\n{ended.err[-3000:]}", flush=True)
            print(f"{name}: {len(verbs)} verbs, {time.monotonic() - began:.0f} s; in all {dict(counts)}", flush=True)
    print(f"{len(verbs)} verbs x {len(chosen)} surroundings: {counts['wrong']} wrong")
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
