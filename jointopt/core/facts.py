"""Small facts that travel between rooms as data, so that no code reads them out of a sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Source:
    """One cluster and software stack: runs of one source share the constants of hardware and framework.

    ``origin`` is where a table has its rows from (blank: not stated), ``framework`` the profile's name, or what the
    table calls the software where no profile was fitted to it, ``gpu`` a catalogue id.
    """

    origin: str
    framework: str
    gpu: str
    gpus_per_node: int

    def __str__(self) -> str:
        """The key under which arrays and stored surrogates name the source."""
        return f"{self.origin}|{self.framework}|{self.gpu}|{self.gpus_per_node}"

    @classmethod
    def parse(cls, key: str) -> Source:
        """The source of a key that ``str`` wrote; ValueError for other text."""
        origin, framework, gpu, gpus_per_node = key.rsplit("|", 3)
        return cls(origin, framework, gpu, int(gpus_per_node))

    def to_text(self) -> str:
        """What a message calls the source: "bigscience, megatron-lm, a100-sxm4-80gb, 8 GPUs a node"."""
        words = (self.origin, self.framework, self.gpu, f"{self.gpus_per_node} GPUs a node")
        return ", ".join(dict.fromkeys(word for word in words if word))
