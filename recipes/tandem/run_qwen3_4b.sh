#!/usr/bin/env bash
# Tandem RL as published: Qwen3-4B-Instruct-2507 on DeepScaleR, the junior its own frozen start, two GPUs of 80 GB.
# Prepare the data first: python examples/data_preparation/deepscaler.py
# The knobs stand on top of train.sh.
PRESET=tandem exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" "$@"
