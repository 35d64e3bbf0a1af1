"""A local server that speaks enough of the OpenAI and vLLM protocols, with faults on demand."""

import hashlib
import json
import random
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LETTERS = "ABCD"


def scripted_text(prompt: str | list[int], seed: int, index: int) -> str:
    """A trajectory that is a function of its request: mostly well formed, of either letter, sometimes malformed."""
    rng = random.Random(hashlib.sha256(f"{prompt}/{seed}/{index}".encode()).digest())
    if rng.random() < 0.05:
        return " no finish here"
    steps = [f" step about {rng.randint(0, 99)}"]
    for number in range(1, rng.randint(3, 6)):
        steps += [
            f"Action {number}: look up fact {rng.randint(0, 9)}",
            f"Observation {number}: fact holds {rng.random():.3f}",
        ]
    return "\n".join([*steps, f"Action 9: Finish[The answer is {rng.choice('AB')}.]"])


def scripted_probabilities(ids: list[int]) -> list[list[float]]:
    """Four class probabilities per token, a function of the ids up to it."""
    rows, state = [], 1
    for token in ids:
        state = (state * 48271 + token + 1) % 2147483647
        raw = [1 + (state >> shift) % 97 for shift in (0, 5, 11, 17)]
        rows.append([value / sum(raw) for value in raw])
    return rows


class Faults:
    """What the server does wrong. `delay` seconds before each answer; `fail` maps the n-th request to a fault."""

    def __init__(self, delay: float = 0.0, every: str = "", first: tuple[str, int] = ("", 0), share: float = 0.0):
        self.delay, self.every, self.first, self.share = delay, every, first, share
        self.count = 0
        self.lock = threading.Lock()
        self.seen: list[str | list[int]] = []

    def next(self, body: bytes) -> str:
        with self.lock:
            self.count += 1
            self.seen.append(json.loads(body).get("prompt", "") if body else "")
            if self.count <= self.first[1]:
                return self.first[0]
            if self.share and self.count % round(1 / self.share) == 0:
                return "503"
            return self.every


def _handler(faults: Faults, policy):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            return

        def do_GET(self):
            text = 'vllm:prefix_cache_queries_total{engine="0"} 200.0\nvllm:prefix_cache_hits_total{engine="0"} 150.0\n'
            self._send(200, text.encode())

        def do_POST(self):
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            fault = faults.next(raw)
            time.sleep(faults.delay)
            body = json.loads(raw)
            if fault.isdigit():
                return self._send(int(fault), b'{"error": "scripted"}')
            if fault == "slow":
                time.sleep(3.0)
            if fault == "junk":
                return self._send(200, b"<html>not what you asked for</html>")
            if fault == "wrong shape":
                return self._send(200, json.dumps({"choices": [], "data": [{"data": [[0.5, 0.5]]}]}).encode())
            if fault == "nan":
                rows = [[float("nan")] * 4 for _ in body["input"][0]]
                return self._send(200, json.dumps({"data": [{"data": rows}]}).encode())
            if fault == "hang up":
                self.close_connection = True
                return None
            return self._send(200, json.dumps(_answer(self.path, body, policy)).encode())

        def _send(self, status: int, payload: bytes):
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            try:
                self.wfile.write(payload)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    return Handler


def _answer(path: str, body: dict, policy) -> dict:
    if path == "/pooling":
        return {"data": [{"data": scripted_probabilities(body["input"][0])}]}
    prompt = body["messages"][0]["content"] if path.endswith("chat/completions") else body["prompt"]
    texts = [policy(prompt, body["seed"], i) for i in range(body["n"])]
    if path.endswith("chat/completions"):
        choices = [{"index": i, "message": {"content": f"Thought 1:{t}"}} for i, t in enumerate(texts)]
    else:
        choices = [{"index": i, "text": text} for i, text in enumerate(texts)]
    # Servers may answer out of order.
    return {"choices": choices[::-1]}


@contextmanager
def serving(faults: Faults | None = None, policy=scripted_text):
    """The server's root while it runs, and its faults; `policy(prompt, seed, index)` writes its texts."""
    faults = faults or Faults()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(faults, policy))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> str:
    """An address nobody listens at."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
