"""What a store needs to prove itself."""
