"""A node for the node agent's benchmark: the agent's surroundings."""
