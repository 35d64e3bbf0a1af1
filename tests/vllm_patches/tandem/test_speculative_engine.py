"""The speculative mode in a real engine: it writes what a cacheless loop of two models writes, token for token.

Greedy, and at temperature 0.8 with top-p 0.95, where the loop draws from the same noise. ``near`` is the senior with
noise on its weights, so that about two thirds of the drafts that the senior is to write stand.
"""

import copy
import dataclasses

import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from vllm_patches.tandem.schedule import stream_key
from vllm_patches.tandem.speculative.verify import draw, noise_key, signed64

REFUSALS = (ValueError, VLLMValidationError)
EOS = 1
NOISY = dict(temperature=0.8, top_p=0.95)
LIMIT = 320


class NoisyReference:
    """The cacheless loop at temperature 0.8 and top-p 0.95: each model samples with the request's noise."""

    def __init__(self, reference):
        self.greedy = reference

    def write(self, job, seed: int, forbidden=(), until: int = 0):
        params = self.greedy.params_of(job.tandem, job.prompt, seed)
        key = torch.tensor([signed64(noise_key(stream_key(params.seed, params.request), seed, ""))])
        noisy = copy.copy(self.greedy)

        def next_token(author, text):
            logits = self.greedy.models[author](torch.tensor([text])).logits[:, -1].float() / NOISY["temperature"]
            at = len(text) - len(job.prompt)
            if at < until:
                logits[:, list(forbidden)] = float("-inf")
            logits = apply_top_k_top_p(logits, None, torch.tensor([NOISY["top_p"]]))
            return int(draw(logits, key, torch.tensor([at])))

        noisy.next_token = next_token
        noisy.params_of = lambda tandem, prompt: params
        return noisy.write(job)


@pytest.fixture(scope="module")
def reference(reference_with):
    return reference_with("near")


@pytest.fixture(scope="module")
def expected(expected_with):
    return expected_with("near")


@pytest.fixture(scope="module")
def engine(models, open_engine):
    settings = dict(junior_model=str(models["near"]), mode="speculative", num_draft_tokens=4)
    return open_engine(models["senior"], settings, max_model_len=LIMIT)


def finished_by(engine) -> list[str]:
    return [output.outputs[0].finish_reason for output in engine.outputs]


def test_greedy_with_prompts_in_chunks_and_a_cold_and_a_warm_cache(engine, jobs, expected):
    engine.llm.reset_prefix_cache()
    engine.stats()
    assert engine.run(jobs) == expected
    stats = engine.stats()
    outcome = stats["outcome"]
    cold = stats["cached_tokens"]
    assert 0.3 < outcome["passed"] / outcome["tested"] < 0.95, "drafts of the senior's turns stand, and do not"
    assert stats["emitted_per_round"] == outcome["emitted"] / outcome["rounds"] > 1.5
    assert stats["acceptance"] == outcome["passed"] / outcome["tested"]
    assert engine.run(jobs) == expected
    assert engine.stats()["cached_tokens"] > cold + 500
    length = engine.llm.llm_engine.engine_core.engine_core.scheduler.draft_length
    assert length.current < length.bound == 4, "such acceptance is not worth four drafts of an equal junior"


def test_sampled_token_for_token_and_the_same_in_other_company(engine, jobs, reference):
    noisy = NoisyReference(reference)
    seeds = list(range(100, 100 + len(jobs)))
    written = engine.run(jobs, seed=seeds, **NOISY)
    assert written == [noisy.write(job, seed) for job, seed in zip(jobs, seeds, strict=True)]
    assert engine.run(jobs[:1], seed=seeds[:1], **NOISY) == written[:1]
    unseeded = engine.run([jobs[1]] * 4, **NOISY)
    assert len({tuple(one.token_ids) for one in unseeded}) == 4, "equal requests without a seed differ"


def test_top_k_where_the_senior_has_nothing_to_check(engine, jobs):
    alone = dataclasses.replace(jobs[0], num_tokens=8, tandem=dict(selection_strategy="junior", request=1))
    (written,) = engine.run([alone], seed=1, temperature=1.0, top_k=20)
    assert written.mask == [0] * 8


