"""`tilewright map`: one operator on a described machine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

import typer

from tilewright.api.map_request import MapRequest
from tilewright.cli.flags import Flags, parsed_shapes
from tilewright.cli.output import progress, say, show
from tilewright.errors import InfeasibleMapping, UsageError
from tilewright.requests import PLANS, flag_of


def map_(
    flags: Flags[MapRequest],
    work: list[str] = typer.Argument(
        None,
        metavar="LAYER",
        help="Layers: R_P_C_K_stride such as 3_14_256_256_1, dims such as K=64,C=3,P=112,Q=112,R=7,S=7; a "
        "model such as net.onnx, or a node of it as net.onnx:NODE; a Timeloop problem such as layer.yaml.",
    ),
    fuse: bool = typer.Option(
        False,
        "--fuse",
        help="In a model, tile chains of operators jointly, so that what passes between them stays on chip. "
        "The objective may then also be traffic, the default.",
        rich_help_panel=PLANS,
    ),
) -> None:
    """Find an operator's loops for each level of a machine's memory, with cost and a lower bound.

    In a model, every sum of products is mapped, equal ones once; other operators are counted as streams.
    Example: `tilewright map 3_14_256_256_1 -t simba-cosa-repo --objective energy`.
    """
    from tilewright.api.mapping import answer
    from tilewright.mapping.results import MapEvaluation
    from tilewright.mapping.sweep.results import MapSweep

    _check_flags(flags.asked, fuse=fuse)
    if fuse:
        _print_chains(work or [], flags)
        return
    request = flags.request(work=tuple(work or ()))
    with progress("mapping") as update:
        result = answer(request, update)
    all_illegal = isinstance(result, MapEvaluation) and all(case.cost is None for case in result.cases)
    kind = {MapSweep: "map-sweep", MapEvaluation: "map-evaluate"}.get(type(result), "map")
    if show(kind, result) and request.plot is not None:
        say(f"drawn in {request.plot}")
    if all_illegal:
        raise typer.Exit(InfeasibleMapping.exit_code)


def _print_chains(work: list[str], flags: Flags[MapRequest]) -> None:
    """Tile the chains of the model that is given, and print what comes of it."""
    from tilewright.api.chains import map_chain

    if len(work) != 1:
        raise UsageError(f"--fuse tiles the chains of one model; {len(work)} are given.")
    if not work[0].endswith(".onnx"):
        raise UsageError(f"{work[0]}: --fuse tiles the chains of a model; give an ONNX file.")
    asked = flags.values
    with progress("tiling") as update:
        result = map_chain(
            work[0],
            asked["machine"],
            objective=asked["objective"] if "objective" in flags.asked else "traffic",
            budget=asked["budget"],
            shapes=parsed_shapes(asked["shapes"]) or None,
            verify=asked["verify"],
            progress=update,
        )
    show("map-chains", result)


_OF_CHAINS = ("machine", "objective", "budget", "shapes", "verify")
"""Flags that `--fuse` heeds."""


def _check_flags(asked: Collection[str], *, fuse: bool) -> None:
    """Refuse flags that would be passed over, be it with their defaults.

    Raises:
        UsageError: two flags that do not go together; names both.
    """
    MapRequest.require_effect(asked)
    for other in (f.name for f in fields(MapRequest) if fuse and f.name not in _OF_CHAINS):
        if other in asked:
            raise UsageError(
                f"{flag_of(MapRequest, other)} has no effect beside --fuse; leave one of them out."
            )
