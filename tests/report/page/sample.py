"""Pages whose content is known: what the markup and the browser tests are made of."""

from __future__ import annotations

from functools import cache

from matplotlib.figure import Figure

from dpbench.report.charts import style
from dpbench.report.charts.files import svg_of
from dpbench.report.page.content import ChartImage, Finding, Page, Section, SweepContent
from dpbench.report.page.pictures import caption_of, inline_svg
from dpbench.report.table import Table, TableCell, TableColumn, TableRow

HOSTILE = "<script>alert('x')</script>\"&{{ 7*7 }}\x1b[31m\x00\u202egnp.exe"

COLUMNS = (
    TableColumn(
        key="implementation",
        header="Implementation",
        meaning="What trains: ours (dp, ddp) or torch's.",
        text=True,
    ),
    TableColumn(key="backend", header="Backend", meaning="What carries the gradients.", text=True),
    TableColumn(key="group_size", header="Group", meaning="Number of replicas."),
    TableColumn(key="batch_size", header="Batch", meaning="Samples per replica and step."),
    TableColumn(
        key="images_per_second",
        header="Images/s",
        meaning="Images that all replicas consumed ÷ time of the timed window.",
    ),
    TableColumn(
        key="efficiency", header="Efficiency", meaning="Speedup ÷ group size, in per cent."
    ),
    TableColumn(
        key="final_loss", header="Final loss", meaning="Loss of the last timed step.", shown=False
    ),
    TableColumn(
        key="peak_memory_bytes", header="Peak memory", meaning="The largest over ranks, resident."
    ),
    TableColumn(key="status", header="Status", meaning="How the trial ended.", text=True),
)


def sample_page(**changes: object) -> Page:
    """A page of one small sweep; keyword arguments are fields of its `SweepContent`."""
    return Page(title="Handwritten digits on two cores", version="0.1.0", sweep=sweep(**changes))


def sweep(**changes: object) -> SweepContent:
    fields: dict[str, object] = {
        "started": "21 November 2025, 09:24 UTC",
        "state": "66 of 66 trials",
        "about": ("mnist_cnn on digits", "Intel Xeon, 2 cores", "torch 2.13.0"),
        "findings": FINDINGS,
        "advice": ("31 % of the step is exposed communication on gloo: try shm",),
        "warnings": (
            "8 configurations were skipped: torch was built without nccl.",
            "The slowest repetition of ddp/gloo ×2, batch 16 took twice as long as the fastest: "
            "something else ran on this machine.",
        ),
        "environment": (
            ("CPU", "Intel(R) Xeon(R) Processor @ 2.70GHz"),
            ("Cores", "2"),
            ("Memory", "7.75 GiB"),
            ("Python", "3.11.2"),
            ("torch", "2.13.0+cpu"),
            ("Commit", "6d8386d"),
        ),
        "command": "dpbench sweep --implementations dp,ddp,torch-ddp --backends gloo,shm "
        "--group-sizes 1,2 --batch-sizes 16,64 --repetitions 3",
        "results": results(),
        "notes": (
            "± is the 95 % interval over 3 repetitions (t; of speeds and speedups on logarithms).",
            "Speedup is against the same implementation and backend at group size 1.",
        ),
        "failures": FAILURES,
        "sections": (
            Section(
                key="scaling",
                title="How well does it scale?",
                charts=(chart(),),
                notes=("no chart step-times: fewer than two ranks",),
            ),
        ),
    }
    return SweepContent(**(fields | changes))  # type: ignore[arg-type]


def results(rows: tuple[TableRow, ...] | None = None) -> Table:
    return Table(
        key="configurations",
        caption="Every configuration, 3 repetitions each",
        columns=COLUMNS,
        rows=configurations() if rows is None else rows,
    )


