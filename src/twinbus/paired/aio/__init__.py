"""The asyncio shell. The blocking one is generated from it: see tools/unasync.py."""
