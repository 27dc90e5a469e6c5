"""Starts the measuring child: from the first moment on, standard output belongs to its answers alone.

Native libraries print when they are loaded, too. So what they take for standard output is standard error before any
of them is.
"""

from __future__ import annotations

import importlib
import os


def main(module: str = "runtime.measuring.process.worker") -> None:
    """Answer commands, by the handlers of a module, until standard input ends."""
    os.environ["CI"] = "true"  # keeps `import openvino` from reporting home: measuring must not touch the network
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from runtime.measuring.process.worker import serve_child

    serve_child(answers, importlib.import_module(module).command_handlers())


if __name__ == "__main__":
    main()
