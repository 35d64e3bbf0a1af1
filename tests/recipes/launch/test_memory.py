"""The memory estimate: worked numbers, real models of the same sizes, refusals."""

import json
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from omegaconf import open_dict

from recipes.launch.memory import GIB, Engine, Plan, Shape, Training
from recipes.step_ppo.main import RECIPE as STEP_PPO

QWEN3_4B = Shape(151936, 2560, 9728, 36, 32, 8, 128, tied=True, qk_norm=True)
LLAMA2_7B = Shape(32000, 4096, 11008, 32, 32, 32, 128)
QWEN2_7B = Shape(152064, 3584, 18944, 28, 28, 4, 128, qkv_bias=True)


@pytest.mark.parametrize(
    ("shape", "parameters"), [(QWEN3_4B, 4_022_468_096), (LLAMA2_7B, 6_738_415_616), (QWEN2_7B, 7_615_616_512)]
)
def test_published_models_have_their_published_parameters(shape, parameters):
    assert shape.parameters == parameters


def test_worked_numbers_of_a_4b_model():
    """Full training in float32 keeps 16 bytes a parameter; adapters of rank 32 train 66 million."""
    full = Training(QWEN3_4B, tokens=4096)
    assert full.weights + full.gradients + full.optimizer == 16 * QWEN3_4B.parameters
    assert QWEN3_4B.adapter_parameters(32) == 66_060_288
    assert QWEN3_4B.cache_bytes() == 147_456
    # 36 layers x 4096 tokens x 2560 x 2 bytes of kept inputs are 0.70 GiB of this
    assert 0.7 * GIB < full.activations - full.logits < 2 * GIB
    assert full.logits == 4096 * 151936 * 12


def test_worked_numbers_of_a_step_and_of_a_processor():
    """AdamW's step takes 4 bytes a parameter more on an accelerator, and on a processor one tensor twice."""
    short = Training(QWEN3_4B, tokens=16)
    assert short.update == 20 * QWEN3_4B.parameters
    host = replace(short, compute="fp32", host=True)
    assert host.stepping == 2 * 4 * 151936 * 2560
    assert host.logits == 16 * 151936 * 12
    assert replace(host, padded=True).logits == 16 * 151936 * 16
    # nothing is fetched ahead: the tied embedding and one layer
    assert host.gathered == 4 * (151936 * 2560 + QWEN3_4B.layer_parameters)
    assert host.update < short.update


def test_what_fsdp_keeps_in_host_memory_gathered_or_unreduced_is_counted():
    """offload_policy, reshard_after_forward=false, use_no_sync_for_gradient_accumulation=true (torch 2.13, FSDP2)."""
    shared = Training(QWEN3_4B, ranks=8, tokens=16)
    streamed = replace(shared, streamed=True)
    assert (streamed.weights, streamed.gradients, streamed.optimizer, streamed.stepping, streamed.resting) == (0,) * 5
    assert streamed.update == max(streamed.gathered + streamed.activations, streamed.reducing)
    assert replace(shared, kept_whole=True).gathered == 2 * QWEN3_4B.parameters
    # float32 and whole on each device, where a reduced gradient is an eighth
    assert replace(shared, deferred=True).gradients == 4 * QWEN3_4B.parameters == 8 * shared.gradients


@pytest.mark.parametrize(
    ("setting", "device", "strategy", "found"),
    [
        ("offload_policy=true", "cuda", "fsdp2", {"streamed"}),
        ("offload_policy=true", "cuda", "fsdp", set()),
        ("offload_policy=true", "cpu", "fsdp2", set()),
        ("reshard_after_forward=false", "cuda", "fsdp2", {"kept_whole"}),
        ("use_no_sync_for_gradient_accumulation=true", "cuda", "fsdp2", {"deferred"}),
    ],
)
def test_the_settings_of_fsdp_reach_the_plan_of_actor_and_critic(setting, device, strategy, found, monkeypatch):
    from recipes.launch import memory_plan
    from recipes.launch.composition import compose_config

    monkeypatch.setattr(memory_plan, "shape_of", lambda path: QWEN3_4B)
    written = [f"actor_rollout_ref.actor.fsdp_config.{setting}", f"critic.fsdp.{setting}"]
    written += [f"actor_rollout_ref.actor.strategy={strategy}", f"critic.strategy={strategy}"]
    config = compose_config(STEP_PPO.config_module, STEP_PPO.config_name, ["scale=qwen3_4b", *written])
    for model in memory_plan.plan_of(config, device).trained:
        assert {name for name in ("streamed", "kept_whole", "deferred") if getattr(model, name)} == found


