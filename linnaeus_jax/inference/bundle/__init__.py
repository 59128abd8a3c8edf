"""What a model needs to be used, and the directory that holds it."""
