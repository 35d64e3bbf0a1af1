"""SeRL: a model that writes its own problems and grades itself by vote."""

import sys

from omegaconf import DictConfig

from recipes.core.split_resources import choose_backend, is_split, rollout_devices
from recipes.launch.start import Recipe, main
from recipes.serl.guards import check_serl_config


def check(config: DictConfig) -> None:
    """Name the checkpoint engine that a split run leaves open, and refuse what SeRL cannot run with.

    Raises:
        LaunchError: with one sentence.
    """
    choose_backend(config)
    check_serl_config(config)
    if is_split(config):
        # verl may be imported only once the launcher has prepared the environment.
        from recipes.core.split_rollout import require_backend

        require_backend(config)


# Options of the published code, which stands on OpenRLHF.
PUBLISHED = {
    "enable_self_evolution": "variant=self_instruct",
    "self_reward_method": "variant=self_instruct",
    "few_shot_generation": "serl.instructions.few_shot_generation",
    "few_shot_generation_batch_size": "serl.instructions.few_shot_generation_batch_size",
    "reward_difficulty_bounds": "serl.reward_difficulty_bounds",
    "instructions_num_per_iteration": "serl.instructions_num_per_iteration",
    "num_episodes": "serl.iterations",
    "prompt_data": "serl.seeds",
    "input_key": "serl.question_key",
    "apply_chat_template": "serl.answer_template",
    "evolution_generation_data_root_dir": "serl.journal_dir",
    "filtered_data_root_dir": "serl.journal_dir",
    "few_shot_generation_prompt": "serl.instructions.prompt_file",
    "pretrain": "actor_rollout_ref.model.path",
    "remote_rm_url": "reward.custom_reward_function.path",
    "save_path": "trainer.default_local_dir",
    "ckpt_path": "trainer.default_local_dir",
    "eval_dataset": "data.val_files",
    "use_wandb": "trainer.logger",
    "wandb_run_name": "trainer.experiment_name",
    "eval_output_root_dir": "trainer.validation_data_dir",
    "rollout_batch_size": "data.train_batch_size",
    "n_samples_per_prompt": "actor_rollout_ref.rollout.n",
    "micro_train_batch_size": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "micro_rollout_batch_size": "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "prompt_max_len": "data.max_prompt_length",
    "generate_max_len": "data.max_response_length",
    "advantage_estimator": "estimator",
    "init_kl_coef": "algorithm.kl_ctrl.kl_coef",
    "kl_estimator": "estimator=grpo",
    "actor_learning_rate": "actor_rollout_ref.actor.optim.lr",
    "lr_warmup_ratio": "lr_warmup_steps_ratio",
    "eval_steps": "trainer.test_freq",
    "save_steps": "trainer.save_freq",
    "max_ckpt_num": "trainer.max_actor_ckpt_to_keep",
    "load_checkpoint": "trainer.resume_mode=auto",
}

RECIPE = Recipe(
    name="serl",
    config_name="serl",
    check=check,
    blocks=("serl",),
    more_devices=rollout_devices,
    published=PUBLISHED,
    keeps_state=True,
    own_prompts=True,
    prepare={
        "data/serl/": "python -m recipes.serl.seeds.prepare --model MODEL",
        "toy_letters_serl/": "python examples/toy/make.py --format letters_serl --out outputs/toy_letters_serl",
        "toy_serl/": "python examples/toy/make.py --format serl --out outputs/toy_serl",
    },
)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
