"""SeRL inside verl: trainer, agent loop, advantage estimators, and what they exchange with the TransferQueue."""
