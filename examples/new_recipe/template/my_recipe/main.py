"""My recipe: one sentence that `--help` prints."""

import sys

from recipes.errors import ConfigError
from recipes.launch.start import Recipe, main


def check(config) -> None:
    """Refuse a composed config the method cannot run with, before Ray starts.

    Raises:
        ConfigError: one sentence: what was found, what was expected, what to do.
    """
    responses = config.actor_rollout_ref.rollout.n
    if responses < 2:
        raise ConfigError(
            f"actor_rollout_ref.rollout.n={responses} leaves no other response to compare with; set 2 or more"
        )


RECIPE = Recipe(name="my_recipe", config_name="my_recipe", check=check)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
