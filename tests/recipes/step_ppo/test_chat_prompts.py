"""`step_style=lines` asks through the chat template, in the stages and in the rollouts; plain text has one message."""

import asyncio
import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from recipes.errors import DataError
from recipes.step_ppo.pipeline.data import load_questions
from recipes.step_ppo.pipeline.dpo import preference_rows
from recipes.step_ppo.tokens import encode_prompt, encode_state, encode_trajectory, prompt_of

sys.path.insert(0, str(Path(__file__).parent))
from trajectories import byte_level_tokenizer  # noqa: E402

MESSAGES = [{"role": "system", "content": "Count."}, {"role": "user", "content": "How many r in r-x-r?"}]
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
RESPONSE = "r = r, 1.\nx != r, 1.\n2"


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = copy.deepcopy(byte_level_tokenizer())
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def row(style, messages=MESSAGES):
    return {
        "data_source": "letters",
        "prompt": messages,
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0, "step_style": style},
    }


def write(path, *rows):
    import pandas as pd

    pd.DataFrame(list(rows)).to_parquet(path)
    return [path]


def test_a_trajectory_is_the_templates_prompt_and_the_response_at_once(tokenizer, tmp_path):
    (question,) = load_questions(write(tmp_path / "data.parquet", row("lines"))).values()
    wanted = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    assert encode_prompt(tokenizer, question.prompt) == wanted
    encoded = encode_trajectory(tokenizer, question.prompt, RESPONSE, [9])
    assert encoded.prompt_length == len(wanted)
    assert tokenizer.decode(encoded.ids[len(wanted) :]) == RESPONSE
    assert tokenizer.decode(encoded.ids[len(wanted) : encoded.ends[0] + 1]).rstrip("\n") == "r = r, 1."
    state = encode_state(tokenizer, question.prompt, RESPONSE[:9], RESPONSE[9:])
    assert tokenizer.decode(state[len(wanted) :]).rstrip("\n") == "r = r, 1."


def test_preferences_are_the_rendered_prompt_and_its_continuations(tokenizer, tmp_path):
    questions = load_questions(write(tmp_path / "data.parquet", row("lines")))
    (pair,) = preference_rows(questions, [{"id": "0", "chosen": "2", "reject": "3"}], tokenizer)
    assert pair["prompt"].endswith("<assistant>") and (pair["chosen"], pair["rejected"]) == ("2", "3")


def test_several_messages_in_plain_text_are_refused_by_row(tmp_path):
    with pytest.raises(DataError, match="row 0: the prompt has 2 messages and step_style=react"):
        load_questions(write(tmp_path / "data.parquet", row("react")))


def test_a_model_without_a_template_gets_the_text_of_one_message(tokenizer):
    plain = SimpleNamespace(chat_template=None, is_fast=True, all_special_ids=[])
    with mock.patch.object(tokenizer, "chat_template", None):
        assert encode_prompt(tokenizer, MESSAGES[1:]) == tokenizer("How many r in r-x-r?")["input_ids"]
    with pytest.raises(ValueError, match="2 messages"):
        encode_prompt(plain, MESSAGES)


@pytest.mark.parametrize("style", ["lines", "react"])
def test_rollouts_ask_as_the_stages_do(tokenizer, style):
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    from recipes.step_ppo.agent_loop import StepPPOAgentLoop

    messages = MESSAGES if style == "lines" else MESSAGES[1:]

    async def by_template(self, messages, *_, **__):
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]

    async def ask():
        loop = StepPPOAgentLoop.__new__(StepPPOAgentLoop)
        loop.tokenizer, loop.loop = tokenizer, asyncio.get_running_loop()
        loop.config = SimpleNamespace(step_ppo=SimpleNamespace(step_style=style))
        loop._cap_text_prompt_length = lambda ids: ids
        return await loop.ct_build_initial_tokens(messages)

    with mock.patch.object(SingleTurnAgentLoop, "ct_build_initial_tokens", by_template):
        assert asyncio.run(ask()) == encode_prompt(tokenizer, prompt_of(messages, style))
