"""The training worker's end of the weight sync to a tandem server."""

from verl.workers.rollout.vllm_rollout import ServerAdapter


class TandemServerAdapter(ServerAdapter):
    """verl's adapter for vLLM servers under this rollout's name.

    The senior receives weights by its plain names; the junior is no part of the model that receives them.
    """
