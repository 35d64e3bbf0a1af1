"""Tandem RL: a senior and a frozen junior write each response together; only the senior's tokens are trained."""

import sys

from recipes.launch.start import Recipe, main
from recipes.tandem.guards import check_tandem_config, junior_in_the_engine

RECIPE = Recipe(
    name="tandem",
    config_name="tandem",
    check=check_tandem_config,
    blocks=("algorithm.tandem",),
    second_model=junior_in_the_engine,
    published={"tandem_jr_tkn_weight": "algorithm.tandem.junior_token_loss_weight"},
    prepare={
        "data/deepscaler/": "python examples/data_preparation/deepscaler.py",
        "toy_letters/": "python examples/toy/make.py --format letters --out outputs/toy_letters",
        "toy/": "python examples/toy/make.py --out outputs/toy",
    },
)

if __name__ == "__main__":
    sys.exit(main(RECIPE))
