"""Settings of a tandem engine and of its requests, checked before anything heavy starts. Imports no vLLM.

The engine reads ``additional_config["tandem"]``, a request ``SamplingParams.extra_args["tandem"]``; both take the names
below and refuse any other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_patches.tandem.boundaries import BoundarySets, boundary_sets, check_same_vocabulary, read_boundary_ids
from vllm_patches.tandem.mode_choice import (
    USUAL_DRAFTS,
    choose_mode,
    draft_problem,
    drafts_for,
    has_windows,
    parameter_share,
)
from vllm_patches.tandem.schedule import STRATEGIES, ScheduleParams, mix64, request_key

CONFIG_KEY = "tandem"
WORKER = "vllm_patches.tandem.worker.TandemWorker"
SCHEDULER = "vllm_patches.tandem.scheduler.TandemScheduler"
SPECULATIVE_SCHEDULER = "vllm_patches.tandem.speculative.scheduler.SpeculativeScheduler"
REASON_KEY = "tandem_mode_reason"
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
MODES = ("auto", "lazy", "lock_step", "speculative")
REQUEST_KEYS = tuple(field.name for field in dataclasses.fields(ScheduleParams)) + ("resume_len",)


@dataclasses.dataclass(frozen=True)
class TandemConfig:
    """Settings of a tandem engine.

    Args:
        junior_model: path or hub id of the frozen model; needs the senior's tokenizer.
        mode: ``lock_step`` runs both models at every step, ``lazy`` only the one that writes, the other catching up in
            one query later; ``speculative`` lets the junior draft and the senior verify (``speculative.verify``);
            ``auto`` chooses.
        selection_strategy, prob_senior, max_gap_tokens, chunk_size, word_align, seed: defaults of every request, see
            ``schedule.ScheduleParams``.
        boundary_token_ids: ids, or the path of a JSON list of ids, for the strategy named here; built from the
            tokenizer when None.
        max_lag_tokens: ``lazy``: most tokens by which a model that may yet write can fall behind.
        num_draft_tokens: ``speculative``: most tokens that the junior drafts in a round; where it is left out,
            ``engine_arguments`` chooses it by the junior's size.
        adapt_draft_tokens: ``speculative``: draft fewer where measured acceptance makes that cheaper.
        junior_revision, junior_dtype, junior_quantization, junior_trust_remote_code: as vLLM's options without the
            prefix; the senior's when None.
        junior_load_format: never inherited, since a trainer loads its senior as ``dummy`` and syncs it later.
        junior_device: only the senior's own device (None) can be had.
        share_weights: whether the junior reads the base weights of a senior with adapters instead of loading its own,
            which takes a junior that is this base (``weight_sharing``); ``auto`` does so where it can.

    Raises:
        ValueError: a value outside its range.
    """

    junior_model: str
    mode: str = "auto"
    selection_strategy: str = "word"
    prob_senior: float = 0.5
    max_gap_tokens: int = 32
    chunk_size: int = 1
    word_align: str = "after"
    seed: int = 0
    boundary_token_ids: str | Sequence[int] | None = None
    max_lag_tokens: int = 64
    num_draft_tokens: int = USUAL_DRAFTS
    adapt_draft_tokens: bool = True
    junior_revision: str | None = None
    junior_dtype: str | None = None
    junior_quantization: str | None = None
    junior_trust_remote_code: bool | None = None
    junior_load_format: str = "auto"
    junior_device: str | None = None
    share_weights: bool | str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.junior_model, str) or not self.junior_model:
            raise ValueError(f"junior_model is {self.junior_model!r}; expected the path or hub id of the frozen model")
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}; expected one of {', '.join(MODES)}")
        for name in ("max_lag_tokens", "num_draft_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; expected a whole number of tokens, at least 1")
        if not isinstance(self.adapt_draft_tokens, bool):
            raise ValueError(f"adapt_draft_tokens is {self.adapt_draft_tokens!r}; expected true or false")
        if self.junior_device is not None:
            raise ValueError(
                f"junior_device is {self.junior_device!r}; in one engine the junior runs on the senior's device: leave "
                "the key out, or, for a junior on another device, serve it and take preset=portable"
            )
        if not (isinstance(self.share_weights, bool) or self.share_weights == "auto"):
            raise ValueError(f"share_weights is {self.share_weights!r}; expected auto, true or false")
        self._check_junior()
        params = self.defaults
        if params.word_align == "before" and self.mode in ("lazy", "speculative"):
            raise ValueError("word_align='before' needs both models' samples at every step; set mode to 'lock_step'")

    def _check_junior(self) -> None:
        """Refuse what vLLM would refuse after loading the senior, or misread: the text "false" counts as true."""
        if self.junior_dtype not in (None, *DTYPES):
            raise ValueError(f"junior_dtype is {self.junior_dtype!r}; expected one of {', '.join(DTYPES)}")
        for name in ("junior_revision", "junior_quantization", "junior_load_format"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and (value is not None or name == "junior_load_format"):
                raise ValueError(f"{name} is {value!r}; expected a name, as vLLM's option without the prefix takes it")
        if not (self.junior_trust_remote_code is None or isinstance(self.junior_trust_remote_code, bool)):
            raise ValueError(f"junior_trust_remote_code is {self.junior_trust_remote_code!r}; expected true or false")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> TandemConfig:
        """Settings from a mapping such as ``additional_config["tandem"]``.

        Raises:
            ValueError: an unknown key, no ``junior_model``, or a value outside its range.
        """
        if not isinstance(settings, Mapping):
            raise ValueError(f"the tandem section is {type(settings).__name__}; expected a mapping of settings")
        names = [field.name for field in dataclasses.fields(cls)]
        _refuse_unknown(settings, names, "tandem setting")
        if "junior_model" not in settings:
            raise ValueError("the tandem section names no junior_model; give the path or hub id of the frozen model")
        return cls(**settings)

    @property
    def defaults(self) -> ScheduleParams:
        """The parameters of a request that sets nothing itself; its ``request`` is not meant for use."""
        return ScheduleParams(
            **{
                field.name: getattr(self, field.name)
                for field in dataclasses.fields(ScheduleParams)
                if field.name != "request"
            }
        )

    @property
    def speculative_config(self) -> dict[str, Any]:
        """vLLM's ``speculative_config`` of the speculative mode: the junior as draft model."""
        junior = {"revision": self.junior_revision, "quantization": self.junior_quantization}
        return {
            "method": "draft_model",
            "model": self.junior_model,
            "num_speculative_tokens": self.num_draft_tokens,
        } | {name: value for name, value in junior.items() if value is not None}

    def boundary_sets(self, tokenizer, vocab_size: int) -> BoundarySets:
        """Both boundary sets; ``boundary_token_ids`` replaces the one that ``selection_strategy`` reads.

        Raises:
            ValueError: the set that ``selection_strategy`` reads is empty, or ``boundary_token_ids`` is faulty or
                given for a strategy that reads none.
        """
        kind = STRATEGIES[self.selection_strategy].boundary
        if self.boundary_token_ids is None:
            return boundary_sets(tokenizer, needed={kind} - {None})
        if kind is None:
            raise ValueError(
                f"boundary_token_ids is given, but strategy {self.selection_strategy!r} reads none; leave it out"
            )
        ids = read_boundary_ids(self.boundary_token_ids, vocab_size)
        return dataclasses.replace(boundary_sets(tokenizer, needed=()), **{kind: ids})


