"""In bfloat16, which GPU attention kernels need, every token is still about the best of the model that wrote it."""

import dataclasses

import pytest
import torch


@torch.inference_mode()
def shortfalls(reference, job, written) -> tuple[list[float], list[float]]:
    """How far each token's logit is below the best one, in standard deviations: by its author, by the other model."""
    text, start = torch.tensor([job.prompt + written.token_ids]), len(job.prompt) - 1
    own, other = [], []
    for author in (0, 1):
        logits = reference.models[author](text).logits[0, start:-1]
        gaps = (logits.max(-1).values - logits.gather(1, text[0, start + 1 :, None])[:, 0]) / logits.std(-1)
        for gap, wrote in zip(gaps.tolist(), written.mask, strict=True):
            (own if wrote == author else other).append(gap)
    return own, other


@pytest.mark.parametrize("mode", ["lazy", "lock_step"])
def test_tokens_are_their_authors_choice_within_rounding(open_engine, models, jobs, reference, mode):
    engine = open_engine(models["senior"], dict(junior_model=str(models["junior"]), mode=mode), dtype="bfloat16")
    own, other = [], []
    jobs = [dataclasses.replace(job, num_tokens=min(job.num_tokens, 40)) for job in jobs]
    for job, written in zip(jobs, engine.run(jobs), strict=True):
        assert written.mask == reference.mask_of(written.token_ids, job.tandem, job.prompt)
        for total, part in zip((own, other), shortfalls(reference, job, written), strict=True):
            total += part
    assert max(own) < 0.15
    assert sum(gap > 0.15 for gap in other) / len(other) > 0.9, "the other model's tokens would be noticed"


@pytest.mark.parametrize("junior_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("mode", ["lazy", "lock_step"])
def test_a_junior_of_another_dtype_rounds_nothing_of_the_seniors(
    open_engine, models, jobs, reference, mode, junior_dtype
):
    """Beside a float32 senior its log-probs are those of the loop, also in steps in which both models write."""
    exact = {"bfloat16": 1, "float32": 0}[junior_dtype]
    settings = dict(junior_model=str(models["junior"]), mode=mode, junior_dtype=junior_dtype)
    engine = open_engine(models["senior"], settings, dtype=("bfloat16", "float32")[exact])
    jobs = [dataclasses.replace(job, num_tokens=min(job.num_tokens, 24)) for job in jobs[:12]]
    written, seen = engine.run(jobs, logprobs=0), set()
    for job, one, output in zip(jobs, written, engine.outputs, strict=True):
        laws = [reference.log_probs(m, job.prompt + one.token_ids)[len(job.prompt) - 1 :] for m in (0, 1)]
        for k, (token, author) in enumerate(zip(one.token_ids, one.mask, strict=True)):
            error = abs(output.outputs[0].logprobs[k][token].logprob - float(laws[author][k]))
            assert error < (1e-3 if author == exact else 0.3), (k, author)
        seen |= set(one.mask)
    assert seen == {0, 1}
