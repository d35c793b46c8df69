"""``jointopt explain``: options of its own."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt

PLAN = ("explain", "opt-350m-2x4-a100", "--plan", "dp=4 tp=2", "--surrogate", "none", "--storage", "none")


def explain(*more: object) -> Result:
    return CliRunner().invoke(jointopt, [*PLAN, "--json", *map(str, more)])


def test_the_energy_of_the_site_grows_with_the_pue_and_that_of_the_gpus_stays() -> None:
    low, high = (json.loads(explain("--pue", pue).stdout) for pue in (1.0, 1.5))
    assert high["facility_energy_j"] == pytest.approx(1.5 * low["facility_energy_j"])
    assert high["energy_j"] == low["energy_j"]
    assert low["facility_energy_by_part_j"]["overhead"] == 0.0


@pytest.mark.parametrize("pue", ["0.99", "11", "good"])
def test_a_pue_that_no_site_has_is_refused_in_one_sentence(pue: str) -> None:
    result = explain("--pue", pue)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: Invalid value for '--pue'")
