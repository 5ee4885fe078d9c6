"""Families of networks for small images: each file registers its own."""