@dataclasses.dataclass(frozen=True)
class RequestSettings:
    """What one response is decoded with: its schedule, and how many last tokens of its prompt belong to it already."""

    params: ScheduleParams
    resume_len: int = 0


def request_settings(
    config: TandemConfig,
    extra: Mapping[str, Any] | str | None,
    prompt_token_ids: Sequence[int],
    sampling_seed: int | None = None,
) -> RequestSettings:
    """The settings of one request; engine and client both call this, so both compute the same authors.

    Args:
        config: the engine's settings, the defaults.
        extra: ``SamplingParams.extra_args["tandem"]``, a mapping or (for HTTP clients, who can send no mapping there) a
            JSON object in a string: any of selection_strategy, prob_senior, max_gap_tokens, chunk_size, word_align,
            seed, request, resume_len.
        prompt_token_ids: the request's prompt, a resumed partial response included.
        sampling_seed: the request's own ``SamplingParams.seed``. It stands, with the prompt's token ids, for a missing
            ``request``; vLLM counts it up over the responses of one request with ``n > 1``. A given ``request`` decides
            alone.

    Raises:
        ValueError: an unknown key, or a value outside its range.
    """
    overrides = check_request(extra)
    resume_len = overrides.pop("resume_len", 0)
    if resume_len > len(prompt_token_ids):
        raise ValueError(f"resume_len is {resume_len}, more than the {len(prompt_token_ids)} tokens of the prompt")
    if "request" not in overrides:
        prompt = _prompt_identity(prompt_token_ids[: len(prompt_token_ids) - resume_len])
        overrides["request"] = prompt if sampling_seed is None else request_key(prompt, sampling_seed)
    if overrides.get("selection_strategy", "word") != "word":
        overrides.setdefault("word_align", "after")
    return RequestSettings(dataclasses.replace(config.defaults, **overrides), resume_len)


