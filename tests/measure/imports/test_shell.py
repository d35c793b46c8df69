"""Shell scripts read without being run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.measure.imports.shell import read_script


def words(script: str) -> list[str]:
    return max(read_script(script).commands, key=len)


@pytest.mark.parametrize(("script", "expected"), [
    ("A=4\ntrain --tp $A --pp ${B:-2}", ["train", "--tp", "4", "--pp", "2"]),
    ("A=4; B=$((A * 2 + 1)); train --n $B", ["train", "--n", "9"]),
    ("X=(--a 1 # first\n  --b '2 3'\n)\ntrain ${X[@]}", ["train", "--a", "1", "--b", "2 3"]),
    ('X=(--a 1)\nX+=("--b 2")\ntrain "${X[@]}"', ["train", "--a", "1", "--b", "2"]),
    ("O='--a 1 \\\n --b 2'\ntrain $O \\\n  --c 3 2>&1 | tee log", ["train", "--a", "1", "--b", "2", "--c", "3"]),
    ("export A=1 B=2\nC=3 train --abc $A$B", ["train", "--abc", "12"]),
    ("cd /x && train --a 1 > out.log", ["train", "--a", "1"]),
    ("#SBATCH --nodes=4\ntrain --n ${SLURM_NNODES}", ["train", "--n", "4"]),
    ("train --host $(hostname) --n $1", ["train", "--host", "§", "--n", "§1"]),
])  # fmt: skip
def test_the_words_of_a_command_are_those_that_a_shell_would_give(script: str, expected: list[str]) -> None:
    assert words(script) == expected


@pytest.mark.parametrize(("condition", "taken"), [
    ('[ "$A" = "x" ]', True), ('[[ $A == "y" ]]', False), ("[ -n $A ]", True), ('[ -z "$B" ]', True),
    ("[ 3 -gt 2 ]", True), ('[[ "$A" == "y" ]] || [[ -z "$B" ]]', True), ('[ $A = x ] && [ $A = y ]', False),
])  # fmt: skip
def test_conditions_on_known_variables_are_decided(condition: str, taken: bool) -> None:
    script = f'A=x\nB=""\nO="--base 1"\nif {condition}; then\n  O="$O --then 1"\nelse\n  O="$O --else 1"\nfi\ntrain $O'
    assert ("--then" in words(script), "--else" in words(script)) == (taken, not taken)


@pytest.mark.parametrize("condition", ["[ -f /etc/x ]", "[[ $1 == x ]]", '[ "$H" = y ] || [ $2 = x ]', "! [ 1 -eq 2 ]"])
def test_a_condition_that_only_a_shell_could_decide_is_left_out_and_named(condition: str) -> None:
    script = read_script(f'O="--a 1"\nif {condition}; then\n  O="$O --b 2"\nfi\ntrain $O\n')
    assert script.commands == [["train", "--a", "1"]]
    assert script.left_out == ['O="$O --b 2"']


@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    read_script(text + "\ntrain --a 1")
