"""Experts in a narrower latent space by hand: their products, those on the way there and back, what crosses ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job
from jointopt.physics.layers import kernels, moe_layer
from jointopt.physics.traffic import routed_bytes

SUPER = load_model("nemotron-3-super-120b-a12b")  # 4,096 wide, 512 experts of 2,688 on 1,024, 22 a token, 2 shared


def test_a_layer_multiplies_tokens_down_through_its_experts_and_up_again(make_job: Callable[..., Job]) -> None:
    job, tokens, one = make_job(model=SUPER), np.array(8192.0), np.array(1.0)
    k = kernels(job, kernel_constants(job.cluster.gpu))
    work = moe_layer(k, SUPER, tokens, one, tokens, one, one, one, one, 0.0 * one)[0].forward
    experts, latent = 22 * 2 * 1024 * 2688, 2 * 4096 * 1024
    shared, router = 2 * 2 * 4096 * 2688, 4096 * 512
    assert float(work.flops) == pytest.approx(2 * 8192 * (experts + latent + shared + router))


def test_what_goes_to_experts_is_as_wide_as_their_latent_space() -> None:
    wide = replace(SUPER, moe_latent_size=0)
    sent = [float(routed_bytes(model, np.array(8192.0), np.array(1.0), 2.0)) for model in (SUPER, wide)]
    assert sent == [2 * 8192 * 22 * 1024, 2 * 8192 * 22 * 4096]
