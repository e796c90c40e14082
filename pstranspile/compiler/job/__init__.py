"""The job: what cluster a program is compiled for, and how its machines work together."""

from pstranspile.compiler.job.job import Job, JobError, job_warnings

__all__ = ["Job", "JobError", "job_warnings"]
