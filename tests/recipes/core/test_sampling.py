"""Completions of an endpoint: which request is sent, what comes back, and what ends a command."""

import asyncio
import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from recipes.core.sampling import EndpointEngine, Request, Sampling, in_parallel, request_seed
from recipes.core.vllm_engine import Gathered, VllmEngine
from recipes.errors import ConfigError, EnvironmentProblem
from reward_fns.completions import Answer, Completion
from reward_fns.endpoint import EndpointSettings
from reward_fns.errors import EndpointError

QUICK = {"attempts": 2, "first_wait": 0.01, "max_wait": 0.02, "key_variable": None}


@pytest.fixture
def endpoint():
    """Address of a server that answers with `answers[path](body)`, a (status, object), and keeps what it was asked."""
    answers, asked = {}, []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, body):
            asked.append((self.path, body))
            status, reply = answers[self.path](body)
            content = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self):
            self.answer(None)

        def do_POST(self):
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", answers, asked
    server.shutdown()
    server.server_close()


def texts(body):
    named = str(body.get("prompt") or body["messages"][-1]["content"])
    chat = "messages" in body
    choices = [
        {"index": i} | ({"message": {"content": f"{named}{i}"}} if chat else {"text": f"{named}{i}"})
        for i in range(body["n"])
    ]
    return 200, {"choices": choices}


def generate(url, requests, sampling=None, **options):
    found = {}
    engine = EndpointEngine(EndpointSettings(url, "m", **QUICK), **options)
    engine.generate(requests, sampling or Sampling(), lambda request, answer: found.update({request.key: answer}))
    return found


def test_every_kind_of_prompt_goes_to_its_path_with_its_settings(endpoint):
    url, answers, asked = endpoint
    answers |= {"/v1/completions": texts, "/v1/chat/completions": texts}
    sampling = Sampling(2, 0.5, 0.9, 20, 64, ("\n",), include_stop=True)
    requests = [
        Request("text", "a", 1),
        Request("ids", [4, 5], 2, max_tokens=3),
        Request("talk", [{"role": "user", "content": "b"}], 3),
    ]
    found = generate(url, requests, sampling, extra_body={"min_p": 0.1})
    assert {key: answer.texts for key, answer in found.items()} == {
        "text": ["a0", "a1"],
        "ids": ["[4, 5]0", "[4, 5]1"],
        "talk": ["b0", "b1"],
    }
    common = {"model": "m", "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "max_tokens": 64, "min_p": 0.1}
    common |= {"stop": ["\n"], "include_stop_str_in_output": True}
    by_seed = {body["seed"]: (path, body) for path, body in asked}
    assert by_seed[1] == ("/v1/completions", common | {"prompt": "a", "seed": 1})
    assert by_seed[2] == (
        "/v1/completions",
        common | {"prompt": [4, 5], "seed": 2, "return_token_ids": True, "max_tokens": 3},
    )
    assert by_seed[3][0] == "/v1/chat/completions"


def test_a_greedy_request_names_no_seed_and_chat_wraps_a_text(endpoint):
    url, answers, asked = endpoint
    answers["/v1/chat/completions"] = texts
    generate(url, [Request("a", "b", 1)], Sampling(temperature=0.0), chat=True)
    ((_, body),) = asked
    assert "seed" not in body and body["messages"] == [{"role": "user", "content": "b"}]


def test_one_failing_request_is_told_and_the_others_go_on(endpoint):
    url, answers, _ = endpoint
    answers["/v1/completions"] = lambda body: (400, "too long") if body["prompt"] == "bad" else texts(body)
    found = generate(url, [Request(name, name, 1) for name in ("a", "bad", "b")])
    assert found["a"].texts == ["a0"] and found["b"].texts == ["b0"]
    assert found["bad"].reason == "http_400"


def test_an_endpoint_that_refuses_everything_ends_the_command(endpoint):
    url, answers, asked = endpoint
    answers["/v1/completions"] = lambda body: (404, "no such model")
    with pytest.raises(EndpointError, match="no such model"):
        generate(url, (Request(str(i), "a", i) for i in range(10_000)))
    assert len(asked) <= 64


def test_requests_are_taken_from_the_iterator_as_places_become_free():
    taken, most = 0, 0
    done = []

    def count():
        nonlocal taken
        for number in range(50):
            taken += 1
            yield number

    async def work(number):
        nonlocal most
        await asyncio.sleep(0.001)
        most = max(most, taken - len(done))
        done.append(number)

    asyncio.run(in_parallel(count(), 4, work))
    assert sorted(done) == list(range(50)) and most <= 4


def test_the_first_exception_ends_all_workers():
    async def work(number):
        if number == 3:
            raise RuntimeError("three")
        await asyncio.sleep(60)

    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="three"):
        asyncio.run(in_parallel(itertools.count(), 4, work))
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("served", "sentence"),
    [({"id": "m"}, "does not give its context length"), ({"id": "n", "max_model_len": 8}, "serves n")],
)
def test_a_context_length_that_is_not_told(endpoint, served, sentence):
    url, answers, _ = endpoint
    answers["/v1/models"] = lambda body: (200, {"data": [served]})
    with pytest.raises(EnvironmentProblem, match=sentence):
        _ = EndpointEngine(EndpointSettings(url, "m", **QUICK)).model_length


