"""Sleep as a GPU does it: both models and the cache leave the device, and the same tokens come after it.

One engine of a process can sleep, so `tests/gpu/run.sh` starts a process for each mode.
"""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: vLLM's CPU engine does not sleep")
CACHE = 1 << 28


@pytest.fixture(scope="module", params=["lock_step", "lazy"])
def engine(request, models, open_engine):
    tandem = dict(junior_model=str(models["junior"]), mode=request.param)
    return open_engine(models["senior"], tandem, enable_sleep_mode=True, kv_cache_memory_bytes=CACHE)


def freed_by(engine, level: int) -> int:
    """Bytes that the sleep gives back to the device."""
    before = torch.cuda.mem_get_info()[0]
    engine.llm.sleep(level=level)
    return torch.cuda.mem_get_info()[0] - before


@pytest.mark.parametrize("level", [1, 2, 2, 1])
def test_the_same_tokens_after_a_sleep(engine, jobs, expected, level):
    """After level 2 a trainer sends the senior's weights anew; the junior's come back by themselves."""
    assert engine.run(jobs[:6]) == expected[:6]
    assert freed_by(engine, level) > 0.9 * CACHE
    engine.llm.wake_up(tags=["weights"])
    if level == 2:
        engine.llm.collective_rpc("reload_weights")
    engine.llm.wake_up(tags=["kv_cache"])
    engine.llm.reset_prefix_cache()
    assert engine.run(jobs[:6]) == expected[:6]


def test_before_the_senior_is_sent_anew_its_text_is_another(engine, jobs, expected):
    """The negative control: a level 2 sleep has discarded the weights."""
    freed_by(engine, 2)
    engine.llm.wake_up()
    engine.llm.reset_prefix_cache()
    assert engine.run(jobs[:6]) != expected[:6]
    engine.llm.collective_rpc("reload_weights")
    engine.llm.reset_prefix_cache()
    assert engine.run(jobs[:6]) == expected[:6]
