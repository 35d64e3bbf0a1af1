"""The memory estimate: real models of the same sizes, what each setting changes, and what cannot fit."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from omegaconf import open_dict

from recipes.errors import ConfigError
from recipes.launch import memory
from recipes.launch.adapter_checks import check_adapters
from recipes.launch.memory import GIB, Shape

QWEN3_4B = Shape(151936, 2560, 9728, 36, 32, 8, 128, tied=True, qk_norm=True)
GROUP, BLOCK = "actor_rollout_ref", "actor_rollout_ref.rollout.engine_kwargs.vllm.tandem_config"


@pytest.fixture(autouse=True)
def all_models_are_qwen3_4b(monkeypatch):
    monkeypatch.setattr(memory, "shape_of", lambda path: QWEN3_4B)


@pytest.fixture
def parts(composed):
    """Trained models and engines of a recipe's config on a device of 80 GiB."""

    def found(recipe, *overrides, device="cuda"):
        second = import_module(f"recipes.{recipe}.main").RECIPE.second_model
        return memory.parts_of(composed(recipe, *overrides), device, 80 * GIB, second)

    return found


@pytest.mark.parametrize("wrong", [{"num_attention_heads": 0}, {"vocab_size": "x"}, {"num_hidden_layers": -3}])
def test_sizes_that_no_model_has_are_no_shape(wrong, tmp_path, monkeypatch):
    monkeypatch.undo()
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"num_attention_heads": 2}))
    assert memory.shape_of(str(tmp_path)).head_dim == 4
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"num_attention_heads": 2} | wrong))
    assert memory.shape_of(str(tmp_path)) is None and memory.shape_of(None) is None


@pytest.mark.parametrize("scale", ["logiqa2_llama2_7b", "qwen3_4b"])
def test_two_devices_that_train_beside_two_that_serve_the_prm_are_enough(parts, scale):
    models, engines = parts("step_ppo", f"scale={scale}")
    assert memory.problem_of(models, engines, 80 * GIB, host=False) is None


def test_a_device_is_enough_for_the_senior_whose_junior_has_its_own(parts):
    launcher = (Path(__file__).parents[3] / "recipes/tandem/run_qwen3_4b.sh").read_text()
    (tokens,) = re.findall(r"MAX_TOKENS_PER_GPU:-(\d+)", launcher)
    alone = ("scale=qwen3_4b", "preset=portable", "trainer.n_gpus_per_node=1")
    models, engines = parts("tandem", *alone, f"{GROUP}.actor.ppo_max_token_len_per_gpu={tokens}")
    assert memory.problem_of(models, engines, 80 * GIB, host=False) is None
    assert memory.problem_of(*parts("tandem", *alone), 80 * GIB, host=False), "the launcher's bound is not needed"


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


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("kind", "hidden", "inner", "layers", "heads"),
    [("Qwen3", 128, 384, 2, 4), ("Qwen3", 96, 256, 3, 4), ("Qwen2", 128, 512, 2, 8), ("Llama", 128, 344, 3, 4)],
)
def test_parameters_and_activations_are_those_of_the_real_model(kind, hidden, inner, layers, heads, size):
    """Activations within 15 %, in bfloat16 as on a GPU and in float32 as on a CPU."""
    import transformers
    from peft import LoraConfig, get_peft_model

    sizes = dict(hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads)
    sizes |= dict(num_key_value_heads=2, vocab_size=512, attn_implementation="sdpa")
    config = getattr(transformers, f"{kind}Config")(**sizes, **({"head_dim": 48} if kind == "Qwen3" else {}))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16 if size == 2 else torch.float32)
    shape, tokens = Shape.from_config(config.to_dict()), 192
    expected = tokens * (layers * shape.saved_per_token(size, 0) + (4 + size) * hidden)
    assert expected == pytest.approx(saved_bytes(model.train(), tokens), rel=0.15)
    assert shape.parameters == pytest.approx(model.num_parameters(), rel=0.01)
    wrapped = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert shape.adapter_parameters(8) == sum(p.numel() for p in wrapped.parameters() if p.requires_grad)


def test_worked_numbers_of_a_4b_model(parts):
    """All weights in float32 keep 16 bytes a parameter, over all devices; bfloat16 and adapters of rank 32 little more
    than the base; AdamW's step takes 4 more."""
    ((full,), _) = parts("sppo", "scale=qwen3_4b", "trainer.n_gpus_per_node=1")
    assert full.state == 16 * QWEN3_4B.parameters and full.update >= 20 * QWEN3_4B.parameters and full.building == 0
    assert parts("sppo", "scale=qwen3_4b", "trainer.n_gpus_per_node=8")[0][0].state == full.state // 8
    ((adapted,), (engine,)) = parts("sppo", "scale=qwen3_4b_lora_1gpu", "one_gpu.gb=80")
    assert QWEN3_4B.adapter_parameters(32) == 66_060_288
    assert adapted.state in (2 * QWEN3_4B.parameters + 8 * 66_060_288, 4 * QWEN3_4B.parameters + 16 * 66_060_288)
    assert engine.weights == 2 * QWEN3_4B.parameters and engine.sequence % 147_456 == 0


