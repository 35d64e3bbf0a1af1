"""Tandem RL: a senior and a frozen junior write each response together; only the senior's tokens are trained."""

import sys

from recipes.launch.start import Recipe, main
from recipes.tandem.guards import check_tandem_config

RECIPE = Recipe(name="tandem", config_name="tandem", check=check_tandem_config, blocks=("algorithm.tandem",))

if __name__ == "__main__":
    sys.exit(main(RECIPE))
