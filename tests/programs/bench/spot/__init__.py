"""Owners that sleep, borrowers that keep their cards busy, and observations of the cards of
both."""
