"""The table of the best recorded MFU."""

from __future__ import annotations

from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.recipes import BestMfu, best_mfu
from jointopt.jobs.jobfile import job_from_options
from tests.each import each

ENTRIES = [
    (gpu, precision, kind, entry)
    for gpu, of_gpu in read_yaml("best_mfu.yaml")["best"].items()
    for precision, kinds in of_gpu.items()
    for kind, entry in kinds.items()
]


@each(("gpu", "precision", "kind", "entry"), ENTRIES)
def test_every_record_is_of_a_gpu_and_precision_of_the_catalogue_and_names_its_run(gpu, precision, kind, entry) -> None:
    assert precision in load_gpu(gpu).peak_tflops
    assert kind in ("dense", "moe", "adapters")
    best = BestMfu(**entry)
    assert 0.05 < best.mfu < 1.0
    assert best.run
    assert best.source
    assert best.rows >= 2


def test_a_record_is_found_by_gpu_precision_and_kind_of_model() -> None:
    dense, experts = (job_from_options(name, "h100-sxm5-80gb", 64, 64, 4096) for name in ("llama-3-8b", "mixtral-8x7b"))
    low = job_from_options("llama-3-8b", "h100-sxm5-80gb", 64, 64, 4096, dtype="fp8")
    records = [best_mfu(job) for job in (dense, experts, low)]
    assert len({record.run for record in records if record}) == 3
