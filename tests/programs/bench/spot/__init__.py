"""Owners that sleep, borrowers that keep their cards busy, and what the cards show of both."""
