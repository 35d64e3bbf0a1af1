"""PasoDoble: a Proposer writes problems, a Solver solves them, both learn; variant=online or variant=offline."""

import sys

from omegaconf import DictConfig, OmegaConf, open_dict

from recipes.core.settings import require, require_off
from recipes.errors import ConfigError, MissingFileError
from recipes.launch import preflight, worker_checks
from recipes.launch.checks import check_like
from recipes.launch.composition import flatten, verl_defaults
from recipes.launch.start import Recipe, main
from recipes.pasodoble.knowledge import check_knowledge
from recipes.pasodoble.prompts import require_chat_template
from recipes.pasodoble.settings import GameSettings

PREPARE = {
    "data/math/": "python examples/data_preparation/math_dataset.py",
    "pasodoble_sft/solver": "ROLE=solver NAME=SCALE MODEL_PATH=BASE bash recipes/pasodoble/run_sft.sh",
    "pasodoble_sft/proposer": "ROLE=proposer NAME=SCALE MODEL_PATH=BASE bash recipes/pasodoble/run_sft.sh",
    "toy_letters_pasodoble/": "bash examples/quickstart.sh pasodoble",
    "toy_pasodoble/": "python examples/toy/make.py --format pasodoble --out outputs/toy_pasodoble",
}
PROPOSER_BLOCKS = ("data", "algorithm", "actor_rollout_ref")


def check(config: DictConfig) -> None:
    """Refuse what the game cannot run with, then write out the Proposer's whole configuration.

    Raises:
        ValueError, LaunchError: with one sentence.
    """
    settings = GameSettings.from_config(config.pasodoble)
    _check_contradictions(config)
    resolve_proposer(config, settings)
    _check_inputs(config, settings)


def resolve_proposer(config: DictConfig, settings: GameSettings) -> None:
    """Replace ``config.proposer``, an overlay, by the whole tree that the Proposer sees.

    The overlay is laid over the still uninterpolated tree, so that what the Solver's tree derives (prompt_length from
    data.max_prompt_length, ...) is derived again from the Proposer's own values.
    """
    foreign = sorted(set(config.proposer) - set(PROPOSER_BLOCKS))
    if foreign:
        key = f"proposer.{foreign[0]}"
        raise ConfigError(f"{key} cannot differ from the Solver's: the overlay takes {PROPOSER_BLOCKS}", key)
    overlay = config.proposer
    check_like(overlay, verl_defaults(), flatten(overlay), "proposer.")
    with open_dict(config):
        config.proposer = {}
        whole = OmegaConf.merge(config, overlay)
        if settings.layout == "separate":
            whole.trainer.nnodes = settings.proposer_nodes
            whole.trainer.n_gpus_per_node = settings.proposer_gpus_per_node
        whole.pop("proposer")
        OmegaConf.resolve(whole)
        config.proposer = whole


def _check_contradictions(config: DictConfig) -> None:
    why = "PasoDoble needs it"
    require(config, "trainer.v1.trainer_mode", "pasodoble_online", "pasodoble_offline", why=why)
    require(config, "trainer.v1.sampler.custom_sampler.name", "RoleReplayBuffer", why=why)
    require(config, "actor_rollout_ref.actor.use_dynamic_bsz", True, why=why)
    require_off(
        config,
        "algorithm.use_kl_in_reward",
        "actor_rollout_ref.actor.use_kl_loss",
        "critic.enable",
        "trainer.rollout_data_dir",
        "reward.reward_model.enable",
        why="it does not go with PasoDoble",
    )
    if config.trainer.total_training_steps is None:
        key = "trainer.total_training_steps"
        raise ConfigError(f"{key} must be set: rounds are drawn without end", key)


def _check_inputs(config: DictConfig, settings: GameSettings) -> None:
    from transformers import AutoTokenizer

    tokenizers = {}
    for name, tree in (("actor_rollout_ref", config), ("proposer.actor_rollout_ref", config.proposer)):
        model = tree.actor_rollout_ref.model
        preflight.check_model(model.path, f"{name}.model.path", hint=preflight.made_by(model.path, PREPARE))
        path = model.get("tokenizer_path") or model.path
        tokenizers[name] = AutoTokenizer.from_pretrained(path, trust_remote_code=model.get("trust_remote_code", False))
        if not model.get("custom_chat_template"):
            require_chat_template(tokenizers[name])
            messages = settings.prompts.for_solver("1 + 1?") if tree is config else _proposal(settings)
            preflight.check_rendering(tokenizers[name], messages, f"pasodoble.prompts at {path}")
    if settings.use_knowledge:
        try:
            check_knowledge(settings.knowledge, tokenizers["proposer.actor_rollout_ref"])
        except FileNotFoundError as error:
            raise MissingFileError(f"pasodoble.knowledge.path: {error}") from error
    preflight.check_golds(preflight.data_files(config.data.val_files), "data.val_files")


def _proposal(settings: GameSettings) -> list[dict[str, str]]:
    return settings.prompts.for_proposer("1 + 1 = 2." if settings.use_knowledge else None)


def proposer_devices(config: DictConfig) -> int:
    """Count the devices of the Proposer's own pool; none if the two roles share theirs."""
    settings = config.pasodoble
    return settings.proposer_nodes * settings.proposer_gpus_per_node if settings.layout == "separate" else 0


def mini_batches(config: DictConfig) -> dict[str, int]:
    """Responses of one update of the Solver; without a size it takes all of a round in one."""
    size = config.pasodoble.solver_mini_batch_size
    return {worker_checks.ACTOR: size} if size else {}


RECIPE = Recipe(
    name="pasodoble",
    config_name="pasodoble",
    check=check,
    blocks=("pasodoble", "proposer"),
    more_devices=proposer_devices,
    mini_batches=mini_batches,
    keeps_state=True,
    prepare=PREPARE,
)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
