"""Each fault of an endpoint alone: retried where that helps, refused where it does not, and never for ever."""

import asyncio
import email.utils
import time

import pytest

from recipes.pasodoble.chat_endpoint import ChatEndpoint, EndpointError, EndpointRefused, EndpointSettings

from .conftest import Fault

ASK = [{"role": "user", "content": "1+1"}]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", "secret")


def ask(endpoint, *requests, **overrides):
    """Send requests (messages, n) together; give back the results and the client's counts."""

    async def go():
        settings = {"timeout": 1.0, "max_tries": 4, "first_wait": 0.01, "max_wait": 5.0, "concurrency": 16} | overrides
        client = ChatEndpoint(EndpointSettings(endpoint.base_url, "m", "TEST_KEY", **settings))
        try:
            work = (client.complete(messages, n=n) for messages, n in requests or [(ASK, 1)])
            return await asyncio.gather(*work), client.counts
        finally:
            await client.close()

    return asyncio.run(go())


def texts(results):
    return [[completion.text for completion in result] for result in results]


@pytest.mark.parametrize("kind", [408, 429, 500, 502, 503, "hang", "reset", "torn", "cut", "html", "empty"])
def test_a_passing_fault_costs_a_retry_and_no_answer(start_endpoint, kind):
    endpoint = start_endpoint(
        answer=lambda payload: ["2"], script=lambda payload, attempt: Fault(kind) if attempt < 2 else None
    )
    start = time.monotonic()
    results, counts = ask(endpoint)
    assert texts(results) == [["2"]]
    assert counts["requests"] == len(endpoint.requests) == 3
    assert time.monotonic() - start < 6


@pytest.mark.parametrize("kind", [429, 500, "hang", "reset", "torn", "cut"])
def test_a_lasting_fault_ends_in_bounded_time(start_endpoint, kind):
    endpoint = start_endpoint(answer=lambda payload: ["2"], script=lambda payload, attempt: Fault(kind))
    start = time.monotonic()
    with pytest.raises(EndpointError, match="failed 4 times"):
        ask(endpoint)
    # A request that runs out of time may do so before the endpoint has read it.
    assert len(endpoint.requests) == 4 or kind == "hang" and 1 <= len(endpoint.requests) < 4
    assert time.monotonic() - start < 4 * 1.0 + 10


@pytest.mark.parametrize("status, error", [(401, EndpointRefused), (404, EndpointRefused), (400, EndpointError)])
def test_what_no_retry_can_mend_is_asked_once(start_endpoint, status, error):
    endpoint = start_endpoint(answer=lambda payload: ["2"], script=lambda payload, attempt: Fault(status))
    with pytest.raises(error, match=f"HTTP {status}.*scripted") as caught:
        ask(endpoint)
    assert len(endpoint.requests) == 1
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_honoured_by_every_request_of_the_endpoint(start_endpoint, form):
    wanted = {"seconds": "1.5", "date": email.utils.formatdate(time.time() + 3, usegmt=True)}[form]

    def script(payload, attempt):
        limited = payload["messages"][0]["content"] == "limited"
        return Fault(429, wanted) if limited and attempt == 0 else None

    endpoint = start_endpoint(answer=lambda payload: ["ok"], script=script)

    async def go():
        client = ChatEndpoint(EndpointSettings(endpoint.base_url, "m", "TEST_KEY", first_wait=0.01, max_wait=5.0))
        limited = asyncio.create_task(client.complete([{"role": "user", "content": "limited"}]))
        while not client.counts["HTTP 429"]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await asyncio.gather(limited, client.complete([{"role": "user", "content": "later"}]))
        await client.close()

    asyncio.run(go())
    first, *others = [moment for moment, _, _ in endpoint.requests]
    assert len(others) == 2
    assert all(moment - first >= 1.4 for moment in others)


def test_a_wish_beyond_the_longest_wait_is_cut(start_endpoint):
    endpoint = start_endpoint(
        answer=lambda payload: ["2"], script=lambda payload, attempt: Fault(429, "86400") if attempt == 0 else None
    )
    start = time.monotonic()
    ask(endpoint, max_wait=0.5)
    assert time.monotonic() - start < 4


def test_requests_under_way_are_bounded(start_endpoint):
    endpoint = start_endpoint(answer=lambda payload: ["2"], delay=0.05)
    ask(endpoint, *[([{"role": "user", "content": str(i)}], 1) for i in range(20)], concurrency=3)
    assert endpoint.most_under_way == 3


def test_an_endpoint_that_gives_one_completion_at_a_time_is_asked_again(start_endpoint):
    endpoint = start_endpoint(answer=lambda payload: ["2"])
    results, _ = ask(endpoint, (ASK, 5))
    assert texts(results) == [["2"] * 5]


def test_an_endpoint_that_gives_too_many_is_cut(start_endpoint):
    endpoint = start_endpoint(answer=lambda payload: ["a", "b", "c"])
    results, _ = ask(endpoint, (ASK, 2))
    assert texts(results) == [["a", "b"]]


@pytest.mark.parametrize(
    "message, text, refused",
    [
        ({"content": None, "refusal": "I cannot"}, "", True),
        ({"content": "", "finish_reason": "content_filter"}, "", True),
        ({"content": None}, "", False),
        ({"content": "2", "reasoning_content": "one and one"}, "<think>\none and one\n</think>\n2", False),
    ],
)
def test_refusals_and_separate_thinking_are_read(start_endpoint, message, text, refused):
    results, _ = ask(start_endpoint(answer=lambda payload: [message]))
    assert [(c.text, c.refused) for c in results[0]] == [(text, refused)]


def test_the_key_comes_from_the_environment_only(start_endpoint, monkeypatch):
    endpoint = start_endpoint(answer=lambda payload: ["2"])
    ask(endpoint)
    assert endpoint.requests[0][2] == "Bearer secret"
    monkeypatch.delenv("TEST_KEY")
    with pytest.raises(ValueError, match="environment variable TEST_KEY is not set"):
        ask(endpoint)
