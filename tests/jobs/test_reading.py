from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import JobError
from jointopt.jobs.reading import dump_yaml, package_yaml, parse_yaml, read_text
from tests.each import each

TEXT = st.text(max_size=10).filter(str.isprintable)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
NESTED = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner), max_leaves=9)


@settings(deadline=None)
@given(st.dictionaries(TEXT, NESTED, max_size=4))
def test_what_is_written_is_read_back(mapping: dict[str, object]) -> None:
    assert parse_yaml(dump_yaml(mapping)) == mapping


def test_a_number_with_an_exponent_is_a_number() -> None:
    assert parse_yaml("a: 9e3\nb: 1.5E-2\nc: '9e3'") == {"a": 9000.0, "b": 0.015, "c": "9e3"}


@each(
    ("text", "sentence"),
    [
        ("", "holds nothing"),
        ("- a", "holds a list"),
        ("a: 1\na: 2", "line 2: the key 'a' is given twice"),
        ("a: &x 1\nb: *x", "anchors and aliases"),
        ("a: !!python/object:os.system x", "tags"),
        ("a: " + "[" * 50, "levels deep"),
        ("{" * 100_000, "levels deep"),
        ("a: [", "line 1, column 5: not valid YAML: expected the node content, but found the end of the file."),
        ("a:\n  b: 1\n c: 2", "line 3, column 2: not valid YAML: expected a line indented as those before it, but"),
        ("a: " + "1" * 5000, "not valid YAML"),
        ("a: \x00", "not valid YAML"),
        ("? [a]\n: 1", "is not a word"),
        ("# " + "x" * 300_000, "characters"),
    ],
)
def test_yaml_that_is_no_plain_mapping_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        parse_yaml(text)


def test_a_directory_a_missing_file_a_binary_file_and_a_huge_one_are_one_sentence_each(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge").write_bytes(b" " * 5_000_000)
    cases = {".": "is a directory", "none": "does not exist", "binary": "not a text file", "huge": "larger than"}
    for name, sentence in cases.items():
        with pytest.raises(JobError, match=sentence):
            read_text(tmp_path / name)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_a_path_that_no_system_has_is_one_sentence(path: str) -> None:
    with pytest.raises(JobError):
        read_text(Path(path))


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert parse_yaml(read_text(tmp_path / "job.yaml")) == {"a": 1}


def test_merged_keys_of_a_catalogue_stand_before_its_own_and_the_first_merged_counts(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: &a {one: 1, two: 2}\nb: &b {two: 3, three: 3}\nc: {four: 4, <<: [*a, *b]}\n")
    merged = package_yaml(tmp_path / "x.yaml")["c"]
    assert merged == {"one": 1, "two": 2, "three": 3, "four": 4}
    assert list(merged)[-1] == "four"
