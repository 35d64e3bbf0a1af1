"""SPPO: regress each response's log-ratio on how much better than the policy's average it was."""

import sys

from recipes.launch.start import Recipe, main
from recipes.sppo.guards import check_sppo_config

RECIPE = Recipe(
    name="sppo",
    config_name="sppo",
    check=check_sppo_config,
    blocks=("algorithm.sppo",),
    # of verl's former recipe
    published={"sppo_eta": "algorithm.sppo.eta"},
    prepare={
        "data/math/": "python examples/data_preparation/math_dataset.py",
        "toy_letters/": "python examples/toy/make.py --format letters --out outputs/toy_letters",
        "toy/": "python examples/toy/make.py --out outputs/toy",
    },
)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
