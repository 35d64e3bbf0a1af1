"""What a run on host processors is given by itself, for a model of the toy's size and for a real one."""

import json
import os
import time

import pytest
import torch

from recipes.launch import cpu

ACTOR = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
SMOLLM2 = dict(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, tie_word_embeddings=True,
)  # fmt: skip
TOY = SMOLLM2 | dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (*cpu.ALLOCATOR, *cpu.WAITING, "OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fitted(composed, tmp_path, monkeypatch):
    def fit(sizes, *overrides, bfloat16=True):
        (tmp_path / "config.json").write_text(json.dumps(sizes))
        monkeypatch.setattr(cpu, "bfloat16_is_faster", lambda: bfloat16)
        path = f"actor_rollout_ref.model.path={tmp_path}"
        config = composed("sppo", "scale=smollm2_135m", "preset=grpo", "+platform=cpu", path, *overrides)
        cpu.fit_cpu(config, "cpu", overrides)
        return config

    return fit


def dtypes(config):
    group = config.actor_rollout_ref
    return {
        group.rollout.dtype,
        group.actor.fsdp_config.mixed_precision.param_dtype,
        config.critic.fsdp.mixed_precision.param_dtype,
    }


def test_a_real_model_gets_bfloat16_all_cores_and_an_allocator_that_keeps_memory(fitted):
    config = fitted(SMOLLM2)
    rollout = config.actor_rollout_ref.rollout
    assert dtypes(config) == {"bfloat16"} and config.actor_rollout_ref.actor.fsdp_config.model_dtype == "fp32"
    assert config.actor_rollout_ref.actor.optim.override_optimizer_config == {"fused": True}
    assert config.actor_rollout_ref.model.use_remove_padding and config.critic.model.use_remove_padding
    assert os.environ["OMP_NUM_THREADS"] == str(os.cpu_count())
    assert all(os.environ[name] == value for name, value in (cpu.WAITING | cpu.ALLOCATOR).items())
    assert "TORCHDYNAMO_DISABLE" not in os.environ
    # 128 sequences of 200 tokens, each with keys and values of 3 heads of 64 in 30 layers, of 2 bytes.
    assert rollout.engine_kwargs.vllm.kv_cache_memory_bytes == 128 * 200 * 2 * 30 * 3 * 64 * 2
    # The embedding, 49,152 x 576 in float32, is 108 MiB.
    assert rollout.checkpoint_engine.update_weights_bucket_megabytes == 109


def test_a_toy_stays_in_float32_on_half_of_the_cores(fitted):
    config = fitted(TOY)
    assert dtypes(config) <= {"float32", "fp32"}
    assert config.actor_rollout_ref.actor.optim.override_optimizer_config is None
    assert not config.actor_rollout_ref.model.use_remove_padding
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes == 64 * cpu.MIB
    assert os.environ["OMP_NUM_THREADS"] == str(max(1, os.cpu_count() // 2))
    assert not set(cpu.ALLOCATOR) & set(os.environ) and os.environ["TORCHDYNAMO_DISABLE"] == "1"


def test_a_processor_that_is_slower_in_bfloat16_runs_in_float32(fitted):
    assert dtypes(fitted(SMOLLM2, bfloat16=False)) <= {"float32", "fp32"}


def test_what_the_user_has_set_stays(fitted, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    kv = "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=1000"
    config = fitted(SMOLLM2, f"{ACTOR}=fp32", kv)
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "fp32"
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes == 1000
    assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(("slow", "found"), [(torch.float32, True), (torch.bfloat16, False), (None, False)])
def test_the_faster_precision_is_found_by_measuring(slow, found, monkeypatch):
    multiply = lambda a, b: time.sleep(0.02 if a.dtype is slow else 0.005)  # noqa: E731
    monkeypatch.setattr(torch, "mm", multiply)
    assert cpu.bfloat16_is_faster.__wrapped__() is found
