"""Prime factors of extents: what mappers place on levels."""

from __future__ import annotations

import functools


@functools.lru_cache(maxsize=4096)
def prime_factors(number: int) -> tuple[tuple[int, int], ...]:
    """Primes with their multiplicities, smallest first.

    >>> prime_factors(360), prime_factors(1)
    (((2, 3), (3, 2), (5, 1)), ())
    """
    primes: list[tuple[int, int]] = []
    divisor = 2
    while divisor * divisor <= number:
        count = 0
        while number % divisor == 0:
            number //= divisor
            count += 1
        if count:
            primes.append((divisor, count))
        divisor += 1 if divisor == 2 else 2
    if number > 1:
        primes.append((number, 1))
    return tuple(primes)


def divisors(number: int) -> list[int]:
    """All divisors, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    listed = [1]
    for prime, count in prime_factors(number):
        listed = [d * prime**n for d in listed for n in range(count + 1)]
    return sorted(listed)


_LARGE_PRIME = 7


def smooth(extent: int) -> int:
    """The next number all of whose primes are small.

    >>> smooth(56), smooth(197)
    (56, 200)
    """
    while extent > 1 and max(prime for prime, _ in prime_factors(extent)) > _LARGE_PRIME:
        extent += 1
    return extent


def useful_factors(extent: int, most: int) -> list[int]:
    """For every number of steps that an extent can take, the least spatial factor; the smallest first.

    >>> useful_factors(7, 5)  # 7, 4, 3 and 2 steps
    [1, 2, 3, 4]
    """
    factors, factor = [], 1
    while factor <= min(extent, most):
        factors.append(factor)
        steps = -(-extent // factor)
        if steps == 1:
            break
        factor = -(-extent // (steps - 1))
    return factors


@functools.lru_cache(maxsize=1 << 10)
def quotients(extent: int) -> tuple[int, ...]:
    """The least tile for each number of steps that an extent can be cut into.

    >>> quotients(10)
    (1, 2, 3, 4, 5, 10)
    """
    return tuple(sorted({-(-extent // steps) for steps in range(1, extent + 1)}))
