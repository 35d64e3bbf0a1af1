"""Refuse, before anything starts, configurations with which tandem training would compute something else."""

import asyncio
import dataclasses
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipes.core.files import read_rows
from recipes.core.settings import read, require, require_off
from recipes.errors import ConfigError, DataError
from recipes.launch.preflight import REMOTE_PREFIXES, check_model, data_files, looks_local
from recipes.tandem.junior_weight import WARNING
from recipes.tandem.portable.settings import PortableSettings
from recipes.tandem.settings import (
    BLOCK,
    FOLLOWED,
    KEY,
    SECTION,
    TandemSettings,
    canonical_settings,
    check_followed,
    junior_weight,
    replace_section,
    tandem_config,
)
from reward_fns.endpoint import Endpoint
from reward_fns.errors import EndpointError
from vllm_patches.tandem.config import TandemConfig, check_models
from vllm_patches.tandem.weight_sharing import Senior, decide

ROLLOUT, AGENT_LOOP, TRAINER = "tandem_vllm", "tandem", "tandem"
PORTABLE_LOOP = "tandem_portable"
MANAGER = "recipes.tandem.agent_loop.TandemAgentLoopManager"
MANAGER_KEY = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
JUNIOR_KEY = f"{KEY}.junior_model"
LOOP_KEY = "actor_rollout_ref.rollout.agent.default_agent_loop"


def check_tandem_config(config: DictConfig) -> None:
    """Refuse a composed configuration that the recipe cannot run with.

    A configuration of the baselines (preset grpo, grpo_n16, kl: no tandem_config, an ordinary engine) is held only to
    what the trainer needs.

    Raises:
        ConfigError, MissingFileError, DataError: one sentence that says what was found and what to set.
    """
    settings = read(TandemSettings, config.algorithm.get("tandem"), BLOCK)
    require(config, "trainer.v1.trainer_mode", TRAINER, why="another trainer would go on with a lost authorship mask")
    _check_validation(config, settings)
    rollout = config.actor_rollout_ref.rollout
    section = rollout.engine_kwargs.get("vllm", {}).get(SECTION)
    if settings.portable is not None or rollout.agent.default_agent_loop == PORTABLE_LOOP:
        _check_portable(config, settings, section)
        return
    if section is None and rollout.name != ROLLOUT and rollout.agent.default_agent_loop != AGENT_LOOP:
        for name in ("validation", "normaliser", "junior_token_loss_weight"):
            if getattr(settings, name) != getattr(TandemSettings, name):
                raise ConfigError(
                    f"{BLOCK}.{name} means something only with a junior; leave it out.", f"{BLOCK}.{name}"
                )
        return
    _check_rollout(config)
    _check_objective(config, settings, section or {})
    _check_engine(config)


def _check_portable(config: DictConfig, settings: TandemSettings, section: object) -> None:
    rollout = config.actor_rollout_ref.rollout
    if settings.portable is None or rollout.agent.default_agent_loop != PORTABLE_LOOP:
        raise ConfigError(
            f"{BLOCK}.portable and {LOOP_KEY}={PORTABLE_LOOP} go together; take preset=portable.",
            LOOP_KEY if settings.portable else f"{BLOCK}.portable",
        )
    if rollout.name == ROLLOUT or section is not None:
        raise ConfigError(
            f"the portable path runs on an ordinary engine; leave out {SECTION} and set actor_rollout_ref.rollout.name "
            f"to one of verl's, found {rollout.name}.",
            "actor_rollout_ref.rollout.name",
        )
    require(config, MANAGER_KEY, MANAGER, why="with another manager validation would not be solo")
    require_off(
        config,
        "actor_rollout_ref.rollout.full_determinism",
        why="it gives every request of a response the same id and seed, and the portable path makes many",
    )
    _check_objective(config, settings, settings.portable.get("tandem_config") or {})
    portable = read(PortableSettings, settings.portable, f"{BLOCK}.portable")
    if foreign := sorted(FOLLOWED.keys() & portable.tandem_config.keys()):
        key = f"{BLOCK}.portable.tandem_config.{foreign[0]}"
        raise ConfigError(f"{key} belongs to the junior's server; leave it out.", key)
    _print_notices(portable.tandem_config)
    _check_both_models(portable.schedule, config.actor_rollout_ref.model)
    _check_identities(config)
    try:
        served = asyncio.run(Endpoint(dataclasses.replace(portable.endpoint, attempts=2)).served_models())
    except EndpointError as error:
        raise ConfigError(f"{BLOCK}.portable.junior_url: {error}", f"{BLOCK}.portable.junior_url") from error
    if portable.junior_name not in served:
        raise ConfigError(
            f"algorithm.tandem.portable.junior_name={portable.junior_name}: {portable.junior_url} serves "
            f"{', '.join(served) or 'nothing'}.",
            f"{BLOCK}.portable.junior_name",
        )


