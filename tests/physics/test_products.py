import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import CatalogError
from jointopt.jobs.catalog.gpus import gpu_ids, load_gpu
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.kernels import GemmConstants
from jointopt.physics.layers import gemm_bytes, gemm_time_s
from tests.each import each
from tests.places import DATA

# H200 was timed too, and takes H100's constants, which recorded runs on it are nearer to
MEASURED = ("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb", "gb200", "l40s")
TABLE = DATA / "gemm_bf16.csv.gz"

# of products with m, n, k >= 4096, the table's mean in TFLOP/s
RATES = (
    ("a100-sxm4-80gb", 262), ("h100-sxm5-80gb", 764), ("gb200", 1405), ("l40s", 208),
)  # fmt: skip

gpus = st.sampled_from(MEASURED)
extents = st.integers(1, 200_000)


def constants(gpu: str) -> GemmConstants:
    return kernel_constants(load_gpu(gpu)).gemm


def total_s(m, n, k, gpu="h100-sxm5-80gb", **options):
    return np.sum(gemm_time_s(m, n, k, constants(gpu), **options), axis=0)


@given(gpus, extents, extents, extents)
def test_no_product_beats_the_peak_the_memory_or_one_launch(gpu, m, n, k):
    c = constants(gpu)
    time_s = total_s(m, n, k, gpu)
    assert time_s >= 2.0 * m * n * k / c.peak_flops
    assert time_s >= gemm_bytes(m, n, k, 2.0) / c.hbm_bytes_per_s
    assert time_s >= c.launch_s


@given(gpus, extents, extents, extents, st.sampled_from([0, 1, 2]), st.integers(1, 50_000))
def test_a_product_never_gets_faster_by_growing(gpu, m, n, k, axis, more):
    shape = [m, n, k]
    grown = list(shape)
    grown[axis] += more
    assert total_s(*grown, gpu) >= total_s(*shape, gpu) * (1 - 1e-9)


@given(gpus, extents, extents, extents)
def test_m_and_n_are_interchangeable(gpu, m, n, k):
    assert total_s(m, n, k, gpu) == pytest.approx(total_s(n, m, k, gpu))


def test_an_array_of_products_equals_each_one_alone():
    m, n, k = np.array([[1], [640], [8192]]), np.array([128, 4096]), 5120
    together = gemm_time_s(m, n, k, constants("h200-sxm-141gb"))
    for row in range(3):
        for column in range(2):
            alone = gemm_time_s(int(m[row, 0]), int(n[column]), k, constants("h200-sxm-141gb"))
            assert [part[row, column] for part in together] == pytest.approx([float(part) for part in alone])


def test_a_thin_product_waits_for_memory_and_a_thick_one_for_the_sms():
    c = constants("h100-sxm5-80gb")
    thin_sm_s, thin_memory_s = gemm_time_s(8, 16384, 16384, c)
    thick_sm_s, thick_memory_s = gemm_time_s(8192, 8192, 8192, c)
    assert thin_memory_s > 10 * thin_sm_s
    assert thick_sm_s > 100 * thick_memory_s


@pytest.mark.parametrize(("gpu", "tflops"), RATES)
def test_large_products_reach_the_published_mean_rate(gpu, tflops):
    """Means of aiconfigurator's products with m, n, k >= 4096."""
    size = np.array([4096, 8192, 16384])[:, None, None]
    m, n, k = size, size.reshape(1, 3, 1), size.reshape(1, 1, 3)
    rate = 2.0 * m * n * k / total_s(m, n, k, gpu) / 1e12
    assert rate.mean() == pytest.approx(tflops, rel=0.05)


@given(gpus, extents, extents, extents, st.integers(1, 64))
def test_grouped_products_are_not_slower_than_one_after_another(gpu, m, n, k, batch):
    assert total_s(m, n, k, gpu, batch=batch) <= batch * total_s(m, n, k, gpu) * 1.3
    assert total_s(m, n, k, gpu, batch=1) == total_s(m, n, k, gpu)


@given(gpus, extents, extents, extents)
def test_the_power_limit_only_adds_time_and_only_on_the_sm_side(gpu, m, n, k):
    limited = gemm_time_s(m, n, k, constants(gpu))
    free = gemm_time_s(m, n, k, constants(gpu), throttled=False)
    assert limited[0] >= free[0]
    assert limited[1] == free[1]


@pytest.mark.parametrize(("dtype", "factor"), [("fp16", 1.0), ("fp8", 0.52), ("fp4", 0.26), ("fp32", 2.0)])
def test_a_large_product_in_another_dtype_takes_its_share_of_the_bf16_time(dtype, factor):
    in_bf16 = total_s(16384, 16384, 16384, "b200-sxm-180gb")
    in_dtype = total_s(16384, 16384, 16384, "b200-sxm-180gb", dtype=dtype)
    assert in_dtype / in_bf16 == pytest.approx(factor, rel=0.02)


def test_a_dtype_that_the_gpu_lacks_is_an_error_that_lists_the_others():
    with pytest.raises(CatalogError, match="'fp8'; expected one of bf16, fp16, fp32"):
        gemm_time_s(1024, 1024, 1024, constants("a100-sxm4-80gb"), "fp8")


@each("gpu", gpu_ids())
def test_every_gpu_has_constants_and_names_what_stands_in(gpu):
    kernels = kernel_constants(load_gpu(gpu))
    assert 0.3 < max(tile.peak_fraction for tile in kernels.gemm.tiles) < 1.0
    stands_in = "gemm" in {assumption.key for assumption in kernels.assumed}
    assert stands_in == (gpu not in MEASURED)


@pytest.mark.skipif(not TABLE.exists(), reason="the recorded measurements are not beside the repository")
@pytest.mark.parametrize("gpu", MEASURED)
def test_products_of_a_thousand_and_more_are_timed_within_five_percent_and_of_l40s_eight(gpu):
    import pandas as pd

    rows = pd.read_csv(TABLE).query(f"gpu == {gpu!r} and m >= 1024 and n >= 1024 and k >= 1024")
    predicted = total_s(rows.m.to_numpy(), rows.n.to_numpy(), rows.k.to_numpy(), gpu)
    within = 0.08 if gpu == "l40s" else 0.05
    assert np.median(np.abs(predicted / rows.time_s.to_numpy() - 1.0)) < within
