"""Whole steps of the trainer on a real TransferQueue, with verl's own balancing, KL penalty and advantages.

Model workers and rollout engine alone are scripted, so that the generator can be as degenerate as it likes.
"""

import json
import random
import zlib
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf, open_dict
from tensordict import NonTensorStack, TensorDict
from transformers import PreTrainedTokenizerFast

from reward_fns.result import Score, Skip, to_verl

SEEDS = [f"Seed {i}: how much is {i} of thing{i} plus {i + 1} of place{i}?" for i in range(30)]
N = 4


@pytest.fixture(scope="module")
def tokenizer():
    """Bytes as tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": 0} | {symbol: number for number, symbol in enumerate(alphabet, start=1)}
    bytes_only = Tokenizer(models.BPE(vocabulary, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<end>", pad_token="<end>")


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


class Engine:
    """Writes what it is told to, answers as it is told to, and keeps the batches that reach the optimiser."""

    def __init__(self, queue, tokenizer, write, answer):
        self.queue, self.tokenizer, self.write, self.answer = queue, tokenizer, write, answer
        self.calls, self.rounds, self.updates = 0, [], []
        self._dispatch_info = {"actor": [0]}

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        self.calls += 1
        text = self.write(random.Random(sampling_params["seed"]))
        return SimpleNamespace(token_ids=self.tokenizer(text)["input_ids"])

    def sleep_replicas(self):
        pass

    def generate_sequences(self, batch):
        rows = [
            (f"{uid}_{session}_0", message[0]["content"], session)
            for uid, message in zip(batch["uid"], batch["raw_prompt"], strict=True)
            for session in range(N)
        ]
        answers = [self.answer(question, session) for _, question, session in rows]
        results = [Score(0.0, reason="no_gold") if isinstance(text, str) else text[1] for text in answers]
        answers = [text if isinstance(text, str) else text[0] for text in answers]
        responses = [torch.tensor(self.tokenizer(text)["input_ids"]) for text in answers]
        prompts = [torch.tensor(self.tokenizer(question)["input_ids"]) for _, question, _ in rows]
        scores = [torch.zeros(len(response)) for response in responses]
        for score, result in zip(scores, results, strict=True):
            score[-1] = getattr(result, "value", 0.0)
        sequences = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
        fields = {
            "uid": NonTensorStack(*[key.rsplit("_", 2)[0] for key, _, _ in rows]),
            "prompts": nested(prompts),
            "responses": nested(responses),
            "input_ids": nested(sequences),
            "position_ids": nested([torch.arange(len(ids)) for ids in sequences]),
            "response_mask": nested([torch.ones(len(ids), dtype=torch.int64) for ids in responses]),
            "rm_scores": nested(scores),
            "rollout_log_probs": nested([torch.full((len(ids),), -0.5) for ids in responses]),
            "extra_fields": NonTensorStack(*[{"reward_extra_info": to_verl(result)} for result in results]),
            "reward_model": NonTensorStack(*[{"ground_truth": ""} for _ in rows]),
            "data_source": NonTensorStack(*["toy" for _ in rows]),
            "extra_info": NonTensorStack(*[{"index": 0} for _ in rows]),
            "raw_prompt": NonTensorStack(*[[{"role": "user", "content": question}] for _, question, _ in rows]),
        }
        tags = [{"seq_len": len(ids)} for ids in sequences]
        keys = [key for key, _, _ in rows]
        self.queue.kv_batch_put(
            keys=keys, partition_id="train", fields=TensorDict(fields, batch_size=len(rows)), tags=tags
        )
        self.rounds.append((keys, tags))

    def sample(self, *, global_steps, partition_id, batch_size):
        from transfer_queue import KVBatchMeta

        keys, tags = self.rounds[-1]
        # As verl's buffer does with the markers of the prompts it hands out.
        self.queue.kv_clear(keys=list(dict.fromkeys(key.rsplit("_", 2)[0] for key in keys)), partition_id=partition_id)
        return KVBatchMeta(keys=keys, tags=tags, partition_id=partition_id, extra_info={}), {}

    def compute_log_prob(self, batch):
        data = self.queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["input_ids"])
        rows = [-0.5 - 0.001 * (ids % 7).float() for ids in data["input_ids"].unbind()]
        fields = TensorDict({"log_probs": nested(rows), "entropy": nested(rows)}, batch_size=len(rows))
        return self.queue.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)

    compute_ref_log_prob = compute_log_prob

    def update_actor(self, batch):
        fields = ["advantages", "old_log_probs", "response_mask", "rm_scores", "responses"]
        data = self.queue.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=fields)
        lengths = [[len(row) for row in data[name].unbind()] for name in fields]
        assert all(found == lengths[0] for found in lengths), "every field of a row has the row's length"
        self.updates.append((batch, data))
        return {"metrics": {"mfu": [0.0]}}


@pytest.fixture
def make(queue, tokenizer, tmp_path, composed):
    from verl.trainer.ppo import core_algos

    from recipes.core.requests import LocalRequests
    from recipes.core.reward_faults import RewardFaults
    from recipes.serl.run import Schedule
    from recipes.serl.settings import SerlSettings
    from recipes.serl.sources import Journal
    from recipes.serl.trainer import SerlTrainer
    from reward_fns.majority import CollapseAlarm

    seeds = tmp_path / "seeds.jsonl"
    seeds.write_text("".join(json.dumps({"problem": text}) + "\n" for text in SEEDS))
    sizes = ["scale=toy", f"serl.seeds={seeds}", f"actor_rollout_ref.rollout.n={N}", "data.train_batch_size=4"]
    sizes += ["actor_rollout_ref.actor.ppo_mini_batch_size=2", "serl.instructions.few_shot_generation_batch_size=4"]
    sizes += ["serl.instructions.max_prompt_tokens=2000", "serl.limits.max_rounds=3"]

    def make(write, answer, *overrides):
        config = composed("serl", *sizes, *overrides)
        engine = Engine(queue, tokenizer, write, answer)
        trainer = SerlTrainer.__new__(SerlTrainer)
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"
        trainer.config, trainer.tokenizer, trainer.engine = config, tokenizer, engine
        trainer.settings = SerlSettings.from_mapping(OmegaConf.to_container(config.serl, resolve=True))
        trainer.schedule = Schedule(instructions_num_per_iteration=1000, prompts_per_step=4)
        trainer.total_training_steps = 1000
        trainer.trained_prompts = trainer.skipped_steps = trainer.alarmed_steps = 0
        trainer.alarm, trainer.alarm_reason = CollapseAlarm(window=8), ""
        trainer.reward_faults, trainer.group_hook = RewardFaults(skip_share=0.3), None
        trainer.budget, trainer.requests = trainer.reward_faults.budget, LocalRequests()
        trainer.use_critic, trainer.use_reference_policy, trainer.ref_in_actor = False, True, False
        trainer.kl_ctrl_in_reward = core_algos.get_kl_controller(config.algorithm.kl_ctrl)
        trainer.actor_rollout_wg = trainer.ref_policy_wg = trainer.agent_loop_manager = trainer.replay_buffer = engine
        trainer.get_llm_client = lambda: engine
        trainer.trainer_mode, trainer.curr_step_profile = "sync", False
        trainer.checkpoint_manager = engine
        trainer.journal, trainer.global_steps = Journal(tmp_path / "journal"), 0
        trainer.source = trainer.self_instruct()
        return trainer

    return make


def step(trainer):
    """One step as verl's loop makes it; metrics, and what is left in the queue when the loop has cleared its batch."""
    import transfer_queue

    trainer.global_steps += 1
    trainer.timing_raw, metrics = {}, {}
    batch = trainer._step_once(metrics, trainer.timing_raw, 4)
    assert len(batch) > 0, "verl's metrics need rows"
    transfer_queue.kv_clear(keys=batch.keys, partition_id="train")
    assert not (transfer_queue.kv_list("train") or {}).get("train"), "nothing stays behind"
    return metrics


