"""Weights from files of this and other programs, and weights as files that PyTorch reads."""
