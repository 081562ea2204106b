"""Figures 7, 12 and 15: what other compilers do, on described machines, and real ones on this processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.report.figure import Bars, bar_chart
from tilewright.reproduce.base import Basis, Exhibit, Figure
from tilewright.reproduce.ios.measured import Measurements
from tilewright.reproduce.ios.paper import AUTO_TUNED_MS, FRAMEWORKS_MS, GPU_HOURS, MAIN_DEVICE
from tilewright.reproduce.ios.runs import BOTH, MERGE, SEQUENTIAL, IosJob, problem_of_model
from tilewright.text.formatting import counted

_BY_NODE, _TUNED = "kernel by node", "tuned kernels"
_STAND_INS: Mapping[str, tuple[str, ...]] = {
    _BY_NODE: ("Tensorflow",),
    SEQUENTIAL: ("TVM-cuDNN", "TensorRT"),
    MERGE: ("TASO",),
    BOTH: ("IOS",),
}
"""What runs here, and the frameworks that it stands for."""


def by_node_ns(job: IosJob) -> float:
    """The time of a network whose every operator is a kernel of its own, one after another."""
    from tilewright import zoo

    problem = problem_of_model(zoo.build(job.network, batch=job.batch), job.machine, str)
    return sum(problem.kernel(subgraph.id).time_ns for subgraph in problem.partition.subgraphs)


def frameworks(measured: Measurements, device: str) -> Exhibit:
    """Figure 7 on the paper's first machine, figure 15 on its second."""
    is_main = device == MAIN_DEVICE
    times_ns = {n.name: _times_ns(measured, device, n.name) for n in measured.networks}
    figures = [
        Figure(
            f"{network}, IOS over {what} ({framework} there)",
            found[what] / found[BOTH],
            FRAMEWORKS_MS[network][framework] / FRAMEWORKS_MS[network]["IOS"] if is_main else None,
        )
        for network, found in times_ns.items()
        for what, of_paper in _STAND_INS.items()
        if what != BOTH
        for framework in of_paper
    ]
    return Exhibit(
        "Figure 7" if is_main else "Figure 15",
        f"what frameworks do at batch 1 on {device}; throughput over that of the best",
        "No framework runs here: each is what it does to a network, in our simulator with the same kernels. "
        "A kernel for every operator, one after another, stands for Tensorflow; the paper's units one after "
        "another, each with its activation in one kernel, for TVM-cuDNN and TensorRT; convolutions of one "
        "input merged for TASO. XLA, slower than Tensorflow there, has no stand-in. The paper's frameworks "
        "have kernels and overheads of their own, which weigh most on the small SqueezeNet. "
        + (
            "The paper's ratios are of milliseconds in the authors' repository, whose chart the figure is."
            if is_main
            else "Of this figure the paper prints no numbers: IOS is ahead of all on Inception V3, RandWire "
            "and NasNet, and like TASO and TensorRT on SqueezeNet."
        ),
        tuple(figures),
        bar_chart(
            "",
            "normalised throughput",
            list(times_ns),
            [
                Bars(what, tuple(min(found.values()) / found[what] for found in times_ns.values()))
                for what in _STAND_INS
            ],
        ),
        ("network", *(f"{what}, ms" for what in _STAND_INS)),
        tuple(
            (name, *(f"{found[what] / 1e6:.3f}" for what in _STAND_INS)) for name, found in times_ns.items()
        ),
        basis=Basis.SIMULATED,
    )


def _times_ns(measured: Measurements, device: str, network: str) -> dict[str, float]:
    schedules = measured.schedules[device, network].schedules
    return {
        what: measured.by_node_ns[device, network] if what == _BY_NODE else schedules[what].time_ns
        for what in _STAND_INS
    }


