"""The whole document of a proposal, read back from a file of ``propose --out``, from a pipe, or from its study."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jointopt.core.errors import JobError, UsageError
from jointopt.jobs.reading import parse_json

STORAGE = "sqlite:///jointopt.db"
PROPOSAL = "proposal.json"  # in a folder of `propose --out`
_NEEDED = ("job", "job_file", "front", "surrogate")
_EXPECTED = "expected a folder of `jointopt propose --out`, its proposal.json, or the name of a stored study"


def stored_proposal(source: str, storage: str | None = None) -> dict[str, Any]:
    """The document that `propose --json` prints: of a folder, a file, - for standard input, or a study's name.

    A given ``storage`` means that ``source`` is a study. UsageError where there is none, or it is incomplete.
    """
    path = Path(source) / PROPOSAL if Path(source).is_dir() else Path(source)
    if source == "-":
        return _checked(sys.stdin.read(), "standard input")
    if storage is None and (path.is_file() or path.suffix.lower() == ".json" or path.name != source):
        try:
            return _checked(path.read_text(encoding="utf-8-sig"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', error)}; {_EXPECTED}.") from error
    from jointopt.runs.database import without_password
    from jointopt.search.studies.reading import read_document

    url = storage or STORAGE
    study = {"name": source, "storage": without_password(url)}
    return _checked(read_document(url, source), f"study {source}") | {"study": study}


def _checked(text: str, source: str) -> dict[str, Any]:
    try:
        document = parse_json(text)
    except (JobError, ValueError) as error:
        raise UsageError(f"{source} cannot be read as JSON: {str(error).rstrip('.')}; {_EXPECTED}.") from error
    missing = [key for key in _NEEDED if not document.get(key)] if isinstance(document, dict) else list(_NEEDED)
    if missing:
        raise UsageError(f"{source} holds no proposal, for it has no {' and no '.join(missing)}; {_EXPECTED}.")
    return dict(document)