def problems(rng):
    return "\n".join(
        f"{i}. How much is {rng.randrange(10**6)} of w{rng.randrange(10**6)} for v{rng.randrange(10**6)}?"
        for i in (3, 4)
    )


def divided(question, session):
    """Three of four answers agree for two questions in three, all of them for the third."""
    odd = zlib.crc32(question.encode()) % 3 and session == 2
    return f"It is \\boxed{{{1 + odd}}}." + "!" * session


@pytest.mark.parametrize("estimator", ["reinforce_pp", "rloo", "grpo"])
def test_a_step_trains_on_whole_updates_of_survivors(make, estimator):
    trainer = make(problems, divided, f"estimator={estimator}")
    for number in (1, 2):
        metrics = step(trainer)
        (batch, data) = trainer.engine.updates[-1]
        assert metrics["serl/groups_trained"] == 4 and len(batch) == 4 * N
        rewards = [float(row.sum()) for row in data["rm_scores"].unbind()]
        assert Counter(rewards) == {1.0: 12, 0.0: 4}
        signs = {
            (reward > 0, float(row[0]) > 0) for reward, row in zip(rewards, data["advantages"].unbind(), strict=True)
        }
        assert signs == {(True, True), (False, False)}
        assert trainer.trained_prompts == 4 * number and trainer.timing_raw["serl_driver"] > 0
        assert not any(key.startswith("pad") for key in batch.keys)


