"""Text for other programs arrives as it was given."""

from __future__ import annotations

import subprocess
import tomllib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core import quote
from jointopt.core.errors import UsageError
from tests.campaign.canaries import HOSTILE, sbatch_words
from tests.each import each

texts = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.lists(texts.filter(lambda text: "\0" not in text), max_size=4)


@settings(deadline=None, max_examples=40)
@given(words, st.sampled_from(HOSTILE))
def test_words_and_files_of_a_shell_arrive(given_words: list[str], content: str) -> None:
    content = content.replace("\0", "")
    script = f"printf '%s\\0' {quote.sh_command(given_words)}\n{quote.sh_file('/dev/stdout', content)}"
    ran = subprocess.run(["bash"], input=script.encode(), capture_output=True, check=True)
    *arrived, text = ran.stdout.decode().split("\0")
    assert (arrived or [""], text) == (given_words or [""], content.rstrip() + "\n")


@settings(deadline=None, max_examples=40)
@given(words, st.integers(2, 30))
def test_a_command_in_lines_is_the_same_command_and_a_plan_s_words_keep_their_order(
    others: list[str], degrees: int
) -> None:
    plan = " ".join(f"d{number}=6*4;3" for number in range(degrees))
    lines = quote.sh_lines(quote.sh_command(["export", *others, "--plan", plan]))
    ran = subprocess.run(["bash"], input=f"printf '%s\\0' {lines}".encode(), capture_output=True, check=True)
    *arrived, last, nothing = ran.stdout.decode().split("\0")
    assert (arrived, last.split(), nothing) == (["export", *others, "--plan"], plan.split(), "")
    assert max(map(len, quote.sh_lines(f"export --plan '{plan}'").split("\n"))) <= 78


@each("text", HOSTILE)
def test_an_option_of_sbatch_is_one_word_of_its_line_or_refused(text: str) -> None:
    try:
        line = quote.sbatch_line(f"--job-name={text}")
    except UsageError:
        assert not text.isprintable()
    else:
        assert sbatch_words(line.removeprefix("#SBATCH")) == [f"--job-name={text}"]


@given(st.dictionaries(texts, texts | st.lists(texts, max_size=2) | st.booleans() | st.floats(allow_nan=False)))
def test_settings_are_read_back_from_yaml(values: dict[str, object]) -> None:
    assert yaml.safe_load(quote.yaml_text({"a": values, "b": values})) == {"a": values, "b": values}


@given(st.dictionaries(texts.filter(bool), texts | st.lists(texts, max_size=2) | st.booleans() | st.integers(0, 9)))
def test_settings_are_read_back_from_toml(values: dict[str, object]) -> None:
    assert tomllib.loads(quote.toml_text({"a.b": values})) == {"a": {"b": values}}


@given(texts)
def test_text_of_a_table_is_no_formula_and_comes_back(text: str) -> None:
    cell = quote.csv_cell(text)
    assert cell == text or not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert quote.csv_original(cell) == text


@pytest.mark.parametrize("number", ["-5.3", "+5", "-1e-3", "-.5", "5", "0.25", "-12345678901234567890"])
def test_numbers_of_a_table_stay_numbers(number: str) -> None:
    assert quote.csv_cell(number) == quote.csv_original(number) == number


@each("text", HOSTILE)
def test_a_comment_is_the_rest_of_its_line_and_python_text_a_literal(text: str) -> None:
    assert len(f"# {quote.comment(text)}".splitlines()) == 1
    assert eval(quote.python_text(text)) == text
    assert "\n" not in quote.python_text(text)


@pytest.mark.parametrize("path", ["//host", "/\\host", "\\\\host/x", "/a\r\nX: y", "/\t/host", "/ünï?b#c", "/a b"])
def test_an_address_names_no_other_host_and_ends_no_header(path: str) -> None:
    url = quote.local_url(path, [("a", "b\r\nc"), ("d", "&e")])
    assert url[0] == "/" != url[1:2]
    assert not set(url) & set('\\\r\n\t "<>')
    assert url.endswith("?a=b%0D%0Ac&d=%26e")


def test_places_with_commas_are_not_mounted() -> None:
    assert quote.container_mounts(["/a b", "/in:/out"]) == "/a b,/in:/out"
    with pytest.raises(UsageError, match="cannot be mounted"):
        quote.container_mounts(["/a,/etc:/etc"])


def test_a_command_to_copy_has_no_text_for_an_option() -> None:
    assert quote.our_command("select", "a b", storage="sqlite:///x.db") == (
        "jointopt select 'a b' --storage sqlite:///x.db"
    )
    assert quote.our_command("select", "-x", storage="-y", study=None) == "jointopt select --storage=-y -- -x"
