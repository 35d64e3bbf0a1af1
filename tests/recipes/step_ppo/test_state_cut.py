"""Where a state ends on tokens: completions begin where the policy does, whatever the tokenizer merges."""

import hashlib
import math
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from recipes.core.files import write_parquet
from recipes.step_ppo.labels import StateSampling, state_records
from recipes.step_ppo.pipeline import collect, complete, states
from recipes.step_ppo.pipeline.data import load_questions, make_row
from recipes.step_ppo.pipeline.prm import encode_examples
from recipes.step_ppo.pipeline.prm_model import IGNORED, prm_examples
from recipes.step_ppo.pipeline.records import read
from recipes.step_ppo.pipeline.score import encode_responses
from recipes.step_ppo.tokens import encode_prompt, encode_state, encode_trajectory, load_tokenizer, rollout_steps

sys.path.insert(0, str(Path(__file__).parent))
from scripted_server import serving  # noqa: E402
from trajectories import (  # noqa: E402
    byte_level_tokenizer,
    qwen_like_tokenizer,
    random_trajectory,
    sentencepiece_tokenizer,
)

PROMPT = "Context:\nall\n\nQuestion:\nwhich?\n\nOptions:\nA. a\n\nThought 1:"
MERGING = {"byte-level": byte_level_tokenizer, "qwen-like": qwen_like_tokenizer}


@pytest.fixture(scope="module", params=[*MERGING, "sentencepiece"])
def tokenizer(request, tmp_path_factory):
    if request.param == "sentencepiece":
        return sentencepiece_tokenizer(tmp_path_factory.mktemp("sentencepiece"))
    return MERGING[request.param]()


def cut_before_the_break(tokenizer, prompt: str, prefix: str) -> list[int]:
    """The original's cut: the text up to the last line's end, tokenized by itself."""
    return encode_prompt(tokenizer, f"{prompt} {prefix}")


