"""The speculative mode with other juniors, other draft lengths, and too few KV blocks: the same text."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

SMALL = dict(max_model_len=384)


@pytest.mark.parametrize(
    ("junior", "num_drafts", "options"),
    [
        pytest.param("junior", 1, SMALL, id="another shape, never agrees, one draft"),
        pytest.param(
            "near", 8, dict(num_gpu_blocks_override=14, max_num_seqs=8, **SMALL), id="preemption, eight drafts"
        ),
        pytest.param("senior", 4, SMALL, id="always agrees", marks=pytest.mark.long),
        pytest.param(
            "sibling", 4, SMALL | dict(enable_prefix_caching=False), id="no prefix cache", marks=pytest.mark.long
        ),
        pytest.param(
            "near", 4, SMALL | dict(max_num_batched_tokens=24, max_num_seqs=8), id="budget", marks=pytest.mark.long
        ),
        pytest.param("one_head", 3, SMALL, id="one KV head", marks=pytest.mark.long),
    ],
)
def test_greedy_text_is_the_loops(open_engine, models, jobs, expected_with, junior, num_drafts, options):
    settings = dict(junior_model=str(models[junior]), mode="speculative", num_draft_tokens=num_drafts)
    engine = open_engine(models["senior"], settings, **options)
    for _ in range(2):
        assert engine.run(jobs) == expected_with(junior)
    stats = engine.stats()
    if "num_gpu_blocks_override" in options:
        assert stats["resumed_requests"] > 10
    if junior == "senior":
        assert stats["outcome"]["passed"] == stats["outcome"]["tested"] > 500


def test_a_junior_beside_a_senior_without_weights_has_its_own(open_engine, models, jobs, reference_with):
    """Trainers load their senior as `dummy`; stock vLLM then loads the draft model so too."""
    settings = dict(junior_model=str(models["near"]), mode="speculative", selection_strategy="junior")
    engine = open_engine(models["senior"], settings, load_format="dummy", **SMALL)
    alone = [dataclasses.replace(job, tandem=dict(selection_strategy="junior")) for job in jobs[:4]]
    assert reference_with("near").wrote_all(alone, engine.run(alone))
    assert not any(p.requires_grad for p in engine.runner.junior.parameters())
    senior = load_file(models["senior"] / "model.safetensors")
    assert not torch.equal(engine.runner.get_model().lm_head.weight, senior["lm_head.weight"])


def test_processed_log_probs_are_those_of_the_law_that_was_sampled(open_engine, models, jobs, reference_with):
    """What trainers ask for: log-probs after temperature and top-p, by the writer."""
    settings = dict(junior_model=str(models["near"]), mode="speculative")
    engine = open_engine(models["senior"], settings, logprobs_mode="processed_logprobs", **SMALL)
    written = engine.run(jobs[:6], seed=3, temperature=0.8, top_p=0.95, logprobs=0)
    seen = set()
    for job, one, output in zip(jobs, written, engine.outputs, strict=False):
        text, start = torch.tensor([job.prompt + one.token_ids]), len(job.prompt) - 1
        with torch.inference_mode():
            laws = [
                apply_top_k_top_p(
                    reference_with("near").models[m](text).logits[0, start:-1] / 0.8,
                    None,
                    torch.full((len(one.mask),), 0.95),
                ).log_softmax(-1)
                for m in (0, 1)
            ]
        for k, (token, author) in enumerate(zip(one.token_ids, one.mask, strict=True)):
            assert output.outputs[0].logprobs[k][token].logprob == pytest.approx(
                float(laws[author][k, token]), abs=2e-3
            )
        seen |= set(one.mask)
    assert seen == {0, 1}


def test_log_probs_of_a_request_that_full_steps_left_out_are_its_own(open_engine, models, jobs, reference_with):
    """All eight prompts fit in the first step, but not five tokens of each in the next: the drafts of some wait."""
    settings = dict(junior_model=str(models["near"]), mode="speculative", num_draft_tokens=4, adapt_draft_tokens=False)
    engine = open_engine(models["senior"], settings, max_num_batched_tokens=24, max_num_seqs=8, **SMALL)
    short = [dataclasses.replace(job, prompt=job.prompt[-3:], num_tokens=20) for job in jobs[:8]]
    written, reference = engine.run(short, logprobs=0), reference_with("near")
    for job, one, output in zip(short, written, engine.outputs, strict=True):
        laws = [reference.log_probs(m, job.prompt + one.token_ids)[len(job.prompt) - 1 :] for m in (0, 1)]
        for k, (token, author) in enumerate(zip(one.token_ids, one.mask, strict=True)):
            found = output.outputs[0].logprobs[k][token].logprob
            assert found == pytest.approx(float(laws[author][k]), abs=2e-3), (k, author)
