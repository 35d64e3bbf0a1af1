"""What the trainer reads from and writes to verl's TransferQueue, on a real one."""

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict

from recipes.serl.pool import Instruction
from recipes.serl.settings import SerlSettings
from reward_fns.result import Score, Skip, to_verl

WORDS = {1: "\\boxed{7}", 2: "\\boxed{8}", 3: "I see"}
LENGTHS = (3, 1, 2, 4)


class Tokenizer:
    eos_token_id = 0

    def batch_decode(self, rows, skip_special_tokens):
        return [" ".join(WORDS[token] for token in row if token in WORDS) for row in rows]


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def put(queue, groups, **more):
    """Groups of (uid, answer tokens, results), each response as long as LENGTHS says, in the order of sessions."""
    from transfer_queue import KVBatchMeta

    rows = [
        (uid, session, token, result)
        for uid, tokens, results in groups
        for session, (token, result) in enumerate(zip(tokens, results, strict=True))
    ]
    lengths = [LENGTHS[i % len(LENGTHS)] for i in range(len(rows))]
    responses = [torch.tensor([3] * (length - 1) + [row[2]]) for row, length in zip(rows, lengths, strict=True)]
    scores = [torch.zeros(length) for length in lengths]
    for row, score in zip(rows, scores, strict=True):
        score[-1] = getattr(row[3], "value", 0.0)
    fields = {
        "prompts": nested([torch.tensor([5, 5])] * len(rows)),
        "responses": nested(responses),
        "input_ids": nested([torch.cat([torch.tensor([5, 5]), response]) for response in responses]),
        "position_ids": nested([torch.arange(2 + length) for length in lengths]),
        "response_mask": nested([torch.ones(length, dtype=torch.int64) for length in lengths]),
        "rm_scores": nested(scores),
        "extra_fields": NonTensorStack(*[{"reward_extra_info": to_verl(row[3])} for row in rows]),
        "reward_model": NonTensorStack(*[{"ground_truth": ""} for _ in rows]),
        "data_source": NonTensorStack(*["toy" for _ in rows]),
        "extra_info": NonTensorStack(*[{"index": 0} for _ in rows]),
        "raw_prompt": NonTensorStack(*[[{"role": "user", "content": "?"}] for _ in rows]),
    } | {name: nested([make(length) for length in lengths]) for name, make in more.items()}
    keys = [f"{uid}_{session}_0" for uid, session, _, _ in rows]
    tags = [{"seq_len": 2 + length, "prompt_len": 2, "response_len": length} for length in lengths]
    queue.kv_batch_put(keys=keys, partition_id="train", fields=TensorDict(fields, batch_size=len(rows)), tags=tags)
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train", extra_info={})


def trainer(variant, n=4, **faults):
    from recipes.core.reward_faults import RewardFaults
    from recipes.serl.trainer import SerlTrainer

    made = SerlTrainer.__new__(SerlTrainer)
    made.settings = SerlSettings(variant=variant, seeds="unused")
    made.config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"n": n}}})
    made.tokenizer, made.group_hook, made.reward_faults = Tokenizer(), None, RewardFaults(**faults)
    made.budget = made.reward_faults.budget
    made._watch = lambda vote: None
    return made


def scores(queue, batch):
    data = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["rm_scores"])
    return {key: row.tolist() for key, row in zip(batch.keys, data["rm_scores"].unbind(), strict=True)}


def left(queue):
    return set((queue.kv_list("train") or {}).get("train", {}))


def test_votes_are_written_on_the_last_token_and_groups_without_a_winner_leave(queue):
    voted = [Score(0.0, reason="no_gold")] * 4
    batch = put(queue, [("a-1", (1, 1, 2, 1), voted), ("b-2", (1, 1, 2, 2), voted), ("c-3", (2, 2, 2, 2), voted)])
    instructions = {uid: Instruction(i, uid) for i, uid in enumerate(("a-1", "b-2", "c-3"))}
    judged = trainer("self_instruct")._judge(batch, instructions)
    kept, metrics = judged.rows, judged.metrics
    assert [(g.handle, g.agreement, g.answer) for g in judged.groups] == [("a-1", 0.75, "7"), ("c-3", 1.0, "8")]
    assert [reason for _, reason in judged.unusable] == ["vote_tie"]
    assert left(queue) == set(kept.keys) and len(kept) == len(kept.tags) == 8
    written = scores(queue, kept)
    assert [sum(written[f"a-1_{i}_0"]) for i in range(4)] == [1, 1, 0, 1]
    assert written["a-1_3_0"] == [0, 0, 0, 1.0] and [sum(written[f"c-3_{i}_0"]) for i in range(4)] == [1] * 4
    assert metrics["reward_faults/score/minority"] == 1


