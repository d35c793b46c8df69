"""What a run was made with, from its log: the framework's version, and the networks that NCCL names."""

from __future__ import annotations

import pytest

from jointopt.frameworks.logs import fabric_of, flags_text, version_by_options, version_of
from jointopt.frameworks.options import option_table

NODE = "qh100-gpu19:49357:49418 [3] NCCL INFO "
PORTS = "NET/IB : Using [0]mlx5_0:1/{0} [1]mlx5_1:1/{0} [RO]; OOB ibp25s0:10.20.0.119<0>\n"


@pytest.mark.parametrize(
    ("lines", "fabric"),
    [
        ([PORTS.format("IB/SHARP"), "Using network IBext\n"], "InfiniBand (2 ports)"),
        ([PORTS.format("RoCE"), "Using network IB\n"], "RoCE (2 ports)"),
        (["NET/IB : No device found.\n", "NET/Socket : Using [0]ens3:172.31.0.11<0>\n"], "Ethernet"),
        ([PORTS.format("IB"), "NET/Socket : Using [0]ib0:10.0.0.1<0>\n", "Using network Socket\n"],
         "IP over InfiniBand"),
        (["NET/OFI Selected Provider is efa (found 4 nics)\n", "Using network AWS Libfabric\n"], "EFA"),
        (["Channel 00/0 : 155[3] -> 153[1] via P2P/CUMEM\n"], "peer to peer within a node"),
        (["NVLS multicast support is available on dev 3\n", "Channel 00 : 1[3] -> 0[1] via P2P/IPC\n"],
         "NVLink SHARP within a node"),
    ],
)  # fmt: skip
def test_the_networks_are_those_that_nccl_chose(lines: list[str], fabric: str) -> None:
    assert fabric_of("".join(NODE + line for line in lines)) == fabric
    assert fabric_of("NET/IB is what this log talks about, and nothing more") == ""


@pytest.mark.parametrize(("log", "framework", "version"), [
    ("[titan] - INFO - torchtitan version: 0.2.2 (0.0.0 means __version__ is not defined)", "torchtitan", "0.2.2"),
    ("[titan] - INFO - torchtitan version: 0.0.0 (0.0.0 means __version__ is not defined)", "torchtitan", ""),
    ("[INFO] [logging.py:96:log_dist] DeepSpeed info: version=0.14.2, git-hash=unknown", "deepspeed", "0.14.2"),
    ("DeepSpeed info: version=0.14.2, git-hash=unknown", "torchtitan", ""),
])  # fmt: skip
def test_a_program_introduces_itself_with_its_version(log: str, framework: str, version: str) -> None:
    assert version_of(log, framework) == version


@pytest.mark.parametrize(
    ("version", "bounds"), [("0.12", "<0.13"), ("0.14", ">=0.14 <0.15"), ("0.16.1", ">=0.16 <0.19"), ("0.19", ">=0.19")]
)
def test_the_list_of_all_options_bounds_the_version(version: str, bounds: str) -> None:
    options = {name.replace("-", "_") for name, one in option_table("megatron").items() if one.known_to(version)}
    assert version_by_options(options) == bounds


def test_flags_are_one_cell_of_words_without_blanks_in_them() -> None:
    assert flags_text({"manual_gc": True, "fp8_recipe": "tensorwise", "names": ["a b", "c"]}) == (
        "fp8_recipe=tensorwise manual_gc names=ab,c"
    )
