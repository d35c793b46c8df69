"""Kills commands that measure and write at random moments, and counts what is lost or left.

``python tests/campaign/kills.py 500 [SEED [COMMAND]]``, over stand-in GPUs (a C compiler and Zeus are needed). Each
command is killed alone, by SIGKILL mostly. Counted are processes that live 2 s later, clocks and limits that are not
back 20 s later, scratch folders, rows that were in the store and are not any more, rows twice, rows out of memory (no
plan of the job is), and databases and records that are not whole.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import psutil

HERE = Path(__file__).parent
JOB = """
model: {num_layers: 4, hidden_size: 256, ffn_hidden_size: 1024, num_attention_heads: 4, vocab_size: 1024, gated_mlp: true}
training: {seq_length: 128, global_batch_size: 16, dtype: bf16, framework: torchtitan}
cluster: {gpu: h100-sxm5-80gb, nodes: 1, gpus_per_node: 2}
search: {cp: 1, vpp: 1, recompute: none, clock_mhz: {min: 990, max: 1980, step: 330}}
"""  # noqa: E501
TRAIN = f"{shlex.quote(sys.executable)} {shlex.quote(str(HERE / 'train.py'))}"
RUN = ("--launcher", "command", "--command", f"{TRAIN} {{result}} 2", "--surrogate", "none", "--limit-s", "60")
LIMITS = "(for kw in 2.0 1.1 0.8 1.4 0.6 2.0; do echo $kw > limit; sleep 0.7; done) &"
FOLLOW = ("exec", "--plan", "plan.json", "--job", "job.yaml", "--follow", "limit", "--record", "changes")
SIGNALS = (signal.SIGKILL,) * 6 + (signal.SIGTERM, signal.SIGINT)


class Field:
    """A folder with stand-in GPUs, a job, and the commands that are killed in it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance, self.number = folder, chance, 0
        (folder / "driver").mkdir()
        source = HERE.parent / "stand_in" / "nvml.c"
        library = folder / "driver" / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
        for name in ("gpus", "tmp", "state"):
            (folder / name).mkdir()
        own = {
            "STAND_IN_NVML": folder / "gpus", "XDG_STATE_HOME": folder / "state", "TMPDIR": folder / "tmp",
            "JOINTOPT_CLOCKS": folder / "clocks", "LD_LIBRARY_PATH": folder / "driver", "STAND_IN_NVML_GPUS": "2",
        }  # fmt: skip
        self.environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        (folder / "job.yaml").write_text(JOB)
        plan = {"dp": 1, "pp": 2, "stage_clock_mhz": [1410, 1200], "power_limit_w": 500, "recompute": "none"}
        (folder / "plan.json").write_text(json.dumps(plan))
        rows = "\n".join(f"2,1,1,2,2,h100-sxm5-80gb,torchtitan,ok,{1 + i / 1000}" for i in range(3000))
        (folder / "limit").write_text("1.5\n")
        ranks = "\n".join(f"{i},{rank},{1 + rank / 10}" for i in range(2000) for rank in range(16))
        (folder / "ranks.csv").write_text(f"iteration,rank,time_s\n{ranks}\n")
        header = "dp,tp,pp,num_gpus,gpus_per_node,gpu,framework,status,iteration_time_s"
        (folder / "runs.csv").write_text(f"{header}\n{rows}\n")

    @property
    def database(self) -> Path:
        """Of these ten kills: a job's plans are run once, and then none is left."""
        return self.folder / f"runs-{self.number // 10}.db"

    def commands(self) -> dict[str, list[str]]:
        """Commands by name."""
        storage = ["--storage", f"sqlite:///{self.database}"]
        seed = ["--seed", str(self.number)]
        return {
            "tune": ["tune", "job.yaml", *RUN, "--budget", "6", *seed, *storage],
            "validate": ["validate", "job.yaml", *RUN, "--top", "6", *seed, *storage],
            "exec": ["exec", "--plan", "plan.json", "--", "sh", "-c", f"{TRAIN} {self.folder}/r 2; sleep 3"],
            "follow": [*FOLLOW, "--", "sh", "-c", f"{LIMITS} {TRAIN} {self.folder}/r 2; sleep 3"],
            "watch": ["watch", "ranks.csv", "--json"],
            "ingest": ["ingest", "runs.csv", *storage],
            "export": ["store", "export", "out.csv", *storage],
        }

    def kill(self, name: str = "") -> tuple[str, Counter[str]]:
        """Start a command (any) and kill it; its name, and what was wrong afterwards."""
        self.number += 1
        usual = ("tune", "tune", "tune", "validate", "exec", "exec", "follow", "follow", "ingest", "export")
        name = name or self.chance.choice(usual)
        before = self._rows()
        command = [sys.executable, "-m", "jointopt", *self.commands()[name]]
        log = (self.folder / "log").open("ab")
        tool = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        self._wait(tool, name)
        name += "" if tool.poll() is None else " (ended by itself)"
        tool.send_signal(self.chance.choice(SIGNALS))
        tool.wait(90)
        time.sleep(2.0)
        wrong = Counter[str](self._orphans())
        until = time.monotonic() + 20
        while (self._guardians() or self._set()) and time.monotonic() < until:
            time.sleep(0.1)
        wrong["clock or limit left"] = self._set()
        wrong["scratch left"] = self._scratch_left()
        after = self._rows()
        wrong["row lost"] = len(before - after)
        wrong["row twice"] = sum(count - 1 for count in after.values())
        wrong["false oom"] = self._false_oom()
        if name.startswith("export") and (self.folder / "out.csv").exists():
            wrong["half a file"] = int(not (self.folder / "out.csv").read_bytes().endswith(b"\n"))
        changes = self.folder / "changes"
        wrong["half a line"] = (
            sum(not _is_json(one) for one in changes.read_text().splitlines()) if changes.exists() else 0
        )
        return name, +wrong

    def _orphans(self) -> dict[str, int]:
        """Processes that are left now: those that end within ten seconds, and others; what they are is printed."""
        ended = dict[psutil.Process, float]()
        began, left = time.monotonic(), self._trainings()
        about = {process: _words(process)[-100:] for process in left}
        while len(ended) < len(left) and time.monotonic() < began + 10:
            time.sleep(0.02)
            gone = (process for process in left if process not in ended and _has_ended(process))
            ended |= {process: time.monotonic() - began for process in gone}
        for process in left:
            print(f"left: {about[process]}, {ended.get(process, 99.0):.1f} s more", flush=True)
        return {"late": len(ended), "orphan": len(left) - len(ended)}

    def _scratch_left(self) -> int:
        """Scratch folders that the next start leaves, too: one may be made just before the kill."""
        folders = list((self.folder / "tmp").glob("jointopt-*"))
        if folders:
            time.sleep(6.0)
            command = [sys.executable, "-m", "jointopt", "clocks", "restore"]
            subprocess.run(command, env=self.environment, check=True, stdout=subprocess.DEVNULL)
        return sum(folder.exists() for folder in folders)

    def _wait(self, tool: subprocess.Popen[bytes], name: str) -> None:
        """Wait for a random moment: of the whole command, or after one of its trainings has begun."""
        share = {"tune": 0.8, "validate": 0.8, "exec": 0.8, "follow": 1.0}.get(name, 0.0)
        for_a_training, most_s = self.chance.random() < share, 4.0 if name == "watch" else 9.0
        until = time.monotonic() + 60
        while for_a_training and not self._trains() and tool.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        with suppress(subprocess.TimeoutExpired):
            tool.wait(self.chance.expovariate(1 / 1.5) if for_a_training else self.chance.uniform(0.2, most_s))

    def _trains(self) -> bool:
        """Whether a training runs; the words of the tool name its program too."""
        words = (one for one in map(_words, self._trainings()) if "-m jointopt" not in one)
        return any("train.py {" not in one and "train.py " in one for one in words)

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                mine = process.environ().get("STAND_IN_NVML") == str(self.folder / "gpus")
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _trainings(self) -> list[psutil.Process]:
        return [process for process in self._processes() if not _is_guardian(process)]

    def _guardians(self) -> list[psutil.Process]:
        return [process for process in self._processes() if _is_guardian(process)]

    def _set(self) -> int:
        """Clocks and limits that are not the driver's."""
        file = self.folder / "gpus" / "calls"
        state = {(what.replace("reset", "lock"), gpu): int(value) for what, gpu, value in
                 map(str.split, file.read_text().splitlines() if file.exists() else ())}  # fmt: skip
        return sum(value != {"lock": 1980, "limit": 700_000}[what] for (what, _), value in state.items())

    def _rows(self) -> Counter[str]:
        """Hashes of the rows of the database now; raises where it is damaged."""
        if not self.database.exists():
            return Counter()
        with closing(sqlite3.connect(self.database, timeout=60)) as db:
            if db.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                raise SystemExit(f"{self.database} is damaged")
            with suppress(sqlite3.OperationalError):
                return Counter(row for (row,) in db.execute("SELECT content_hash FROM jointopt_measurements"))
        return Counter()

    def _false_oom(self) -> int:
        if not self.database.exists():
            return 0
        with closing(sqlite3.connect(self.database, timeout=60)) as db, suppress(sqlite3.OperationalError):
            wanted = "SELECT count(*) FROM jointopt_measurements WHERE json_extract(content, '$.status') = 'oom'"
            return int(db.execute(wanted).fetchone()[0])
        return 0


