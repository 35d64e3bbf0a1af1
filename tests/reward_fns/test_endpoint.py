"""The client against a real HTTP server: each fault alone, retried where that helps, and never without end."""

import asyncio
import email.utils
import pickle
import subprocess
import sys
import time
from collections import Counter

import pytest
from aiohttp import web
from judge_server import hangs, nobody, raw, status
from judge_server import listening as serving

from reward_fns.completions import Answer, Completion, read_answer
from reward_fns.endpoint import CircuitBreaker, Endpoint, EndpointSettings, retry_after, shown
from reward_fns.errors import EndpointError, OptionError

LOGIN = "http://user:pass@"
ASK = [{"role": "user", "content": "1+1"}]
QUICK = {"timeout": 1.0, "attempts": 4, "first_wait": 0.01, "max_wait": 5.0, "key_variable": "TEST_KEY"}


def says(*texts, **usage):
    async def step(request, body):
        chat = "messages" in body
        choices = [
            {"index": i, "finish_reason": "stop"}
            | ({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
            for i, text in enumerate(texts)
        ]
        return web.json_response({"choices": choices[::-1], "usage": usage or None})

    return step


async def drips(request, body):
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.05)


async def drops(request, body):
    request.transport.abort()
    return web.Response()


async def tears(request, body):
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"id": "x", "choi')
    request.transport.close()
    return response


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", "sk-secret")


def use(server, work, **settings):
    """Run `work(endpoint)` in a loop of its own."""

    async def go():
        url = server if isinstance(server, str) else server.url
        async with Endpoint(EndpointSettings(url, "m", **QUICK | settings)) as endpoint:
            return await work(endpoint)

    return asyncio.run(go())


def chat(server, n=1, body=None, **settings):
    return use(server, lambda endpoint: endpoint.chat(ASK, n=n, **(body or {})), **settings)


PASSING = {
    **{str(code): status(code) for code in (408, 409, 425, 429, 500, 502, 503, 504, 529)},
    "hangs": hangs,
    "drips": drips,
    "drops": drops,
    "tears": tears,
    "cut": raw('{"id": "x", "choices": [{"message": {"con'),
    "html": raw("<html>Bad gateway</html>", "text/html"),
    "empty": raw(""),
    "list": raw("[]"),
    "no choices": raw('{"choices": []}'),
    "no text": raw('{"choices": [{"index": 0}]}'),
    "number": raw('{"choices": [{"index": 0, "message": {"content": 3}}]}'),
}


@pytest.mark.parametrize("kind", PASSING)
def test_a_passing_fault_costs_a_retry_and_no_answer(kind):
    with serving(PASSING[kind], PASSING[kind], says("2")) as server:
        assert chat(server, timeout=1.5 if kind in ("hangs", "drips") else 20).texts == ["2"]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("429", "http_429"), ("503", "http_503"), ("hangs", "time_out"), ("drips", "time_out"), ("drops", "unreachable")]
    + [("tears", "unreachable"), ("cut", "junk_reply"), ("html", "junk_reply"), ("empty", "junk_reply")],
)
def test_a_lasting_fault_ends_after_the_attempts_with_its_reason(kind, reason):
    with serving(PASSING[kind]) as server, pytest.raises(EndpointError) as caught:
        chat(server, timeout=0.5 if reason == "time_out" else 20)
    assert (caught.value.reason, caught.value.kind) == (reason, "passing")
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, "request"), (413, "request"), (422, "request"), (401, "refused"), (402, "refused"), (403, "refused")]
    + [(404, "refused"), (405, "refused")],
)
def test_what_no_retry_mends_is_asked_once(code, kind):
    with serving(status(code, "too long, by sk-secret")) as server, pytest.raises(EndpointError) as caught:
        chat(server, timeout=20.0)
    assert (caught.value.reason, caught.value.kind) == (f"http_{code}", kind)
    assert "too long, by ***" in str(caught.value)
    assert len(server.requests) == 1


def test_an_empty_account_is_not_asked_again():
    async def broke(request, body):
        return web.json_response({"error": {"message": "pay", "code": "insufficient_quota"}}, status=429)

    with serving(broke) as server, pytest.raises(EndpointError, match="pay") as caught:
        chat(server)
    assert caught.value.kind == "refused" and len(server.requests) == 1


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_redirect_is_refused_with_its_target_and_the_key_goes_nowhere_else(code):
    with serving(says("2")) as other:
        moved = status(code, Location=other.url + "/chat/completions?token=x")
        with serving(moved) as server, pytest.raises(EndpointError, match=f"a redirect to {other.url}") as caught:
            chat(server)
    assert caught.value.kind == "refused" and "token" not in str(caught.value)
    assert other.requests == [] and len(server.requests) == 1


