"""Read the source around a loop, and say what a fault would change. Decides nothing.

Each remark is one line: the place, the problem and the cure. Remarks are found with `ast` in the
file that has the loop. They are guesses: `# holdfast: ok` at the end of its line takes one back.
"""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from holdfast._errors import UserError

_FILLS: Final = {"append", "extend", "add", "update", "insert", "pop", "remove", "popleft"}
_TAKEN_BACK: Final = "# holdfast: ok"
_A_GUESS: Final = f" (a guess; `{_TAKEN_BACK}` at the end of its line takes it back)"
_KEEPERS: Final = {"State", "vars"}  # Their arguments and results are kept.

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
_Loop = ast.For | ast.While


def advise(filename: str, line: int) -> list[str]:
    """Return remarks on the loop around a call; none if there is no source."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return []
    function = _innermost(tree, line)
    loop = _loop_at(function, line)
    if loop is None:
        return []
    outer = _loop_around(function, loop)
    found = _Reader(tree, function, loop, outer).remarks()
    where = os.path.basename(filename)
    remarks = [
        f"{where}:{at}: {text}"
        for at, text in sorted(set(found))
        if not linecache.getline(filename, at).rstrip().endswith(_TAKEN_BACK)
    ]
    return [*remarks[:-1], remarks[-1] + _A_GUESS] if remarks else []


def say_or_refuse(remarks: list[str], strict: bool, say: Callable[[str], None]) -> None:
    """Say remarks. UserError if State was made with `strict`."""
    if remarks and strict:
        raise UserError("State(strict=True): " + "\n  ".join(remarks))
    for remark in remarks:
        say(remark)


class Order(ast.NodeVisitor):
    """Which variables the body of a loop sets, and which it reads before it sets them."""

    def __init__(self, loop: _Loop) -> None:
        """Read a loop in the order in which it runs."""
        self.read_first: set[str] = set()
        self.set: set[str] = set()
        self.lines: dict[str, int] = {}  # Where each is set first.
        if isinstance(loop, ast.For):
            self.visit(loop.target)
        else:
            self.visit(loop.test)
        for statement in loop.body:
            self.visit(statement)

    @property
    def carried(self) -> set[str]:
        """The variables that go on from turn to turn: read before they are set."""
        return self.read_first & self.set

    def visit_Assign(self, node: ast.Assign) -> None:
        """Take the value first."""
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Take a variable as read, then as set."""
        self.visit(node.value)
        if isinstance(node.target, ast.Name) and node.target.id not in self.set:
            self.read_first.add(node.target.id)
        self.visit(node.target)

    def visit(self, node: ast.AST) -> None:
        """Take the variables of a comprehension as its own."""
        if not hasattr(node, "generators"):
            super().visit(node)
            return
        before = set(self.set)
        for part in node.generators:
            self.visit(part.iter)
            self.set |= _names(part.target)
            for condition in part.ifs:
                self.visit(condition)
        for name in ("key", "value", "elt"):
            if (what := getattr(node, name, None)) is not None:
                self.visit(what)
        self.set = before

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Take its arguments as its own."""
        before = set(self.set)
        self.set |= {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
        self.visit(node.body)
        self.set = before

    def visit_For(self, node: ast.For) -> None:
        """Go through a loop within the loop."""
        self.visit(node.iter)
        self.visit(node.target)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_Name(self, node: ast.Name) -> None:
        """Note how a variable is used."""
        if isinstance(node.ctx, ast.Load):
            if node.id not in self.set:
                self.read_first.add(node.id)
        else:
            self.set.add(node.id)
            self.lines.setdefault(node.id, node.lineno)


class _Reader:
    """Looks at one loop, and at the loop over epochs around it."""

    def __init__(self, tree: ast.Module, function: _Function, loop: _Loop, outer: _Loop) -> None:
        self._tree = tree
        self._function = function
        self._loop = loop
        self._outer = outer
        self._kept = _kept_names(tree)

    def remarks(self) -> Iterator[tuple[int, str]]:
        """Yield line numbers with remarks."""
        yield from self._carried()
        yield from self._set_after_read()
        yield from self._of_other_functions()
        yield from self._counted()
        yield from self._written()
        yield from self._made_before()
        yield from self._set_in_one_epoch()
        for node in _within(self._loop.body, loops=False):
            if isinstance(node, ast.Break):
                yield node.lineno, "`break` leaves its step undone; state.stop() ends after it"

    def _carried(self) -> Iterator[tuple[int, str]]:
        """Find names that go from step to step."""
        fresh = _targets(self._loop)  # Names set in each step so far.
        for node in _within(self._loop.body):
            if isinstance(node, ast.withitem):
                fresh |= _names(node.optional_vars)
            elif isinstance(node, ast.For):
                if _root(node.iter) in {"", *self._kept, *fresh}:
                    fresh |= _names(node.target)
            elif isinstance(node, ast.AugAssign):
                if getattr(node.target, "attr", "") == "grad":
                    continue  # Gradients are kept.
                if (name := _root(node.target)) and name not in self._kept | fresh:
                    yield node.lineno, _goes_on(ast.unparse(node.target))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = _root(node.func.value)
                if node.func.attr in _FILLS and name and name not in self._kept | fresh:
                    yield node.lineno, _goes_on(ast.unparse(node.func.value))
            elif isinstance(node, ast.Assign):
                read = _read(node.value)
                names = {n for target in node.targets for n in _names(target)}
                for name in sorted(names & read - self._kept - fresh):
                    yield node.lineno, _goes_on(name)
                fresh |= names

    def _set_after_read(self) -> Iterator[tuple[int, str]]:
        """Find names that a turn reads as the one before has set them, here and by epochs."""
        for loop in {id(self._loop): self._loop, id(self._outer): self._outer}.values():
            order = Order(loop)
            for name in order.carried - self._kept:
                yield order.lines[name], _goes_on(name)
            for node in _within(loop.body):
                if not isinstance(node, ast.Call) or _root(node.func) != "next" or not node.args:
                    continue
                name = _root(node.args[0])
                if name and name not in self._kept | order.set:
                    yield node.lineno, _goes_on(name)

    def _of_other_functions(self) -> Iterator[tuple[int, str]]:
        """Find `global` and `nonlocal`, here and in functions of this file that the body calls."""
        called = {
            _root(node.func) if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            for node in _within(self._loop.body)
            if isinstance(node, ast.Call)
        }
        for function in ast.walk(self._tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if function is not self._function and function.name not in called:
                continue
            for node in ast.walk(function):
                if isinstance(node, (ast.Global, ast.Nonlocal)):
                    word = "global" if isinstance(node, ast.Global) else "nonlocal"
                    yield node.lineno, _goes_on(f"{word} {', '.join(node.names)}")

    def _counted(self) -> Iterator[tuple[int, str]]:
        given = self._loop.iter if isinstance(self._loop, ast.For) else None
        for node in _without_steps(given) if given is not None else ():
            if isinstance(node, ast.Call) and _last(node.func) in ("enumerate", "zip", "islice"):
                yield (
                    node.lineno,
                    "a restart begins to count anew here; take state.batch (in this epoch) or "
                    "state.n (in all)",
                )

    def _written(self) -> Iterator[tuple[int, str]]:
        for node in _within(self._outer.body):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name == "open" and _is_for_writing(node):
                yield node.lineno, "a restart empties this file; open it with 'a'"
            elif name == "torch.save" or name.endswith((".save_pretrained", "save_checkpoint")):
                yield (
                    node.lineno,
                    f"{name}(...) may run again after a fault, with the same content; "
                    "state.once(f) around it runs it once",
                )

    def _set_in_one_epoch(self) -> Iterator[tuple[int, str]]:
        """Find attributes set in one turn, `if epoch == 3:`, of objects made before the loops."""
        order = Order(self._outer)
        for node in _within(self._outer.body):
            if not isinstance(node, ast.If) or not any(
                isinstance(n, (ast.Eq, ast.In)) for n in ast.walk(node.test)
            ):
                continue
            if "rank" in ast.unparse(node.test):
                continue  # Its replacement has the same.
            for part in _within(node.body):
                if not isinstance(part, ast.Assign):
                    continue
                for target in part.targets:
                    if not isinstance(target, (ast.Attribute, ast.Subscript)):
                        continue
                    if _root(target) not in self._kept | order.set:
                        yield (
                            part.lineno,
                            f"`{ast.unparse(target)}` is set in one turn of the loop, and a "
                            "replacement that begins later does not set it: set it in each turn, "
                            "as `if epoch >= 3:` does, or keep it",
                        )

    def _made_before(self) -> Iterator[tuple[int, str]]:
        """Find state.once(...) before a loop of the program's own: State sees no place there."""
        items = [i for n in _within(self._loop.body) if isinstance(n, ast.With) for i in n.items]
        calls = [i.context_expr for i in items if isinstance(i.context_expr, ast.Call)]
        if not any(_last(call.func) == "step" for call in calls):
            return
        for statement in self._function.body:
            if statement.lineno >= self._loop.lineno:
                return
            if isinstance(statement, (ast.If, ast.FunctionDef, ast.ClassDef)):
                continue
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and _last(node.func) == "once":
                    yield (
                        node.lineno,
                        "a restart comes here with the state of its step; put `if state.n == 0:` "
                        "before this state.once(...), or call it in the loop",
                    )


