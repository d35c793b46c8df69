"""Logs of trainers that write bars, dictionaries or entries of several lines: times as precise as they are stated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.frameworks.import_files import read_text
from jointopt.frameworks.logs import (
    COMPOSER,
    FORMATS,
    LIGHTNING,
    NEMO_BAR,
    OLMO,
    TRAINER,
    TRAINER_SUMMARY,
    Batch,
    Format,
    read_log,
)

BATCH = Batch(sequences=64, seq_length=8192, num_gpus=8)


def trainer(step: int, rate: str, loss: str = "1.23", norm: str = "0.7") -> str:
    """As transformers' progress callback writes it: a bar on one stream, a dictionary on the other."""
    bar = f"\r{step:3}%|▌         | {step}/100 [00:{step:02}<03:45,  {rate}]"
    return f"{bar}{' ' * 40}\n{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-05, 'epoch': 0.1}}\n"


def lightning(batch: int, clock: str, loss: str = "2.30") -> str:
    return (
        f"\rEpoch 0:  47%|████▋     | {batch}/90 [{clock}<07:13,  1.98it/s, v_num=0, train_loss={loss}, val_loss=9.0]"
    )


def nemo(batch: int, step: float, seconds: str) -> str:
    """NeMo's bar shows the figures of the step before at first, three digits of each."""
    figures = f"reduced_train_loss=11.50, global_step={step:.1f}, samples=8.0, train_step_timing in s={seconds}"
    return f"\rEpoch 0: :  47%|████▋     | {batch}/90 [06:19<07:13, {figures}]"


def olmo(step: int, rate: str, loss: str = "10.73", skipped: int = 0) -> str:
    head = f"[2024-04-17 09:42:{step:02}] INFO     [olmo.train:816, rank=0] [step={step}/739328]\n"
    lines = [f"train/CrossEntropyLoss={loss}", f"optim/step skipped={skipped}.0000", "throughput/total_tokens=8,388",
             f"throughput/device/tokens_per_second={rate}", "System/Peak GPU Memory (MB)=43,309"]  # fmt: skip
    return head + "".join(f"    {line}\n" for line in lines)


def composer(batch: int, rate: float) -> str:
    lines = [f"time/batch: {batch}", "memory/peak_reserved_mem: 32.2120", "loss/train/total: 8.4213",
             "throughput/batches_per_sec: 0.0027", f"throughput/samples_per_sec: {rate:.4f}"]  # fmt: skip
    return f"[batch={batch}/50]:\n" + "".join(f"\t Train {line}\n" for line in lines)


SUMMARY = "{'train_runtime': 85, 'train_samples_per_second': 11.7, 'train_steps_per_second': 1.17, 'train_loss': 0.5}\n"
CASES = {
    "trainer": (TRAINER, trainer(1, "9.87s/it") + trainer(2, "2.37s/it") + trainer(3, "4.00it/s"), (2.37, 0.25)),
    "summary": (TRAINER_SUMMARY, SUMMARY, (1 / 1.17,)),
    "summary of 5.0": (TRAINER_SUMMARY, SUMMARY.replace("1.17,", "'1.17',"), (1 / 1.17,)),
    "lightning": (LIGHTNING, lightning(1, "00:09") + lightning(5, "00:20") + lightning(11, "00:39")
                  + lightning(21, "01:09") + lightning(31, "1:01:09"), (3.0, 360.0)),
    "nemo": (NEMO_BAR, nemo(1, 0, "20.50") + nemo(2, 0, "20.50") + nemo(2, 1, "7.910")
             + nemo(3, 1, "7.910") + nemo(3, 2, "7.890"), (7.91, 7.89)),
    "olmo": (OLMO, olmo(1, "91") + olmo(2, "45,538") + olmo(3, "45,368"), (65536 / 45538, 65536 / 45368)),
    "olmo core": (OLMO, (olmo(1, "91") + olmo(2, "45,538")).replace("tokens_per_second", "TPS").replace(
        "CrossEntropyLoss", "CE loss").replace("8]", "8,epoch=1,eta=3h]"), (65536 / 45538,)),
    "composer": (COMPOSER, composer(0, 1.0) + composer(1, 2.7330) + composer(2, 32.0), (64 / 2.733, 2.0)),
}  # fmt: skip


@pytest.mark.parametrize(("form", "text", "seconds"), CASES.values(), ids=CASES)
def test_times_are_those_of_the_log(form: Format, text: str, seconds: tuple[float, ...]) -> None:
    assert next(known for known in FORMATS if known.is_log(text)) is form
    assert form.read(text, 1, BATCH).iteration_s == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, text, _ in CASES.values()], ids=CASES)
