"""A senior with adapters: requests with one, with another and with none share a batch, and each is the loop's."""

import pytest


@pytest.mark.parametrize(
    ("mode", "junior"),
    [
        ("lazy", "junior"),
        ("speculative", "junior"),
        *(pytest.param("lock_step", junior, marks=pytest.mark.long) for junior in ("junior", "senior")),
    ],
)
def test_requests_with_and_without_adapters_share_a_batch(
    open_engine, models, jobs, reference_with, adapted, mode, junior
):
    """A junior that is the senior's base has a copy of its own here; ``test_engine_shared_weights`` has it without."""
    loops = [adapted.loop(reference_with(junior), name) for name in adapted.names]
    engine = open_engine(
        models["senior"],
        dict(junior_model=str(models[junior]), mode=mode, share_weights=False),
        **adapted.engine_options,
        max_num_seqs=8,
    )
    jobs = jobs[:10]
    if mode == "lock_step":
        before = [type(job)(job.prompt, 30, dict(request=i, word_align="before")) for i, job in enumerate(jobs[:5])]
        jobs = [*jobs, *before]
    chosen = [i % 3 for i in range(len(jobs))]
    written = adapted.run(engine, jobs, chosen)
    assert all(loops[k].wrote(job, one) for k, job, one in zip(chosen, jobs, written, strict=True))
    assert not loops[0].wrote_all(jobs, written)
