"""`twinbus broker --check`: what must hold in the files of namespaces, checked and mended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from twinbus.commands.progress import progress
from twinbus.commands.terminal import DOES_NOT_WORK, print_json, refuse

if TYPE_CHECKING:
    from twinbus.broker.inspection import Inspection


def check(folder: Path, *, mend: bool, as_json: bool) -> None:
    """Look at each namespace's file under a data folder; fails with 1 if something is found."""
    from twinbus.broker.inspection import FILE, InspectionError, inspect, repair, stores

    if not folder.is_dir():
        refuse(f"--check: there is no folder {folder}")
    found = stores(folder)
    if not found:
        refuse(
            f"--check: no namespace has its file under {folder}; name the folder that a broker had "
            f"as --data, where each namespace has a folder with a {FILE}"
        )
    try:
        with progress(f"checking {folder}", hidden=as_json) as say:
            reports = [(repair if mend else inspect)(path, say) for path in found]
    except InspectionError as error:
        refuse(str(error))
    if as_json:
        print_json(
            {
                "holds": not any(report.findings for report in reports),
                "namespaces": [report.as_json() for report in reports],
            }
        )
    else:
        for report in reports:
            _print(report)
    if any(report.findings for report in reports):
        raise typer.Exit(DOES_NOT_WORK)


def _print(report: Inspection) -> None:
    for finding in report.mended:
        typer.echo(f"{report.namespace}: mended: {finding.subject}: {finding.what}")
    for finding in report.findings:
        typer.echo(f"{report.namespace}: {finding}")
    typer.echo(report.summary())
