"""What ``mode: auto`` means, decided before an engine starts from what was measured. Imports no vLLM."""

from __future__ import annotations

LARGEST_DRAFTER = 1.05  # of the senior's parameters; measured at 1 and at a quarter of the layers


def choose_mode(
    mode: str, word_align: str, junior_model: str, senior_model: str | None, lora: bool, on_gpu: bool
) -> tuple[str, str]:
    """The mode, and the reason in a sentence.

    Args:
        mode, word_align, junior_model: the engine's settings, see ``config.TandemConfig``.
        senior_model: path or hub id, to compare sizes; None when it is not known.
        lora: whether the senior wears an adapter.
        on_gpu: whether the engine will run on one.
    """
    if mode != "auto":
        return mode, "as configured"
    if word_align == "before":
        return "lock_step", "word_align='before' needs both models' samples at every step"
    if lora:
        return "lock_step", "LoRA is on, which the other modes do not take"
    if on_gpu:
        return "speculative", "on a GPU a step costs the reading of weights, and drafts share it (estimated)"
    share = None if senior_model is None else parameter_share(junior_model, senior_model)
    if share is None:
        return "lazy", "on a CPU, the models' sizes unknown, it is never far from the best"
    if share <= LARGEST_DRAFTER:
        return "speculative", f"on a CPU with a junior of {share:.0%} of the senior's size it measured cheapest"
    return "lazy", f"the junior has {share:.0%} of the senior's size, too dear for drafts"


def parameter_share(junior_model: str, senior_model: str) -> float | None:
    """The junior's parameters over the senior's, from their configurations; None where one cannot be read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    counts = []
    for name in (junior_model, senior_model):
        try:
            config = AutoConfig.from_pretrained(name)
        except (OSError, ValueError):
            return None
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        counts.append(sum(p.numel() for p in model.parameters()))
    return counts[0] / counts[1]
