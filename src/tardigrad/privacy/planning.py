"""Plan a budget: two of epsilon, noise and steps are given, and the third is computed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from torch import Tensor

from tardigrad.core.bookkeeping import Buffer
from tardigrad.core.pace import Asynchronous
from tardigrad.core.plural import counted
from tardigrad.errors import ConfigError
from tardigrad.privacy.accounting import ByParticipation, BySampling, Mode, solve
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.noise import Noise
from tardigrad.privacy.settings import Participation
from tardigrad.privacy.tree import Tree

KINDS = ("blt", "tree", "independent")
DELTA = 1e-7
"""The default delta."""


@dataclass(frozen=True)
class Question:
    """The numbers that are given. Leave out one of epsilon, noise_multiplier and steps, or delta."""

    epsilon: float | None = None
    noise_multiplier: float | None = None
    steps: int | None = None
    delta: float | None = None
    """Default: 1e-7, unless it is the number to compute."""
    participations: int | None = None
    """Default: 1."""
    separation: int | None = None
    """Default: steps / participations."""
    noise: str | None = None
    """Default: blt."""
    honaker: bool | None = None
    """For tree noise. Default: True."""
    restart_every: int | None = None
    """For tree noise. Default: never."""
    sampling_rate: float | None = None
    """If given, the plan is for Poisson mode, which has neither participations nor a choice of noise."""
    by: str | None = None
    """In Poisson mode: rdp (the default) or pld."""
    adaptive_overhead: float | None = None
    """If given, the clip is adaptive and increases the noise of the deltas by this factor."""
    version_overhead: float | None = None
    """If given, versions are private and increase the noise of the deltas by this factor."""
    population: int | None = None
    """If given (with buffer_size), check that so many clients can make the steps within their limits."""
    buffer_size: int | None = None
    """If given, also compute the noise in the mean of so many uploads."""


@dataclass(frozen=True)
class PlanAnswer:
    """All the numbers of a plan. Lengths are in clips, for one coordinate."""

    worked_out: str
    """The name of the number that was computed."""
    epsilon: float
    delta: float
    noise_multiplier: float
    steps: int
    mode: str
    noise: str
    participations: int | None
    separation: int | None
    sampling_rate: float | None
    by: str | None
    sensitivity: float | None
    """Sensitivity of the whole run, for contributions of length 1; None in Poisson mode."""
    overhead: float
    """The factor by which an adaptive clip and private versions increase the noise."""
    prefix_noise: float
    """Standard deviation of the noise in a prefix sum of the steps, which is the noise in the model: the
    largest over all prefixes, including the overhead."""
    prefix_step: int
    """The last step of that prefix."""
    mean_prefix_noise: float | None
    """The same for means of buffers instead of sums; None if no buffer size was given."""
    memory: int
    """The number of vectors of the model's size that the noise keeps."""
    population: int | None
    """The number of clients, which is sufficient; None if it was not given."""
    buffer_size: int | None

    def summary(self) -> dict[str, object]:
        """Return all numbers by name, for JSON."""
        return asdict(self)


