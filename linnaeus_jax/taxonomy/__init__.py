"""Ranks and the tree of classes."""
