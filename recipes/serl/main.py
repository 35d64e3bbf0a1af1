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


RECIPE = Recipe(
    name="serl",
    config_name="serl",
    check=check,
    blocks=("serl",),
    more_devices=rollout_devices,
    keeps_state=True,
    prepare={
        "data/serl/": "python -m recipes.serl.seeds.prepare --model MODEL",
        "toy_letters_serl/": "python examples/toy/make.py --format letters_serl --out outputs/toy_letters_serl",
        "toy_serl/": "python examples/toy/make.py --format serl --out outputs/toy_serl",
    },
)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