@pytest.mark.parametrize("wrong", [{"num_attention_heads": 0}, {"vocab_size": "x"}, {"num_hidden_layers": -3}])
def test_sizes_that_no_model_has_are_no_shape(wrong, tmp_path):
    from recipes.launch.memory_plan import shape_of

    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"num_attention_heads": 2}))
    assert shape_of(str(tmp_path)).head_dim == 4
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"num_attention_heads": 2} | wrong))
    assert shape_of(str(tmp_path)) is None


def test_a_critic_has_one_value_in_the_place_of_the_head():
    critic = Training(LLAMA2_7B, head=False)
    assert critic.parameters == LLAMA2_7B.parameters - 32000 * 4096 + 4096
    assert critic.logits == 0 and critic.weights == 4 * critic.parameters


def real_model(kind, **sizes):
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=512, attn_implementation="sdpa", max_position_embeddings=512, **sizes
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForCausalLM")(config), config.to_dict()


CASES = [
    ("Qwen3", dict(hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4, head_dim=32)),
    ("Qwen3", dict(hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, head_dim=64)),
    ("Qwen2", dict(hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8)),
    ("Llama", dict(hidden_size=128, intermediate_size=344, num_hidden_layers=3, num_attention_heads=4)),
]


@pytest.mark.parametrize(("kind", "sizes"), CASES)
def test_counts_equal_those_of_the_real_model(kind, sizes):
    from peft import LoraConfig, get_peft_model

    model, config = real_model(kind, **sizes, num_key_value_heads=2)
    shape = Shape.from_config(config)
    assert shape.parameters == model.num_parameters()
    wrapped = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = sum(p.numel() for p in wrapped.parameters() if p.requires_grad)
    assert shape.adapter_parameters(8) == trained


