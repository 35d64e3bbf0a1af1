"""Whether the junior can read the senior's own base weights, decided before anything loads. Imports no vLLM.

A senior with adapters (LoRA) computes ``W x + B A x`` and leaves the base weights ``W`` as they were loaded. Where the
junior is the model that the senior started from, its weights are those ``W``: one copy serves both.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Senior:
    """What the decision depends on; None where it is not known yet, which refuses nothing.

    Args:
        model, revision: path or hub id of the senior's base model, and its revision there.
        adapters: whether the senior is trained as an adapter that the engine applies beside the base weights.
        load_format: vLLM's; ``dummy`` fills the engine with noise until a trainer sends all weights.
        dtype, quantization, trust_remote_code: vLLM's.
        changed: what else makes the base in the engine another model than its folder, in words.
    """

    model: str | None = None
    revision: str | None = None
    adapters: bool | None = None
    load_format: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    trust_remote_code: bool | None = None
    changed: str | None = None


def sharing_fault(junior, senior: Senior) -> str | None:
    """Why the junior needs weights of its own, in words; None where it can read the senior's.

    Args:
        junior: the engine's settings, a ``config.TandemConfig``.
    """
    if senior.adapters is False:
        return "the senior has no adapters, so that its weights are trained themselves"
    if senior.model is not None and not is_same_model(
        junior.junior_model, junior.junior_revision, senior.model, senior.revision
    ):
        return f"the junior is {junior.junior_model} and the senior's base is {senior.model}"
    if senior.load_format == "dummy":
        return "load_format is dummy: the senior's base is noise until a trainer sends it (set load_format to auto)"
    if junior.junior_load_format == "dummy":
        return "junior_load_format is dummy"
    if _differs(junior.junior_dtype, senior.dtype):
        return f"junior_dtype is {junior.junior_dtype} and the senior's dtype {senior.dtype}"
    if senior.quantization or junior.junior_quantization:
        return "a quantized base has not been tested with shared weights"
    if _differs(junior.junior_trust_remote_code, senior.trust_remote_code):
        return "junior_trust_remote_code differs from the senior's"
    return senior.changed


def _differs(wanted, seniors) -> bool:
    return wanted is not None and seniors is not None and wanted != seniors


def decide(junior, senior: Senior) -> tuple[bool, str]:
    """Whether the weights are shared, and why, in words.

    Raises:
        ValueError: ``share_weights: true``, and they cannot be.
    """
    if junior.share_weights is False:
        return False, "as configured"
    fault = sharing_fault(junior, senior)
    if fault is None:
        return True, "the junior is the senior's base model, which adapters leave as it is"
    if junior.share_weights is True:
        raise ValueError(f"share_weights is true, and the junior cannot read the senior's weights: {fault}")
    return False, fault


def is_same_model(one: str, one_revision: str | None, other: str, other_revision: str | None) -> bool:
    """Whether two paths or hub ids name one model: equal, or one folder once links and the hub's cache are followed."""
    if one == other:
        return one_revision == other_revision
    return _folder(one, one_revision) == _folder(other, other_revision)


def _folder(name: str, revision: str | None) -> str:
    path = Path(name).expanduser()
    if not path.is_dir():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(name, "config.json", revision=revision)
        except HFValidationError:
            return name
        if not isinstance(cached, str):
            return name
        path = Path(cached).parent
    return os.path.realpath(path)
