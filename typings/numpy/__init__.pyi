"""numpy to the type checker: everything in it is Any, as its own types say too little of dims and element types."""

from typing import Any

def __getattr__(name: str) -> Any: ...
