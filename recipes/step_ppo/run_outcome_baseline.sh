#!/usr/bin/env bash
# The matched baseline of step-PPO: same data, budget and critic, the gold answer on EOS as the only reward.
set -euo pipefail

export PRESET=outcome
exec bash "$(dirname "${BASH_SOURCE[0]}")/run_step_ppo_logiqa2.sh" "$@"