def _is_guardian(process: psutil.Process) -> bool:
    """Whether it is a guardian, or what one has started to put clocks back."""
    words = _words(process)
    return "guardian.py" in words or words.endswith("import restore; restore()")


def _has_ended(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def _is_json(line: str) -> bool:
    with suppress(ValueError):
        return bool(json.loads(line))
    return False


def _words(process: psutil.Process) -> str:
    """The command line of a process; blank once it is gone."""
    with suppress(psutil.Error, OSError):
        return " ".join(process.cmdline())
    return ""


def _count(file: Path) -> int:
    """Rows of a database; none where whoever made it was killed before it had tables."""
    with closing(sqlite3.connect(file)) as db, suppress(sqlite3.OperationalError):
        return int(db.execute("SELECT count(*) FROM jointopt_measurements").fetchone()[0])
    return 0


def main() -> int:
    """Print what was wrong after so many kills; how much that was."""
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, as would commands
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    field, names, wrong = Field(folder, random.Random(seed)), Counter[str](), Counter[str]()
    for number in range(count):
        name, found = field.kill(only)
        names[name] += 1
        wrong += found
        if found or number % 10 == 9:
            print(f"{number + 1} kills, {name}: {dict(found)}; in all {dict(wrong)}", flush=True)
    changes = folder / "changes"
    followed = len(changes.read_text().splitlines()) if changes.exists() else 0
    ran = sum(_count(file) for file in folder.glob("runs-*.db"))
    print(f"{count} kills of {dict(names)}; {ran:,} rows stored, {followed:,} changes of clocks")
    print(f"wrong: {dict(wrong) or 'nothing'}")
    if not wrong:
        shutil.rmtree(folder)
    return sum(wrong.values())


if __name__ == "__main__":
    sys.exit(bool(main()))
