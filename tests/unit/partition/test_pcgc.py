"""PCGC: classes and rules, static fusion, what is cut again, limits; the paper's examples as drawn."""

# mypy: disable-error-code="arg-type, attr-defined"

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.graphs import GraphBuilder

from tilewright.artifact.plan import decode_plan, encode_plan
from tilewright.compiler import compile_graph
from tilewright.cost.base import Estimate, KernelWork, Objective
from tilewright.cost.roofline import Roofline
from tilewright.errors import UsageError
from tilewright.explain import explain_program
from tilewright.hardware.presets import load_preset
from tilewright.ir.derive import OperatorClass
from tilewright.ir.graph import Graph, Value
from tilewright.options import Options
from tilewright.partition import PARTITIONERS, Partition, PartitionProblem, Reason, check_partition
from tilewright.partition.fusion_records import Verdict
from tilewright.partition.pcgc import Pcgc
from tilewright.partition.pcgc.planner import Recut, parse_limit, shown_limit
from tilewright.partition.pcgc.rules import RuleTable
from tilewright.planning import Budget, Infeasible
from tilewright.target_ref import TargetRef

ROOFLINE = Roofline(1.0, 1.0, 0.0, "by hand")


class Said(Roofline):
    """A cost model that says of some sets of operators what they cost, by their names."""

    def __init__(self, said: dict[tuple[str, ...], float]) -> None:
        super().__init__(1e9, 1e9, 0.0, "by hand", proves_bounds=False)
        object.__setattr__(self, "said", said)

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        names = tuple(sorted(node.name for node in work.nodes))
        time_ns = self.said.get(names, 10.0 * len(names))  # type: ignore[attr-defined]
        return Estimate(time_ns, 0.0, self.source)


def conv(b: GraphBuilder, x: Value, channels: int, kernel: int, name: str | None = None) -> Value:
    weight = b.constant(channels, x.shape[1], kernel, kernel)
    pad = kernel // 2
    shape = (x.shape[0], channels, *x.shape[2:])
    return b.op("Conv", x, weight, shape=shape, name=name, pads=(pad,) * 4)


def max_pool(b: GraphBuilder, x: Value) -> Value:
    return b.op("MaxPool", x, kernel_shape=(3, 3), pads=(1,) * 4, strides=(1, 1))


def solve(
    graph: Graph, pcgc: Pcgc | None = None, cost: Roofline = ROOFLINE, machine: str | None = None
) -> Partition:
    problem = PartitionProblem(graph, None if machine is None else load_preset(machine), cost)
    partition = (pcgc or Pcgc(start="static-fusion")).solve(problem, Budget())
    assert isinstance(partition, Partition)
    assert check_partition(problem, partition) == ()
    return partition


def kinds(partition: Partition) -> list[tuple[str, ...]]:
    return [tuple(node.op_type for node in subgraph.nodes) for subgraph in partition.subgraphs]


# Rules


def test_the_table_holds_every_pair_of_classes() -> None:
    assert len(RuleTable.default().verdicts) == len(OperatorClass) ** 2


def test_a_file_of_rules_overrides_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("rules: {complex: {complex: prohibited}}\n")
    table = RuleTable.read(str(path))
    assert table.of(OperatorClass.COMPLEX, OperatorClass.COMPLEX) is Verdict.PROHIBITED
    assert table.of(OperatorClass.COMPLEX, OperatorClass.ALGEBRAIC) is Verdict.STABLE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules: {complx: {}}", "rules.complx: unknown class 'complx'; did you mean complex."),
        ("rules: {complex: {x: stable}}", "rules.complex.x: unknown class 'x'; known are algebraic"),
        (
            "rules: {complex: {complex: stabel}}",
            "rules.complex.complex: unknown verdict 'stabel'; did you mean stable.",
        ),
        ("rules: {complex: stable}", "rules.complex: expected verdicts by the class of the reader."),
        ("rule: {}", "rules: is missing"),
        ("rules: {}\nmore: 1", "more: unknown key; the only one is rules."),
        ("rules: {complex: {complex: *a}}", "aliases are not allowed"),
    ],
)
def test_what_is_wrong_with_a_file_of_rules_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    member = PARTITIONERS.get(f'pcgc{{rules="{path}"}}')
    with pytest.raises(UsageError) as caught:
        member.solve(PartitionProblem(GraphBuilder().finish()), Budget())
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# Starting partitions