def test_a_second_turn_reads_the_blocks_the_first_turn_wrote(engine, jobs, expected, reference):
    turns = [
        dataclasses.replace(job, prompt=job.prompt + one.token_ids + [9, 3, 30], num_tokens=25, tandem=dict(request=i))
        for i, (job, one) in enumerate(zip(jobs[:8], expected, strict=False))
    ]
    engine.llm.reset_prefix_cache()
    engine.run(jobs[:8])
    engine.stats()
    assert engine.run(turns) == [reference.write(turn) for turn in turns]
    assert engine.stats()["cached_tokens"] > sum(len(job.prompt) for job in jobs[:8])


def test_a_cut_response_resumes_where_it_was_also_when_sampled(engine, jobs):
    seeds = list(range(7, 7 + len(jobs)))
    whole = engine.run(jobs, seed=seeds, **NOISY)
    kept = [13 + i % 9 for i in range(len(jobs))]
    rest = [
        dataclasses.replace(
            job,
            prompt=job.prompt + one.token_ids[:k],
            num_tokens=job.num_tokens - k,
            tandem=job.tandem | dict(resume_len=k),
        )
        for job, one, k in zip(jobs, whole, kept, strict=True)
    ]
    for k, one, resumed in zip(kept, whole, engine.run(rest, seed=seeds, **NOISY), strict=True):
        assert (one.token_ids[k:], one.mask[k:]) == (resumed.token_ids, resumed.mask)


def test_min_tokens_holds_for_both_models(engine, jobs, reference):
    noisy, stops = NoisyReference(reference), list(range(5, 500, 4))
    jobs = [dataclasses.replace(job, num_tokens=24) for job in jobs[:10]]
    written = engine.run(jobs, seed=list(range(10)), min_tokens=9, stop_token_ids=stops, **NOISY)
    for i, (job, one) in enumerate(zip(jobs, written, strict=True)):
        full = noisy.write(job, i, [EOS, *stops], 9)
        end = next((k for k, token in enumerate(full.token_ids) if token in stops), len(full.token_ids) - 1)
        assert (one.token_ids, one.mask) == (full.token_ids[: end + 1], full.mask[: end + 1])
        assert end >= 9
    assert {one.mask[-1] for one in written} == {0, 1}, "both models' stop tokens are seen"


def test_responses_of_one_request_have_their_own_coins_noise_and_log_probs(engine, jobs, reference):
    """n = 3, seeded: log-probs are the writer's, prompt log-probs the senior's; some requests ask for more, some that
    began to draft before them for none."""
    params = [
        SamplingParams(
            temperature=1.0,
            seed=70 + i,
            n=3,
            max_tokens=40,
            ignore_eos=True,
            logprobs=3 * (i % 2),
            prompt_logprobs=0,
        )
        for i in range(4)
    ]
    prompts = [job.prompt for job in jobs[:4]]
    engine.llm.reset_prefix_cache()
    plain = [SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True) for _ in range(3)]
    early = [{"prompt_token_ids": [5 + i, 6]} for i in range(3)]
    outputs = engine.llm.generate(early + [{"prompt_token_ids": p} for p in prompts], plain + params, use_tqdm=False)
    assert all(output.outputs[0].logprobs is None for output in outputs[:3])
    for i, output in enumerate(outputs[3:]):
        assert len({tuple(c.token_ids) for c in output.outputs}) == 3
        assert len({tuple(c.authorship_mask) for c in output.outputs}) == 3
        prompt_log_probs = [next(iter(at.values())).logprob for at in output.prompt_logprobs[1:]]
        senior = reference.log_probs(1, prompts[i])
        torch.testing.assert_close(torch.tensor(prompt_log_probs), senior, atol=1e-3, rtol=1e-3)
        for c in output.outputs:
            ids, mask = list(c.token_ids), c.authorship_mask
            assert mask == reference.mask_of(ids, {}, prompts[i], 70 + i + c.index)
            whole = torch.tensor([prompts[i] + ids])
            with torch.inference_mode():
                laws = [reference.models[m](whole).logits[0, len(prompts[i]) - 1 : -1].log_softmax(-1) for m in (0, 1)]
            for k, (token, author) in enumerate(zip(ids, mask, strict=True)):
                found, law = c.logprobs[k], laws[author][k]
                assert found[token].logprob == pytest.approx(float(law[token]), abs=2e-3)
                assert found[token].rank == int((law > law[token]).sum()) + 1
                best = {j for j, one in found.items() if one.rank <= 3 * (i % 2)}
                assert best == set(law.topk(3 * (i % 2)).indices.tolist())


