"""SPPO's win rates from a reward model that verl serves in a pool of its own, against the model asked directly."""

import json

import pytest
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def reward_model(toy_world, tmp_path_factory):
    """The toy model's body with one random score."""
    from transformers import AutoTokenizer, Qwen3ForSequenceClassification

    torch.manual_seed(0)
    model = Qwen3ForSequenceClassification.from_pretrained(toy_world / "model", num_labels=1, dtype=torch.float32)
    torch.nn.init.normal_(model.score.weight)
    folder = tmp_path_factory.mktemp("reward_model")
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(toy_world / "model").save_pretrained(folder)
    return folder


def test_win_rates_from_a_served_reward_model(start, small, reward_model, tmp_path):
    engine = "reward.reward_model.rollout"
    run = start(
        "recipes.sppo.main",
        *small,
        "preset=paper",
        "algorithm.sppo.preference=bradley_terry",
        "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40",
        "reward.reward_model.enable=true",
        "reward.reward_model.enable_resource_pool=true",
        "reward.reward_model.n_gpus_per_node=1",
        "reward.reward_model.nnodes=1",
        f"reward.reward_model.model_path={reward_model}",
        *(f"{engine}.{key}" for key in ("name=vllm", "dtype=float32", "tensor_model_parallel_size=1")),
        *(f"{engine}.{key}" for key in ("max_model_len=128", "max_num_seqs=64", "max_num_batched_tokens=2048")),
        *(f"{engine}.{key}" for key in ("prompt_length=64", "response_length=64")),
        "reward.custom_reward_function.path=pkg://recipes.core.served_reward_model",
        "reward.custom_reward_function.name=compute_score",
        f"trainer.rollout_data_dir={tmp_path / 'rollouts'}",
        "trainer.total_training_steps=2",
    )
    assert run.wait() == 0, run.log[-6000:]
    for step in run.metrics().values():
        assert step["reward_faults/skipped_share"] == 0
        assert step["critic/score/max"] > step["critic/score/min"]
        assert step["actor/grad_norm"] > 0
    rows = [json.loads(line) for line in (tmp_path / "rollouts" / "1.jsonl").read_text().splitlines()]
    assert len(rows) == 32 * 5
    assert [row["score"] for row in rows[:20]] == pytest.approx(asked_directly(reward_model, rows[:20]), abs=1e-3)


@torch.inference_mode()
def asked_directly(folder, rows):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    scores = []
    for row in rows:
        question = row["input"].removeprefix("user\n").removesuffix("\nassistant\n")
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}]
        ids = tokenizer.apply_chat_template(messages)["input_ids"]
        scores.append(float(model(torch.tensor([ids])).logits[0, 0]))
    return scores
