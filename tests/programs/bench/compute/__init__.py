"""Shares of a simulated card's time: containers that keep it busy, and the share that each gets."""
