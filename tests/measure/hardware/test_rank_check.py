"""Whether a program runs the stages that clocks are set for: by its words, its processes and what its ranks report."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import RankOrderError
from jointopt.jobs.plans.placement import (
    DEFAULT_ORDER,
    NANOTRON_04_EXPERTS_ORDER,
    NANOTRON_EXPERTS_ORDER,
    TP_PP_DP_ORDER,
)
from jointopt.measure.hardware.guard.guarded import MARK
from jointopt.measure.hardware.rank_check import (
    RankCheck,
    check_stated,
    read_statements,
    report_variables,
    starts_ranks,
)
from jointopt.measure.hardware.stage_hook.sitecustomize import FOLDER
from tests.places import ROOT
from tests.processes import wait_until_begun

PEERS = ROOT.parent / "shared" / "peers"
PLAN = {"dp": 2, "tp": 1, "cp": 1, "ep": 1, "pp": 2}
HERE = Path(__file__).parent
MEGATRON = ["torchrun", "pretrain_gpt.py", "--num-layers", "4", "--hidden-size", "64"]
PP2 = [*MEGATRON, "--pipeline-model-parallel-size", "2"]
NANOTRON = "parallelism: {{dp: 2, tp: 1, pp: 2, expert_parallel_size: {ep}}}\ntokens: {{micro_batch_size: 1}}\n"


def refused(words: list[str], order: str = DEFAULT_ORDER, folder: Path = HERE) -> str:
    """The refusal of a command under the plan; blank where it passes."""
    try:
        check_stated(PLAN, order, read_statements(words, folder))
    except RankOrderError as error:
        return str(error)
    return ""


def test_words_that_agree_with_the_plan_pass() -> None:
    assert refused(PP2) == ""
    assert refused([*PP2, "--use-tp-pp-dp-mapping"], TP_PP_DP_ORDER) == ""
    assert read_statements(["torchrun", "train.py", "--steps", "4"], HERE) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--pipeline-model-parallel-size=4"], "runs with pp 4 and the plan has pp 2"),
        (["--tensor-model-parallel-size", "2"], "runs with tp 2 and the plan has tp 1"),
        (["--context-parallel-size", "2"], "cp 2"),
        (["--expert-model-parallel-size", "2"], "ep 2"),
        (["--use-tp-pp-dp-mapping"], r"numbers its ranks tp-cp-ep-pp-dp (--use-tp-pp-dp-mapping)"),
    ],
)
def test_words_that_contradict_the_plan_are_refused_by_name(more: list[str], words: str) -> None:
    assert words in refused([*PP2, *more])


def test_an_order_that_the_program_does_not_have_is_refused() -> None:
    assert "give --order tp-cp-ep-dp-pp" in refused(PP2, TP_PP_DP_ORDER)


def test_where_all_stages_have_one_clock_the_order_does_not_matter() -> None:
    check_stated(PLAN, DEFAULT_ORDER, read_statements([*PP2, "--use-tp-pp-dp-mapping"], HERE), by_stage=False)


@pytest.mark.parametrize("start", [["bash", "train.sh"], ["apptainer", "exec", "image.sif", "bash", "./train.sh"]])
def test_words_are_read_through_scripts(start: list[str], tmp_path: Path) -> None:
    options = "PP=4\n# --use-tp-pp-dp-mapping\ntorchrun pretrain_gpt.py --pipeline-model-parallel-size $PP $MORE\n"
    (tmp_path / "train.sh").write_text(options)
    assert "pp 4" in refused(start, folder=tmp_path)
    (tmp_path / "train.sh").write_text(options.replace("$PP ", "$(nvidia-smi -L | wc -l) "))
    assert refused(start, folder=tmp_path) == ""  # what only a shell knows


@pytest.mark.parametrize(("name", "more"), [("train.txt", 0), ("train.sh", 1 << 20)])
def test_other_files_and_those_beyond_a_megabyte_are_not_read(name: str, more: int, tmp_path: Path) -> None:
    script = " ".join([*MEGATRON, "--pipeline-model-parallel-size 4"])
    (tmp_path / "near.sh").write_text(script)
    (tmp_path / name).write_text(script + "\n" + "#" * more)
    assert refused(["bash", name], folder=tmp_path) == ""
    assert "runs with pp 4" in refused(["bash", "near.sh"], folder=tmp_path)


def test_words_in_quotation_marks_are_read(tmp_path: Path) -> None:
    assert "pp 2" not in refused(["sh", "-c", " ".join(PP2)])
    assert "--use-tp-pp-dp-mapping" in refused(["sh", "-c", f"cd x && {' '.join(PP2)} --use-tp-pp-dp-mapping"])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("c.yaml", NANOTRON.format(ep=1).replace("pp: 2", "pp: 4"), "pp 4"),
        ("c.toml", "[parallelism]\npipeline_parallel_degree = 4\n[training]\nseq_len = 8\n[model]\nname='x'\n", "pp 4"),
        (
            "ds.json",
            '{"train_micro_batch_size_per_gpu": 1, "pipeline": {"stages": 4}, "zero_optimization": {}}',
            "pp 4",
        ),
    ],
)
def test_configs_that_a_command_names_are_read(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert words in refused(["torchrun", "run.py", f"--config-file={name}"], folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "usual"),
    [
        (NANOTRON.format(ep=1), DEFAULT_ORDER),
        (NANOTRON.format(ep=2), NANOTRON_04_EXPERTS_ORDER),
        (NANOTRON.format(ep=2) + "model:\n  model_config:\n    moe_config:\n      num_experts: 4\n",
         NANOTRON_EXPERTS_ORDER),
    ],
)  # fmt: skip
def test_nanotron_numbers_the_ranks_of_experts_in_its_own_way(text: str, usual: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text)
    found = read_statements(["torchrun", "run_train.py", "--config-file", "c.yaml"], tmp_path)
    assert [one.usual for one in found] == [usual]


@pytest.mark.parametrize(
    ("words", "degrees"),
    [
        (
            ["-m", "torchtitan.train", "--config", "llama3_405b", "--parallelism.pipeline_parallel_degree", "4"],
            {"pp": 4},
        ),
        (["run_recipe.py", "--recipe", "x", "model.pipeline_model_parallel_size=1", "train.train_iters=3"], {"pp": 1}),
        (["pretrain_gpt.py", "--use-checkpoint-args", "--tensor-model-parallel-size", "2"], {"tp": 2}),
        ([*MEGATRON, "--tensor-model-parallel-size", "2"], {"tp": 2, "pp": 1, "cp": 1, "ep": 1}),
    ],
)
def test_what_words_leave_to_a_recipe_or_a_checkpoint_is_left_open(words: list[str], degrees: dict[str, int]) -> None:
    assert [one.degrees for one in read_statements(["torchrun", *words], HERE)] == [degrees]


@given(st.lists(st.text(max_size=30), max_size=4), st.text(max_size=200))
def test_no_words_and_no_script_break_the_check(words: list[str], text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "go.sh").write_text(text, encoding="utf-8", errors="replace")
        for command in (["bash", "go.sh", *words], ["sh", "-c", text]):
            check_stated(PLAN, DEFAULT_ORDER, read_statements(command, Path(folder)))
            assert starts_ranks(command, Path(folder)) in (True, False)


def test_launchers_are_known_also_in_scripts(tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_text("python -m torch.distributed.run train.py")
    assert starts_ranks(["bash", "go.sh"], tmp_path)
    assert not starts_ranks(["sh", "-c", "sleep 1"], tmp_path)


@contextmanager
def ranks(*places: tuple[int, int], words: list[str] = PP2) -> Iterator[str]:
    """Sleeping processes of these ranks and local ranks, with ``words`` behind their own; their mark."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", "input()", *words]
    processes = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, env={**os.environ, MARK: mark, "RANK": str(r), "LOCAL_RANK": str(local)}
        )
        for r, local in places
    ]
    try:
        for process in processes:
            wait_until_begun(process.pid)
        yield mark
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def check(folder: Path, order: str = DEFAULT_ORDER, first: int = 0, **options: Any) -> RankCheck:
    return RankCheck(PLAN, order, np.arange(first, first + 2), folder, **options)