def test_all_answers_vote_and_half_of_them_train(make):
    trainer = make(problems, divided, "estimator=grpo", "serl.vote.trained_share=0.5")
    for _ in range(2):
        metrics = step(trainer)
        batch, data = trainer.engine.updates[-1]
        assert metrics["serl/groups_trained"] == 4 and len(batch) == 4 * N // 2
        # The third answer of four is the odd one: it votes and does not train.
        assert {key.rsplit("_", 2)[1] for key in batch.keys} == {"0", "1"}
        assert [float(row.sum()) for row in data["rm_scores"].unbind()] == [1.0] * 8
    assert trainer._prompts_per_update() == 4


def test_the_run_ends_when_the_alarm_stands_for_as_many_steps_as_asked(make):
    from recipes.serl.run import RunCollapsed

    trainer = make(problems, lambda question, session: "\\boxed{7}", "serl.vote.alarm_stops_after=2")
    metrics = step(trainer)
    assert metrics["serl/collapse_alarm"] == 1
    with pytest.raises(RunCollapsed, match=r"for the 2\. step in a row \(serl.vote.alarm_stops_after=2\)"):
        step(trainer)


def test_labelled_groups_that_lost_a_response_train_with_padding_of_their_own_length(make):
    def answer(question, session):
        lost = session == 1 and question.startswith("Seed 1")
        return f"It is {session}." + "!" * 5 * session, Skip("endpoint_down") if lost else Score(float(session == 3))

    trainer = make(problems, answer)
    object.__setattr__(trainer.settings, "variant", "ground_truth")
    object.__setattr__(trainer.settings, "reward_difficulty_bounds", (0.0, 1.0))
    trainer.source.settings = SimpleNamespace(max_generation_calls=0, fall_back_to_seeds=True, carry_pending=False)
    lost = 0
    for _ in range(6):
        metrics = step(trainer)
        batch, _ = trainer.engine.updates[-1]
        skipped = int(metrics.get("reward_faults/skip/endpoint_down", 0))
        padding = sum(key.startswith("pad") for key in batch.keys)
        assert len(batch) == 16 and padding == skipped
        lost += skipped
    assert lost > 0


@pytest.mark.parametrize(
    ("write", "counted"),
    [
        (lambda rng: "no list at all", "texts_unparsable"),
        (lambda rng: "3. Why?", "dropped/too_short"),
        (lambda rng: f"3. {SEEDS[rng.randrange(30)]}", "dropped/too_similar"),
    ],
)
def test_a_degenerate_generator_falls_back_to_seeds_in_bounded_calls(make, write, counted):
    trainer = make(write, lambda question, session: f"\\boxed{{{int(session == 0)}}}")
    metrics = step(trainer)
    assert metrics["serl/groups_trained"] == 4 and metrics["serl/instructions/seeds_answered"] == 4
    assert metrics[f"serl/instructions/{counted}"] > 0
    assert trainer.engine.calls == 8 * 4, "eight calls of four prompts"


def test_a_model_that_always_agrees_skips_steps_raises_the_alarm_and_ends_with_the_reason(make):
    from recipes.serl.run import RunStalled

    trainer = make(problems, lambda question, session: "\\boxed{5}", "serl.limits.max_skipped_steps=2")
    for number in (1, 2):
        metrics = step(trainer)
        assert metrics["serl/skipped_steps"] == number and metrics["serl/collapse_alarm"] == 1.0
    assert trainer.engine.updates == [] and len(trainer.engine.rounds) == 2 * 3
    with pytest.raises(RunStalled, match="3 steps in a row trained nothing.*0 of 4 prompts survived 3 rounds"):
        step(trainer)


@pytest.mark.parametrize("statistics", ["before", "after"])
def test_a_model_that_never_answers_skips_steps_and_ends_with_the_reason(make, statistics):
    from recipes.serl.run import RunStalled

    options = ["serl.limits.max_skipped_steps=2", f"serl.statistics={statistics}"]
    trainer = make(problems, lambda question, session: "I would rather not say anything.", *options)
    for number in (1, 2):
        metrics = step(trainer)
        assert metrics["serl/skipped_steps"] == number and metrics["serl/groups"] == 0
        assert metrics["serl/unusable/vote_no_answers"] == 3 * 4
    assert trainer.engine.updates == [] and len(trainer.engine.rounds) == 2 * 3
    with pytest.raises(RunStalled, match="3 steps in a row trained nothing.*0 of 4 prompts survived 3 rounds"):
        step(trainer)


def test_a_step_without_a_vote_is_forgiven(make):
    trainer = make(
        problems, lambda question, session: "Nothing." if trainer.global_steps == 1 else divided(question, session)
    )
    assert step(trainer)["serl/skipped_steps"] == 1
    metrics = step(trainer)
    assert metrics["serl/skipped_steps"] == 0 and metrics["serl/groups_trained"] == 4
