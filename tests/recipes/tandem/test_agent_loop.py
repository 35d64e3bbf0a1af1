"""The agent loop on a scripted engine: what becomes the response mask, and what excludes a response."""

import asyncio
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from recipes.tandem.agent_loop import COUNTS, FAULT, TandemAgentLoop
from recipes.tandem.authorship import Authorship, response_identity
from recipes.tandem.trainer import TandemTrainer, require_no_fault
from vllm_patches.tandem.config import TandemConfig, request_settings
from vllm_patches.tandem.outputs import AuthorshipError
from vllm_patches.tandem.schedule import authorship

WORDS = ["<unk>", "<|im_end|>", "user", "assistant", "\n", "1", "2", "+", "\u0120is", "\u0120the"]
SECTION = {"frozen_model": "/models/junior", "prob_primary": 0.5, "max_gap_tokens": 3, "seed": 11, "junior_dtype": None}
RESPONSE = [5, 8, 6, 7, 9, 5, 5, 5, 6, 8, 1]
LENGTH = 12


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        eos_token="<|im_end|>",
        chat_template="{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant ",
    )


class Engine:
    """A tandem engine that writes `RESPONSE` and answers with `mask(tokens, params)`."""

    def __init__(self, mask=None, tokens=RESPONSE):
        self.mask, self.tokens, self.asked = mask or (lambda right: right), list(tokens), []

    async def generate(self, request_id, prompt_ids, sampling_params, **kwargs):
        self.asked.append(sampling_params)
        config = TandemConfig(junior_model="/models/junior", prob_senior=0.5, max_gap_tokens=3, seed=11)
        settings = request_settings(config, sampling_params["extra_args"]["tandem"], prompt_ids)
        answer = self.mask(authorship(self.tokens, settings.params, {8, 9}))
        fields = {} if answer is None else {"kv_transfer_params": {"tandem_authorship": answer}}
        return TokenOutput(token_ids=self.tokens, log_probs=[-0.5] * len(self.tokens), extra_fields=fields)


def run(engine, tokenizer, validation=None, **place):
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "prompt_length": 32,
                    "response_length": LENGTH,
                    "engine_kwargs": {"vllm": {"tandem_config": SECTION}},
                }
            },
            "data": {},
        }
    )

    async def respond():
        loop = TandemAgentLoop(
            DictConfigWrap(config), engine, tokenizer, None, SimpleNamespace, DictConfigWrap(config.data)
        )
        fields = {"index": 3, "global_steps": 5, "session_id": 2} | place
        if validation:
            fields["validation_authors"] = validation
        messages = [{"role": "user", "content": "1 + 1"}]
        return await loop.run({"temperature": 0.6, "logprobs": True}, raw_prompt=messages, **fields)

    return asyncio.run(respond())


def test_the_response_mask_is_the_authorship_mask(tokenizer):
    engine = Engine()
    output = run(engine, tokenizer)
    extra = engine.asked[0]["extra_args"]["tandem"]
    assert extra == {"request": response_identity(3, 5, 2, False)}
    config = TandemConfig(junior_model="/models/junior", prob_senior=0.5, max_gap_tokens=3, seed=11)
    expected = authorship(RESPONSE, request_settings(config, extra, output.prompt_ids).params, {8, 9})
    emitted = len(RESPONSE)
    assert output.response_ids[:emitted] == RESPONSE
    assert output.response_mask[:emitted] == expected and 0 < sum(expected) < emitted
    assert output.response_mask[emitted:] == [0] * (len(output.response_ids) - emitted)
    assert Authorship(**output.extra_fields[COUNTS]).senior_tokens == sum(expected)
    assert "kv_transfer_params" not in output.extra_fields and output.reward_score is None


def test_identities_come_from_the_place_in_the_run(tokenizer):
    engine = Engine()
    for place in ({}, {}, {"index": 4}, {"global_steps": 6}, {"session_id": 3}):
        run(engine, tokenizer, **place)
    requests = [asked["extra_args"]["tandem"]["request"] for asked in engine.asked]
    assert requests[0] == requests[1] and len(set(requests)) == 4