def saved_bytes(model, tokens):
    """Bytes that autograd keeps for the backward pass of the layers, each storage once, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.model(input_ids=torch.arange(tokens)[None] % 512, use_cache=False)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize(
    ("checkpointing", "compute"), [(False, "bf16"), (True, "bf16"), (False, "fp32"), (True, "fp32")]
)
@pytest.mark.parametrize(("kind", "sizes"), CASES)
def test_activations_agree_with_what_autograd_keeps(kind, sizes, checkpointing, compute):
    """Within 15 %, in bfloat16 as on a GPU and in float32 as on a CPU. With checkpointing, the inputs of the layers."""
    tokens = 192
    model, config = real_model(kind, **sizes, num_key_value_heads=2)
    model = model.to(torch.bfloat16 if compute == "bf16" else torch.float32).train()
    shape = Shape.from_config(config)
    estimate = Training(shape, tokens=tokens, checkpointing=checkpointing, compute=compute, head=False)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    # with checkpointing, the layer that is computed again has not begun
    expected = estimate.kept
    measured = saved_bytes(model, tokens)
    print(f"{kind} {checkpointing=} {compute}: estimated {expected}, kept {measured}, ratio {expected / measured:.2f}")
    assert expected == pytest.approx(measured, rel=0.15)


SIZES = st.builds(
    Training,
    st.just(QWEN3_4B),
    ranks=st.sampled_from([1, 2, 8]),
    rank=st.sampled_from([0, 8, 64]),
    dtype=st.sampled_from(["fp32", "bf16"]),
    tokens=st.integers(1, 32768),
    checkpointing=st.booleans(),
    fused=st.booleans(),
    offload_parameters=st.booleans(),
    offload_optimizer=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_every_knob_lowers_what_it_is_meant_to_lower(model):
    assert replace(model, ranks=2 * model.ranks).update < model.update
    assert replace(model, checkpointing=True).activations <= model.activations
    assert replace(model, fused=True).activations <= model.activations
    assert replace(model, offload_parameters=True, offload_optimizer=True).resting == 0
    assert replace(model, rank=8).update <= replace(model, rank=0).update


def plan(gib, share=0.6, length=3072, models=(QWEN3_4B,), **changes):
    settings = {"rank": 32, "dtype": "bf16", "tokens": 8192, "fused": True}
    settings |= {"offload_parameters": True, "offload_optimizer": True} | changes
    return Plan((Training(QWEN3_4B, **settings),), (Engine(models, share, length),), gib * GIB)


def test_adapters_on_24_gib_fit_and_full_training_does_not():
    assert plan(24).problem() is None
    told = plan(24, rank=0).problem()
    assert told.startswith("the update phase needs about") and "lora_rank=32" in told
    assert plan(80, rank=0, dtype="fp32").problem() is None
    assert plan(48, dtype="fp32").problem() is None


def test_an_engine_without_room_for_one_sequence_is_refused():
    told = plan(24, share=0.35).problem()
    assert "one sequence of 3072 tokens takes 0.4 GiB" in told and "gpu_memory_utilization" in told
    # two models of 4B beside each other
    assert plan(24, share=0.6, models=(QWEN3_4B, QWEN3_4B)).problem() is not None
    assert plan(24, share=0.85, models=(QWEN3_4B, QWEN3_4B)).problem() is None


def test_trained_state_that_stays_on_the_device_is_counted_beside_the_engine():
    stays = {"offload_parameters": False, "offload_optimizer": False}
    told = plan(48, rank=0, **stays).problem()
    assert told.startswith("the rollout phase") and "param_offload=true and optimizer_offload=true" in told
    assert plan(48, rank=0).problem() is None


def test_an_unknown_device_is_no_problem():
    assert replace(plan(24, rank=0), device=None).problem() is None


@pytest.mark.parametrize("gb", ["24", "48", "80"])
@pytest.mark.parametrize("recipe", ["sppo", "tandem", "serl", "pasodoble", "step_ppo"])
def test_the_one_gpu_scale_of_every_recipe_fits_its_gpu(recipe, gb, monkeypatch):
    from importlib import import_module

    from recipes.launch import memory_plan
    from recipes.launch.composition import compose_config

    monkeypatch.setattr(memory_plan, "shape_of", lambda path: QWEN3_4B)
    main = import_module(f"recipes.{recipe}.main").RECIPE
    overrides = ["scale=qwen3_4b_lora_1gpu", f"one_gpu.gb={gb}"]
    config = compose_config(main.config_module, main.config_name, overrides)
    if recipe == "pasodoble":
        with open_dict(config):
            config.proposer = None
            config.proposer = config.copy()
    monkeypatch.setattr(memory_plan, "device_bytes", lambda config, device: int(gb) * GIB)
    found = memory_plan.plan_of(config, "cuda")
    print(recipe, gb, *found.rows(), sep="\n  ")
    assert found.problem() is None


@pytest.mark.parametrize(
    ("overrides", "copies"),
    [
        ([], 1),
        (["share_weights=false"], 2),
        (["junior_model=/another"], 2),
        (["mode=lazy"], 1),
        (["+frozen_model=/another"], 2),
    ],
)
def test_weights_that_two_models_share_count_once(overrides, copies, monkeypatch):
    from recipes.launch import memory_plan
    from recipes.launch.composition import compose_config
    from recipes.tandem.main import RECIPE

    monkeypatch.setattr(memory_plan, "shape_of", lambda path: QWEN3_4B)
    block = "actor_rollout_ref.rollout.engine_kwargs.vllm.tandem_config."
    written = [f"+{block}{line[1:]}" if line.startswith("+") else block + line for line in overrides]
    config = compose_config(RECIPE.config_module, RECIPE.config_name, ["scale=qwen3_4b_lora_1gpu", *written])
    (engine,) = memory_plan.plan_of(config, "cuda").engines
    assert engine.weights == copies * 2 * QWEN3_4B.parameters
    assert engine.cache_per_token == 2 * QWEN3_4B.cache_bytes()


@pytest.mark.parametrize(
    ("overrides", "device", "compute", "host", "context"),
    [
        (["scale=toy", "+platform=cpu"], "cpu", "fp32", True, 0),
        (["scale=qwen3_4b"], "cuda", "bf16", False, GIB),
    ],
)
def test_the_plan_of_a_config_computes_as_its_platform_does(overrides, device, compute, host, context, monkeypatch):
    from recipes.launch import memory_plan
    from recipes.launch.composition import compose_config

    monkeypatch.setattr(memory_plan, "shape_of", lambda path: QWEN3_4B)
    found = memory_plan.plan_of(compose_config("recipes.sppo.config", "sppo", overrides), device)
    (actor,) = found.trained
    assert (actor.compute, actor.host, found.context) == (compute, host, context)
    assert (actor.padded, actor.masked > 0) == (host, host)


def test_a_host_is_refused_what_its_memory_cannot_hold():
    """Engines take no share of a host's memory, and what stays in it frees nothing."""
    on_host = {"rank": 0, "dtype": "fp32", "host": True, "fused": False, "checkpointing": False}
    full = plan(80, share=1.0, **on_host, tokens=1024)
    assert full.problem() is None
    assert not any("keys and values" in name for name, _ in full.rows())
    told = plan(80, **on_host).problem()
    assert told.startswith("the update phase") and "CPU" in told and "lora_rank=32" in told
    names = {name for name, _ in full._changes()}
    assert len(names) == 4 and not any(word in " ".join(names) for word in ("offload", "devices", "fused", "utiliz"))
    # 2 x 15 GiB for a moment, although an update takes 26
    assert "stand twice" in plan(28, **on_host | {"rank": 8}, tokens=1024).problem()


