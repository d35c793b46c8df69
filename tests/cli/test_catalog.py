import json

import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt


@pytest.mark.parametrize("what", ["gpus", "models", "frameworks", "clusters", "jobs"])
def test_a_listing_prints_one_json_document(what: str) -> None:
    result = CliRunner().invoke(jointopt, ["catalog", what, "--json"])
    assert result.exit_code == 0
    assert isinstance(json.loads(result.stdout), list)


def test_the_table_of_gpus_has_names_and_figures() -> None:
    result = CliRunner().invoke(jointopt, ["catalog", "gpus"])
    assert "h100-sxm5-80gb" in result.stdout
    assert "TFLOP/s" in result.stdout


def test_an_unknown_listing_names_the_known_ones() -> None:
    result = CliRunner().invoke(jointopt, ["catalog", "gpu"])
    assert result.exit_code == 2
    assert "gpus" in result.stderr
