"""Process rewards from sampled trajectories: labels, PRM, preference pairs, and PPO with a reward at every step."""

from recipes.core.lazy import exports

__all__, __getattr__ = exports(
    __name__,
    {
        "steps": ["segment", "segment_response"],
        "rewards": ["step_rewards", "token_rewards"],
        "advantage": ["gae"],
        "pairs": ["outcome_pairs", "process_pairs"],
        "labels": ["state_value", "trajectory_value"],
    },
)
