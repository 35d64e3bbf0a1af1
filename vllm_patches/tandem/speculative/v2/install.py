"""Give vLLM's V2 model runner the speculator that it lacks."""

from __future__ import annotations

from vllm_patches.tandem.frontend import wants_v2
from vllm_patches.upstream import is_replaced, replaces


def bring_the_junior() -> None:
    """Make ``init_speculator`` return the junior's for an engine that decodes in tandem on V2; upstream raises
    NotImplementedError for a draft model. Every other engine gets the upstream answer."""
    from vllm.v1.worker.gpu import model_runner

    upstream = model_runner.init_speculator
    if is_replaced(upstream):
        return

    @replaces(upstream)
    def init_speculator(vllm_config, device):
        if not wants_v2(vllm_config):
            return upstream(vllm_config, device)
        from vllm_patches.tandem.speculative.v2.speculator import JuniorSpeculator

        return JuniorSpeculator(vllm_config, device)

    model_runner.init_speculator = init_speculator
