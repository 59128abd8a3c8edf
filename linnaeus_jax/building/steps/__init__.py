"""From the rows of a source to labels.h5 and images.h5, step by step."""
