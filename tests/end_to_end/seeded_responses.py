"""Loaded by every process of a run: each response is sampled from a seed of its own, its place in the run."""

import wrapt

from vllm_patches.tandem.schedule import request_key


@wrapt.when_imported("verl.experimental.agent_loop.single_turn_agent_loop")
def seed_responses(module):
    run = module.SingleTurnAgentLoop.run

    async def seeded(self, sampling_params, **kwargs):
        place = (int(kwargs[name]) for name in ("index", "global_steps", "session_id"))
        return await run(self, {**sampling_params, "seed": request_key(*place, 2) % 2**31}, **kwargs)

    module.SingleTurnAgentLoop.run = seeded
