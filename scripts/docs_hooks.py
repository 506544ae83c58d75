"""Hooks of mkdocs: add the figures of results/, which is beside docs/, to the site."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted((ROOT / "results").glob("*/*.png")):
        place = path.relative_to(ROOT).as_posix()
        files.append(File(place, str(ROOT), str(config.site_dir), config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """On GitHub results/ is one folder above docs/, on the site it is inside."""
    return markdown.replace("](../results/", "](results/").replace("](../../results/", "](../results/")
