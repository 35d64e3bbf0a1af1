"""The training worker's end of the weight sync to a tandem server."""

from verl.workers.rollout.vllm_rollout import ServerAdapter


class TandemServerAdapter(ServerAdapter):
    """verl's adapter for vLLM servers, under this rollout's name: the senior is synchronised by its plain names, and
    the junior stands outside the model that receives them."""
