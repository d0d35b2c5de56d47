"""What stands beside the package, for people and machines: all say the same of it, and name what is there."""

import json
import re
import subprocess
import tomllib

import pytest
from page_blocks import ROOT, text_of

PROJECT = tomllib.loads(text_of("pyproject.toml"))["project"]
CITATION = dict(re.findall(r"^(\w[\w-]*): (.+)$", text_of("CITATION.cff"), re.M))
LONGEST_CHANGELOG = 12_000


def test_codemeta_is_that_of_the_package():
    said = json.loads(text_of("codemeta.json"))
    for name in ("name", "version", "description", "keywords"):
        assert said[name] == PROJECT[name]
    assert [one["name"] for one in said["author"]] == [one["name"] for one in PROJECT["authors"]]
    assert said["softwareRequirements"] == PROJECT["dependencies"]
    assert said["runtimePlatform"] == f"Python {PROJECT['requires-python']}"
    assert said["license"].rpartition("/")[2] == PROJECT["license"]
    assert (ROOT / said["readme"]).is_file()


def test_the_citation_is_that_of_the_package():
    assert (CITATION["version"], CITATION["license"]) == (PROJECT["version"], PROJECT["license"])
    assert re.findall(r'^  - name: "(.+)"$', text_of("CITATION.cff"), re.M) == [PROJECT["authors"][0]["name"]]


def test_files_to_touch_are_there():
    """Of a path with a NAME in it, the folder. Of one in the other column too."""
    rows = re.findall(r"^\| an? .*", text_of("CONTRIBUTING.md"), re.M)
    paths = re.findall(r"`((?:src|tests|docs)/[^`]*)`", "\n".join(rows))
    assert len(paths) > 12
    assert not [path for path in paths if not (ROOT / re.sub(r"[^/]*(?:NAME|SUBJECT).*", "", path)).exists()]


def test_commands_for_contributors_are_there():
    targets = re.findall(r"^([\w-]+):", text_of("Makefile"), re.M)
    text = text_of("CONTRIBUTING.md")
    asked = " ".join(re.findall(r"^\$ make ([\w -]+?)(?: +#|$)", text, re.M)).split()
    assert asked
    assert set(asked) <= set(targets)
    named = re.findall(r"^\$ python (?:-m pytest )?(\S+)", text, re.M)
    assert named
    assert not [path for path in named if not (ROOT / path).is_file()]


def test_the_changelog_is_for_reading_and_claims_no_tag_that_is_not_there():
    text = text_of("CHANGELOG.md")
    assert len(text) <= LONGEST_CHANGELOG
    assert f"The version in the tree is {PROJECT['version']}." in text
    assert PROJECT["version"] in re.findall(r"^## (\S+)", text, re.M)
    tags = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True)
    if tags.returncode:
        pytest.skip("no history of git here")
    assert ("No version is tagged" in text) == (not tags.stdout.strip())
