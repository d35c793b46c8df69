"""The arguments of Megatron-LM's pretrain_gpt.py."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given

from jointopt.core.errors import ExportError
from jointopt.frameworks.intent import Intent, intent_of
from jointopt.frameworks.megatron import checkout_version, export, layer_layout, megatron_environment, option_settings
from jointopt.frameworks.options import NEWEST, option_table, pairs_of
from jointopt.frameworks.targets import TARGETS
from tests.frameworks.exports.conftest import job_named, layouts, plan_of
from tests.places import ROOT

LLAMA = job_named("llama-3-8b", gpus=64)
_PARALLEL = {"sequence_parallel": True}


def options(intent: Intent, version: str = NEWEST) -> dict[str, str]:
    """The emitted options and their values, words of a list joined; True where an option has none."""
    found: dict[str, str] = {}
    name = ""
    for word in export(intent, version).words:
        if word.startswith("--"):
            found[name := word[2:]] = ""
        else:
            found[name] = f"{found[name]} {word}".strip()
    return found


@given(layouts)
def test_the_degrees_read_back_from_the_words_are_the_plan_s(columns: dict[str, Any]) -> None:
    assume(64 % (columns["tp"] * columns["pp"] * columns["cp"]) == 0)
    plan = plan_of(LLAMA, **columns)
    written = options(intent_of(LLAMA, plan))
    stated = {option.sets[5:]: name for name, option in option_table("megatron").items() if option.sets[:5] == "plan."}
    read = {column: int(written.get(name) or 1) for column, name in stated.items() if column != "sequence_parallel"}
    assert {column: plan.get(column, 1) for column in read} == read
    assert ("sequence-parallel" in written, "use-distributed-optimizer" in written) == (
        plan["tp"] > 1,
        plan["zero_stage"] > 0,
    )


@given(layouts)
def test_no_version_is_given_a_word_that_it_does_not_know(columns: dict[str, Any]) -> None:
    assume(64 % (columns["tp"] * columns["pp"] * columns["cp"]) == 0)
    table = option_table("megatron")
    for version in ("0.12", "0.14.2", "0.16.1", NEWEST):
        assert all(
            table[name].known_to(version) for name in options(intent_of(LLAMA, plan_of(LLAMA, **columns)), version)
        )


@pytest.mark.parametrize(
    ("model", "kind", "version", "words"),
    [
        ("llama-3-8b", "transformer_engine", NEWEST, {"impl": "transformer_engine"}),
        ("mixtral-8x7b", "transformer_engine", NEWEST,
         {"impl": "transformer_engine", "modules": "attn moe_router moe_preprocess"}),
        ("llama-3-8b", "full_iteration", NEWEST, {"impl": "full_iteration"}),
        ("llama-3-8b", "full_iteration", "0.16.1", {"impl": "local", "scope": "full_iteration"}),
    ],
)  # fmt: skip
def test_cuda_graphs_have_the_names_of_the_version(
    intent: Any, model: str, kind: str, version: str, words: dict[str, str]
) -> None:
    made = intent(model, framework="megatron-bridge")
    made = replace(
        made, job=replace(made.job, training=replace(made.job.training, cuda_graph=kind, token_dispatcher="alltoall"))
    )
    written = options(made, version)
    assert {name[11:]: value for name, value in written.items() if name.startswith("cuda-graph-")} == words
    assert ("no-check-for-nan-in-loss-and-grad" in written) == (kind == "full_iteration")
    read = option_settings(dict(pairs_of(export(made, version).words)), "words")
    assert read.training["cuda_graph"] == kind
    with pytest.raises(ExportError, match=f"cannot express training.cuda_graph {kind}"):
        export(made, "0.12")


@pytest.mark.parametrize(
    ("split", "version", "words"),
    [
        ("", NEWEST, {}),
        ("7;9;9;7", "0.12", {"decoder-first-pipeline-num-layers": "7", "decoder-last-pipeline-num-layers": "7"}),
        ("13;19", "0.12", {"decoder-first-pipeline-num-layers": "13"}),
        ("8;10;8;6", NEWEST, {"pipeline-model-parallel-layout": "Et*8|t*10|t*8|t*6L"}),
    ],
)
def test_a_split_of_layers_is_written_in_the_words_of_the_version(
    intent: Any, split: str, version: str, words: dict[str, str]
) -> None:
    written = options(intent("llama-3-8b", pp=2 if split == "13;19" else 4, stage_layers=split), version)
    names = ("pipeline", "decoder-")
    found = {k: v for k, v in written.items() if k.startswith(names) and k != "pipeline-model-parallel-size"}
    assert found == words


def test_ends_that_count_as_layers_have_their_options(intent: Any) -> None:
    llama = intent("llama-3-405b", gpus=128, pp=16, stage_layers="7;8*14;7", tp=8, **_PARALLEL)
    written = options(llama, "0.12")
    ends = {"account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"}
    assert ends <= set(written)
    meta = intent("llama-3-405b", gpus=128, pp=16, vpp=8, stage_layers="0;1*126;0", tp=8, **_PARALLEL)
    assert ends <= set(options(meta, "0.12"))  # arXiv:2407.21783, section 3.3.2
    assert "account-for-embedding-in-pipeline-split" not in options(intent("mistral-7b", pp=2))


def test_an_empty_chunk_has_its_place_in_a_layout() -> None:
    assert layer_layout((0, 2, 1, 0)) == "E|tt|t|L".replace("tt", "t*2")


def test_what_a_version_lacks_is_refused_by_name(intent: Any) -> None:
    with pytest.raises(ExportError, match=r"0\.12 cannot express the stage_layers 8;10;8;6"):
        export(intent("llama-3-8b", pp=4, stage_layers="8;10;8;6"), "0.12")
    with pytest.raises(ExportError, match=r"0\.12 cannot express the stage_layers 8;10;8;6"):
        export(intent("llama-3-8b", pp=2, vpp=2, stage_layers="8;10;8;6"), "0.12")
    with pytest.raises(ExportError, match=r"0\.15 cannot express KV heads that several ranks share"):
        export(intent("qwen3-30b-a3b", tp=8, **_PARALLEL), "0.15")
    with pytest.raises(ExportError, match=r"Megatron Core before 0\.12 is not known"):
        export(intent("llama-3-8b"), "0.11")
    with pytest.raises(ExportError, match="experts with tp > 1 without sequence_parallel"):
        export(intent("mixtral-8x7b", tp=2), NEWEST)


def test_sharded_weights_are_megatron_fsdp(intent: Any) -> None:
    made = intent("llama-3-8b", zero_stage=3, dp_replicate=2)
    written = options(made)
    assert (written["data-parallel-sharding-strategy"], written["ckpt-format"]) == (
        "optim_grads_params",
        "fsdp_dtensor",
    )
    assert written["num-distributed-optimizer-instances"] == "2"
    assert "use-custom-fsdp" in options(made, "0.13")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in megatron_environment(made)  # which FSDP refuses to be 1


@pytest.mark.parametrize(
    ("freq", "word"), [(0, None), (6, "6"), ((0, 1) * 16, "([0,1]*16)"), ((*(0,) * 31, 1), f"([{'0,' * 31}1]*1)")]
)
def test_the_layers_that_have_the_window_are_written_in_one_option(intent: Any, freq: Any, word: str | None) -> None:
    plain = intent("llama-3-8b")
    model = replace(plain.model, window_size=64, window_attn_skip_freq=freq)
    made = replace(plain, job=replace(plain.job, model=model))
    assert (options(made)["window-size"], options(made).get("window-attn-skip-freq")) == ("64,0", word)
    assert not {"window-size", "window-attn-skip-freq"} & set(options(made, "0.14"))
    assert any("in 16 of 32 layers" in note for note in export(made, "0.14").notes) == (freq == (0, 1) * 16)


def test_latent_attention_and_its_router_are_written_out(intent: Any) -> None:
    written = options(intent("deepseek-v3", gpus=64, ep=8))
    latent = ("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim")
    assert [written[name] for name in latent] == ["1536", "512", "128", "64", "128"]
    assert "kv-channels" not in written
    assert (written["rope-type"], written["rotary-scaling-factor"]) == ("yarn", "40.0")
    assert (written["moe-router-score-function"], written["moe-router-topk-scaling-factor"]) == ("sigmoid", "2.5")
    assert written["moe-layer-freq"] == "([0]*3+[1]*58)"


def test_modules_and_layers_to_recompute_are_named(intent: Any) -> None:
    moe = options(intent("mixtral-8x7b", recompute="selective", recompute_modules="moe_act;layernorm"))
    assert set(moe["recompute-modules"].split()) == {"moe_act", "layernorm"}
    block = options(intent("llama-3-8b", recompute="full", recompute_num_layers=3))
    assert (block["recompute-method"], block["recompute-num-layers"]) == ("block", "3")


def test_a_benchmark_differs_from_a_training_in_data_and_balance_alone(intent: Any) -> None:
    benchmark, training = (options(intent("mixtral-8x7b", purpose)) for purpose in ("benchmark", "training"))
    assert {"mock-data", "moe-router-force-load-balancing"} <= set(benchmark) - set(training)
    assert {"data-path", "save", "load"} <= set(training) - set(benchmark)
    recipes = {"no-create-attention-mask-in-dataloader", "cross-entropy-loss-fusion", "manual-gc"}
    assert recipes <= set(benchmark) & set(training)


def test_a_training_is_balanced_by_force_where_its_job_states_it(intent: Any) -> None:
    made = intent("mixtral-8x7b", "training")
    forced = replace(made.job.training, moe_routing="forced")
    assert "moe-router-force-load-balancing" in options(replace(made, job=replace(made.job, training=forced)))


def test_a_benchmark_notes_that_it_lacks_the_imbalance_of_its_job(intent: Any) -> None:
    made = [intent("mixtral-8x7b", purpose) for purpose in ("benchmark", "training")]
    uneven = [
        replace(one, job=replace(one.job, training=replace(one.job.training, moe_load_imbalance=1.5))) for one in made
    ]
    noted = [
        any("lacks the job's moe_load_imbalance 1.5" in note for note in export(one, "0.16.1").notes) for one in uneven
    ]
    assert noted == [True, False]
    assert not any("imbalance" in note for note in export(made[0], "0.16.1").notes)


def test_finer_points_that_are_not_there_stop_a_training_alone(intent: Any) -> None:
    assert "Megatron-LM 0.16.1 has no activation relu" in export(intent("opt-6.7b"), "0.16.1").notes[0]
    with pytest.raises(ExportError, match=r"cannot express activation relu of opt-6\.7b; export it with --for benchm"):
        export(intent("opt-6.7b", "training"), "0.16.1")


def test_a_checkout_states_its_version(tmp_path: Path) -> None:
    assert checkout_version(tmp_path) == NEWEST
    (tmp_path / "megatron" / "core").mkdir(parents=True)
    (tmp_path / "megatron" / "core" / "package_info.py").write_text("MAJOR = 0\nMINOR = 16\nPATCH = 1\n")
    assert checkout_version(tmp_path) == "0.16.1"


ARCHIVES = {"core_v0.12.0": "0.12.0", "core_v0.16.1": "0.16.1", "main": NEWEST}
PEERS = ROOT.parent / "shared" / "peers"


@pytest.mark.parametrize("archive", ARCHIVES)
def test_megatron_s_own_parser_takes_the_words(archive: str, torch: Any, intent: Any, tmp_path: Path) -> None:
    import json

    if not (PEERS / "megatron_check.py").is_file():
        pytest.skip("Megatron-LM's archives are not beside the repository")
    for module in ("einops", "regex", "six"):
        pytest.importorskip(module, reason="Megatron-LM's archives are not beside the repository with all they import")
    made = [
        intent("llama-3-8b", tp=2, pp=2, zero_stage=1, **_PARALLEL), intent("mistral-7b", pp=4, stage_layers="7;9;9;7"),
        intent("deepseek-v3", gpus=64, ep=8, zero_stage=1), intent("mixtral-8x7b", tp=2, ep=2, etp=1, **_PARALLEL),
    ]  # fmt: skip
    cases = [{"name": str(i), "words": export(one, ARCHIVES[archive]).words, "world": one.job.cluster.num_gpus}
             for i, one in enumerate(made)]  # fmt: skip
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    check = [sys.executable, str(PEERS / "megatron_check.py"), str(PEERS / f"megatron-lm-{archive}.tar.xz")]
    done = subprocess.run([*check, str(tmp_path / "cases.json")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_shared_experts_are_one_as_wide_as_all_of_them() -> None:
    job = job_named("deepseek-v2-lite", gpus=64)  # two shared experts of 1408
    written = options(intent_of(job, plan_of(job)))
    assert written["moe-shared-expert-intermediate-size"] == "2816"
    assert written["moe-ffn-hidden-size"] == "1408"


@pytest.mark.parametrize(
    ("window", "cp", "word"), [(64, 2, "all_gather"), (64, 1, None), (0, 2, None), (4096, 2, None)]
)
def test_ranks_of_a_sequence_gather_keys_where_layers_have_windows(
    intent: Any, window: int, cp: int, word: str | None
) -> None:
    plain = intent("llama-3-8b", cp=cp)  # Transformer Engine's ring refuses windows, of sequences of 4,096 tokens
    made = replace(plain, job=replace(plain.job, model=replace(plain.model, window_size=window)))
    assert options(made).get("cp-comm-type") == word
    overrides = yaml.safe_load(TARGETS["megatron-bridge"].export(made).files["overrides.yaml"])["model"]
    assert overrides.get("cp_comm_type") == word
    assert "cp-comm-type" not in options(made, "0.14")  # which has no windows either


def test_what_gpt_oss_has_and_megatron_s_words_have_not_is_named(intent: Any) -> None:
    made = intent("gpt-oss-20b", ep=4)
    notes = " ".join(export(made, NEWEST).notes)
    assert "has no activation quick_gelu" in notes
    assert "has no attention sinks" in notes
    written = options(made)
    assert (written["window-size"], written["window-attn-skip-freq"]) == ("128,0", "2")
    assert "disable-bias-linear" not in written
