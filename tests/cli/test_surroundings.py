"""Commands where no home, no user name, no streams, no folder, no room or no UTF-8 is: a sentence, and no traceback."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jointopt.cli.main import plain
from tests.cli.forked import Forks, Surroundings
from tests.cli.verbs import BARE, SERVERS, VERBS, is_answered, prepare, start

pytestmark = pytest.mark.long  # the short part of a campaign

NAMELESS = os.fsdecode(b"d\xff\xe9.db")
PRINT_SIGNS = ("polish", "select", "catalog")  # ±, Δ, °, ·
KINDS = {
    "no home": Surroundings({"HOME": None, "XDG_STATE_HOME": None}),
    "a home that is no folder": Surroundings({"HOME": "/dev/null", "XDG_STATE_HOME": None}),
    "latin-1": Surroundings({"LC_ALL": "en_US.ISO-8859-1"}, encoding="latin-1"),
    "ascii": Surroundings({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, encoding="ascii"),
    "cp1252": Surroundings(encoding="cp1252"),
    "utf-16": Surroundings(encoding="utf-16"),
    "Turkish": Surroundings({"LC_ALL": "tr_TR.ISO-8859-9"}, encoding="iso8859-9"),
    "Japanese": Surroundings({"LANG": "ja_JP.EUC-JP"}, encoding="euc_jp"),
    "no stdin": Surroundings(closed=(0,)),
    "no stderr": Surroundings(closed=(2,)),
    "no folder of temporary files": Surroundings({"TMPDIR": "/nowhere"}),
    "one that takes none": Surroundings({"TMPDIR": "/proc"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


@pytest.fixture(scope="module")
def prepared(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("prepared"), forks)


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "work"))


@pytest.mark.parametrize("verb", VERBS)
def test_a_user_without_a_name_or_a_home_is_served(verb: str, forks: Forks, folder: Path) -> None:
    ended = start(verb, folder, forks, Surroundings(BARE, user=12345))
    if "no namespace of users" in ended.err:
        pytest.skip("no namespace of users can be made here")
    assert (ended.code, "Traceback" in ended.err) == (130 if verb in SERVERS else 0, False), ended.err


@pytest.mark.parametrize("kind", KINDS)
def test_what_surrounds_a_command_changes_no_more_than_its_signs(kind: str, forks: Forks, folder: Path) -> None:
    for verb in PRINT_SIGNS:
        ended = forks.run(folder, VERBS[verb], KINDS[kind])
        assert (ended.code, "Traceback" in ended.err) == (0, False), f"{verb}: {ended.err}"
        assert ended.out.encode("latin-1").decode(KINDS[kind].encoding)


@pytest.mark.parametrize("verb", ["propose", "tune", "catalog", "doctor", "select", "ingest"])
@pytest.mark.parametrize("within", [Surroundings(full=True), Surroundings(closed=(1,))], ids=["full", "closed"])
def test_an_answer_that_cannot_be_printed_is_an_exit_code_and_a_sentence(
    verb: str, within: Surroundings, forks: Forks, folder: Path
) -> None:
    ended = forks.run(folder, VERBS[verb], within)
    assert (ended.code, is_answered(ended), "tandard output" in ended.err) == (2, True, True), ended.err
    assert ended.err.count("\n") == 1 + ("of the best" in ended.err) or verb == "tune"


def test_with_all_streams_closed_the_exit_code_tells(forks: Forks, folder: Path) -> None:
    assert forks.run(folder, VERBS["catalog"], Surroundings(closed=(0, 1, 2))) == (2, "", "")


def test_no_file_has_the_number_of_a_closed_stream(forks: Forks, folder: Path) -> None:
    """What a library prints would stand in the database."""
    ended = forks.run(folder, VERBS["check a store"], Surroundings(closed=(0, 2)))
    assert ended.out.startswith("24 rows")
    assert (folder / "jointopt.db").read_bytes()[:15] == b"SQLite format 3"


@pytest.mark.parametrize("verb", VERBS)
def test_in_a_folder_that_was_removed_a_command_works_or_says_so(verb: str, forks: Forks, folder: Path) -> None:
    ended = start(verb, folder, forks, Surroundings(removed=True))
    assert is_answered(ended), ended.err


@pytest.mark.parametrize(
    "verb", ["propose", "ingest", "retrain", "report", "back up a store", "export a store", "tune"]
)
def test_on_a_disk_without_room_a_command_says_so(verb: str, forks: Forks, prepared: Path, small_disk: Path) -> None:
    for name in ("runs.csv", "train.sh"):
        shutil.copy(prepared / name, small_disk)
    (small_disk / "fill").write_bytes(bytes(45_000))
    ended = forks.run(small_disk, VERBS[verb], Surroundings({"TMPDIR": str(small_disk)}))
    assert is_answered(ended), ended.err


@pytest.mark.parametrize("verb", ["propose", "ingest", "predict", "export", "check a store", "back up a store", "tune"])
def test_on_a_disk_that_can_only_be_read_a_command_says_so(
    verb: str, forks: Forks, prepared: Path, small_disk: Path
) -> None:
    shutil.copy(prepared / "runs.csv", small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert is_answered(ended := forks.run(small_disk, VERBS[verb], Surroundings())), ended.err


@pytest.mark.parametrize("verb", ["ingest", "check a store", "back up a store", "explain", "tune"])
def test_a_database_whose_name_is_not_utf_8_is_used(verb: str, forks: Forks, folder: Path) -> None:
    (folder / "jointopt.db").rename(folder / NAMELESS)
    ended = forks.run(folder, (*VERBS[verb], "--storage", f"sqlite:///{NAMELESS}"), Surroundings())
    assert (ended.code, "Traceback" in ended.err) == (0, False), ended.err


def damaged(content: bytes, seed: int) -> bytes:
    """An SQLite file cut, with a page of zeros, of noise or of another place, or with bytes of its head changed."""
    draw, page = random.Random(seed), 4096
    at, other = (draw.randrange(len(content) // page) * page for _ in range(2))
    changed = bytearray(content)
    if seed % 6 == 0:
        return content[: draw.randrange(len(content))]
    if seed % 6 == 4:
        changed[draw.randrange(100)] ^= 1 << draw.randrange(8)
    elif seed % 6 == 5:
        changed[at : at + 8] = draw.randbytes(8)
    else:
        changed[at : at + page] = (b"", bytes(page), draw.randbytes(page), content[other : other + page])[seed % 6]
    return bytes(changed)


@pytest.mark.parametrize("seed", range(24))
def test_of_a_damaged_database_there_is_an_answer_or_a_sentence(seed: int, forks: Forks, folder: Path) -> None:
    file = folder / "jointopt.db"
    file.write_bytes(content := damaged(file.read_bytes(), seed))
    for verb in ("check a store", "export a store", "back up a store", "ingest", "repair a store", "check a store"):
        assert is_answered(ended := forks.run(folder, VERBS[verb], Surroundings())), f"{verb}: {ended.err}"
        if verb != "repair a store":
            file.write_bytes(content)


@pytest.mark.parametrize(
    ("signs", "words"), [("±1 Δ°×", "+-1 d deg x"), ("é", "e"), ("\udcff", "\\udcff"), ("☃", "\\u2603")]
)
def test_signs_have_stand_ins_that_can_be_read(signs: str, words: str) -> None:
    codec = UnicodeEncodeError("ascii", signs, 0, len(signs), "not there")
    assert ("".join(plain(codec)[:1]).strip(), len(signs)) == (words, plain(codec)[1])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_real_start_prints_in_the_encoding_of_its_environment(encoding: str, folder: Path) -> None:
    code = "from jointopt.cli.main import main; main()"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-c", code, *VERBS["select"]], cwd=folder, env=environment, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert ("±" in done.stdout.decode(encoding), "d%" in done.stdout.decode(encoding)) == (encoding == "latin-1", True)