@settings(max_examples=60)
@given(share=st.floats(0.0, 1.0))
def test_a_log_that_is_cut_off_gives_no_false_time(form: Format, text: str, share: float) -> None:
    try:
        cut = form.read(text[: round(share * len(text))], 0, BATCH).iteration_s
    except ValueError:  # no iteration is whole
        return
    assert set(cut) <= set(form.read(text, 0, BATCH).iteration_s)


def test_how_precisely_a_rate_is_written_is_remarked_on() -> None:
    text = trainer(1, "9.87s/it") + trainer(2, "2.50s/it") + trainer(3, "2.50s/it")
    assert (
        TRAINER.read(text, 1, BATCH).remark == "rates that a progress bar smooths over some steps, each precise to 0.2%"
    )
    assert TRAINER_SUMMARY.read(SUMMARY, 5, BATCH).remark.endswith("evaluations included, precise to 0.4%")


def test_memory_is_in_the_unit_of_the_program() -> None:
    assert OLMO.read(olmo(1, "91"), 0, BATCH).peak_memory_gib == pytest.approx(43309e6 / 2**30)
    assert COMPOSER.read(composer(1, 2.0), 0, BATCH).peak_memory_gib == pytest.approx(30.0, rel=1e-4)


UNUSUAL = {  # an entry that does not count, and why
    "NaN": (TRAINER, trainer(4, "9.00s/it", loss="NaN"), "1 with NaN"),
    "gradient": (TRAINER, trainer(4, "9.00s/it", norm="'nan'"), "1 with NaN"),
    "evaluation": (TRAINER, "{'eval_loss': 2.0, 'epoch': 0.1}\n" + trainer(4, "9.00s/it"), "1 beside an evaluation"),
    "checkpoint": (TRAINER, "Saving model checkpoint to out/4\n" + trainer(4, "9.00s/it"), "1 beside a checkpoint"),
    "spike": (TRAINER, trainer(4, "9.00s/it", loss="7.5"), "1 with a spike of the loss"),
    "skipped": (OLMO, olmo(4, "91", skipped=1), "1 skipped"),
}


@pytest.mark.parametrize(("form", "text", "why"), UNUSUAL.values(), ids=UNUSUAL)
def test_iterations_that_are_no_ordinary_ones_do_not_count(form: Format, text: str, why: str) -> None:
    write, rate = (trainer, "2.00s/it") if form is TRAINER else (olmo, "32,768")
    run = form.read("".join(write(n, rate) for n in (1, 2, 3)) + text + write(5, rate) + write(6, rate), 0, BATCH)
    assert run.iteration_s == (2.0,) * 5
    assert next(f"{count} {reason}" for reason, count in run.dropped.items()).startswith(why)


def test_gpt_neox_writes_megatrons_line_with_a_loss_of_its_own_name() -> None:
    text = (" samples/sec: 61.234 | iteration {n:8d}/  320000 | elapsed time per iteration (ms): {ms} | learning rate: "
            "1.2E-04 | approx flops per GPU: 55.5TFLOPS | lm_loss: {loss} | loss scale: 1.0 | number of skipped "
            "iterations:   0 | number of nan iterations:   0 |\n")  # fmt: skip
    log = text.format(n=1, ms=1045.0, loss="1.04E+01") + text.format(n=2, ms=9045.0, loss="nan")
    assert read_log(log, 0).iteration_s == (1.045,)
    assert [(one.format, one.framework) for one in read_text(log)] == [("GPT-NeoX log", "megatron-deepspeed")]


QUOTED = [  # lines of a log that no logger wrote
    "cat > expected.txt <<'EOF'\nstep 1 loss 5.0 time 0.174\nEOF\n",
    "# Epoch 0:  47%|█| 7/15 [06:19<07:13,  1.98it/s, train_loss=2.3]\n",
    "cat <<-END\n\t{'train_runtime': 1, 'train_samples_per_second': 1, 'train_steps_per_second': 1}\n\tEND\n",
]


@pytest.mark.parametrize("text", QUOTED)
def test_a_script_that_quotes_a_log_is_no_log(text: str) -> None:
    script = text + "torchrun --nproc-per-node 8 train.py --model_name_or_path gpt2 --bf16 true\n"
    assert [one.format for one in read_text(script)] == ["launch script"]
    assert [bool(one.log) for one in read_text(script + "step 2 loss 5.0 time 0.174\n")] == [True]  # what it printed
