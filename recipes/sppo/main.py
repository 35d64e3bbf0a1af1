"""Train with SPPO: `python -m recipes.sppo.main scale=toy preset=verl key=value ...`."""

import sys

from omegaconf import DictConfig

from recipes import launch
from recipes.sppo.guards import check_sppo_config
from recipes.sppo.options import SppoConfigError, SppoOptions


def check(config: DictConfig) -> None:
    """Refuse what SPPO cannot run with, in the launcher's own error."""
    try:
        check_sppo_config(config)
    except SppoConfigError as error:
        raise launch.ConfigError(str(error)) from error


RECIPE = launch.Recipe(name="sppo", config_name="sppo", blocks={"algorithm.sppo": SppoOptions}, check=check)

if __name__ == "__main__":
    sys.exit(launch.main(RECIPE))
