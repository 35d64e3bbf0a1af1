"""Refuse what verl asserts inside its workers, minutes after the start: sizes of updates, micro-batches and sequences.

A training step of verl: `train_batch_size x rollout.n` rows, filled up to whole mini-batches, are dealt out over the
data-parallel ranks of each role (devices / Ulysses size). Each rank cuts its part of a mini-batch into micro-batches,
by a number of rows or, packed, by a budget of tokens.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipes.core.settings import policies
from recipes.errors import ConfigError

ACTOR, ROLLOUT, REF, CRITIC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref", "critic"


@dataclass(frozen=True)
class Pass:
    """One kind of forward pass that a role makes.

    Attributes:
        role: dotted key of the role in the config.
        ranks: data-parallel ranks; `ulysses` devices work on one sequence.
        packed: micro-batches by a budget of tokens instead of rows.
        rows_key, rows: micro-batch in rows on each rank.
        tokens_key, tokens: budget in tokens on each device.
    """

    role: str
    ranks: int
    ulysses: int
    packed: bool
    rows_key: str
    rows: int | None
    tokens_key: str
    tokens: int | None


def check_workers(config: Any, trained: Mapping[str, int] | None = None) -> None:
    """Every check of this module.

    Args:
        config: composed, as verl gets it.
        trained: rows of one optimizer step by role, where a recipe's trainer sets them; None for verl's own.

    Raises:
        ConfigError: with the keys and what to set.
    """
    if not str(config.actor_rollout_ref.actor.strategy).startswith("fsdp"):
        return  # verl's other engines deal out rows in other ways, and it checks them itself
    trained = mini_batches(config) if trained is None else trained
    check_parallel_sizes(config)
    check_budgets(config)
    check_mini_batches(config, trained)
    check_micro_batches(config, trained)
    check_engine(config)
    check_attention(config)


def devices(config: Any) -> int:
    """Devices that train."""
    return config.trainer.nnodes * config.trainer.n_gpus_per_node


def ulysses_size(node: Any) -> int:
    """Devices that share one sequence in a role; verl keeps the setting at two places."""
    engine = node.get("fsdp_config") or node.get("fsdp") or {}
    outer = node.get("ulysses_sequence_parallel_size") or 1
    return outer if outer > 1 else engine.get("ulysses_sequence_parallel_size") or 1


def passes(config: Any) -> Iterator[Pass]:
    """The forward passes of a run on verl's FSDP engines."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy

    group, world = config.actor_rollout_ref, devices(config)
    actor, rollout, ref, critic = group.actor, group.rollout, group.ref, config.critic
    size = ulysses_size(actor)
    for key, node, rows, tokens in (
        (ACTOR, actor, "ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu"),
        (ROLLOUT, rollout, "log_prob_micro_batch_size_per_gpu", "log_prob_max_token_len_per_gpu"),
    ):
        yield Pass(key, world // size, size, bool(actor.use_dynamic_bsz), rows, node[rows], tokens, node[tokens])
    if need_reference_policy(config):
        size, rows, tokens = ulysses_size(ref), "log_prob_micro_batch_size_per_gpu", "log_prob_max_token_len_per_gpu"
        packed = bool(ref.log_prob_use_dynamic_bsz)
        yield Pass(REF, world // size, size, packed, rows, ref[rows], tokens, ref[tokens])
    if need_critic(config):
        # verl 0.9 always packs the critic's micro-batches, and under this budget alone.
        size, tokens = ulysses_size(critic), "ppo_infer_max_token_len_per_gpu"
        yield Pass(CRITIC, world // size, size, True, "", None, tokens, critic.get(tokens) or 32768)


def mini_batches(config: Any) -> dict[str, int]:
    """Rows of one optimizer step of each role that trains."""
    from verl.trainer.ppo.utils import need_critic

    n = config.actor_rollout_ref.rollout.n
    rows = {ACTOR: config.actor_rollout_ref.actor.ppo_mini_batch_size * n}
    if need_critic(config):
        rows[CRITIC] = config.critic.ppo_mini_batch_size * n
    return rows


def check_parallel_sizes(config: Any) -> None:
    """The devices of a role must be whole groups of Ulysses, and those of the rollouts whole engines."""
    world = devices(config)
    group = config.actor_rollout_ref
    for key, node in ((ACTOR, group.actor), (REF, group.ref), (CRITIC, config.critic)):
        size = ulysses_size(node)
        if size > 1 and world % size:
            raise ConfigError(
                f"{key}.ulysses_sequence_parallel_size={size} does not divide the {world} devices "
                f"(trainer.nnodes={config.trainer.nnodes} x n_gpus_per_node={config.trainer.n_gpus_per_node})",
                f"{key}.ulysses_sequence_parallel_size",
            )
    rollout = group.rollout
    engine = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    if not group.hybrid_engine:
        return
    per_node = config.trainer.n_gpus_per_node
    if world % engine or (per_node % engine and engine % per_node):
        raise ConfigError(
            f"a rollout engine of {engine} devices (tensor x data x pipeline parallel size of {ROLLOUT}) does not "
            f"divide trainer.nnodes={config.trainer.nnodes} x n_gpus_per_node={per_node}: an engine must fill whole "
            "nodes or fit into one, and no device may be left over",
            f"{ROLLOUT}.tensor_model_parallel_size",
        )


def check_mini_batches(config: Any, trained: Mapping[str, int]) -> None:
    """Every role's mini-batch must be dealt out over its ranks without a rest."""
    n = config.actor_rollout_ref.rollout.n
    for kind in passes(config):
        rows = trained.get(kind.role)
        if rows is not None and rows % kind.ranks:
            node = CRITIC if kind.role == CRITIC else ACTOR
            fitting = kind.ranks // math.gcd(kind.ranks, n)
            raise ConfigError(
                f"{node}.ppo_mini_batch_size={rows // n} x rollout.n={n} = {rows} responses cannot be dealt out over "
                f"{kind.ranks} data-parallel ranks: set {node}.ppo_mini_batch_size to a multiple of {fitting}, or use "
                f"a number of devices that divides {rows * kind.ulysses}",
                f"{node}.ppo_mini_batch_size",
            )


def check_micro_batches(config: Any, trained: Mapping[str, int]) -> None:
    """A fixed micro-batch must divide what each rank has of a mini-batch."""
    if not trained:
        return
    whole = math.lcm(*trained.values())
    for kind in passes(config):
        rows = trained.get(kind.role, whole)
        if rows % kind.ranks:
            raise ConfigError(
                f"{kind.role}: the {rows} responses of a mini-batch cannot be dealt out over {kind.ranks} "
                "data-parallel ranks: give it the actor's ulysses_sequence_parallel_size",
                f"{kind.role}.ulysses_sequence_parallel_size",
            )
        if kind.packed:
            continue
        share = rows // kind.ranks
        key = f"{kind.role}.{kind.rows_key}"
        if kind.rows is None:
            raise ConfigError(f"{key} is not set: give a divisor of {share}, or pack by use_dynamic_bsz", key)
        if share % kind.rows:
            raise ConfigError(
                f"{key}={kind.rows} does not divide a mini-batch of {rows} responses on {kind.ranks} data-parallel "
                f"ranks: choose a divisor of {share}",
                key,
            )


def check_budgets(config: Any) -> None:
    """A packed micro-batch must hold the longest sequence; verl's log-prob pass packs as the actor does."""
    group, data = config.actor_rollout_ref, config.data
    if bool(group.actor.use_dynamic_bsz) != bool(group.rollout.log_prob_use_dynamic_bsz):
        raise ConfigError(
            f"{ROLLOUT}.log_prob_use_dynamic_bsz={group.rollout.log_prob_use_dynamic_bsz} must equal "
            f"{ACTOR}.use_dynamic_bsz={group.actor.use_dynamic_bsz}: one engine makes both passes",
            f"{ROLLOUT}.log_prob_use_dynamic_bsz",
        )
    longest = data.max_prompt_length + data.max_response_length
    for kind in passes(config):
        if kind.packed and (kind.tokens or 0) * kind.ulysses < longest:
            raise ConfigError(
                f"{kind.role}.{kind.tokens_key}={kind.tokens} cannot hold one sequence of "
                f"data.max_prompt_length={data.max_prompt_length} + max_response_length={data.max_response_length} "
                f"tokens on {kind.ulysses} device(s): set it to at least {-(-longest // kind.ulysses)}",
                f"{kind.role}.{kind.tokens_key}",
            )


def check_engine(config: Any) -> None:
    """The engine's length must hold a prompt and its response."""
    rollout, data = config.actor_rollout_ref.rollout, config.data
    longest = data.max_prompt_length + data.max_response_length
    length = rollout.max_model_len
    if length is not None and length < longest:
        raise ConfigError(
            f"{ROLLOUT}.max_model_len={length} is shorter than data.max_prompt_length={data.max_prompt_length} + "
            f"max_response_length={data.max_response_length}: verl would cut responses silently; set it to at least "
            f"{longest}",
            f"{ROLLOUT}.max_model_len",
        )


def check_attention(config: Any) -> None:
    """:func:`check_ulysses` for every role; a second policy starts from the first one's model settings."""
    first = config.actor_rollout_ref.model
    for prefix, tree in policies(config).items():
        group = tree.actor_rollout_ref
        check_ulysses(f"{prefix}{ACTOR}", group.actor, group.model, first)
        check_ulysses(f"{prefix}{REF}", group.ref, group.model, first)
    check_ulysses(CRITIC, config.critic, config.critic.get("model") or {})


def check_ulysses(key: str, role: Any, *models: Any) -> None:
    """Ulysses on sdpa computes other log-probs: verl exchanges heads only inside flash-attention's function.

    Args:
        key: dotted key of the role.
        role: its node, which holds the size.
        models: the nodes whose `override_config` may name the attention, the first that does wins.

    Raises:
        ConfigError: several devices share a sequence, and attention is not flash-attn's.
    """
    named = [(model.get("override_config") or {}).get("attn_implementation") for model in models]
    attention = next((name for name in named if name is not None), None)
    if ulysses_size(role) > 1 and attention not in (None, "flash_attention_2", "flash_attention_3"):
        raise ConfigError(
            f"{key}.ulysses_sequence_parallel_size={ulysses_size(role)} needs flash-attn, and attention runs on "
            f"{attention}, under which verl would silently compute wrong log-probs; install flash-attn or set the size "
            "to 1",
            f"{key}.ulysses_sequence_parallel_size",
        )
