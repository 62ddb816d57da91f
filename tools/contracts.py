"""A custom contract for import-linter."""

import sys

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class StandardLibraryOnly(Contract):
    """A package imports only itself and the standard library."""

    package = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        package = str(self.package)
        modules = {package, *graph.find_descendants(package)}
        offenders = sorted(
            f"{module} imports {imported}"
            for module in modules
            for imported in graph.find_modules_directly_imported_by(module) - modules
            if imported.partition(".")[0] not in sys.stdlib_module_names
        )
        return ContractCheck(kept=not offenders, metadata={"offenders": offenders})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for offender in check.metadata["offenders"]:
            output.print_error(offender)
