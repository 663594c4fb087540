"""Bytes to the world and back."""