def test_ranks_with_agreeing_words_pass_when_all_are_there(tmp_path: Path) -> None:
    with ranks((0, 0)) as mark:
        assert not check(tmp_path).passed(mark)
    with ranks((0, 0), (1, 1)) as mark:
        assert check(tmp_path).passed(mark)


def test_processes_are_polled_every_half_second(tmp_path: Path) -> None:
    looked = check(tmp_path)
    assert not looked.passed("no such mark", now_s=100.0)
    with ranks((0, 0), (1, 1)) as mark:
        assert not looked.passed(mark, now_s=100.4)
        assert looked.passed(mark, now_s=100.6)


def test_words_of_a_started_rank_are_refused_as_those_of_the_command(tmp_path: Path) -> None:
    with ranks((0, 0), words=[*PP2, "--use-tp-pp-dp-mapping"]) as mark, pytest.raises(RankOrderError, match="mapping"):
        check(tmp_path).passed(mark)


def test_a_launcher_that_numbers_nodes_otherwise_is_refused(tmp_path: Path) -> None:
    with ranks((0, 0)) as mark, pytest.raises(RankOrderError, match=r"Local rank 0 .* is rank 0 .* it is rank 2"):
        check(tmp_path, first=2).passed(mark)


def test_silent_ranks_pass_after_a_while_with_a_remark(tmp_path: Path) -> None:
    looked = check(tmp_path, wait_s=5.0)
    with ranks((0, 0), (1, 1), words=["train.py"]) as mark:
        assert not looked.passed(mark, now_s=100.0)
        assert not looked.passed(mark, now_s=104.0)
        assert looked.passed(mark, now_s=106.0)
    assert looked.remark == "No rank has shown its stage: the order tp-cp-ep-dp-pp is taken as stated."


