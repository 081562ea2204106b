"""What stages of a chain cost that run alone: each operator mapped onto the whole machine."""

from __future__ import annotations

from collections.abc import Sequence, Set

from tilewright.cost.base import Objective
from tilewright.cost.bound import transfer_cycles
from tilewright.cost.options import CostOptions
from tilewright.hardware.machine import Machine
from tilewright.ir.contraction import contractions
from tilewright.ir.derive import nest_flops, nests_of
from tilewright.ir.graph import Node, Value
from tilewright.mapping.base import MappingProblem, MappingSolution
from tilewright.mapping.chains.price import ChainCost, best_mapping, read_pj, write_pj
from tilewright.mapping.chains.runs import Stage
from tilewright.mapping.network import layers_in, stream


def map_stage(
    stage: Stage, machine: Machine, objective: Objective, cost_options: CostOptions, deadline_s: float
) -> tuple[MappingSolution, ...] | None:
    """The best mappings of a stage's sums of products; none where it has none, None where one has none."""
    answers = []
    for layer in layers_in(stage[:1]):
        if layer.problem is None:
            continue
        task = MappingProblem(layer.problem, machine, objective, cost_options)
        answer = best_mapping(task, deadline_s)
        if answer is None:
            return None
        answers.append(answer)
    return tuple(answers)


def cost_of_stage(
    stage: Stage, machine: Machine, mappings: Sequence[MappingSolution], results: Set[Value] = frozenset()
) -> ChainCost:
    """What a stage costs under mappings; what its other operators read passes the outermost level once, and
    so does what is needed outside before its result. `results` are values that must leave.

    A stage without mappings streams what it reads and writes; changes of shape and layout alone cost nothing.
    """
    if not any(nest_flops(nest) > 0 for node in stage for nest in nests_of(node)):
        return ChainCost(0, 0.0, 0, 0)
    outermost = machine.outermost
    left_words = words_left(stage, results)
    if mappings:
        read_words, written_words = added_words(stage), 0
        cycles, energy_pj = 0, read_words * read_pj(outermost)
        for mapping in mappings:
            cycles += mapping.cost.cycles
            energy_pj += mapping.cost.energy_pj
            for count in mapping.cost.levels[0].tensors.values():
                read_words += count.read_words
                written_words += count.written_words
    else:
        read_words = sum(value.num_elements for value in outside(stage))
        written_words = sum(value.num_elements for value in stage[-1].results())
        passed = [stream(nest, machine) for nest in nests_of(stage[0]) if nest_flops(nest) > 0]
        cycles = sum(part.cycles for part in passed)
        energy_pj = sum(part.energy_pj for part in passed)
    written_words += left_words
    energy_pj += left_words * write_pj(outermost)
    cycles = max(cycles, transfer_cycles(machine, outermost, read_words, written_words))
    return ChainCost(cycles, energy_pj, read_words, written_words)


def added_words(stage: Stage) -> int:
    """What a stage reads beside the operands of its sums of products."""
    factors = multiplied(stage[0])
    return sum(value.num_elements for value in outside(stage) if value not in factors)


def words_left(stage: Stage, results: Set[Value]) -> int:
    """What a stage writes beside its result, as operators outside need it, too."""
    made = (value for node in stage[:-1] for value in node.results())
    return sum(v.num_elements for v in made if v in results or not set(stage).issuperset(v.users))


def multiplied(node: Node) -> set[Value | None]:
    """Operands of a node's sums of products."""
    return {
        node.inputs[access.operand.position]
        for form in contractions(nests_of(node))
        for access in form.accesses
        if access.operand.kind == "input"
    }


def outside(nodes: Sequence[Node]) -> list[Value]:
    """What operators read that none of them makes."""
    made = {value for node in nodes for value in node.results()}
    read = (value for node in nodes for value in node.operands())
    return [value for value in dict.fromkeys(read) if value not in made]


def traffic_view(machine: Machine) -> Machine:
    """A machine whose energy is the words that pass its outermost level, in pJ."""
    free = {"read_pj": 0.0, "write_pj": 0.0}
    paid = {"read_pj": 1.0, "write_pj": 1.0, "words_per_access": 1, "num_instances_per_access": 1}
    inner = (level.model_copy(update=free) for level in machine.levels[:-1])
    levels = (*inner, machine.outermost.model_copy(update=paid))
    units = tuple(unit.model_copy(update={"mac_pj": None}) for unit in machine.units)
    return machine.model_copy(update={"levels": levels, "units": units})
