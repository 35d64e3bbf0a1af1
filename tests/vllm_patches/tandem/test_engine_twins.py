"""Two models with the same weights write, greedily, what one of them writes alone, whatever the strategy."""

import dataclasses

import pytest

pytest.importorskip("vllm")


@pytest.fixture(scope="module")
def alone(jobs, reference):
    return [reference.write(dataclasses.replace(job, tandem=dict(selection_strategy="senior"))) for job in jobs[:4]]


@pytest.mark.parametrize("mode", ["lock_step", "lazy"])
def test_twins_write_what_one_writes_alone(open_engine, models, jobs, alone, mode):
    engine = open_engine(models["senior"], dict(junior_model=str(models["senior"]), mode=mode))
    seen = set()
    for strategy in ("word", "bernoulli", "chunk", "alternating", "sentence", "senior", "junior"):
        for p in (0.0, 0.3, 1.0):
            tandem = dict(selection_strategy=strategy, prob_senior=p, chunk_size=3)
            written = engine.run([dataclasses.replace(job, tandem=tandem) for job in jobs[:4]])
            assert [one.token_ids for one in written] == [one.token_ids for one in alone]
            seen |= {author for one in written for author in one.mask}
    assert seen == {0, 1}


@pytest.mark.parametrize("mode", ["lock_step", "lazy"])
def test_models_of_one_shape_share_their_attention_groups(open_engine, models, jobs, reference_with_sibling, mode):
    engine = open_engine(models["senior"], dict(junior_model=str(models["sibling"]), mode=mode))
    assert len(engine.runner.attn_groups[0]) == 1
    assert engine.run(jobs[:9]) == [reference_with_sibling.write(job) for job in jobs[:9]]
