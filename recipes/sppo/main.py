"""SPPO: regress each response's log-ratio on how much better than the policy's average it was."""

import sys

from recipes.launch.start import Recipe, main
from recipes.sppo.guards import check_sppo_config

RECIPE = Recipe(name="sppo", config_name="sppo", check=check_sppo_config, blocks=("algorithm.sppo",))

if __name__ == "__main__":
    sys.exit(main(RECIPE))
