#!/usr/bin/env python3
"""Every rule of tools/pages fires on a tree that breaks it, and none on one that keeps it."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PAGES = Path(__file__).resolve().parent / "pages"
GOOD = {
    "README.md": "# A\n\nSee [b](docs/b.md#two-words-here), `docs/b.md` and [the web](https://example.com/x.md).\n\n"
                 "```python\nx = 1  # One.\n```\n\n    run it  # Now.\n",
    "docs/b.md": "# B\n\n## Two words, `here`\n\n[up](../README.md) and `[no](link.md)`\n\n```\n[no](link.md)\n```\n\n"
                 "| text | cure |\n| --- | --- |\n| `port … is taken by another` | none |\n",
    "docs/zh/a.md": "# 甲\n\n## 限制\n\n[上](#限制)\n\n```python\nx = 1  # 一\n```\n\n```\nrun it  # 现在\n```\n",
    "base/a.cc": 'auto x = cat("port ", n, " is taken by "\n             "another one");\n',
}


class Pages(unittest.TestCase):
    def run_on(self, files, *options):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**GOOD, **files}.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return subprocess.run([sys.executable, str(PAGES), "--root", folder, *options], capture_output=True, text=True)

    def fires(self, name, text, what):
        done = self.run_on({name: text})
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(what, done.stdout)
        self.assertEqual(done.stdout.count("\n"), 1, done.stdout)

    def test_a_good_tree_passes(self):
        done = self.run_on({})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_link_to_no_file(self):
        self.fires("docs/c.md", "# C\n\n[x](d.md)\n", "docs/c.md:3: a link to d.md")
        self.fires("docs/c.md", "# C\n\n[x](../../etc/passwd)\n", "no file of the tree")
        self.fires("docs/c.md", "# C\n\n[the folder](../docs)\n", "no file of the tree")

    def test_a_link_to_no_heading(self):
        self.fires("docs/c.md", "# C\n\n[x](b.md#two)\n", "b.md has no such heading")
        self.fires("docs/c.md", "# C\n\n```\n# D\n```\n[x](#d)\n", "c.md has no such heading")

    def test_a_list_right_below_text(self):
        self.fires("docs/c.md", "# C\n\nText:\n- one\n  more\n- two\n", "docs/c.md:4: a list or a table right below")
        self.fires("docs/c.md", "# C\n\nText:\n| a | b |\n| --- | --- |\n", "docs/c.md:4: a list or a table right below")
        good = "# C\n- one\nof it\n- two\n\nText,\n-1 or 2\n\n1. one\n2. two\n\n```\nText:\n- one\n```\n"
        self.assertEqual(self.run_on({"docs/c.md": good}).returncode, 0)

    def test_a_page_that_is_named_and_not_there(self):
        self.fires("docs/c.md", "# C\n\nSee `docs/d.md`.\n", "names docs/d.md")

    def test_a_sample_that_is_no_python(self):
        self.fires("docs/c.md", "# C\n\n```python\nif x\n```\n", "docs/c.md:3: a sample that is no Python")

    def test_a_chinese_sample_of_its_own(self):
        self.fires("docs/zh/b.md", "# 乙\n\n```\nrun it twice\n```\n", "a sample that no English page has")
        self.fires("docs/zh/b.md", "# 乙\n\n```python\nx = 2\n```\n", "a sample that no English page has")

    def test_a_quoted_sentence_that_nobody_says(self):
        self.fires("docs/zh/b.md", "| 输出 | 处理 |\n| --- | --- |\n| `port … is taken by nobody` | |\n", "b.md:3: quotes what no source says")
        self.fires("docs/zh/b.md", "| 输出 | 处理 |\n| --- | --- |\n| `port … is` | |\n", "quotes too little")

    def test_a_sentence_that_only_a_test_says(self):
        done = self.run_on({"base/a.cc": "", "base/a_test.cc": GOOD["base/a.cc"]})
        self.assertIn("docs/b.md:13: quotes what no source says", done.stdout)

    def test_what_is_built_is_no_page(self):
        self.assertEqual(self.run_on({"build/pages/c.md": "[x](d.md)\n", ".git/c.md": "[x](d.md)\n"}).returncode, 0)

    def test_the_pages_with_what_they_link_to(self):
        done = self.run_on({"docs/c.md": "[source](../base/a.cc)\n"}, "--with-links")
        self.assertEqual(done.stdout.split(), ["README.md", "base/a.cc", "docs/b.md", "docs/c.md", "docs/zh/a.md"])


if __name__ == "__main__":
    unittest.main()
