#!/usr/bin/env bash
# GRPO with 16 responses per prompt beside tandem with 8: about the cost of generating with two models.
# Prepare the data first: python examples/data_preparation/deepscaler.py
# The knobs stand on top of train.sh.
PRESET=grpo_n16 exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" "$@"
