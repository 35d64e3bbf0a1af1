"""Random prompts that share cold prefixes, under small step budgets: requests are what a loop without a cache writes.

A prompt block enters the prefix cache when the scheduler allots it, so a request may read, in the same step, a block
that another request of the step only then writes; both must run in one forward pass of each model, however much
catch-up the step holds besides.
"""

import random

import pytest
import vllm
from packaging.version import Version

from vllm_patches.tandem.schedule import STRATEGIES

# The least that vLLM's CPU attention takes.
BLOCK = 16 if Version(vllm.__version__) < Version("0.29") else 32


def random_jobs(make_job, count: int, dice: random.Random, vocab: int) -> list:
    """Groups of one to five requests; each group shares a prefix of up to six blocks that no request had before."""
    jobs = []
    while len(jobs) < count:
        prefix = [dice.randrange(2, vocab) for _ in range(dice.randrange(0, 6 * BLOCK))]
        for _ in range(min(dice.randrange(1, 6), count - len(jobs))):
            shared = prefix[: dice.choice([len(prefix), dice.randrange(len(prefix) + 1)])]
            own = [dice.randrange(2, vocab) for _ in range(dice.choice([1, 1, 2, dice.randrange(1, 40)]))]
            tandem = dict(
                selection_strategy=dice.choice(sorted(STRATEGIES)),
                prob_senior=dice.choice([0.2, 0.5, 0.8]),
                max_gap_tokens=dice.randrange(1, 33),
                chunk_size=dice.randrange(1, 24),
                request=len(jobs),
            )
            jobs.append(make_job(shared + own, dice.randrange(1, 48), tandem))
    return jobs


def wrong_requests(engine, jobs, reference) -> list[int]:
    return [i for i, (job, one) in enumerate(zip(jobs, engine.run(jobs), strict=True)) if not reference.wrote(job, one)]


def cases():
    for mode in ("lazy", "lock_step"):
        for shape in ("other heads", "same heads"):
            for budget in (24, 40, 64):
                for count in (100, 700):
                    slow = count > 100 or (budget != 40 and (mode, shape, budget) != ("lazy", "other heads", 24))
                    yield pytest.param(mode, shape, budget, count, marks=[pytest.mark.long] if slow else [])


@pytest.mark.parametrize(("mode", "shape", "budget", "count"), cases())
def test_requests_that_share_a_cold_prefix_write_what_the_loop_writes(
    open_engine, models, make_job, reference_with, vocab, mode, shape, budget, count
):
    junior = {"other heads": "junior", "same heads": "sibling"}[shape]
    engine = open_engine(
        models["senior"],
        dict(junior_model=str(models[junior]), mode=mode),
        block_size=BLOCK,
        max_num_batched_tokens=budget,
        max_num_seqs=12,
    )
    jobs = random_jobs(make_job, count, random.Random(f"{mode} {shape} {budget}"), vocab)
    assert wrong_requests(engine, jobs, reference_with(junior)) == []
