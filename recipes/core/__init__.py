"""What several recipes use: the reward manager, the group hook on the V1 trainer."""