def test_nobody_there():
    with nobody() as url, pytest.raises(EndpointError) as caught:
        chat(url, attempts=2)
    assert caught.value.reason == "unreachable"


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_holds_back_every_request(form):
    wanted = {"seconds": "1.5", "date": email.utils.formatdate(time.time() + 3, usegmt=True)}[form]

    async def work(endpoint):
        limited = asyncio.create_task(endpoint.chat(ASK))
        while not endpoint.counts["http_429"]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return await asyncio.gather(limited, endpoint.chat(ASK))

    with serving(status(429, **{"Retry-After": wanted}), says("2")) as server:
        use(server, work)
    first, *others = server.moments
    assert len(others) == 2 and all(moment - first >= 1.4 for moment in others)


def test_a_wish_beyond_the_longest_wait_is_cut():
    with serving(status(429, **{"Retry-After": "86400"}), says("2")) as server:
        chat(server, max_wait=0.5)
    assert 0.4 < server.moments[1] - server.moments[0] < 10


@pytest.mark.parametrize(("value", "seconds"), [("2", 2), ("-1", 0), ("nan", 0), ("inf", 0), ("soon", 0), ("", 0)])
def test_odd_wishes(value, seconds):
    assert retry_after({"retry-after": value}) == seconds
    assert retry_after({}) == 0


def test_the_deadline_ends_the_attempts():
    begun = time.monotonic()
    with serving(hangs) as server, pytest.raises(EndpointError) as caught:
        chat(server, timeout=0.4, deadline=1.0, attempts=100, first_wait=0.01)
    assert caught.value.reason == "time_out"
    assert time.monotonic() - begun < 20 and 1 <= len(server.requests) <= 4


def test_no_attempt_is_sent_when_the_pause_would_pass_the_deadline():
    with serving(status(429, **{"Retry-After": "30"}), says("2")) as server, pytest.raises(EndpointError) as caught:
        chat(server, deadline=2.0, max_wait=60.0)
    assert caught.value.reason == "http_429" and len(server.requests) == 1


def test_waiting_for_a_slot_is_no_part_of_the_deadline():
    with serving(says("2"), delay=0.3) as server:
        done = use(
            server,
            lambda endpoint: asyncio.gather(*(endpoint.chat(ASK) for _ in range(6))),
            concurrency=1,
            deadline=1.0,
        )
    assert len(done) == 6


def test_requests_under_way_are_bounded():
    with serving(says("2"), delay=0.05) as server:
        use(server, lambda endpoint: asyncio.gather(*(endpoint.chat(ASK) for _ in range(20))), concurrency=3)
    assert server.most_under_way == 3


def test_the_circuit_opens_and_closes_again():
    async def work(endpoint):
        reasons = []
        for pause in [0] * 6 + [0.5, 0]:
            await asyncio.sleep(pause)
            try:
                reasons.append((await endpoint.chat(ASK)).texts[0])
            except EndpointError as error:
                reasons.append(error.reason)
        return reasons

    with serving(status(500), status(500), status(500), says("2")) as server:
        found = use(server, work, attempts=1, failures_in_a_row=3, cooldown=0.4)
    assert found == ["http_500"] * 3 + ["circuit_open"] * 3 + ["2", "2"]
    assert len(server.requests) == 5


@pytest.mark.parametrize("step", [status(400), raw("[]")])
def test_an_endpoint_that_answers_keeps_the_circuit_closed(step):
    async def work(endpoint):
        for _ in range(5):
            with pytest.raises(EndpointError) as caught:
                await endpoint.chat(ASK)
            assert caught.value.reason != "circuit_open"

    with serving(step) as server:
        use(server, work, attempts=1, failures_in_a_row=2)


def test_a_half_open_circuit_lets_one_request_try():
    now = [0.0]
    breaker = CircuitBreaker(2, 10.0, clock=lambda: now[0])
    breaker.record(False)
    breaker.record(False)
    assert not breaker.allows()
    now[0] = 11.0
    assert [breaker.allows(), breaker.allows()] == [True, False]
    breaker.record(True)
    assert breaker.allows() and breaker.allows()


def test_an_endpoint_that_gives_one_completion_at_a_time_is_asked_again_with_other_seeds():
    with serving(says("a"), says("b"), says("c")) as server:
        assert chat(server, n=3, body={"seed": 7, "stop": None}).texts == ["a", "b", "c"]
    assert [(request["n"], request["seed"]) for request in server.requests] == [(3, 7), (2, 8), (1, 9)]
    assert all("stop" not in request for request in server.requests)


def test_an_endpoint_that_gives_too_many_is_cut_and_the_order_is_by_index():
    with serving(says("a", "b", "c")) as server:
        assert chat(server, n=2).texts == ["a", "b"]


def test_what_the_caller_cannot_read_is_asked_again():
    def read(answer):
        if answer.texts[0] != "yes":
            raise ValueError("no verdict")
        return "verdict"

    with serving(says("hm"), says("yes")) as server:
        assert use(server, lambda endpoint: endpoint.chat(ASK, read=read)) == "verdict"
    with serving(says("hm")) as server, pytest.raises(EndpointError, match="no verdict") as caught:
        use(server, lambda endpoint: endpoint.chat(ASK, read=read))
    assert caught.value.reason == "junk_reply"


