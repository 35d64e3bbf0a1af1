"""Every private or version-sensitive symbol of verl and Ray that a file of this project overrides, replaces or reads.

:mod:`recipes.upstream.compat` compares the installed packages with these rows. To add one, print it, and fill in what
it is used for:

    python -m recipes.upstream.compat verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage
"""

from vllm_patches.upstream import Digest, Ledger, Signature, Symbol

_TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
_SYNC_TRAINER = "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync"
_REPLAY_BUFFER = "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer"
_AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"
_AGENT_LOOP_TQ = "verl.trainer.ppo.v1.agent_loop_tq"
_CHECKPOINT_ENGINE = "verl.checkpoint_engine.base"
_CHECKPOINT_MANAGER = f"{_CHECKPOINT_ENGINE}:CheckpointEngineManager"
_WEIGHT_TRANSFER = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"
_VLLM_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"

LEDGER: Ledger = {
    "recipes/plugin.py": (
        Symbol(
            "verl.trainer.ppo.core_algos:register_adv_est",
            "registers our advantage estimators",
            Signature("name_or_enum"),
        ),
        Symbol("verl.trainer.ppo.core_algos:register_policy_loss", "registers our policy losses", Signature("name")),
        Symbol("verl.trainer.ppo.v1.trainer_base:register_trainer", "registers our trainers", Signature("name")),
        Symbol(
            f"{_AGENT_LOOP}:_agent_loop_registry",
            "holds our agent loops by dotted name, so that no recipe is imported early",
        ),
        Symbol(
            "verl.experimental.reward_loop.reward_manager.registry:register",
            "registers our reward manager",
            Signature("name"),
        ),
        Symbol(
            "verl.workers.rollout.replica:RolloutReplicaRegistry.register",
            "registers our rollout replica by a lazy loader",
            Signature("cls name loader"),
        ),
        Symbol(
            "verl.plugin.platform.platform_manager:PlatformRegistry.register",
            "registers the CPU platform",
            Signature("cls platform"),
        ),
        Symbol("verl.workers.rollout.base:_ROLLOUT_REGISTRY", "holds our rollout adapter by dotted name"),
    ),
    "recipes/platforms/cpu_patches.py": (
        Symbol(
            "verl.utils.distributed:initialize_global_process_group_ray",
            "wrapped: the process group of a CPU run has one backend",
            Digest("97e4987875d8f49c"),
        ),
        Symbol(
            "verl.workers.engine.fsdp.transformer_impl:CPUOffloadPolicy",
            "replaced: offloading on a CPU does not pin memory",
        ),
    ),
    "recipes/upstream/critic_adapter.py": (
        Symbol(
            "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_lora_module",
            "wrapped: a critic takes adapters",
            Signature("self module"),
        ),
    ),
    "recipes/upstream/sync_guard.py": (
        Symbol(
            "verl.workers.engine_workers:ActorRolloutRefWorker.update_weights",
            "wrapped: what was trained is compared with what is sent",
            Signature("self global_steps mode"),
        ),
        Symbol(
            "verl.workers.rollout.vllm_rollout.vllm_rollout:ServerAdapter.update_weights",
            "wrapped: what is sent is compared with what the engine was handed",
            Signature("self weights global_steps wire_format kwargs"),
            needs="vllm",
        ),
        Symbol(
            "verl.workers.rollout.vllm_rollout.vllm_rollout:ServerAdapter._execute_method",
            "called: asks the engine to compare",
            Signature("self method non_block timeout args kwargs"),
            needs="vllm",
        ),
        Symbol(
            "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension._update_weights",
            "wrapped: samples the tensors that are loaded",
            Signature("self weights peft_config base_sync_done"),
            needs="vllm",
        ),
        Symbol(
            "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension.update_weights_from_ipc",
            "wrapped: a sync begins",
            Signature("self peft_config base_sync_done use_shm"),
            needs="vllm",
        ),
        Symbol(
            f"{_TRAINER}._compute_old_log_prob",
            "wrapped: reads the difference between rollout and actor from the metrics",
            Signature("self batch metrics"),
        ),
    ),
    "recipes/upstream/critic_attention.py": (
        Symbol(
            "verl.utils.model:load_valuehead_model",
            "replaced: a critic loads with the attention implementation its config names",
            Digest("0ab37ac4baa8bb5e"),
        ),
    ),
    "recipes/upstream/weight_sync.py": (
        Symbol(
            f"{_WEIGHT_TRANSFER}:BucketedWeightSender.__init__",
            "wrapped: the socket carries the name of the run",
            Signature("self zmq_handle bucket_size_mb use_shm"),
            needs="vllm",
        ),
        Symbol(
            f"{_WEIGHT_TRANSFER}:BucketedWeightReceiver.__init__",
            "wrapped: the socket carries the name of the run",
            Signature("self zmq_handle device use_shm"),
            needs="vllm",
        ),
        Symbol(
            f"{_WEIGHT_TRANSFER}:BucketedWeightSender._init_socket",
            "wrapped: an acknowledgement that does not come is an error, not a hang",
            Digest("eb5e7227f7a2be8c"),
            needs="vllm",
        ),
        Symbol(
            f"{_WEIGHT_TRANSFER}:BucketedWeightSender.async_send_weights",
            "wrapped: turns the timed-out acknowledgement into a sentence",
            Digest("777f562a51d611b4"),
            needs="vllm",
        ),
    ),
    "recipes/launch/start.py": (
        Symbol(
            "verl.trainer.main_ppo:run_ppo",
            "starts Ray and the task runner; reads ray_kwargs.ray_init from the config",
            Digest("7d90ac1cec5999ae"),
        ),
    ),
    "recipes/serl/adapters/trainer.py": (
        Symbol(
            f"{_TRAINER}._step_once",
            "overridden: the order of a step's stages is rebuilt around several rounds",
            Digest("7068730b888e6869"),
        ),
        Symbol(f"{_TRAINER}._compute_old_log_prob", "called for each round of a step", Signature("self batch metrics")),
        Symbol(f"{_TRAINER}._compute_ref_log_prob", "called for each round of a step", Signature("self batch metrics")),
        Symbol(
            f"{_TRAINER}._submit_batch_to_rollout",
            "called with prompts the recipe wrote itself",
            Signature("self batch"),
        ),
        Symbol(
            f"{_TRAINER}.prepare_step",
            "overridden: prompts come from the recipe, not from the dataloader",
            Signature("self"),
        ),
        Symbol(
            f"{_TRAINER}.get_llm_client",
            "called: the recipe asks the running rollout servers itself",
            Signature("self"),
        ),
        Symbol(
            f"{_REPLAY_BUFFER}.sample",
            "called for each round",
            Signature("self global_steps partition_id batch_size"),
        ),
    ),
    "recipes/common/grouped_trainer.py": (
        Symbol(
            f"{_TRAINER}._balance_batch",
            "overridden: it is the first stage after sampling and rewards",
            Digest("529d625a161c996e"),
        ),
    ),
    "recipes/step_ppo/adapters/trainer.py": (
        Symbol(
            f"{_TRAINER}._compute_advantage",
            "overridden: leaves returns = raw advantages + values, from which ours are rebuilt",
            Digest("5899ae8ea39ad1e8"),
        ),
    ),
    "recipes/pasodoble/adapters/side.py": (
        Symbol(f"{_TRAINER}._update_actor", "called once for each role", Signature("self batch metrics")),
        Symbol(
            f"{_TRAINER}._get_required_batch_multiple", "read for the size of padded batches", Signature("self dp_size")
        ),
    ),
    "recipes/serl/adapters/certainty.py": (
        Symbol(
            "verl.workers.engine_workers:TrainingWorker.infer_batch",
            "surrounded: calls loss_fn where the batch says compute_loss, and returns the whole model output",
            Digest("f10aeed59f947f82"),
        ),
        Symbol(
            "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs",
            "relied upon: hands logits to the loss function where the batch says distillation_use_topk",
            Digest("70b9710f6e76a417"),
        ),
    ),
    "recipes/serl/adapters/teacher.py": (
        Symbol(
            "verl.workers.engine_workers:ActorRolloutRefWorker.update_weights",
            "called with the reference in the actor's place: of the actor it reads the engine alone",
            Digest("5d682f9bed12e78b"),
        ),
        Symbol(
            "verl.utils.checkpoint.checkpoint_manager:BaseCheckpointManager.__init__",
            "relied upon: checkpoint_save_contents and checkpoint_load_contents say what is saved and loaded",
            Digest("828d2c2b60e59ee0"),
        ),
    ),
    "recipes/serl/adapters/teaching.py": (
        Symbol(
            f"{_TRAINER}._init_resource_pool_mgr", "surrounded: workers of our own classes", Digest("8f579946ba2432c8")
        ),
        Symbol(
            f"{_SYNC_TRAINER}.on_step_end",
            "surrounded: the policy's weights are in the engines again",
            Digest("80f3426e241342f8"),
        ),
    ),
    "recipes/serl/adapters/run.py": (
        Symbol(
            f"{_TRAINER}._save_checkpoint",
            "surrounded: recipe state is written before the tracker",
            Digest("40be7b751cd74a98"),
        ),
        Symbol(
            f"{_TRAINER}._load_checkpoint",
            "surrounded: recipe state is restored after the weights",
            Digest("fc963d11da9dc04d"),
        ),
        Symbol(
            f"{_TRAINER}._init_dataloader", "surrounded: the schedule horizon follows the recipe's", Signature("self")
        ),
    ),
    "recipes/pasodoble/adapters/trainer.py": (
        Symbol(
            f"{_TRAINER}._init_resource_pool_mgr", "surrounded: a pool for the second role", Digest("8f579946ba2432c8")
        ),
        Symbol(
            f"{_TRAINER}._setup",
            "surrounded: the second role's workers are built after the first's",
            Digest("fa42ba9884089568"),
        ),
        Symbol(
            f"{_TRAINER}._compute_metrics",
            "surrounded: metrics of the second role",
            Signature("self batch metrics timing_raw global_steps epoch"),
        ),
    ),
    "recipes/evaluation/trained_policy.py": (
        Symbol(
            f"{_TRAINER}._compute_metrics",
            "surrounded: the policy is evaluated once the engines hold the weights of the step",
            Signature("self batch metrics timing_raw global_steps epoch"),
        ),
        Symbol(
            f"{_TRAINER}.on_train_begin",
            "surrounded: the policy is evaluated before the first step",
            Signature("self"),
        ),
        Symbol(
            f"{_TRAINER}.on_train_end",
            "surrounded: the policy is evaluated after an unforeseen last step",
            Signature("self"),
        ),
        Symbol(
            f"{_TRAINER}.on_validate_begin",
            "called: wakes the engines of a trainer that lets them sleep",
            Signature("self"),
        ),
        Symbol(
            f"{_TRAINER}.fit",
            "when it calls _compute_metrics, weights are in the engines and metrics not yet logged",
            Digest("cff88c9dd0b7166e"),
        ),
        Symbol(
            "verl.workers.rollout.llm_server:LLMServerManager.get_addresses",
            "called: where the rollout engines answer",
            Signature("self"),
        ),
    ),
    "recipes/common/split_rollout.py": (
        Symbol(
            f"{_TRAINER}._setup",
            "surrounded: without hybrid replicas it leaves engine and weight sync empty, and ours take their places",
            Digest("fa42ba9884089568"),
        ),
        Symbol(
            f"{_TRAINER}._init_resource_pool_mgr",
            "relied upon: reads _enable_hybrid_replicas and builds actor and reference without an engine",
            Digest("8f579946ba2432c8"),
        ),
        Symbol(
            f"{_TRAINER}._get_n_gpus_for_throughput", "surrounded: the rollouts' own devices count", Signature("self")
        ),
        Symbol(
            f"{_SYNC_TRAINER}.on_init_end",
            "relied upon: syncs weights through self.checkpoint_manager",
            Digest("a8e2246fe89d2bae"),
        ),
        Symbol(
            f"{_SYNC_TRAINER}.on_step_end",
            "relied upon: syncs weights through self.checkpoint_manager, under the number of the step",
            Digest("80f3426e241342f8"),
        ),
        Symbol(
            f"{_SYNC_TRAINER}.on_sample_end",
            "replaced where rollouts have devices of their own: engines stay awake",
            Digest("bbadd424b12b1139"),
        ),
        Symbol(
            f"{_AGENT_LOOP_TQ}:AgentLoopWorkerTQ._agent_loop_postprocess",
            "relied upon: tags each response with the versions of the weights it comes from",
            Digest("0de51a6927418fa9"),
        ),
        Symbol(
            "verl.workers.rollout.llm_server:LLMServerManager._initialize_llm_servers",
            "relied upon: without a worker group it starts standalone replicas on rollout.nnodes x n_gpus_per_node",
            Digest("5fc2f8bd2f8bce98"),
        ),
        Symbol(
            f"{_CHECKPOINT_MANAGER}.__init__",
            "called: a weight sync between separate workers",
            Signature("self config actor_wg replicas"),
        ),
    ),
    "recipes/common/gloo_checkpoint_engine.py": (
        Symbol(
            f"{_CHECKPOINT_MANAGER}.update_weights",
            "calls our engine's methods in this order, in every worker",
            Digest("1927b17cbeabf5fe"),
        ),
        Symbol(
            f"{_CHECKPOINT_MANAGER}.build_process_group",
            "calls our engine's methods in this order, in every worker",
            Digest("92426d0b1ea7c27e"),
        ),
        Symbol(
            f"{_CHECKPOINT_ENGINE}:CheckpointEngineRegistry.register",
            "registers our checkpoint engine",
            Signature("backend"),
        ),
        Symbol(
            f"{_CHECKPOINT_ENGINE}:split_weight_chunks",
            "called: cuts weights into pieces of at most a bucket",
            Digest("c845516a69093489"),
        ),
        Symbol(
            f"{_CHECKPOINT_ENGINE}:merge_weight_chunks",
            "called: puts pieces together again",
            Digest("67d4758be7f2e90e"),
        ),
    ),
    "recipes/pasodoble/adapters/replay_buffer.py": (
        Symbol(
            f"{_REPLAY_BUFFER}._sampleable_terminal_keys",
            "overridden: each role takes its own groups",
            Digest("8382931f2b4fe347"),
        ),
    ),
    "recipes/serl/adapters/agent_loop.py": (
        Symbol(
            f"{_AGENT_LOOP}:AgentLoopBase.ct_build_initial_tokens",
            "called or overridden: prompts without, or with an opened, chat template",
            Signature("self messages tools images videos audios mm_inputs_out"),
        ),
    ),
    "recipes/step_ppo/adapters/agent_loop.py": (
        Symbol(
            f"{_AGENT_LOOP}:AgentLoopBase._cap_text_prompt_length",
            "called: bounds a prompt as verl's own loop does",
            Signature("self prompt_ids"),
        ),
        Symbol(
            f"{_AGENT_LOOP}:AgentLoopOutput.as_dict",
            "overridden: rm_scores hold a reward at each step end",
            Digest("6a4f273ed8b709e0"),
        ),
    ),
    "recipes/common/reward_manager.py": (
        Symbol(
            "verl.experimental.reward_loop.reward_manager.base:RewardManagerBase.__init__",
            "called by our managers",
            Signature("self config tokenizer compute_score"),
        ),
    ),
    "recipes/serl/adapters/padding.py": (
        Symbol(
            "verl.trainer.ppo.padding_utils:upsample_batch_to_divisible_size",
            "relied upon: which fields of a padding row are reset",
            Digest("9199fa5c7de524c6"),
        ),
    ),
    "recipes/tandem/adapters/replica.py": (
        Symbol(
            f"{_VLLM_SERVER}:vLLMHttpServer._preprocess_engine_kwargs",
            "overridden: turns tandem_config into engine arguments",
            Signature("self engine_kwargs"),
            needs="vllm",
        ),
        Symbol(
            f"{_VLLM_SERVER}:vLLMHttpServer._validate_configs",
            "surrounded: refuses what the decoder does not support",
            Signature("self"),
            needs="vllm",
        ),
        Symbol(
            f"{_VLLM_SERVER}:vLLMReplica.__init__",
            "relied upon: sets server_class, which ours replaces",
            Digest("0b64399ecaddd3b1"),
            needs="vllm",
        ),
    ),
    "recipes/tandem/adapters/agent_loop.py": (
        Symbol(
            f"{_VLLM_SERVER}:vLLMHttpServer.generate",
            "relied upon: passes extra_args and copies kv_transfer_params to extra_fields",
            Digest("e26c4680fed1939c"),
            needs="vllm",
        ),
        Symbol(
            f"{_AGENT_LOOP_TQ}:AgentLoopWorkerTQ._run_prompt",
            "relied upon: passes session_id, global_steps and index",
            Digest("a7e51b357d1000e9"),
        ),
        Symbol(
            "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop.run",
            "surrounded: its output gets the authorship mask",
            Digest("6bde2f71c6d1fb0b"),
        ),
        Symbol(
            f"{_AGENT_LOOP}:AgentLoopWorker._compute_score",
            "relied upon: skipped when reward_score is set",
            Digest("803d006279e40396"),
        ),
    ),
    "recipes/tandem/adapters/rollout.py": (
        Symbol(
            f"{_AGENT_LOOP_TQ}:AgentLoopManagerTQ.generate_sequences",
            "overridden: tells validation prompts from training prompts",
            Digest("5ce4d05379b080cf"),
        ),
    ),
    "recipes/tandem/adapters/trainer.py": (
        Symbol(f"{_TRAINER}._validate", "surrounded: solo and joint validation", Digest("1beed36b5a0454f5")),
        Symbol(
            f"{_TRAINER}._val_metrics_update",
            "overridden: a lost mask stops the run, pass@k is added",
            Digest("1ce2c12c390bd164"),
        ),
    ),
    "recipes/launch/cluster.py": (
        Symbol(
            "ray._private.services:find_bootstrap_address",
            "finds the cluster that `ray start` made on this host, as ray.init would",
            Signature("temp_dir"),
        ),
    ),
    "recipes/lifecycle/watchdog.py": (
        Symbol(
            "ray._private.state:actors",
            "lists the dead actors of a job without Ray's dashboard",
            Signature("actor_id job_id actor_state_name"),
        ),
    ),
    "recipes/lifecycle/preemption.py": (
        Symbol(
            "ray.experimental.internal_kv:_internal_kv_put",
            "carries a request to save or to end from the driver to the trainer, beside get, del and initialized",
            Signature("key value overwrite namespace"),
        ),
        Symbol(
            f"{_TRAINER}.fit",
            "saves before on_step_end, logs after it, reads total_training_steps anew before each step",
            Digest("cff88c9dd0b7166e"),
        ),
    ),
    "recipes/launch/task_runner.py": (
        Symbol(
            "verl.trainer.main_ppo:TaskRunnerV1",
            "subclassed: the trainer is ready when init_agent_loop_manager is called, and fit comes next",
        ),
    ),
    "recipes/platforms/replay_buffer.py": (
        Symbol(f"{_REPLAY_BUFFER}.__init__", "subclassed: takes poll_interval in seconds", Digest("972efa330c9b5917")),
    ),
    "recipes/launch/supervised.py": (
        Symbol(
            "verl.trainer.sft_trainer:SFTTrainer._build_dataloader",
            "called again where a run resumes at the end of an epoch; the class is subclassed for it",
            Signature("self"),
        ),
        Symbol(
            "verl.utils.checkpoint.checkpoint_handler:CheckpointHandler",
            "saves the state of its train_dataloader, which we replace",
            Signature(
                "engine train_dataloader default_local_dir max_ckpt_to_keep "
                "default_hdfs_dir resume_mode resume_from_path mode lora_train_meta"
            ),
        ),
    ),
}