def test_near_the_length_limit_nobody_stands_still(engine, jobs, reference, expected):
    """Stock vLLM stops drafting for all requests when the longest nears the limit; a junior's turn would never come."""
    tandems = [dict(selection_strategy=name, request=1) for name in ("junior", "word", "alternating", "senior")]
    long = [dataclasses.replace(jobs[0], prompt=jobs[0].prompt[:90] + [5] * 190, tandem=tandem) for tandem in tandems]
    written = engine.run([*long, *jobs[:4]], max_tokens=100)
    assert set(finished_by(engine)) == {"length"}
    for job, one in zip(long, written, strict=False):
        whole = reference.write(dataclasses.replace(job, num_tokens=LIMIT - 1 - len(job.prompt)))
        assert one == whole, "up to one token before max_model_len"
    for one, whole, job in zip(written[4:], expected, jobs, strict=False):
        shared = min(100, job.num_tokens)
        assert (one.token_ids[:shared], one.mask[:shared]) == (whole.token_ids[:shared], whole.mask[:shared])
    full = dataclasses.replace(jobs[0], prompt=[7] * (LIMIT - 1), num_tokens=1)
    with pytest.raises(REFUSALS, match="the prompt has .*max_model_len - 2"):
        engine.run([full])
    assert engine.run([jobs[1]]) == [expected[1]]


def test_what_the_junior_could_not_honour_is_refused_in_the_front_end(engine, jobs, expected):
    for sampling, says in (
        (dict(presence_penalty=0.5), "takes no presence_penalty"),
        (dict(repetition_penalty=1.1, frequency_penalty=0.1), "takes no frequency_penalty, repetition_penalty"),
        (dict(allowed_token_ids=[3, 4]), "takes no allowed_token_ids"),
        (dict(logit_bias={3: 1.0}), "logit_bias"),
        (dict(temperature=1.0, min_p=0.1), "min_p"),
        (dict(n=2, temperature=1.0), "n is 2, and all responses would draw the same author coins"),
    ):
        with pytest.raises(REFUSALS, match=says):
            engine.run(jobs[:1], **sampling)
    with pytest.raises(REFUSALS, match="prob_senior is 1.5"):
        engine.run([dataclasses.replace(jobs[0], tandem=dict(prob_senior=1.5))])
    before = dataclasses.replace(jobs[0], tandem=dict(request=1, word_align="before"))
    with pytest.raises(REFUSALS, match="word_align='before' needs both models' samples"):
        engine.run([before])
    assert engine.run([jobs[1]]) == [expected[1]]


def test_a_token_that_the_trainer_bans_is_banned_in_the_junior_too(engine, jobs, expected):
    """As verl does it: `compute_logits` of the engine's model is wrapped, on the instance."""
    banned = sorted(
        {token for one in expected for token, author in zip(one.token_ids, one.mask, strict=True) if not author}
    )
    banned = banned[: len(banned) // 2]
    model = engine.runner.get_model()
    original = model.compute_logits

    def compute_logits(*args, **kwargs):
        logits = original(*args, **kwargs)
        logits[..., banned] = float("-inf")
        return logits

    model.compute_logits = compute_logits
    try:
        written = engine.run(jobs)
    finally:
        model.compute_logits = original
    assert not set(banned) & {token for one in written for token in one.token_ids}
