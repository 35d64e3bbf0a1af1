"""Several endpoints of one model: servers of our own over HTTP that are slow, overloaded, wrong, or die."""

import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.core.sampling import Request, Sampling
from recipes.errors import EnvironmentProblem
from recipes.evaluation.endpoint_engine import FAILURES, EndpointEngine, Member, spread
from reward_fns.completions import Answer, Completion
from reward_fns.errors import EndpointError

REQUESTS = [Request(str(number), [number], 0) for number in range(40)]
GREEDY = Sampling(temperature=0)


class Server:
    """Answers a prompt with its first token as text, after `seconds`, or with `status(count)`."""

    def __init__(self, seconds=0.0, status=lambda count: 200):
        self.asked, self.seconds = [], seconds
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler):
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                with lock:
                    self.asked.append(body["prompt"][0])
                    count = len(self.asked)
                code = status(count)
                time.sleep(self.seconds)
                choice = {"index": 0, "text": str(body["prompt"][0]), "finish_reason": "stop", "token_ids": [1]}
                content = json.dumps({"choices": [choice]} if code == 200 else {"error": "no"}).encode()
                with contextlib.suppress(BrokenPipeError):
                    handler.send_response(code)
                    handler.send_header("Content-Length", str(len(content)))
                    handler.end_headers()
                    handler.wfile.write(content)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve():
    servers = []

    def start(*arguments, **named):
        servers.append(Server(*arguments, **named))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def write(urls, concurrency=2, max_retries=0):
    texts = Counter()
    engine = EndpointEngine(urls, "toy", concurrency=concurrency, max_retries=max_retries)
    engine.write(REQUESTS, GREEDY, lambda problem, samples: texts.update([(problem, samples[0].response)]))
    assert texts == {(request.key, request.key): 1 for request in REQUESTS}
    return engine


def test_a_slow_endpoint_gets_less(serve, capsys):
    fast, slow = serve(0.02), serve(1.0)
    write([slow.url, fast.url])
    assert len(slow.asked) * 2 < len(fast.asked)
    assert capsys.readouterr().err == ""


def test_an_overloaded_endpoint_gets_less_and_nothing_is_lost(serve):
    good = serve(0.02)
    overloaded = serve(0.02, status=lambda count: 503 if count % 2 else 200)
    write([overloaded.url, good.url], concurrency=4)
    assert len(good.asked) > len(overloaded.asked) // 2


@pytest.mark.parametrize("status", [503, 404])
def test_an_endpoint_that_fails_from_some_time_on_is_left_out(serve, capsys, status):
    good, bad = serve(0.02), serve(0.02, status=lambda count: 200 if count <= 5 else status)
    engine = write([bad.url, good.url])
    # Two at once: the first fault may overtake the last success, and one more is under way at the end.
    assert 5 < len(bad.asked) <= 5 + 1 + FAILURES + 1
    said = capsys.readouterr().err
    assert said.count("left out") == 1 and bad.url.removeprefix("http://").removesuffix("/v1") in said
    asked = len(bad.asked)
    engine.write(REQUESTS, GREEDY, lambda *found: None)
    assert len(bad.asked) == asked


def test_an_endpoint_that_is_not_there_is_left_out(serve, capsys):
    good = serve()
    write(["http://127.0.0.1:9/v1", good.url])
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_what_a_dead_endpoint_has_under_way_goes_to_the_others_at_once(serve):
    good = serve(0.01)
    stuck = serve(0.0, status=lambda count: time.sleep(60.0) or 200 if count == 1 else 404)
    began = time.monotonic()
    write([stuck.url, good.url])
    assert time.monotonic() - began < 40


def test_when_all_are_left_out_the_last_fault_is_told(serve):
    first, second = serve(status=lambda count: 503), serve(status=lambda count: 503)
    with pytest.raises(EnvironmentProblem, match=r"HTTP 503.*finished problems are kept"):
        write([first.url, second.url])


def test_a_request_that_is_wrong_by_itself_is_not_sent_to_the_others(serve):
    first, second = serve(status=lambda count: 400), serve(0.5)
    with pytest.raises(EnvironmentProblem, match="HTTP 400"):
        write([first.url, second.url], concurrency=1)
    assert len(second.asked) <= 1


faults = st.sampled_from(["passing", "refused"])


@given(
    plans=st.lists(st.lists(st.none() | faults, max_size=30), min_size=1, max_size=4),
    most=st.integers(1, 5),
    count=st.integers(0, 25),
)
def test_every_request_is_answered_once_or_all_endpoints_were_left_out(plans, most, count):
    under_way = [0] * len(plans)

    def member(number):
        plan = iter(plans[number])

        async def ask(request):
            under_way[number] += 1
            try:
                assert under_way[number] <= most
                await asyncio.sleep(0)
                if (fault := next(plan, None)) is not None:
                    raise EndpointError("fault", "http_503", fault)
                return Answer([Completion(request.key, "stop")])
            finally:
                under_way[number] -= 1

        return Member(str(number), ask, most)

    members, done, warned = [member(number) for number in range(len(plans))], Counter(), []
    wanted = {request.key: 1 for request in REQUESTS[:count]}
    try:
        asyncio.run(spread(REQUESTS[:count], members, lambda request, _: done.update([request.key]), warned.append))
    except EndpointError:
        assert all(one.fault for one in members) and done.items() <= wanted.items() and done != wanted
    else:
        assert done == wanted
        assert [one.name for one in members if one.fault] == sorted(one.name for one in warned)
    assert under_way == [0] * len(plans)
