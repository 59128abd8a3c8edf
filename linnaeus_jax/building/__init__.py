"""From the pictures and records that people have to labels.h5 and images.h5."""
