"""What tells that a card's owners come, go, work or sleep: a class for each source."""