def check_request(extra: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """A request's ``extra_args["tandem"]`` as a dictionary; refuses what no engine could take.

    Raises:
        ValueError: not a mapping or a JSON object, an unknown key, or a value outside its range.
    """
    if isinstance(extra, str):
        try:
            extra = json.loads(extra)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"extra_args['tandem'] is a string that is not JSON: {error}") from error
    extra = {} if extra is None else extra
    if not isinstance(extra, Mapping):
        raise ValueError(f"extra_args['tandem'] is {type(extra).__name__}; expected a mapping of settings")
    _refuse_unknown(extra, REQUEST_KEYS, "key in extra_args['tandem']")
    resume_len = extra.get("resume_len", 0)
    if not isinstance(resume_len, int) or isinstance(resume_len, bool) or resume_len < 0:
        raise ValueError(f"resume_len is {resume_len!r}; expected how many of the prompt's last tokens are response")
    ScheduleParams(**{key: value for key, value in extra.items() if key != "resume_len"})
    return dict(extra)


def engine_arguments(
    settings: Mapping[str, Any],
    senior_model: str | None = None,
    lora: bool = False,
    on_gpu: bool | None = None,
    batch: int | None = None,
) -> dict[str, Any]:
    """The engine arguments (of ``vllm.LLM``, ``AsyncEngineArgs``, ``vllm serve``) that make an engine decode in tandem.

    Args:
        settings: keys of ``TandemConfig``.
        senior_model, lora, on_gpu, batch: what ``mode: auto`` depends on, see ``mode_choice``, and the senior also the
            number of drafts where ``settings`` leaves it out; whether there is a GPU is looked up when None.

    Raises:
        ValueError: the settings are faulty.
    """
    config = TandemConfig.from_mapping(settings)
    if on_gpu is None:
        import torch

        on_gpu = torch.cuda.is_available()
    share, windows, no_drafts = None, False, None
    if senior_model is not None and config.mode in ("auto", "speculative"):
        share = parameter_share(config.junior_model, senior_model)
        windows = has_windows(config.junior_model, senior_model)
        no_drafts = draft_problem(config.junior_model, senior_model, config.junior_dtype)
    mode, reason = choose_mode(config.mode, config.word_align, lora, on_gpu, share, batch, windows, no_drafts)
    reason = f"{mode} ({reason})"
    if mode == "speculative":
        drafts = settings.get("num_draft_tokens") or drafts_for(share, config.prob_senior)
        config = dataclasses.replace(config, mode=mode, num_draft_tokens=drafts)
        return {
            "worker_cls": WORKER,
            "scheduler_cls": SPECULATIVE_SCHEDULER,
            "additional_config": {
                CONFIG_KEY: {**settings, "mode": mode, "num_draft_tokens": drafts},
                REASON_KEY: reason,
            },
            "async_scheduling": False,
            "speculative_config": config.speculative_config,
        }
    return {
        "worker_cls": WORKER,
        "scheduler_cls": SCHEDULER,
        # An engine finds adapters by itself and stays with auto; windows it could only refuse.
        "additional_config": {CONFIG_KEY: {**settings, **({"mode": mode} if windows else {})}, REASON_KEY: reason},
        "async_scheduling": False,
    }


