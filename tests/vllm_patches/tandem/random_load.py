"""Random requests sent to a real engine, and what must hold of every answer."""

import random

from random_requests import random_settings
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from vllm_patches.tandem.config import request_settings
from vllm_patches.tandem.outputs import check_authorship

# 0.28 wraps what a plug-in raises in an error of its own that is no ValueError; 0.26 does not.
REFUSALS = (ValueError, VLLMValidationError)


def random_sampling(dice: random.Random) -> dict:
    """Arguments of ``SamplingParams``: any of them, each well-formed by itself."""
    choices = {
        "temperature": [0.0, 0.0, 0.7, 1.0, 2.0],
        "top_p": [1.0, 0.9, 0.01],
        "top_k": [0, 1, 20],
        "min_p": [0.0, 0.1],
        "seed": [None, 0, 5, -1, 2**62],
        "n": [1, 1, 1, 2, 3],
        "stop": [None, "s17", ["w9", "s4"]],
        "stop_token_ids": [None, [7], list(range(100, 200))],
        "ignore_eos": [True, False],
        "min_tokens": [0, 0, 3],
        "logprobs": [None, None, 0, 5],
        "prompt_logprobs": [None, None, 0, 2],
        "repetition_penalty": [1.0, 1.3],
        "presence_penalty": [0.0, -0.5],
        "frequency_penalty": [0.0, 0.5],
        "bad_words": [None, ["s17"]],
        "logit_bias": [None, {3: 5.0, 8: -100.0}],
        "allowed_token_ids": [None, [3, 5, 7, 9]],
        "detokenize": [True, True, False],
        "skip_special_tokens": [True, False],
    }
    chosen = {name: dice.choice(choices[name]) for name in dice.sample(sorted(choices), dice.randrange(0, 7))}
    return chosen | {"max_tokens": dice.choice([1, 2, 5, 12])}


class RandomLoad:
    """Requests in flight and what came of those that ended."""

    def __init__(self, engine, boundaries, dice: random.Random, vocab: int):
        self.core, self.boundaries, self.dice, self.vocab = engine.llm.llm_engine, boundaries, dice, vocab
        self.config = engine.runner.tandem_config
        self.flying: dict[str, tuple] = {}
        self.counts = {"refused": 0, "finished": 0, "aborted": 0}

    def prompt(self) -> list[int]:
        return [self.dice.randrange(self.vocab) for _ in range(self.dice.choice([1, 2, 17, 40, 90]))]

    def settings(self):
        return random_settings(self.dice)

    def sampling(self) -> dict:
        return random_sampling(self.dice)

    def send(self, number: int) -> None:
        prompt = self.prompt()
        extra_args = self.dice.choice([None, {}, *[{"tandem": self.settings()} for _ in range(6)]])
        try:
            params = SamplingParams(**self.sampling(), extra_args=extra_args)
            self.core.add_request(str(number), {"prompt_token_ids": prompt}, params)
        except REFUSALS as refusal:
            assert len(str(refusal)) > 20
            self.counts["refused"] += 1
            return
        self.flying[str(number)] = (prompt, params)

    def step(self) -> None:
        for output in self.core.step():
            if not output.finished:
                continue
            prompt, params = self.flying.pop(output.request_id)
            self.counts["finished"] += 1
            for one in output.outputs:
                self.check(prompt, params, one)

    def check(self, prompt, params, completion) -> None:
        assert completion.finish_reason in ("length", "stop"), completion
        extra = (params.extra_args or {}).get("tandem")
        seed = None if params.seed is None else params.seed + (completion.index if params.n > 1 else 0)
        settings = request_settings(self.config, extra, prompt, seed)
        resumed = prompt[len(prompt) - settings.resume_len :]
        boundary = self.boundaries.of(settings.params.strategy.boundary)
        check_authorship(completion.token_ids, completion.authorship_mask, settings.params, boundary, resumed)

    def abort(self) -> None:
        name = self.dice.choice(sorted(self.flying))
        del self.flying[name]
        self.core.abort_request([name])
        self.counts["aborted"] += 1

    def send_all(self, count: int) -> None:
        """Send ``count`` requests, at most 25 in flight, abort one in twenty, and wait for the rest."""
        for number in range(count):
            self.send(number)
            while len(self.flying) > 24 or self.dice.random() < 0.3:
                self.step()
            if self.flying and self.dice.random() < 0.05:
                self.abort()
        while self.flying:
            self.step()