def _check_validation(config: DictConfig, settings: TandemSettings) -> None:
    samples = config.actor_rollout_ref.rollout.val_kwargs.n
    if settings.pass_k > samples:
        raise ConfigError(
            f"algorithm.tandem.pass_k={settings.pass_k} needs as many validation responses per problem, found "
            f"actor_rollout_ref.rollout.val_kwargs.n={samples}.",
            f"{BLOCK}.pass_k",
        )
    if settings.benchmarks is None:
        return
    pooled = {source for group in settings.benchmarks.values() for source in group}
    sources = set(map(str, _column(config.data.val_files, "data_source")))
    if sources and sources != pooled:
        raise ConfigError(
            "algorithm.tandem.benchmarks and data.val_files disagree about the data sources: only in the benchmarks "
            f"{sorted(pooled - sources)}, only in the files {sorted(sources - pooled)}.",
            f"{BLOCK}.benchmarks",
        )


def _check_rollout(config: DictConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    why = "another engine cannot decode with two models (preset=grpo runs without a junior)"
    require(config, "actor_rollout_ref.rollout.name", ROLLOUT, why=why)
    require(config, LOOP_KEY, AGENT_LOOP, why="another loop would train on the junior's tokens")
    require(config, MANAGER_KEY, MANAGER, why="with another manager validation would not be solo")
    why = "it cannot be combined with tandem decoding"
    require(config, "actor_rollout_ref.rollout.pipeline_model_parallel_size", 1, why=why)
    if rollout.mtp.enable:
        require_off(config, "actor_rollout_ref.rollout.mtp.enable_rollout", why=why)
    require_off(
        config,
        "actor_rollout_ref.rollout.enable_rollout_routing_replay",
        "actor_rollout_ref.rollout.disaggregation.enabled",
        why=why,
    )


def _check_objective(config: DictConfig, settings: TandemSettings, section: Any) -> None:
    actor = config.actor_rollout_ref.actor
    why = "the penalty would come from the senior's tokens alone and be spread over the group"
    require_off(config, "algorithm.use_kl_in_reward", why=why)
    require_off(
        config,
        "algorithm.rollout_correction.bypass_mode",
        "algorithm.rollout_correction.rollout_is",
        "algorithm.rollout_correction.rollout_rs",
        "actor_rollout_ref.actor.use_rollout_log_probs",
        why="the rollout engine's log-probs are the junior's at a junior's token",
    )
    require_off(config, "critic.enable", why="tandem training is GRPO and has no critic")
    if settings.normaliser == "response" and (
        actor.use_kl_loss or actor.entropy_coeff or actor.loss_agg_mode != "token-mean"
    ):
        raise ConfigError(
            "algorithm.tandem.normaliser=response rescales the policy loss alone; it needs loss_agg_mode=token-mean, "
            "use_kl_loss=false and entropy_coeff=0.",
            f"{BLOCK}.normaliser",
        )
    canonical_settings(section)
    if weight := junior_weight(settings, section):
        if (
            actor.use_kl_loss
            or actor.entropy_coeff
            or (actor.loss_agg_mode, actor.policy_loss.loss_mode) != ("token-mean", "vanilla")
        ):
            raise ConfigError(
                f"algorithm.tandem.junior_token_loss_weight={weight:g} weighs the tokens of the policy loss alone; it "
                "needs loss_agg_mode=token-mean, policy_loss.loss_mode=vanilla, use_kl_loss=false and entropy_coeff=0.",
                f"{BLOCK}.junior_token_loss_weight",
            )
        print(WARNING.format(weight=weight), file=sys.stderr)


def _check_engine(config: DictConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    engine_kwargs: Any = OmegaConf.to_container(rollout.engine_kwargs.get("vllm", {}), resolve=True)
    _print_notices(engine_kwargs.get(SECTION) or {})
    check_followed(engine_kwargs.get(SECTION) or {}, rollout)
    replace_section(dict(engine_kwargs))
    engine = tandem_config(engine_kwargs[SECTION])
    _check_sharing(engine, config.actor_rollout_ref)
    if looks_local(engine.junior_model):
        check_model(engine.junior_model, JUNIOR_KEY)
    _check_both_models(engine, config.actor_rollout_ref.model)
    _check_identities(config)


def _print_notices(section: Any) -> None:
    for notice in canonical_settings(section)[1]:
        print(notice, file=sys.stderr)


def _check_sharing(engine: TandemConfig, group: DictConfig) -> None:
    """`share_weights=true` where the engine would refuse it, after the models are loaded."""
    try:
        decide(engine, _senior(group))
    except ValueError as error:
        raise ConfigError(f"{SECTION}.{error}", f"{KEY}.share_weights") from error


def _senior(group: DictConfig) -> Senior:
    """What an engine of these roles will find its senior to be."""
    model, rollout = group.model, group.rollout
    lora = model.get("lora") or {}
    return Senior(
        model=model.path,
        adapters=((model.get("lora_rank") or 0) > 0 or (lora.get("rank") or 0) > 0) and not lora.get("merge"),
        load_format=rollout.load_format,
        dtype=rollout.dtype,
        quantization=rollout.get("quantization"),
    )


def junior_in_the_engine(group: DictConfig) -> tuple[str, bool] | None:
    """The junior that a rollout engine of these roles holds, and whether it reads the senior's weights."""
    section = group.rollout.engine_kwargs.get("vllm", {}).get(SECTION)
    if section is None:
        return None
    engine = tandem_config(section)
    return engine.junior_model, decide(engine, _senior(group))[0]


def _check_both_models(engine: TandemConfig, model: DictConfig) -> None:
    """Vocabularies and boundary sets, where both models are at hand; the engine looks again at any of them."""
    if not (_at_hand(engine.junior_model) and _at_hand(model.path)):
        return
    try:
        check_models(engine, model.path, model.get("tokenizer_path"))
    except ValueError as error:
        raise ConfigError(f"{JUNIOR_KEY}: {error}", JUNIOR_KEY) from error


def _at_hand(path: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    if path.startswith(REMOTE_PREFIXES):
        return False
    if looks_local(path):
        return (Path(path).expanduser() / "config.json").is_file()
    return isinstance(try_to_load_from_cache(path, "tokenizer_config.json"), str)


def _check_identities(config: DictConfig) -> None:
    """The author coins of a response are keyed by its row's index: rows that share one would share their coins."""
    indices = [_index(info) for info in _column(config.data.train_files, "extra_info")]
    if any(not isinstance(index, int) or isinstance(index, bool) for index in indices):
        raise DataError(
            "data.train_files: a row has no whole number in extra_info.index, which keys who writes which token."
        )
    if len(set(indices)) != len(indices):
        raise DataError(
            f"data.train_files: {len(indices)} rows have {len(set(indices))} distinct values of extra_info.index, "
            "which keys who writes which token; number the rows."
        )
    # verl takes a missing index for 0, which is fine where nothing is learned; any other value must be a number.
    validated = [_index(info) for info in _column(config.data.val_files, "extra_info") if info and "index" in info]
    if wrong := [index for index in validated if not isinstance(index, int) or isinstance(index, bool)]:
        raise DataError(
            f"data.val_files: a row has {wrong[0]!r:.80} for extra_info.index, which keys who writes which token; "
            "number the rows, or leave the index out of all of them."
        )


def _index(info: object) -> object:
    return info.get("index") if isinstance(info, dict) else None


def _column(files: object, name: str) -> list:
    """A column of the local files, None where a row has none; the preflight refuses files that cannot be read."""
    import pyarrow.parquet

    values = []
    for file in data_files(files):
        path = Path(file).expanduser()
        if file.startswith(REMOTE_PREFIXES) or not path.is_file():
            continue
        try:
            if path.suffix != ".parquet":
                values += [row.get(name) for row in read_rows(path)]
            elif name not in (table := pyarrow.parquet.ParquetFile(path)).schema_arrow.names:
                values += [None] * table.metadata.num_rows
            else:
                values += table.read(columns=[name]).column(name).to_pylist()
        except (DataError, pyarrow.ArrowException, OSError):
            return []
    return values
