"""What noise a run's directions have, as one value and as the text that options and files hold."""

from dataclasses import dataclass

from ttc_esopt.errors import ConfigurationError

VALUES = ("normal", "rademacher")
_FORMS = "full or lowrank[:RANK], either with +rademacher behind it"


LARGEST_RANK = 1024


@dataclass(frozen=True)
class NoiseKind:
    """How directions perturb: `full` (every element its own value) or `lowrank` (2-D tensors, rank `rank`).

    Parameters
    ----------
    kind : "full" or "lowrank"
    rank : of low-rank noise, 1 .. 1024
    values : "normal", or "rademacher" (+1 and -1; of low-rank noise the factors hold them)

    Raises
    ------
    ConfigurationError
        If `kind` or `values` is unknown or `rank` is no integer in its range.
    """

    kind: str = "lowrank"
    rank: int = 1
    values: str = "normal"

    def __post_init__(self):
        if self.kind not in ("full", "lowrank"):
            raise ConfigurationError(f"Expected noise {_FORMS}, got {self.kind} (--noise).")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 1 <= self.rank <= LARGEST_RANK:
            raise ConfigurationError(
                f"Expected a noise rank in 1 .. {LARGEST_RANK}, got {self.rank} (--noise lowrank:RANK)."
            )
        if self.kind == "full" and self.rank != 1:
            raise ConfigurationError(f"Expected no rank for full noise, got {self.rank} (--noise).")
        if self.values not in VALUES:
            raise ConfigurationError(f"Expected noise values {' or '.join(VALUES)}, got {self.values} (--noise).")

    @classmethod
    def parse(cls, text: str) -> "NoiseKind":
        """Read `full`, `lowrank` or `lowrank:R`, with or without `+rademacher`; ConfigurationError for others."""
        shape, plus, values = text.strip().partition("+")
        kind, colon, rank = shape.partition(":")
        if (plus and values != "rademacher") or (
            colon and not (kind == "lowrank" and rank.isascii() and rank.isdigit())
        ):
            raise ConfigurationError(f"Expected noise {_FORMS}, got {text} (--noise).")
        return cls(kind, int(rank) if colon else 1, values or "normal")

    def __str__(self):
        shape = "full" if self.kind == "full" else f"lowrank:{self.rank}"
        return shape if self.values == "normal" else f"{shape}+{self.values}"
