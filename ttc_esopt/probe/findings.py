"""From the lines of a probe to a verdict: per sigma whether it is safe and shows a signal, and what to run with.

Everything here is a pure function of the lines, the plan and three wishes (signal-to-noise, KL cap, budget).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ttc_esopt.candidates import key
from ttc_esopt.probe import MAX_KL, SNR
from ttc_esopt.probe.measure import context, rewarded
from ttc_esopt.probe.plan import Plan
from ttc_esopt.probe.signal import SHARES_OF_A_BATCH, Advice, advise, directions_needed, step_snr
from ttc_esopt.statistics import ALPHA, Anova, anova, bootstrap_icc, detectable_icc, holm, share_interval

LEVEL = 0.95  # of the intervals of intraclass correlations
ONE_SIDED = 0.90  # two-sided level of the interval of the valid share: its lower end is a bound with 95 %
LEAST_VALID = 0.5  # of the unperturbed valid share, at which a sigma is safe


@dataclass(frozen=True)
class Rung:
    """What one sigma showed.

    Attributes
    ----------
    sigma : float
    replies, tokens : int
    valid, valid_low, valid_high : float
        Share of valid replies and its 90 % interval, groups allowed for; the low end is a one-sided 95 % bound.
    new : float
        Share of replies that are valid and whose objective is none of the seed heuristics'.
    best : float or None
        Lowest objective.
    divergence, divergence_most : float or None
        KL to the unperturbed model, nats per token: mean and largest over the directions.
    validity, reward : Anova
        Of 0/1, and of the rewards that a run's rule gives to all replies of this sigma as one batch.
    bootstrap : (float, float) or (None, None)
        Interval of the reward's intraclass correlation by the bootstrap, a cross-check.
    p_holm : float or None
        Of the reward, over the sigmas above 0.
    change, change_error : float or None
        Mean reward less that at sigma 0, both rewarded together as one batch, and its standard error.
    unsafe : tuple of str
        Why the sigma is not safe; empty: it is.
    signal : bool
        Whether directions differ (p_holm below 0.05).
    """

    sigma: float
    replies: int
    tokens: int
    valid: float
    valid_low: float
    valid_high: float
    new: float
    best: float | None
    divergence: float | None
    divergence_most: float | None
    validity: Anova
    reward: Anova
    bootstrap: tuple[float | None, float | None]
    p_holm: float | None
    change: float | None
    change_error: float | None
    unsafe: tuple[str, ...]
    signal: bool

    @property
    def safe(self) -> bool:
        """Whether validity and KL allow this sigma."""
        return not self.unsafe


@dataclass(frozen=True)
class Findings:
    """The result of a probe.

    Attributes
    ----------
    rungs : tuple of Rung
        Sigma 0 first.
    snr, max_kl : float
        What was asked for.
    detectable : float
        Intraclass correlation that so many replies find in four of five probes.
    advice : Advice or None
        The cheapest settings that reach `snr`; None: no safe sigma shows a signal (or none reaches it).
    cautious : int or None
        Directions that the same sigma and K would need at the lower end of the interval; None: no number is enough.
    alternatives : tuple of Advice
        For other numbers of replies per direction, at the same sigma.
    moving : int or None
        Weights that move.
    verdict : str
        One sentence.
    notes : tuple of str
    """

    rungs: tuple[Rung, ...]
    snr: float
    max_kl: float
    detectable: float
    advice: Advice | None
    cautious: int | None
    alternatives: tuple[Advice, ...]
    moving: int | None
    verdict: str
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        found = asdict(self)
        for rung, plain in zip(self.rungs, found["rungs"], strict=True):
            plain["safe"] = rung.safe
            for name in ("validity", "reward"):
                one: Anova = getattr(rung, name)
                plain[name] |= {"variance_of_means": one.variance_of_means, "chance_variance": one.chance_variance}
            icc = rung.reward.icc
            plain["snr_of_one_reply_each"] = None if icc is None else step_snr(icc, rung.reward.groups, 1)
        return found


def conclude(
    plan: Plan, document: dict[str, Any], lines: Sequence[dict], snr: float = SNR, max_kl: float = MAX_KL
) -> Findings:
    """What the lines say."""
    n = plan.per_sigma
    batches = [lines[i * n : (i + 1) * n] for i in range(len(plan.sigmas))]
    known, worst = context(document)
    pairs = zip(plan.sigmas, batches, strict=True)
    drafts = [_rung(plan, sigma, batch, batches[0], known, worst) for sigma, batch in pairs]
    adjusted = holm([None, *(one["reward"].p for one in drafts[1:])])
    rungs = []
    for one, p in zip(drafts, adjusted, strict=True):
        unsafe = _unsafe(one, drafts[0]["valid"], max_kl)
        rungs.append(Rung(**one, p_holm=p, unsafe=unsafe, signal=p is not None and p < ALPHA))
    s = plan.settings
    usable = [one for one in rungs[1:] if one.safe and one.signal]
    offers = [(one, offer) for one in usable for offer in _offers(one, s.budget, s.shaping, snr)]
    rung, advice = min(
        offers, key=lambda pair: (pair[1].directions * pair[1].replies, -pair[1].directions, -pair[1].gain),
        default=(None, None),
    )  # fmt: skip
    moving = document["model"].get("moving_parameters")
    return Findings(
        rungs=tuple(rungs), snr=snr, max_kl=max_kl, detectable=detectable_icc(s.directions, s.replies_per_direction),
        advice=advice,
        cautious=directions_needed(rung.reward.icc_low, advice.replies, snr) if rung else None,
        alternatives=tuple(offer for one, offer in offers if one is rung and offer is not advice),
        moving=moving, verdict=_verdict(rungs, usable, advice, snr), notes=tuple(_notes(plan, rungs)),
    )  # fmt: skip


def _rung(
    plan: Plan, sigma: float, batch: Sequence[dict], control: Sequence[dict], known: set[float], worst: float | None
) -> dict[str, Any]:
    s = plan.settings
    shape = (s.directions, s.replies_per_direction)
    valid = np.array([line["objective"] is not None for line in batch], float).reshape(shape)
    rewards = np.array([line["reward"] for line in batch], float).reshape(shape)
    low, high = share_interval(valid, ONE_SIDED)
    objectives = [line["objective"] for line in batch if line["objective"] is not None]
    far = [line["divergence"] for line in batch if line["divergence"] is not None]
    change = error = None
    if sigma > 0:
        together = np.array(rewarded(s.reward, [*control, *batch], known, worst), float)
        before, after = anova(together[: len(control)].reshape(shape)), anova(together[len(control) :].reshape(shape))
        change = after.mean - before.mean
        error = math.hypot(before.mean_error, after.mean_error)
    return {
        "sigma": sigma, "replies": len(batch), "tokens": sum(line["tokens"] for line in batch),
        "valid": float(valid.mean()), "valid_low": low, "valid_high": high,
        "new": sum(key(one) not in known for one in objectives) / len(batch), "best": min(objectives, default=None),
        "divergence": sum(far) / len(far) if far else None, "divergence_most": max(far, default=None),
        "validity": anova(valid, LEVEL), "reward": anova(rewards, LEVEL), "bootstrap": bootstrap_icc(rewards, LEVEL),
        "change": change, "change_error": error,
    }  # fmt: skip


def _unsafe(rung: dict[str, Any], unperturbed: float, max_kl: float) -> tuple[str, ...]:
    why = []
    if rung["sigma"] > 0 and rung["valid_low"] < LEAST_VALID * unperturbed:
        why.append(f"valid may be {rung['valid_low']:.0%}, below half of {unperturbed:.0%}")
    if rung["divergence"] is not None and rung["divergence"] > max_kl:
        why.append(f"KL {rung['divergence']:.2g} above {max_kl:g}")
    return tuple(why)


def _offers(rung: Rung, budget: int, shaping: str, snr: float) -> list[Advice]:
    """For each number of replies per direction the fewest directions that reach the signal-to-noise."""
    found = []
    reward = rung.reward
    drop = max(0.0, -rung.change + rung.change_error)  # a rise, or less of a drop, would have to be shown first
    for replies in SHARES_OF_A_BATCH:
        directions = directions_needed(reward.icc, replies, snr)
        if directions is not None:
            found.append(
                advise(
                    sigma=rung.sigma, icc=reward.icc, interval=(reward.icc_low, reward.icc_high),
                    variance=reward.between + reward.within, drop=drop, directions=directions, replies=replies,
                    budget=budget, shaping=shaping,
                )  # fmt: skip
            )
    return found


def _verdict(rungs: Sequence[Rung], usable: Sequence[Rung], advice: Advice | None, snr: float) -> str:
    if advice is not None:
        return (
            f"--sigma {advice.sigma:g} --alpha {advice.alpha:g} --directions {advice.directions} "
            f"--replies-per-direction {advice.replies} is the cheapest step with a signal-to-noise of {snr:g} or more."
        )
    if usable:
        return f"No number of directions that can be thought of reaches a signal-to-noise of {snr:g} (--snr)."
    safe = [one for one in rungs[1:] if one.safe]
    if not safe:
        return "No sigma above 0 is safe for this model and prompt: try smaller ones (--sigmas)."
    most = max((one.reward.icc_high for one in safe if one.reward.icc_high is not None), default=None)
    at_most = "" if most is None else f"; no intraclass correlation above {most:.2f} is compatible with these replies"
    return f"This model, prompt and reward show no signal at any safe sigma{at_most}."


def _notes(plan: Plan, rungs: Sequence[Rung]) -> list[str]:
    found = []
    if rungs[0].valid == 0:
        found.append("the unperturbed model wrote no valid reply: no share can be halved, and validity says nothing")
    p = rungs[0].reward.p
    if p is not None and p < ALPHA:
        found.append(
            f"the control at sigma 0, where all directions are one model, has p = {p:.3f}: chance does that in one of "
            "twenty probes"
        )
    largest = rungs[-1]
    if largest.safe and not any(one.signal for one in rungs):
        found.append(f"the largest sigma, {largest.sigma:g}, is safe: larger ones may show a signal (--sigmas)")
    found.append(
        f"one prompt of operator {plan.operator}, the weights as they are now, first order only: another parent, or a "
        "model that has moved, has a signal of its own"
    )
    return found
