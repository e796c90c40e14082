"""What is raised by Ray."""

class RayError(Exception): ...

class RayActorError(RayError):
    actor_init_failed: bool

class GetTimeoutError(RayError, TimeoutError): ...
