#!/usr/bin/env bash
# verl's GRPO beside tandem: same model, data, optimisation, responses and selection of the checkpoint; no junior.
# Prepare the data first: python examples/data_preparation/deepscaler.py
# The knobs stand on top of train.sh.
PRESET=grpo exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" "$@"
