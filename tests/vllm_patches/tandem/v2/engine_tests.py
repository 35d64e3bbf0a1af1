"""The speculative mode on vLLM's V2 runner in a real engine: it writes what the cacheless loop of two models writes.

Run by ``test_speculative_v2.py`` in a process of its own, with the plug-in ``interpreter``.
"""

import dataclasses
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from random_load import RandomLoad  # noqa: E402
from test_speculative_engine import NOISY, NoisyReference  # noqa: E402
from vllm.v1.worker.gpu.model_runner import GPUModelRunner  # noqa: E402
from vllm.v1.worker.gpu.warmup import warmup_kernels  # noqa: E402

from vllm_patches.tandem.config import check_models  # noqa: E402


@pytest.fixture(scope="module")
def short(jobs):
    """Every strategy, prompts of one to three chunks, ends that cross a block."""
    lengths = [1, 5, 30, 60, 2, 31, 17, 44, 9, 33, 12, 3]
    return [
        dataclasses.replace(job, prompt=job.prompt[-length:], num_tokens=18)
        for job, length in zip(jobs, lengths, strict=False)
    ]


@pytest.fixture(scope="module")
def reference(reference_with):
    return reference_with("near")


@pytest.fixture(scope="module")
def engine(models, open_engine):
    settings = dict(junior_model=str(models["near"]), mode="speculative", num_draft_tokens=4)
    engine = open_engine(models["senior"], settings, max_model_len=192)
    assert isinstance(engine.runner, GPUModelRunner), "this is V2"
    return engine


def test_greedy_after_the_warm_up_of_a_gpu_engine_and_again_from_the_prefix_cache(engine, short, reference):
    worker = engine.llm.llm_engine.model_executor.driver_worker.worker
    warmup_kernels(engine.runner, worker.execute_model, worker.sample_tokens)
    assert not engine.runner.req_states.req_id_to_index
    engine.stats()
    expected = [reference.write(job) for job in short]
    for _ in range(2):
        assert engine.run(short) == expected
    stats = engine.stats()
    assert 0.3 < stats["acceptance"] < 0.95, "drafts of the senior's turns stand, and do not"
    assert stats["outcome"]["silent"] > 0
    assert stats["cached_tokens"] > 60


def test_sampled_and_resumed_in_the_middle(engine, short, reference):
    seeds, noisy = list(range(100, 100 + len(short))), NoisyReference(reference)
    written = engine.run(short, seed=seeds, **NOISY)
    assert written == [noisy.write(job, seed) for job, seed in zip(short, seeds, strict=True)]
    rest = [
        dataclasses.replace(
            job,
            prompt=job.prompt + one.token_ids[:7],
            num_tokens=job.num_tokens - 7,
            tandem=job.tandem | dict(resume_len=7),
        )
        for job, one in zip(short, written, strict=True)
    ]
    for one, resumed in zip(written, engine.run(rest, seed=seeds, **NOISY), strict=True):
        assert (one.token_ids[7:], one.mask[7:]) == (resumed.token_ids, resumed.mask)


def test_log_probs_are_the_writers(engine, short, reference):
    written = engine.run(short, seed=3, temperature=1.0, logprobs=2, prompt_logprobs=0)
    for job, one, output in zip(short, written, engine.outputs, strict=True):
        text, start = job.prompt + one.token_ids, len(job.prompt) - 1
        senior = reference.log_probs(1, text)
        laws = [reference.log_probs(0, text)[start:], senior[start:]]
        for k, (token, author) in enumerate(zip(one.token_ids, one.mask, strict=True)):
            assert output.outputs[0].logprobs[k][token].logprob == pytest.approx(float(laws[author][k]), abs=2e-3)
        found = [next(iter(at.values())).logprob for at in output.prompt_logprobs[1:]]
        assert found == pytest.approx(senior[:start].tolist(), abs=2e-3)


def test_too_few_blocks_and_eight_drafts(open_engine, models, short, reference):
    settings = dict(junior_model=str(models["near"]), mode="speculative", num_draft_tokens=8, adapt_draft_tokens=False)
    options = dict(max_model_len=96, num_gpu_blocks_override=6, max_num_seqs=6, max_num_batched_tokens=40)
    engine = open_engine(models["senior"], settings, **options)
    assert engine.run(short) == [reference.write(job) for job in short]
    assert engine.stats()["resumed_requests"] > 2


def test_a_junior_of_another_shape_and_whatever_clients_send(open_engine, models, short, reference_with, vocab):
    settings = dict(junior_model=str(models["junior"]), mode="speculative", num_draft_tokens=1)
    engine = open_engine(models["senior"], settings, max_model_len=256, num_gpu_blocks_override=40)
    expected = [reference_with("junior").write(job) for job in short[:5]]
    assert engine.run(short[:5]) == expected
    boundaries = check_models(engine.runner.tandem_config, str(models["senior"]))
    load = RandomLoad(engine, boundaries, random.Random(8), vocab)
    load.send_all(90)
    assert min(load.counts["refused"], load.counts["finished"]) > 15
    assert engine.run(short[:5]) == expected
