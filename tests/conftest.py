"""`--model` also runs the tests that need the real small model (fetched once from a PyPI wheel)."""

import os

import pytest


def pytest_addoption(parser):
    parser.addoption("--model", action="store_true", help="also run the tests with the real small model")


def pytest_collection_modifyitems(config, items):
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