def plain_attributes(models: Iterable[Any]) -> dict[str, Any]:
    """Return the numbers in attributes of the program's own modules, which nobody keeps."""
    return {
        f"{name}.{key}".strip("."): value
        for model in models
        for name, module in model.named_modules()
        if not type(module).__module__.startswith("torch.")
        for key, value in vars(module).items()
        if type(value) in (int, float) and not key.startswith("_")
    }


def advise_of_attributes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return remarks on the attributes that a step has changed."""
    return [
        f"a step changes the attribute `{name}` of a module, and State keeps parameters and "
        "buffers: make it one by register_buffer(), or give the module get_extra_state() and "
        "set_extra_state()"
        for name, value in now.items()
        if before.get(name, value) != value
    ]


def _without_steps(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is around a call of steps(): what feeds it counts nothing."""
    yield node
    if not isinstance(node, ast.Call) or _last(node.func) != "steps":
        for part in ast.iter_child_nodes(node):
            yield from _without_steps(part)


def _goes_on(name: str) -> str:
    return (
        f"`{name}` goes on from step to step, and is not in State; keep it: "
        "run = state.vars(...), or give its object to State"
    )


def _kept_names(tree: ast.Module) -> set[str]:
    """Return names that State was given, that hold it or its vars, or that nothing is kept by."""
    kept = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):  # A module's function fills nothing.
            kept |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        for item in node.items if isinstance(node, ast.With) else ():
            kept |= _names(item.optional_vars) if _is_a_bar(item.context_expr) else set()
        if isinstance(node, ast.Call) and _last(node.func) == "State":
            kept |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if _last(node.value.func) in _KEEPERS or _is_a_bar(node.value):
            kept |= {name for target in node.targets for name in _names(target)}
        if any(isinstance(n, ast.Call) and _last(n.func) == "steps" for n in ast.walk(node.value)):
            kept |= {name for target in node.targets for name in _names(target)}  # A bar's counts.
    for node in ast.walk(tree):  # `losses = run.losses` is the same list.
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Attribute):
            continue
        if _root(node.value) in kept:
            kept |= {name for target in node.targets for name in _names(target)}
    return kept


