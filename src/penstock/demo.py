"""A short tour in the terminal."""
