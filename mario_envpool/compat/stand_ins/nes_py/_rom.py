"""Stands in for nes_py._rom."""


class ROM:
    """Programs replace its properties for NumPy 2; that has no effect here."""
