"""A contract of import-linter: no modules import each other, by whatever way round."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, cast

from importlinter import Contract, ContractCheck, fields, output

if TYPE_CHECKING:
    from grimp import ImportGraph
    from importlinter.domain.imports import ImportExpression


class NoCirclesContract(Contract):
    """`ignore_imports` lists single imports that are left out."""

    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=True)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002 - import-linter calls it
        """Find one circle, if there is any."""
        ignored = {
            (one.importer.expression, one.imported.expression)
            for one in cast("set[ImportExpression]", self.ignore_imports)
        }
        imports = {
            module: {
                other
                for other in graph.find_modules_directly_imported_by(module)
                if (module, other) not in ignored
            }
            for module in graph.modules
        }
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            return ContractCheck(kept=False, metadata={"circle": error.args[1][::-1]})
        return ContractCheck(kept=True)

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name the modules of the circle, each importing the next."""
        output.print_error(" -> ".join(check.metadata["circle"]))