def test_context_length_and_prefix_cache_of_a_vllm_server(endpoint):
    url, answers, _ = endpoint
    answers["/v1/models"] = lambda body: (200, {"data": [{"id": "m", "max_model_len": 128}]})
    page = 'vllm:prefix_cache_queries_total{engine="0"} 40.0\nvllm:prefix_cache_hits_total{engine="0"} 10.0\n'
    page += 'vllm:prefix_cache_queries_created{engine="0"} 1.7e9\n# HELP vllm:prefix_cache_hits_total x\n'
    answers["/metrics"] = lambda body: (200, page)
    engine = EndpointEngine(EndpointSettings(url, "m", **QUICK))
    assert engine.model_length == 128 and engine.prefix_cache_hit_rate() == 0.25
    answers["/metrics"] = lambda body: (404, "")
    assert engine.prefix_cache_hit_rate() is None


@pytest.mark.parametrize(
    "settings",
    [{"n": 0}, {"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"max_tokens": 0}, {"n": 2, "temperature": 0}],
)
def test_sampling_that_cannot_be(settings):
    with pytest.raises(ConfigError):
        Sampling(**settings)


def test_seeds_are_a_pure_function_of_run_and_key():
    seeds = {request_seed(run, key) for run in range(20) for key in ("a", "b")}
    assert len(seeds) == 40 and all(0 <= seed < 2**31 for seed in seeds)
    assert request_seed(1, "a") == request_seed(1, "a")


class Slow:
    """Answers in a thread, in one go, with the seed as text; a request called `bad` ends it."""

    def __init__(self):
        self.batches = []

    def generate(self, requests, sampling, on_done):
        self.batches.append([request.key for request in requests])
        for request in requests:
            if request.key == "bad":
                raise RuntimeError("ended")
            on_done(request, Answer([Completion(str(request.seed))]))
            time.sleep(0.05)


def test_tasks_that_wait_together_are_answered_together():
    async def main():
        engine = Slow()
        gathered = Gathered(engine, Sampling())
        first = [gathered.ask(Request(str(i), "p", i)) for i in range(3)]
        early = asyncio.gather(*first)
        await asyncio.sleep(0.02)
        late = asyncio.gather(gathered.ask(Request("late", "p", 9)), gathered.ask(Request("later", "p", 8)))
        found = [answer.texts for answer in [*await early, *await late]]
        await gathered.close()
        return engine.batches, found

    batches, found = asyncio.run(main())
    assert batches == [["0", "1", "2"], ["late", "later"]]
    assert found == [["0"], ["1"], ["2"], ["9"], ["8"]]


def test_what_the_engine_raises_reaches_those_who_wait_and_nobody_else():
    async def main():
        gathered = Gathered(Slow(), Sampling())
        found = await asyncio.gather(
            gathered.ask(Request("good", "p", 1)), gathered.ask(Request("bad", "p", 2)), return_exceptions=True
        )
        return found, (await gathered.ask(Request("next", "p", 3))).texts

    found, after = asyncio.run(main())
    assert found[0].texts == ["1"] and str(found[1]) == "ended" and after == ["3"]


def test_on_a_cpu_an_engine_leaves_memory_to_others_and_compiles_nothing_unless_told(monkeypatch):
    import vllm

    monkeypatch.setattr(vllm, "LLM", lambda model, **options: pytest.fail(repr(options)))
    for given, taken in ({}, "True, 'kv_cache_memory_bytes': 4294967296"), ({"enforce_eager": False}, "False"):
        with pytest.raises(pytest.fail.Exception, match=f"'enforce_eager': {taken}"):
            VllmEngine("m", given)


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(900)
def test_vllm_in_this_process_and_behind_its_server_write_the_same(tmp_path, vllm_server):
    import os
    import subprocess
    import sys
    from pathlib import Path

    root = Path(__file__).parents[3]
    world = root / "outputs" / "toy"
    subprocess.run([sys.executable, "examples/toy/make.py", "--out", world], cwd=root, check=True, timeout=900)
    code = f"""
import json
from recipes.core.sampling import Request, Sampling
from recipes.core.vllm_engine import VllmEngine
options = dict(dtype="float32", max_model_len=128, kv_cache_memory_bytes=67108864, enforce_eager=True)
engine = VllmEngine({str(world / "model")!r}, options, window=3)
found = {{}}
def keep(request, answer):
    found[request.key] = [[one.text, list(one.token_ids), one.finish_reason] for one in answer.completions]
ids = [engine.tokenizer(f"{{i}}+{{i}}=")["input_ids"] for i in range(8)]
greedy, drawn = Sampling(temperature=0.0, max_tokens=12), Sampling(2, 1.0, max_tokens=12)
engine.generate((Request(f"g{{i}}", ids[i], i) for i in range(8)), greedy, keep)
engine.generate([Request("short", ids[0], 0, max_tokens=2)], greedy, keep)
engine.generate([Request("text", "1+1=", 0)], greedy, keep)
engine.generate([Request("talk", [{{"role": "user", "content": "1+1"}}], 0)], greedy, keep)
for again in range(2):
    engine.generate([Request(f"d{{again}}", ids[0], 5)], drawn, keep)
print("FOUND" + json.dumps([ids, found, engine.model_length]))
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    ids, found, length = json.loads(done.stdout.split("FOUND")[1].splitlines()[0])
    assert len(found) == 13 and len(found["short"][0][1]) == 2 and found["d0"] == found["d1"] and length == 128
    with vllm_server(world / "model", tmp_path / "log", max_model_len=128) as url:
        engine = EndpointEngine(EndpointSettings(url, "toy", **QUICK))
        served = {}
        engine.generate(
            [Request(f"g{i}", row, i) for i, row in enumerate(ids)],
            Sampling(temperature=0.0, max_tokens=12),
            lambda request, answer: served.update({request.key: answer}),
        )
        assert engine.model_length == 128
    for key, answer in served.items():
        assert [[one.text, list(one.token_ids), one.finish_reason] for one in answer.completions] == found[key]
