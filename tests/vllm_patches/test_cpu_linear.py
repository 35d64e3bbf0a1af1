"""Weights of a CPU engine's linear layers stay where a trainer can write them."""

import inspect

import pytest
import torch
from vllm.platforms import current_platform

if not current_platform.is_cpu():
    pytest.skip("the patch is for vLLM's CPU platform", allow_module_level=True)

from vllm.model_executor.layers import utils  # noqa: E402

import vllm_patches  # noqa: E402
from vllm_patches import cpu_linear  # noqa: E402


@pytest.fixture
def patched(monkeypatch):
    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", utils.dispatch_cpu_unquantized_gemm)
    assert cpu_linear.keep_weights_in_place()
    assert cpu_linear.is_active()


def layer_of(rows: int, columns: int) -> torch.nn.Module:
    layer = torch.nn.Linear(columns, rows, bias=True)
    layer.weight.requires_grad_(False)
    return layer


def test_a_weight_written_in_place_is_the_weight_used(patched):
    layer = layer_of(48, 32)
    weight = layer.weight
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert layer.weight is weight
    x = torch.randn(5, 32)
    for _ in range(2):
        layer.weight.normal_()
        expected = x @ layer.weight.T + layer.bias
        torch.testing.assert_close(utils.cpu_unquantized_gemm(layer, x, layer.weight, layer.bias), expected)


def test_upstream_drops_the_weight():
    layer = layer_of(48, 32)
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert layer.weight.numel() == 0, "upstream keeps the weight now: the patch may go"


def test_layers_that_are_not_linear_keep_the_upstream_path(patched):
    conv = torch.nn.Conv1d(64, 64, 4, groups=64, dtype=torch.bfloat16)
    conv.weight.requires_grad_(False)
    utils.dispatch_cpu_unquantized_gemm(conv, remove_weight=True)
    assert not hasattr(conv, "cpu_linear")


def test_patching_twice_is_patching_once(patched):
    once = utils.dispatch_cpu_unquantized_gemm
    assert cpu_linear.keep_weights_in_place()
    assert utils.dispatch_cpu_unquantized_gemm is once


def test_register_patches_only_when_asked(monkeypatch):
    upstream = inspect.unwrap(utils.dispatch_cpu_unquantized_gemm)  # where another test has patched it
    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", upstream)
    for switch, active in (("", False), ("0", False), ("1", True), ("1", True)):
        monkeypatch.setenv(vllm_patches.CPU_SWITCH, switch)
        vllm_patches.register()
        assert cpu_linear.is_active() is active
