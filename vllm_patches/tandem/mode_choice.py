"""What ``mode: auto`` means, decided before an engine starts from what was measured. Imports no vLLM."""

from __future__ import annotations

import contextlib

LARGEST_DRAFTER = 1.05  # of the senior's parameters; measured at 1 and at a quarter of the layers
# On a CPU a junior of nearly the senior's size (by arithmetic, from this share on) pays off for these batches only:
# a single request runs one model in a step anyhow, and many keep the processor busy. Measured at 1, 4 and 16.
NEARLY_EQUAL = 0.6
BATCHES_OF_EQUALS = range(2, 9)
LARGEST_BATCH = 16  # requests in a step; the largest batch at which every context was measured
MOST_DRAFTS = 8  # the longest rounds that were measured
USUAL_DRAFTS = 4  # the best of those measured for an equal junior
EXPECTED_ACCEPTANCE = 0.9  # until the engine has measured its own


def choose_mode(
    mode: str,
    word_align: str,
    lora: bool,
    on_gpu: bool,
    share: float | None = None,
    batch: int | None = None,
    windows: bool = False,
    no_drafts: str | None = None,
) -> tuple[str, str]:
    """The mode, and the reason in a sentence.

    Args:
        mode, word_align: the engine's settings, see ``config.TandemConfig``.
        lora: whether the senior has an adapter.
        on_gpu: whether the engine will run on one.
        share: the junior's parameters over the senior's (``parameter_share``); None when it is not known.
        batch: most requests that the engine runs at a time; None when it is not known.
        windows: whether the attention of a model has windows (``has_windows``).
        no_drafts: why the junior cannot be the draft model (``draft_problem``).
    """
    if mode != "auto":
        return mode, "as configured"
    if word_align == "before":
        return "lock_step", "word_align='before' needs both models' samples at every step"
    if windows:
        return "lock_step", "attention has windows, and the other modes let a model read behind what vLLM keeps of them"
    if lora:
        return "lock_step", "LoRA is on: with the senior's base as junior, one pass over one set of weights serves both"
    if share is not None and share > LARGEST_DRAFTER:
        return "lazy", f"the junior has {share:.0%} of the senior's size, too much for drafts to pay off"
    if no_drafts:
        return "lazy", no_drafts
    if on_gpu:
        return "lazy", "on a GPU lazy and lock-step were held against the models token by token, drafts were not"
    if batch is not None and batch > LARGEST_BATCH:
        return "lazy", (
            f"up to {batch} requests run at a time, and drafts, which multiply the tokens of a step, were measured "
            f"cheapest up to {LARGEST_BATCH}"
        )
    if share is None:
        return "lazy", "on a CPU, the models' sizes unknown, it is never far from the best"
    if share > NEARLY_EQUAL and batch is not None and batch not in BATCHES_OF_EQUALS:
        return (
            "lazy",
            f"on a CPU with a junior of {share:.0%} of the senior's size and {batch} at a time it measured cheapest",
        )
    return "speculative", f"on a CPU with a junior of {share:.0%} of the senior's size it measured cheapest"


def drafts_for(share: float | None, prob_senior: float) -> int:
    """Most tokens that the junior drafts in a round, where the settings do not say: the best length for a junior of
    this share of the senior's size if the senior accepts nine drafts in ten."""
    if share is None:
        return USUAL_DRAFTS
    from vllm_patches.tandem.speculative.round import best_length

    return best_length(MOST_DRAFTS, 1 - prob_senior * (1 - EXPECTED_ACCEPTANCE), prob_senior, share)


def draft_problem(junior_model: str, senior_model: str, junior_dtype: str | None = None) -> str | None:
    """Why vLLM would refuse the junior as a draft model, None where nothing is known against it."""
    if junior_dtype is not None:
        return "junior_dtype is set, and a draft model has the senior's"
    sizes = [config.vocab_size for config in _configurations(junior_model, senior_model)]
    if len(set(sizes)) > 1:
        return "the models' embeddings have {} and {} rows, and a draft model has as many as the senior".format(*sizes)
    return None


def has_windows(*models: str) -> bool:
    """Whether every layer of one of the models attends to a window of tokens alone, by its configuration."""
    return any(
        getattr(config, "sliding_window", None)
        and getattr(config, "use_sliding_window", True)
        and set(getattr(config, "layer_types", None) or ("sliding_attention",)) == {"sliding_attention"}
        for config in _configurations(*models)
    )


def _configurations(*models: str) -> list:
    """Of the models that can be read; of others the engine says in its own words that they cannot."""
    from transformers import AutoConfig

    configurations = []
    for name in models:
        with contextlib.suppress(OSError, ValueError):
            configurations.append(AutoConfig.from_pretrained(name).get_text_config())
    return configurations


def parameter_share(junior_model: str, senior_model: str) -> float | None:
    """The junior's parameters over the senior's, from their configurations; None where one cannot be read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    counts = []
    for name in (junior_model, senior_model):
        try:
            config = AutoConfig.from_pretrained(name)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
        except (OSError, ValueError):  # unreadable, or no language model: the engine says so in its own words
            return None
        counts.append(sum(p.numel() for p in model.parameters()))
    return counts[0] / counts[1]