@pytest.mark.parametrize("url", ["{}", "{}/"])
def test_completions_by_token_ids_and_the_paths_below_the_root(url):
    with serving(says("x", prompt_tokens=3, completion_tokens=1)) as server:
        answer = use(url.format(server.url), lambda endpoint: endpoint.complete((1, 2), top_k=5, max_tokens=4))
        root = server.url.removesuffix("/v1")
        assert use(root, lambda endpoint: endpoint.post("/pooling", {"a": 1}, lambda reply: len(reply))) == 2
    assert answer == Answer([Completion("x")], 3, 1)
    assert server.paths == ["/v1/completions", "/pooling"]
    assert server.requests[0] == {"model": "m", "prompt": [1, 2], "n": 1, "top_k": 5, "max_tokens": 4}
    assert server.requests[1] == {"a": 1}


def test_models_and_pages():
    listed = raw('{"data": [{"id": "m", "max_model_len": 128}, {"id": "n"}]}')
    with serving(listed, raw("vllm:x 1", "text/plain")) as server:
        assert use(server, lambda endpoint: endpoint.served_models()) == {"m": 128, "n": None}
        assert use(server, lambda endpoint: endpoint.get_text("/metrics")) == "vllm:x 1"
    assert server.paths == ["/v1/models", "/metrics"]


def test_token_ids_log_probs_reasoning_and_refusals_are_read():
    text = {"index": 0, "text": "ab", "token_ids": [5, 6], "stop_reason": 6, "finish_reason": "stop"}
    text["logprobs"] = {"token_logprobs": [-0.5, -1.0]}
    spoken = {"index": 0, "finish_reason": "content_filter", "message": {"content": None, "reasoning_content": "hm"}}
    spoken["logprobs"] = {"content": [{"token": "a", "logprob": -0.25}]}
    assert read_answer({"choices": [text]}).completions == [Completion("ab", "stop", 6, (5, 6), (-0.5, -1.0))]
    assert read_answer({"choices": [spoken]}).completions == [
        Completion("", "content_filter", log_probs=(-0.25,), reasoning="hm", refused=True)
    ]
    refusal = {"index": 0, "message": {"content": "", "refusal": "I cannot"}}
    assert read_answer({"choices": [refusal]}).completions[0].refused


def test_the_key_comes_from_the_environment_and_stands_in_no_message(monkeypatch):
    with serving(says("2")) as server:
        chat(server)
        monkeypatch.delenv("TEST_KEY")
        EndpointSettings(server.url, key_variable=None)
        with pytest.raises(OptionError, match="environment variable TEST_KEY is not set"):
            EndpointSettings(server.url, key_variable="TEST_KEY").require_key()
        chat(server)
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer sk-secret", "Bearer none"]


@pytest.mark.parametrize("step", [status(401, "bad key sk-secret"), raw('["sk-secret"]'), drops, hangs])
def test_no_traceback_shows_the_key(step):
    import traceback

    with serving(step) as server, pytest.raises(EndpointError) as caught:
        chat(server.url.replace("http://", LOGIN), attempts=1, timeout=0.4)
    text = "".join(traceback.format_exception(caught.value))
    assert "secret" not in text and "pass@" not in text


def test_one_object_serves_several_event_loops():
    with serving(says("2")) as server:
        endpoint = Endpoint(EndpointSettings(server.url, "m", **QUICK))

        async def ask():
            answer = await endpoint.chat(ASK)
            await endpoint.close()
            return answer.texts

        assert [asyncio.run(ask()) for _ in range(3)] == [["2"]] * 3
    assert endpoint.counts == Counter(requests=3)


def test_a_cancelled_request_frees_its_slot():
    async def work(endpoint):
        task = asyncio.create_task(endpoint.chat(ASK))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await endpoint.chat(ASK)

    with serving(hangs, says("2")) as server:
        assert use(server, work, concurrency=1).texts == ["2"]


@pytest.mark.parametrize(
    "settings",
    [{"url": "host:8000"}, {"attempts": 0}, {"timeout": 0}, {"deadline": 0}, {"concurrency": 0}, {"max_wait": -1}],
)
def test_settings_out_of_range(settings):
    with pytest.raises(OptionError):
        EndpointSettings(**{"url": "http://host", "model": "m"} | settings)


def test_addresses_in_messages():
    assert shown("http://user:pass@host:8000/v1?key=x#y") == "http://host:8000/v1"


def test_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(EndpointError("told", "http_500", "passing", 2.0)))
    assert (str(error), error.reason, error.kind, error.retry_after, error.passing) == (
        *("told", "http_500", "passing", 2.0),
        True,
    )


def test_importing_the_client_imports_no_library_of_it():
    code = "import sys, reward_fns.endpoint; print([m for m in ('openai', 'tenacity', 'httpx') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
