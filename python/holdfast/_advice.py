"""Read the source around a training loop, and remark on what a fault would change.

Each remark is one line: the place, the problem and the cure. Nothing but the parsed file (`ast`) is
looked at, so a remark is a guess. `# holdfast: ok` at the end of the line that it names silences
it.
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
_KEEPERS: Final = {"State", "vars"}  # The results of these calls count as kept.

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
_Loop = ast.For | ast.While


def advise(filename: str, line: int) -> list[str]:
    """Return remarks on the loop at a line of a file; none if there is no source."""
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
    """Say the remarks, or raise them as a UserError if State was made with `strict`."""
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
        self.lines: dict[str, int] = {}  # By variable: where it is set first.
        if isinstance(loop, ast.For):
            self.visit(loop.target)
        else:
            self.visit(loop.test)
        for statement in loop.body:
            self.visit(statement)

    @property
    def carried(self) -> set[str]:
        """The variables whose value one iteration leaves to the next: read before they are set."""
        return self.read_first & self.set

    def visit_Assign(self, node: ast.Assign) -> None:
        """Visit the value before the targets: it is read before they are set."""
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Note the variable as read, then as set."""
        self.visit(node.value)
        if isinstance(node.target, ast.Name) and node.target.id not in self.set:
            self.read_first.add(node.target.id)
        self.visit(node.target)

    def visit(self, node: ast.AST) -> None:
        """Visit a node. The variables of a comprehension are not the loop's."""
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
        """Visit a lambda. Its arguments are not the loop's variables."""
        before = set(self.set)
        self.set |= {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
        self.visit(node.body)
        self.set = before

    def visit_For(self, node: ast.For) -> None:
        """Visit a nested loop."""
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
        """Find names that a step changes from their old value: `n += 1`, `x.append(y)`."""
        fresh = _targets(self._loop)  # Names that the step has set so far.
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
        """Find names that an iteration reads before it sets them, over steps and over epochs."""
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
        """Find `global` and `nonlocal` in the loop's function and in those that the loop calls."""
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
        """Find attributes that are set in one epoch only (`if epoch == 3:`), and so not kept."""
        order = Order(self._outer)
        for node in _within(self._outer.body):
            if not isinstance(node, ast.If) or not any(
                isinstance(n, (ast.Eq, ast.In)) for n in ast.walk(node.test)
            ):
                continue
            if "rank" in ast.unparse(node.test):
                continue  # The successor has the same rank.
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
        """Find state.once(...) before a loop of state.step(): a restart runs it at a later step."""
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
    """Return the numbers in attributes of the program's own modules. State does not keep them."""
    return {
        f"{name}.{key}".strip("."): value
        for model in models
        for name, module in model.named_modules()
        if not type(module).__module__.startswith("torch.")
        for key, value in vars(module).items()
        if type(value) in (int, float) and not key.startswith("_")
    }


def advise_of_attributes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return remarks on the attributes that differ from what they were before a step."""
    return [
        f"a step changes the attribute `{name}` of a module, and State keeps parameters and "
        "buffers: make it one by register_buffer(), or give the module get_extra_state() and "
        "set_extra_state()"
        for name, value in now.items()
        if before.get(name, value) != value
    ]


def _without_steps(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of an expression, but not the arguments of steps()."""
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
    """Return names that need no remark: of what State keeps, of modules and of progress bars."""
    kept = set()
    attributes = set()  # `self.run = state.vars(...)`.
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):  # `module.add(x)` fills no container.
            kept |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        for item in node.items if isinstance(node, ast.With) else ():
            kept |= _names(item.optional_vars) if _is_a_bar(item.context_expr) else set()
        if isinstance(node, ast.Call) and _last(node.func) == "State":
            kept |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if _last(node.value.func) in _KEEPERS or _is_a_bar(node.value):
            kept |= {name for target in node.targets for name in _names(target)}
            attributes |= {t.attr for t in node.targets if isinstance(t, ast.Attribute)}
        # `bar = tqdm(state.steps(...))`.
        if any(isinstance(n, ast.Call) and _last(n.func) == "steps" for n in ast.walk(node.value)):
            kept |= {name for target in node.targets for name in _names(target)}
    for node in ast.walk(tree):  # `losses = run.losses` is the same list.
        for target, value in _pairs(node) if isinstance(node, ast.Assign) else ():
            if not isinstance(value, ast.Attribute):
                continue
            if _root(value) in kept or value.attr in attributes:
                kept |= _names(target)
    return kept


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what is set and to what: of `a, b = x, y` two pairs."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts)
        else:
            yield target, node.value


def _is_a_bar(node: ast.expr) -> bool:
    """Return whether an expression makes a progress bar of tqdm, which only shows."""
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
    """Yield the nodes of a body in line order, without the functions that it defines.

    `loops`: also the bodies of loops in it.
    """
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
    """Return the loop around a line, or the loop over what that line gives a name to."""
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
