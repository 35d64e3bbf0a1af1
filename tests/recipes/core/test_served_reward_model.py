"""A served reward model over real HTTP: its score, its faults, and how long it may be silent."""

import asyncio
import time

import pytest
from aiohttp import web

from recipes.core.served_reward_model import compute_score, rendered
from reward_fns.result import Score, Skip

PROMPT = [{"role": "user", "content": "1 + 1?"}]


class Tokenizer:
    bos_token = "<s>"

    def apply_chat_template(self, messages, tokenize):
        assert tokenize is False
        return "<s>" + "".join(f"[{message['role']}] {message['content']}" for message in messages)


def ask(answers, **limits):
    """The verdict where the router gives these answers in turn (the last for ever), and what it was asked."""
    asked = []

    async def classify(request):
        asked.append(await request.json())
        answer = answers[min(len(asked), len(answers)) - 1]
        if answer == "silence":
            await asyncio.sleep(30)
        if isinstance(answer, int):
            return web.Response(status=answer, text="busy")
        return web.json_response(answer)

    async def run():
        application = web.Application()
        application.router.add_post("/classify", classify)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address = f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        try:
            return await compute_score("toy", "2", "2", {"raw_prompt": PROMPT}, address, Tokenizer(), **limits)
        finally:
            await runner.cleanup()

    return asyncio.run(run()), asked


def scored(value):
    return {"data": [{"probs": [value]}]}


def test_the_raw_score_of_the_whole_conversation():
    verdict, asked = ask([scored(-3.25)])
    assert verdict == Score(-3.25)
    assert asked == [{"input": "[user] 1 + 1?[assistant] 2", "use_activation": False}]


def test_a_passing_fault_is_retried():
    verdict, asked = ask([503, {"data": []}, scored(0.5)])
    assert verdict == Score(0.5) and len(asked) == 3


def test_a_refusal_is_a_skip_at_once():
    verdict, asked = ask([400, scored(0.5)])
    assert isinstance(verdict, Skip) and "HTTP 400: busy" in verdict.reason and len(asked) == 1
    verdict, asked = ask([429, scored(0.5)])
    assert verdict == Score(0.5) and len(asked) == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (500, "reward_model_http_500: "),
        (scored(None), "reward_model_junk_reply: "),
        ({"data": [{"probs": [0.1, 0.9]}]}, "expected one score"),
        ({"error": "no"}, "reward_model_junk_reply: "),
        (scored("nan"), "the score is nan"),
        ("silence", "reward_model_time_out: "),
    ],
)
def test_a_lasting_fault_is_a_skip_in_bounded_time(answer, reason):
    began = time.monotonic()
    verdict, asked = ask([answer], timeout=0.5 if answer == "silence" else 10.0, attempts=2)
    assert isinstance(verdict, Skip) and reason in verdict.reason
    assert len(asked) <= 2 and time.monotonic() - began < 20


def test_without_a_reward_model_it_says_so():
    with pytest.raises(ValueError, match="reward.reward_model.enable=true"):
        asyncio.run(compute_score("toy", "2", "2", {"raw_prompt": PROMPT}))


def test_a_tokenizer_without_a_begin_token():
    tokenizer = Tokenizer()
    tokenizer.bos_token = None
    assert rendered(PROMPT, tokenizer).startswith("<s>")
