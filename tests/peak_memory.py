"""The peak memory of a program that a test runs in a process of its own."""

#: Source of a function that returns it in MiB. VmHWM starts with the program; ru_maxrss would start with what the
#: parent has used.
PEAK = """
from pathlib import Path

def peak():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024
"""