def _is_a_bar(node: ast.expr) -> bool:
    """Whether it makes a bar of tqdm, which only shows."""
    return isinstance(node, ast.Call) and _last(node.func) in ("tqdm", "trange")


def _last(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else _root(function)


def _root(node: ast.expr) -> str:
    """Return the variable that an expression begins with; empty if there is none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(target: ast.expr | None) -> set[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return {name for part in target.elts for name in _names(part)}
    return {target.id} if isinstance(target, ast.Name) else set()


def _read(node: ast.expr) -> set[str]:
    """Return the variables that an expression reads, without those of its comprehensions."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    own = [n.target for n in ast.walk(node) if isinstance(n, ast.comprehension)]
    return names.difference(*map(_names, own))


def _targets(loop: _Loop) -> set[str]:
    return _names(loop.target) if isinstance(loop, ast.For) else set()


def _within(body: list[ast.stmt], loops: bool = True) -> Iterator[ast.AST]:
    """Yield the nodes of a body in the order of its lines, without functions defined in it."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        yield node
        if loops or not isinstance(node, (ast.For, ast.While)):
            yield from _within(list(ast.iter_child_nodes(node)), loops)  # type: ignore[arg-type]


def _innermost(tree: ast.Module, line: int) -> _Function:
    found: _Function = tree
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.lineno <= line <= (node.end_lineno or 0):
            found = node  # ast.walk() yields inner ones later.
    return found


def _loop_at(function: _Function, line: int) -> _Loop | None:
    """Return the loop whose head, whose `with`, or whose named steps are on that line."""
    loops = [n for n in ast.walk(function) if isinstance(n, (ast.For, ast.While))]
    named = {
        name
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and node.lineno <= line <= (node.end_lineno or 0)
        for target in node.targets
        for name in _names(target)
    }  # `bar = tqdm(state.steps(loader))`, and then `for x in bar:`.
    for loop in sorted(loops, key=lambda loop: loop.lineno):
        if loop.lineno > line and isinstance(loop, ast.For) and _root(loop.iter) in named:
            return loop
    around = [loop for loop in loops if loop.lineno <= line <= (loop.end_lineno or 0)]
    return max(around, key=lambda loop: loop.lineno, default=None)


def _loop_around(function: _Function, loop: _Loop) -> _Loop:
    for node in ast.walk(function):
        if not isinstance(node, ast.For) or node is loop or loop not in ast.walk(node):
            continue
        if "epochs" in ast.unparse(node.iter):
            return node
    return loop


def _is_for_writing(call: ast.Call) -> bool:
    if "devnull" in ast.unparse(call):
        return False
    given = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
    return any(isinstance(m, ast.Constant) and str(m.value).startswith("w") for m in given)
