"""The block `evaluation` of a training run: what it takes, what it refuses, what it logs."""

import json

import pytest
from omegaconf import OmegaConf

from recipes.errors import ConfigError
from recipes.evaluation import during_training
from recipes.evaluation.benchmarks import load


def config(**rollout):
    return OmegaConf.create(
        {
            "actor_rollout_ref": {
                "model": {"path": "nowhere", "lora": {"rank": 0, "merge": False}},
                "rollout": {"name": "vllm", "max_model_len": 96} | rollout,
            },
            "data": {"max_prompt_length": 64, "max_response_length": 32},
            "trainer": {"default_local_dir": "checkpoints"},
        }
    )


def test_the_prefix_separates_the_two_sets_of_overrides():
    own, rest = during_training.split(
        ["evaluation.every=5", "trainer.nnodes=2", "+evaluation.sampling.x=1", "scale=evaluation.toy"]
    )
    assert own == ["every=5", "+sampling.x=1"]
    assert rest == ["trainer.nnodes=2", "scale=evaluation.toy"]


def test_the_response_limit_is_that_of_training_unless_set():
    block = during_training.read_block(["every=5", "benchmarks=[gsm8k]"], 32)
    assert block.pop("_target_") == "recipes.evaluation.during_training.PolicyEvaluation"
    assert block == {"every": 5, "arguments": ["benchmarks=[gsm8k]", "sampling.max_tokens=32"]}
    block = during_training.read_block(["every=5", "benchmarks=[gsm8k]", "sampling.max_tokens=7"], 32)
    assert block["arguments"] == ["benchmarks=[gsm8k]", "sampling.max_tokens=7"]


def test_thoughts_are_asked_for_as_in_training_unless_set():
    asked = ["every=5", "benchmarks=[gsm8k]", "sampling.max_tokens=7"]
    block = during_training.read_block(asked, 32, thinking=False)
    assert "prompt.thinking=false" in block["arguments"]
    block = during_training.read_block([*asked, "prompt.thinking=true"], 32, thinking=False)
    assert "prompt.thinking=false" not in block["arguments"]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ("", "evaluation.every"),
        ("every=0", "evaluation.every"),
        ("every=x", "evaluation.every"),
        ("every=2 benchmarks=[]", "evaluation.benchmarks"),
        ("every=2 +engine.quantization=fp8", "evaluation.engine"),
        ("every=2 partner.readings=[legibility]", "evaluation.partner.model"),
        ("every=2 partner.model=a/b", "evaluation.partner.model"),
        ("every=2 partner.model={endpoint:'http://a/v1',model:m,tokenizer:t}", "evaluation.partner.readings"),
        ("every=2 k=[4]", "evaluation.sampling.n"),
        ("every=2 +smapling.n=2", "evaluation.smapling"),
    ],
)
def test_bad_arguments_are_refused(arguments, key):
    with pytest.raises(ConfigError) as refused:
        during_training.read_block(["benchmarks=[gsm8k]", *arguments.split()], 32)
    assert refused.value.key == key


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"rollout.name": "sglang"}, "rollout.name"),
        ({"model.lora.rank": 8}, "model.lora.merge"),
        ({"model.custom_chat_template": "x"}, "model.custom_chat_template"),
    ],
)
def test_runs_whose_policy_the_engines_do_not_show_are_refused(change, key):
    run = config()
    for name, value in change.items():
        OmegaConf.update(run, f"actor_rollout_ref.{name}", value, force_add=True)
    with pytest.raises(ConfigError) as refused:
        during_training.add(run, ["every=2", "benchmarks=[gsm8k]"])
    assert refused.value.key == f"actor_rollout_ref.{key}"


class Letters:
    """A tokenizer whose tokens are characters."""

    def encode(self, text, add_special_tokens=False):
        return list(text)


def test_prompts_that_do_not_fit_the_engine_are_refused(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"question": "q" * 60, "answer": "1"}) + "\n")
    arguments = [f"benchmarks=[{path}]", "prompt.chat_template=false", "prompt.bos=false", "sampling.max_tokens=30"]
    settings = during_training._settings(arguments)
    tokenizer = Letters()
    tokenizer.bos_token_id = None
    during_training.require_fit(load(str(path)), tokenizer, settings, 90)
    with pytest.raises(ConfigError) as refused:
        during_training.require_fit(load(str(path)), tokenizer, settings, 89)
    assert refused.value.key == "evaluation.sampling.max_tokens"


