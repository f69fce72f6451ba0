"""Runs a user's script as `python script.py` would, with the host that it imports attached to our engine.

`ttc-esopt exec` starts this file by its path, in the script's own interpreter. That one need not have this package
installed: where it is missing, it is made importable from the folders that the environment names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import sys


def _make_importable(packages: dict[str, str]) -> None:
    """Load the named packages from their folders, if this interpreter does not have them."""
    found = importlib.util.find_spec("ttc_esopt")
    if found is not None and found.origin is not None:  # a mere folder of that name beside the script is none
        return
    for name, folder in packages.items():
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def main() -> int:
    """Run the script; the exit status."""
    if sys.version_info < (3, 10):  # noqa: UP036  it may be another interpreter than ours
        version = ".".join(map(str, sys.version_info[:3]))
        print(f"ttc-esopt: Expected an interpreter of Python 3.10 or later, got {version} (--python).", file=sys.stderr)
        return 2
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # not so where PYTHONSAFEPATH is set
        del sys.path[0]
    _make_importable(json.loads(os.environ.get("TTC_ESOPT_PACKAGES", "{}")))
    os.environ.pop("TTC_ESOPT_PACKAGES", None)
    from ttc_esopt.scaffolds.hosts.attachment import SUPPORTED, Attachment
    from ttc_esopt.scaffolds.hosts.client import Client, HostError, Stopped
    from ttc_esopt.scaffolds.hosts.known import HOOKS

    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))  # now, so that no file beside it stands in for ours
    try:
        client = Client.from_environment()
        attachment = Attachment(client, HOOKS)
        attachment.begin()
        runpy.run_path(script, run_name="__main__")
        if not attachment.hosts:
            raise HostError(f"{script} ended without a run that we can attach to. {SUPPORTED}")
        if not client.announced:
            print(f"ttc-esopt: note: {script} began no run of {', '.join(attachment.hosts)}.", file=sys.stderr)
    except HostError as error:
        if str(error):
            print(f"ttc-esopt: {error}", file=sys.stderr)
        return error.exit_code
    except Stopped as stopped:
        print(f"ttc-esopt: {stopped}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
