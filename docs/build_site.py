"""`make docs`: puts the pages together, builds the site with Zensical and checks it.

The site has the layout of the repository, so that a link which works on GitHub works there too. What is written by hand
is copied; the methods' cards, the reference and the list of settings are made from the code, here and nowhere else.
The build fails at any warning, at a link that leads nowhere, and at a public name that the reference does not have.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
PAGES, SITE = ROOT / "build/pages", ROOT / "build/site"
ABOUT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
WRITTEN = (*ABOUT, "docs/*.md", "docs/*.css", "results/README.md", "results/*/README.md")
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
CARDS, REFERENCE, SETTINGS = "docs/cards.md", "docs/reference.md", "docs/settings.md"
# Sections of the reference, and the modules whose public names they hold; methods have their cards.
SECTIONS = {
    "In your own loop": ("pskd", "pskd.schedules", "pskd.errors"),
    "Metrics": ("pskd.metrics",),
    "Confidence put to use": ("pskd.calibration",),
    "Networks": ("pskd.workbench.models",),
    "In your stack": ("pskd.integrations.lightning", "pskd.integrations.transformers", "pskd.integrations.timm"),
    "For methods and tasks of your own": (
        "pskd.settings",
        "pskd.workbench.tasks.base",
        "pskd.workbench.tasks.predictor",
    ),
}


def main() -> int:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    generated = {CARDS: cards(), REFERENCE: reference(), SETTINGS: settings()}
    for name, text in generated.items():
        write(name, text)
    for pattern in WRITTEN:
        for page in sorted(ROOT.glob(pattern)):
            write(str(page.relative_to(ROOT)), with_links(page))
    # A page that is taken from the cache keeps its warnings to itself.
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", str(ROOT / "zensical.toml")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    output = re.sub(r"\x1b\[[\d;]*m", "", built.stdout + built.stderr)  # without its colours
    problems = [output] if built.returncode or re.search(r"^(griffe|Warning)\b", output, re.MULTILINE) else []
    if not problems:
        problems = [*dict.fromkeys(dead_links()), *missing_names()]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(problems)} problems" if problems else f"{len(list(SITE.rglob('*.html')))} pages: {SITE}/index.html")
    return int(bool(problems))


def write(name: str, text: str) -> None:
    (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / name).write_text(text)


def with_links(page: Path) -> str:
    """A page whose links to source files lead to the reference; other files that it links to are copied."""
    places = cards_by_file()

    def lead(found: re.Match[str]) -> str:
        target = (page.parent / found[1]).resolve()
        if urlsplit(found[1]).scheme or not target.is_file():
            return found[0]
        if target in places:
            return os.path.relpath(PAGES / places[target], PAGES / page.parent.relative_to(ROOT))
        if target.suffix != ".md":
            copy = PAGES / target.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, copy)
        return found[0]

    return LINK.sub(lead, page.read_text())


def method_classes() -> dict[str, type]:
    """Our methods by name, those of the paper first."""
    from pskd.workbench.registry import methods

    paper = ["hard", "label_smoothing", "cs_kd", "tf_kd", "ps_kd"]
    return {name: methods.find(name) for name in dict.fromkeys([*paper, *methods.names()])}


def public(kind: type) -> str:
    return f"pskd.{kind.__name__}"


def cards_by_file() -> dict[Path, str]:
    """Where the site speaks of what a source file holds."""
    from pskd.methods import Method

    places = {Path(inspect.getfile(each)).resolve(): f"{CARDS}#{public(each)}" for each in method_classes().values()}
    return {**places, Path(inspect.getfile(Method)).resolve(): f"{REFERENCE}#{public(Method)}"}


def cards() -> str:
    parts = [
        "# The methods' cards\n\nMade from the methods' own docstrings. [Methods](methods.md) compares their costs; "
        "what all of them can do is output at [`pskd.Method`][pskd.Method].\n"
    ]
    for name, kind in method_classes().items():
        shown = f"::: {public(kind)}\n    options:\n      heading_level: 2\n      members: false\n"
        parts.append(f"{shown}\nOn the command line: `method={name}`{settings_table(kind)}\n")
    return "\n".join(parts)


def settings_table(kind: type) -> str:
    from pskd.settings import allowed
    from pskd.workbench.config.methods import method_settings

    settings = method_settings(kind).values()
    if not settings:
        return ", without settings."
    rows = [f"| `method.{each.name}` | {default(each)} | {allowed(each.annotation)} |" for each in settings]
    return "\n".join(["\n", "| setting | default | allowed |", "|---|---|---|", *rows])


def default(setting: object) -> str:
    value = setting.default  # type: ignore[attr-defined]
    return "to be given" if setting.required else "" if value is None else f"`{value}`"  # type: ignore[attr-defined]


def settings() -> str:
    from pskd.workbench.config import describe

    return "\n".join(["# Every setting", "", "What `pskd train --settings` prints.", "", "```text", *describe(), "```"])


def public_names(module: str) -> list[str]:
    """The public names of a module as `module.name`: its ``__all__``, or what it defines itself."""
    found = import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, thing in vars(found).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module and callable(thing)
    ]
    return [f"{module}.{name}" for name in names if not inspect.ismodule(getattr(found, name))]


def references() -> dict[str, list[str]]:
    """What the reference shows in each section: public names, each where it is named first, without the methods."""
    shown = set(method_classes().values())
    sections: dict[str, list[str]] = {}
    for title, modules in SECTIONS.items():
        for name in (name for module in modules for name in public_names(module)):
            thing = getattr(import_module(name.rpartition(".")[0]), name.rpartition(".")[2])
            if thing not in shown:
                shown.add(thing)
                sections.setdefault(title, []).append(name)
    return sections


def reference() -> str:
    parts = ["# Reference\n\nEvery public name. The methods are on [their cards](cards.md).\n"]
    for title, names in references().items():
        parts += [f"## {title}\n", *(f"::: {name}\n" for name in names)]
    return "\n".join(parts)


def missing_names() -> Iterator[str]:
    """Public names that neither the reference nor a card has."""
    there = {each for name in (CARDS, REFERENCE) for each in Page((SITE / name).with_suffix(".html")).anchors}
    for name in (name for names in references().values() for name in names):
        if name not in there:
            yield f"{name} is not in the reference"
    for kind in method_classes().values():
        if public(kind) not in there:
            yield f"{public(kind)} has no card"


class Page(HTMLParser):
    """The anchors of a built page, and what it links to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: Iterable[tuple[str, str | None]]) -> None:
        for key, value in attributes:
            if key in ("id", "name") and value:
                self.anchors.add(value)
            if value and (tag, key) in {("a", "href"), ("img", "src"), ("link", "href"), ("script", "src")}:
                self.links.append(value)


def dead_links() -> Iterator[str]:
    """Links of the built pages to files and anchors that are not there; other sites are not asked."""
    pages = {path: Page(path) for path in SITE.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        for link in page.links:
            where = urlsplit(link)
            if where.scheme or where.netloc:
                continue
            target = (path.parent / unquote(where.path)).resolve() if where.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{path.relative_to(SITE)} links to {link}, which is not there"
            elif target in pages and where.fragment and unquote(where.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(SITE)} links to {link}: {target.relative_to(SITE)} has no such place"


if __name__ == "__main__":
    raise SystemExit(main())
