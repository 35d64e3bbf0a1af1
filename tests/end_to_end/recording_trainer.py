"""A trainer for tests, loaded into every process by VERL_USE_EXTERNAL_MODULES."""

import json
import os

import wrapt


def define(_module):
    import transfer_queue as tq
    from verl.trainer.ppo.v1 import register_trainer

    from recipes.core.trainer import DuetTrainer

    @register_trainer("recording")
    class RecordingTrainer(DuetTrainer):
        """Writes every row's verdict and advantage to RECORD_TO; after step LAST_SYNC it sends the engines nothing."""

        def select_trained(self, batch, metrics):
            self.verdicts = {
                sample.key: {
                    "uid": group.uid,
                    "reward": getattr(sample.result, "value", None),
                    "response": sample.response,
                }
                for group in self.read_groups(batch)
                for sample in group.samples
            }
            return super().select_trained(batch, metrics)

        def _compute_advantage(self, batch, metrics):
            batch = super()._compute_advantage(batch, metrics)
            data = tq.kv_batch_get(
                keys=batch.keys, partition_id=batch.partition_id, select_fields=["advantages", "response_mask"]
            )
            rows = {}
            for key, tag, row, mask in zip(
                batch.keys, batch.tags, data["advantages"].unbind(), data["response_mask"].unbind(), strict=True
            ):
                if not tag.get("is_padding", False):
                    rows[key] = self.verdicts[key] | {"advantage": float(row[mask.bool()][0])}
            if path := os.environ.get("RECORD_TO"):
                with open(path, "a") as file:
                    file.write(json.dumps({"step": self.global_steps, "trained": rows, "seen": self.verdicts}) + "\n")
            return batch

        def on_step_end(self):
            if self.global_steps == int(os.environ.get("LAST_SYNC", -1)) + 1:
                self.checkpoint_manager.update_weights = lambda step: None
            super().on_step_end()


wrapt.when_imported("verl.trainer.ppo.v1")(define)
