"""A finished run put to work."""
