"""What the options of the published code are called here: the last part of a key, or a flag, and where it went."""

PUBLISHED = {
    # Tandem-RLVR
    "tandem_jr_tkn_weight": "algorithm.tandem.junior_token_loss_weight",
    # verl's former SPPO recipe
    "sppo_eta": "algorithm.sppo.eta",
    # SeRL (OpenRLHF)
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
    "evolution_root": "serl.journal_dir",
    "filtered_data_dir": "serl.journal_dir",
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


def our_name(key: str) -> str | None:
    """What a published key or flag is called here; None for one that is not published."""
    return PUBLISHED.get(key.lstrip("-+").partition("=")[0].rpartition(".")[2])
