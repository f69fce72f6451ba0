"""The findings of a probe as tables and lines for people."""

from __future__ import annotations

from collections.abc import Sequence

from ttc_esopt.probe.findings import LEAST_VALID, Findings, Rung
from ttc_esopt.probe.signal import Advice, step_snr
from ttc_esopt.statistics import Anova

HEADS = (
    "sigma", "valid [90 %]", "new", "KL", "safe", "valid: ICC [95 %]", "p", "reward", "between", "chance",
    "ICC [95 %]", "p", "Holm", "SNR",
)  # fmt: skip


def rows(found: Findings) -> list[tuple[str, ...]]:
    """A head, and a row for each sigma."""
    return [HEADS, *(_row(rung) for rung in found.rungs)]


def _row(one: Rung) -> tuple[str, ...]:
    snr = None if one.reward.icc is None or one.sigma == 0 else step_snr(one.reward.icc, one.reward.groups, 1)
    return (
        f"{one.sigma:g}", f"{one.valid:.2f} [{one.valid_low:.2f}, {one.valid_high:.2f}]", f"{one.new:.2f}",
        _short(one.divergence), ("yes" if one.safe else "no") if one.sigma else "control",
        _icc(one.validity), _p(one.validity.p), f"{one.reward.mean:.3f}", f"{one.reward.variance_of_means:.4f}",
        f"{one.reward.chance_variance:.4f}", _icc(one.reward), _p(one.reward.p), _p(one.p_holm),
        "–" if snr is None else f"{snr:.2f}",
    )  # fmt: skip


def lines(found: Findings) -> list[str]:
    """What stands under the table; the verdict last."""
    k = found.rungs[0].reward.size
    g = found.rungs[0].reward.groups
    text = [
        f"between: variance of the {g} directions' mean rewards; chance: what replies of one direction ({k} each) make "
        "of it; ICC: share of a reply's variance that belongs to its direction; the reward's p decides, Holm's is over "
        "all sigmas",
        f"SNR: signal-to-noise of an ES step of {g} directions with one reply each, if all of the difference between "
        "directions is first order",
        f"safe: the valid share is at least {LEAST_VALID:g} of that at sigma 0 with 95 % confidence, and KL to the "
        f"unperturbed model is at most {found.max_kl:g} nats per token (--max-kl)",
    ]
    for one in found.rungs:
        if one.unsafe:
            text.append(f"sigma {one.sigma:g} is not safe: {'; '.join(one.unsafe)}")
    if found.advice:
        text += _advice(found, found.advice)
    text += [f"note: {note}" for note in found.notes]
    return [*text, found.verdict]


def _advice(found: Findings, a: Advice) -> list[str]:
    from_loss = f"what random steps are expected to lose ({a.loss:.3g} a step)"
    set_by = from_loss if a.alpha_from == "loss" else f"the walk of {a.steps} steps, which shall not pass sigma"
    text = [
        f"cheapest: sigma {a.sigma:g}, {a.directions} directions x {a.replies} replies = {a.directions * a.replies} a "
        f"step, signal-to-noise {a.snr:.2f} ({a.uphill:.0%} of steps go uphill)",
        f"one step with alpha {a.alpha:g}: expected gain in mean reward at most {a.gain:.4f} ± {a.deviation:.4f} from "
        f"step to step [{a.gain_low:.4f}, {a.gain_high:.4f}] by the interval of the ICC, less {a.loss:.4f} for its "
        f"random part; alpha is set by {set_by}",
    ]
    low = "no number of directions" if found.cautious is None else f"{found.cautious} directions"
    text.append(f"were the ICC at the lower end of its interval, it would take {low} x {a.replies}")
    if found.alternatives:
        listed = ", ".join(f"{one.directions} x {one.replies}" for one in found.alternatives)
        text.append(f"as much signal with more replies per direction: {listed}")
    if found.moving:
        text.append(
            f"a step of {a.directions} directions can hold at most {a.directions / found.moving:.1e} of the squared "
            f"gradient over the {found.moving:,} weights that move"
        )
    return text


def advice_rows(found: Findings) -> list[tuple[str, ...]]:
    """A head, and a row for the suggestion and each alternative."""
    offers: Sequence[Advice] = [found.advice, *found.alternatives] if found.advice else []
    return [
        ("sigma", "directions", "replies each", "replies a step", "SNR", "uphill", "alpha", "gain", "± a step", "loss"),
        *(
            (
                f"{one.sigma:g}", str(one.directions), str(one.replies), str(one.directions * one.replies),
                f"{one.snr:.2f}", f"{one.uphill:.0%}", f"{one.alpha:g}", f"{one.gain:.4f}", f"{one.deviation:.4f}",
                f"{one.loss:.4f}",
            )
            for one in offers
        ),
    ]  # fmt: skip


def _icc(one: Anova) -> str:
    return "–" if one.icc is None else f"{one.icc:.2f} [{one.icc_low:.2f}, {one.icc_high:.2f}]"


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if value >= 1e-4 else f"{value:.1e}"


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
