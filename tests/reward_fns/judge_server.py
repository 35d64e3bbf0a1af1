"""A scripted OpenAI-compatible endpoint: each test says what it answers, request by request."""

import asyncio
import json
import re
import threading
from contextlib import contextmanager

from aiohttp import web


class Script:
    """Plays `steps` one after the other, then the last one for ever; keeps what it was asked."""

    def __init__(self, steps):
        self.steps = list(steps)
        self.requests = []
        self._lock = threading.Lock()

    async def handle(self, request):
        body = await request.json()
        with self._lock:
            self.requests.append(body)
            step = self.steps[min(len(self.requests), len(self.steps)) - 1]
        return await step(body)


def word_in(body):
    return re.search(r"VERDICT-[0-9a-f]+", body["messages"][0]["content"])[0]


def completion(text):
    return web.json_response(
        {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
        | {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}
    )


def says(template):
    """Answers with `template`, in which {word} is the word of this request."""

    async def step(body):
        return completion(template.replace("{word}", word_in(body)))

    return step


def prefers(rank):
    """Prefers the response that `rank` maps to the larger number."""

    async def step(body):
        text = body["messages"][1]["content"]
        first = re.search(r"<<<first response \w+\n(.*?)\nfirst response", text, re.DOTALL)[1]
        second = re.search(r"<<<second response \w+\n(.*?)\nsecond response", text, re.DOTALL)[1]
        a, b = rank(first), rank(second)
        return completion(f"{word_in(body)}: {'TIE' if a == b else 'FIRST' if a > b else 'SECOND'}")

    return step


def status(code, **headers):
    async def step(_body):
        return web.Response(status=code, text=json.dumps({"error": {"message": "no"}}), headers=headers)

    return step


def hangs(seconds=30):
    async def step(_body):
        await asyncio.sleep(seconds)
        return completion("late")

    return step


def raw(text):
    async def step(_body):
        return web.Response(text=text, content_type="application/json")

    return step


@contextmanager
def serving(*steps):
    """The address of a server that plays the steps, and its script."""
    script = Script(steps)
    loop = asyncio.new_event_loop()
    started = threading.Event()
    address = []

    async def start():
        app = web.Application()
        app.router.add_post("/v1/chat/completions", script.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1")
        return runner

    def run():
        asyncio.set_event_loop(loop)
        runners.append(loop.run_until_complete(start()))
        loop.call_soon(started.set)
        loop.run_forever()
        loop.run_until_complete(runners[0].cleanup())

    runners = []
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield address[0], script
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
