"""Settings of the server's work, and of how a model is chosen and measured."""

from typing import Literal

from fedmlh.config.section import option, section


@section("server", "How the server turns the updates of a round into the next model.", training="rounds")
class Server:
    """The step from one global model to the next."""

    aggregation: str = option(
        "mean",
        "Rule that combines the updates of a round into one change: mean, or one of your own.",
        part="aggregation",
    )
    max_share: float = option(
        0.0,
        "With weighting examples, largest share of one client in the average of a round; 0 means twice the share of "
        "an average client.",
        at_least=0,
        at_most=1,
    )
    clip: Literal["auto", "off"] = option(
        "auto",
        "What happens to an update whose norm is much larger than those of earlier updates: auto scales it down to a "
        "bound that follows from them, off leaves it as it is.",
    )
    server_optimizer: str = option(
        "average",
        "What the server does with the average change: average (adds it), momentum, adam, yogi, adagrad (step sizes by "
        "earlier changes) or fedexp (longer steps where updates disagree).",
        part="server optimizer",
        for_others=True,
    )
    server_learning_rate: float = option(
        1.0,
        "Factor of the server's step; 1 adds the whole change; usual values are 0.03 to 0.3 with adam and yogi, 0.3 to "
        "1 with adagrad.",
        at_least=0,
        at_most=1e6,
        for_others=True,
    )
    server_momentum: float = option(
        0.9,
        "For momentum, adam, yogi and adagrad, share of earlier changes that is kept in each round; larger values "
        "remember longer (β1).",
        at_least=0,
        at_most=1,
    )
    server_beta2: float = option(
        0.99,
        "For adam and yogi, the same share for squared changes, by which steps are divided (β2).",
        at_least=0,
        at_most=1,
    )
    server_tau: float = option(
        1e-3,
        "For adam, yogi, adagrad and fedexp, number added to the denominator of a step; larger values make smaller and "
        "more even steps (τ).",
        at_least=0,
        at_most=1e6,
    )
    model_average: float = option(
        0.0,
        "Share of the earlier average that is kept in each round, if models are averaged over rounds before they are "
        "evaluated and exported; 0 means no average, only the last model.",
        at_least=0,
        at_most=0.999,
    )


@section("linear", "How the server computes the linear model of one round.", training="one-round")
class Linear:
    """The linear model that follows from the sums."""

    ridge: float = option(
        0.0,
        "Strength of the ridge penalty, which keeps weights small (λ); 0 means one that is chosen on validation, or "
        "on held-out sums if there are no validation points.",
        at_least=0,
        at_most=1e9,
    )
    count_power: float = option(
        -1.0,
        "Power of a label's count by which its scores are divided, from 0 (not at all) to 1 (rare labels gain most) "
        "(γ); -1 means one that is chosen on validation, or 0.05 if there are no validation points.",
        at_least=-1,
        at_most=1,
    )
    model_mib: float = option(
        64.0,
        "Largest linear model to keep, in MiB; a smaller limit drops small weights.",
        at_least=0.01,
        at_most=2**20,
    )


@section(
    "validation", "How the best round is chosen, or in one round the ridge λ.", agreed="one-round", common="always"
)
class Validation:
    """Held-out points."""

    validation_fraction: float = option(
        0.1,
        "Share of the training points that is held out before clients get theirs; 0, allowed for one-round only, "
        "makes clients hold out points instead.",
        at_least=0,
        at_most=0.9,
    )
    selection: Literal["validation", "paper"] = option(
        "validation",
        "What the best round is chosen on: validation (held-out points), or paper (the TEST points, with nothing held "
        "out; for reproduction only).",
        simulation_only=True,
        implied=True,  # in one round it has one value
        common="never",
    )


@section("evaluation", "How labels are ranked, and how rankings are measured.", common="always")
class Evaluation:
    """Prediction and metrics."""

    decoding: Literal["log-probs", "logits", "probs"] = option(
        "log-probs",
        "What is averaged over the tables to score a label: log-probs (log-likelihoods, as in the paper's text), "
        "logits (as in its code) or probs (probabilities).",
        training="rounds",
        common="never",
    )
    top_k: tuple[int, ...] = option(
        (1, 3, 5),
        "Numbers of labels at which metrics are measured, such as P@1 (k).",
        at_least=1,
        at_most=1000,
        count=100,
    )
    metrics: tuple[str, ...] = option(
        (),
        "Names of your own metrics that are measured as well; at real sites, those that add up over sites.",
        part="metric",
        count=100,
    )
    frequent_threshold: float = option(
        0.01,
        "Share of the training points that must carry a label for it to count as frequent, in metrics and in partition "
        "paper-text.",
        at_least=0,
        at_most=1,
    )
    propensity_a: float = option(
        0.55,
        "First constant of the propensity model, which gives rare labels more weight in PSP (A).",
        at_least=0,
        at_most=10,
    )
    propensity_b: float = option(1.5, "Second constant of the propensity model (B).", at_least=1e-3, at_most=1e6)