def test_validation_is_solo_or_joint_as_told(tokenizer):
    engine = Engine()
    solo = run(engine, tokenizer, "solo")
    assert engine.asked[0]["extra_args"]["tandem"]["selection_strategy"] == "senior"
    assert solo.response_mask[: len(RESPONSE)] == [1] * len(RESPONSE)
    run(engine, tokenizer, "joint")
    joint = engine.asked[1]["extra_args"]["tandem"]
    assert joint == {"request": response_identity(3, 5, 2, True)}
    # an engine that lets the junior write when the senior was asked alone is caught
    caught = run(Engine(lambda right: [0, *right[1:]]), tokenizer, "solo")
    assert "token 0 is marked" in caught.extra_fields["reward_extra_info"][FAULT]


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (lambda right: None, "returned no authorship mask"),
        (lambda right: right[:-1], "10 entries for 11 tokens"),
        (lambda right: [1 - author for author in right], "other tandem settings"),
        (lambda right: [1] * len(right), "other tandem settings"),
    ],
)
def test_a_fault_excludes_the_response_and_stops_the_trainer(tokenizer, mask, sentence):
    output = run(Engine(mask), tokenizer)
    fields = output.as_dict()
    assert int(fields["response_mask"].sum()) == 0 and float(fields["rm_scores"].sum()) == 0
    fault = output.extra_fields["reward_extra_info"][FAULT]
    assert sentence in fault and COUNTS not in output.extra_fields
    with pytest.raises(AuthorshipError, match=sentence):
        require_no_fault(fault)


def test_an_aborted_response_is_a_fault(tokenizer):
    output = run(Engine(lambda right: None, tokens=[]), tokenizer)
    assert output.as_dict()["response_mask"].tolist() == [0] * len(output.response_ids) and output.response_ids
    assert FAULT in output.extra_fields["reward_extra_info"]


def test_a_response_cut_at_its_length_keeps_its_authors(tokenizer):
    tokens = [5, 8] * LENGTH
    output = run(Engine(tokens=tokens), tokenizer)
    assert len(output.response_mask) == LENGTH == output.extra_fields[COUNTS]["tokens"]


def trainer_on(extra_fields, monkeypatch, **settings):
    """A trainer without its workers, whose queue holds these extra fields."""
    from recipes.core import data_plane
    from recipes.tandem.settings import TandemSettings

    trainer = TandemTrainer.__new__(TandemTrainer)
    trainer.settings = TandemSettings()
    trainer.tandem = TandemConfig(**{"junior_model": "m"} | settings)
    monkeypatch.setattr(data_plane.tq, "kv_batch_get", lambda **_: {"extra_fields": extra_fields})
    return trainer.check_authorship(SimpleNamespace(keys=["a"] * len(extra_fields), partition_id="train"))


def counts(redraws, senior):
    return {COUNTS: dict(responses=1, tokens=10, senior_tokens=5, turns=4, redraws=redraws, senior_redraws=senior)}


def test_the_trainer_logs_and_stops(monkeypatch):
    metrics = trainer_on([counts(8, 4), counts(8, 3)], monkeypatch)
    assert metrics["tandem/senior_token_share"] == 0.5 and metrics["tandem/switches_per_response"] == 3
    with pytest.raises(AuthorshipError, match="without verified authorship"):
        trainer_on([counts(8, 4), {}], monkeypatch)
    with pytest.raises(AuthorshipError, match="the run stops"):
        trainer_on([counts(8, 4), {"reward_extra_info": {FAULT: "lost"}}], monkeypatch)
    with pytest.raises(AuthorshipError, match="redraws fell on the senior"):
        trainer_on([counts(100, 90)] * 2, monkeypatch)
    assert trainer_on([counts(0, 0)], monkeypatch, selection_strategy="sentence")


def test_the_names_verl_asks_for_are_there():
    from recipes.tandem.agent_loop import TandemAgentLoopManager
    from recipes.tandem.guards import MANAGER

    assert f"{TandemAgentLoopManager.__module__}.{TandemAgentLoopManager.__name__}" == MANAGER
