"""Options of the commands that run plans for real: the launcher, and its own options."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from jointopt.cli import common, settings

F = TypeVar("F", bound=Callable[..., Any])

_FAILED, _INTERRUPTED, _TERMINATED = 1, 130, 143
_RESERVED_NAMES = ("name", "spread", "set")  # other arguments of the functions behind the commands
_CLUSTER = "slurm"
# launchers whose runs are children of this process
_LOCAL_LAUNCHERS = (
    "torchrun",
    "megatron",
    "megatron-bridge",
    "torchtitan",
    "nanotron",
    "deepspeed",
    "command",
    "replay",
)
_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--launcher",
        {
            "required": True,
            "help": "torchrun, megatron, megatron-bridge, torchtitan, nanotron, deepspeed, slurm, command, replay, or "
            "an added one.",
        },
    ),
    ("--table", {"type": common.PATH, "help": "Recorded runs, for replay."}),
    ("--checkout", {"type": common.PATH, "help": "Folder of the framework, for megatron, megatron-bridge, nanotron."}),
    ("--script", {"type": common.PATH, "help": "Training script, for deepspeed, or instead of a framework's own."}),
    ("--arguments", {"help": "Arguments of the framework's script, before the plan's, such as '--recipe NAME'."}),
    ("--version", {"help": "Version of the framework; by default the checkout's, or the newest known."}),
    ("--by", {"help": "What starts a framework: local, slurm or command; by default this machine, or --command."}),
    (
        "--command",
        {
            "help": "For command and slurm: a program whose words hold {dp}, {tp}, ... and {result}. For a framework: "
            "what runs {start} on every node."
        },
    ),
    ("--program", {"help": "What slurm runs: torchrun, command, or a framework."}),
    ("--folder", {"type": common.PATH, "help": "Shared folder for the files of slurm, or of a command that starts."}),
    (
        "--limit-s",
        {
            "type": click.FloatRange(min=0, min_open=True),
            "help": "Time limit of a run, in seconds; default: 600 for torchrun, else 1800.",
        },
    ),
    ("--iterations", {"type": click.IntRange(min=1), "help": "Iterations that are measured; default: 10."}),
    (
        "--warmup-iterations",
        {"type": click.IntRange(min=0), "help": "Iterations before those; default: 3 for torchrun and slurm, else 5."},
    ),
    ("--logs", {"type": common.PATH, "help": "Folder that keeps the log of each run; slurm has them in --folder."}),
    (
        "--default-clocks",
        {"is_flag": True, "default": None, "help": "Leave GPU clocks to the driver; rows hold those measured."},
    ),
    (
        "--set",
        {
            "multiple": True, "metavar": "NAME=VALUE",
            "help": "Any other option of the launcher, or a key of the job file: cluster.nodes=4.",
        },
    ),
)  # fmt: skip


# ``launcher`` and the options of the launchers, which `launcher_arguments` puts together; required, or not.
launcher_options = common.options(_OPTIONS)
optional_launcher = common.options((("--launcher", _OPTIONS[0][1] | {"required": False}), *_OPTIONS[1:]))
log = click.option(
    "--log", default="", metavar="mlflow|wandb",
    help="Log every run to this experiment tracker too, once it is stored.",
)  # fmt: skip


def begin_runs(launcher: str, options: Mapping[str, Any]) -> None:
    """Print how to put GPU clocks back that a killed run has left set, and let SIGTERM end the command with a line.

    Runs on this machine end with it; those of a cluster go on as after a kill.
    """
    from jointopt.measure.hardware.gpu_clocks import NOT_PUT_BACK
    from jointopt.report.real_runs import TERMINATED

    NOT_PUT_BACK.clear()
    common.offer_restore()
    local = launcher in _LOCAL_LAUNCHERS and options.get("by") != _CLUSTER

    def end(number: int, frame: object) -> None:
        if local:
            sys.exit(_TERMINATED)  # as any exception: what was started is ended, and clocks are put back
        os.write(2, f"{TERMINATED}\n".encode())
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    ours = threading.current_thread() is threading.main_thread()
    if ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def end_command(ctx: click.Context, stopped: str, fault: str) -> None:
    """Ends a command whose result is printed, with an exit code.

    130 after an interrupt, 1 where ``fault`` says why nothing was found, where it ``stopped`` before its time, or where
    clocks could not be put back.
    """
    from jointopt.measure.hardware.gpu_clocks import NOT_PUT_BACK

    if fault := fault or "; ".join(NOT_PUT_BACK):
        common.remark(f"Error: {fault}")
    ctx.exit(_INTERRUPTED if stopped == "interrupted" else _FAILED if fault or stopped == "failed" else 0)


def job_changes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of the job file among ``--set``, by their keys: those with a dot, and those of its sections."""
    return dict(settings.key_and_value(pair) for pair in options["set"] if _is_of_job(pair))


def _is_of_job(pair: str) -> bool:
    from jointopt.jobs.jobfile import JOB_KEYS

    key = pair.partition("=")[0].strip()
    return "." in key or key in JOB_KEYS


def launcher_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for the launcher: those of the command line, and of ``--set``, read as YAML reads a value."""
    import yaml

    out = {name: value for name, value in options.items() if value is not None and name != "set"}
    for pair in itertools.filterfalse(_is_of_job, options["set"]):
        name, equals, text = pair.partition("=")
        if not (name and equals and text.strip()):
            raise click.BadParameter(f"expected NAME=VALUE, got {pair!r}.", param_hint="--set")
        name = name.replace("-", "_")
        if name in {*click.get_current_context().params, *_RESERVED_NAMES} - options.keys():
            raise click.BadParameter(f"{name!r} is not an option of any launcher.", param_hint="--set")
        kind = dict(_OPTIONS).get("--" + name.replace("_", "-"), {}).get("type")
        try:  # by the rules of the option of that name, where there is one
            out[name] = yaml.safe_load(text) if kind is None else kind.convert(text, None, None)
        except yaml.YAMLError as error:
            raise click.BadParameter(
                f"{text!r} for {name} is not a value that YAML can read; brackets, braces and quotes come in pairs.",
                param_hint="--set",
            ) from error
        except click.BadParameter as error:
            raise click.BadParameter(f"{name}: {error.message}", param_hint="--set") from error
    return out
