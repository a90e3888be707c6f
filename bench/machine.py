"""What the figures were taken on: a page of figures without it says nothing."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import statistics
import subprocess
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

from bench import rabbitmq
from bench.process import ROOT
from twinbus.spark.java import JavaError, find_java

PACKAGES = ("azure-servicebus", "uvloop", "pyspark", "pyarrow", "duckdb")


def describe() -> dict[str, str]:
    """By name, in the order of the page."""
    return {
        "Date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "Twinbus": f"{metadata.version('twinbus')}, commit {_commit()}",
        "Processor": f"{_processor()}, {os.cpu_count()} cores",
        "Memory": f"{psutil.virtual_memory().total / 2**30:.0f} GB",
        "System": f"{platform.system()} {platform.release()}",
        "Disk": f"4 KB written and synced in {fsync_ms():.2f} ms (median of 50)",
        "Busy before it began": f"{psutil.getloadavg()[0]:.1f} processes (load average)",
        "Python": f"{platform.python_version()}, SQLite {sqlite3.sqlite_version}, Java {_java()}",
        "Packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "RabbitMQ": f"{rabbitmq.version()} (Debian)",
    }


def fsync_ms() -> float:
    """What being durable costs at least, where the brokers keep their files."""
    times = []
    with tempfile.TemporaryFile() as file:
        for _ in range(50):
            began = time.perf_counter()
            os.write(file.fileno(), b"x" * 4096)
            os.fsync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    with suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() or "unknown"
    return "unknown"


def _processor() -> str:
    with suppress(OSError):
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1].strip()
    return platform.machine()


def _java() -> str:
    try:
        return str(find_java().version)
    except JavaError:
        return "none"
