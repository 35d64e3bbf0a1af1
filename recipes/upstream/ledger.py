"""Every private or version-sensitive symbol of verl and Ray that this project subclasses, wraps, replaces or reads.

:mod:`recipes.upstream.compat` compares the installed packages with these rows. To add one, print it and fill in
`used_by` and `why`:

    python -m recipes.upstream.compat verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Symbol:
    """One upstream symbol: where it is, who relies on it, what it must look like.

    Attributes:
        symbol: "module:attribute.path".
        used_by: our file that relies on it, relative to the repository.
        why: what breaks when upstream changes it.
        parameters: its parameter names in order, separated by spaces; None when it is not called or overridden.
        source: accepted digests of its code (see `digest`), for what is replaced or whose body is relied upon.
        needs: a distribution without which the row cannot be looked at ("vllm" stands for either vLLM distribution).
    """

    symbol: str
    used_by: str
    why: str
    parameters: str | None = None
    source: tuple[str, ...] = ()
    needs: str | None = None


_TRAINER = "verl.trainer.ppo.v1.trainer_base"
_SYNC_TRAINER = "verl.trainer.ppo.v1.trainer_sync"
_CHECKPOINT_ENGINE = "verl.checkpoint_engine.base"

LEDGER: tuple[Symbol, ...] = (
    Symbol(
        "verl.trainer.ppo.core_algos:register_adv_est",
        "recipes/plugin.py",
        "registers our advantage estimators",
        parameters="name_or_enum",
    ),
    Symbol(
        "verl.trainer.ppo.core_algos:register_policy_loss",
        "recipes/plugin.py",
        "registers our policy losses",
        parameters="name",
    ),
    Symbol(f"{_TRAINER}:register_trainer", "recipes/plugin.py", "registers our trainers", parameters="name"),
    Symbol(
        "verl.experimental.agent_loop.agent_loop:_agent_loop_registry",
        "recipes/plugin.py",
        "holds our agent loops by dotted name, so that no recipe is imported early",
    ),
    Symbol(
        "verl.experimental.reward_loop.reward_manager.registry:register",
        "recipes/plugin.py",
        "registers our reward manager",
        parameters="name",
    ),
    Symbol(
        "verl.workers.rollout.replica:RolloutReplicaRegistry.register",
        "recipes/plugin.py",
        "registers our rollout replica by a lazy loader",
        parameters="name loader",
    ),
    Symbol(
        "verl.plugin.platform.platform_manager:PlatformRegistry.register",
        "recipes/plugin.py",
        "registers the CPU platform",
        parameters="platform",
    ),
    Symbol(
        "verl.utils.distributed:initialize_global_process_group_ray",
        "recipes/platforms/cpu_patches.py",
        "wrapped: the process group of a CPU run has one backend",
        parameters="timeout_second backend",
        source=("97e4987875d8f49c",),
    ),
    Symbol(
        "verl.utils.model:load_valuehead_model",
        "recipes/upstream/critic_attention.py",
        "replaced: a critic loads with the attention implementation its config names",
        parameters="local_path torch_dtype model_config trust_remote_code",
        source=("0ab37ac4baa8bb5e",),
    ),
    Symbol(
        "verl.workers.engine.fsdp.transformer_impl:CPUOffloadPolicy",
        "recipes/platforms/cpu_patches.py",
        "replaced: offloading on a CPU does not pin memory",
    ),
    Symbol(
        "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender.__init__",
        "recipes/upstream/weight_sync.py",
        "wrapped: the socket carries the name of the run",
        parameters="self zmq_handle bucket_size_mb use_shm",
        needs="vllm",
    ),
    Symbol(
        "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightReceiver.__init__",
        "recipes/upstream/weight_sync.py",
        "wrapped: the socket carries the name of the run",
        parameters="self zmq_handle device use_shm",
        needs="vllm",
    ),
    Symbol(
        "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender._init_socket",
        "recipes/upstream/weight_sync.py",
        "wrapped: an acknowledgement that does not come is an error, not a hang",
        parameters="self",
        source=("eb5e7227f7a2be8c",),
        needs="vllm",
    ),
    Symbol(
        "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightSender.async_send_weights",
        "recipes/upstream/weight_sync.py",
        "wrapped: turns the timed-out acknowledgement into a sentence",
        parameters="self weights",
        source=("777f562a51d611b4",),
        needs="vllm",
    ),
    Symbol(
        "verl.trainer.main_ppo:run_ppo",
        "recipes/launch/start.py",
        "starts Ray and the task runner; reads ray_kwargs.ray_init from the config",
        parameters="config task_runner_class",
        source=("7d90ac1cec5999ae",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._step_once",
        "recipes/serl/adapters/trainer.py",
        "overridden: the order of a step's stages is rebuilt around several rounds",
        parameters="self metrics timing_raw sample_batch_size",
        source=("7068730b888e6869",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._balance_batch",
        "recipes/common/grouped_trainer.py",
        "overridden: it is the first stage after sampling and rewards",
        parameters="self batch metrics logging_prefix keep_minibatch",
        source=("529d625a161c996e",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._compute_old_log_prob",
        "recipes/serl/adapters/trainer.py",
        "called for each round of a step",
        parameters="self batch metrics",
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._compute_ref_log_prob",
        "recipes/serl/adapters/trainer.py",
        "called for each round of a step",
        parameters="self batch metrics",
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._compute_advantage",
        "recipes/step_ppo/adapters/trainer.py",
        "overridden: leaves returns = raw advantages + values, from which ours are rebuilt",
        parameters="self batch metrics",
        source=("5899ae8ea39ad1e8",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._update_actor",
        "recipes/pasodoble/adapters/side.py",
        "called once for each role",
        parameters="self batch metrics",
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._submit_batch_to_rollout",
        "recipes/serl/adapters/trainer.py",
        "called with prompts the recipe wrote itself",
        parameters="self batch",
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._save_checkpoint",
        "recipes/serl/adapters/run.py",
        "surrounded: recipe state is written before the tracker",
        parameters="self",
        source=("40be7b751cd74a98",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._load_checkpoint",
        "recipes/serl/adapters/run.py",
        "surrounded: recipe state is restored after the weights",
        parameters="self",
        source=("fc963d11da9dc04d",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._get_required_batch_multiple",
        "recipes/pasodoble/adapters/side.py",
        "read for the size of padded batches",
        parameters="self dp_size",
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._init_dataloader",
        "recipes/serl/adapters/run.py",
        "surrounded: the schedule horizon follows the recipe's",
        parameters="self",
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._init_resource_pool_mgr",
        "recipes/pasodoble/adapters/trainer.py",
        "surrounded: a pool for the second role",
        parameters="self",
        source=("8f579946ba2432c8",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._setup",
        "recipes/pasodoble/adapters/trainer.py",
        "surrounded: the second role's workers are built after the first's",
        parameters="self",
        source=("fa42ba9884089568",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._compute_metrics",
        "recipes/pasodoble/adapters/trainer.py",
        "surrounded: metrics of the second role",
        parameters="self batch metrics timing_raw global_steps epoch",
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer.prepare_step",
        "recipes/serl/adapters/trainer.py",
        "overridden: prompts come from the recipe, not from the dataloader",
        parameters="self",
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer.get_llm_client",
        "recipes/serl/adapters/trainer.py",
        "called: the recipe asks the running rollout servers itself",
        parameters="self",
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._setup",
        "recipes/common/split_rollout.py",
        "surrounded: without hybrid replicas it leaves engine and weight sync empty, and ours take their places",
        parameters="self",
        source=("fa42ba9884089568",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._init_resource_pool_mgr",
        "recipes/common/split_rollout.py",
        "relied upon: reads _enable_hybrid_replicas and builds actor and reference without an engine",
        parameters="self",
        source=("8f579946ba2432c8",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._get_n_gpus_for_throughput",
        "recipes/common/split_rollout.py",
        "surrounded: the rollouts' own devices count",
        parameters="self",
    ),
    Symbol(
        f"{_SYNC_TRAINER}:PPOTrainerSync.on_init_end",
        "recipes/common/split_rollout.py",
        "relied upon: syncs weights through self.checkpoint_manager",
        parameters="self",
        source=("a8e2246fe89d2bae",),
    ),
    Symbol(
        f"{_SYNC_TRAINER}:PPOTrainerSync.on_step_end",
        "recipes/common/split_rollout.py",
        "relied upon: syncs weights through self.checkpoint_manager, under the number of the step",
        parameters="self",
        source=("80f3426e241342f8",),
    ),
    Symbol(
        f"{_SYNC_TRAINER}:PPOTrainerSync.on_sample_end",
        "recipes/common/split_rollout.py",
        "replaced where rollouts have devices of their own: engines stay awake",
        parameters="self",
        source=("bbadd424b12b1139",),
    ),
    Symbol(
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._agent_loop_postprocess",
        "recipes/common/split_rollout.py",
        "relied upon: tags each response with the versions of the weights it comes from",
        parameters="self output validate kwargs",
        source=("0de51a6927418fa9",),
    ),
    Symbol(
        "verl.workers.rollout.llm_server:LLMServerManager._initialize_llm_servers",
        "recipes/common/split_rollout.py",
        "relied upon: without a worker group it starts standalone replicas on rollout.nnodes x n_gpus_per_node",
        parameters="self start_rank",
        source=("5fc2f8bd2f8bce98",),
    ),
    Symbol(
        f"{_CHECKPOINT_ENGINE}:CheckpointEngineManager.__init__",
        "recipes/common/split_rollout.py",
        "called: a weight sync between separate workers",
        parameters="self config actor_wg replicas",
    ),
    Symbol(
        f"{_CHECKPOINT_ENGINE}:CheckpointEngineManager.update_weights",
        "recipes/common/gloo_checkpoint_engine.py",
        "calls our engine's methods in this order, in every worker",
        parameters="self global_steps",
        source=("1927b17cbeabf5fe",),
    ),
    Symbol(
        f"{_CHECKPOINT_ENGINE}:CheckpointEngineManager.build_process_group",
        "recipes/common/gloo_checkpoint_engine.py",
        "calls our engine's methods in this order, in every worker",
        parameters="self rollout",
        source=("92426d0b1ea7c27e",),
    ),
    Symbol(
        f"{_CHECKPOINT_ENGINE}:CheckpointEngineRegistry.register",
        "recipes/common/gloo_checkpoint_engine.py",
        "registers our checkpoint engine",
        parameters="backend",
    ),
    Symbol(
        f"{_CHECKPOINT_ENGINE}:split_weight_chunks",
        "recipes/common/gloo_checkpoint_engine.py",
        "called: cuts weights into pieces of at most a bucket",
        parameters="weights bucket_size meta_only",
        source=("c845516a69093489",),
    ),
    Symbol(
        f"{_CHECKPOINT_ENGINE}:merge_weight_chunks",
        "recipes/common/gloo_checkpoint_engine.py",
        "called: puts pieces together again",
        parameters="chunks bucket_size",
        source=("67d4758be7f2e90e",),
    ),
    Symbol(
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample",
        "recipes/serl/adapters/trainer.py",
        "called for each round",
        parameters="self global_steps partition_id batch_size",
    ),
    Symbol(
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._sampleable_terminal_keys",
        "recipes/pasodoble/adapters/replay_buffer.py",
        "overridden: each role takes its own groups",
        parameters="self partition_id eviction_reasons",
        source=("8382931f2b4fe347",),
    ),
    Symbol(
        "verl.experimental.agent_loop.agent_loop:AgentLoopBase.ct_build_initial_tokens",
        "recipes/serl/adapters/agent_loop.py",
        "called or overridden: prompts without, or with an opened, chat template",
        parameters="self messages tools images videos audios mm_inputs_out",
    ),
    Symbol(
        "verl.experimental.agent_loop.agent_loop:AgentLoopBase._cap_text_prompt_length",
        "recipes/step_ppo/adapters/agent_loop.py",
        "called: bounds a prompt as verl's own loop does",
        parameters="self prompt_ids",
    ),
    Symbol(
        "verl.experimental.agent_loop.agent_loop:AgentLoopOutput.as_dict",
        "recipes/step_ppo/adapters/agent_loop.py",
        "overridden: rm_scores hold a reward at each step end",
        parameters="self",
        source=("6a4f273ed8b709e0",),
    ),
    Symbol(
        "verl.experimental.reward_loop.reward_manager.base:RewardManagerBase.__init__",
        "recipes/common/reward_manager.py",
        "called by our managers",
        parameters="self config tokenizer compute_score",
    ),
    Symbol(
        "verl.trainer.ppo.padding_utils:upsample_batch_to_divisible_size",
        "recipes/serl/adapters/padding.py",
        "relied upon: which fields of a padding row are reset",
        parameters="batch batch_multiple eos_token_id",
        source=("9199fa5c7de524c6",),
    ),
    Symbol(
        "verl.workers.rollout.base:_ROLLOUT_REGISTRY",
        "recipes/plugin.py",
        "holds our rollout adapter by dotted name",
    ),
    Symbol(
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer._preprocess_engine_kwargs",
        "recipes/tandem/adapters/replica.py",
        "overridden: turns tandem_config into engine arguments",
        parameters="self engine_kwargs",
        needs="vllm",
    ),
    Symbol(
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer._validate_configs",
        "recipes/tandem/adapters/replica.py",
        "surrounded: refuses what the decoder does not support",
        parameters="self",
        needs="vllm",
    ),
    Symbol(
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica.__init__",
        "recipes/tandem/adapters/replica.py",
        "relied upon: sets server_class, which ours replaces",
        parameters="self replica_rank config model_config gpus_per_node is_reward_model is_teacher_model name_suffix",
        source=("0b64399ecaddd3b1",),
        needs="vllm",
    ),
    Symbol(
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.generate",
        "recipes/tandem/adapters/agent_loop.py",
        "relied upon: passes extra_args and copies kv_transfer_params to extra_fields",
        parameters="self prompt_ids sampling_params request_id image_data "
        "video_data audio_data mm_processor_kwargs priority kv_transfer_params",
        source=("e26c4680fed1939c",),
        needs="vllm",
    ),
    Symbol(
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ.generate_sequences",
        "recipes/tandem/adapters/rollout.py",
        "overridden: tells validation prompts from training prompts",
        parameters="self prompts",
        source=("5ce4d05379b080cf",),
    ),
    Symbol(
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._run_prompt",
        "recipes/tandem/adapters/agent_loop.py",
        "relied upon: passes session_id, global_steps and index",
        parameters="self prompt sampling_params trajectory trace",
        source=("a7e51b357d1000e9",),
    ),
    Symbol(
        "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop.run",
        "recipes/tandem/adapters/agent_loop.py",
        "surrounded: its output gets the authorship mask",
        parameters="self sampling_params priority kwargs",
        source=("6bde2f71c6d1fb0b",),
    ),
    Symbol(
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score",
        "recipes/tandem/adapters/agent_loop.py",
        "relied upon: skipped when reward_score is set",
        parameters="self outputs kwargs",
        source=("803d006279e40396",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._validate",
        "recipes/tandem/adapters/trainer.py",
        "surrounded: solo and joint validation",
        parameters="self",
        source=("1beed36b5a0454f5",),
    ),
    Symbol(
        f"{_TRAINER}:PPOTrainer._val_metrics_update",
        "recipes/tandem/adapters/trainer.py",
        "overridden: a lost mask stops the run, pass@k is added",
        parameters="self data_sources sample_uids reward_extra_infos_dict sample_turns expected_acc_counts",
        source=("1ce2c12c390bd164",),
    ),
    Symbol(
        "ray._private.services:find_bootstrap_address",
        "recipes/launch/cluster.py",
        "finds the cluster that `ray start` made on this host, as ray.init would",
        parameters="temp_dir",
    ),
    Symbol(
        "ray._private.state:actors",
        "recipes/lifecycle/watchdog.py",
        "lists the dead actors of a job without Ray's dashboard",
        parameters="actor_id job_id actor_state_name",
    ),
    Symbol(
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.__init__",
        "recipes/platforms/replay_buffer.py",
        "subclassed: takes poll_interval in seconds",
        source=("972efa330c9b5917",),
    ),
    Symbol(
        "verl.trainer.sft_trainer:SFTTrainer._build_dataloader",
        "recipes/launch/supervised.py",
        "called again where a run resumes at the end of an epoch; the class is subclassed for it",
        parameters="self",
    ),
    Symbol(
        "verl.utils.checkpoint.checkpoint_handler:CheckpointHandler",
        "recipes/launch/supervised.py",
        "saves the state of its train_dataloader, which we replace",
        parameters="engine train_dataloader default_local_dir max_ckpt_to_keep default_hdfs_dir resume_mode "
        "resume_from_path mode lora_train_meta",
    ),
)