def test_the_knobs_of_a_run_with_a_critic_are_those_of_both():
    """The published setting of step-PPO on four devices of 80 GB, both models beside an engine at half of them."""
    actor = Training(LLAMA2_7B, ranks=4, tokens=16384)
    both = (actor, replace(actor, head=False, tokens=32768))
    run = Plan(both, (Engine((LLAMA2_7B,), 0.5, 4096),), 80 * GIB)
    knob, after = run.best_knob("rollout")
    assert "actor_rollout_ref.actor.fsdp_config.param_offload=true and optimizer_offload=true" in knob
    assert "critic.fsdp.param_offload=true and optimizer_offload=true" in knob and after < 42 * GIB
    told = {name for name, _ in run._changes() if "critic" in name}
    assert len(told) == 5 and all("actor_rollout_ref" in name for name in told)
    assert not any("critic" in name for name, _ in replace(run, trained=(actor,))._changes())


def test_the_memory_of_a_host_is_that_of_its_container(tmp_path):
    from recipes.launch.memory_plan import host_bytes

    limit = tmp_path / "memory.max"
    machine = host_bytes(limit)
    assert machine > GIB // 4
    for text, expected in (("max\n", machine), ("1048576\n", 1048576), (f"{2 * machine}\n", machine)):
        limit.write_text(text)
        assert host_bytes(limit) == expected


def test_a_small_batch_does_not_fill_the_critics_budget():
    """Without a budget of its own the critic packs 32,768 tokens, which a toy run never has."""
    from recipes.launch.composition import compose_config
    from recipes.launch.memory_plan import _critic

    overrides = ["scale=toy", "preset=outcome"]
    config = compose_config(STEP_PPO.config_module, STEP_PPO.config_name, overrides)
    length = config.data.max_prompt_length + config.data.max_response_length
    config.data.train_batch_size, config.actor_rollout_ref.rollout.n = 5, 4
    assert _critic(config, QWEN3_4B, 1, "cpu").tokens == 20 * length < 32768
    assert _critic(config, QWEN3_4B, 8, "cpu").tokens == 3 * length
    config.data.train_batch_size = 5000
    assert _critic(config, QWEN3_4B, 1, "cpu").tokens == 32768
