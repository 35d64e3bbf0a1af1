"""SeRL: a model that writes its own problems and grades itself by vote."""

import sys

from recipes.launch import Recipe, main
from recipes.serl.guards import check_serl_config

RECIPE = Recipe(name="serl", config_name="serl", check=check_serl_config, blocks=("serl",))

if __name__ == "__main__":
    sys.exit(main(RECIPE))
