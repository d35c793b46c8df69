"""What verbs print with ``--json`` is as their JSON Schemas say."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from jointopt.cli.main import jointopt
from jointopt.report.schemas import schema_of
from tests.cli.verbs import BEFORE, VERBS, write_inputs
from tests.schemas import MORE, STORED, document, verbs_with_documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with chdir(folder := tmp_path_factory.mktemp("verbs")):
        write_inputs(folder)
        for words in (*BEFORE, STORED):
            CliRunner().invoke(jointopt, words)
        yield folder


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("verb", verbs_with_documents())
def test_each_verb_prints_what_its_schema_describes(verb: str) -> None:
    schema, found = schema_of(verb), document(VERBS[verb])
    assert schema, f"jointopt {verb} has no schema: add its words to tests/cli/verbs.py, run python -m tests.schemas"
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(found)
    assert isinstance(found, list) or found["schema"] == schema["$id"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("verb", "words"), [(verb, words) for verb in ("tune", "select") for words in MORE[verb]])
def test_studies_of_both_kinds_and_runs_for_time_alone_are_described_too(verb: str, words: str) -> None:
    jsonschema.Draft202012Validator(schema_of(verb)).validate(document([verb, *shlex.split(words)]))


def test_a_command_prints_its_schema_with_units() -> None:
    shown = CliRunner().invoke(jointopt, ["explain", "--json-schema"]).stdout
    assert '"$id": "urn:jointopt:explain:' in shown
    assert "In joules" in shown


def test_a_document_without_a_required_key_is_refused() -> None:
    check = jsonschema.Draft202012Validator(schema_of("export"))
    assert next(error.validator for error in check.iter_errors({"words": []})) == "required"
