"""Self-Play Preference Optimization (SPPO) as an advantage estimator and a policy loss for verl."""
