"""Whatever clients send, the engine refuses it with a sentence or serves it, and goes on for everyone else."""

import random
import sys
from pathlib import Path

import pytest

from vllm_patches.tandem.config import check_models

sys.path.insert(0, str(Path(__file__).parent))
from random_load import RandomLoad  # noqa: E402


@pytest.mark.parametrize(
    ("mode", "paragraphs", "tandem"),
    [
        ("lazy", True, {}),
        ("lazy", False, dict(prob_senior=0.7, max_lag_tokens=3)),
        ("lock_step", True, dict(word_align="before")),
        ("lock_step", False, dict(selection_strategy="chunk", chunk_size=3)),
        ("speculative", True, dict(num_draft_tokens=3)),
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
    load = RandomLoad(engine, boundaries, dice, vocab)
    load.send_all(count)
    print(mode, load.counts)
    assert not engine.llm.llm_engine.has_unfinished_requests()
    assert min(load.counts["refused"], load.counts["finished"]) > count / 10
    as_before = [job for job in jobs if job.tandem["selection_strategy"] != "sentence"][:4]
    as_before = [
        type(job)(job.prompt, job.num_tokens, job.tandem | {"word_align": "after", "prob_senior": 0.5})
        for job in as_before
    ]
    assert reference.wrote_all(as_before, engine.run(as_before))
