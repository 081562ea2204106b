"""The search finds what is good, repeats itself for a seed, and takes findings in any order."""

from __future__ import annotations

import random
from collections.abc import Hashable

from tests.support.form_spaces import ChainForm, ChainSpace

from tilewright.tuning.evolution import Evolution, EvolutionOptions, has_settled

SPACE = ChainSpace((4, 4, 4, 32))
BEST = ChainForm((4, 4, 4, 32), (False, False, True))


def worth(form: ChainForm) -> float:
    return SPACE.time_ns(form) / SPACE.time_ns(SPACE.initial())


def run(seed: int = 0, rounds: int = 30, *, shuffled: int | None = None) -> list[tuple[ChainForm, ...]]:
    """What is proposed in turn; findings are told in another order if it is shuffled."""
    evolution = Evolution(SPACE, seed)
    proposed = []
    for _ in range(rounds):
        proposed.append(evolution.propose(4))
        found = list(proposed[-1])
        if shuffled is not None:
            random.Random(shuffled).shuffle(found)
        evolution.observe({form: worth(form) for form in found})
    return proposed


def test_the_best_form_is_reached_though_estimates_miss_what_makes_it_so() -> None:
    for seed in range(5):
        forms = [form for forms in run(seed) for form in forms]
        assert min(map(worth, forms)) <= worth(BEST) * 1.02
        assert len(set(forms)) == len(forms), "nothing is measured twice"


def test_it_beats_chance_at_equal_effort() -> None:
    evolved = [min(worth(form) for forms in run(seed, 12) for form in forms) for seed in range(8)]
    chance = []
    for seed in range(8):
        rng, form, best = random.Random(seed), SPACE.initial(), 1.0
        for _ in range(48):
            form = SPACE.mutate(form, rng)
            best = min(best, worth(form))
        chance.append(best)
    assert sum(evolved) < 0.95 * sum(chance)


def test_a_seed_repeats_and_the_order_of_findings_does_not_matter() -> None:
    assert run(3) == run(3) == run(3, shuffled=1) == run(3, shuffled=2)
    assert run(3) != run(4)


def test_what_failed_is_neither_proposed_again_nor_best() -> None:
    evolution = Evolution(SPACE)
    first = evolution.propose(3)
    evolution.observe(dict.fromkeys(first))
    assert evolution.num_failed == 3
    assert evolution.best == (SPACE.initial(), 1.0)
    later = [form for _ in range(20) for form in evolution.propose(4)]
    assert not set(first) & set(later)


def test_a_space_without_anything_new_has_settled() -> None:
    space = ChainSpace((8,))
    evolution = Evolution(space, options=EvolutionOptions(window=100))
    for _ in range(4):
        evolution.observe(dict.fromkeys(evolution.propose(4), 0.9))
    assert evolution.has_settled
    assert evolution.propose(4) == ()


class Sized(ChainSpace):
    """One operator; sizes from 8 on are a kind."""

    def starts(self) -> list[ChainForm]:
        return [ChainForm((size,), ()) for size in (8, 16, 32, 2, 4)]

    def kind(self, form: ChainForm) -> Hashable:
        return form.sizes[0] >= 8


def test_a_kind_whose_first_forms_are_far_behind_is_left_out() -> None:
    for slow, following in ((2.0, (2, 4)), (1.2, (32, 2))):
        evolution = Evolution(Sized((4,)))
        first = evolution.propose(2)
        assert [form.sizes[0] for form in first] == [8, 16]
        evolution.observe(dict.fromkeys(first, slow))
        assert tuple(form.sizes[0] for form in evolution.propose(2)) == following


def test_what_is_known_is_not_measured_again() -> None:
    known = {form: worth(form) for forms in run(0) for form in forms}
    evolution = Evolution(SPACE, known=known)
    assert evolution.best[1] == min(known.values())
    assert not set(known) & set(evolution.propose(8))
    assert not evolution.has_settled, "a new search looks on"


def test_what_is_measured_again_is_worth_the_later_finding() -> None:
    evolution = Evolution(SPACE)
    (form,) = evolution.propose(1)
    evolution.observe({form: 0.5})
    evolution.observe({form: 1.2})
    assert evolution.best == (SPACE.initial(), 1.0)


def test_tuning_has_settled_when_the_last_candidates_bring_little() -> None:
    assert not has_settled([], window=2)
    assert not has_settled([3.0, 2.0], window=2)
    assert not has_settled([3.0, 2.0, 1.0], window=1)
    assert has_settled([3.0, 2.0, 1.99, 2.5], window=2)
    assert not has_settled([3.0, 2.0, 1.99, 2.5], window=2, share=0.001)