def answer(question: Question) -> PlanAnswer:
    """Compute the number that was left out, and everything that follows.

    >>> round(answer(Question(epsilon=2.0, steps=2048, noise="tree")).noise_multiplier, 3)
    8.484
    """
    q = question
    sought = _check(q)
    k, separation = q.participations or 1, q.separation
    if separation is None and k > 1:
        if q.steps is None:
            raise ConfigError("--separation: give it, because the number of steps is what is asked")
        separation = max(1, q.steps // k)
    b = separation or 1
    noise = _noise(q)
    mode: Mode = ByParticipation(noise, k, b)
    said = f"participation: at most {k}" + (f", {counted(b, 'step')} apart" if k > 1 else "")
    if q.sampling_rate is not None:
        mode = BySampling(q.sampling_rate, "pld" if q.by == "pld" else "rdp")
        said = f"Poisson sampling at rate {q.sampling_rate:g}, accounted by {mode.by}"
    delta = None if sought == "delta" else DELTA if q.delta is None else q.delta
    plan = solve(mode, epsilon=q.epsilon, delta=delta, noise_multiplier=q.noise_multiplier, steps=q.steps)
    if sought == "steps" and plan.steps >= mode.most_steps:
        raise ConfigError(
            f"--steps: this budget allows {mode.most_steps:,} steps and more, but no more can be planned for "
            f"with {noise.kind} noise; give --steps, and leave --noise-multiplier or --epsilon out"
        )
    fit = -(-plan.steps // b)
    if k > fit and q.sampling_rate is None:
        said += f", of which {counted(plan.steps, 'step')} have room for {fit}"
    if q.population is not None:
        _check_population(q, noise, plan.noise_multiplier, plan.steps, q.population)
    overhead = math.sqrt((q.adaptive_overhead or 1) ** 2 + (q.version_overhead or 1) ** 2 - 1)
    variance, step = _largest_prefix(noise, plan.steps, k, b)
    prefix = plan.noise_multiplier * overhead * math.sqrt(variance)
    sampled = q.sampling_rate is not None
    state = noise.start(1, plan.steps, k, b)
    return PlanAnswer(
        sought, plan.epsilon, plan.delta, plan.noise_multiplier, plan.steps, said, noise.kind,
        None if sampled else k, None if sampled else separation, q.sampling_rate,
        mode.by if isinstance(mode, BySampling) else None,
        None if sampled else noise.sensitivity(plan.steps, k, b), overhead, prefix, step,
        prefix / q.buffer_size if q.buffer_size else None,
        sum(value.numel() for value in state.values() if isinstance(value, Tensor)),
        q.population, q.buffer_size,
    )  # fmt: skip


def compared(question: Question) -> dict[str, PlanAnswer | ConfigError]:
    """Return the answer for every kind of noise, or the error for kinds that have none."""
    if question.noise is not None or question.sampling_rate is not None:
        option = "--noise" if question.noise is not None else "--sampling-rate"
        raise ConfigError(f"{option}: --compare compares the kinds of noise by participation; leave it out")
    _check(replace(question, noise="tree"))
    found: dict[str, PlanAnswer | ConfigError] = {}
    for kind in KINDS:
        own = replace(question, noise=kind)
        if kind != "tree":
            own = replace(own, honaker=None, restart_every=None)
        try:
            found[kind] = answer(own)
        except ConfigError as error:
            found[kind] = error
    problems = [one for one in found.values() if isinstance(one, ConfigError)]
    if len(problems) == len(found):
        raise problems[0]
    return found


def _check(q: Question) -> str:
    """Return the name of the number to compute; raise a ConfigError for wrong or unused options."""
    for name in ("epsilon", "noise_multiplier"):
        value = getattr(q, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{_option(name)} {value:g}: it must be above 0 and finite")
    for name in ("steps", "participations", "separation", "restart_every", "population", "buffer_size"):
        value = getattr(q, name)
        if value is not None and value < 1:
            raise ConfigError(f"{_option(name)} {value}: it must be at least 1")
    for name in ("adaptive_overhead", "version_overhead"):
        value = getattr(q, name)
        if value is not None and not 1 < value < math.inf:
            raise ConfigError(f"{_option(name)} {value:g}: it costs some noise, so it must be above 1")
    if q.delta is not None and not 0 < q.delta < 1:
        raise ConfigError(f"--delta {q.delta:g}: it must lie between 0 and 1, and well below 1 / clients")
    if q.sampling_rate is not None and not 0 < q.sampling_rate <= 1:
        raise ConfigError(f"--sampling-rate {q.sampling_rate:g}: it must be above 0 and at most 1")
    if q.noise is not None and q.noise not in KINDS:
        raise ConfigError(f"--noise {q.noise}: must be one of {', '.join(KINDS)}")
    if q.by not in (None, "rdp", "pld"):
        raise ConfigError(f"--by {q.by}: must be rdp or pld")
    _refuse_unused(q)
    sought = [name for name in ("epsilon", "noise_multiplier", "steps") if getattr(q, name) is None]
    if len(sought) > 1 or (not sought and q.delta is not None):
        given = f"{' and '.join(sought)} were left open" if sought else "all four were given"
        raise ConfigError(
            "give two of --epsilon, --noise-multiplier and --steps, and the third is worked out; "
            f"or all three without --delta ({given})"
        )
    return sought[0] if sought else "delta"


def _refuse_unused(q: Question) -> None:
    """Raise a ConfigError if an option is given that the plan does not use."""

    def refuse(names: tuple[str, ...], why: str) -> None:
        given = [_option(name) for name in names if getattr(q, name) is not None]
        if given:
            raise ConfigError(
                f"{' and '.join(given)}: {why}; leave {'it' if len(given) == 1 else 'them'} out"
            )

    tree = ("honaker", "restart_every")
    if q.sampling_rate is not None:
        limits = ("participations", "separation", "noise", *tree, "population")
        refuse(limits, "not used with --sampling-rate, where chance limits clients and noise is independent")
        return
    refuse(("by",), "not used without --sampling-rate, because accounting by participation is exact")
    if q.noise != "tree":
        refuse(tree, "not used without --noise tree")
    if q.buffer_size is None:
        refuse(("population",), "not used without --buffer-size, the uploads that make a step")


def _option(name: str) -> str:
    """Return the command-line option of a field."""
    return "--no-honaker" if name == "honaker" else f"--{name.replace('_', '-')}"


def _noise(q: Question) -> BLT | Tree | Independent:
    if q.sampling_rate is not None or q.noise == "independent":
        return Independent()
    if q.noise == "tree":
        return Tree(honaker=q.honaker is not False, restart_every=q.restart_every)
    return BLT()


def _check_population(
    q: Question, noise: BLT | Tree | Independent, multiplier: float, steps: int, population: int
) -> None:
    """Raise a ConfigError if so many clients cannot make the steps, by the check of a run before it
    begins."""
    settings = Participation(
        noise_multiplier=multiplier,
        noise=noise,
        participations=q.participations or 1,
        separation=q.separation,
    )
    settings.guarantee(steps, population, Asynchronous(), Buffer(size=q.buffer_size))


def _largest_prefix(noise: Noise, steps: int, k: int, b: int) -> tuple[float, int]:
    """Return the largest variance of the noise of a prefix, and the last step of that prefix."""
    prefixes = _tree_prefixes(steps, noise.restart_every) if isinstance(noise, Tree) else [steps]
    return max((noise.prefix_variance(t, steps, k, b), t) for t in prefixes)


def _tree_prefixes(steps: int, restart_every: int | None) -> Iterator[int]:
    """Yield prefixes of which one has the largest noise of all.

    Each set bit of t adds noise. So the largest noise is at the last step, or where one of its set bits is
    cleared and all lower bits are set; with restarts, at such a step of the last tree or of the last complete
    one.
    """
    length = restart_every or steps + 1
    whole, rest = divmod(steps, length)
    ends = [(whole, rest)] + ([(whole - 1, length - 1)] if whole else [])
    for trees, last in ends:
        yield trees * length + last
        for height in range(last.bit_length()):
            if last >> height & 1:
                yield trees * length + (last >> height ^ 1) * 2**height + 2**height - 1