def test_weights_of_the_operator_that_runs_take_room_on_the_chip_too() -> None:
    b = GraphBuilder()
    graph = b.finish(conv(b, conv(b, b.input(1, 4, 8, 8), 8, 3), 8, 3))
    passing_bytes, weights_bytes = 8 * 8 * 8 * 4, 8 * 8 * 3 * 3 * 4  # of the second, the larger ones
    for spare_bytes, num_subgraphs in ((-1, 2), (0, 1)):
        capacity = passing_bytes + weights_bytes + spare_bytes
        assert len(solve(graph, Pcgc("none", capacity_bytes=capacity)).subgraphs) == num_subgraphs


def test_rules_alone_fuse_without_regard_to_the_chip() -> None:
    b = GraphBuilder()
    graph = b.finish(conv(b, conv(b, b.input(1, 4, 8, 8), 8, 3), 8, 3))
    for start, num_subgraphs in (("static-fusion", 2), ("rules-alone", 1)):
        member = PARTITIONERS.get(f"pcgc{{recut=none,capacity_bytes=0,start={start}}}")
        partition = member.solve(PartitionProblem(graph, cost=ROOFLINE), Budget())
        assert isinstance(partition, Partition)
        assert len(partition.subgraphs) == num_subgraphs


def test_a_starting_partition_as_it_is_is_the_default_one_and_fused_on_has_no_more_subgraphs() -> None:
    graph, machine = inception(GraphBuilder()), load_preset("a310")
    problem = PartitionProblem(graph, machine, ROOFLINE)
    for name in ("layerwise", "graphturbo"):
        default = PARTITIONERS.get(name).solve(problem, Budget())
        assert isinstance(default, Partition)
        as_it_is = PARTITIONERS.get(f"pcgc{{recut=none,start={name}}}").solve(problem, Budget())
        assert isinstance(as_it_is, Partition)
        assert {s.nodes for s in as_it_is.subgraphs} == {s.nodes for s in default.subgraphs}
        fused_on = PARTITIONERS.get(f"pcgc{{recut=none,start={name}-fused-on}}").solve(problem, Budget())
        assert isinstance(fused_on, Partition)
        assert len(fused_on.subgraphs) <= len(as_it_is.subgraphs)


def test_a_starting_partition_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    problem = PartitionProblem(inception(GraphBuilder()), cost=ROOFLINE)
    with pytest.raises(UsageError, match=r"start=graphturbo: the machine has no local buffers"):
        Pcgc(start="graphturbo").solve(problem, Budget())
    path = tmp_path / "mine.yaml"
    path.write_text("rules: {complex: {algebraic: prohibited}}\n")
    with pytest.raises(UsageError, match=r"start=layerwise: it fuses what the rules forbid"):
        Pcgc(start="layerwise", rules=str(path)).solve(problem, Budget())


# Examples of section 3.7


def test_example_1_convolution_normalisation_and_activation_are_one_for_good() -> None:
    b = GraphBuilder()
    x = conv(b, b.input(1, 4, 8, 8), 8, 3)
    scaled = b.op("Add", b.op("Mul", x, b.constant(8, 1, 1)), b.constant(8, 1, 1))
    partition = solve(b.finish(b.op("Relu", scaled)))
    assert kinds(partition) == [("Conv", "Mul", "Add", "Relu")]
    assert {record.verdict for record in partition.fusions} == {Verdict.STABLE}


@pytest.mark.parametrize(("together", "num_subgraphs"), [(15.0, 1), (25.0, 2)])
def test_example_2_the_machine_decides_whether_two_convolutions_stay_together(
    together: float, num_subgraphs: int
) -> None:
    b = GraphBuilder()
    y = conv(b, conv(b, b.input(1, 4, 8, 8), 8, 3, "c1"), 8, 3, "c2")
    partition = solve(b.finish(y), cost=Said({("c1", "c2"): together}))
    assert len(partition.subgraphs) == num_subgraphs
    (record,) = partition.fusions
    assert (record.verdict, record.fused_cost, record.apart_cost) == (Verdict.EVALUATE, together, 20.0)
    (decision,) = partition.decisions
    assert decision.reason is (Reason.EVALUATED if num_subgraphs == 1 else Reason.COST)


class Unbounded(Said):
    """It bounds nothing."""

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        return Estimate(0.0, 0.0, self.source)


