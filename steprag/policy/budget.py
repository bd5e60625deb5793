"""What a run may spend, and what it has spent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import Field

from steprag.config.sections import PolicyConfig, Positive, PriceConfig, Section
from steprag.errors import BudgetReached, ConfigError
from steprag.types import Usage


class BudgetConfig(Section):
    """What a run may use, each key None for no limit; `Spending` holds a run to it."""

    usd: float | None = Field(default=None, gt=0, description="dollars a run may cost, at policy.price and judge.price")
    tokens: Positive | None = Field(default=None, description="prompt and completion tokens a run may use")
    calls: Positive | None = Field(
        default=None, description="requests a run may make, exactly; earlier parts of it included"
    )
    minutes: float | None = Field(
        default=None, gt=0, description="minutes until this process stops; start it again to go on"
    )

    def share(self, place: int, processes: int) -> BudgetConfig:
        """The share of process `place`, from 0: all shares add up to this. Minutes are everyone's.

        A share is 0 only where there are fewer calls or tokens than processes.
        """
        parts: dict[str, float] = {"usd": self.usd / processes} if self.usd else {}
        for key in ("tokens", "calls"):
            if whole := getattr(self, key):
                parts[key] = whole // processes + (place < whole % processes)
        return self.model_copy(update=parts)


def dollars(usage: Usage, price: PriceConfig) -> float:
    """What a use of tokens costs; cached prompt tokens have their own price."""
    fresh, prompt, completion = usage.prompt_tokens - usage.cached_tokens, price.prompt or 0, price.completion or 0
    cached = prompt if price.cached is None else price.cached
    return (fresh * prompt + usage.cached_tokens * cached + usage.completion_tokens * completion) / 1e6


def prices_of(policy: PolicyConfig, judge: PolicyConfig | None = None) -> dict[str, PriceConfig]:
    """Prices by role in the journal. A judge without a price has the policy's, where the same endpoint gives the same
    model.
    """
    prices = {"policy": policy.cost, "score": policy.cost}
    if judge is None:
        return prices
    same = all(getattr(policy, key) == getattr(judge, key) for key in ("engine", "model", "base_url"))
    return {**prices, "judge": policy.cost if same and not judge.price.known else judge.cost}


class Spending:
    """Counts a run's use against its budget. `prices` by role ("policy", "judge"). `unpriced`: a role was used whose
    price is not known, so nobody knows the dollars.

    Calls hold exactly: those in flight count, and so do those that were in flight when an earlier part was killed.
    Tokens and dollars are known when a reply is there, so the requests in flight then may go beyond those limits.
    """

    def __init__(self, budget: BudgetConfig | None = None, prices: Mapping[str, PriceConfig] | None = None) -> None:
        self._budget, self.prices = budget or BudgetConfig(), prices or {}
        self.usage, self.usd, self._start = Usage(), 0.0, time.monotonic()
        self.in_flight = self.lost = 0
        self.unpriced = False
        if self._budget.usd is not None:
            self._check_prices()

    def _check_prices(self) -> None:
        """Raises ConfigError where a role has no price, or none costs anything: dollars could not be counted."""
        lacking = [role for role, price in self.prices.items() if not price.known]
        if not lacking and any(price.prompt or price.completion for price in self.prices.values()):
            return
        section = next((role for role in lacking or self.prices if role in ("policy", "judge")), "policy")
        raise ConfigError(
            f"budget.usd is set but no price: give {section}.price.prompt and {section}.price.completion"
            + (" (0 where it costs nothing)" if lacking else "")
        )

    def add(self, role: str, usage: Usage) -> None:
        """Counts what a reply cost. Where the role's price is not known, its calls and tokens count."""
        price = self.prices.get(role, PriceConfig())
        self.usage += usage
        self.usd += dollars(usage, price)
        self.unpriced |= not price.known

    @property
    def dollars(self) -> float | None:
        """What it cost; None where a price is missing."""
        return None if self.unpriced else self.usd

    def summary(self) -> dict[str, float | None]:
        """Calls, tokens and dollars of a run for its manifest, failed questions included; `usd` is None where a role
        has no price.
        """
        return {**vars(self.usage), "usd": None if self.unpriced else round(self.usd, 6)}

    @contextmanager
    def request(self) -> Iterator[None]:
        """The block in which one request is made. Raises BudgetReached, before it begins, where none is allowed."""
        self.check()
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def check(self) -> None:
        """Raises BudgetReached where a further request is not allowed."""
        spent = {
            "usd": self.usd,
            "tokens": self.usage.prompt_tokens + self.usage.completion_tokens,
            "calls": self.usage.calls + self.in_flight + self.lost,
            "minutes": (time.monotonic() - self._start) / 60,
        }
        for name, limit in self._budget.model_dump().items():
            if limit is not None and spent[name] >= limit:
                raise BudgetReached(f"budget.{name} = {limit} is reached; raise it and run the same command to go on")