def test_a_state_is_a_token_prefix_of_its_trajectory_on_300_random_ones(tokenizer):
    rng = random.Random(0)
    seen = 0
    for _ in range(300):
        text = random_trajectory(rng).strip()
        if not text:
            continue
        whole = encode_trajectory(tokenizer, PROMPT, text, []).ids
        record = {"id": "q", "responses": [{"text": text}]}
        for state in state_records(record, StateSampling(ratio=1.0, ratio_s=0.0), 0):
            ids = encode_state(tokenizer, PROMPT, state["prefix"], state["rest"])
            assert whole[: len(ids)] == ids
            read = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            before = tokenizer.decode(ids[:-1], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            wanted = f"{PROMPT} {state['prefix']}"
            assert read.startswith(wanted) and not before.startswith(wanted)
            assert not read[len(wanted) :].strip(), "nothing but line breaks may join the state"
            seen += 1
    assert seen > 300


@pytest.mark.parametrize("name", MERGING)
def test_a_merged_line_break_belongs_to_the_state(name):
    tokenizer = MERGING[name]()
    prefix, rest = "it follows .\nAction 1: look , it holds .", "\nAction 2: Finish[The answer is A.]"
    ids = encode_state(tokenizer, PROMPT, prefix, rest)
    assert tokenizer.decode(ids).endswith(".\n")
    assert ids != cut_before_the_break(tokenizer, PROMPT, prefix)


def test_sentencepiece_keeps_the_original_cut(tmp_path):
    tokenizer = sentencepiece_tokenizer(tmp_path)
    rng = random.Random(1)
    for _ in range(100):
        record = {"id": "q", "responses": [{"text": random_trajectory(rng).strip()}]}
        for state in state_records(record, StateSampling(ratio=1.0, ratio_s=0.0), 0):
            ids = encode_state(tokenizer, PROMPT, state["prefix"], state["rest"])
            assert ids == cut_before_the_break(tokenizer, PROMPT, state["prefix"])


def test_completions_labels_scores_and_rollouts_name_one_token(tokenizer, tmp_path):
    """The last token of a state is the one at which the PRM is trained, is scored, and is read in a rollout."""
    text = "it follows .\nAction 1: look up 3.\nObservation 1: all are careful\nAction 2: Finish[The answer is A.]"
    write_parquet(tmp_path / "p.parquet", [make_row(PROMPT, "A", 0, "train", data_source="t", style="react")])
    questions = load_questions([tmp_path / "p.parquet"])
    trajectory = {"key": "0", "id": "0", "responses": [{"text": text, "correct": True}]}
    found = list(state_records(trajectory, StateSampling(ratio=1.0, ratio_s=0.0), 0))
    last_tokens = [len(encode_state(tokenizer, PROMPT, s["prefix"], s["rest"])) - 1 for s in found]

    values = [s | {"value": 2, "num_completions": 3, "prefix_length": len(s["prefix"])} for s in found]
    examples = list(prm_examples(questions, [trajectory], values, num_completions=3, whole_trajectories=False))
    rows, _ = encode_examples(tokenizer, examples, 4096)
    assert [i for i, label in enumerate(rows[0]["labels"]) if label != IGNORED] == last_tokens

    encoded, _ = encode_responses(tokenizer, questions["0"], trajectory["responses"], 4096)
    assert encoded[0][0].ends[1:-1] == last_tokens, "the first thought and the last action are scored, but no states"

    prompt = encode_prompt(tokenizer, PROMPT)
    response = encoded[0][0].ids[len(prompt) :] + [tokenizer.eos_token_id]
    rollout = rollout_steps(tokenizer, response, {tokenizer.eos_token_id})
    assert [len(prompt) + end for end in rollout.ends[1:-1]] == last_tokens


class TokenPolicy:
    """Writes token by token what it saw after the last sixteen tokens; stops where it has seen nothing."""

    CONTEXT = 16

    def __init__(self, tokenizer, prompt: str, responses: list[str]):
        self.tokenizer, self.next = tokenizer, defaultdict(Counter)
        for response in responses:
            ids = [*encode_trajectory(tokenizer, prompt, response, []).ids, tokenizer.eos_token_id]
            for i in range(len(encode_prompt(tokenizer, prompt)), len(ids)):
                self.next[tuple(ids[i - self.CONTEXT : i])][ids[i]] += 1

    def __call__(self, prompt: str | list[int], seed: int, index: int) -> str:
        ids = encode_prompt(self.tokenizer, prompt) if isinstance(prompt, str) else list(prompt)
        rng = random.Random(hashlib.sha256(f"{ids}/{seed}/{index}".encode()).digest())
        start = len(ids)
        while len(ids) < start + 80 and (seen := self.next.get(tuple(ids[-self.CONTEXT :]))):
            token = rng.choices(list(seen), list(seen.values()))[0]
            if token == self.tokenizer.eos_token_id:
                break
            ids.append(token)
        # As a server writes it: the text that the new tokens add to the prompt's.
        told = self.tokenizer.decode(ids[:start], skip_special_tokens=True)
        return self.tokenizer.decode(ids, skip_special_tokens=True)[len(told) :]


def test_the_mean_value_of_first_states_is_the_accuracy(tokenizer, tmp_path):
    """A policy that is right half the time is right half the time from its first state on; a cut where it never was
    gives states of value 0."""
    rng = random.Random(3)
    responses = [
        f"it follows .\nAction 1: look , {rng.choice(['all', 'some'])} .\nObservation 1: it holds .\n"
        f"Action 2: Finish[The answer is {letter}.]"
        for _ in range(50)
        for letter in "AB"
    ]
    rows = [make_row(PROMPT, "A", i, "train", data_source="t", style="react") for i in range(15)]
    write_parquet(tmp_path / "p.parquet", rows)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    # Read back, as the stages read it.
    policy = TokenPolicy(load_tokenizer(str(tmp_path / "tokenizer")), PROMPT, responses)
    common = ["--data", str(tmp_path / "p.parquet"), "--model", "policy", "--temperature", "1", "--top-p", "1"]
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in ("trajectories", "states", "values")}
    with serving(policy=policy) as (url, _):
        served = [*common, "--endpoint", url]
        collect.main([*served, "--n", "10", "--keep-duplicates", "--output", paths["trajectories"]])
        sampling = ["--ratio", "1", "--ratio-s", "0"]
        states.main(["--trajectories", paths["trajectories"], *sampling, "--output", paths["states"]])
        more = ["--n", "4", "--states", paths["states"], "--tokenizer", str(tmp_path / "tokenizer")]
        complete.main([*served, *more, "--output", paths["values"]])
    records = {name: list(read([path])) for name, path in paths.items()}
    right = [response["correct"] for record in records["trajectories"] for response in record["responses"]]
    first = [record for record in records["values"] if record["step"] == 0]
    assert len(right) == 150 and len(first) == 150
    assert not [record["reason"] for record in first if record["value"] is None]
    accuracy = sum(right) / len(right)
    mean = sum(record["value"] for record in first) / (4 * len(first))
    # 150 and 600 draws at one half: five standard errors of the difference.
    assert abs(mean - accuracy) < 5 * math.sqrt(0.25 / 150 + 0.25 / 600)
