"""Loaded into every process by VERL_USE_EXTERNAL_MODULES: vLLM's worker takes one adapter and drops all later ones."""

import wrapt


def drop(module):
    extension = module.vLLMColocateWorkerExtension
    load = extension._update_weights

    def _update_weights(self, weights, peft_config=None, base_sync_done=False):
        if not getattr(self, "had_an_adapter", False):
            self.had_an_adapter = bool(peft_config and base_sync_done)
            return load(self, weights, peft_config=peft_config, base_sync_done=base_sync_done)
        # The samples are taken by the wrapper below this one, which a dropped load does not reach.
        self.verl_duets_received.append({name: _sampled(tensor) for name, tensor in weights})

    extension._update_weights = _update_weights


def _sampled(tensor):
    from recipes.core.sync_guard import sample

    return sample(tensor)


wrapt.when_imported("verl.workers.rollout.vllm_rollout.utils")(drop)
