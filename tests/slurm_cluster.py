"""A Slurm of three nodes on this machine, started for the tests and ended with them; no systemd, cgroup or database."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from jointopt.measure.hardware.guard.guarded import end_with_parent

NODES = ("n0", "n1", "n2")
_CONF = """\
ClusterName=jointopt_test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[3]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MinJobAge=3600
KillWait=2
SlurmdTimeout=4
MessageTimeout=2
InactiveLimit=0
SlurmctldTimeout=10
JobRequeue=1
OverTimeLimit=0
PartitionName=main Nodes={nodes} Default=YES MaxTime=60 State=UP
PartitionName=short Nodes={nodes} MaxTime=1 State=UP
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=1000 Gres=gpu:h100:4\n"


class Cluster:
    """Daemons in the foreground, children of the tests: they end with them, whatever happens."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.conf = folder, folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._lost: dict[str, list[psutil.Process]] = {}

    def start(self) -> None:
        for name in ("munge", "state", "spool", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir()
        self._configure()
        self._start_munge()
        self._start_controller()
        for node in NODES:
            self.start_node(node)
        wait_for(lambda: self.states() == {"idle"}, "nodes are idle")

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node, "-f", str(self.conf))

    def restart_controller(self) -> None:
        """The controller is away for a moment, as after an update."""
        self._daemons["slurmctld"].kill()
        self._daemons["slurmctld"].wait()
        time.sleep(1)
        self._start_controller()

    def _start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))

    def lose_node(self, node: str) -> None:
        """The node falls silent, as one does that lost its power: all that runs on it stops, and no socket closes."""
        self._lost[node] = self._of_node(node)
        for process in self._lost[node]:
            with suppress(psutil.Error):
                process.suspend()

    def replace_nodes(self) -> None:
        """Nodes that were lost come back, with nothing left of what ran on them."""
        while self._lost:
            node, processes = self._lost.popitem()
            for process in processes:
                with suppress(psutil.Error):
                    process.kill()
            self._daemons[node].wait()
            self.start_node(node)

    def states(self) -> set[str]:
        listed = self.run("sinfo", "--noheader", "--partition=main", "--format=%T")
        return set(listed.split())

    def run(self, *words: str, limit_s: float = 60) -> str:
        return subprocess.run(words, capture_output=True, text=True, timeout=limit_s).stdout.strip()

    def jobs(self) -> list[str]:
        """States of all jobs that are not over."""
        return self.run("squeue", "--noheader", "--format=%T").split()

    def stop(self) -> None:
        self.replace_nodes()
        ours = list(self._own())
        steps = {parent for process in ours if (parent := process.parent()) and parent.name() == "slurmstepd"}
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
        for process in [*steps, *ours, *self._own()]:
            with suppress(psutil.Error):
                process.kill()

    def _configure(self) -> None:
        host, ports = socket.gethostname().partition(".")[0], _free_ports(4)
        text = _CONF.format(host=host, ports=ports, folder=self.folder, nodes=",".join(NODES))
        nodes = [_NODE.format(name=name, host=host, port=port) for name, port in zip(NODES, ports, strict=False)]
        self.conf.write_text(text + "".join(nodes))
        gpus = [self.folder / f"gpu{i}" for i in range(4)]
        for gpu in gpus:  # Slurm insists on device nodes: these are as /dev/null
            os.mknod(gpu, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (self.folder / "gres.conf").write_text(f"Name=gpu Type=h100 File={self.folder}/gpu[0-3]\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")

    def _start_munge(self) -> None:
        home = self.folder / "munge"
        (home / "key").write_bytes(os.urandom(1024))
        (home / "key").chmod(0o600)
        home.chmod(0o711)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={home / name}" for option, name in files.items()]
        self._start("munged", "munged", "--force", "--foreground", *options)
        wait_for((home / "socket").exists, "munged listens")

    def _start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent,
                env={**os.environ, "SLURM_CONF": str(self.conf)},
            )  # fmt: skip

    def _own(self) -> Iterator[psutil.Process]:
        """Every process that bears this cluster's configuration, but the tests themselves."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == str(self.conf):
                    yield process

    def _of_node(self, node: str) -> list[psutil.Process]:
        """The node's daemon, its steps, which hide their environment, and all that they started."""
        started = [process for process in self._own() if process.environ().get("SLURMD_NODENAME") == node]
        steps = [parent for process in started if (parent := process.parent()) and parent.name() == "slurmstepd"]
        return [psutil.Process(self._daemons[node].pid), *steps, *started]


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 90.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes of 8 cores and 4 GPUs; the environment of this process is set up to speak to them."""
    missing = [name for name in ("sbatch", "slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"Slurm is not installed ({', '.join(missing)}): apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of its own is started by root alone")
    started = Cluster(tmp_path_factory.mktemp("slurm"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(started.conf))
        try:
            started.start()
            yield started
        finally:
            started.stop()