def check_models(config: TandemConfig, senior_model: str, senior_tokenizer: str | None = None) -> BoundarySets:
    """Read both models' configurations and tokenizers, no weights, and return the boundary sets.

    Raises:
        ValueError: the junior cannot be read, its vocabulary differs from the senior's, a boundary set is missing, or
            the mode does not take these models.
    """
    from transformers import AutoConfig, AutoTokenizer

    trust = bool(config.junior_trust_remote_code)
    junior = config.junior_model
    if junior.startswith((".", "/", "~")) and not (Path(junior).expanduser() / "config.json").is_file():
        raise ValueError(f"junior_model is {junior!r}, and no model lies there (no config.json)")
    try:
        AutoConfig.from_pretrained(junior, revision=config.junior_revision, trust_remote_code=trust)
        junior_tokenizer = AutoTokenizer.from_pretrained(
            junior, revision=config.junior_revision, trust_remote_code=trust
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"junior_model {junior!r} cannot be read: {error}") from error
    if config.mode in ("lazy", "speculative") and has_windows(junior, senior_model):
        raise ValueError(
            f"mode is {config.mode!r}, in which a model reads behind the other, and the models' attention has windows, "
            "behind which vLLM keeps nothing: set mode to 'lock_step'"
        )
    if config.mode == "speculative" and (fault := draft_problem(junior, senior_model)):
        raise ValueError(f"mode is 'speculative', and {fault}: set mode to 'lazy'")
    tokenizer = read_tokenizer(config, senior_model, senior_tokenizer)
    check_same_vocabulary(tokenizer, junior_tokenizer)
    return config.boundary_sets(tokenizer, len(tokenizer))


def read_tokenizer(config: TandemConfig, senior_model: str, senior_tokenizer: str | None = None):
    """The tokenizer that both models share, as the senior's folder has it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        senior_tokenizer or senior_model, trust_remote_code=bool(config.junior_trust_remote_code)
    )


def names_in_line(kind: object) -> list[str]:
    """Qualified names of a class and of what it derives from; none of anything else."""
    return [f"{one.__module__}.{one.__qualname__}" for one in getattr(kind, "__mro__", ())]


def vocab_size(config: TandemConfig) -> int:
    """Rows of the junior's embedding, from its configuration."""
    from transformers import AutoConfig

    junior = AutoConfig.from_pretrained(
        config.junior_model,
        revision=config.junior_revision,
        trust_remote_code=bool(config.junior_trust_remote_code),
    )
    return junior.get_text_config().vocab_size


def _refuse_unknown(settings: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    # Half of a surrogate pair in a key must not make the answer one that cannot be encoded.
    unknown = sorted(str(key).encode("ascii", "backslashreplace").decode() for key in settings if key not in names)
    if unknown:
        raise ValueError(f"unknown {what} {', '.join(unknown)}; expected any of {', '.join(names)}")


def _prompt_identity(token_ids: Sequence[int]) -> int:
    digest = hashlib.blake2b(struct.pack(f"<{len(token_ids)}q", *token_ids), digest_size=8)
    return mix64(int.from_bytes(digest.digest(), "little")) >> 1
