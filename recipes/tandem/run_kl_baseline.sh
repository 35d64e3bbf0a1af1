#!/usr/bin/env bash
# GRPO with a KL penalty towards the start beside tandem: the other way to keep a senior readable.
# Prepare the data first: python examples/data_preparation/deepscaler.py
# The knobs stand on top of train.sh.
PRESET=kl exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" "$@"
