"""What a run may spend, and what it has spent."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from pydantic import Field

from steprag.config.sections import PolicyConfig, Positive, PriceConfig, Section
from steprag.errors import BudgetReached, ConfigError, counted
from steprag.types import NANO, Usage


class BudgetConfig(Section):
    """What a run may use, each key None for no limit; `Spending` holds a run to it."""

    usd: float | None = Field(default=None, gt=0, description="dollars a run may cost, at policy.price and judge.price")
    tokens: Positive | None = Field(default=None, description="prompt and completion tokens a run may use")
    calls: Positive | None = Field(
        default=None, description="exact maximum of requests in a run, its earlier parts included"
    )
    minutes: float | None = Field(
        default=None, gt=0, description="minutes until this process stops; start it again to continue"
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
    price is not known, and whose endpoint does not say what it charges: nobody knows the dollars. `paid`: the questions
    that calls were paid for; `ended`: how many have an outcome, also from earlier starts.

    No limit of calls, tokens or dollars is passed: a request in flight counts with the most that it may take. Calls
    that were in flight when an earlier part was killed count too.
    """

    def __init__(self, budget: BudgetConfig | None = None, prices: Mapping[str, PriceConfig] | None = None) -> None:
        budget, self.prices = budget or BudgetConfig(), prices or {}
        self._limits: dict[str, float] = budget.model_dump(exclude_none=True)
        self.usage, self.usd, self._start = Usage(), 0.0, time.monotonic()
        self.in_flight = self.lost = self.ended = self._begun = 0
        self._promised: dict[str, float] = {"usd": 0, "tokens": 0}
        self.unpriced = self.guessed = False
        self.paid: set[str] = set()
        self._minutes = 0.0
        self._timed = 0
        self._reached, self._moved, self._door = "", asyncio.Event(), asyncio.Lock()
        if budget.usd is not None:
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

    def add(self, role: str, usage: Usage, question: str = "") -> None:
        """Counts what a reply cost: by the role's price, or else by what the endpoint says it charged."""
        price = self.prices.get(role, PriceConfig())
        self.usage += usage
        self.usd += dollars(usage, price) if price.known else (usage.charged or 0) / NANO
        self.unpriced |= not price.known and usage.charged is None
        self.guessed |= price.known and bool(usage.estimated)
        self.paid.add(question)

    @property
    def bill(self) -> str:
        """All calls, tokens and dollars, in words."""
        used, about = self.usage, "about " * bool(self.usage.estimated)
        cost = f", {'about ' * self.guessed}${self.usd:,.2f}" if self.usd and not self.unpriced else ""
        tokens = f"{used.prompt_tokens:,} prompt and {used.completion_tokens:,} completion tokens"
        return f"{counted(used.calls, 'call')}, {about}{tokens}{cost}"

    @property
    def dollars(self) -> float | None:
        """What it cost; None if a price is missing, or if tokens that cost something had to be estimated."""
        return None if self.unpriced or (self.guessed and self.usd) else self.usd

    def summary(self) -> dict[str, float | None]:
        """Calls, tokens and dollars of a run for its manifest, failed questions included. `usd` is None if it is not
        known; `usd_estimated` stands beside it if only tokens had to be estimated.
        """
        guess = {"usd_estimated": round(self.usd, 6)} if self.guessed and self.usd and not self.unpriced else {}
        return {**self.usage.shown, "usd": None if self.dollars is None else round(self.dollars, 6), **guess}

    def moved(self) -> None:
        """Has all who wait look again at what is spent."""
        self._moved.set()
        self._moved = asyncio.Event()

    @asynccontextmanager
    async def question(self, most: int) -> AsyncIterator[None]:
        """The block in which one question is worked off, which takes `most` calls or fewer. Waits where those that are
        begun are likely to need what is left. Raises BudgetReached where what is left would not finish it, and once
        another question came to a limit.
        """
        async with self._door:  # one after the other, so that they begin in order
            why = "what is left would not finish another question"
            await self._room(lambda: self._needs(most), lambda: self._begun, why)
            if self._reached:
                raise BudgetReached(self._reached)
            self._begun, began = self._begun + 1, time.monotonic()
        try:
            yield
            self.ended += 1
            self._minutes += (time.monotonic() - began) / 60
            self._timed += 1
        except BudgetReached as reached:
            self._reached = self._reached or str(reached)
            raise
        finally:
            self._begun -= 1
            self.moved()

    def _needs(self, most: int) -> dict[str, float]:
        """What the begun questions and one more are likely to need of each limit: the mean for each, and a standard
        error of so many.

        The mean divides what all have spent by how many have ended: without the begun ones it would be that of the
        quick ones, which end first. Beside begun ones it has one question of `most` calls more, so that few are begun
        until some have ended. Of minutes all need the same ones.
        """
        spent, beside = self._spent(), self._begun
        if beside and not spent["calls"]:
            return dict.fromkeys(spent, math.inf)  # the first call will tell what one takes
        more, ended = (most / spent["calls"], self.ended + 1) if beside else (0.0, self.ended)
        times = (1 + more) * (beside + 1 + math.sqrt(beside)) / ended if ended else 0.0
        needs = {name: max(1e-9, each * times) for name, each in spent.items()}
        return {**needs, "minutes": self._minutes / max(1, self._timed)}

    @asynccontextmanager
    async def request(self, role: str, most: Usage) -> AsyncIterator[None]:
        """The block in which one request is made, which takes `most` or less. Waits while those in flight may take what
        it needs. Raises BudgetReached, before it begins, where less is left.
        """
        usd, tokens = dollars(most, self.prices.get(role, PriceConfig())), most.prompt_tokens + most.completion_tokens
        needs = {"usd": usd, "tokens": tokens, "calls": 1, "minutes": 0}
        await self._room(lambda: needs, lambda: self.in_flight, "what is left is too little for another call")
        self.in_flight += 1
        self._promised = {key: each + needs[key] for key, each in self._promised.items()}
        try:
            yield
        finally:
            self.in_flight -= 1
            self._promised = {key: each - needs[key] for key, each in self._promised.items()}
            self.moved()

    async def _room(self, needs: Callable[[], Mapping[str, float]], busy: Callable[[], int], why: str) -> None:
        """Waits until the limits leave what is needed. Raises BudgetReached where they do not and nothing is `busy`."""
        while self._limits:
            spent, needed = self._spent(), needs()
            short = next((name for name, limit in self._limits.items() if spent[name] + needed[name] > limit), None)
            if short is None:
                return
            if not busy():
                raise self._error(short, f" ({why})")
            await self._moved.wait()

    def check(self) -> None:
        """Raises BudgetReached where a further request is not allowed, whatever it takes."""
        for name, limit in self._limits.items():
            if self._spent()[name] >= limit:
                raise self._error(name)

    def _error(self, name: str, why: str = "") -> BudgetReached:
        limit = self._limits[name]
        return BudgetReached(f"budget.{name} = {limit} is reached{why}; raise it and run the same command to continue")

    def _spent(self) -> dict[str, float]:
        """What is spent by limit, requests in flight with the most that they may take."""
        return {
            "usd": self.usd + self._promised["usd"],
            "tokens": self.usage.prompt_tokens + self.usage.completion_tokens + self._promised["tokens"],
            "calls": self.usage.calls + self.in_flight + self.lost,
            "minutes": (time.monotonic() - self._start) / 60,
        }
