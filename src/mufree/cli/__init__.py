"""The command line: one module a command, each with ``HELP``, ``add_arguments`` and ``run``.

Exit status: 0 done, 1 a check did not pass, 2 refused (the reasons on stderr), 3 another rank was lost, 130 stopped by
Ctrl-C after saving, as shells have it for every signal: 128 + its number.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from ..errors import NonFiniteLoss, Refused, missing_package
from .parser import Parser

COMMANDS = ("plan", "pretrain", "lora", "transfer", "coord-check", "export")


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal gets ? for μ, not a traceback
    parser = _parser(arguments)
    options = parser.parse_args(arguments)
    options.arguments = tuple(arguments)
    try:
        return int(options.start(options))
    except Refused as refused:
        print(f"mufree {options.command}: refused", file=sys.stderr)
        for reason in refused.reasons:
            print(f"  {reason}", file=sys.stderr)
        sections = sorted({reason.section for reason in refused.reasons if reason.section})
        if sections:
            named = " and ".join(f'"{section}"' for section in sections)
            print(f"see {named} in the README", file=sys.stderr)
        return 2
    except ImportError as error:
        missing = missing_package(error)
        if missing is None:
            raise
        print(f"mufree {options.command}: {missing}", file=sys.stderr)
        return 2
    except NonFiniteLoss as error:
        print(f"mufree {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        said = str(stopped) or "ended at once; what was saved before is whole"
        print(f"mufree {options.command}: {said}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Nobody reads any more: say nothing, now or when Python flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"mufree {options.command}: {error.strerror or error}: {error.filename or ''}", file=sys.stderr)
        return 1


def _parser(arguments: Sequence[str]) -> Parser:
    """The parser, with the options of the command that is asked for; the other commands are not even imported."""
    parser = Parser(
        prog="mufree",
        description="Tune a learning rate on a small model, train a wide one, stop whenever you like.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    asked = next((word for word in arguments if word in COMMANDS), None)
    for name in COMMANDS:
        module = import_module(f"{__name__}.{name.replace('-', '_')}")
        command = commands.add_parser(name, help=module.HELP, description=module.HELP, allow_abbrev=False)
        if name == asked:
            module.add_arguments(command)
        command.set_defaults(start=module.run)
    parser.check_command(arguments, COMMANDS)
    return parser


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"mufree {version('mufree')}"
    except PackageNotFoundError:
        return "mufree (not installed)"
