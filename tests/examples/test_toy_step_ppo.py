"""The direction puzzles: worked answers, splits that share no chain, the step_ppo recipe's own format and grade."""

import random
import re

import pytest
from toy_world.formats import step_ppo

from recipes.step_ppo.labels import state_lines
from recipes.step_ppo.pipeline.data import make_row
from recipes.step_ppo.prompts import LETTERS, question_block
from recipes.step_ppo.steps import FIRST_STEP, clean_response, segment_response
from reward_fns.multiple_choice import finish_letter


@pytest.fixture(scope="module")
def split():
    return step_ppo.split(seed=0)


def options(example) -> list[str]:
    return re.findall(r"^[A-D]\. (\w+)$", example.prompt[0]["content"], flags=re.MULTILINE)


def test_no_chain_stands_in_both_splits(split):
    chains = lambda examples: {tuple(example.extra_info["chain"]) for example in examples}  # noqa: E731
    assert len(split.test) == 500 and len(split.train) == 3000
    assert not chains(split.train) & chains(split.test)
    assert len(chains(split.test)) > 80


def test_the_answer_follows_from_the_chain(split):
    compass = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
    turns = {"right": lambda x, y: (y, -x), "left": lambda x, y: (-y, x), "opposite": lambda x, y: (-x, -y)}
    for example in split.train[:500] + split.test:
        direction, *chain = example.extra_info["chain"]
        facing = compass[direction]
        for turn in chain:
            facing = turns[turn](*facing)
        found = options(example)
        assert found == list(step_ppo.DIRECTIONS)
        assert compass[found["ABCD".index(example.ground_truth)]] == facing
        assert f"{example.ground_truth}.]" in example.response and step_ppo.grade(
            example.response, example.ground_truth
        )


def test_rows_and_prompts_are_the_recipes_own(split):
    for index, example in enumerate(split.test[:50]):
        prompt = example.prompt[0]["content"]
        context, question = (re.search(rf"{name}:\n(.*)\n", prompt)[1] for name in ("Context", "Question"))
        assert prompt == f"{question_block(context, question, options(example))}\n\n{FIRST_STEP}"
        row = make_row(prompt, example.ground_truth, index, "test", data_source=step_ppo.DATA_SOURCE, style="react")
        assert row["prompt"] == example.prompt and row["ability"] == step_ppo.ABILITY
        assert example.extra_info["step_style"] == row["extra_info"]["step_style"]


def test_a_response_is_a_clean_trajectory_of_many_steps(split):
    for example in split.train[:200]:
        assert clean_response(example.response) == example.response.strip()
        hops = len(example.extra_info["chain"]) - 1
        kinds = [step.kind for step in segment_response(example.response)]
        assert kinds == ["Thought", *["Action", "Observation"] * hops, "Thought", "Action"]
        assert len(state_lines(example.response.strip())) == 2 * hops + 1


def test_the_tokenizer_keeps_prompt_and_response_apart(split):
    from toy_world.build import VOCABULARY
    from toy_world.tokenizer import train_tokenizer
    from toy_world.warm_up import encode

    from recipes.step_ppo.tokens import encode_prompt, encode_trajectory

    texts = [text for example in split.train[:1500] for text in (example.prompt[0]["content"], example.response)]
    tokenizer = train_tokenizer(texts, VOCABULARY)
    tokenizer.chat_template = step_ppo.CHAT_TEMPLATE
    examples = split.train[:300]
    for tokens, example in zip(encode(tokenizer, examples), examples, strict=True):
        prompt = example.prompt[0]["content"]
        assert tokens.prompt == encode_prompt(tokenizer, prompt)
        whole = encode_trajectory(tokenizer, prompt, example.response.strip(), [])
        assert whole.ids == tokens.prompt + tokens.response[:-1]
        assert len(tokens.prompt) <= 64 and len(tokens.response) <= step_ppo.MAX_RESPONSE_TOKENS


def test_grade_agrees_with_the_reward_that_recipes_use():
    rng = random.Random(0)
    pieces = ["Finish", "[The answer is ", *LETTERS, ".]", "\n", "Action 2: ", "x"]
    for _ in range(2000):
        text = "".join(rng.choices(pieces, k=rng.randrange(8)))
        assert step_ppo.grade(text, "B") is (finish_letter(text)[0] == "B")
