"""What an endpoint may answer: a server of our own over HTTP, which says what a test wants."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from recipes.core.sampling import Request, Sampling
from recipes.errors import EnvironmentProblem
from recipes.evaluation.endpoint_engine import EndpointEngine
from recipes.evaluation.engines import Part, Turn

TURNS = [Turn([1, 2], 5, 7), Turn([1, 2, 3], 4, 8)]


@pytest.fixture
def endpoint():
    """Address of a server that answers with `answers[path](body)` and keeps what it was asked."""
    answers, asked = {}, []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, body):
            asked.append(body)
            content = json.dumps(answers[self.path](body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
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


def completion(**choice):
    choice = {"index": 0, "text": "", "finish_reason": "stop", "stop_reason": None, "logprobs": None} | choice
    return {"id": "1", "object": "text_completion", "created": 0, "model": "toy", "choices": [choice]}


def models(**told):
    return {"object": "list", "data": [{"id": "toy", "object": "model", "created": 0, "owned_by": "us"} | told]}


def test_parts_end_at_the_separator_the_limit_or_the_end(endpoint):
    url, answers, asked = endpoint
    by_prompt = {
        (1, 2): completion(token_ids=[4, 5], stop_reason="\n\n"),
        (1, 2, 3): completion(token_ids=[6]),
    }
    answers["/v1/completions"] = lambda body: by_prompt[tuple(body["prompt"])]
    engine = EndpointEngine([url], "toy", extra_body={"ignore_eos": False})
    assert engine.write_parts(TURNS, Sampling(temperature=0.5, top_k=3), "\n\n") == [
        Part([4, 5], False),
        Part([6], True),
    ]
    by_seed = {body["seed"]: body for body in asked}
    assert by_seed.keys() == {7, 8}
    assert by_seed[7]["max_tokens"] == 5 and by_seed[7]["stop"] == ["\n\n"] and by_seed[7]["top_k"] == 3
    assert by_seed[7]["return_token_ids"] and by_seed[7]["include_stop_str_in_output"]
    answers["/v1/completions"] = lambda body: completion(token_ids=[4], finish_reason="length")
    assert engine.write_parts(TURNS[:1], Sampling(temperature=0), "\n\n") == [Part([4], False)]


def test_an_endpoint_without_token_ids_is_no_partner(endpoint):
    url, answers, _ = endpoint
    answers["/v1/completions"] = lambda body: completion(text="four")
    with pytest.raises(EnvironmentProblem, match="without token ids"):
        EndpointEngine([url], "toy").write_parts(TURNS, Sampling(temperature=0), "\n\n")


def test_the_context_window_is_the_servers(endpoint):
    url, answers, _ = endpoint
    answers["/v1/models"] = lambda body: models(max_model_len=256)
    assert EndpointEngine([url], "toy").model_length == 256
    with pytest.raises(EnvironmentProblem, match="serves toy, not other"):
        _ = EndpointEngine([url], "other").model_length
    answers["/v1/models"] = lambda body: models()
    with pytest.raises(EnvironmentProblem, match="does not give its context length"):
        _ = EndpointEngine([url], "toy").model_length


def test_faults_are_one_sentence_and_not_a_group(endpoint):
    url, answers, _ = endpoint
    answers["/v1/completions"] = lambda body: completion(text="four") | {"choices": []}
    request = Request("p", [1, 2], 0)
    with pytest.raises(EnvironmentProblem, match="an answer without choices"):
        EndpointEngine([url], "toy", max_retries=0).write(
            [request], Sampling(temperature=0), lambda problem, samples: None
        )
    with pytest.raises(EnvironmentProblem, match="cannot be reached.*finished problems are kept"):
        EndpointEngine(["http://127.0.0.1:9/v1"], "toy", max_retries=0).write_parts(
            TURNS, Sampling(temperature=0), "\n\n"
        )


def test_vllms_server_gets_what_it_would_else_take_from_the_models_generation_config(endpoint):
    url, answers, asked = endpoint
    answers["/v1/completions"] = lambda body: completion(token_ids=[4])
    for tokenizer, extra in ((None, {}), (object(), {}), (object(), {"repetition_penalty": 1.2})):
        engine = EndpointEngine([url], "toy", tokenizer=tokenizer, extra_body=extra)
        engine.write([Request("p", [1, 2], 0)], Sampling(temperature=0), lambda problem, samples: None)
    found = [{key: body.get(key) for key in ("top_k", "repetition_penalty", "min_p")} for body in asked]
    assert found == [
        {"top_k": None, "repetition_penalty": None, "min_p": None},
        {"top_k": -1, "repetition_penalty": 1.0, "min_p": 0.0},
        {"top_k": -1, "repetition_penalty": 1.2, "min_p": 0.0},
    ]


def test_log_probabilities_of_given_texts_and_keys_of_one_request(endpoint):
    url, answers, asked = endpoint

    def read(body):
        later = [
            {str(token): {"logprob": -0.5 * token, "rank": 1}, "99": {"logprob": -0.1}} for token in body["prompt"]
        ]
        return completion(prompt_logprobs=[None, *later[1:]])

    answers["/v1/completions"] = read
    engine = EndpointEngine([url], "toy", max_retries=0, request_body=lambda request: {"mark": request.seed})
    assert engine.prompt_log_probs([[1, 2, 3], [4, 5]]) == [
        [None, {2: -1.0, 99: -0.1}, {3: -1.5, 99: -0.1}],
        [None, {5: -2.5, 99: -0.1}],
    ]
    assert asked[0]["prompt_logprobs"] == 0 and asked[0]["max_tokens"] == 1
    answers["/v1/completions"] = lambda body: completion(token_ids=[4])
    engine.write([Request("a", [1], 5), Request("b", [1], 6)], Sampling(), lambda key, samples: None)
    assert sorted(body["mark"] for body in asked[-2:]) == [5, 6]
    with pytest.raises(EnvironmentProblem):
        engine.prompt_log_probs([[1, 2]])