def frameworks_here(measured: Measurements) -> Exhibit:
    """Engines that are installed, and our schedules, on this processor."""
    groups, rows, figures = [], [], []
    engines: dict[str, list[float | None]] = {}
    names: Sequence[str] = [SEQUENTIAL, BOTH, *measured.peers]
    for (threads, network), found in measured.processor.items():
        groups.append(f"{network}, {threads}")
        for name in names:
            engines.setdefault(name, []).append(found[name].median_ms if name in found else None)
        rows.append((network, str(threads), *(_milliseconds(engines[name][-1]) for name in names)))
        figures += [
            Figure(f"{network}, {counted(threads, 'thread')}, IOS-Both over {peer}", peer_ms / both_ms, None)
            for peer in measured.peers
            if (peer_ms := engines[peer][-1]) is not None and (both_ms := engines[BOTH][-1]) is not None
        ]
    return Exhibit(
        "Figure 7 here",
        "engines compared at batch 1 on this processor: medians of runs in turns",
        "Our schedules beside the engines that are installed, in one process, in turns: onnxruntime and "
        "OpenVINO are the libraries tuned by hand of this machine, as TensorRT is of the paper's.",
        tuple(figures),
        bar_chart(
            "",
            "ms",
            groups,
            [Bars(name, tuple(values)) for name, values in engines.items()],
            is_logarithmic=True,
        ),
        ("network", "threads", *(f"{name}, ms" for name in names)),
        tuple(rows),
        basis=Basis.MEASURED,
    )


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def figure_12(measured: Measurements) -> Exhibit:
    """Tuned kernels one after another, and IOS."""
    names = [network.name for network in measured.networks]
    times_ms = {name: _tuned_times_ms(measured, name) for name in names}
    tuning_s = sum(found.cpu_s for found in measured.tuned.values())
    search_s = sum(measured.schedules[MAIN_DEVICE, name].schedules[BOTH].cpu_s for name in names)
    bars = [
        Bars(what, tuple(min(found.values()) / found[what] for found in times_ms.values()))
        for what in (SEQUENTIAL, _TUNED, BOTH)
    ]
    return Exhibit(
        "Figure 12",
        f"kernels tuned one by one, and IOS, at batch 1 on {MAIN_DEVICE}",
        "Instead of by TVM's tuner each sum of products is mapped onto blocks of threads of its own by "
        "CoSA's program (`tilewright map`), in float32, one kernel after another: what its estimate says, "
        "which TVM's measured kernels are far from. IOS is that of figure 6, with cuDNN's tiles. The paper's "
        "ratios are of milliseconds in the authors' repository; its IOS is ahead on Inception V3 and "
        "SqueezeNet. As there, tuning costs more than scheduling, but seconds: nothing is measured.",
        (
            *(
                Figure(
                    f"{name}, IOS over tuned kernels",
                    found[_TUNED] / found[BOTH],
                    AUTO_TUNED_MS[name] / FRAMEWORKS_MS[name]["IOS"],
                )
                for name, found in times_ms.items()
            ),
            Figure(
                "cost of tuning over that of IOS",
                tuning_s / search_s,
                GPU_HOURS[0] / GPU_HOURS[1],
                Basis.MEASURED,
            ),
        ),
        bar_chart("", "normalised throughput", names, bars),
        ("network", *(f"{bar.name}, ms" for bar in bars), "kernels tuned", "CPU s of tuning", "CPU s of IOS"),
        tuple(
            (
                name,
                *(f"{found[bar.name]:.3f}" for bar in bars),
                str(measured.tuned[name].num_kernels),
                f"{measured.tuned[name].cpu_s:.1f}",
                f"{measured.schedules[MAIN_DEVICE, name].schedules[BOTH].cpu_s:.1f}",
            )
            for name, found in times_ms.items()
        ),
        basis=Basis.SIMULATED,
    )


def _tuned_times_ms(measured: Measurements, network: str) -> Mapping[str, float]:
    schedules = measured.schedules[MAIN_DEVICE, network].schedules
    return {
        SEQUENTIAL: schedules[SEQUENTIAL].time_ns / 1e6,
        _TUNED: measured.tuned[network].time_ns / 1e6,
        BOTH: schedules[BOTH].time_ns / 1e6,
    }
