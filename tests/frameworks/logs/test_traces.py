"""Lines of dcgmi, dcgm-exporter and nvidia-smi into samples."""

from __future__ import annotations

import math
from datetime import datetime

import pytest

from jointopt.frameworks.meter_logs import is_trace, read_trace, time_in
from tests.frameworks.logs.trace_texts import dmon, exporter, smi

START = 1_790_000_000.0


def test_a_header_that_stands_again_and_again_is_no_sample() -> None:
    found = read_trace(dmon(START, 30))
    assert (found.program, found.unread, len(found.samples)) == ("dcgmi dmon", 0, 62)
    gpu, at, values = found.samples[-1]
    assert (gpu, at) == ("GPU 1", START + 30)
    assert values == pytest.approx({"power_w": 401.0, "energy_j": 7000.0 + 401.0 * 30, "temperature_c": 61.0})


def test_fields_that_a_gpu_does_not_have_are_unknown() -> None:
    (_, _, values), *_ = read_trace(dmon(START, 1, TOTEC="N/A", TMPTR="N/A")).samples
    assert values == pytest.approx({"power_w": 400.0, "energy_j": math.nan, "temperature_c": math.nan}, nan_ok=True)
    blank = (
        exporter(START, 0, 1).replace(" 63\n", " 9223372036854775794\n").replace(" 400.000000", " 140737488355330.0")
    )
    values = {name: value for one in read_trace(blank).samples for name, value in one.values.items()}
    assert values == pytest.approx({"power_w": math.nan, "energy_j": 7000.0, "temperature_c": math.nan}, nan_ok=True)


def test_lines_that_are_no_samples_are_counted_and_the_first_is_shown() -> None:
    text = (
        dmon(START, 1, gpus=1).replace("GPU 0 ", "GPU-I 3 ", 1)
        + "Error: lost\n\ndmon was stopped do to receiving a signal\n"
    )
    found = read_trace(text + f"{START + 2:.3f} GPU 0     61           40")  # the last line is cut off
    assert (found.unread, len(found.samples)) == (3, 1)
    assert found.first_unread.startswith(f"{START + 2:.3f} GPU 0")
    assert read_trace(text.replace("Error: lost\n", "")).first_unread.startswith(f"{START:.3f} GPU-I 3")


def test_a_cell_that_is_no_number_spoils_its_line_alone() -> None:
    found = read_trace(dmon(START, 3, gpus=1).replace("400.100", "4o0.100", 1))
    assert (found.unread, len(found.samples)) == (1, 3)


@pytest.mark.parametrize(
    ("prefix", "at"),
    [
        ("[2026-09-21 14:13:20.250] ", datetime(2026, 9, 21, 14, 13, 20, 250_000).timestamp()),
        ("2026-09-21T14:13:20.25+0000 ", 1_790_000_000.25),
        ("1790000000.25 ", 1_790_000_000.25),
        ("Sep 21 14:13:20 ", math.nan),  # of which year?
        ("", math.nan),
    ],
)
def test_a_time_before_a_line_is_that_of_its_sample(prefix: str, at: float) -> None:
    found = read_trace(dmon(START, 1, prefix=prefix))
    assert found.samples[0].time_s == pytest.approx(at, nan_ok=True)
    assert found.universal == (prefix.startswith("179") or "+0000" in prefix)
    assert time_in(prefix) == pytest.approx(at, nan_ok=True)


@pytest.mark.parametrize("federated", [False, True])
def test_metrics_have_the_time_of_a_federation_or_of_the_line_before_a_scrape(federated: bool) -> None:
    found = read_trace(exporter(START, 2, federated=federated))
    assert (found.program, found.unread) == ("dcgm-exporter", 0)
    assert {(one.gpu, one.time_s) for one in found.samples} == {
        (f"node1 GPU {gpu}", START + after) for gpu in range(2) for after in range(3)
    }
    assert {name for one in found.samples for name in one.values} == {"power_w", "energy_j", "temperature_c"}


def test_an_instance_of_a_gpu_is_not_the_gpu() -> None:
    text = exporter(START, 1, gpus=1).replace(
        'Hostname="node1"', 'GPU_I_PROFILE="2g.20gb",GPU_I_ID="3",Hostname="node1"'
    )
    assert read_trace(text).samples == ()


def test_nvidia_smi_states_units_or_not_and_what_it_cannot_read() -> None:
    plain = smi(START, 1).replace(" W,", ",", 1).replace("400.10 W", "[Unknown Error]")
    found = read_trace(plain + "GPU is lost\n", "node2.csv")
    assert (found.program, found.unread, found.universal) == ("nvidia-smi", 1, False)
    assert [one.gpu for one in found.samples[:2]] == ["GPU 0 of node2.csv", "GPU 1 of node2.csv"]
    assert found.samples[0].time_s == START
    assert [one.values["power_w"] for one in found.samples] == pytest.approx([400, 401, math.nan, 401.1], nan_ok=True)


@pytest.mark.parametrize("name", ["power.draw [W]", "power.draw.average [W]", "power.draw.instant [W]"])
def test_each_kind_of_power_that_nvidia_smi_writes_is_in_watts(name: str) -> None:
    found = read_trace(smi(START, 1, 1).replace("power.draw [W]", name))
    assert [one.values for one in found.samples] == [
        {"power_w": power, "temperature_c": 62.0} for power in (400.0, 400.1)
    ]


@pytest.mark.parametrize(("before", "after", "unread"), [
    (" 61234 MiB", " 61234 MiB, 5", 2),  # a cell more than columns
    ("index", "gpu_name", 2),  # no column names a GPU
    ("index", "uuid", 0), ("index", "pci.bus_id", 0),
])  # fmt: skip
def test_a_row_of_nvidia_smi_has_a_cell_for_each_column_and_names_a_gpu(before: str, after: str, unread: int) -> None:
    found = read_trace(smi(START, 1, 1).replace(before, after))
    assert (found.unread, len(found.samples)) == (unread, 2 - unread)


@pytest.mark.parametrize(
    "text", ["# Entity settings\nGPU 0\n", "timestamp,loss\n1,2\n", "# HELP DCGM_FI_DEV_SM_CLOCK x\n"]
)
def test_other_texts_are_no_trace(text: str) -> None:
    assert not is_trace(text)
