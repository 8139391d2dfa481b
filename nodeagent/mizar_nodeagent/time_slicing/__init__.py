"""Time slicing: which containers want a card's GPU time, and what each may have of it just now."""
