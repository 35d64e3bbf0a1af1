"""The ways in for other trainers: their contract always, and a run inside the trainer where it is installed."""

import asyncio
import inspect

import pytest

from reward_fns.errors import OptionError, SkipError
from reward_fns.math import score
from reward_fns.result import Score
from reward_fns.trainers import (
    UNJUDGED,
    filter_responses,
    register_lm_eval_filter,
    response_text,
    trl_reward,
    verifiers_reward,
)

RIGHT, WRONG, GOLD = r"so \boxed{0.5}", r"so \boxed{0.6}", r"\frac12"


def said(text):
    return [{"role": "user", "content": r"\boxed{0.5}?"}, {"role": "assistant", "content": text}]


def test_the_plain_function():
    assert score(RIGHT, GOLD) == Score(1.0, pred="0.5")


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("text", "text"),
        (said("text"), "text"),
        ({"role": "assistant", "content": "text"}, "text"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "te"}, {"type": "text", "text": "xt"}]}], "text"),
        ([{"role": "user", "content": r"\boxed{0.5}"}], ""),
        ([{"role": "assistant", "content": None}], ""),
        ([], ""),
        (None, None),
    ],
)
def test_the_text_of_a_completion(completion, text):
    assert response_text(completion) == text


def test_the_contract_of_trl():
    """`reward_func(prompts=, completions=, completion_ids=, **columns)` gives a list of floats and None."""
    reward = trl_reward("solution")
    assert reward.__name__ == "math_reward"
    columns = {"solution": [GOLD, GOLD, None, GOLD], "trainer_state": object(), "log_extra": print}
    completions = [said(RIGHT), said(WRONG), said(RIGHT), said("")]
    assert reward(prompts=["q"] * 4, completions=completions, completion_ids=[[1]] * 4, **columns) == [1, 0, None, 0]
    with pytest.raises(OptionError, match="no column 'solution'"):
        reward(prompts=["q"], completions=[RIGHT], answer=["1"])
    with pytest.raises(OptionError):
        trl_reward(mod="strict")


def test_the_contract_of_verifiers():
    """A rubric passes what a function names: prompt, completion, answer, state, info, task."""
    reward = verifiers_reward()
    assert inspect.iscoroutinefunction(reward)
    assert {"completion", "answer"} <= set(inspect.signature(reward).parameters)
    assert asyncio.run(reward(completion=said(RIGHT), answer=GOLD, prompt="q", state={}, info={})) == 1.0
    assert asyncio.run(reward(completion=said(WRONG), answer=GOLD)) == 0.0
    with pytest.raises(SkipError):
        asyncio.run(reward(completion=said(RIGHT), answer=None))


def test_the_contract_of_an_lm_eval_filter():
    docs = [{"answer": GOLD}, {"answer": GOLD}, {"answer": ""}]
    filtered = filter_responses([[RIGHT, WRONG], ["no box"], [RIGHT]], docs)
    assert filtered == [[GOLD, "0.6"], [""], [UNJUDGED]]


def test_trl_trains_with_it(tmp_path):
    pytest.importorskip("trl", reason="TRL is not installed: the extra dpo brings it")
    datasets = pytest.importorskip("datasets")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    try:
        from trl import GRPOConfig, GRPOTrainer
    except RuntimeError as error:
        pytest.skip(f"TRL cannot be imported beside the installed packages: {error!s:.200}")

    words = ["<pad>", "<eos>", "what", "is", "a", "half", *"bcdefgh"]
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=len(words), num_key_value_heads=2, pad_token_id=0, eos_token_id=1, **sizes)
    )
    seen = []
    inner = trl_reward("solution")

    def math_reward(completions, **columns):
        # A model of sixteen numbers boxes nothing: its completions are given a box here.
        values = inner([RIGHT, WRONG] * (len(completions) // 2), **columns)
        seen.append(values)
        return values

    rows = datasets.Dataset.from_dict({"prompt": ["what is a half"] * 8, "solution": [GOLD] * 7 + [""]})
    settings = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=4,
        max_steps=2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        logging_steps=1,
    )
    trainer = GRPOTrainer(model, math_reward, settings, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    assert len(seen) == 2 and all(values in ([1.0, 0.0, 1.0, 0.0], [None] * 4) for values in seen)
    assert any("rewards/math_reward/mean" in entry for entry in trainer.state.log_history)


def test_verifiers_scores_with_it():
    vf = pytest.importorskip("verifiers", reason="verifiers is not installed")
    if not hasattr(vf, "Rubric"):
        pytest.skip("this verifiers has no Rubric at its top level")
    rubric = vf.Rubric(funcs=[verifiers_reward()])
    state = {
        "prompt": [{"role": "user", "content": "a half?"}],
        "completion": said(RIGHT)[1:],
        "answer": GOLD,
        "task": "t",
        "info": {},
        "trajectory": [],
        "timing": {"scoring_ms": 0.0, "total_ms": 0.0},
    }
    wrong = dict(state, completion=said(WRONG)[1:], timing=dict(state["timing"]), trajectory=[])
    asyncio.run(rubric.score_group([state, wrong]))
    assert [state["reward"], wrong["reward"]] == [1.0, 0.0]


def test_lm_eval_filters_with_it():
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    from lm_eval.api.instance import Instance
    from lm_eval.filters import build_filter_ensemble

    register_lm_eval_filter()
    ensemble = build_filter_ensemble("strict", [("reward_fns", {"gold_key": "answer"}), ("take_first", None)])
    docs = [{"answer": GOLD}, {"answer": "3"}]
    instances = [Instance("generate_until", doc, ("q", {}), i) for i, doc in enumerate(docs)]
    instances[0].resps, instances[1].resps = [RIGHT], [WRONG]
    ensemble.apply(instances)
    assert [instance.filtered_resps["strict"] for instance in instances] == [GOLD, "0.6"]
