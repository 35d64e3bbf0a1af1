"""A chat endpoint on this machine that misbehaves by a script."""

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from aiohttp import web


@dataclass
class Fault:
    """Instead of an answer: a status code, hang, reset, torn (ends early), cut (broken JSON), html or empty."""

    kind: int | str
    retry_after: str | None = None


@dataclass
class FaultyEndpoint:
    """Answers chat completions by ``answer(payload) -> list of texts or of message dicts``.

    ``script(payload, attempt)`` may return a Fault for the attempt-th of equal requests, from 0.
    """

    answer: object
    script: object = lambda payload, attempt: None
    requests: list = field(default_factory=list)
    attempts: Counter = field(default_factory=Counter)
    answered: Counter = field(default_factory=Counter)
    under_way: int = 0
    most_under_way: int = 0
    delay: float = 0.0
    port: int = 0

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    async def handle(self, request):
        payload = await request.json()
        key = json.dumps([payload["model"], payload["messages"], payload.get("seed")])
        attempt = self.attempts[key]
        self.attempts[key] += 1
        self.requests.append((time.monotonic(), key, request.headers.get("Authorization")))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.delay)
            fault = self.script(payload, attempt)
            if fault is not None:
                return await self._misbehave(request, fault)
            self.answered[key] += 1
            return web.json_response(self._body(payload))
        finally:
            self.under_way -= 1

    def _body(self, payload):
        choices = []
        for i, message in enumerate(self.answer(payload)):
            message = {"content": message} if isinstance(message, str) else dict(message)
            finish = message.pop("finish_reason", "stop")
            choices.append({"index": i, "finish_reason": finish, "message": {"role": "assistant"} | message})
        return {"id": "x", "object": "chat.completion", "created": 0, "model": payload["model"], "choices": choices}

    async def _misbehave(self, request, fault):
        headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
        if isinstance(fault.kind, int):
            return web.json_response({"error": {"message": "scripted"}}, status=fault.kind, headers=headers)
        if fault.kind == "hang":
            await asyncio.sleep(3600)
        if fault.kind == "reset":
            request.transport.abort()
            return web.Response()
        if fault.kind == "cut":
            return web.Response(text='{"id": "x", "choices": [{"message": {"con', content_type="application/json")
        if fault.kind == "torn":
            response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"id": "x", "choi')
            request.transport.close()
            return response
        if fault.kind == "html":
            return web.Response(text="<html>Bad gateway</html>", content_type="text/html")
        if fault.kind == "empty":
            return web.json_response(
                {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": []}
            )
        raise AssertionError(fault)


@pytest.fixture
def start_endpoint():
    """Start endpoints, each in a thread of its own, and stop them at the end."""
    running = []

    def start(**kwargs):
        endpoint = FaultyEndpoint(**kwargs)
        loop, ready = asyncio.new_event_loop(), threading.Event()

        async def serve():
            app = web.Application(client_max_size=1 << 26)
            app.router.add_post("/v1/chat/completions", endpoint.handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            endpoint.port = site._server.sockets[0].getsockname()[1]
            return runner

        def work():
            asyncio.set_event_loop(loop)
            runner = loop.run_until_complete(serve())
            # From within the last run of the loop: a stop before it would end another one.
            loop.call_soon(ready.set)
            loop.run_forever()
            loop.run_until_complete(runner.cleanup())
            loop.close()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert ready.wait(20)
        running.append((loop, thread))
        return endpoint

    yield start
    for loop, thread in running:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
