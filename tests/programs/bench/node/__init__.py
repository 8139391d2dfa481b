"""A node for the node agent's benchmark: what is around the agent."""
