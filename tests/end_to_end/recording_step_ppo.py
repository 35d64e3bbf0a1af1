"""Lets a step-PPO run write what each step trained on to RECORD_TO; loaded by VERL_USE_EXTERNAL_MODULES."""

import os

import wrapt

FIELDS = (
    "prompts",
    "responses",
    "response_mask",
    "rm_scores",
    "token_level_rewards",
    "old_log_probs",
    "ref_log_prob",
    "values",
    "advantages",
    "returns",
)


def record(module):
    import torch
    import transfer_queue as tq

    original = module.StepPPOTrainer._compute_advantage

    def recording(self, batch, metrics):
        batch = original(self, batch, metrics)
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
        columns = {name: data[name].unbind() for name in FIELDS}
        rows = {
            key: {name: columns[name][i].clone() for name in FIELDS}
            for i, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True))
            if not tag.get("is_padding", False)
        }
        torch.save(rows, f"{os.environ['RECORD_TO']}.{self.global_steps}.pt")
        return batch

    module.StepPPOTrainer._compute_advantage = recording


wrapt.when_imported("recipes.step_ppo.trainer")(record)
