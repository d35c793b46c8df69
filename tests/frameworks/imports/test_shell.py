"""Shell scripts read without being run."""

from __future__ import annotations

import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import JobError
from jointopt.frameworks.shell import read_script
from jointopt.frameworks.shell_words import forks_of, resolve_forks, split_words
from tests.each import each


def words(script: str) -> list[str]:
    return max(read_script(script).commands, key=len)


@pytest.mark.parametrize(("script", "expected"), [
    ("A=4\ntrain --tp $A --pp ${B:-2}", ["train", "--tp", "4", "--pp", "2"]),
    ("A=4; B=$((A * 2 + 1)); train --n $B", ["train", "--n", "9"]),
    ("X=(--a 1 # first\n  --b '2 3'\n)\ntrain \"${X[@]}\"", ["train", "--a", "1", "--b", "2 3"]),
    ('X=(--a 1)\nX+=("--b 2")\ntrain "${X[@]}"', ["train", "--a", "1", "--b", "2"]),
    ("O='--a 1 \\\n --b 2'\ntrain $O \\\n  --c 3 2>&1 | tee log", ["train", "--a", "1", "--b", "2", "--c", "3"]),
    ("export A=1 B=2\nC=3 train --abc $A$B", ["train", "--abc", "12"]),
    ("cd /x && train --a 1 > out.log", ["train", "--a", "1"]),
    ("#SBATCH --nodes=4\ntrain --n ${SLURM_NNODES}", ["train", "--n", "4"]),
    ("train --host $(hostname) --n $1", ["train", "--host", "$(hostname)", "--n", "$1"]),
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


@pytest.mark.parametrize(("test", "holds"), [  # of 1, 2 and 3 beside 2
    ("-lt", "yes no no"), ("-le", "yes yes no"), ("-gt", "no no yes"), ("-ge", "no yes yes"), ("-eq", "no yes no"),
    ("-ne", "yes no yes"), ("=", "no yes no"), ("==", "no yes no"), ("!=", "yes no yes"),
])  # fmt: skip
def test_numbers_are_compared_as_a_shell_does(test: str, holds: str) -> None:
    script = "if [ {number} {test} 2 ]; then train yes; else train no; fi"
    assert [words(script.format(number=number, test=test))[1] for number in (1, 2, 3)] == holds.split()


def values_of(script: str) -> list[list[str]]:
    """The words of the one command of a script, by the branch that is taken."""
    (run,) = read_script(script).runs
    forks = dict(fork for word in run.words for fork in forks_of(word.pieces))
    rows = (dict(zip(forks, row, strict=True)) for row in product(*map(range, forks.values())))
    return [[part for word in run.words for part in split_words(resolve_forks(word.pieces, row))] for row in rows]


@pytest.mark.parametrize(("text", "value"), [
    ("7 - 2", "5"), ("7 * N", "14"), ("7 / N", "3"), ("7 % 4 + 1", "4"), ("(7 + 1) * N", "16"), ("$N + 1", "3"),
    ("7 ** 2", "49"), ("-7 / 2", "-3"), ("-7 % 3", "-1"), ("010 + 1", "9"), ("0x10", "16"), ("N > 1 ? 8 : 4", "8"),
    ("7 / 0", "$((7 / 0))"), ("7 + M", "$((7 + M))"), ("7.5 + 1", "$((7.5 + 1))"),
])  # fmt: skip
def test_sums_are_of_whole_numbers(text: str, value: str) -> None:
    assert words(f"N=2\ntrain --n $(({text}))") == ["train", "--n", value]


BRANCHES = """if {first}; then
  O=one
elif {second}; then
  if [ 1 -eq 1 ]; then
    O=two
  fi
else
  O=three
fi
train $O"""


@pytest.mark.parametrize(("first", "second", "taken"), [
    ("[ 1 -eq 1 ]", "[ 1 -eq 1 ]", "one"), ("[ 1 -eq 2 ]", "[ 1 -eq 1 ]", "two"),
    ("[ 1 -eq 2 ]", "[ 1 -eq 2 ]", "three"), ("[ 1 -eq 1 ]", "[ -f x ]", "one"),
])  # fmt: skip
def test_one_branch_of_several_is_taken(first: str, second: str, taken: str) -> None:
    script = read_script(BRANCHES.format(first=first, second=second))
    assert (script.commands, script.unparsed) == ([["train", taken]], [])


def test_of_branches_that_only_a_shell_could_choose_each_is_read() -> None:
    script = BRANCHES.format(first="[ -f x ]", second="[ 1 -eq 1 ]")
    assert values_of(script) == [["train", "one"], ["train", "two"]]


# scripts of one command, and its words
AS_BASH_DOES = [
    ("case 70b in 70b) A=1 ;& 8b) A=2 ;; esac; a $A", "a 2"), ("case 70b in 7*) A=1 ;;& 70*) A=2 ;; esac; a $A", "a 2"),
    ("f() { [ $1 = 1 ]; }; if f 2; then A=1; else A=2; fi; a $A", "a 2"), ("f() { return 1; }; f || a 1", "a 1"),
    ("for i in 1 2; do for j in 3 4; do A=$i$j; break 2; done; done; a $A", "a 13"),
    ("IFS=, read -ra A <<< x,y; a ${A[1]} ${#A[@]}", "a y 2"), ("mapfile -t A < <(seq 1 4); a ${A[-1]}", "a 4"),
    ("while read -r k v; do declare \"$k=$v\"; done <<< 'A 4'; a $A", "a 4"), ("read A < <(echo 4); a $A", "a 4"),
    ("A=1; echo 4 | read A; a $A", "a 1"), ("A=1; { A=2; } & a $A", "a 1"), ("A=1; ( A=2 ); a $A", "a 1"),
    ("f() { local -n r=$1; r=4; }; f A; a $A", "a 4"), ("f() { declare -g A=4; }; A=1; f; a $A", "a 4"),
    ("declare -i A=2*2; A+=1; a $A", "a 5"), ("A=(1 2 3); a ${A[@]:1} ${A[@]/#/x}", "a 2 3 x1 x2 x3"),
    ("set --; a \"${@:1}\" 1", "a 1"),
    ("readonly A=1; A=2; a $A", "a 1"),
    ("A=(1 2); unset 'A[0]'; a ${A[1]}", "a 2"), ("for i in {x,y}{1..2}; do A=$A$i; done; a $A", "a x1x2y1y2"),
    ("A='b\nc'; OLD=$IFS; IFS=,; IFS=$OLD; a $A", "a b c"),
    ("A=a-b; IFS=-; a $A", "a a b"), ("[[ a-8x =~ -([0-9]+) ]] && a ${BASH_REMATCH[1]}", "a 8"),
    ("[[ b == @(a|b) && ! a == b ]] && a 1", "a 1"), ("A=t4x; a ${A//[^0-9]/} ${A//[[:alpha:]]/}", "a 4 4"),
    ("echo A=4 > f.sh; echo B=5 >> f.sh; . ./f.sh; a $A$B", "a 45"), ("source <(echo A=4); a $A", "a 4"),
    ("cat > f.sh <<EOF\na 4\nEOF\nbash f.sh", "a 4"), ("echo a 4 | bash", "a 4"), ("exec a 1; a 2", "exec a 1"),
    ("a $(echo x,4 | cut -d, -f2)$(echo x | wc -l)", "a 41"), ("a $(printf '%s-%02d' 1 2)", "a 1-02"),
    ("A=1; env A=4 bash -c 'a $A'", "env A=4 a 4"), ("A=1; ssh h 'a --x $A'", "ssh h a --x $A"),
    ("f() { echo 1; }; bash -c 'a $(f)'", "a $(f)"), ("export A=1; docker run -e A=4 i bash -c 'a $A'",
                                                       "docker run -e A=4 i a 4"),
]  # fmt: skip


@each(("script", "expected"), AS_BASH_DOES)
def test_a_command_has_the_words_that_bash_gives_it(script: str, expected: str) -> None:
    assert [" ".join(command) for command in read_script(script).commands] == [expected]


@each("script", [
    "f() { if [ -f x ]; then A=1; return; fi; A=2; }; f; a $A", "a $(if [ -f x ]; then echo 1; exit; fi; echo 2)",
    "for i in 1 2; do if [ -f x ]; then A=1; break; fi; A=2; break; done; a $A", "a $([ -f x ] && echo 1 || echo 2)",
])  # fmt: skip
def test_a_branch_that_leaves_early_or_writes_is_one_of_two_values(script: str) -> None:
    assert values_of(script) == [["a", "1"], ["a", "2"]]


@each(("line", "commands"), [
    ("a 1; b 2", [["a", "1"], ["b", "2"]]), ("a 1 && b 2 || c 3", [["a", "1"], ["b", "2"]]),
    ("a 'x; y' \"u && v\"", [["a", "x; y", "u && v"]]), ("a $(b; c) d", [["a", "$(b; c)", "d"]]),
    ("A=1 B=2 a $A", [["a", "$A"]]), ("export A=3; a $A", [["a", "3"]]), ("A=x; A+=y; a $A", [["a", "xy"]]),
    ("a 1 >> log 2>&1", [["a", "1"]]), ("a 1 | tee log; b", [["a", "1"], ["b"]]),
    ("if [ 1 -eq 2 ]; then a; fi; b", [["b"]]),
    ("a ${A-u} ${B:-v}", [["a", "u", "v"]]), ("A=; a ${A:-w} x$A", [["a", "w", "x"]]), ("# a 1", []),
    ("O=\"--x '1 2' --y 3\"; a \"$O\" b", [["a", "--x", "1 2", "--y", "3", "b"]]),
    ("a '--x 1 --y 2'", [["a", "--x", "1", "--y", "2"]]), ("a \"$@\" b", [["a", "$@", "b"]]),
])  # fmt: skip
def test_a_line_is_the_commands_that_it_starts(line: str, commands: list[list[str]]) -> None:
    found = [[word for word in command if word] for command in read_script(line).commands]
    assert found == commands


@pytest.mark.parametrize(
    "condition", ["[ -f /etc/x ]", "[[ $1 == x ]]", "[ 3 -gt $1 ]", '[ "$H" = y ] || [ $2 = x ]', "! [ 1 -eq $H ]"]
)
def test_what_stands_in_a_branch_that_only_a_shell_could_choose_is_one_of_several(condition: str) -> None:
    script = f'O="--a 1"\nif {condition}; then\n  O="$O --b 2"\nfi\ntrain $O\n'
    assert values_of(script) == [["train", "--a", "1", "--b", "2"], ["train", "--a", "1"]]


@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    read_script(text + "\ntrain --a 1")


DOUBLING = {
    "reference": "a=$a$a", "quotation": 'a="${a}${a}"', "addition": "a+=$a", "array": 'a=("${a[@]}" "${a[@]}")',
    "default": "a=${b:-$a$a}",
}  # fmt: skip


@pytest.mark.parametrize("line", DOUBLING.values(), ids=DOUBLING)
def test_a_value_that_doubles_is_refused_with_its_line_in_no_time(line: str) -> None:
    script = "# a script of 160 bytes\na=xy\n" + f"{line}\n" * 40
    started = time.process_time()
    with pytest.raises(JobError, match=r"^line (1\d|2\d): the value of a has \d+,\d+ characters; expected at most"):
        read_script(script)
    assert time.process_time() - started < 5.0


def test_what_nobody_sets_takes_no_memory_however_often_it_doubles() -> None:
    assert words("a+=$a\n" * 60 + "train 8 $a") == ["train", "8"]
    with pytest.raises(JobError, match=r"the value of . has \d+,\d+ characters; expected at most"):
        read_script("a=$a$b\nb=$b$a\n" * 40)


def test_values_that_are_long_together_are_refused_with_their_line() -> None:
    with pytest.raises(JobError, match=r"^line 3: variables stand for more than 1,048,576 characters"):
        read_script(f"a={'x' * 60_000}\n\necho {'$a ' * 100}\n")


def test_a_long_list_of_options_is_read_as_before() -> None:
    options = " \\\n".join(f"--option-{i} {i}" for i in range(1_000))
    lines = f'N=4\nO="{options}"\n' + "".join(f'R+=("--more-{i} $N")\n' for i in range(100)) + "train $O ${R[@]}"
    assert len(words(lines)) == 1 + 2_000 + 200


HEAVY = {
    "no end of a quotation": "echo 'a\n" + "b\n" * 10_000, "no end of an array": "A=(\n" + "--b c\n" * 8_000,
    "blanks in a condition": "if [ " + " " * 100_000 + " ]; then\nfi\n", "brackets": "if " + "[ " * 50_000,
    "blanks before an end": "if x; then " + " " * 100_000 + "f i", "a product": "a=3\n" + "a=$((a*a))\n" * 60,
    "a long sum": "a=$((" + "1+" * 60_000 + "1))", "parentheses": "a=$((" + "(" * 900 + ")" * 900 + "))",
    "semicolons": ";" * 20_000, "dollars": "$((" * 30_000, "lines": "a\n" * 15_000,
}  # fmt: skip


@pytest.mark.parametrize("script", HEAVY.values(), ids=HEAVY)
def test_no_script_takes_long(script: str) -> None:
    started = time.process_time()
    read_script(script)
    assert time.process_time() - started < 10.0


def test_a_script_has_a_limit() -> None:
    with pytest.raises(JobError, match="has 300,000 characters; expected at most 200,000 of a script"):
        read_script("train\n" * 50_000)


@given(st.text(max_size=200))
def test_no_text_ends_the_process_whatever_its_characters(text: str) -> None:
    read_script(f"echo {text}\n{text}")  # the grammar itself may not see what is no ASCII


def test_characters_beyond_ascii_are_kept_in_words_and_values() -> None:
    read = read_script('NAME="Zürich 東京"\ntorchrun train.py --name "$NAME" --tag é=ß')
    assert read.commands[-1][-3:] == ["Zürich 東京", "--tag", "é=ß"]
