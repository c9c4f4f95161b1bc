"""Rules: which limits apply to which requests, declared in a file and read, checked and replaced as a whole."""
