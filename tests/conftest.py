"""Options every test room shares, and a server of the real vLLM."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import yaml
from hypothesis import HealthCheck, settings

# Time says nothing on a machine that does other work as well; the suite has limits of its own.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=30, **PATIENT)
settings.register_profile("long", max_examples=200, **PATIENT)
# Hydra reads every file of a config anew each time one is composed, which the suite does hundreds of times: the parser
# in C, of the same library and with the same result, takes a quarter off.
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run the tests marked long")


def pytest_configure(config):
    settings.load_profile("long" if config.getoption("--long") else "ci")


@pytest.fixture(autouse=True)
def environment():
    """What a test, or the code that it calls, sets in this process's environment ends with it."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--long"):
        return
    skip = pytest.mark.skip(reason="long: run with --long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)


@contextlib.contextmanager
def serve(model, log, *, max_model_len):
    """vLLM's OpenAI server on the CPU with a model called "toy"; gives its address, ending in /v1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--model", str(model), "--port", str(port), "--host", "127.0.0.1", "--served-model-name", "toy"]
    arguments += ["--dtype", "float32", "--max-model-len", str(max_model_len), "--enforce-eager"]
    arguments += ["--kv-cache-memory-bytes", "67108864"]
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with log.open("w") as stream:
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
            env=os.environ | environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 400
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture(scope="session")
def vllm_server():
    """`serve`, for tests that need a model behind the real server."""
    return serve
