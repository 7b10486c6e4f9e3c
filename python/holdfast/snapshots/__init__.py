"""What others load, made of a snapshot: `holdfast snapshot export`.

A snapshot may come from anybody. Nothing in it is called or imported; see `_safe`.
"""
