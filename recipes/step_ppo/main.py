"""Step-PPO: PPO with the reward of a process reward model at the end of each reasoning step."""

import sys

from recipes.launch.start import Recipe, main
from recipes.step_ppo.guards import check_step_ppo_config

RECIPE = Recipe(
    name="step_ppo",
    config_name="step_ppo",
    check=check_step_ppo_config,
    blocks=("step_ppo",),
    prepare={
        "quickstart/step_ppo/round0/prm/backbone": "bash examples/quickstart.sh --toy step_ppo",
        "step_ppo/logiqa2": "bash recipes/step_ppo/run_pipeline_logiqa2.sh",
        "toy_letters/": "python examples/toy/make.py --format letters --out outputs/toy_letters",
        "toy_step_ppo/": "python examples/toy/make.py --format step_ppo --out outputs/toy_step_ppo",
    },
)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