def configurations() -> tuple[TableRow, ...]:
    """Eight that completed, one that failed, one that was skipped; no two equally fast."""
    rows = [
        configuration(name, backend, group, batch, 1000.0 + 37 * place + 400 * group)
        for place, (name, backend, group, batch) in enumerate(
            (name, backend, group, batch)
            for name, backend in (("ddp", "shm"), ("torch-ddp", "gloo"))
            for group in (1, 2)
            for batch in (16, 64)
        )
    ]
    failed = configuration("dp", "threads", 2, 16, None, status="failed")
    return *rows, failed, configuration("ddp", "nccl", 2, 16, None, status="skipped")


def configuration(
    name: str, backend: str, group: int, batch: int, speed: float | None, status: str = "completed"
) -> TableRow:
    """One row; without a speed nothing of it is known."""
    known = speed is not None
    efficiency = None if speed is None else speed / 1500 / group
    memory = None if speed is None else int(speed) * 2**18
    cells = (
        TableCell(text=name, sort=name),
        TableCell(text=backend, sort=backend),
        TableCell(text=str(group), sort=group),
        TableCell(text=str(batch), sort=batch),
        TableCell(text=f"{speed:,.0f} ± 31" if known else "–", sort=speed),
        TableCell(
            text="–" if efficiency is None else f"{100 * efficiency:.1f} ± 1.4 %", sort=efficiency
        ),
        TableCell(text="2.1 ± 0.2" if known else "–", sort=2.1 if known else None),
        TableCell(text="–" if memory is None else f"{memory / 2**20:.0f} MiB", sort=memory),
        TableCell(text=status, sort=status),
    )
    return TableRow(cells=cells, status=status)


@cache
def chart() -> ChartImage:
    """Drawn once for all tests: a line, a marker, a grid, a title and a caption."""
    with style.house_style():
        figure = Figure(figsize=(7.2, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.plot([1, 2, 4], [1400.0, 2600.0, 4100.0], color=style.BLUE, marker="o")
        axes.set_xlabel("group size (replicas)")
        axes.set_ylabel("throughput (images/s)")
        style.finish(figure, title=TITLE, caption=CAPTION)
        svg = inline_svg(figure, svg_of(figure), kind="throughput", title=TITLE, description=SHOWS)
    return ChartImage(
        kind="throughput", title=TITLE, description=SHOWS, svg=svg, caption=caption_of(figure)
    )


TITLE = "Throughput by group size"
SHOWS = "The higher the line, the faster; what stays below the grey line scales less than linearly."
CAPTION = "n = 3 repetitions, intervals of 95 %; digits: Intel Xeon, 2 cores, torch 2.13.0"

FINDINGS = (
    Finding(
        title="Fastest",
        value="2,662 ± 294 images/s",
        about="ddp on shm, 2 replicas, batch 64; 3 repetitions. The next, torch-ddp on shm, "
        "cannot be told apart.",
    ),
    Finding(
        title="Best scaling",
        value="91 ± 16 %",
        about="torch-ddp on shm from 1 to 2 replicas, batch 64; 3 repetitions.",
    ),
    Finding(
        title="What limits it",
        value="5.1 (2.0–9.4) ms",
        about="of a step of 48 ms is communication that nothing hides: try --accumulate 4; "
        "3 repetitions.",
    ),
    Finding(
        title="Gradients verified",
        value="12 of 12 configurations",
        about="compared in float64 with one process that holds the whole batch",
    ),
)

FAILURES = Table(
    key="failures",
    caption="What failed or was skipped",
    columns=(
        TableColumn(key="configuration", header="Configuration", meaning="", text=True),
        TableColumn(key="status", header="Status", meaning="How the trial ended.", text=True),
        TableColumn(key="reason", header="Reason", meaning="The whole of it.", text=True),
    ),
    rows=(
        TableRow(
            cells=(
                TableCell(text="dp ×2, batch 16", sort="dp"),
                TableCell(text="failed", sort="failed"),
                TableCell(text="rank 1 ended with signal 9\nlast words of it", sort="rank"),
            ),
            status="failed",
        ),
    ),
)
