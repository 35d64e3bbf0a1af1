"""Too few KV blocks: requests are preempted and resumed, and no author sequence changes."""

import pytest


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("lock_step", dict(num_gpu_blocks_override=40)),
        ("lazy", dict(num_gpu_blocks_override=40)),
        pytest.param("lazy", dict(num_gpu_blocks_override=40, enable_prefix_caching=False), marks=pytest.mark.long),
        pytest.param("lazy", dict(num_gpu_blocks_override=30, max_num_seqs=8), marks=pytest.mark.long),
        pytest.param("lazy", dict(block_size=32, tandem=dict(max_lag_tokens=4)), marks=pytest.mark.long),
        pytest.param("lazy", dict(max_num_seqs=8, max_num_batched_tokens=24), marks=pytest.mark.long),
    ],
)
def test_preempted_requests_write_what_they_would_have_written(open_engine, models, jobs, expected, mode, options):
    options = dict(options)
    tandem = dict(junior_model=str(models["junior"]), mode=mode) | options.pop("tandem", {})
    engine = open_engine(models["senior"], tandem, max_model_len=384, **options)
    for _ in range(2):
        assert engine.run(jobs) == expected
    resumed = engine.stats()["resumed_requests"]
    assert resumed > 0 or "num_gpu_blocks_override" not in options
