"""Golden files: recorded text that a test compares with, and `pytest --bless` rewrites."""

import difflib
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass
class Goldens:
    """Compares text with files below `root`; with `bless` rewrites them and remembers what changed."""

    root: Path
    bless: bool = False
    changed: list[str] = field(default_factory=list)

    def check(self, path: Path, text: str, test: str) -> None:
        """Fails with a unified diff, and the command that blesses, unless the file holds exactly `text`."""
        recorded = path.read_text(encoding="utf-8") if path.exists() else None
        if recorded == text:
            return
        name = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        if self.bless:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            self.changed.append(f"{name} ({'new' if recorded is None else 'changed'})")
            return
        pytest.fail(f"{difference(str(name), recorded, text)}\n{command(test)}", pytrace=False)

    def check_folder(self, folder: Path, files: dict[str, str], test: str) -> None:
        """As `check` for every file, and for files of the folder that are no longer made."""
        stale = sorted(p for p in folder.glob("*") if p.name not in files)
        problems: list[str] = []
        for name, text in files.items():
            try:
                self.check(folder / name, text, test)
            except pytest.fail.Exception as failure:
                problems.append(str(failure).removesuffix(command(test)).rstrip())
        for path in stale:
            if self.bless:
                path.unlink()
                self.changed.append(f"{path.relative_to(self.root)} (removed)")
            else:
                problems.append(f"{path.relative_to(self.root)} is recorded and no longer made")
        if problems:
            pytest.fail("\n".join([*problems, command(test)]), pytrace=False)


def difference(name: str, recorded: str | None, text: str) -> str:
    """A unified diff from the recorded text to the new one."""
    old = [] if recorded is None else recorded.splitlines()
    lines = difflib.unified_diff(old, text.splitlines(), name, f"{name} (now)", lineterm="")
    shown = "\n".join(lines)
    return shown or f"{name}: only line ends differ"


def command(test: str) -> str:
    """The command that blesses what a test checks."""
    return f"If the new text is right:\n  pytest --bless '{test}'"
