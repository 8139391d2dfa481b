"""Shares of a simulated card's time: containers that keep it busy, and what each of them got."""
