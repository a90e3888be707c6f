# Generated from ../aio/__init__.py by tools/unasync.py; change that file, not this one.
"""The blocking shell, generated: see tools/unasync.py."""
