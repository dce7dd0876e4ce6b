"""The parser of the command line: a mistake is one line, with the name that was probably meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import nearest


class Parser(argparse.ArgumentParser):
    """Ends with status 2 and a line for each mistake, without the usage, which is long here."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with an argument that is known."""
        self._end([f"{message.removeprefix('argument ')}; see {self.prog} --help"])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse has it, but what is left over is a mistake of this very parser."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            flags = [word.partition("=")[0] for word in left if word.startswith("-")]
            self._end([self._unknown(flag) for flag in flags] or [self._unasked(left)])
        return found, left

    def check_command(self, arguments: Sequence[str], commands: Sequence[str]) -> None:
        """End with the help if there is no command, and with the one that was probably meant if there is no such.

        Args:
            arguments: All of them.
            commands: The names there are.
        """
        if not arguments:
            self.print_help(sys.stderr)
            self.exit(2)
        asked = next((word for word in arguments if not word.startswith("-")), None)
        if asked is not None and asked not in commands:
            near = nearest(asked, commands)
            hint = f"did you mean {near}? The" if near else "the"
            self._end([f"{asked} is no command; {hint} commands are: {', '.join(commands)}"])

    def _unknown(self, flag: str) -> str:
        known = {name.lstrip("-"): name for name in self._option_string_actions if name.startswith("--")}
        near = nearest(flag.lstrip("-"), known)
        hint = f"did you mean {known[near]}?" if near else f"see {self.prog} --help"
        return f"{flag} is no option; {hint}"

    def _unasked(self, left: Sequence[str]) -> str:
        return f"{' '.join(left)} belongs to no option; see {self.prog} --help"

    def _end(self, messages: Sequence[str]) -> NoReturn:
        self.exit(2, "".join(f"{self.prog}: {message}\n" for message in messages))