def test_skipped_responses_of_labelled_data_leave_the_queue(queue):
    batch = put(queue, [("a", (1, 1, 1, 1), [Score(1.0), Skip("gold_missing"), Score(0.0), Score(0.0)])])
    judged = trainer("ground_truth", skip_share=0.5)._judge(batch, {"a": Instruction(0, "a", "dataset")})
    assert judged.groups[0].agreement == pytest.approx(1 / 3)
    assert left(queue) == set(judged.rows.keys) == {"a_0_0", "a_2_0", "a_3_0"}


def test_a_round_without_any_winner_keeps_its_rows_for_the_metrics_of_the_step(queue):
    batch = put(queue, [("a", (1, 1, 2, 2), [Score(0.0)] * 4)])
    judged = trainer("self_instruct")._judge(batch, {"a": Instruction(0, "a")})
    assert judged.groups == [] and not judged.trainable and left(queue) == set(batch.keys) == set(judged.rows.keys)


def test_padding_of_a_batch_with_advantages_has_rows_of_equal_lengths(queue):
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    from recipes.core.data_plane import is_padding, real_keys
    from recipes.serl.trainer import TOKEN_FIELDS, reset_padding

    fields = dict.fromkeys(
        ("old_log_probs", "ref_log_prob", "advantages", "returns", "token_level_rewards"), torch.ones
    )
    batch = put(queue, [("a", (1, 1, 1), [Score(1.0)] * 3)], **fields)
    batch = upsample_batch_to_divisible_size(batch, 4, eos_token_id=0)
    assert [is_padding(tag) for tag in batch.tags] == [False] * 3 + [True]
    reset_padding(batch)
    data = queue.kv_batch_get(keys=batch.keys, partition_id="train")
    for name in fields:
        assert name in TOKEN_FIELDS
        rows = data[name].unbind()
        assert [len(row) for row in rows] == [len(row) for row in data["responses"].unbind()]
        assert [row.tolist() for row in rows] == [[1.0] * 3, [1.0], [1.0] * 2, [0.0]]
    assert real_keys(batch) == ["a_0_0", "a_1_0", "a_2_0"]


def test_rloo_takes_its_baseline_from_the_scores_and_its_penalty_afterwards(queue):
    from recipes.serl.estimators import rloo_advantage
    from recipes.serl.trainer import replace_by_rloo

    torch.manual_seed(0)
    penalties = {}

    def rewards(length):
        penalties[length] = torch.rand(length)
        return -penalties[length]

    groups = [("a", (1, 1, 1, 1), [Score(v) for v in (1.0, 0.0, 0.0, 1.0)]), ("b", (1, 1), [Score(1.0), Score(0.0)])]
    batch = put(queue, groups, token_level_rewards=rewards)
    data = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["rm_scores", "token_level_rewards"])
    queue.kv_batch_put(
        keys=batch.keys,
        partition_id="train",
        fields=TensorDict(
            {
                "token_level_rewards": nested(
                    [
                        a + b
                        for a, b in zip(data["rm_scores"].unbind(), data["token_level_rewards"].unbind(), strict=True)
                    ]
                )
            },
            batch_size=6,
        ),
    )
    replace_by_rloo(batch)
    found = queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages", "returns"])
    kl, mask = torch.zeros(6, 4), torch.zeros(6, 4)
    for row, values in enumerate(data["token_level_rewards"].unbind()):
        kl[row, : len(values)], mask[row, : len(values)] = -values, 1
    expected, returns = rloo_advantage(torch.tensor([1.0, 0, 0, 1, 1, 0]), list("aaaabb"), kl, mask, kl_coef=1.0)
    for row, (advantages, suffix) in enumerate(
        zip(found["advantages"].unbind(), found["returns"].unbind(), strict=True)
    ):
        n = len(advantages)
        assert torch.allclose(advantages, expected[row, :n], atol=1e-6)
        assert torch.allclose(suffix, returns[row, :n], atol=1e-6)
