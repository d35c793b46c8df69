"""The MCP server through its own client: verbs for agents, files of one folder, no writing without leave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from jointopt.workflows.mcp_server import server_of

JOB = {
    "model": "opt-350m",
    "training": {"global_batch_size": 256, "seq_length": 2048, "framework": "megatron-lm"},
    "cluster": {"gpu": "a100-sxm4-40gb", "nodes": 2, "gpus_per_node": 4},
    "search": {"tp": [1, 2], "vpp": [1]},
}
PLAN = "dp=4 tp=2 micro_batch_size=2"


def call(folder: Path, tool: str, *, writes: bool = False, **given: Any) -> Any:
    """What the server answers: a document, or the sentence of an error."""

    async def answer() -> Any:
        async with Client(server_of(folder, writes=writes)) as client:
            result = await client.call_tool(tool, given)
            return result.content[0].text if result.is_error else result.structured_content  # type: ignore[union-attr]

    return asyncio.run(answer())


def test_a_proposal_has_its_decision_and_few_plans(tmp_path: Path) -> None:
    found = call(tmp_path, "propose", job=JOB, changes={"cluster.price_per_kwh": 0.2})
    assert found["text"].startswith("opt-350m, 256 x 2,048 tokens")
    assert found["decision"]["plan_number"] in [plan["number"] for plan in found["plans"]]
    assert len(found["plans"]) <= 25
    assert found["job_file"]["cluster"]["price_per_kwh"] == 0.2


def test_a_file_of_the_folder_and_a_shipped_job_are_jobs(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model: opt-350m\ntraining: {global_batch_size: 256, seq_length: 2048}\n"
                                       "cluster: {gpu: a100-sxm4-40gb, nodes: 2, gpus_per_node: 4}\n")  # fmt: skip
    for job in ("job.yaml", "opt-350m-2x4-a100"):
        assert call(tmp_path, "explain", job=job, plan=PLAN)["feasible"] is True


def test_tools_state_what_they_answer(tmp_path: Path) -> None:
    async def listed() -> Any:
        async with Client(server_of(tmp_path)) as client:
            return (await client.list_tools()).tools

    stated = {tool.name: tool.output_schema["properties"] for tool in asyncio.run(listed())}
    assert stated["explain"]["iteration_time_s"]["type"] == ["number", "null"]
    assert {name for name, keys in stated.items() if not keys} == {"catalog"}


def test_plans_are_compared_and_sizes_too(tmp_path: Path) -> None:
    assert len(call(tmp_path, "compare", job=JOB, plans=[PLAN, "dp=8"])["plans"]) == 2
    found = call(tmp_path, "scale", job=JOB, gpus=[4, 8])
    assert [size["num_gpus"] for size in found["sizes"]] == [4, 8]
    assert "front" not in found


def test_a_run_is_planned_and_its_clocks_follow_a_signal_of_columns_or_of_a_file(tmp_path: Path) -> None:
    found = call(tmp_path, "goodput", job=JOB, plan=PLAN, changes={"training.run_tokens": 1e11})
    assert 0.5 < found["effective_time_ratio"] < 1.0
    signal = {"time_s": [0.0, 3600.0, 7200.0], "limit_kw": [9.0, 4.0, None]}
    found = call(tmp_path, "follow", job=JOB, plan=PLAN, signal=signal)
    assert found["steps_in_all"] == len(found["schedule"]) == 2
    assert found["schedule"][1]["power_kw_high"] <= 4.0 < found["schedule"][0]["power_kw_high"]
    (tmp_path / "limits.csv").write_text("time_s,limit_kw\n0,9\n3600,4\n7200,\n")
    assert call(tmp_path, "follow", job=JOB, plan=PLAN, signal="limits.csv")["schedule"] == found["schedule"]


def test_two_jobs_share_a_site_and_one_of_priority_comes_first(tmp_path: Path) -> None:
    given = {"jobs": [JOB, "opt-350m-2x4-a100"], "site_kw": 8.0}
    found = call(tmp_path, "fleet", **given, fleet_file={"jobs": {"job": {"priority": 9}}})
    assert found["power_kw_high"] <= 8.0
    assert found["jobs"][0]["relative"] > found["jobs"][1]["relative"]
    assert "8 kW" in found["text"]


def test_a_slow_rank_is_named_by_logs_of_the_folder(tmp_path: Path) -> None:
    rows = [f"{step},{rank},{0.1 + 0.02 * (rank == 2 and step > 60) + 0.0001 * ((7 * step + 3 * rank) % 5)}"
            for step in range(1, 150) for rank in range(8)]  # fmt: skip
    (tmp_path / "ranks.csv").write_text("\n".join(["iteration,rank,time_s", *rows]))
    assert [one["rank"] for one in call(tmp_path, "watch", logs=["ranks.csv"], plan="dp=8")["slow"]] == [2]
    assert "logs is empty; expected" in call(tmp_path, "watch", logs=[])


def test_no_log_signal_or_fleet_file_outside_of_the_folder_is_read(tmp_path: Path) -> None:
    outside: dict[str, dict[str, Any]] = {
        "goodput": {"job": JOB, "plan": PLAN, "logs": ["/etc/hostname"]}, "watch": {"logs": ["../ranks.csv"]},
        "follow": {"job": JOB, "plan": PLAN, "signal": "/etc/hostname"},
        "fleet": {"jobs": [JOB], "site_kw": 9.0, "fleet_file": "../fleet.yaml"},
    }  # fmt: skip
    for tool, given in outside.items():
        assert "is outside of the folder" in call(tmp_path, tool, **given), tool
    assert "is outside of the folder" in call(tmp_path, "fleet", jobs=["../job.yaml"], site_kw=9.0)


@pytest.mark.parametrize("job", ["../job.yaml", "/etc/passwd", "link.yaml", {**JOB, "model": "/etc/config.json"},
                                 {**JOB, "cluster": {**JOB["cluster"], "machine": "/etc/machine.yaml"}}])  # fmt: skip
def test_nothing_outside_of_the_folder_is_read(tmp_path: Path, job: Any) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "link.yaml").symlink_to("/etc/hostname")
    assert "is outside of the folder" in call(folder, "propose", job=job)


def test_an_export_is_written_only_with_leave_and_only_inside(tmp_path: Path) -> None:
    given = {"job": JOB, "plan": PLAN, "target": "megatron"}
    assert "--micro-batch-size" in call(tmp_path, "export", **given)["words"]
    assert "writes nothing" in call(tmp_path, "export", **given, out="run")
    assert "outside of the folder" in call(tmp_path, "export", **given, out="../run", writes=True)
    assert not list(tmp_path.iterdir())
    written = call(tmp_path, "export", **given, out="run", writes=True)["written"]
    assert [Path(path).exists() for path in written] == [True] * len(written) != []


def test_what_exists_is_never_written_over(tmp_path: Path) -> None:
    given = {"job": JOB, "plan": PLAN, "target": "megatron", "writes": True}
    outside, folder = tmp_path / "outside.sh", tmp_path / "jobs"
    (folder / "run").mkdir(parents=True)
    outside.write_text("mine")
    (folder / "run" / "start.sh").symlink_to(outside)
    (folder / "link").symlink_to(tmp_path / "new.sh")
    for out in ("run", "run/start.sh"):
        assert "exists already" in call(folder, "export", **given, out=out) or out == "run/start.sh"
    assert "outside of the folder" in call(folder, "export", **given, out="link")
    assert (outside.read_text(), (tmp_path / "new.sh").exists()) == ("mine", False)


def test_names_are_listed_for_an_agent(tmp_path: Path) -> None:
    assert "opt-350m-2x4-a100" in str(call(tmp_path, "catalog", kind="jobs"))
    assert "h100-sxm5-80gb" in str(call(tmp_path, "catalog", kind="gpus"))
    assert "'gpus'" in call(tmp_path, "catalog", kind="machines")


def test_a_baseline_is_read_in_the_folder_alone(tmp_path: Path) -> None:
    assert "outside of the folder" in call(tmp_path, "propose", job=JOB, baseline="/etc/passwd")
    assert "outside of the folder" in call(tmp_path, "propose", job=JOB, baseline="/etc/nothing")
    assert "time" in call(tmp_path, "propose", job=JOB, baseline="dp=8")["decision"]["against_reference"]


def test_what_a_verb_refuses_is_one_sentence(tmp_path: Path) -> None:
    found = call(tmp_path, "explain", job=JOB, plan="tp=3")
    assert "tp" in found
    assert "Traceback" not in found


def test_only_an_export_that_may_write_is_no_reading_tool(tmp_path: Path) -> None:
    async def hints(writes: bool) -> dict[str, bool | None]:
        async with Client(server_of(tmp_path, writes=writes)) as client:
            tools = (await client.list_tools()).tools
            return {tool.name: tool.annotations.read_only_hint for tool in tools if tool.annotations}

    assert set(asyncio.run(hints(False)).values()) == {True}
    assert [name for name, read_only in asyncio.run(hints(True)).items() if not read_only] == ["export"]


@pytest.mark.parametrize(("given", "sentence"), [
    ({"to": "megatron"}, "export takes no argument 'to'; it takes job, plan, target, "),
    ({"plan": None}, "plan of export must be a valid string or a valid dictionary; got None."),
    ({"plan": ["dp=8"]}, "plan of export must be a valid string or a valid dictionary; got ['dp=8']."),
])  # fmt: skip
def test_an_argument_that_a_tool_does_not_take_is_refused_by_its_name(
    tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    found = call(tmp_path, "export", **{"job": JOB, "plan": PLAN} | given)
    assert sentence in found
    assert "\n" not in found
    assert call(tmp_path, "export", job=JOB).endswith("export needs the argument 'plan'.")


@pytest.mark.parametrize(("tool", "given", "decided"), [
    ("propose", {}, "decision"), ("explain", {"plan": PLAN}, "feasible"),
    ("compare", {"plans": [PLAN, "dp=8"]}, "decision"), ("scale", {"gpus": [4, 8]}, "pick"),
])  # fmt: skip
def test_an_answer_has_its_decision_a_short_text_and_a_command_that_goes_on(
    tmp_path: Path, tool: str, given: dict[str, Any], decided: str
) -> None:
    found = call(tmp_path, tool, job="opt-350m-2x4-a100", changes={"training.global_batch_size": 256}, **given)
    assert found[decided]
    assert " opt-350m-2x4-a100 --set training.global_batch_size=256 " in found["next"]["command"].replace("\\\n ", "")
    assert len(found["text"].splitlines()) <= 25
    assert "proposal." not in found["text"]
