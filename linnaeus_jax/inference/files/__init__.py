"""Many pictures of a disk, and the files that are made of their predictions."""
