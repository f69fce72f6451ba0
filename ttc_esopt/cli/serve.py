"""`serve`: a model that learns from scores, for any framework that speaks OpenAI's interface or EoH's."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import typer

from ttc_esopt.cli.exec import MEASURING, NOT_FOR_HOSTS
from ttc_esopt.cli.options import given_settings, with_settings
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.settings import FIELDS

NOT_FOR_SERVE = ({*NOT_FOR_HOSTS, *MEASURING} - {"directions"}) | {
    "prefill", "es_operators", "common_parent", "memory_mb",
}  # fmt: skip

SERVE_HELP = """Serve a model that moves while it answers: OpenAI's interface, EoH's local one, and a route for scores.

Every request is answered under a direction of its own. Whoever asked tells the score, by the id in the reply's header
X-Esopt-Id or by the program: POST /es/tell {"id": 3, "objective": 6.2} (minimised; null: invalid), or {"code": "def
...", "reward": 0.4} (maximised). When all directions of a batch have their scores, the model takes a step. GET
/es/state says where it stands. Without --esopt the model stays frozen: the matched baseline.

Examples:

  ttc-esopt serve --model smollm2-135m --esopt --out served

  ttc-esopt serve --model ./my-model --esopt --steps 100 --directions 8 --es-match "modified version" --out served

  TTC_ESOPT_TOKEN=$(openssl rand -hex 16) ttc-esopt serve --model smollm2-135m --esopt --host 0.0.0.0 --out served
"""


def _serve(
    out: Path, config: Path | None, esopt: bool, token: str | None, reply_start: str, dry_run: bool, go_on: bool,
    **values: Any,
) -> None:  # fmt: skip
    from ttc_esopt.attached.options import host_options
    from ttc_esopt.attached.serve import serve

    own = {name: values.pop(name) for name in ("host", "port", "steps", "batch_timeout", "queue", "es_match",
                                               "function")}  # fmt: skip
    if str(out) == "." or out.resolve() == Path.cwd():
        raise ConfigurationError("Expected a folder of its own for the results, got the current one (--out).")
    given = {"model": FIELDS["model"].default} | given_settings(config, esopt, values, typer.echo)
    ours = own["function"] or reply_start
    given, options = host_options(given, parser="ours" if ours else "host")
    serve(
        given, options, out=out, token=token or os.environ.get("TTC_ESOPT_TOKEN") or None,
        reply_start=reply_start.replace("\\n", "\n"), dry_run=dry_run, go_on=go_on,
        command=re.sub(r"(--token[= ])\S+", r"\1...", "ttc-esopt " + shlex.join(sys.argv[1:])), say=typer.echo, **own,
    )  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command."""
    fixed = [
        ("out", Path, typer.Option(..., help="folder for the results (new, or with --continue)")),
        ("config", Path | None, typer.Option(None, help="TOML file with settings (flags win)")),
        ("esopt", bool, typer.Option(False, "--esopt", help="the method itself: --arm esopt")),
        ("steps", int, typer.Option(50, help="ES steps (T): sigma falls over them")),
        ("batch_timeout", float, typer.Option(600.0, help="seconds after which a batch is closed without the missing "
                                              "scores (0: never)")),
        ("host", str, typer.Option("127.0.0.1", help="address to listen on; any but the loopback needs a token")),
        ("port", int, typer.Option(8000, min=0, max=65535, help="port to listen on (0: any free one)")),
        ("token", str | None, typer.Option(None, help="what clients must send as their API key; others on this machine "
                                           "see the command line, so better TTC_ESOPT_TOKEN", show_default=False)),
        ("queue", int, typer.Option(128, help="requests for replies at the same time; more get status 503")),
        ("es_match", str | None, typer.Option(None, metavar="REGEX", help="only requests whose prompt matches get "
                                              "directions [default: all]", show_default=False)),
        ("function", str | None, typer.Option(None, metavar="NAME", help="replies without a program that defines it "
                                              "are invalid at once [default: nobody looks]", show_default=False)),
        ("reply_start", str, typer.Option("", metavar="TEXT", help="begin every reply with this (\\n: a new line), and "
                                          "end it with the program; for small models", show_default=False)),
        ("go_on", bool, typer.Option(False, "--continue", help="go on with the run in --out")),
        ("dry_run", bool, typer.Option(False, "--dry-run", help="print what would be spent, and stop")),
    ]  # fmt: skip
    app.command("serve")(with_settings(_serve, SERVE_HELP, fixed, without=NOT_FOR_SERVE))
