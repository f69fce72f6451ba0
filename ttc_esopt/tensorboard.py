"""`report --tensorboard`: the course of runs as TensorBoard event files.

Written by tensorboardX, an extra (`tensorboard`): it brings no server and no torch, which the tensorboard package
itself would. Steps are numbers of candidates for objectives and validity, and numbers of ES steps for what the history
holds; the wall time of an event is the seconds that the run had spent, so that TensorBoard's RELATIVE axis shows those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.report.anytime import spent, trajectory
from ttc_esopt.report.diagnostics import updates
from ttc_esopt.report.grid import is_study, read_grid
from ttc_esopt.report.page import labelled
from ttc_esopt.report.run_charts import moving_share, share_window
from ttc_esopt.rundata import RunData

Scalar = tuple[str, float, int, float]  # tag, value, step, seconds


def write_events(run_dirs: Sequence[Path], out: Path) -> Path:
    """Write a folder of event files for each run into `out`, and return `out`.

    Parameters
    ----------
    run_dirs : folders of runs, or one of a study
    out : a folder that holds no event files yet

    Raises
    ------
    ConfigurationError
        tensorboardX is not installed, a folder holds no run, or `out` holds event files or cannot be written.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ConfigurationError(
            "TensorBoard files need tensorboardX: pip install 'ttc-esopt[tensorboard]' (--tensorboard)."
        ) from None
    if not run_dirs:
        raise ConfigurationError("Expected at least one run folder to write event files of.")
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.rglob("events.out.tfevents.*"))):
        raise ConfigurationError(f"Expected a new folder or one without event files, got {out} (--tensorboard).")
    for name, run in _named(run_dirs):
        try:
            writer = SummaryWriter(str(out / name))
        except OSError as error:
            raise ConfigurationError(f"Cannot write {out}: {error.strerror or error} (--tensorboard).") from None
        with writer:
            write_run(writer, run)
    return out


def _named(run_dirs: Sequence[Path]) -> Iterator[tuple[str, RunData]]:
    if len(run_dirs) == 1 and is_study(run_dirs[0]):
        grid = read_grid(run_dirs[0])
        for cell, run in zip(grid.cells, grid.runs, strict=True):
            if run is not None:
                yield str(cell.folder.relative_to(grid.folder)), run
        return
    for run in labelled(run_dirs):
        yield run.label, run


def write_run(writer: Any, run: RunData) -> None:
    """Add scalars and histograms of a run to a SummaryWriter."""
    for tag, value, step, seconds in scalars(run):
        writer.add_scalar(tag, value, step, walltime=seconds)
    at = _seconds_of_steps(run)
    for one in updates(run.steps):
        if one.rewards and max(map(abs, one.rewards)) < 1e19:  # the buckets of a histogram end there
            writer.add_histogram("rewards/distribution", one.rewards, int(one.t), walltime=at.get(one.t, 0.0))


def scalars(run: RunData) -> Iterator[Scalar]:
    """Everything about a run that is one number at a time."""
    clock = spent(run, "seconds")
    clock = [0.0] * len(run.samples) if clock is None else clock.tolist()
    x, best = trajectory(run, "candidates")
    for place, value in zip(x, best, strict=True):
        yield "objective/best", float(value), int(place), clock[int(place) - 1]
    window = share_window(len(run.written))
    share = moving_share([line["objective"] is not None for line in run.written], window)
    places = {line["order"]: place for place, line in enumerate(run.samples)}
    for line, value in zip(run.written, share, strict=True):
        place = places[line["order"]]
        yield "candidates/valid share", float(value), place + 1, clock[place]
    at = _seconds_of_steps(run)
    for one in updates(run.steps):
        step, seconds = int(one.t), at.get(one.t, 0.0)
        values = {"es/sigma": one.sigma, "es/alpha": one.alpha, "es/expected update RMS": one.rms,
                  "es/expected distance RMS": one.distance}  # fmt: skip
        if one.rewards:
            values |= {
                "rewards/mean": sum(one.rewards) / len(one.rewards),
                "rewards/min": min(one.rewards),
                "rewards/max": max(one.rewards),
            }
        yield from ((tag, value, step, seconds) for tag, value in values.items() if value is not None)


def _seconds_of_steps(run: RunData) -> dict[float, float]:
    """Step -> seconds that the run had spent when the last candidate of its batch was there."""
    clock = spent(run, "seconds")
    if clock is None:
        return {}
    places = {line["order"]: place for place, line in enumerate(run.samples)}
    found = {}
    for one, step in zip(updates(run.steps), run.steps, strict=True):
        orders = step.get("orders")
        last = orders[-1] if isinstance(orders, list) and orders else None
        if isinstance(last, int) and last in places:
            found[one.t] = float(clock[places[last]])
    return found
