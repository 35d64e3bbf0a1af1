#!/usr/bin/env bash
# Step-PPO on LogiQA-v2 from the process-DPO model, with the PRM of round 1: the published row (Llama-2-7B).
# SCALE=qwen3_4b and qwen3_4b_lora_1gpu take Qwen3-4B, with all weights or as adapters for actor and critic on one GPU.
# Make the models first: run_pipeline_logiqa2.sh (for Qwen3-4B with BASE_MODEL=Qwen/Qwen3-4B-Base); ROOT and PRM_PATH say
# where they are. PRESET is prm or outcome, the matched baseline whose only reward is the gold answer on EOS; other
# variables: ../launch/launcher.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"
ARGUMENTS=(${OFFLOAD:+critic.fsdp.param_offload="${OFFLOAD}" critic.fsdp.optimizer_offload="${OFFLOAD}"}
  ${MAX_TOKENS_PER_GPU:+critic.ppo_max_token_len_per_gpu="${MAX_TOKENS_PER_GPU}"}
  ${LORA_RANK:+critic.model.lora_rank="${LORA_RANK}" critic.model.lora_alpha="${LORA_ALPHA:-${LORA_RANK}}"})
launch step_ppo scale="${SCALE:-logiqa2_llama2_7b}" ${PRESET:+preset="${PRESET}"} "$@"
