"""Step-PPO: PPO with the reward of a process reward model at the end of each reasoning step."""

import sys

from recipes.launch.start import Recipe, main
from recipes.step_ppo.guards import check_step_ppo_config

RECIPE = Recipe(
    name="step_ppo",
    config_name="step_ppo",
    check=check_step_ppo_config,
    blocks=("step_ppo",),
)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
