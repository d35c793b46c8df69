"""The command of one node as words of shell, in which the node's place is variables of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jointopt.core.quote import sh_variable, sh_word
from jointopt.measure.exports.intent import Export

_PLACES = {f"${name}": sh_variable(name) for name in ("NODE_RANK", "MASTER_ADDR")}
_OVERRIDE = re.compile(r"'?[a-z]\w*(?:\.\w+)*=")


def node_words(export: Export, nodes: int, gpus_per_node: int) -> list[str]:
    """Quoted words that start an export on one of ``nodes``; variables of the node are left to the shell."""
    start = list(export.launcher)
    if start[0] in ("torchrun", "deepspeed") and (nodes > 1 or start[0] == "torchrun"):
        # DeepSpeed's own launcher goes to other nodes by ssh; torchrun starts the same scripts where it is started
        several = ["--nnodes", str(nodes), "--node-rank", "$NODE_RANK", "--master-addr", "$MASTER_ADDR",
                   "--master-port", "29500"] if nodes > 1 else []  # fmt: skip
        start = ["torchrun", *several, "--nproc-per-node", str(gpus_per_node)]
    words = map(sh_word, (*export.program.split(), *export.words))
    return [*(_PLACES.get(word) or sh_word(word) for word in start), *words]


def folded(words: Sequence[str], indent: str = "    ") -> str:
    """A command over several lines, one option or override (``model.num_layers=32``) on each."""
    lines = [words[0]]
    for word in words[1:]:
        if (word.startswith("--") and len(word) > 2) or _OVERRIDE.match(word):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return f" \\\n{indent}".join(lines)
