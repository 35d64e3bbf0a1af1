"""`pkg://recipes.step_ppo.sft_dataset`, now `pkg://recipes.step_ppo.adapters.sft_dataset`."""

import warnings

from recipes.step_ppo.adapters.sft_dataset import ContinuationDataset

__all__ = ["ContinuationDataset"]

NOTICE = "recipes.step_ppo.sft_dataset is now recipes.step_ppo.adapters.sft_dataset"
warnings.warn(NOTICE, DeprecationWarning, stacklevel=2)