@pytest.mark.parametrize(
    ("together", "is_exact", "num_subgraphs"), [(20.1, False, 1), (20.4, False, 2), (20.1, True, 2)]
)
def test_of_plans_that_estimates_do_not_tell_apart_the_one_with_fewest_subgraphs_is_taken(
    together: float, is_exact: bool, num_subgraphs: int
) -> None:
    b = GraphBuilder()
    y = conv(b, conv(b, b.input(1, 4, 8, 8), 8, 3, "c1"), 8, 3, "c2")
    cost = Unbounded({("c1", "c2"): together})
    object.__setattr__(cost, "proves_bounds", is_exact)
    assert len(solve(b.finish(y), cost=cost).subgraphs) == num_subgraphs


def inception(b: GraphBuilder) -> Graph:
    x = b.input(1, 8, 8, 8)
    branches = [
        conv(b, x, 4, 1, "b0"),
        conv(b, b.op("Relu", conv(b, x, 4, 1, "b1a")), 4, 3, "b1b"),
        conv(b, b.op("Relu", conv(b, x, 4, 1, "b2a")), 4, 5, "b2b"),
        conv(b, max_pool(b, x), 4, 1, "b3"),
    ]
    return b.finish(b.op("Concat", *(b.op("Relu", y) for y in branches), shape=(1, 16, 8, 8), axis=1))


def test_example_3_an_inception_block_is_fused_by_branches() -> None:
    partition = solve(inception(GraphBuilder()), Pcgc(recut="none"))
    assert sorted(kinds(partition)) == sorted(
        [
            ("Conv", "Relu"),
            ("Conv", "Relu", "Conv", "Relu"),
            ("Conv", "Relu", "Conv", "Relu"),
            ("MaxPool", "Conv", "Relu"),
            ("Concat",),
        ]
    )
    to_concat = [d.reason for d in partition.decisions if d.consumer.op_type == "Concat"]
    assert to_concat == [Reason.PROHIBITED] * 4
    stable = {
        (r.producer.op_type, r.consumer.op_type) for r in partition.fusions if r.verdict is Verdict.STABLE
    }
    assert stable == {("Conv", "Relu")}


def test_example_5_what_costs_more_together_is_taken_apart_and_the_rest_is_kept() -> None:
    def cost_of(*names: str) -> float:
        return 30.0 if "b2b" in names else 15.0 if "b1b" in names else 10.0 * len(names)

    b = GraphBuilder()
    x = b.input(1, 8, 8, 8)
    three = conv(b, conv(b, x, 4, 1, "b1a"), 4, 3, "b1b")
    five = conv(b, conv(b, x, 4, 1, "b2a"), 4, 5, "b2b")
    graph = b.finish(three, five)
    said = {("b1a", "b1b"): cost_of("b1a", "b1b"), ("b2a", "b2b"): cost_of("b2a", "b2b")}
    partition = solve(graph, cost=Said(said))
    names = [tuple(node.name for node in s.nodes) for s in partition.subgraphs]
    assert sorted(names) == [("b1a", "b1b"), ("b2a",), ("b2b",)]


# What is kept


def test_records_are_in_the_artifact_and_in_what_explain_says() -> None:
    b = GraphBuilder()
    graph = b.finish(conv(b, b.op("Relu", conv(b, b.input(1, 4, 8, 8), 8, 3, "c1"), name="r"), 8, 3, "c2"))
    compilation = compile_graph(graph, Options(target=TargetRef.parse("interpreter"), partition="pcgc"))
    program = compilation.program
    records = program.partition.fusions
    assert [r.verdict for r in records] == [Verdict.STABLE, Verdict.EVALUATE]
    again = decode_plan(json.loads(json.dumps(encode_plan(program))), program.graph, program.options)
    assert again.partition.fusions == records
    edges = explain_program(program, compilation.steps, (), None).edges
    assert "rule: stable, kept" in edges[0].text
    assert f"rule: evaluate, {'kept' if edges[1].is_fused else 'cut again'}: " in edges[1].text


