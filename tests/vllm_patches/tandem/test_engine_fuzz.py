"""Whatever clients send, the engine refuses it with a sentence or serves it, and goes on for everyone else."""

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams  # noqa: E402
from vllm.exceptions import VLLMValidationError  # noqa: E402

from vllm_patches.tandem.config import check_models, request_settings  # noqa: E402
from vllm_patches.tandem.outputs import check_authorship  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from random_requests import random_settings  # noqa: E402

# 0.28 wraps what a plug-in raises in an error of its own that is no ValueError; 0.26 does not.
REFUSALS = (ValueError, VLLMValidationError)


def random_sampling(dice: random.Random, vocab: int) -> dict:
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


class Fuzz:
    """Requests in flight and what came of those that ended."""

    def __init__(self, engine, boundaries, dice: random.Random, vocab: int):
        self.core, self.boundaries, self.dice, self.vocab = engine.llm.llm_engine, boundaries, dice, vocab
        self.config = engine.runner.tandem_config
        self.flying: dict[str, tuple] = {}
        self.counts = {"refused": 0, "finished": 0, "aborted": 0}

    def send(self, number: int) -> None:
        prompt = [self.dice.randrange(self.vocab) for _ in range(self.dice.choice([1, 2, 17, 40, 90]))]
        extra_args = self.dice.choice([None, {}, *[{"tandem": random_settings(self.dice)} for _ in range(6)]])
        try:
            params = SamplingParams(**random_sampling(self.dice, self.vocab), extra_args=extra_args)
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


@pytest.mark.parametrize(
    ("mode", "paragraphs", "tandem"),
    [
        ("lazy", True, {}),
        ("lazy", False, dict(prob_senior=0.7, max_lag_tokens=3)),
        ("lock_step", True, dict(word_align="before")),
        ("lock_step", False, dict(selection_strategy="chunk", chunk_size=3)),
    ],
)
@pytest.mark.parametrize("count", [200, pytest.param(2500, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_no_request_ends_the_engine(
    open_engine, models, models_without_paragraphs, reference, jobs, expected, vocab, mode, paragraphs, tandem, count
):
    paths = models if paragraphs else models_without_paragraphs
    engine = open_engine(
        paths["senior"],
        dict(junior_model=str(paths["junior"]), mode=mode) | tandem,
        max_model_len=256,
        num_gpu_blocks_override=40,
    )
    boundaries = check_models(engine.runner.tandem_config, str(paths["senior"]))
    dice = random.Random(f"{mode} {paragraphs}")
    fuzz = Fuzz(engine, boundaries, dice, vocab)
    for number in range(count):
        fuzz.send(number)
        while len(fuzz.flying) > 24 or dice.random() < 0.3:
            fuzz.step()
        if fuzz.flying and dice.random() < 0.05:
            fuzz.abort()
    while fuzz.flying:
        fuzz.step()
    assert not engine.llm.llm_engine.has_unfinished_requests()
    assert min(fuzz.counts["refused"], fuzz.counts["finished"]) > count / 10
    as_before = [job for job in jobs if job.tandem["selection_strategy"] != "sentence"][:4]
    as_before = [
        type(job)(job.prompt, job.num_tokens, job.tandem | {"word_align": "after", "prob_senior": 0.5})
        for job in as_before
    ]
    assert engine.run(as_before) == [reference.write(job) for job in as_before]
