"""Time slicing: observes which containers want a card's GPU time, and grants it to them."""
