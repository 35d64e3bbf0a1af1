"""Self-Play Preference Optimization (SPPO) as an advantage estimator and a policy loss for verl."""

from recipes.core.lazy import exports

__all__, __getattr__ = exports(
    __name__,
    {
        "advantage": ["sppo_target", "win_rates", "softmean", "best_worst"],
        "loss": ["sppo_loss", "sequence_log_ratio"],
    },
)
