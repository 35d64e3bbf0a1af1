"""SPPO in verl: the advantage estimator and the policy loss."""