@pytest.mark.parametrize(
    ("override", "part"),
    [
        (f"{GROUP}.actor.fsdp_config.param_offload=true", "resting"),
        (f"{GROUP}.actor.fsdp_config.optimizer_offload=true", "resting"),
        (f"{GROUP}.actor.fsdp_config.model_dtype=bf16", "state"),
        (f"{GROUP}.model.enable_gradient_checkpointing=true", "update"),
        (f"{GROUP}.model.use_fused_kernels=true", "update"),
        (f"{GROUP}.actor.ppo_max_token_len_per_gpu=8192", "update"),
        (f"{GROUP}.model.lora_rank=32", "update"),
    ],
)
def test_every_setting_lowers_what_it_is_meant_to_lower(parts, override, part):
    plain = ["scale=qwen3_4b", f"{GROUP}.model.enable_gradient_checkpointing=false"]
    plain += [f"{GROUP}.actor.fsdp_config.{name}_offload=false" for name in ("param", "optimizer")]
    plain += [f"{GROUP}.actor.ppo_max_token_len_per_gpu=16384", f"{GROUP}.actor.fsdp_config.model_dtype=fp32"]
    before, after = (getattr(parts("sppo", *plain, *more)[0][0], part) for more in ((), (override,)))
    assert after < before


@pytest.mark.parametrize(
    ("recipe", "gb"),
    [("sppo", gb) for gb in ("24", "48", "80")]
    + [(recipe, gb) for recipe in ("tandem", "serl", "pasodoble", "step_ppo") for gb in ("24", "80")],
)
def test_the_one_gpu_scale_fits_its_gpu_and_all_weights_do_not(recipe, gb, composed, monkeypatch):
    monkeypatch.setattr(memory, "device_bytes", lambda config, device: int(gb) * GIB)
    config = composed(recipe, "scale=qwen3_4b_lora_1gpu", f"one_gpu.gb={gb}")
    with open_dict(config):
        config.proposer = config.copy() if recipe == "pasodoble" else None
    memory.check_memory(config, "cuda")
    check_adapters(config)
    assert config.actor_rollout_ref.model.lora_rank == 32
    if gb == "24":
        config.actor_rollout_ref.model.lora_rank = 0
        with pytest.raises(ConfigError, match="update phase"):
            memory.check_memory(config, "cuda")


def test_an_engine_needs_room_for_a_sequence_and_rests_beside_what_is_trained(parts):
    ((model,), (engine,)) = parts("sppo", "scale=qwen3_4b_lora_1gpu", "one_gpu.gb=80")
    small = engine._replace(share=engine.weights + GIB + engine.sequence - 1)
    assert memory.problem_of([model], [small], 80 * GIB, host=False).startswith("an engine has")
    assert memory.problem_of([model], [engine], 80 * GIB, host=False) is None
    stays = model._replace(resting=int(80.5 * GIB) - engine.share)
    assert memory.problem_of([stays], [engine], 80 * GIB, host=False).startswith("the rollout phase")
    awake = memory.phases_of([model], [engine._replace(sleeps=False)], host=False)
    assert awake["update"] == memory.phases_of([model], [engine], host=False)["update"] + engine.share


@pytest.mark.parametrize(
    ("override", "copies"),
    [
        (None, 1),
        (f"{BLOCK}.share_weights=false", 2),
        (f"{BLOCK}.junior_model=/another", 2),
        (f"{BLOCK}.mode=lazy", 1),
        (f"+{BLOCK}.frozen_model=/another", 2),
    ],
)
def test_weights_that_two_models_share_count_once(override, copies, parts):
    _, (engine,) = parts("tandem", "scale=qwen3_4b_lora_1gpu", *filter(None, [override]))
    assert engine.weights == copies * 2 * QWEN3_4B.parameters and engine.sequence % (2 * 147_456) == 0


def test_a_critic_has_no_logits_and_a_small_batch_does_not_fill_its_budget(parts):
    batch = ("scale=toy", "preset=outcome", f"{GROUP}.rollout.n=4", "data.train_batch_size")
    small, large, larger = (parts("step_ppo", *batch[:-1], f"{batch[-1]}={n}")[0][-1] for n in (5, 5000, 9000))
    assert small.update < large.update == larger.update
    assert small.state < 16.1 * QWEN3_4B.parameters


def test_a_host_is_refused_what_its_memory_cannot_hold(parts):
    """There the weights stand twice as a model is built, and engines take no share."""
    models, engines = parts("sppo", "scale=toy", "+platform=cpu", device="cpu")
    needs = memory.phases_of(models, engines, host=True)
    assert needs == {"loading": 8 * QWEN3_4B.parameters, "update": models[0].update}
    assert memory.problem_of(models, engines, needs["update"], host=True) is None
    assert memory.problem_of(models, engines, needs["update"] - 1, host=True).startswith("the update phase")
    assert memory.problem_of(models, engines, needs["loading"] - 1, host=True).startswith("the loading phase")


def test_the_memory_of_a_host_is_that_of_its_container(tmp_path):
    limit = tmp_path / "memory.max"
    machine = memory.host_bytes(limit)
    assert machine > GIB // 4
    for text, expected in (("max\n", machine), ("1048576\n", 1048576), (f"{2 * machine}\n", machine)):
        limit.write_text(text)
        assert memory.host_bytes(limit) == expected
