"""The laws as examples, by subject. A failing example is one sentence, a failing generated history a list of steps."""
