"""Where completions come from: thinking that a server takes out of the text belongs to it."""

import asyncio

import pytest

from recipes.core.sampling import Sampling
from recipes.pasodoble.cold_start.generators import EndpointGenerator
from reward_fns.endpoint import EndpointSettings

ASK = [{"role": "user", "content": "1+1"}]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thinking_that_the_server_gives_apart_stands_before_the_text(start_endpoint, name):
    endpoint = start_endpoint(answer=lambda payload: [{"content": "2", name: "one more"}, {"content": "3"}])

    async def go():
        generator = EndpointGenerator(EndpointSettings(endpoint.base_url, "m", None), Sampling(n=2))
        try:
            return await generator.generate(ASK, seed=1)
        finally:
            await generator.close()

    assert asyncio.run(go()) == ["<think>\none more\n</think>\n2", "3"]
