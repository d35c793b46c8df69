"""Every verb of the command line with arguments that it can do its work with, and the files that these name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.cli.forked import Ended, Forks, Surroundings
from tests.conftest import _synthetic

JOB, PLAN = "opt-350m-2x4-a100", ("--plan", "dp=8 micro_batch_size=4")
PHYSICS = ("--surrogate", "none")
VERBS = {
    "propose": ("propose", JOB, *PHYSICS, "--storage", "none", "--out", "new", "--quiet"),
    "explain": ("explain", JOB, *PLAN, *PHYSICS),
    "scale": ("scale", JOB, "--gpus", "8", *PHYSICS),
    "select": ("select", "out"),
    "export": ("export", "llama-3-8b-1x8-h100", "--plan", "dp=4 tp=2 zero_stage=2", "--to", "torchtitan",
               "--out", "new"),
    "import": ("import", "train.sh", "--gpu", "h100-sxm5-80gb", "--out", "imported.yaml"),
    "predict": ("predict", "runs.csv", "--out", "predicted.csv", *PHYSICS),
    "evaluate": ("evaluate", "runs.csv", *PHYSICS),
    "ingest": ("ingest", "runs.csv"),
    "retrain": ("retrain", "--table", "runs.csv", "--out", "mine"),
    "report": ("report", "out", "--out", "report.html"),
    "check a store": ("store", "check"),
    "back up a store": ("store", "backup", "copy.db"),
    "export a store": ("store", "export", "all.csv"),
    "repair a store": ("store", "repair"),
    "catalog": ("catalog", "gpus"),
    "tune": ("tune", JOB, "--launcher", "replay", "--table", "runs.csv", "--budget", "1", *PHYSICS,
             "--storage", "none"),
    "doctor": ("doctor", "--quick"),
    "script": ("script", JOB, "--launcher", "slurm", "--folder", "new", "--plan", "tp=2 pp=2 mbs=1"),
    "check": ("check", JOB),
    "compare": ("compare", JOB, *PLAN, "--plan", "dp=4 tp=2", *PHYSICS),
    "goodput": ("goodput", JOB, "--plan", "dp=8 mbs=1", "--run-tokens", "1e11", *PHYSICS),
    "follow": ("follow", JOB, *PLAN, "--signal", "limits.csv", *PHYSICS, "--load", "load.csv"),
    "watch": ("watch", "ranks.csv"),
    "fleet": ("fleet", JOB, JOB, "--site-kw", "9", *PHYSICS),
    "polish": ("polish", "opt-350m-8x4-gh200", "--plan", "dp=8 pp=4 mbs=16 clock=1980", "--solver", "linear", *PHYSICS),
    "calibrate": ("calibrate", "profile.csv", "--gpu", "a100-sxm4-40gb", "--out", "cal.yaml"),
    "put clocks back": ("clocks", "restore"),
    "validate": ("validate", JOB, "--launcher", "replay", "--table", "runs.csv", *PHYSICS, "--top", "1"),
    "work": ("work", JOB, *PHYSICS, "--trials", "8"),
    "work with runs": ("work", JOB, *PHYSICS, "--launcher", "command", "--command", "cp FOLDER/result.json {result}",
                       "--trials", "2", "--batch", "1"),
    "exec": ("exec", "--default-clocks", "--plan", "plan.json", "--", "true"),
    "dashboard": ("dashboard", "--port", "0"),
    "completion": ("completion", "bash"),
    "help": ("--help",),
    "propose and keep": ("propose", JOB, *PHYSICS, "--storage", "sqlite:///new.db", "--report", "new.html"),
}  # fmt: skip
SERVERS = ("dashboard",)
BARE = {"HOME": None, "XDG_STATE_HOME": None, "USER": None, "LOGNAME": None}
PROFILE = """stage,instruction,frequency,time,energy
0,forward,1410,0.05,19
0,forward,1260,0.0555,17.1
0,forward,1125,0.0615,15.6
0,forward,990,0.069,15.7
0,forward,855,0.0785,16
"""


BEFORE = (("propose", JOB, *PHYSICS, "--study", "kept", "--out", "out", "--quiet"), ("ingest", "runs.csv"))


def write_inputs(folder: Path) -> None:
    """Writes the files that the verbs read, but for what `BEFORE` makes."""
    _synthetic(rows=12).to_csv(folder / "runs.csv", index=False)
    (folder / "profile.csv").write_text(PROFILE)
    ranks = "".join(f"{i},{rank},{1 + rank % 2 / 100}\n" for i in range(40) for rank in range(4))
    (folder / "ranks.csv").write_text(f"iteration,rank,time_s\n{ranks}")
    (folder / "limits.csv").write_text("time_s,limit_kw\n0,9\n3600,4\n7200,")
    (folder / "plan.json").write_text(json.dumps(dict.fromkeys(("dp", "tp", "pp", "cp"), 1)))
    (folder / "result.json").write_text(json.dumps({"iteration_time_s": 1.0, "energy_j": 9e3}))
    shutil.copy(Path(__file__).parents[1] / "frameworks/imports/samples/megatron_llama3_8b.sh", folder / "train.sh")


def prepare(folder: Path, forks: Forks) -> Path:
    """The folder, with the files that the verbs name."""
    write_inputs(folder)
    for words in BEFORE:
        ended = forks.run(folder, words, Surroundings())
        assert ended.code == 0, ended.err
    return folder


def start(verb: str, folder: Path, forks: Forks, within: Surroundings) -> Ended:
    """How a verb ends in that folder."""
    words = [word.replace("FOLDER", str(folder)) for word in VERBS[verb]]
    return forks.run(folder, words, within, serves=verb in SERVERS)


def is_answered(ended: Ended) -> bool:
    """Whether no traceback was printed, and an end of another code than 0 has its sentence."""
    text = ended.out + ended.err
    spoke = ended.code == 0 or "Error: " in ended.err or "Fault: " in ended.out
    return spoke and ended.code in (0, 1, 2, 130) and "Traceback" not in text and "Exception ignored" not in text
