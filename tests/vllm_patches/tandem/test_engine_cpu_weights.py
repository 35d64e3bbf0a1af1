"""Under the CPU switch a trainer's plain ``load_weights`` takes effect at once, on the senior alone."""

import copy

import pytest
import torch
from vllm.platforms import current_platform

if not current_platform.is_cpu():
    pytest.skip("the patch is for vLLM's CPU platform", allow_module_level=True)

from vllm.model_executor.layers import utils  # noqa: E402

import vllm_patches  # noqa: E402


def test_weights_loaded_by_plain_names_are_the_weights_used(
    open_engine, models, jobs, reference, expected, monkeypatch
):
    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", utils.dispatch_cpu_unquantized_gemm)
    monkeypatch.setenv(vllm_patches.CPU_SWITCH, "1")
    engine = open_engine(models["senior"], dict(junior_model=str(models["junior"])), load_format="dummy")
    engine.runner.model.load_weights(iter(reference.models[1].state_dict().items()))
    assert engine.run(jobs[:8]) == expected[:8]

    trained = copy.copy(reference)
    trained.models = dict(reference.models) | {1: copy.deepcopy(reference.models[1])}
    noise = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in trained.models[1].parameters():
            p.add_(0.1 * p.std() * torch.randn(p.shape, generator=noise))
    engine.runner.model.load_weights(iter(trained.models[1].state_dict().items()))
    engine.llm.reset_prefix_cache()
    written = engine.run(jobs[:6])
    assert trained.wrote_all(jobs[:6], written)
    assert written != expected[:6]
