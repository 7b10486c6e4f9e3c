#!/usr/bin/env python3
"""Every rule of tools/lint fires on a tree that breaks it, and none on one that keeps it."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LINT = Path(__file__).resolve().parent / "lint"
GOOD = {"base/a.h": "// Says a.\n#pragma once\n", "core/member/machine.h": '// Says b.\n#pragma once\n\n#include "base/a.h"\n'}


class Lint(unittest.TestCase):
    def run_on(self, files, *options):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**GOOD, **files}.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            (Path(folder) / ".clang-format").write_text("BasedOnStyle: Google\nColumnLimit: 100\n")
            return subprocess.run([sys.executable, str(LINT), "--root", folder, *options],
                                  capture_output=True, text=True)

    def fires(self, name, text, what):
        done = self.run_on({name: text})
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(what, done.stdout)

    def test_a_good_tree_passes(self):
        done = self.run_on({})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_room_that_includes_upwards(self):
        self.fires("core/x.cc", '// X.\n#include "io/loop.h"\n', "core/ may not include io/")

    def test_parts_that_know_each_other(self):
        self.fires("arena/x.cc", '// X.\n#include "collective/group.h"\n', "arena/ may not include collective/")

    def test_processes_that_know_each_other(self):
        self.fires("runtime/worker/x.cc", '// X.\n#include "runtime/agent/y.h"\n', "runtime/worker/ may not include runtime/agent/")
        self.fires("runtime/jobs/x.cc", '// X.\n#include "runtime/worker/y.h"\n', "runtime/jobs/ may not include runtime/worker/")
        self.fires("runtime/x.cc", "// X.\n", "runtime/ has rooms")

    def test_a_circle_of_includes(self):
        done = self.run_on({"io/x.h": '// X.\n#pragma once\n\n#include "io/y.h"\n', "io/y.h": '// Y.\n#pragma once\n\n#include "io/x.h"\n'})
        self.assertEqual(done.stdout.count("a circle of includes"), 2, done.stdout)

    def test_a_machine_that_knows_another(self):
        self.fires("core/member/x.cc", '// X.\n#include "core/agent/machine.h"\n', "machine member knows machine agent")

    def test_a_banned_word_in_core(self):
        self.fires("core/x.cc", "// X.\nauto t = std::chrono::steady_clock::now();\n", "banned in core/")

    def test_a_banned_word_in_a_comment_is_no_finding(self):
        self.assertEqual(self.run_on({"core/x.cc": "// No sleep here, no unordered_map.\nint x = 1;\n"}).returncode, 0)

    def test_a_retired_word(self):
        for line in ("// The sentinel holds it.", "class Sentinels;", "int my_lender = 0;", "const int kRemedy = 1;"):
            self.fires("io/x.cc", f"// X.\n{line}\n", "is no word of ours any more")
        self.fires("python/holdfast/x.py", '"""X."""\nremedy = 1\n', "'remedy' is no word of ours any more")
        self.fires("io/x.cc", "// X.\nint fold();\n", "'fold' is no word of ours any more")
        self.assertEqual(self.run_on({"sim/x.cc": "// X.\nint fold();\n", "python/tests/x.py": '"""X."""\nremedy = 1\n'}).returncode, 0)
        self.assertEqual(self.run_on({"io/x.cc": "// A calender, a blender, the unsentinel.\n"}).returncode, 0)

    def test_an_operating_system_header_in_base(self):
        self.fires("base/x.cc", "// X.\n#include <unistd.h>\n", "operating-system header")

    def test_a_long_file(self):
        self.fires("base/x.cc", "// X.\n" + "int f();\n" * 600, "at most 600")

    def test_a_long_line(self):
        self.fires("base/x.cc", "// X.\n// " + "x" * 100 + "\n", "columns")

    def test_a_long_function(self):
        self.fires("base/x.cc", "// X.\nvoid f() {\n" + "  g();\n" * 80 + "}\n", "a function of")

    def test_an_exception_that_c_would_see(self):
        body = " {\n  return HF_OK;\n}"
        self.fires("capi/group.cc", f"// X.\nhf_status hf_wait(hf_work* work,\n    int milliseconds){body}\n", "lets exceptions out")

    def test_a_todo_without_an_issue(self):
        self.fires("base/x.cc", "// X.\n// TODO: more\n", "TODO without an issue")

    def test_getenv_outside_config(self):
        self.fires("io/x.cc", '// X.\nauto x = getenv("A");\n', "getenv outside config/")

    def test_a_file_without_its_sentence(self):
        self.fires("base/x.cc", "int x = 1;\n", "opens with one sentence")

    def test_a_long_script(self):
        self.fires("python/x.py", '"""Says x."""\n' + "a = 1\n" * 600, "at most 600")

    def test_a_script_without_its_sentence(self):
        self.fires("tools/x", "#!/usr/bin/env python3\nimport sys\n", "opens with one sentence")

    def test_a_todo_in_a_script(self):
        self.fires("tests/x/y.py", '"""Says x."""\n# TODO: more\n', "TODO without an issue")

    def test_a_shell_script_that_passes_over_failures(self):
        self.fires("run", "#!/usr/bin/env bash\n# Runs.\nset -e\nfalse | true\n", "pipefail")

    def test_good_scripts_pass(self):
        files = {"run": "#!/usr/bin/env bash\n# Runs.\nset -euo pipefail\n", "python/x/__init__.py": "",
                 "tools/y": '#!/usr/bin/env python3\n"""Does y."""\n'}
        self.assertEqual(self.run_on(files).returncode, 0)

    TABLE = '// Says t.\n#pragma once\n\n#define HF_SETTINGS(X) \\\n  X(grip, int, kWhole, "MS_GRIP", "1", 0, 9, "How firm.")\n'

    def test_a_dead_setting(self):
        self.fires("config/settings.h", self.TABLE, "nobody reads grip (MS_GRIP)")

    def test_a_setting_that_only_a_test_reads_is_dead(self):
        done = self.run_on({"config/settings.h": self.TABLE, "io/x_test.cc": "int f() { return settings.grip; }\n"})
        self.assertIn("nobody reads grip", done.stdout)

    def test_a_setting_that_is_read_is_no_finding(self):
        for name, text in (("io/x.cc", "// X.\nint f() { return settings_.grip; }\n"),
                           ("python/holdfast/x.py", '"""X."""\nGRIP = "MS_GRIP"\n')):
            done = self.run_on({"config/settings.h": self.TABLE, name: text})
            self.assertNotIn("dead setting", done.stdout)

    def test_a_header_that_does_not_compile_alone(self):
        done = self.run_on({"base/x.h": "// X.\n#pragma once\nstd::string x();\n"}, "--headers")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, "base/x.h:1: does not compile alone: .*error: .*std")

    def test_headers_that_reach_libtorch_by_another_are_left_out(self):
        files = {"train/a.h": "// A.\n#pragma once\n\n#include <torch/torch.h>\n",
                 "train/b.h": '// B.\n#pragma once\n\n#include "train/a.h"\n'}
        done = self.run_on(files, "--headers")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("2 headers reach libtorch", done.stderr)

    FACE = "python/holdfast/mindspore/"

    def test_a_circle_of_imports_in_a_face(self):
        ways = ("from holdfast.mindspore import _b", "from holdfast.mindspore._b import f", "import holdfast.mindspore._b",
                "def f():\n    from holdfast.mindspore import _b", "imported('holdfast.mindspore._b')")
        for way in ways:
            done = self.run_on({self.FACE + "_a.py": f'"""A."""\n{way}\n',
                                self.FACE + "_b.py": '"""B."""\nfrom holdfast.mindspore import _c\n',
                                self.FACE + "_c.py": '"""C."""\nimport holdfast.mindspore._a\n'})
            self.assertEqual(done.returncode, 1, way)
            self.assertEqual(done.stdout.count("a circle of imports"), 3, done.stdout)
            self.assertIn("_a.py:1: a circle of imports: _b.py imports this in turn", done.stdout)

    def test_imports_for_types_alone_make_a_circle_too(self):
        types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from holdfast.mindspore._b import B\n"
        done = self.run_on({self.FACE + "_a.py": f'"""A."""\n{types}', self.FACE + "__init__.py": '"""I."""\n',
                            self.FACE + "_b.py": '"""B."""\nfrom holdfast.mindspore import _a\n'})
        self.assertEqual(done.stdout.count("a circle of imports"), 2, done.stdout)

    def test_a_python_room_that_imports_what_it_may_not_know(self):
        for path, name in (("holdfast/_x.py", "holdfast.torch._engine"), ("holdfast/_x.py", "holdfast.mindspore"),
                           ("holdfast/torch/x.py", "mindio_ttp"), ("holdfast/mindspore/x.py", "holdfast.torch"),
                           ("holdfast/torch/x.py", "holdfast.verify._probe"), ("mindio_ttp/x.py", "holdfast")):
            self.fires(f"python/{path}", f'"""X."""\nimport {name}\n', f":1: imports {name}: ")
        for path in ("holdfast/cli.py", "holdfast/mindspore/x.py"):
            done = self.run_on({f"python/{path}": '"""X."""\nimport holdfast.mindspore._launch\n'})
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_face_that_imports_its_own_package_for_a_name(self):
        done = self.run_on({self.FACE + "__init__.py": '"""I."""\nfrom holdfast.mindspore import _a\nX = 1\n',
                            self.FACE + "_a.py": '"""A."""\nfrom holdfast.mindspore import X\n'})
        self.assertEqual(done.stdout.count("a circle of imports"), 2, done.stdout)

    def test_a_face_that_looks_into_a_program(self):
        for line, name in (("import dis", "dis"), ("from opcode import opmap", "opcode"), ("import gc as g; g.get_objects()", "gc.get_objects"),
                           ("from gc import get_referrers", "gc.get_referrers"), ("import ctypes; ctypes.pythonapi.f()", "ctypes.pythonapi"),
                           ("def f(frame): return frame.f_locals", "f_locals"), ("def f(frame): return getattr(frame, 'f_locals')", "f_locals")):
            for folder in ("", "torch/", "mindspore/"):
                self.fires(f"python/holdfast/{folder}x.py", f'"""X."""\n{line}\n', f":2: {name} looks into the program")

    def test_verify_and_tests_may_look_and_a_word_is_no_look(self):
        files = {"python/holdfast/verify/x.py": '"""X."""\nimport dis\n', "python/tests/test_x.py": '"""X."""\nimport gc\ngc.get_objects()\n',
                 "python/holdfast/torch/x.py": '"""Reads no f_locals."""\nimport gc\n# gc.get_objects\ngc.collect()\ndis = "dis"\n'}
        done = self.run_on(files)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_long_file_of_a_face(self):
        text = '"""X."""\n' + "y = 1\n" * 450
        for folder in ("", "torch/", "mindspore/"):
            self.fires(f"python/holdfast/{folder}x.py", text, "a file of a Python face has at most 450")
        self.assertEqual(self.run_on({"python/holdfast/verify/x.py": text}).returncode, 0)

    def test_bad_format(self):
        self.fires("base/x.cc", "// X.\nint   x=1;\n", "not formatted")


if __name__ == "__main__":
    unittest.main()