def test_a_record_that_is_of_no_edge_or_a_rule_that_forbids_is_noticed() -> None:
    b = GraphBuilder()
    graph = b.finish(b.op("Relu", conv(b, b.input(1, 4, 8, 8), 8, 3)))
    partition = solve(graph)
    (record,) = partition.fusions
    problem = PartitionProblem(graph, cost=ROOFLINE)
    for wrong in (
        (),
        (record, record),
        (replace(record, consumer=record.producer),),
        (replace(record, verdict=Verdict.PROHIBITED),),
        (replace(record, fused_cost=1.0, apart_cost=2.0),),
    ):
        found = check_partition(problem, replace(partition, fusions=wrong))
        assert found
        assert {violation.rule for violation in found} == {"record"}


# The bound on what is not minimised


class TwoCosts(Said):
    """Together two convolutions take less energy and more time."""

    def kernel(self, work: KernelWork, num_cores: int | None = None) -> Estimate:
        count = len(work.nodes)
        time_ns, energy_pj = (30.0, 15.0) if count == 2 else (10.0 * count, 10.0 * count)
        return Estimate(time_ns, 0.0, self.source, energy_pj)

    def least(self, kernels: Sequence[KernelWork], num_groups: int = 1) -> Estimate:
        return Estimate(0.0, 0.0, self.source, 0.0)


def two_convolutions() -> Graph:
    b = GraphBuilder()
    return b.finish(conv(b, conv(b, b.input(1, 4, 8, 8), 8, 3, "c1"), 8, 3, "c2"))


@pytest.mark.parametrize(
    ("objective", "limit", "num_subgraphs"),
    [
        ("latency", None, 2),
        ("latency", "15pJ", 1),
        ("latency", "5%", 1),
        ("latency", "40%", 2),
        ("energy", None, 1),
        ("energy", "25ns", 2),
        ("energy", "10%", 2),
        ("energy", "0.03us", 1),
        ("edp", None, 2),
    ],
)
@pytest.mark.parametrize("recut", ["exact", "greedy"])
def test_a_limit_bounds_what_is_not_minimised(
    recut: Recut, objective: Objective, limit: str | None, num_subgraphs: int
) -> None:
    problem = PartitionProblem(two_convolutions(), cost=TwoCosts({}), objective=objective)
    partition = Pcgc(recut, limit).solve(problem, Budget())
    assert isinstance(partition, Partition)
    assert len(partition.subgraphs) == num_subgraphs
    assert check_partition(problem, partition) == ()


def test_a_limit_that_nothing_meets_names_both_amounts_in_their_unit() -> None:
    problem = PartitionProblem(two_convolutions(), cost=TwoCosts({}), objective="energy")
    answer = Pcgc(limit="19ns").solve(problem, Budget())
    assert isinstance(answer, Infeasible)
    assert str(answer) == "pcgc: time needs 20 ns but has 19. Try pcgc{limit=20ns} or pcgc without a limit."


@pytest.mark.parametrize("objective", ["energy", "latency"])
@pytest.mark.parametrize("amount", [0.0, 0.25, 19.0, 999.96, 54908.82, 3.31137e8, 99999.0, 7.7e15])
def test_the_limit_that_is_proposed_is_read_as_no_less(objective: Objective, amount: float) -> None:
    limit = parse_limit(shown_limit(amount, objective), objective, 0.0)
    assert amount <= limit * (1 + 1e-9)
    assert limit <= max(1.0, amount * 1.0011)


@pytest.mark.parametrize(
    ("limit", "objective", "said"),
    [
        ("5", "energy", "limit=5: expected an amount of time (ns, us, ms, s) or per cents such as 5%."),
        ("5mJ", "energy", "limit=5mJ: --hint energy bounds time; give ns, us, ms, s, or %."),
        ("5ms", "latency", "limit=5ms: --hint latency bounds energy; give pJ, nJ, uJ, mJ, J, or %."),
        ("5%", "edp", "a limit bounds what is not minimised, but edp is of both; leave it out."),
    ],
)
def test_what_is_wrong_with_a_limit_is_one_line(limit: str, objective: Objective, said: str) -> None:
    problem = PartitionProblem(two_convolutions(), cost=TwoCosts({}), objective=objective)
    with pytest.raises(UsageError) as caught:
        Pcgc(limit=limit).solve(problem, Budget())
    assert str(caught.value) == f"pcgc: {said}"


def test_a_limit_on_energy_needs_a_cost_model_that_knows_energies() -> None:
    with pytest.raises(UsageError, match="limit bounds energy, but"):
        Pcgc(limit="5%").solve(PartitionProblem(two_convolutions(), cost=ROOFLINE), Budget())
