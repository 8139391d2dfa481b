"""Which module imports which."""

from graphlib import TopologicalSorter

import grimp

PACKAGES = ("mizar_core", "mizar_kube", "mizar_operator", "mizar_nodeagent")


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Not even for types: such modules can be read and changed only together."""
    graph = grimp.build_graph(*PACKAGES)
    imports = {one: graph.find_modules_directly_imported_by(one) for one in graph.modules}
    TopologicalSorter(imports).prepare()  # CycleError names them
