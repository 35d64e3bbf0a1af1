"""A scripted OpenAI-compatible endpoint: each test says what it answers, request by request."""

import asyncio
import json
import re
import socket
import threading
import time
from contextlib import contextmanager

from aiohttp import web


class Script:
    """Plays `steps` one after the other, then the last one for ever; keeps what it was asked."""

    def __init__(self, steps, delay=0.0):
        self.steps, self.delay = steps, delay
        self.requests, self.headers, self.paths, self.moments = [], [], [], []
        self.under_way = self.most_under_way = 0
        self.url = ""

    async def handle(self, request):
        body = json.loads(await request.text() or "null")
        self.moments.append(time.monotonic())
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        step = self.steps[min(len(self.requests), len(self.steps)) - 1]
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.delay)
            return await step(request, body)
        finally:
            self.under_way -= 1


@contextmanager
def listening(*steps, delay=0.0):
    """A server that plays the steps, at `url`."""
    script = Script(steps, delay)
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def start():
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", script.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        script.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        return runner

    def work():
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        # From within the last run of the loop: a stop before it would end another one.
        loop.call_soon(ready.set)
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield script
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)


@contextmanager
def serving(*steps):
    """The address of a server that plays the steps, and its script."""
    with listening(*steps) as script:
        yield script.url, script


@contextmanager
def nobody():
    """An address at which nobody listens, and nobody else can begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def status(code, text="scripted", **headers):
    async def step(request, body):
        return web.json_response({"error": {"message": text}}, status=code, headers=headers)

    return step


def raw(text, content_type="application/json"):
    async def step(request, body):
        return web.Response(text=text, content_type=content_type)

    return step


async def hangs(request, body):
    await asyncio.sleep(3600)


def word_in(body):
    return re.search(r"VERDICT-[0-9a-f]+", body["messages"][0]["content"])[0]


def completion(text, usage=None):
    message = {"role": "assistant", "content": text}
    return web.json_response({"choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": usage})


def says(template, usage=None):
    """Answers with `template`, in which {word} is the word of this request."""

    async def step(request, body):
        return completion(template.replace("{word}", word_in(body)), usage)

    return step


def prefers(rank):
    """Prefers the response that `rank` maps to the larger number."""

    async def step(request, body):
        text = body["messages"][1]["content"]
        first = re.search(r"<<<first response \w+\n(.*?)\nfirst response", text, re.DOTALL)[1]
        second = re.search(r"<<<second response \w+\n(.*?)\nsecond response", text, re.DOTALL)[1]
        a, b = rank(first), rank(second)
        return completion(f"{word_in(body)}: {'TIE' if a == b else 'FIRST' if a > b else 'SECOND'}")

    return step
