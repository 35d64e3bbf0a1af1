"""The engine writes what the reference writes, token for token and author for author."""

import pytest

pytest.importorskip("vllm")


@pytest.fixture(scope="module", params=["lock_step", "lazy"])
def engine(request, models, open_engine):
    return open_engine(models["senior"], dict(junior_model=str(models["junior"]), mode=request.param))


def test_cold_and_warm_cache_with_chunked_prompts(engine, jobs, expected):
    assert engine.run(jobs) == expected
    engine.stats()
    assert engine.run(jobs) == expected
    assert engine.stats()["cached_tokens"] > 500
