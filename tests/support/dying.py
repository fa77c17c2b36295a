"""Ranks that die at a chosen moment, by a sitecustomize.py of a test's."""

__all__ = ["AT_SECOND_CHECKPOINT"]

AT_SECOND_CHECKPOINT = """
import os, signal
replace, seen = os.replace, []

def counted(source, target, **options):
    if str(target).endswith("LATEST"):
        seen.append(target)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target, **options)

if os.environ.get("FARANDOLE_RESTART") == "0":
    os.replace = counted
"""
"""The first start dies when its second checkpoint has its name, and LATEST not yet."""
