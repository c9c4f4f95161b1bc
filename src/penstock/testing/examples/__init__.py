"""The laws told as examples, by subject. They fail with a sentence where a generated history fails with a story."""
