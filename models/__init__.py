"""Trained surrogates, each with a card that says what it was trained on and how well it does."""