def test_the_policy_is_asked_at_all_engines_and_its_results_lie_by_step():
    run = config()
    run.evaluation = during_training.read_block(["every=2", "benchmarks=[gsm8k]"], 32)
    settings = during_training.policy_settings(run, ["http://a/v1", "http://b/v1"], "/models/m", "/models/t", 7)
    (model,) = settings.models
    assert (model.endpoints, model.served, model.tokenizer) == (
        ("http://a/v1", "http://b/v1"),
        "/models/m",
        "/models/t",
    )
    assert settings.output_dir.parts == ("checkpoints", "evaluation", "step_7")
    assert model.author is None and settings.partner.model is None
    run.actor_rollout_ref.rollout.name = during_training.TANDEM_ROLLOUT
    settings = during_training.policy_settings(run, ["http://a/v1"], "m", "t", 7)
    assert settings.models[0].author == "senior"


READINGS = ["every=2", "benchmarks=[gsm8k]", "partner.readings=[word_handoff,legibility]"]


def test_the_junior_of_a_tandem_engine_is_the_partner():
    section = {"junior_model": "/models/a b", "frozen_model": None}
    run = config(name=during_training.TANDEM_ROLLOUT, engine_kwargs={"vllm": {"tandem_config": section}})
    run.evaluation = during_training.read_block(READINGS, 32, during_training.junior_of(run))
    settings = during_training.policy_settings(run, ["http://a/v1", "http://b/v1"], "m", "t", 7)
    (policy,), junior = settings.models, settings.partner.model
    assert settings.partner.readings == ("word_handoff", "legibility")
    assert (junior.endpoints, junior.served, junior.tokenizer) == (policy.endpoints, "m", "t")
    assert (junior.author, junior.weights) == ("junior", "/models/a b")
    assert settings.partner.legibility_responses == during_training.LEGIBILITY_RESPONSES
    section["frozen_model"] = "/models/published"
    run = config(name=during_training.TANDEM_ROLLOUT, engine_kwargs={"vllm": {"tandem_config": section}})
    assert "/models/published" in during_training.junior_of(run)


def test_the_junior_of_the_portable_path_is_the_partner():
    run = config()
    assert during_training.junior_of(run) is None
    run.algorithm = {"tandem": {"portable": {"junior_url": "http://j:8100/v1", "junior_name": "junior"}}}
    arguments = ["every=2", "benchmarks=[gsm8k]", "partner.readings=[sentence_handoff,legibility]"]
    run.evaluation = during_training.read_block(arguments, 32, during_training.junior_of(run))
    junior = during_training.policy_settings(run, ["http://a/v1"], "m", "t", 7).partner.model
    assert (junior.endpoints, junior.served, junior.tokenizer) == (("http://j:8100/v1",), "junior", "nowhere")
    assert junior.author is None and junior.weights is None


def test_what_is_logged_names_benchmark_metric_and_what_it_is_taken_over():
    interval = {"mean": 0.5, "low": 0.4, "high": 0.6}
    result = {"metrics": {"pass@1": interval}, "counted_problems": 9, "truncated": 0.25, "mean_tokens": 12.0}
    summary = {
        "models": {"policy": {"toy": result}},
        "macros": {"policy": {"mine": {"metrics": {"pass@1": interval}}, "other": {"missing": ["x"]}}},
    }
    assert during_training.log_entries(summary) == {
        "evaluation/toy/pass@1": 0.5,
        "evaluation/toy/counted_problems": 9.0,
        "evaluation/toy/truncated": 0.25,
        "evaluation/toy/mean_tokens": 12.0,
        "evaluation/macro/mine/pass@1": 0.5,
    }


def test_readings_are_logged_under_their_names_and_an_unknown_value_is_not_logged_as_zero():
    interval = {"mean": 0.25, "low": 0.1, "high": 0.4}
    result = {"metrics": {"pass@1": interval}, "counted_problems": 9, "truncated": 0.0, "mean_tokens": None}
    alone = result | {"legibility": {"tokens": 0, "responses_left_out": 9}}
    joint = result | {"handoff_ratio": {"pass@1": None}, "handoff_gap": {"pass@1": -0.25}}
    macro = {"metrics": {"pass@1": interval}, "handoff_ratio": {"pass@1": 0.5}, "handoff_gap": {"pass@1": 0.25}}
    logged = during_training.log_entries(
        {
            "models": {"policy": {"toy": alone}, "policy+word_handoff": {"toy": joint}},
            "macros": {"policy+word_handoff": {"all": macro}},
        }
    )
    assert logged["evaluation/toy/legibility/responses_left_out"] == 9
    assert "evaluation/toy/legibility/nats_per_token" not in logged
    assert logged["evaluation/toy/word_handoff/pass@1"] == 0.25
    assert logged["evaluation/toy/word_handoff/gap/pass@1"] == -0.25
    assert "evaluation/toy/word_handoff/ratio/pass@1" not in logged
    assert logged["evaluation/macro/all/word_handoff/ratio/pass@1"] == 0.5
