"""Step-PPO in verl: trainer, reward manager, agent loop and the data set of the supervised start."""
