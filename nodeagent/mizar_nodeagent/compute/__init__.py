"""The GPU time of a node's containers: who wants it, and what each may have just now."""
