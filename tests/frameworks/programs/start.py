"""Started by tests: runs a training script under the exports of several plans in turn, as torchrun would.

The script's module, and with it PyTorch and the framework, is imported once; the processes of every plan are forked
from there, in the folder of the plan, with torchrun's environment variables, and write into its ``run.log``.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

# What frameworks import when they train; each process would do so again.
PRELOADED = (
    "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp", "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel", "torch.distributed.tensor.experimental", "torch.testing",
    "torch.export._trace", "torch.utils.cpp_extension",
)  # fmt: skip


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def rank(script: str, plan: dict[str, object], number: int, port: int) -> None:
    """One process of a plan: its log is the folder's, its words those of the export."""
    os.chdir(str(plan["folder"]))
    log = os.open("run.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for output in (1, 2):
        os.dup2(log, output)
    size = str(plan["processes"])
    os.environ.update(
        RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )  # fmt: skip
    sys.argv = [script, *map(str, plan["words"])]  # type: ignore[call-overload]
    importlib.import_module(script).main()


def run(script: str, plan: dict[str, object]) -> bool:
    """Whether a process of the plan failed; tried once more where another program took the port meanwhile."""
    if not attempt(script, plan):
        return False
    log = Path(str(plan["folder"]), "run.log")
    if "EADDRINUSE" not in log.read_text(errors="replace"):
        return True
    log.unlink()
    return attempt(script, plan)


def attempt(script: str, plan: dict[str, object]) -> bool:
    """Whether a process of the plan failed; the others are ended then, as torchrun does, for they would wait for it."""
    port, children = free_port(), []
    for number in range(int(str(plan["processes"]))):
        if not (child := os.fork()):
            try:
                rank(script, plan, number, port)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    for _ in range(len(children)):
        ended, status = os.wait()
        children.remove(ended)
        if status:
            for child in children:
                os.kill(child, signal.SIGKILL)
            for child in children:
                os.waitpid(child, 0)
            return True
    return False


if __name__ == "__main__":
    script, plans = sys.argv[1:]
    sys.argv[1:] = []  # which torchtitan reads when it is imported
    for module in (*PRELOADED, script):
        importlib.import_module(module)
    for one in json.loads(Path(plans).read_text()):
        (Path(one["folder"]) / "code").write_text(str(int(run(script, one))))
