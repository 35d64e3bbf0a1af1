"""Print the doctor's findings as tables, and say whether any failed."""

from recipes.doctor.environment import FAILURE, NOTICE, OK, Finding

_FILE_WIDTH = 140
_COLOURS = {OK: "green", NOTICE: "yellow", FAILURE: "bold red"}


def failed(nodes: dict[str, list[Finding]]) -> bool:
    """Whether any node has a failure."""
    return any(finding.state == FAILURE for findings in nodes.values() for finding in findings)


def render(nodes: dict[str, list[Finding]], verbose: bool = False) -> None:
    """Print one table per node and a closing sentence."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    for node, findings in nodes.items():
        table = Table(title=node, title_justify="left", show_lines=False)
        for column in ("area", "item", "state", "detail"):
            table.add_column(column, overflow="fold")
        for finding in findings:
            text = escape(finding.detail) + (f"\n[bold]-> {escape(finding.remedy)}[/]" if finding.remedy else "")
            if verbose and finding.trace:
                text += f"\n[dim]{escape(finding.trace.rstrip())}[/]"
            colour = _COLOURS[finding.state]
            table.add_row(finding.section, escape(finding.item), f"[{colour}]{finding.state}[/]", text)
        console.print(table)
    counts = {state: sum(f.state == state for findings in nodes.values() for f in findings) for state in _COLOURS}
    verdict = "[bold red]Not fit to run.[/]" if counts[FAILURE] else "[green]All is well.[/]"
    console.print(f"{verdict} {counts[FAILURE]} failures, {counts[NOTICE]} notices, {counts[OK]} checks passed.")
