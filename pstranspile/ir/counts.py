"""Counts of things in messages."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 trainer`, `2 trainers`, `12,000 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def cluster_of(trainers: int, servers: int, joined: str = ", ") -> str:
    """`2 trainers, 1 server`; a cluster without servers has its trainers alone."""
    return joined.join([counted(trainers, "trainer"), *([counted(servers, "server")] if servers else [])])
