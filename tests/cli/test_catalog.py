import io
import json

import pandas as pd
import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.jobs.catalog.gpus import gpu_ids


@pytest.mark.parametrize("what", ["gpus", "models", "frameworks", "clusters", "jobs"])
def test_a_listing_prints_one_json_document(what: str) -> None:
    result = CliRunner().invoke(jointopt, ["catalog", what, "--json"])
    assert result.exit_code == 0
    assert isinstance(json.loads(result.stdout), list)


@pytest.mark.parametrize("what", ["gpus", "frameworks", "recipes"])
def test_a_listing_is_a_table_of_its_rows_in_each_format(what: str) -> None:
    def listed(form: str) -> str:
        return CliRunner().invoke(jointopt, ["catalog", what, "--format", form]).stdout

    rows = json.loads(listed("json"))
    table = pd.read_csv(io.StringIO(listed("csv")))
    assert (len(table), next(iter(table))) == (len(rows), next(iter(rows[0])))
    assert listed("markdown").count("\n") == len(rows) + 2


def test_the_table_of_gpus_has_names_and_figures() -> None:
    result = CliRunner().invoke(jointopt, ["catalog", "gpus"])
    assert "h100-sxm5-80gb" in result.stdout
    assert "TFLOP/s" in result.stdout


def test_every_gpu_is_in_the_table() -> None:
    lines = CliRunner().invoke(jointopt, ["catalog", "gpus"]).stdout.splitlines()
    assert {*gpu_ids()} <= {line.split()[0] for line in lines if line.strip()}


def test_published_plans_are_listed_by_model() -> None:
    result = CliRunner().invoke(jointopt, ["catalog", "recipes", "--model", "gpt3", "--json"])
    found = json.loads(result.stdout)
    assert {recipe["model"] for recipe in found} == {"gpt3-175b"}
    assert all("arXiv" in recipe["source"] or "mlcommons" in recipe["source"] for recipe in found)


def test_an_unknown_listing_names_the_known_ones() -> None:
    result = CliRunner().invoke(jointopt, ["catalog", "gpu"])
    assert result.exit_code == 2
    assert "gpus" in result.stderr
