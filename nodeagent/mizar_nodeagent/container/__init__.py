"""What a share container gets: its slot, its cards, the shim and its limits."""