def test_reports_count_and_a_wrong_one_is_refused_at_any_time(tmp_path: Path) -> None:
    looked = check(tmp_path, first=1)  # ranks 1 and 2
    for rank, stage in ((1, 0), (2, 1)):
        (tmp_path / f"rank-{rank}").write_text(f"{stage}\n")
    assert looked.passed("no such mark")
    (tmp_path / "rank-1").write_text("1")
    with pytest.raises(RankOrderError, match=r"Rank 1 runs stage 1 .* has stage 0 there"):
        looked.passed("no such mark")


def test_a_rank_of_another_node_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank-3").write_text("1")
    with pytest.raises(
        RankOrderError, match="Rank 3 of the program runs on this node, and of the plan these are 0 to 1"
    ):
        check(tmp_path).passed("no such mark")


def python(folder: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program under the hook."""
    environment = {**os.environ, **report_variables([], folder, folder), **variables}
    return subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=120)


# as Megatron Core's, DeepSpeed's and nanotron's modules call them
STAND_INS = {
    "megatron/core/parallel_state.py": "def initialize_model_parallel(order=None): pass\n"
    "def get_pipeline_model_parallel_rank(): return 1\n",
    "deepspeed/runtime/pipe/topology.py": "class PipelineParallelGrid:\n def __init__(self): self.stage_id = 1\n"
    " def get_stage_id(self): return self.stage_id\n",
}
CALLS = {
    "megatron": "from megatron.core.parallel_state import initialize_model_parallel as f; f(order='x')",
    "deepspeed": "from deepspeed.runtime.pipe import topology; topology.PipelineParallelGrid()",
}


@pytest.mark.parametrize("framework", CALLS)
def test_the_hook_reports_what_a_framework_knows(framework: str, tmp_path: Path) -> None:
    for name, text in STAND_INS.items():
        (tmp_path / "lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lib" / name).write_text(text)
        for folder in Path(name).parents[:-1]:  # regular packages go before installed ones
            (tmp_path / "lib" / folder / "__init__.py").touch()
    path = f"import sys; sys.path.insert(0, {str(tmp_path / 'lib')!r}); "
    assert python(tmp_path, path + CALLS[framework], RANK="3").returncode == 0
    assert (tmp_path / "rank-3").read_text() == "1"


def test_the_hook_leaves_a_program_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 5")
    own = {"PYTHONPATH": f"{report_variables([], tmp_path, tmp_path)['PYTHONPATH']}{os.pathsep}{tmp_path}"}
    ran = python(tmp_path, "import sys; print(mine, [p for p in sys.path if 'stage_hook' in p])", **own)
    assert ran.stdout == "5 []\n"
    assert not list(tmp_path.glob("rank-*"))


def test_a_container_keeps_its_own_path_of_modules(tmp_path: Path) -> None:
    words = ["srun", "--overlap", "--container-image=i.sqsh", "torchrun", "train.py"]
    assert report_variables(words, tmp_path, tmp_path) == {FOLDER: str(tmp_path)}
    assert starts_ranks(words, tmp_path)


def test_a_program_may_report_its_stages_itself(tmp_path: Path) -> None:
    assert python(tmp_path, "import jointopt; jointopt.report_stage(1, 0)").returncode == 0
    assert (tmp_path / "rank-1").read_text() == "0"
    python(tmp_path, "import jointopt; jointopt.report_stage(2, 0)", **{FOLDER: ""})
    assert not (tmp_path / "rank-2").exists()


@pytest.mark.parametrize(("order", "stages"), [(DEFAULT_ORDER, "0011"), (TP_PP_DP_ORDER, "0101")])
def test_the_hook_reads_the_stages_of_megatron_core_itself(order: str, stages: str, torch: Any, tmp_path: Path) -> None:
    if not (archive := PEERS / "megatron-lm-core_v0.16.1.tar.xz").is_file():
        pytest.skip("Megatron-LM's archives are not beside the repository")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path / "lib", filter="data")
    (tmp_path / "train.py").write_text(
        f"import sys, torch\nsys.path.insert(0, {str(tmp_path / 'lib')!r})\n"
        "from megatron.core import parallel_state\ntorch.distributed.init_process_group('gloo')\n"
        f"parallel_state.initialize_model_parallel(1, 2, order={TP_PP_DP_ORDER!r})\n"
    )
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = {**os.environ, **report_variables([], tmp_path, tmp_path)}
    subprocess.run([*start, str(tmp_path / "train.py")], env=environment, capture_output=True, timeout=120, check=True)
    assert "".join((tmp_path / f"rank-{rank}").read_text() for rank in range(4)) == "0101"


def test_ranks_that_are_hidden_are_waited_for_ten_times_as_long(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("jointopt.measure.hardware.rank_check.time.monotonic", lambda: 1000.0)
    looked = check(tmp_path, wait_s=5.0)
    assert not looked.passed("no such mark", now_s=1050.0)
    assert looked.passed("no such mark", now_s=1050.1)
    assert looked.remark
